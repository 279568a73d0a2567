"""attnkit conv: convolution over one or two dimensions."""

from collections.abc import Mapping
from typing import Annotated, Literal

import typer

from attnkit import callbacks, model, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.errors import UsageError
from attnkit.inputs.convolution_stage import (
    STEPS,
    Kernel,
    compute_convolution,
    convolution_state,
    describe_convolution,
    find_convolution,
    kernel_numbers,
    with_state,
    without_outdated_labels,
)
from attnkit.inputs.mixers import MixerStates, apply_mixer, find_mixer
from attnkit.model.formulas.convolution import Convolution
from attnkit.model.intermediates import kept_names
from attnkit.records import Array, Record

Windows = Annotated[
    Convolution,
    options.OptionsOf(
        stride=kernel_numbers("distance of two windows [default: 1]"),
        padding=typer.Option(
            parser=options.parse_kernel_padding,
            metavar="N[,…]|same|same-lower|causal",
            show_default=False,
            help="zeros around x: on all sides, or those before and those after it (of two dimensions: N,M on both "
            "sides of each, or top,left,bottom,right); same: enough that only the stride makes x smaller, the odd "
            "one after it; same-lower: before it; causal: before x alone, so that no window sees a later token "
            "[default: 0]",
        ),
        dilation=kernel_numbers("distance of two numbers of a window [default: 1]"),
        groups=typer.Option(min=1, metavar="G", help="split channels and filters into G groups, each by itself"),
    ),
]


@tool(
    rules=Constraints(
        exclusive=[
            ("params", "filters", "model"),
            *(("model", name) for name in ("channels", "stride", "padding", "dilation", "groups", "activation")),
            *(("stride", name) for name in ("state_in", "state_out")),
        ],
        requires=[
            *(("filters", "size"), ("size", "filters"), ("seed", "filters"), ("layer", "model"), ("add", "model")),
            *((name, "model|padding=causal") for name in ("state_in", "state_out")),
        ],
        one_of=[("params", "filters", "model")],
    ),
    sections={
        "Kernel": "kernel",
        "Windows": "channels windows",
        "States": "state_in state_out",
        "Results": "activation residual add keep steps",
    },
    record_defaults=lambda flags: {"seed": flags["seed"]} if flags["filters"] is not None else {},
)
def conv(
    record: Record,
    *,
    kernel: Kernel,
    channels: Annotated[
        Literal["first", "last"],
        typer.Option(help="whether the channels of x are its last axis, as the features of tokens, or come before"),
    ] = "last",
    windows: Windows,
    state_in: Annotated[
        Mapping[str, Array] | None,
        options.file("tensors", "begin with the tokens in FILE, as --state-out writes them [default: zeros]"),
    ] = None,
    state_out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="write the last tokens of x, which later windows see, to FILE: --state-in continues"
        ),
    ] = None,
    activation: Annotated[str, options.choice(model.ACTIVATIONS, "function of the result")] = "identity",
    residual: Annotated[bool, typer.Option(help="add x to the result, which must be as large")] = False,
    add: options.Add = None,
    keep: Annotated[
        tuple[str, ...],
        options.names(
            "add these steps to the record; gate_in, values, admitted, gate_out and released: of a short convolution",
            (*kept_names("conv"), "all"),
        ),
    ] = (),
    steps: options.Steps = False,
) -> Record:
    """Slide a kernel over x: weigh and sum each window, and add b.

    A kernel w (out, in, size) moves over the tokens of x (token, model), whose features are the channels; a kernel of
    two sizes moves over the rows and columns of x (row, column, channel). With --channels first x is (channel,
    position) or (channel, row, column), as in PyTorch and ONNX. Axes before these are batches. With --model a layer of
    Whisper or wav2vec 2.0 states the kernel, how it moves, the norm and the activation; a layer of LFM2 is a short
    convolution, with a gate before it, one after it, and projections of x. The random weights of
    --filters and --size are drawn from N(0, 1/inputs), without biases. With as many --groups as channels, each channel
    has a kernel of its own (depthwise). With --padding causal, or by a layer of LFM2, a text may be cut anywhere, and
    continued with --state-in.

    \b
    Example:
      attnkit embed "The cat sat" --dim 4 | attnkit conv --filters 2 --size 3 --padding 1
    """
    if kernel.model_ is not None and (layer := find_mixer(kernel.model_, kernel.layer, "conv")):
        states = MixerStates(state_in, state_out)
        return apply_mixer(record, kernel.model_, layer, keep, steps=steps, residual=residual, add=add, states=states)
    if kernel.model_ is not None:
        for flag, value in (("--add", add), ("--state-in", state_in), ("--state-out", state_out)):
            if value is not None:
                raise UsageError("needs a layer that mixes the tokens of a text (decoder.0.shortconv)", flag)
    stage = find_convolution(record["x"], kernel, windows, channels, activation, residual)
    stage = stage if state_in is None else with_state(stage, record["x"], state_in)
    callbacks.current().on_parameters(stage.weights)
    callbacks.current().on_operands(stage)
    has_all, listener = steps or "all" in keep, callbacks.current().on_intermediates
    arrays = compute_convolution(record, stage, STEPS if has_all or listener else keep)
    if state_out:
        callbacks.current().write_side_output(state_out, convolution_state(record, stage))
    rest = record.without([name for name in STEPS if name in record])

    def complete(steps: bool) -> Record:
        tensors = describe_convolution(record, stage, arrays, keep, steps=steps)
        return without_outdated_labels(rest, tensors, stage).with_tensors(tensors)

    if listener:
        listener(complete(True))
    return complete(has_all)
