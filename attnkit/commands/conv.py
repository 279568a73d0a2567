"""attnkit conv: convolution over one or two dimensions."""

from typing import Annotated, Literal

import typer

from attnkit import callbacks, model, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.inputs.convolution_stage import (
    STEPS,
    Kernel,
    compute_convolution,
    describe_convolution,
    find_convolution,
    kernel_numbers,
    without_outdated_labels,
)
from attnkit.model.formulas.convolution import Convolution
from attnkit.records import Record

Windows = Annotated[
    Convolution,
    options.OptionsOf(
        stride=kernel_numbers("distance of two windows [default: 1]"),
        padding=typer.Option(
            parser=options.parse_kernel_padding,
            metavar="N[,…]|same|same-lower",
            show_default=False,
            help="zeros around x: on all sides, or those before and those after it (of two dimensions: N,M on both "
            "sides of each, or top,left,bottom,right); same: enough that only the stride makes x smaller, the odd "
            "one after it; same-lower: before it [default: 0]",
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
        ],
        requires=[("filters", "size"), ("size", "filters"), ("seed", "filters"), ("layer", "model")],
        one_of=[("params", "filters", "model")],
    ),
    sections={
        "Kernel": "kernel",
        "Windows": "channels windows",
        "Results": "activation residual keep steps",
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
    activation: Annotated[str, options.choice(model.ACTIVATIONS, "function of the result")] = "identity",
    residual: Annotated[bool, typer.Option(help="add x to the result, which must be as large")] = False,
    keep: Annotated[tuple[str, ...], options.names("add these steps to the record", (*STEPS, "all"))] = (),
    steps: options.Steps = False,
) -> Record:
    """Slide a kernel over x: weigh and sum each window, and add b.

    A kernel w (out, in, size) moves over the tokens of x (token, model), whose features are the channels; a kernel of
    two sizes moves over the rows and columns of x (row, column, channel). With --channels first x is (channel,
    position) or (channel, row, column), as in PyTorch and ONNX. Axes before these are batches. With --model a layer of
    Whisper or wav2vec 2.0 states the kernel, how it moves, the norm and the activation. The random weights of
    --filters and --size are drawn from N(0, 1/inputs), without biases.

    \b
    Example:
      attnkit embed "The cat sat" --dim 4 | attnkit conv --filters 2 --size 3 --padding 1
    """
    stage = find_convolution(record["x"], kernel, windows, channels, activation, residual)
    callbacks.current().on_parameters(stage.weights)
    callbacks.current().on_operands(stage)
    has_all, listener = steps or "all" in keep, callbacks.current().on_intermediates
    arrays = compute_convolution(record, stage, STEPS if has_all or listener else keep)
    rest = record.without([name for name in STEPS if name in record])

    def complete(steps: bool) -> Record:
        tensors = describe_convolution(record, stage, arrays, keep, steps=steps)
        return without_outdated_labels(rest, tensors, stage).with_tensors(tensors)

    if listener:
        listener(complete(True))
    return complete(has_all)
