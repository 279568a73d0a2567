"""Initial parameters of each family, as its reference implementation draws them, from a seed."""

from collections.abc import Callable, Mapping
from math import prod, sqrt
from typing import Any, NamedTuple, cast

import numpy as np

from attnkit.checkpoints.publishing import PublishedTensors, published_tensors
from attnkit.errors import UsageError
from attnkit.formats import check_memory
from attnkit.model import Array
from attnkit.model.config import Config, parse_layer_name
from attnkit.model.recurrent_cells import CELLS
from attnkit.model.recurrent_config import RecurrentStack

MANY = 100  # layers from which on their parameters are not listed to be counted
DEPTHS = (
    "n_layer",
    *(f"{of}layers" for of in ("num_", "num_hidden_", "encoder_", "decoder_", "num_encoder_", "num_decoder_")),
)


class Distribution(NamedTuple):
    """How the elements of a tensor are drawn: normal or uniform around 0, of this deviation or bound; or all equal."""

    kind: str
    scale: float


class Parameter(NamedTuple):
    """What decides how a parameter is drawn: its layer's part of a stack, its own name, its stored shape, the stack."""

    part: str
    name: str
    shape: tuple[int, ...]
    stack: str = ""


Rule = Callable[[Config, Mapping[str, Any], Parameter], Distribution]


def initial_tensors(raw: Mapping[str, Any], seed: int = 0, name: str = "config.json") -> dict[str, Array]:
    """Return the tensors of a new model by their published names, float32; `name` is the path of its configuration.

    Norms are 1 and 0, biases 0, and the row of the padding token in the embeddings 0. Each tensor has a generator of
    its own, seeded with [seed, SHA-256 of its name as eight big-endian 32-bit numbers].
    UsageError for a seed outside 0..2^64-1; DataError for a configuration that is wrong.

    >>> raw = {"model_type": "gpt2", "n_embd": 64, "n_head": 2, "n_layer": 8, "n_positions": 8, "vocab_size": 9}
    >>> tensors = initial_tensors(raw, seed=1)
    >>> [round(float(tensors[f"transformer.h.0.mlp.{name}.weight"].std()), 3) for name in ("c_fc", "c_proj")]
    [0.02, 0.005]
    """
    if not 0 <= seed < 2**64:
        raise UsageError(f"seed {seed} outside 0..2^64-1")
    check_model_size(raw, name)
    table = published_tensors(raw, name)
    tensors = {key: _draw(key, _distribution(table, raw, key), table.shapes[key], seed) for key in table.shapes}
    padding = table.config.special.pad
    if padding is not None:
        for key, parameters in table.parameters.items():
            if parameters[0].endswith(".embed.table") and padding < len(tensors[key]):
                tensors[key][padding] = 0
    return tensors


def check_model_size(raw: Mapping[str, Any], name: str) -> None:
    """Raise DataError for a configuration whose parameters and gradients need more memory than there is.

    The parameters of many layers are those of one, and of a second one for each of the others.
    """
    depths = {key: raw[key] for key in DEPTHS if type(raw.get(key)) is int and raw[key] > MANY}
    one = {**raw, **dict.fromkeys(depths, 1)}
    first = count = count_parameters(one, name)
    for key, depth in depths.items():
        count += (depth - 1) * (count_parameters({**one, key: 2}, name) - first)
    need = 2 * np.dtype(np.float32).itemsize * count
    check_memory(need, f"a model of {count:,} parameters, with their gradients,", name)


def count_parameters(raw: Mapping[str, Any], name: str) -> int:
    """Return the number of parameters of the model of a configuration."""
    return sum(map(prod, published_tensors(raw, name).shapes.values()))


def _distribution(table: PublishedTensors, raw: Mapping[str, Any], tensor: str) -> Distribution:
    layer, _, name = table.parameters[tensor][0].rpartition(".")
    if name == "gamma":
        return Distribution("constant", 1.0)
    if name == "beta" or name.startswith("b"):
        return Distribution("constant", 0.0)
    stack, _, part = parse_layer_name(layer)
    parameter = Parameter(part, name, table.shapes[tensor], stack)
    return RULES[table.config.family](table.config, raw, parameter)


def _draw(name: str, distribution: Distribution, shape: tuple[int, ...], seed: int) -> Array:
    import hashlib

    kind, scale = distribution
    if kind == "constant":
        return np.full(shape, scale, np.float32)
    digest = np.frombuffer(hashlib.sha256(name.encode()).digest(), ">u4")
    rng = np.random.default_rng([seed, *map(int, digest)])
    array = rng.standard_normal(shape) if kind == "normal" else rng.uniform(-1, 1, shape)
    return (array * scale).astype(np.float32)


def _normal(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw from N(0, initializer_range), 0.02 by default: BERT and Llama as in transformers."""
    return Distribution("normal", float(raw.get("initializer_range") or 0.02))


def _gpt2(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Divide the deviation of the projections that are added to the residual stream by sqrt(2 layers) (GPT-2, 2.3)."""
    layers = config.stack("decoder").layers
    factor = 1 / sqrt(2 * layers) if parameter.name in ("wo", "w2") else 1.0
    return Distribution("normal", _normal(config, raw, parameter).scale * factor)


def _xavier(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw weights uniformly within sqrt(6/(in + out)) (Glorot and Bengio 2010), embeddings from N(0, 1/D)."""
    if parameter.name == "table":
        return Distribution("normal", config.width**-0.5)
    return Distribution("uniform", sqrt(6 / sum(parameter.shape[-2:])))


def _recurrent(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw recurrent layers, biases included, uniformly within 1/sqrt(H) (torch.nn.LSTM), what else as `_xavier`."""
    if parameter.part != "rnn":
        return _xavier(config, raw, parameter)
    blocks = CELLS[cast(RecurrentStack, config.stack(parameter.stack)).cell].blocks
    return Distribution("uniform", (parameter.shape[0] // blocks) ** -0.5)


def _lstm(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw embeddings uniformly within 0.1 (AWD-LSTM, section 5)."""
    is_table = parameter.name in ("table", "w") and not (parameter.part == "head" and config.classes)
    return Distribution("uniform", 0.1) if is_table else _recurrent(config, raw, parameter)


def _t5(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw from normal distributions that make up for the missing scale of the scores (mesh_tensorflow; T5)."""
    stack = config.stack("encoder")
    deviations = {
        "wq": (config.width * stack.head_dim) ** -0.5,
        "wo": (stack.heads * stack.head_dim) ** -0.5,
        "w2": stack.hidden**-0.5,
    }
    is_embedding = parameter.part in ("embed", "head") and parameter.name in ("table", "w")
    scale = 1.0 if is_embedding else deviations.get(parameter.name, config.width**-0.5)
    return Distribution("normal", float(raw.get("initializer_factor") or 1.0) * scale)


RULES: dict[str, Rule] = {
    "gpt2": _gpt2,
    "openai-gpt": _normal,
    "llama": _normal,
    "mistral": _normal,
    "qwen2": _normal,
    "bert": _normal,
    "marian": _xavier,
    "transformer": _xavier,
    "t5": _t5,
    "seq2seq": _recurrent,
    "lstm": _lstm,
}
