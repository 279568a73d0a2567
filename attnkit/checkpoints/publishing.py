"""The tensors that a configuration requires: the inverse of reading a folder."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit.checkpoints.checkpoint import Checkpoint, fact_of, import_family, read_family, read_model
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import TensorSpec, Weights, expand_layers, single_file
from attnkit.formats.dtypes import name_of
from attnkit.formats.mapped import Mapped
from attnkit.model.config import Config
from attnkit.model.context import Params
from attnkit.model.dtypes import Array

# tensors outside the part that a prefix names
WITHOUT_PREFIX = ("cls.", "lm_head.", "final_logits_bias", "vocab_", "predictions.", "generator_", "discriminator_",
                  "head.", "embed_out.", "lm_predictions.", "decoder.weight", "decoder.bias", "classifier.",
                  "classification_head.", "qa_outputs.", "dense.")  # fmt: skip
OPTIONAL = ("pooler.dense.weight", "pooler.weight")  # tensors that a model has only if they are stored


class PublishedTensors(NamedTuple):
    """The tensors of a model by their published names.

    shapes      the shape of each
    parameters  the parameters that each holds, as decoder.0.self.wq: several where they are one tensor or tied
    specs       layer -> {parameter: the form in which it is stored}
    names       parameter -> the tensor that holds it, or the tensors that are joined
    """

    config: Config
    shapes: dict[str, tuple[int, ...]]
    parameters: dict[str, tuple[str, ...]]
    specs: Mapping[str, Mapping[str, TensorSpec]]
    names: dict[str, tuple[str, ...]]


class AllTensors(Weights):
    """The weights of a folder that stores every tensor its family knows."""

    def find(self, names: Any) -> str | None:
        return next((name for name in names if name not in OPTIONAL), None)


def published_tensors(raw: Mapping[str, Any], name: str = "config.json", strict: bool = True) -> PublishedTensors:
    """The tensors of the model of a configuration. DataError names what is wrong.

    raw     the values of config.json, whose path is `name`
    strict  whether a key is wrong that asks for a computation and is not read

    >>> raw = {"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 8, "vocab_size": 9}
    >>> table = published_tensors(raw)
    >>> table.shapes["transformer.h.0.attn.c_attn.weight"], table.parameters["transformer.wte.weight"]
    ((4, 12), ('decoder.embed.table', 'head.w'))
    """
    reader = ConfigReader(raw, name)
    family = import_family(reader)
    config, layers = read_family(family, reader, AllTensors(name, [], {}), strict)
    specs = expand_layers(config, layers)
    prefix = fact_of(family, "PREFIXES")[0] if fact_of(family, "WRITES_PREFIX", True) else ""
    shapes: dict[str, tuple[int, ...]] = {}
    parameters: dict[str, tuple[str, ...]] = {}
    names: dict[str, tuple[str, ...]] = {}
    for layer, layer_specs in specs.items():
        for key, spec in layer_specs.items():
            stored = [spec.tied or one[0] for one in spec.joined_names()]
            joined = [one if one.startswith(WITHOUT_PREFIX) else prefix + one for one in stored]
            names[f"{layer}.{key}"] = tuple(joined)
            for published in joined:
                shapes[published] = spec.stored_shape(config.parameter_shape(layer, key))
                parameters[published] = (*parameters.get(published, ()), f"{layer}.{key}")
    return PublishedTensors(config, shapes, parameters, specs, names)


def publish_parameters(table: PublishedTensors, params: Params) -> dict[str, Array]:
    """The published tensors of parameters, in their dtype. The last tied one counts.

    >>> raw = {"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 8, "vocab_size": 9}
    >>> table = published_tensors(raw)
    >>> params = assemble_checkpoint(raw, {n: np.ones(s) for n, s in table.shapes.items()}).params
    >>> sorted(publish_parameters(table, params)) == sorted(table.shapes)
    True
    """
    tensors: dict[str, Array] = {}
    for parameter, published in table.names.items():
        layer, _, key = parameter.rpartition(".")
        array, spec = params[layer][key], table.specs[layer][key]
        for name in published:
            if name not in tensors:
                tensors[name] = np.empty(table.shapes[name], array.dtype)
        spec.store([tensors[name] for name in published], array)
    return tensors


def assemble_checkpoint(
    raw: Mapping[str, Any], tensors: Mapping[str, Array], name: str = "config.json", files: Sequence[str] = ()
) -> Checkpoint:
    """The model of a configuration with tensors in memory, by their published names.

    Parameters are views of float32 and float64 tensors: who changes a tensor in place changes the model. DataError
    where a tensor is missing or has another shape than the configuration says.

    >>> raw = {"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 8, "vocab_size": 9}
    >>> tensors = {name: np.zeros(shape, np.float32) for name, shape in published_tensors(raw).shapes.items()}
    >>> checkpoint = assemble_checkpoint(raw, tensors)
    >>> tensors["transformer.wte.weight"][...] = 1
    >>> float(checkpoint.params["head"]["w"].sum())
    36.0
    """
    reader = ConfigReader(raw, name)
    entries = {key: (name_of(array.dtype), array.shape) for key, array in tensors.items()}
    weights = single_file(Mapped(name, entries, tensors.__getitem__))
    config, params = read_model(import_family(reader), reader, weights)
    return Checkpoint(name, config, raw, params, files, reader.values.stated())
