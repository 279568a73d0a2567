"""Read a layer of a checkpoint as parameters of a tool; masks and positions."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import typer

from attnkit import callbacks, formats, model, options
from attnkit.errors import AttnkitWarning, DataError, UsageError, counted, suggest, with_article
from attnkit.inputs import intermediates, padding
from attnkit.model.parameters import ATTENTION, FFN, MIXERS, is_layer_of, last_part, tool_of
from attnkit.model.processor.products import FIXED, PLAIN, Products
from attnkit.records import Array, Record, Tensor, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint
    from attnkit.model import Config, Context, Model, Step


LONG = 60  # tokens to generate, from which a copy of weights by columns pays


class LayerOperands(NamedTuple):
    """A layer of a model, what a tool applies it to, and the context of the run."""

    core: "Model"
    step: "Step"
    x: Array
    context: "Context"


class NetworkOperands(NamedTuple):
    """The weights of a feed-forward network or experts, as the tool uses them."""

    weights: Mapping[str, Array]
    activation: str
    mixture: "model.ExpertConfig | None" = None


class NetworkOptions(NamedTuple):
    """Where the weights of a feed-forward network come from, and its form."""

    params: Annotated[
        Mapping[str, Array] | None,
        options.file(
            "tensors",
            "weights: w1 (D, F), b1, w2 (F, D), b2, and w3 (D, F), b3 when gated, or linear1.weight, … of PyTorch; "
            "with --experts router (D, E), and those of E experts stacked",
        ),
    ] = None
    model_: options.Model = None
    layer: options.Layer = None
    hidden: Annotated[int | None, typer.Option(min=1, metavar="F", help="random weights of this hidden width")] = None
    seed: Annotated[int, typer.Option(min=0, help="seed of the random weights")] = 0
    activation: Annotated[str, options.choice(model.ACTIVATIONS, "activation function of the hidden layer")] = "relu"
    gated: Annotated[bool, typer.Option(help="use a gated network (GLU): activation(x w1) · (x w3)")] = False
    experts: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="mix K experts for each token, which the router of --params chooses"),
    ] = None


class NormOperands(NamedTuple):
    """What a norm computes with; mean and variance are running ones, of batch norm."""

    kind: str
    eps: float
    axis: int
    gamma: Array | None
    beta: Array | None
    mean: Array | None = None
    variance: Array | None = None


def find_layer(checkpoint: "Checkpoint", layer: str | None, tool: str) -> str:
    """Check that a layer is one of the model and of this tool, and return its name.

    Without a name, the embedding or the positions of the first stack. UsageError names the closest layers.
    """
    config = checkpoint.config
    steps = [step for stack in config.stacks for step in config.plan(stack)]
    others = {step.layer for step in steps if tool not in (step.op, tool_of(step.layer) * (step.op in MIXERS))}
    if config.connector:  # whose norm and activation are not those of the model
        others |= {step.layer for step in config.plan("connector")}
    mine = [name for name in checkpoint.layers() if is_layer_of(name, tool) and name not in others]
    mine = recurrent_layers(checkpoint) if tool == "rnn" else mine
    if layer is None and tool in ("embed", "posenc"):
        return f"{config.stacks[0]}.{'embed' if tool == 'embed' else 'positions'}"
    if layer is None:
        raise UsageError(f"--model needs --layer NAME{f', such as {mine[0]}' if mine else ''}")
    positions = [f"{stack}.positions" for stack in config.stacks]  # with or without parameters
    if layer not in mine and not (tool == "posenc" and layer in positions):
        if layer in checkpoint.layers():
            raise UsageError(f"{layer} is not a layer for {tool}{suggest(layer, mine)}", "--layer")
        raise UsageError(f"the model has no layer {layer!r}{suggest(layer, mine)}", "--layer")
    return layer


def find_step(layer: str, tool: str) -> "Step":
    """The step of a layer that a tool computes, without its residual.

    >>> find_step("decoder.0.shortconv", "conv").op, find_step("encoder.conv1", "conv").op
    ('shortconv', 'conv')
    """
    return model.Step(MIXERS.get(last_part(layer), tool), layer)


def linear_weights(
    params: Mapping[str, Array] | None, checkpoint: "Checkpoint | None", layer: str | None
) -> Mapping[str, Array]:
    """Weights w (in, out) and optionally b (out) of a file or of a layer.

    DataError for other tensors.
    """
    if checkpoint is not None:
        weights: Mapping[str, Array] = checkpoint.params[find_layer(checkpoint, layer, "linear")]
        return weights
    return weight_and_bias(params or {}, "linear")


def weight_and_bias(tensors: Mapping[str, Array], tool: Literal["linear", "conv"]) -> Mapping[str, Array]:
    """Read w and optionally b of a file, also by PyTorch's names.

    DataError for other tensors.
    """
    if "w" not in tensors:
        from attnkit.inputs.torch_parameters import read_torch_parameters

        tensors = read_torch_parameters(tensors, tool)
    if "w" not in tensors:
        hint = "; numpy.savez('params.npz', w=w) names it" if [*tensors] == ["x"] else ""
        raise DataError(f"no w (it has {join_names([*tensors])}){hint}", "--params")
    if unknown := sorted({*tensors} - {"w", "b"}):
        raise DataError(f"{', '.join(unknown)} is not one of: b, w", "--params")
    return tensors


def find_ffn_weights(x: Array, chosen: NetworkOptions) -> tuple[Mapping[str, Array], str]:
    """Find the weights of ffn and the name of its activation, by its options."""
    hidden, gated, activation = chosen.hidden, chosen.gated, chosen.activation
    if chosen.model_ is not None:
        layer = find_layer(chosen.model_, chosen.layer, "ffn")
        return chosen.model_.params[layer], chosen.model_.config.activation_of(layer)
    if hidden is not None:
        rng, width, dtype = np.random.default_rng(chosen.seed), x.shape[-1] if x.ndim else 0, model.output_dtype(x)
        shapes = {"w1": (width, hidden), "w2": (hidden, width)} | ({"w3": (width, hidden)} if gated else {})
        size = dtype.itemsize * width * hidden * len(shapes)
        formats.check_memory(size, f"a network of {hidden} hidden units", "--hidden")
        drawn = {name: model.random_weight(rng, *shape).astype(dtype) for name, shape in shapes.items()}
        return drawn, activation  # each from N(0, 1/rows)
    params = read_ffn_parameters(chosen.params or {})
    required = {"w1", "w2"} | ({"w3"} if gated else set())
    if missing := sorted(required - set(params)):
        raise DataError(f"no {', '.join(missing)} (it has {join_names([*params])})", "--params")
    if unknown := sorted({*params} - {*FFN, *ATTENTION}):
        raise DataError(f"{', '.join(unknown)} is not one of: {', '.join(sorted(FFN))}", "--params")
    if "w3" in params and not gated:
        raise UsageError("it has a w3, which only --gated uses", "--params")
    return {name: array for name, array in params.items() if name in FFN}, activation


def read_ffn_parameters(params: Mapping[str, Array]) -> Mapping[str, Array]:
    """The weights of a file by the names of FFN, also where it has PyTorch's."""
    if not params.keys().isdisjoint(FFN):
        return params
    from attnkit.inputs.torch_parameters import read_torch_parameters

    return read_torch_parameters(params, "ffn")


