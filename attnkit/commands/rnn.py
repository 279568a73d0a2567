"""attnkit rnn: recurrent layers."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnkit import callbacks, model, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.errors import DataError, UsageError
from attnkit.inputs import layers, padding, source_states
from attnkit.inputs.operands import AttendedTensor
from attnkit.inputs.recurrent_layers import (
    GROUPS,
    INTERMEDIATES,
    RecurrentOperands,
    RecurrentOptions,
    describe_runs,
    earlier_gates,
    expand_names,
    find_recurrent_weights,
    find_texts,
    name_cell_formulas,
    read_recurrent_weights,
    run_texts,
    states_record,
)
from attnkit.interpret.tracer import intermediate_axes
from attnkit.model.config import parse_layer_name
from attnkit.model.formulas.recurrent_cells import CELLS
from attnkit.records import Array, Labels, Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


WEIGHTS = "decoder.cross.weights"


def run_layer_of_model(
    record: Record,
    checkpoint: "Checkpoint",
    layer: str | None,
    memory: AttendedTensor | None,
    keep: tuple[str, ...],
    steps: bool,
) -> Record:
    """Run a recurrent layer of a model on x of a record.

    The record keeps the last states of an encoder's layers as `memory_state` and `memory_cell`; a decoder begins with
    the states of --memory.
    """
    layer = layers.find_layer(checkpoint, layer, "rnn")
    config = layers.require_recurrent(checkpoint)
    stack = config.recurrent_stack(model.parse_layer_name(layer)[0])
    names, listener = requested_names(keep, stack.cell, steps, layer), callbacks.current().on_intermediates
    all_names = (*names, *requested_names(("all",), stack.cell, False, layer)) if listener else names
    record = padding.with_padding_mask(record)
    x, arrays = check_input(record["x"], config, layer), dict[str, Array]()
    hook = find_intermediates(arrays, all_names)
    context = layers.context_from(record, **source_states.memory_fields(memory, config, x), hook=hook)
    core, step = layers.core_model(checkpoint), model.Step("rnn", layer)
    callbacks.current().on_operands(layers.LayerOperands(core, step, x, context))
    y = model.run(core, [step], x, context)
    tensors = {name: Tensor(one, intermediate_axes(name, one.ndim)) for name, one in arrays.items()}
    is_attentive = model.parse_layer_name(layer)[1] is None
    formula = "states, and what attention adds to them" if is_attentive else "hidden states"
    tensors["x"] = Tensor(y, record.tensor("x").axes_like(y.shape), formula=formula)
    labels: dict[str, Labels] = {}
    if WEIGHTS in arrays and memory is not None and (source := memory.labels_of("x", -2)):
        labels["source"] = source
    if WEIGHTS in arrays and (tokens := record.labels_of("x", -2)):
        labels["query"] = tokens
    record = record.without([name for name in (*INTERMEDIATES, "weights") if name in record])
    record = source_states.add_last_states(record, config, context, x.ndim == 3)
    if listener:
        listener(record.with_tensors({short_name(name, config): one for name, one in tensors.items()}, labels))
    kept = {name: one for name, one in tensors.items() if name.rpartition(".")[2] in (*names, "x")}
    return record.with_tensors({short_name(name, config): one for name, one in kept.items()}, labels)


def requested_names(keep: Collection[str], cell: str, steps: bool, layer: str) -> tuple[str, ...]:
    """The endings of requested intermediates of the cell, and of a decoder."""
    is_attentive = model.parse_layer_name(layer)[1] is None
    if "weights" in keep and not is_attentive:
        raise UsageError(f"{layer} has no attention inside: no weights", "--keep")
    rest = [name for name in keep if name != "weights"]
    names = expand_names(rest, cell, steps, True) if rest or steps else ()
    return (*names, *["weights"] * (is_attentive and ("weights" in keep or steps)))


def find_intermediates(arrays: dict[str, Array], names: Collection[str]) -> model.Hook:
    """A hook that collects the intermediates with these endings."""

    def hook(name: str) -> Callable[[Array], Array] | None:
        if name.rpartition(".")[2] not in names:
            return None

        def visit(array: Array) -> Array:
            arrays[name] = array
            return array

        return visit

    return hook if names else model.no_hook


def check_input(x: Array, config: model.RecurrentConfig, layer: str) -> Array:
    """Check that x (T, D) or (B, T, D) has the width of the layer; cast it to floats."""
    stack, number, _ = model.parse_layer_name(layer)
    chosen = config.recurrent_stack(stack)
    width = config.input_width(stack, number) if number is not None else chosen.embedding
    if x.ndim not in (2, 3) or x.shape[-1] != width:
        raise DataError(f"x {x.shape}: expected (T, {width}) or (B, T, {width}) for {layer}")
    return x.astype(model.output_dtype(x), copy=False)


def short_name(name: str, config: model.RecurrentConfig) -> str:
    """The name of an intermediate in a record, as reset_gate_l1 of several layers.

    >>> short_name("encoder.1.rnn.state", model.RecurrentConfig("seq2seq", 2))
    'state'
    """
    layer, _, own = name.rpartition(".")
    stack, number, _ = model.parse_layer_name(layer)
    has_many = config.decoding.is_sequential and stack == "decoder" and config.stack(stack).layers > 1
    return f"{own}_l{number}" if has_many and number is not None else own


BY_HAND = ("reverse", "lengths", "state_in", "state_out")  # what a model sets, or its record has
RANDOM = ("layers", "bidirectional", "projection", "peepholes", "seed")  # of random weights alone


def _stated_by_params(params: Mapping[str, Array], flags: Mapping[str, Any]) -> dict[str, Any]:
    weights = read_recurrent_weights(params, flags["cell"]).layers
    directions = weights[0].directions()
    first = directions[0][1]
    return {
        "hidden": first["hidden"].shape[0] // CELLS[flags["cell"]].blocks,
        "layers": len(weights),
        "bidirectional": len(directions) == 2,
        "projection": first["projection"].shape[0] if "projection" in first else None,
        "peepholes": "peephole" in first,
    }


def _stated_by_model(checkpoint: "Checkpoint", flags: Mapping[str, Any]) -> dict[str, Any]:
    name, number, _ = parse_layer_name(layers.find_layer(checkpoint, flags["layer"], "rnn"))
    stack = layers.require_recurrent(checkpoint).recurrent_stack(name)
    return {"cell": stack.cell, "hidden": stack.widths[number or 0], "bidirectional": stack.is_bidirectional}


@tool(
    sections={
        "Layers": "recurrence",
        "A layer of a model": "model_ layer memory",
        "Texts": "lengths state_in state_out",
        "Results": "keep steps",
    },
    rules=Constraints(
        exclusive=[("params", "model"), ("bidirectional", "reverse"), *(("model", name) for name in BY_HAND)],
        requires=[*((name, "hidden") for name in RANDOM), ("layer", "model"), ("memory", "model")],
        one_of=[("params", "hidden", "model")],
        repeats={
            "params": ("hidden layers bidirectional projection peepholes", _stated_by_params),
            "model": ("cell hidden bidirectional", _stated_by_model),
        },
    ),
    record_defaults=lambda flags: {"seed": flags["seed"]} if flags["hidden"] is not None else {},
)
def rnn(
    record: Record,
    *,
    recurrence: RecurrentOptions,
    model_: options.Model = None,
    layer: options.Layer = None,
    memory: Annotated[
        AttendedTensor | None,
        options.file(
            "attended",
            "of a decoder: begin with the last states of the encoder in FILE, and attend to its x where attention is "
            "inside the recurrence",
        ),
    ] = None,
    lengths: Annotated[
        Record | None, options.file("tensor", "number of tokens of each text, (B) [default: from the record's mask]")
    ] = None,
    state_in: Annotated[
        Mapping[str, Array] | None,
        options.file(
            "tensors", "begin with the states in FILE: hidden, cell, as --state-out writes them [default: zeros]"
        ),
    ] = None,
    state_out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="write the states after the last token to FILE, which --state-in continues"),
    ] = None,
    keep: Annotated[
        tuple[str, ...],
        options.names(
            "add these intermediates to the record; gates: all of the cell; of several layers or directions each, "
            "called input_gate_l0, input_gate_l0_reverse, …; weights: the alignments of a decoder that attends",
            (*INTERMEDIATES, "weights", *GROUPS),
        ),
    ] = (),
    steps: options.Steps = False,
) -> Record:
    """Apply recurrent layers: a hidden state after each token.

    Each state is computed from that token and the state before it.

    h_t = tanh(W x_t + U h_(t−1) + b), or by the gates of a GRU or an LSTM. x is (T, D), or (B, T, D) with the padding
    of its texts in the mask; after the end of a text the result is 0. The weights come from a file (--params), or
    from a seed: then those of each layer, forward before reverse, are drawn from N(0, 1/columns) in the order input,
    hidden, peepholes, projection, without biases. A text that is cut anywhere, and continued with --state-in, gives
    the same bits as the whole. With --model and --layer, the model sets the cell and the weights: a layer of an encoder
    adds its last states to the record (memory_state, memory_cell), with which a decoder begins (--memory).
    Intermediates of an earlier rnn are removed from the record.

    \b
    Example:
      attnkit embed "The quick brown fox" --dim 8 | attnkit rnn --cell lstm --hidden 8 --seed 1 --steps
    """
    if model_ is not None:
        return run_layer_of_model(record, model_, layer, memory, keep, steps)
    if "weights" in keep:
        raise UsageError("only a decoder of a model has weights", "--keep")
    texts = find_texts(record, lengths)
    weights, cell = find_recurrent_weights(record["x"], recurrence), recurrence.cell
    callbacks.current().on_parameters(weights.by_name(weights.layers))
    callbacks.current().on_operands(RecurrentOperands(texts, weights))
    names = expand_names(keep, cell, steps, len(weights.layers) == len(weights.layers[0].directions()) == 1)
    listener = callbacks.current().on_intermediates
    all_names = expand_names(("all",), cell, False, True) if listener else names
    runs, outputs, states, position = run_texts(cell, texts, weights.layers, state_in, bool(all_names))
    has_two = all(one is not None for one in weights.layers[-1])
    last = next(one for _, one in weights.layers[-1].directions())
    formulas = name_cell_formulas(cell, last)
    tensors = describe_runs(runs, names, record, formulas)
    formula = f"{formulas['state']}{', both directions side by side' * has_two}"
    output = outputs if texts.is_batch else outputs[0]
    tensors["x"] = Tensor(output, record.tensor("x").axes_like(output.shape), formula=formula)
    if state_out:
        callbacks.current().write_side_output(state_out, states_record(states, texts, position))
    rest = record.without(earlier_gates(record))
    if listener:
        listener(rest.with_tensors(describe_runs(runs, all_names, record, formulas) | {"x": tensors["x"]}))
    return rest.with_tensors(tensors)