def find_experts(params: Mapping[str, Array], chosen: int, gated: bool) -> "tuple[model.Experts, model.ExpertConfig]":
    """The mixture of experts of a file; a router chooses some for each token.

    params  router (D, E), perhaps router_bias (E,); w1 (E, D, F), w2 (E, F, D), w3 when gated, and their biases

    DataError if they do not fit each other, UsageError for more chosen experts than there are.
    """
    router = {name: params[name] for name in ("router", "router_bias") if name in params}
    networks = {name: array for name, array in params.items() if name not in router}
    if missing := sorted({"router", "w1", "w2", *["w3"] * gated} - {*params}):
        raise DataError(f"no {', '.join(missing)} (it has {join_names([*params])})", "--params")
    if unknown := sorted({*networks} - {*FFN}):
        raise DataError(f"{', '.join(unknown)} is not one of: router, {', '.join(sorted(FFN))}", "--params")
    if "w3" in params and not gated:
        raise UsageError("it has a w3, which only --gated uses", "--params")
    if params["router"].ndim != 2:
        raise DataError.about("router", f"{params['router'].shape}: expected (D, E)")
    count = params["router"].shape[1]
    for name, array in networks.items():
        if array.ndim != (3 if name.startswith("w") else 2) or len(array) != count:
            raise DataError.about(
                name, f"{array.shape} for a router {params['router'].shape}: expected {count} experts"
            )
    if chosen > count:
        raise UsageError(f"{chosen} of {count} experts", "--experts")

    def expert(number: int) -> Mapping[str, Array]:
        return {name: array[number] for name, array in networks.items()}

    config = model.ExpertConfig(count=count, chosen=chosen, hidden=params["w1"].shape[-1], score="chosen")
    return model.Experts(router, expert), config


def split_experts(params: Mapping[str, Array], layer: str) -> dict[str, dict[str, Array]]:
    """The layers of experts that a file stacks: the router, and each expert.

    >>> params = {"router": np.ones((4, 2)), "w1": np.ones((2, 4, 3))}
    >>> {layer: [*one] for layer, one in split_experts(params, "own.ffn").items()}
    {'own.ffn': ['router'], 'own.expert.0': ['w1'], 'own.expert.1': ['w1']}
    """
    from attnkit.model.layers.networks import expert_layer

    router = {name: one for name, one in params.items() if name.startswith("router")}
    stacked = {name: one for name, one in params.items() if name not in router}
    experts = {
        expert_layer(layer, number): {name: one[number] for name, one in stacked.items()}
        for number in range(len(stacked["w1"]))
    }
    return {layer: router, **experts}


def result_scale(checkpoint: "Checkpoint | None", layer: str | None, is_added: bool = True) -> float:
    """The factor of a model on the result of a step.

    is_added  whether a residual is added to the result; without one, a step that adds one in the model has no factor
    """
    config = None if checkpoint is None else checkpoint.config
    steps = () if config is None else (step for stack in config.stacks for step in config.plan(stack))
    step = next((step for step in steps if step.layer == layer), None)
    return 1.0 if step is None or (step.adds_residual and not is_added) else step.scale


def add_residuals(output: Tensor, x: Array | None, add: Record | None, scale: float) -> Tensor:
    """Add the input or another tensor to a factor times the output of a sub-layer."""
    if scale != 1 and (x is not None or add is not None):
        output = replace(output, array=model.scaled(output.array, scale), formula=f"{scale:g} ({output.formula})")
    for addend, name in ((x, "input"), (None if add is None else add["x"], "residual")):
        if addend is not None:
            output = replace(output, array=model.add(output.array, addend), formula=f"{output.formula} + {name}")
    return output


def products_of(checkpoint: "Checkpoint | None", layer: str | None) -> Products:
    """How a layer multiplies in the whole model."""
    is_fixed = checkpoint is not None and layer is not None and checkpoint.config.fixes_shapes(layer)
    return FIXED if is_fixed else PLAIN


def recurrent_layers(checkpoint: "Checkpoint") -> list[str]:
    """Names of the recurrent layers that are steps.

    A decoder that attends inside its recurrence is one step.
    """
    steps = [step for stack in checkpoint.config.stacks for step in checkpoint.config.plan(stack)]
    return [step.layer for step in steps if step.op == "rnn"]


def require_recurrent(checkpoint: "Checkpoint") -> "model.RecurrentConfig":
    """Configuration of a recurrent model; UsageError for another model."""
    from attnkit.model import recurrent_config

    return recurrent_config.as_recurrent(checkpoint.config, "--model")


def core_model(checkpoint: "Checkpoint") -> "Model":
    """Build the model of a checkpoint, computed by the engine of the run."""
    from attnkit.model import context

    return context.Model(checkpoint.config, checkpoint.params, callbacks.current().engine)


def complete_model(checkpoint: "Checkpoint") -> "Model":
    """Build the model of a checkpoint; warn about tensors that it does not read."""
    unread = checkpoint.params.unread
    for names, noun, why in (
        ([*dict.fromkeys(unread.beyond.values())], "layer", "which the configuration leaves out"),
        (unread.others, "tensor", f"which family {checkpoint.config.family} has no place for"),
    ):
        if names:
            many = f"{counted(len(names), noun)} of the files {'are' if len(names) > 1 else 'is'}"
            warnings.warn(f"{many} not read, {why}: {join_names(names, 4)}", AttnkitWarning, stacklevel=2)
    return core_model(checkpoint)


def prepare_decoding(checkpoint: "Checkpoint", tokens: int) -> None:
    """Copy weights of the decoder by columns if there are many tokens to generate."""
    if tokens >= LONG:
        for step in checkpoint.config.plan("decoder"):
            if step.op == "ffn" and "w2" in checkpoint.params[step.layer]:
                checkpoint.params.to_column_major(step.layer, "w2")


def new_context(**fields: Any) -> "Context":
    """Build a context that reports layers and results that are not finite."""
    events = callbacks.current()
    return model.Context(
        on_step=lambda step: events.on_progress(step.layer), on_non_finite=events.on_non_finite, **fields
    )


def context_from(record: Record, **fields: Any) -> "Context":
    """Build the context of a run: mask, positions, segments and grid of a record.

    Unless they are given.
    """
    record = padding.rename_model_inputs(record)
    mask, grid = record.get("mask"), record.get("grid")
    if grid is not None and (grid.shape != (2,) or grid.dtype.kind not in "iu"):
        raise DataError(f"grid {grid.dtype} {grid.shape}: expected two whole numbers, rows and columns of patches")
    own = {
        "mask": mask,
        "positions": find_positions(record),
        "segment_ids": record.get("types"),
        "grid": None if grid is None else (int(grid[0]), int(grid[1])),
    }
    return new_context(**own | fields)


def warn_empty_mask_rows(mask: Array | None) -> None:
    """Warn about rows of a boolean mask that allow a query no key."""
    if mask is not None and mask.dtype == bool and mask.ndim:
        opening = "1 row of the mask allows no key: its query", "{} rows of the mask allow no key: their queries"
        intermediates.warn_fully_masked_rows(np.asarray(~mask.any(axis=-1)), opening=opening)


def ids_from_x(record: Record) -> Record:
    """Rename x to `ids` if it has integers, and the record nothing else but theirs.

    Names that a tokenizer of transformers gives are renamed as well.

    >>> list(ids_from_x(Record({"x": np.array([3, 1])}))), list(ids_from_x(Record({"x": np.zeros(2)})))
    (['ids'], ['x'])
    """
    record = padding.rename_model_inputs(record)
    if "x" not in record or {*record} - {"x", *padding.BESIDE_IDS} or record["x"].dtype.kind not in "iu":
        return record
    ids = record["x"]
    axes = record.tensors["x"].axes or ("batch", "token")[max(0, 2 - ids.ndim) :]
    rest = {name: one for name, one in record.tensors.items() if name != "x"}
    return replace(record, tensors={"ids": Tensor(ids, axes if len(axes) == ids.ndim else None), **rest})


def check_pair(config: "Config", pair: str | None, record: Any) -> None:
    """Raise UsageError for a second text without a first, or without an encoder."""
    if pair is None:
        return
    if config.encoder is None:
        raise UsageError(f"{with_article(config.family)} model takes one text, not a pair", "--pair")
    if not record or isinstance(record, Record):
        raise UsageError("a second text needs a first: TEXT", "--pair")


def find_positions(record: Record) -> Array | None:
    """Positions of a record's tokens if its mask states padding, else None."""
    mask = record.get("mask")
    if mask is None or (one_row := padding_positions(mask)) is not None:
        return None if mask is None else one_row
    real = padding.find_real_tokens(record) if mask.shape[-1:] == padding.token_shape(record)[-1:] else None
    return None if real is None or real.all() else model.token_positions(real)


def padding_positions(mask: Array | None) -> Array | None:
    """Positions of the tokens of a padded batch; None for another mask."""
    if mask is None or mask.ndim != 3 or mask.shape[-2] != 1 or mask.dtype != bool or mask.shape[-1] == 1:
        return None
    return model.token_positions(mask)


def positions_after(positions: Array, mask: Array | None, past: int, count: int) -> Array:
    """Positions of the tokens after those in a KV cache.

    They follow a padding mask of all tokens, else `past`.

    positions (B, N), mask (B, 1, P + T) or another one -> (B, T)

    >>> positions_after(np.array([[0, 1]]), None, past=3, count=2).tolist()
    [[3, 4]]
    """
    padded = padding_positions(mask)
    if padded is not None and padded.shape[-1] == past + count:
        return padded[..., past:]
    return past + positions
