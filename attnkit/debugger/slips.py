"""Slips of implementations by kind of node: another option or input, and its name.

`find_slips` lists the slips that can occur in some nodes of a graph. A slip of one name may change several nodes of a
layer at once, as rotary positions are applied to queries and to keys. `find_numbers` lists the numbers that an
implementation may have otherwise, which are found from its arrays.
"""

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attnkit import model
from attnkit.debugger import state_slips
from attnkit.inputs.image_processor import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD
from attnkit.model.config import POSITION_CONVOLUTION, ConvolutionLayer
from attnkit.model.dtypes import Array
from attnkit.model.formulas.activations import ACTIVATIONS
from attnkit.model.formulas.experts import ExpertConfig
from attnkit.model.formulas.positions import alibi_slopes
from attnkit.model.formulas.recurrent_cells import CELLS, gate_name
from attnkit.model.formulas.rotary import has_same_rotation, rope_frequencies
from attnkit.model.graph.embeddings import FILTERS
from attnkit.model.graph.graph import Graph, SubLayer
from attnkit.model.graph.head import vector_places
from attnkit.model.graph.nodes import Node
from attnkit.model.graph.recurrence import is_state
from attnkit.model.passes.model_graph import with_positions
from attnkit.model.slips import (
    HEADS_LAST,
    INVERTED_PADDING,
    MULTIPLIED_SCALE,
    N_MINUS_1,
    NO_ACTIVATION,
    NO_CAUSAL,
    NO_MEAN,
    NO_PADDING,
    NO_RESIDUAL,
    NO_SCALE,
    OPPOSITE_CAUSAL,
    OVER_QUERIES,
    PRE_NORM,
    RESIDUAL_AFTER,
    RESIDUAL_ALONE,
    RESIDUAL_TWICE,
    SCALE_OF_WIDTH,
    SCALED_TWICE,
    SHIFTED_CAUSAL,
    STRICT_CAUSAL,
    Number,
    Slip,
)

THETAS = (1e4, 1.5e5, 1.6e5, 5e5, 1e6)  # of published models
EPSILONS = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)  # of published models
ROUNDINGS = ("bfloat16", "float16")
TELLING = 1e-4  # of the largest number: by which a token differs that another expert computed
OF_EACH, MOST_TOKENS = 2, 64  # of each expert and of all: tokens that are looked at to find which

Change = tuple[str, Node]  # the name of a slip, and the node as it has it
Changes = Callable[[Graph, Node], Iterator[Change]]
# of a number: its sentence, its option, the value of the model, the range of others, published values
NumberRow = tuple[str, str, float, tuple[float, float], *tuple[float, ...]]


def _none(graph: Graph, node: Node) -> Iterator[Any]:
    yield from ()


class KindSlips(NamedTuple):
    """The slips of a kind of nodes.

    changes  the nodes with another option or input
    numbers  the numbers that a node may have otherwise
    fit      the slips whose options are found from what a node reads and what an implementation made of it, or None
    """

    changes: Changes = _none
    numbers: Callable[[Graph, Node], Iterator[NumberRow]] = _none
    fit: Callable[[Graph, Node, Sequence[Array], Array, float], Iterator[Change]] | None = None

    def and_also(self, more: Changes) -> "KindSlips":
        """The row with further changes."""
        own = self.changes
        return self._replace(changes=lambda graph, node: itertools.chain(own(graph, node), more(graph, node)))


def slips_of(node: Node) -> KindSlips:
    """The row of the table SLIPS for a node; an empty one for a kind without slips."""
    return SLIPS.get(node.kind, KindSlips())


def find_slips(graph: Graph, cone: Sequence[Node], dtype: str, named: Collection[str] = ()) -> list[Slip[Node]]:
    """The slips that some nodes of a graph may have in a dtype, each name once.

    named  the slips that nodes before these have
    """
    found: dict[str, dict[str, Node]] = {}
    for node in cone:
        changes = [*slips_of(node).changes(graph, node)]
        changes += block_slips(graph, node)
        if dtype in ("float32", "float64"):
            changes += rounding_slips(node)
        for name, changed in changes:
            found.setdefault(name, {})[node.site] = changed
    published = [number.slip(value) for number in find_numbers(graph, cone) for value in number.published]
    late = {name for name, end in FIRST_AT.items() if not any(node.site.endswith(end) for node in cone)}
    return [*(Slip(name, nodes) for name, nodes in found.items() if name not in late or name in named), *published]


def find_numbers(graph: Graph, cone: Sequence[Node]) -> list[Number[Node]]:
    """The numbers that some nodes of a graph may have otherwise, each sentence once."""
    found: dict[str, Number[Node]] = {}
    for node in cone:
        for sentence, option, stated, limits, *published in slips_of(node).numbers(graph, node):
            make = functools.partial(_with_number, node, option)
            others = tuple(one for one in published if not math.isclose(one, stated))
            number = found.setdefault(sentence, Number(sentence, {}, stated, limits, others))
            found[sentence] = number._replace(changes={**number.changes, node.site: make})
    return [*found.values()]


def _with_number(node: Node, option: str, value: float) -> Node:
    """A node with a number as an option, or as an entry of one.

    Rope.rope_theta, norm.eps.
    """
    name, _, entry = option.partition(".")
    if not entry:
        return node.change(**{name: value})
    whole = node.options[name]
    return node.change(**{name: {**whole, entry: value} if isinstance(whole, dict) else whole._replace(eps=value)})


EPS_OUTSIDE = "eps of the norm is added to the standard deviation, not to the variance"
GATE_AND_UP = "gate and up are exchanged"
POST_NORM = "the norms follow the residuals (post-norm, not pre-norm)"
PARALLEL = "the sub-layers read the same input (parallel, not serial)"
CAPPED_FIRST = "the soft cap of the scores is applied before their scale, not after it"
FIRST_AT = {CAPPED_FIRST: ".scaled"}  # slips of several nodes, and the end of the site that shows them first
SERIAL = "the sub-layers follow one another (serial, not parallel)"
AS_READ = " (as the next norm reads it)"


def block_slips(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the order in a block, which change what several nodes read.

    A name for the sum with a residual may stand for what the next norm reads, if the dump names what modules read.
    """
    block = graph.blocks.get(".".join(node.site.split(".")[:2]))
    if block is None:
        return
    parts, start = block.parts, block.start
    for at, part in enumerate(parts):
        if graph.core.config.parallel:
            yield from _serial(node, part, parts, at)
        elif graph.core.config.norm_first:
            yield from _post_norm(node, part, parts, at, start)
            yield from _parallel(node, part, parts, at, start)
        else:
            yield from _pre_norm(graph, node, part, parts, at, start)


def _post_norm(node: Node, part: SubLayer, parts: Sequence[SubLayer], at: int, start: str) -> Iterator[Change]:
    before = parts[at - 1].norm if at else start  # the result of the sub-layer before
    if node.site == part.norm:
        yield POST_NORM, node._replace(inputs=(part.output, before))
    elif part.norm in node.inputs and node.kind == "linear":
        yield POST_NORM, node._replace(inputs=(before,))
    elif node.site == part.residual and at + 1 == len(parts):
        yield POST_NORM, node._replace(inputs=(part.norm,))
    elif node.site == part.residual:
        yield POST_NORM, node._replace(inputs=(part.output, before))
        yield POST_NORM + AS_READ, node._replace(inputs=(parts[at + 1].output, part.norm))


def _parallel(node: Node, part: SubLayer, parts: Sequence[SubLayer], at: int, start: str) -> Iterator[Change]:
    yield from _one_norm(node, part, parts, at)
    if at and node.site == part.norm:
        yield PARALLEL, node._replace(inputs=(start,))
    elif node.site == part.residual and at + 1 == len(parts):
        yield PARALLEL, node._replace(inputs=(*(one.output for one in parts), start))
    elif node.site == part.residual:
        yield PARALLEL + AS_READ, node._replace(inputs=(start,))


def _serial(node: Node, part: SubLayer, parts: Sequence[SubLayer], at: int) -> Iterator[Change]:
    """Slips of sub-layers that read the same input in the model."""
    yield from _one_norm(node, part, parts, at)
    if at and node.site == part.norm:
        yield SERIAL, node._replace(inputs=(parts[at - 1].residual,))


def _one_norm(node: Node, part: SubLayer, parts: Sequence[SubLayer], at: int) -> Iterator[Change]:
    """A sub-layer that reads the norm of the first.

    Its input may have the name of its own norm.
    """
    words, first = f"{part.norm} is left out: the sub-layers read one norm (parallel)", (parts[0].norm,)
    if at and node.site == part.norm:
        yield words, node._replace(kind="scale", inputs=first)
    elif at and part.norm in node.inputs and node.kind == "linear":
        yield words, node._replace(inputs=first)


def _pre_norm(
    graph: Graph, node: Node, part: SubLayer, parts: Sequence[SubLayer], at: int, start: str
) -> Iterator[Change]:
    before = next((one.parts[-1].residual for one in graph.blocks.values() if one.parts[-1].norm == start), start)
    first = parts[at - 1].residual if at else before
    reads = parts[at - 1].norm if at else start  # what the sub-layer reads in a post-norm model
    if node.site == part.norm:
        yield PRE_NORM, node._replace(inputs=(first,))
    elif node.site == part.residual:
        yield PRE_NORM, node._replace(inputs=(part.output, first))
    elif reads in node.inputs and node.kind == "linear":
        yield PRE_NORM, node._replace(inputs=(part.norm,))


def join_slips(graph: Graph, one: Slip[Node], other: Slip[Node]) -> Slip[Node]:
    """Two slips at once."""
    changes = dict(one.changes)
    for site, node in other.changes.items():
        before = graph.nodes[site]
        if site in changes:
            options = {name: value for name, value in node.options.items() if value is not before.options.get(name)}
            node = (
                changes[site]
                .change(**options)
                ._replace(inputs=node.inputs if node.inputs != before.inputs else changes[site].inputs)
            )
        changes[site] = node
    return Slip(f"{one.name} and {other.name}", changes)


def rounding_slips(node: Node) -> Iterator[Change]:
    for form in ROUNDINGS:
        yield f"{node.site} is rounded to {form}", node.change(rounds=form)
        yield f"the inputs of {node.site} are rounded to {form}", node.change(rounds_inputs=form)
        if node.layer:
            yield f"the parameters are rounded to {form}", node.change(rounds_parameters=form)


def slip_words(graph: Graph, node: Node) -> Iterator[Change]:
    params = graph.core.params
    head = params["head"].get("w") if "head" in params else None
    table = params[node.layer]["table"]
    if head is not None and head.T.shape == table.shape and not np.shares_memory(head, table):
        other = node._replace(layer="head").change(table="w", transposed=True)
        yield "the embeddings are the rows of the output head", other
    yield "the embeddings are multiplied by √D", node.change(factor=math.sqrt(graph.core.config.width))


# sentence -> what is different in `prepare_pixels` of pictures.py
PREPARATIONS: dict[str, dict[str, Any]] = {
    "the pixels are not normalized": {"values": {"do_normalize": False}},
    "the pixels are not multiplied by 1/255": {"values": {"do_rescale": False}},
    "the pixels are neither multiplied by 1/255 nor normalized": {
        "values": {"do_rescale": False, "do_normalize": False}
    },
    "the means of the channels are not subtracted from the pixels": {"values": {"image_mean": [0.0] * 3}},
    "the pixels are not divided by the deviations of the channels": {"values": {"image_std": [1.0] * 3}},
    "the channels of the pixels are blue, green and red, not red, green and blue": {"channels": -1},
    "the channels of the pixels are exchanged after they are normalized (blue, green, red)": {"planes": -1},
    "the rows and columns of the pixels are exchanged": {"transposes": True},
}
STATISTICS = {
    "ImageNet": (IMAGENET_MEAN, IMAGENET_STD),
    "CLIP": (CLIP_MEAN, CLIP_STD),
    "ViT (0.5)": ([0.5] * 3, [0.5] * 3),
}
RESAMPLES = ("nearest", "Lanczos", "bilinear", "bicubic", "box", "Hamming")  # the filters by Pillow's numbers
WITHOUT_ANTIALIAS = tuple(name for name in FILTERS if "antialias" not in name and "corners" not in name)


def slip_pixels(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips in the processing of a picture before the first node."""
    picture = node.options["picture"]
    if picture.pixels.dtype.kind == "f":
        return
    for words, preparation in PREPARATIONS.items():
        yield words, node.change(preparation=preparation)
    for name, (mean, std) in STATISTICS.items():
        values = {"image_mean": [*mean], "image_std": [*std]}
        yield f"the pixels are normalized by mean and deviation of {name}", node.change(preparation={"values": values})
    size, crop = picture.processor.sizes(picture.pixels.shape[:2], "--image")
    whole = {"height": crop[0], "width": crop[1]}
    if size != crop:
        squeezed = {"do_center_crop": False, "size": whole}
        yield "the whole picture is resized, and nothing is cut off", node.change(preparation={"values": squeezed})
        yield (
            "the picture is not cropped after it is resized",
            node.change(preparation={"values": {"do_center_crop": False}}),
        )
        near = {"size": {"shortest_edge": min(crop)}}
        yield "the shorter edge is resized to that of the crop", node.change(preparation={"values": near})
    if size != picture.pixels.shape[:2]:
        yield from _slip_filters(node)


def _slip_filters(node: Node) -> Iterator[Change]:
    """Slips of the filter that resizes a picture."""
    for number, name in enumerate(RESAMPLES):
        yield f"the picture is resized by the filter {name}", node.change(preparation={"values": {"resample": number}})
    for name in WITHOUT_ANTIALIAS:
        words = f"the picture is resized by the filter {name} without antialias"
        yield words, node.change(preparation={"resampling": name, "rounds": False})
        yield f"{words}, and its pixels are rounded", node.change(preparation={"resampling": name})


# sentence -> in what order the axes (rows, columns, channels, rows and columns of a patch) are read
ORDERS = {
    "the patches are taken column by column, not row by row": (1, 0, 2, 3, 4),
    "the pixels of a patch are flattened with the channels last": (0, 1, 3, 4, 2),
    "the rows and columns of the pixels of a patch are exchanged": (0, 1, 2, 4, 3),
    "the image is transposed": (1, 0, 2, 4, 3),
}
# sentence -> the order of the tokens instead
TOKENS = {
    "the class token is last, not first": ("registers", "patches", "cls"),
    "the class token is missing": ("registers", "patches"),
    "the registers are after the patches, not before them": ("cls", "patches", "registers"),
    "the registers are before the class token, not after it": ("registers", "cls", "patches"),
    "the registers are missing": ("cls", "patches"),
}


def slip_patches(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the patches of an image."""
    for words, order in ORDERS.items():
        yield words, node.change(order=order)
    yield "the channels of the patches are read in reverse order", node.change(channels=-1)
    if "b" in graph.core.params[node.layer]:
        yield "the bias of the patches is missing", node.change(missing=("b",))


def slip_tokens(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the order of the tokens of an image."""
    yield from _slip_order(graph, node, node.layer)
    yield "the patches are taken column by column, not row by row" + AS_READ, node.change(by_column=True)


def _slip_order(graph: Graph, node: Node, layer: str) -> Iterator[Change]:
    there = [name for name in ("cls", "registers", "patches") if name in graph.core.params[layer] or name == "patches"]
    for words, order in TOKENS.items():
        if [name for name in order if name in there] != there:
            yield words, node.change(order=order)


def slip_grid(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the learned positions of patches."""
    cut, image = graph.core.config.patches, graph.inputs.image
    assert cut is not None and image is not None
    yield from _slip_order(graph, node, f"{node.layer.partition('.')[0]}.embed")
    for shift, words in (
        (1, "each token has the position before its own"),
        (-1, "each token has the position after its own"),
    ):
        yield f"positions are one off: {words}", node.change(rolled=shift)
    if cut.has_class:
        yield "the class token has no position", node.change(spares_class=True)
        off = "the class token has no position, and that of the class is the first of the patches"
        yield off, node.change(rolled=1, spares_class=True)
    if cut.grid(*image.shape[-2:]) != cut.grid(cut.height, cut.width):
        for name in FILTERS:
            yield f"the positions are resized by the filter {name}", node.change(filter=name)


# sentence -> what is different in `make_spectrogram` of graphs.py, or its numbers
SPECTROGRAMS: dict[str, Mapping[str, Any]] = {
    "the mel filters are spaced by the HTK scale, not by Slaney's": {"scale": "HTK"},
    "the mel filters have equal heights, not equal areas (Slaney's normalization)": {"has_equal_areas": False},
    "the mel filters are spaced by the HTK scale and have equal heights": {"scale": "HTK", "has_equal_areas": False},
    "the window of the frames is missing": {"window": "none"},
    "the window of the frames is a Hamming window, not a Hann window": {"window": "Hamming"},
    "the Hann window of the frames is symmetric, not periodic": {"window": "symmetric Hann"},
    "the spectrum is the magnitude, not its square": {"power": 1},
    "the logarithm of the spectrogram is natural, not to base 10": {"logarithm": "ln"},
    "the logarithm of the spectrogram is to base 2, not to base 10": {"logarithm": "log2"},
    "the logarithm of the spectrogram is in decibels (10 log10)": {"logarithm": "decibels"},
    "the spectrogram is not clamped to its largest logarithm − 8": {"clamp": "none"},
    "each frame is clamped to its own largest logarithm − 8, not to that of the sound": {"clamp": "frame"},
    "the spectrogram is not rescaled by (x + 4)/4": {"rescales": False},
    "the sound continues with zeros at both ends, not reflected": {"mode": "constant"},
    "the frames begin at the first sample, they are not centered": {"mode": ""},
    "the first frame is left out, not the last": {"drops": "first"},
    "the Fourier transform is of 512 samples, with zeros after each frame": {"transform": 512},
    "the samples are not divided by 32768": {"gain": 32768.0},
    "silence is added to the spectrogram as zeros, not to the sound": {"pads_features": True},
}


def slip_spectrogram(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of what becomes of a sound before the first convolution."""
    for words, mistake in SPECTROGRAMS.items():
        yield words, node._replace(kind="mistaken spectrogram").change(mistake=mistake)
    heard = graph.core.config.sound
    assert heard is not None and heard.spectrogram is not None
    for mels in MELS:
        if mels != heard.spectrogram.mels:
            words = f"the spectrogram has {mels} mel filters instead of {heard.spectrogram.mels}"
            yield words, node._replace(kind="mistaken spectrogram").change(mistake={"numbers": {"mels": mels}})


def slip_samples(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the samples that the first convolution reads."""
    if not node.options["standardizes"]:
        yield "the samples are brought to mean 0 and variance 1", node.change(standardizes=True)
        return
    yield "the samples are not brought to mean 0 and variance 1", node.change(standardizes=False)
    yield "the samples are divided by the deviation with n − 1, not with n", node.change(ddof=1)


def slip_convolve(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of a convolution: its kernel, its windows, and the zeros around its input."""
    cut: ConvolutionLayer = node.options["cut"]
    kernels = {**TURNED, **(BY_FRAMES if cut.window > cut.size else {}), **(LENGTHS if cut.is_scaled else {})}
    for words, kernel in kernels.items():
        yield words, node._replace(kind="mistaken kernel").change(kernel=kernel)
    if cut.is_scaled:
        yield "the weight normalization of the convolution is missing", node.change(cut=cut._replace(is_scaled=False))
    if "b" in graph.core.params[node.layer]:
        yield "the bias of the convolution is missing", node.change(missing=("b",))
    for words, changes in _slip_windows(cut):
        yield words, node.change(cut=cut._replace(options=cut.options._replace(**changes)))
    if node.options.get("real") is not None:
        yield "the padding is not set to 0 before the convolution of positions", node.change(real=None)


def slip_causal_convolution(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of a causal convolution: its taps, its windows, and padding in them."""
    params = graph.core.params[node.layer]
    taps, bias = node.options["names"]
    mistaken, more = node._replace(kind="mistaken window"), len(params[taps]) - 1
    yield "the taps of the convolution are turned around", mistaken.change(turned=True)
    yield "the convolution is shifted by one: a token does not see itself", mistaken.change(ahead=-1)
    yield "the convolution is shifted by one: a token sees the next one", mistaken.change(ahead=1)
    if more > 1:
        words = "the convolution sees the tokens after a token, not those before it (the last outputs are kept)"
        yield words, mistaken.change(ahead=more)
    if not any(one.kind == "activate" and node.site in one.inputs for one in graph.nodes.values()):
        yield "an activation (silu) follows the convolution", mistaken.change(activation="silu")
    if bias in params:
        yield "the bias of the convolution is missing", node.change(missing=(bias,))
    if node.options["real"] is not None:
        yield "padding enters the windows of the convolution", node.change(real=None)
        if {"bb", "bx"} <= {*params}:  # as in transformers 5.23
            words = "padding is set to 0 before the projection, whose biases enter the windows of the convolution"
            yield words, mistaken.change(padding=("bb", "bx"))


def _slip_thirds(node: Node) -> Iterator[Change]:
    """The parts of the projection of a short convolution in another order."""
    own, stored = node.options["names"][0][1:], "bcx"
    for order in itertools.permutations(stored):
        taken = stored[order.index(own)]
        if "".join(order) != stored:
            named = ", ".join(one.upper() if one != "x" else one for one in order)
            words = f"the thirds of the short convolution are taken as {named} (they are stored as B, C, x)"
            yield words, node.change(names=(f"w{taken}", f"b{taken}"))


def _slip_windows(cut: ConvolutionLayer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sentences, and how the windows of a convolution move instead."""
    stride, padding, more = cut.options.stride[0], cut.options.padding, cut.size - 1
    for other in sorted({1, 2, stride - 1, stride + 1, cut.size} - {0, stride}):
        yield f"the stride of the convolution is {other} instead of {stride}", {"stride": (other,)}
    if isinstance(padding, str):
        if cut.size % 2 == 0:
            yield "the first window of the convolution is cut off, not the last", {"padding": "same"}
            yield "no window of the even kernel of the convolution is cut off", {"padding": (cut.size // 2,)}
    elif not any(padding):
        yield "there are zeros around the input of the convolution", {"padding": (cut.size // 2,)}
        return
    else:
        same = "the zeros around the input of the convolution are those of TensorFlow's same padding"
        yield from [(same, {"padding": "same"})] * (stride > 1)
    yield "there are no zeros around the input of the convolution", {"padding": (0,)}
    yield "the zeros of the convolution are all before its input (causal)", {"padding": (more, 0)}
    yield "the zeros of the convolution are all after its input", {"padding": (0, more)}


MELS = (40, 64, 80, 128)  # of published spectrograms
# sentence -> the kernel instead, in KERNELS of graphs.py: of any convolution, of several channels, and with lengths
TURNED = {"the kernel of the convolution is turned around": "turned"}
BY_FRAMES = {"the weights of the convolution are read frame by frame, not channel by channel": "by frames"}
LENGTHS = {
    "the weight normalization of the convolution is over each filter, not over each place of the kernel": (
        "lengths of filters"
    ),
    "the weights of the convolution are not divided by their norm (weight normalization)": "not divided",
    "the weights of the convolution are not multiplied by their length g (weight normalization)": "not multiplied",
}


def slip_channel_norm(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of a norm of each channel over all frames."""
    yield "the norm is missing", node.change(skips=True)
    yield "the norm is of each frame (layer norm), not of each channel over all frames", node._replace(kind="norm")
    together = "the norm is over all channels and frames (one group), not of each channel"
    yield together, node.change(together=True)
    yield N_MINUS_1, node.change(ddof=1)
    yield EPS_OUTSIDE, node.change(eps_outside=True)
    yield from _slip_weights(graph.core.params[node.layer], node)


def slip_state(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the token whose state is the vector of a text or image."""
    config, inputs = graph.core.config, graph.inputs
    if node.site == "vector.state":
        batch, tokens, _ = graph.nodes[node.inputs[0]].shape
        for which, words in STATES.items():
            at = vector_places(config, inputs, which, batch)
            if not np.array_equal(at % tokens, node.options["at"] % tokens):
                yield f"the vector is the state of {words}", node.change(at=at)
    yield from _skip_norm(graph, node)


STATES = {"cls": "the first token", "last": "the last token, padding or not", "largest": "the token of the largest id"}


def slip_types(graph: Graph, node: Node) -> Iterator[Change]:
    yield "the embeddings of segments are missing", node.change(absent=True)
    yield "all tokens are of the first segment", node.change(all_first=True)


def slip_scale(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the factor on embeddings, and on scores."""
    factor = node.options["factor"]
    if node.site.endswith(".recall.q"):
        yield "the scale of the queries of the state is missing", node.change(factor=1.0)
        return
    if node.site.endswith("multiplied"):
        yield f"the factor {factor:g} of {_multiplied(node)} is missing", node.change(factor=1.0)
        return
    if (rules := node.options.get("rules")) is None:
        width = math.sqrt(graph.core.config.width)
        if factor != 1:
            words = "√D" if math.isclose(factor, width) else f"{factor:g}"
            yield f"the factor {words} of the embeddings is missing", node.change(factor=1.0)
        if not math.isclose(factor, width):
            yield "the embeddings are multiplied by √D", node.change(factor=width)
        if len(node.inputs) > 1:
            yield "the embeddings of segments are missing", node._replace(inputs=node.inputs[:1])
        return
    yield NO_SCALE, node.change(factor=1.0)
    yield "the scale of the scores is 1/√K", node.change(factor=rules.head_dim**-0.5)
    yield SCALE_OF_WIDTH, node.change(factor=(rules.heads * rules.head_dim) ** -0.5)
    share = graph.core.config.width / rules.heads
    if not math.isclose(share, rules.head_dim):
        yield "the scale of the scores is 1/√(D/H), though a head is not D/H wide", node.change(factor=share**-0.5)
    yield SCALED_TWICE, node.change(factor=factor * factor)
    yield MULTIPLIED_SCALE, node.change(factor=rules.head_dim**0.5)
    if rules.softcap:
        yield CAPPED_FIRST, node._replace(inputs=(node.site.replace(".scaled", ".capped"),))
    if rules.latent is not None:
        yield from _slip_latent_scale(node)


def _slip_latent_scale(node: Node) -> Iterator[Change]:
    """Slips of the scale of latent attention, by head width or long-text growth."""
    rules, factor = node.options["rules"], node.options["factor"]
    is_grown = not math.isclose(factor, plain := rules.head_dim**-0.5)
    for name, width in (
        ("content", rules.latent.content),
        ("rotary", rules.latent.rotary),
        ("value", rules.latent.value),
    ):
        words = f"the scale of the scores is 1/√{width}, of the {name} features of a head, not 1/√{rules.head_dim}"
        yield words, node.change(factor=width**-0.5)
        if is_grown:
            yield f"{words} (times mscale²)", node.change(factor=factor * (rules.head_dim / width) ** 0.5)
    if is_grown:
        yield "the square of mscale is missing in the scale of the scores", node.change(factor=plain)
        yield "mscale is in the scale of the scores once, not squared", node.change(factor=math.sqrt(factor * plain))


def slip_rows(graph: Graph, node: Node) -> Iterator[Change]:
    config, where = graph.core.config, np.asarray(node.options["where"])
    positions = config.positions
    if config.patches is not None:
        yield from slip_grid(graph, node)
        return
    rows = 0 if positions.kind == "sinusoidal" else len(graph.core.params[node.layer]["table"])
    for shift in dict.fromkeys((1, 2, -1, -2, -positions.first)):
        if shift:
            moved = with_positions(config, first=positions.first + shift, size=positions.size and positions.size + 9)
            if positions.kind == "sinusoidal":
                yield f"positions are shifted by {shift:+}", node.change(where=where + shift)
            elif positions.first + shift >= 0 and positions.first + shift + where.max(initial=0) < rows:
                first = f" (they begin at {positions.first + shift} instead of {positions.first})"
                yield f"positions are shifted by {shift:+}{first}", node.change(config=moved)
    if where.ndim == 2:
        yield "positions count the padding", node.change(where=np.arange(where.shape[-1]))
    if positions.kind == "sinusoidal":
        other = "halves" if positions.layout == "paper" else "paper"
        words = {"halves": "all sines before all cosines", "paper": "alternating sines and cosines"}
        yield f"sinusoidal positions have {words[other]}", node.change(config=with_positions(config, layout=other))


def slip_add(graph: Graph, node: Node) -> Iterator[Change]:
    first, second = node.inputs
    if not node.site.endswith(".residual"):
        yield "the positions are missing", node._replace(inputs=(first,))
        return
    if node.options.get("factor", 1.0) != 1:
        yield "the multiplier of the residual branch is missing", node.change(factor=1.0)
    yield NO_RESIDUAL, node._replace(inputs=(first,))
    is_of_positions = node.site.endswith(f".{POSITION_CONVOLUTION}.residual")
    yield "the positions are missing" if is_of_positions else RESIDUAL_ALONE, node._replace(inputs=(second,))
    if not graph.core.config.norm_first:
        yield RESIDUAL_AFTER, node._replace(inputs=(first,))
    yield RESIDUAL_TWICE, node._replace(inputs=(first, second, second))
    if norm := _norm_before(graph, node):
        yield f"the residual is added after the norm ({norm}), not before it", node._replace(inputs=(first, norm))


def _norm_before(graph: Graph, residual: Node) -> str:
    """The norm between what a residual adds and its sub-layer, in a pre-norm model."""
    saved = residual.inputs[1]
    layer = residual.site.rpartition(".")[0]
    reads = {one for name, node in graph.nodes.items() if name.startswith(f"{layer}.") for one in node.inputs}
    norms = [name for name, node in graph.nodes.items() if node.kind == "norm" and saved in node.inputs]
    return next((norm for norm in norms if norm in reads), "")


UNIT_OFFSETS = (
    (1.0, "the norm multiplies by 1 + weight, not by weight"),
    (-1.0, "the norm multiplies by weight, not by 1 + weight"),
)


def slip_norm(graph: Graph, node: Node) -> Iterator[Change]:
    params = graph.core.params.get(node.layer, {})
    yield EPS_OUTSIDE, node.change(eps_outside=True)
    yield N_MINUS_1, node.change(ddof=1)
    yield "the norm is missing", node.change(skips=True)
    if node.options["kind"] == "layer":
        yield NO_MEAN, node.change(kind="rms")
    else:
        yield "the norm subtracts the mean (layer norm)", node.change(kind="layer")
    yield "the squares of the norm overflow in float16", node.change(rounds_squares="float16")
    yield from _slip_weights(params, node)
    yield from _neighbours(graph, node)
    yield from _other_norms(graph, node)
    if node.site.endswith(".normalized"):
        words = "the norm is of each channel over all frames, not of each frame (layer norm)"
        yield words, node._replace(kind="norm of channels")
    before = graph.nodes[node.inputs[0]]
    if before.kind == "add" and before.site.endswith(".residual") and not graph.core.config.norm_first:
        yield RESIDUAL_AFTER, node._replace(inputs=before.inputs[:1])


def _neighbours(graph: Graph, node: Node) -> Iterator[Change]:
    """Parameters of the layers before and after."""
    stack, number, part = model.parse_layer_name(node.layer)
    for other in () if number is None else (number - 1, number + 1):
        layer = f"{stack}.{other}.{part}"
        if layer in graph.core.params and _same_shapes(graph, node.layer, layer):
            yield f"the parameters are those of {layer}", node._replace(layer=layer)


def _other_norms(graph: Graph, node: Node) -> Iterator[Change]:
    """Parameters of another norm of the layer, whose own may be those of this one."""
    block, is_numbered = node.layer.rpartition(".")[0], node.layer.count(".") == 2
    norms = [one for one in graph.core.params if one.startswith(f"{block}.") and "norm" in one]
    for other in norms if is_numbered else ():
        if other != node.layer and _same_shapes(graph, node.layer, other):
            changed = node._replace(layer=other)
            yield f"the parameters are those of {other}", changed
            first, second = sorted((node.layer, other))
            yield f"the parameters of {first} and {second} are exchanged", changed


def slip_head_norm(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of a norm of queries or keys."""
    letter, params = node.site.rpartition(".")[2][0], graph.core.params[node.layer]
    gamma, beta = node.options["names"]
    norm = node.options["norm"]
    rotation = graph.nodes[node.site.removesuffix("_normed")].options
    yield from of_both(letter, "not normalized", node.change(skips=True))
    if "rope" in rotation:
        turned = {name: rotation[name] for name in ROTATION if name in rotation}
        yield from of_both(letter, "normalized after the rotation, not before", node.change(rotates=True, **turned))
    if norm.scope == "projection":
        each = node.change(norm=norm._replace(scope="heads"))
        yield from of_both(letter, "normalized head by head, not over all heads together", each)
    elif node.options["heads"] > 1:
        whole = node.change(norm=norm._replace(scope="projection"))
        yield from of_both(letter, "normalized over all heads together, not head by head", whole)
    other = "qk".replace(letter, "")
    names = tuple(f"{name.removesuffix(f'_{letter}')}_{other}" for name in (gamma, beta))
    if gamma in params and params[gamma].shape == params[names[0]].shape:
        exchanged = node.change(names=names)
        yield f"{WHOSE[letter]} are normalized with the parameters of {WHOSE[other]}", exchanged
        yield "the norms of queries and keys are exchanged", exchanged
    yield EPS_OUTSIDE, node.change(eps_outside=True)
    if norm.kind == "layer":
        yield NO_MEAN, node.change(norm=norm._replace(kind="rms"))
    else:
        yield "the norm subtracts the mean (layer norm)", node.change(norm=norm._replace(kind="layer"))
    yield from _slip_weights(params, node)
    yield from _neighbours(graph, node)


def _slip_weights(params: Mapping[str, Any], node: Node) -> Iterator[Change]:
    """Slips of the weight and the bias of a norm."""
    gamma, beta = node.options["names"]
    if gamma in params:
        for offset, words in UNIT_OFFSETS:
            yield words, node.change(offset=offset)
        yield "the weight of the norm is missing", node.change(missing=(gamma,))
    if beta in params:
        yield "the bias of the norm is missing", node.change(missing=(beta,))
    if {gamma, beta} <= {*params}:
        yield "weight and bias of the norm are missing", node.change(missing=(gamma, beta))


WHOSE = {"q": "queries", "k": "keys"}


def of_both(letter: str, words: str, changed: Node) -> Iterator[Change]:
    """A slip of queries or of keys alone, and of both."""
    yield f"{WHOSE[letter]} are {words}", changed
    yield f"queries and keys are {words}", changed


def _same_shapes(graph: Graph, layer: str, other: str) -> bool:
    shapes = [{name: array.shape for name, array in graph.core.params[one].items()} for one in (layer, other)]
    return shapes[0] == shapes[1]


def slip_linear(graph: Graph, node: Node) -> Iterator[Change]:
    weight, bias = node.options["names"]
    params = graph.core.params.get(node.layer, {})
    if bias in params:
        yield f"the bias {bias} is missing", node.change(missing=(bias,))
    if weight in params and params[weight].ndim == 1:
        yield "the factors of the features (LayerScale) are missing", node.change(missing=(weight,))
    elif weight in params and params[weight].shape[0] == params[weight].shape[1]:
        yield f"the weight {weight} is transposed", node.change(transposed=not node.options.get("transposed"))
    yield from _neighbours(graph, node)
    if weight in ("w1", "w3") and "w3" in params:
        other = {"w1": ("w3", "b3"), "w3": ("w1", "b1")}[weight]
        yield GATE_AND_UP, node.change(names=other)
        for cut, words in CUT.items():
            yield words, node._replace(kind="cut gate").change(cut=cut, place=int(weight == "w3"))
    if weight in ("wb", "wc", "wx"):
        yield from _slip_thirds(node)
    yield from _skip_norm(graph, node)
    yield from slip_query(node)
    for instead in ("wq", "wk", "wv") if weight in ("wq", "wk", "wv") else ():
        if instead != weight and params[instead].shape == params[weight].shape:
            exchanged = node.change(names=(instead, f"b{instead[1:]}"))
            yield f"{weight[1:]} is computed with the weight of {instead[1:]}", exchanged
    if weight in ("wq", "wk", "wv"):
        yield from _cut_fused(graph, node, weight[1:], node._replace(kind="split wrong"))


def _cut_fused(graph: Graph, node: Node, letter: str, cut: Node) -> Iterator[Change]:
    """Another layout of fused queries, keys and values.

    cut: the node that cuts them
    """
    rules = graph.core.config.attention_rules.get(node.site.rpartition(".")[0])
    if rules and not rules.is_cross and not rules.latent and rules.kv_heads > 1:
        each = "per head" if rules.heads == rules.kv_heads else "by groups of heads"
        for stored, words in (
            ("flat", f"the fused q, k and v are split {each}; they are stored one after another"),
            ("grouped", f"the fused q, k and v are split one after another; they are stored {each}"),
        ):
            yield words, cut.change(groups=rules.kv_heads, place="qkv".index(letter), stored=stored)


# how keys and values are cut out of what a latent expands to
EXPANSIONS = {
    "flat": "keys and values are cut one after another; they are stored per head",
    "values first": "each head has its values before its keys; it is stored the other way round",
}


def slip_expand(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the keys and values that a latent expands to."""
    yield from slip_linear(graph, node)
    for cut, words in EXPANSIONS.items():
        changed = node._replace(kind="cut latent").change(cut=cut, place=node.options["names"][0][-1])
        yield words, changed


def _skip_norm(graph: Graph, node: Node) -> Iterator[Change]:
    """A node that reads what the norm before it reads."""
    before = graph.nodes.get(node.inputs[0])
    if before is not None and before.kind == "norm":
        yield f"{before.site} is not applied", node._replace(inputs=before.inputs)


def slip_heads(graph: Graph, node: Node) -> Iterator[Change]:
    letter = node.site.rpartition(".")[2]
    if (factor := node.options.get("key_scale", 1.0)) != 1:
        yield f"the factor {factor:g} of the keys is missing", node.change(key_scale=1.0)
    if node.options["heads"] > 1:
        yield "heads are split without transposing", node.change(splits="no transposing")
        yield HEADS_LAST, node.change(splits="heads last")
    if node.site.rpartition(".")[0] not in graph.core.config.attention_rules or letter == "gate":
        return
    if node.options.get("splits") != "before":  # by a norm
        projected = tuple(f"{node.site[:-1]}{one}_projected" for one in "qkv")
        yield from _cut_fused(graph, node, letter, node._replace(inputs=projected))
    if "rope" not in node.options:
        yield from _rotate_unrotated(graph, node, letter)
    elif letter == "v":
        yield "values are rotated", node.change(times=1)
    else:
        yield from _slip_rotation(graph, node, letter)


def _slip_rotation(graph: Graph, node: Node, letter: str) -> Iterator[Change]:
    """Slips of the rotation of queries or keys."""
    where, rope = np.asarray(node.options["where"]), node.options["rope"]
    whose = WHOSE[letter]
    if node.options.get("part") == "last":
        yield "the first features of a head are rotated, not the last", node.change(part="first")
    is_interleaved = node.options.get("interleaved", False)
    order = "halves instead of neighbours" if is_interleaved else "interleaved"
    yield f"rotary pairs are {order}", node.change(interleaved=not is_interleaved)
    yield "the rotation turns the other way", node.change(direction=-1)
    for times, words in ((0, "not rotated"), (2, "rotated twice")):
        changed = node.change(times=times)
        yield from of_both(letter, words, changed)
        if times == 0 and node.options.get("splits") == "before":  # by the norm
            yield from of_both(letter, "normalized after the rotation, not before", changed)
    for shift in (1, -1):
        yield f"rotary positions are shifted by {shift:+}", node.change(where=where + shift)
        yield f"rotary positions of {whose} are shifted by {shift:+}", node.change(where=where + shift)
    if where.ndim == 2:
        yield from _rotate_padding(node, where, rope)
    size, width = node.shape[-1], node.options["width"]
    for share in (2, 4):
        if size % (2 * share) == 0 and size // share != width:
            yield f"only {size // share} of {size} features of a head are rotated", node.change(width=size // share)
    if width < size:
        yield "all features of a head are rotated", node.change(width=size)
        yield "the frequencies of rotary positions are those of the whole head", node.change(base_width=size)
        if node.options.get("part") != "last":
            yield "rotary pairs are (i, i + K/2), across the whole head", node.change(distant=True)
    positions = graph.core.config.positions
    if positions.local_rope:
        is_local = rope is positions.local_rope
        other = positions.rope if is_local else positions.local_rope
        words = f"rotary positions are those of layers {'without' if is_local else 'with'} a window"
        yield words, node.change(rope=other)
    yield from _slip_frequencies(node, rope)


def _rotate_padding(node: Node, where: Array, rope: Mapping[str, Any]) -> Iterator[Change]:
    """Slips of the rotation of a padded batch, whose positions are (B, T)."""
    lengths = where.max(axis=-1) + 1
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest < longest and not has_same_rotation(rope, shortest, longest):
        words = "rotary frequencies are those of the longest text of the batch, as in transformers"
        yield words, node.change(length=longest)
    counted = node.change(where=np.arange(where.shape[-1]))
    for words in ("rotary positions count the padding", NO_PADDING + COUNTED, INVERTED_PADDING + COUNTED):
        yield words, counted


COUNTED = ", and rotary positions count the padding"  # those of the padding itself matter where it is not masked
ROTATION = ("rope", "width", "interleaved", "where", "places")  # the options of a node that rotates


def _rotate_unrotated(graph: Graph, node: Node, letter: str) -> Iterator[Change]:
    """The rotation of other layers in a layer without."""
    others = (one.options for one in graph.nodes.values() if one.kind == "heads" and "rope" in one.options)
    rotation = next(others, None)
    if rotation is not None and letter != "v":
        turned = {name: rotation[name] for name in ROTATION if name in rotation}
        words = "rotated, in a layer without rotary positions"
        yield from of_both(letter, words, node.change(times=1, **turned))


def _slip_frequencies(node: Node, rope: Mapping[str, Any]) -> Iterator[Change]:
    """Slips of the base of rotary positions and of its scaling for long texts."""
    base = float(rope.get("rope_theta", 1e4))
    for form in ROUNDINGS:
        yield f"the frequencies of rotary positions are rounded to {form}", node.change(rounds_frequencies=form)
        yield f"the cosines and sines of rotary positions are rounded to {form}", node.change(rounds_angles=form)
    kind = rope.get("rope_type", "default")
    if kind != "default":
        plain = {"rope_type": "default", "rope_theta": base}
        yield f"the scaling of rotary positions ({kind}) is ignored", node.change(rope=plain, factor=1.0)
    longest = int(np.asarray(node.options["where"]).max(initial=0)) + 1
    factor = rope_frequencies(node.options["width"], rope, longest)[1]
    if factor != 1:
        yield f"the factor of {kind} on cosines and sines is missing", node.change(factor=1.0)
        yield f"the factor of {kind} on cosines and sines is applied twice", node.change(factor=factor * factor)
    if rope.get("attention_factor") is not None:
        formula = {name: value for name, value in rope.items() if name != "attention_factor"}
        words = f"the factor of {kind} on cosines and sines is that of the formula, not the one that is stated"
        yield words, node.change(rope=formula)
    if kind == "yarn":
        is_whole = rope.get("truncate", True)
        words = f"the ramp of yarn is {'not ' * is_whole}truncated to whole pairs"
        yield words, node.change(rope={**rope, "truncate": not is_whole})
    if kind == "longrope":
        plain = {"rope_type": "default", "rope_theta": base}
        yield "the factors of longrope are missing", node.change(rope=plain, factor=factor)
        original = int(rope["original_max_position_embeddings"])
        is_long = longest > original
        words = f"the {'short' if is_long else 'long'} factors of longrope are used"
        yield words, node.change(length=original + (not is_long))
    for other in ("linear", "dynamic"):
        if "factor" in rope and other != kind:
            words = f"the scaling of rotary positions is {other} instead of {kind}"
            yield words, node.change(rope={**rope, "rope_type": other}, factor=1.0)


def slip_repeat(graph: Graph, node: Node) -> Iterator[Change]:
    if node.options.get("is_grouped"):
        yield "key heads are repeated in turn, not in blocks", node.change(in_turn=True)


def slip_mask(graph: Graph, node: Node) -> Iterator[Change]:
    rules, padding = node.options["rules"], node.options["padding"]
    if rules.causal:
        yield NO_CAUSAL, node.change(rules=rules._replace(causal=False))
        yield STRICT_CAUSAL, node.change(offset=-1)
        yield SHIFTED_CAUSAL, node.change(offset=1)
        opposite = rules._replace(causal=False, window=(0, rules.window[0]))
        yield OPPOSITE_CAUSAL, node.change(rules=opposite)
    elif not rules.is_cross:
        yield "a causal mask is applied", node.change(rules=rules._replace(causal=True))
    if not rules.is_cross:
        yield from _slip_window(graph, node)
    if padding is not None:
        for words, changed in (
            (NO_PADDING, node.change(padding=None)),
            (INVERTED_PADDING, node.change(padding=~padding)),
        ):
            yield words, changed
            yield words + COUNTED, changed
    if padding is not None or rules.causal or rules.window != (-1, -1):
        for fill in (-1.0, 0.0, 1.0):
            yield f"blocked scores are {fill:g} instead of −∞", node.change(fill=fill)
    if rules.softcap:
        capped = node.inputs[0]
        yield CAPPED_FIRST, node._replace(inputs=(capped.replace(".capped", ".scaled"), *node.inputs[1:]))
    if rules.relative and not rules.is_cross:
        yield "the bias of relative positions is missing", node.change(no_bias=True)
        yield from RELATIVE[rules.relative](graph, node) if rules.relative in RELATIVE else ()


def _slip_window(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the window of a layer, or of one that it has not."""
    rules = node.options["rules"]
    left, right = rules.window
    if left >= 0:
        yield "the window is missing", node.change(rules=rules._replace(window=(-1, -1)))
        if rules.causal:
            none = rules._replace(window=(-1, -1), causal=False)
            yield "the causal mask and the window are missing", node.change(rules=none)
            both = rules._replace(window=(left + 1, left + 1), causal=False)  # as is_causal false in config.json
            yield f"the window is {left + 1} keys on both sides of a query", node.change(rules=both)
        elif right > 0:
            one_way = rules._replace(window=(right - 1, -1), causal=True)
            yield f"the window is {right - 1} keys before a query, and none after it", node.change(rules=one_way)
        for width, words in other_widths(left, node.shape[-1]).items():
            sides = (width, width if right >= 0 else right)
            words = f"the window is {width} keys before a query instead of {left} ({words})"
            yield words, node.change(rules=rules._replace(window=sides))
    else:
        for width in sorted({*graph.core.config.stack(rules.stack).windows} - {-1}):
            words = f"a window of {width} keys before a query is applied, which is that of other layers"
            yield words, node.change(rules=rules._replace(window=(width, -1 if rules.causal else width)))


def other_widths(left: int, keys: int) -> dict[int, str]:
    """The windows that may be mistaken for a number of keys before a query.

    Each comes with its name.

    keys  in the text: of windows that hold all of them, one is enough

    >>> other_widths(4, 20)
    {5: 'off by one', 3: 'off by one', 8: 'twice as wide', 9: 'twice as wide', 2: 'half as wide'}
    """
    twice, half = "twice as wide", "half as wide"
    found = {left + 1: "off by one", left - 1: "off by one", 2 * left: twice, 2 * left + 1: twice, left // 2: half}
    if 2 * left >= keys - 1:
        del found[2 * left + 1]
    return {width: words for width, words in found.items() if width >= 0 and width != left}


def slip_alibi(graph: Graph, node: Node) -> Iterator[Change]:
    rules = node.options["rules"]
    right, order = alibi_slopes(rules.heads), np.arange(rules.heads)
    for slopes, words in (
        (2.0 ** (-8 * (order + 1) / rules.heads), "are 2^(−8 i/H) though H is no power of two"),
        (2.0 ** (-8 * order / rules.heads), "begin at 1"),
        (right[::-1], "are in reverse order"),
    ):
        if not np.allclose(slopes, right):
            yield f"the slopes of ALiBi {words}", node.change(slopes=slopes)
    yield "the bias of ALiBi has the other sign", node.change(bias_factor=-1.0)
    if graph.core.config.positions.rounds_bias:
        yield "the bias of ALiBi is not scaled as the scores are", node.change(bias_factor=1 / rules.factor)
    else:
        yield "the bias of ALiBi is scaled as the scores are", node.change(bias_factor=rules.factor)


def slip_buckets(graph: Graph, node: Node) -> Iterator[Change]:
    config, name = graph.core.config, node.options["rules"].stack
    stack = config.stack(name)
    words = f"the buckets of relative positions are those of {'both directions' if stack.causal else 'one direction'}"
    other: dict[str, Any] = {name: replace(stack, causal=not stack.causal)}
    yield words, node.change(config=replace(config, **other))


# what distances add to the scores -> its slips
RELATIVE: dict[str, Changes] = {"alibi": slip_alibi, "t5": slip_buckets}


def slip_cap(graph: Graph, node: Node) -> Iterator[Change]:
    if node.options["softcap"]:
        yield "the soft cap of the scores is missing", node.change(softcap=0.0)
        scores = node.inputs[0].replace(".scaled", ".scores")
        yield CAPPED_FIRST, node._replace(inputs=(scores,))


SCORES = {  # what the gates are made of, by the scores of a configuration
    "softmax": "the gates are softmax over all experts",
    "chosen": "the gates are softmax over the chosen experts alone",
    "sigmoid": "the gates are sigmoids",
}


def slip_route(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the choice of experts, and of their gates."""
    mixture = node.options["mixture"]
    for words, changes in _slip_mixture(mixture):
        yield words, node.change(mixture=replace(mixture, **changes))
    if "correction" in graph.core.params[node.layer]:
        yield "the correction of the choice of experts is missing", node.change(missing=("correction",))
        yield "the correction of the choice of experts is in the gates too", node.change(corrects_gates=True)


def _slip_mixture(mixture: ExpertConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sentences, and the fields of a mixture of experts that they change."""
    divided = "are not" if mixture.renormalizes else "are"
    if mixture.score != "chosen":
        yield (
            f"the gates of the chosen experts {divided} divided by their sum",
            {"renormalizes": not mixture.renormalizes},
        )
    for score, words in SCORES.items():
        if score != mixture.score:
            yield words, {"score": score}
            other = not mixture.renormalizes and score != "chosen"
            if other:
                yield f"{words}, divided by their sum", {"score": score, "renormalizes": True}
    if mixture.scale != 1:
        yield "the factor of the gates is missing", {"scale": 1.0}
        yield "the factor of the gates is applied twice", {"scale": mixture.scale**2}
    if mixture.groups > 1:
        yield "the groups of experts are ignored", {"groups": 1, "chosen_groups": 1}
        best = 3 - mixture.group_best  # 1 for 2, 2 for 1
        yield f"the score of a group is the sum of its {best} best, not {mixture.group_best}", {"group_best": best}
    for count in sorted({1, 2, mixture.chosen - 1, mixture.chosen + 1} - {0, mixture.chosen}):
        if count <= mixture.count:
            experts = "expert computes" if count == 1 else "experts compute"
            yield f"{count} {experts} each token, not {mixture.chosen}", {"chosen": count}


# sentence -> options of experts instead
EXPERTS: dict[str, dict[str, Any]] = {
    GATE_AND_UP: {"exchanged": True},
    "the biases of gate and up are missing": {"missing": ("b1", "b3")},
    "the biases of the down projection are missing": {"missing": ("b2",)},
    "the biases of the experts are missing": {"missing": ("b1", "b2", "b3")},
    "the gates of the experts are not applied": {"gates": "none"},
    "the gates multiply the input of the experts, not their output": {"gates": "of the input"},
}
CUT = {
    "alternate": "gate and up are cut as alternating columns; they are halves",
    "halves": "gate and up are cut as halves; their columns alternate",
}


def slip_experts(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the networks of experts."""
    mixture = graph.core.config.mixture(node.layer)
    assert mixture is not None
    params = graph.core.params[f"{node.layer.removesuffix('.ffn')}.expert.0"]
    for words, options in EXPERTS.items():
        if {*options.get("missing", ())} <= {*params}:
            yield words, node.change(**options)
    for cut, words in CUT.items():
        yield words, node.change(cut=cut)
    yield from _slip_activation(node)
    if limit := node.options["limit"]:
        yield "the 1 that is added to the up projection is missing", node.change(offset=0.0)
        yield f"gate and up are not bounded by {limit:g}", node.change(limit=0.0)
        yield f"neither bounded by {limit:g} nor increased by 1 are gate and up", node.change(limit=0.0, offset=0.0)
    for shift, words in ((1, "after"), (-1, "before")):
        instead = {number: (number + shift) % mixture.count for number in range(mixture.count)}
        yield f"each expert is the one {words} it (numbers one off)", node.change(instead=instead)


def fit_experts(graph: Graph, node: Node, reads: Sequence[Array], mine: Array, noise: float) -> Iterator[Change]:
    """The experts that compute in place of others, found from what some tokens got.

    reads  the arrays that the node reads; mine (B, T, D), its result, within a noise
    """
    mixture = graph.core.config.mixture(node.layer)
    assert mixture is not None
    gap = mine - graph.apply(node, reads)
    least = max(TELLING * float(np.abs(gap).max()), noise)
    wrong = np.argwhere(np.abs(gap).max(axis=-1) > least)
    of_token = reads[2][tuple(wrong.T)]  # (N, k)
    seen = [np.flatnonzero((of_token == number).any(axis=-1))[:OF_EACH] for number in np.unique(of_token)]
    wrong = wrong[np.unique(np.concatenate([*seen, np.arange(0)]))[:MOST_TOKENS].astype(np.int64)]
    x, gates, chosen, gap = (one[tuple(wrong.T)] for one in (*reads, gap))  # (N, D), (N, k), (N, k), (N, D)
    each = [np.full((1, len(x), 1), number) for number in range(mixture.count)]
    ones = np.ones((1, len(x), 1), x.dtype)
    parts = np.stack([graph.apply(node, [x[None], ones, number])[0] for number in each])  # (E, N, D)
    instead: dict[int, int] = {}
    for at, (numbers, weights) in enumerate(zip(chosen, gates, strict=True)):
        moves = weights[:, None, None] * (parts[None, :, at] - parts[numbers, None, at])  # (k, E, D): one for another
        both = moves[:, numbers] + moves[:, numbers].swapaxes(0, 1)  # (k, k, D): two exchanged
        for changes, others in ((moves, np.arange(mixture.count)), (both, numbers)):
            left = np.abs(gap[at] - changes).max(axis=-1)
            rank, other = np.unravel_index(np.argmin(left), left.shape)
            if left[rank, other] <= least:
                instead[int(numbers[rank])] = int(others[other])
                instead |= {int(others[other]): int(numbers[rank])} if changes is both else {}
    if instead:
        yield _describe_moved(instead), node.change(instead=instead)


def _describe_moved(moved: Mapping[int, int]) -> str:
    """Say which experts compute in place of others.

    >>> _describe_moved({1: 3, 3: 1}), _describe_moved({0: 2})
    ('experts 1 and 3 are exchanged', 'expert 2 computes in place of expert 0')
    """
    pairs = [(one, other) for one, other in moved.items() if moved.get(other) == one and one < other]
    words = [f"experts {one} and {other} are exchanged" for one, other in sorted(pairs)]
    paired = {number for pair in pairs for number in pair}
    words += [
        f"expert {other} computes in place of expert {one}" for one, other in sorted(moved.items()) if one not in paired
    ]
    return " and ".join(words)


def slip_shared(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the network that all tokens share, and of its gate."""
    experts, shared, *gate = node.inputs
    yield "the shared expert is missing", node._replace(inputs=(experts,), kind="add")
    yield "the shared expert is all there is", node._replace(inputs=(shared,), kind="add")
    if gate:
        yield "the gate of the shared expert is missing", node._replace(inputs=(experts, shared))
        yield "the gate of the shared expert is not a sigmoid", node.change(gate="identity")
    if (scale := node.options["mixture"].scale) != 1:
        yield "the factor of the gates multiplies the shared expert too", node.change(factor=scale)


def slip_softmax(graph: Graph, node: Node) -> Iterator[Change]:
    if "sinks" in graph.core.params.get(node.layer, {}):
        yield "the sinks are missing", node.change(missing=("sinks",))
    yield OVER_QUERIES, node.change(axis=-2)
    yield "softmax is over the heads, not the keys", node.change(axis=-3)


def slip_join(graph: Graph, node: Node) -> Iterator[Change]:
    yield "heads are joined without transposing", node.change(no_transposing=True)


def slip_activate(graph: Graph, node: Node) -> Iterator[Change]:
    yield from _slip_activation(node)
    if (factor := node.options.get("factor", 1.0)) != 1:
        yield f"the factor {factor:g} of what the activation reads is missing", node.change(factor=1.0)
    if node.options.get("is_gated"):
        other = node.site.replace(".activated", ".linear")
        yield GATE_AND_UP, node._replace(inputs=(other,))
        for cut, words in CUT.items():
            changed = node._replace(kind="cut gate", inputs=(*node.inputs, other))
            yield words + AS_READ, changed.change(cut=cut, place=0)


def _slip_activation(node: Node) -> Iterator[Change]:
    where = next((f", in the {part}" for part in ("bridge", "readout") if f".{part}" in node.site), "")
    for name in ACTIVATIONS:
        if name != node.options["activation"]:
            words = NO_ACTIVATION if name == "identity" else f"the activation is {name}"
            yield f"{words} (expected {node.options['activation']}{where})", node.change(activation=name)


def slip_multiply(graph: Graph, node: Node) -> Iterator[Change]:
    first, second = node.inputs
    if not first.endswith(".activated"):
        layer, _, own = first.rpartition(".")
        gate, other = {"gate_in": ("before", "gate_out"), "gate_out": ("after", "gate_in")}[own]
        yield f"the gate {gate} the convolution is missing", node._replace(kind="scale", inputs=(second,), options={})
        yield (
            "the gates before and after the convolution are exchanged",
            node._replace(inputs=(f"{layer}.{other}", second)),
        )
        return
    yield GATE_AND_UP, node._replace(inputs=(first, first.replace(".activated", ".hidden")))
    yield "the gate is not applied", node._replace(kind="scale", inputs=(second,), options={})
    for cut, words in CUT.items():
        changed = node._replace(kind="cut gate", inputs=(first, first.replace(".activated", ".hidden"), second))
        yield words + AS_READ, changed.change(cut=cut, place=1)


CELL_ACTIVATIONS = ("sigmoid", "tanh", "relu", "identity")
LETTERS = {"input": "i", "forget": "f", "candidate": "g", "output": "o", "reset": "r", "update": "z"}
# orders of gates in other programs that are more than an exchange of two
GATE_ORDERS = {"ONNX": ("input", "output", "forget", "candidate")}
NOT_CARRIED = "the state is not carried: every token begins with the first one"
CONTINUED = "the state is not reset between texts: each begins with the last one of the text before"
NO_BRIDGE = "the decoder begins with zeros, not with the last state of the encoder"
REVERSE_FIRST = "the reverse direction is before the forward one, side by side"
CELL_FOR_STATE = "the cell state is taken for the hidden state"
ASKED = {
    "previous": "attention asks with the state after the token, not with the one before it",
    "state": "attention asks with the state before the token, not with the one after it",
}


def _gate_words(gate: str) -> str:
    """Name a gate.

    >>> _gate_words("reset_gate"), _gate_words("candidate"), _gate_words("state")
    ('the reset gate', 'the candidate', 'the state')
    """
    return f"the {gate.replace('_', ' ')}"


def slip_gate(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of one gate: its rows of the weights, activation, biases and reset."""
    gate, params = node.site.rpartition(".")[2], graph.core.params[node.layer]
    own, words = node.options["activation"], _gate_words(gate)
    for name in CELL_ACTIVATIONS:
        if name != own:
            has = "no activation" if name == "identity" else f"the activation {name}"
            yield f"{words} has {has} (expected {own})", node.change(activation=name)
    other = {"sigmoid": "tanh", "tanh": "sigmoid"}.get(own)
    if other and not is_state(node.site):
        yield "sigmoid and tanh are exchanged in all gates", node.change(activation=other)
    yield from _slip_gate_order(node, gate.removesuffix("_gate"))
    yield from _slip_biases(params, node)
    yield from _slip_reset(node)
    yield "the weight of the state is transposed", node.change(transposed=True)
    if len(node.options["directions"]) > 1:
        yield "the parameters of both directions are exchanged", node.change(swaps=True)
    if gate == "forget_gate":
        yield "1 is added to the sum of the forget gate", node.change(shift=1.0)
    yield from _neighbours(graph, node)


def _slip_gate_order(node: Node, gate: str) -> Iterator[Change]:
    """Slips of the order of the gates in the weights."""
    gates = CELLS[node.options["cell"]].gates
    for block, name in enumerate(gates):
        if name != gate:
            first, second = (_gate_words(gate_name(one)) for one in sorted((gate, name), key=gates.index))
            yield f"{first} and {second} are exchanged", node.change(block=block)
    for program, order in GATE_ORDERS.items():
        if {*order} == {*gates}:
            letters, right = (" ".join(LETTERS[one] for one in names) for names in (order, gates))
            words = f"the gates are in the order {letters} of {program}, not {right}"
            yield words, node.change(block=order.index(gate))


def _slip_biases(params: Mapping[str, Any], node: Node) -> Iterator[Change]:
    if "hidden_bias" in params:
        yield "the bias of the state's product is missing", node.change(hidden_bias=0.0)
        yield "the bias of the state's product is added twice", node.change(hidden_bias=2.0)
    if "input_bias" in params:
        yield "the bias of the input's product is missing", node.change(input_bias=0.0)
        yield "the bias of the input's product is added twice", node.change(input_bias=2.0)
    if {"hidden_bias", "input_bias"} <= {*params}:
        yield "both biases are missing", node.change(hidden_bias=0.0, input_bias=0.0)


# how the candidate uses the reset gate -> how it should not, and the slip in words
RESETS = {
    "after": {
        "before": "the reset gate multiplies the state, not its product",
        "beside": "the bias of the state's product is added outside of the reset",
        "": "the reset gate is not applied",
    },
    "before": {"after": "the reset gate multiplies the product, not the state", "": "the reset gate is not applied"},
}


def _slip_reset(node: Node) -> Iterator[Change]:
    for way, words in RESETS.get(node.options.get("reset", ""), {}).items():
        yield words, node.change(reset=way)


def slip_cell_state(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of c′ = f c + i g."""
    yield "the forget gate is 1 − the input gate", node.change(coupled=True)
    for at, words in ((0, "the input gate is not applied"), (1, "the forget gate is not applied")):
        yield words, node.change(ungated=at)


def slip_hidden_state(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of o tanh(c′), and of (1 − z) n + z h."""
    if len(node.inputs) == 3:
        yield "z and 1 − z are exchanged: h′ = z n + (1 − z) h", node.change(exchanged=True)
        return
    for name in CELL_ACTIVATIONS:
        if name != "tanh":
            has = "is not activated" if name == "identity" else f"has the activation {name} (expected tanh)"
            yield f"the cell state {has} before the output gate", node.change(activation=name)
    yield "the output gate is not applied", node.change(ungated=True)
    words = "the cell state is taken for the hidden state, which the next token reads"
    yield words, node.change(ungated=True, activation="identity")


def slip_recurrence(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of loops: what is carried from token to token, and the first state."""
    options = node.options
    yield NOT_CARRIED, node.change(carries=False)
    if node.shape[0] > 1 and not options.get("whole"):
        yield CONTINUED, node.change(continues=True)
    firsts = [one for one in node.inputs if ".last_" in one or ".bridge" in one]
    if firsts:
        yield NO_BRIDGE, node.change(first="zeros")
        yield from _slip_first(graph, node, firsts)
    if len(options["directions"]) > 1:
        yield "the reverse direction reads the tokens in their order", node.change(forward=True)
    yield from _slip_padding(node)
    cell = f"{node.site.rpartition('.')[0]}.cell"
    if node.kind == "loop" and node.site.endswith(".state") and cell in graph.nodes:
        yield CELL_FOR_STATE, node.change(returns=cell)
    if node.kind == "loop" and len(options["directions"]) > 1:
        yield "the outputs of the reverse direction are not turned back", node.change(turned=True)
        yield REVERSE_FIRST, node.change(sides=True)


def _slip_padding(node: Node) -> Iterator[Change]:
    options = node.options
    if options["real"] is not None:
        if len(options["directions"]) > 1:
            yield "the reverse direction begins in the padding", node.change(padded=(1,))
        yield "padding is read as tokens", node.change(padded=(0, 1))


def _slip_first(graph: Graph, node: Node, firsts: list[str]) -> Iterator[Change]:
    """Slips of the states that a decoder begins with."""
    last = graph.core.config.stack("encoder").layers - 1
    others = {
        "the bridge is missing: the decoder begins with the last state of the encoder": {
            one: f"encoder.{one.split('.')[1]}.rnn.last_{'cell' if one.endswith('_cell') else 'state'}"
            for one in firsts
            if ".bridge" in one
        },
        "hidden and cell state are exchanged where the decoder begins": {one: _other_part(one) for one in firsts},
        "every layer begins with the last state of the last layer of the encoder": {
            one: f"encoder.{last}.rnn.{one.rpartition('.')[2]}" for one in firsts if last and ".last_" in one
        },
    }
    for words, instead in others.items():
        moved = {one: other for one, other in instead.items() if one != other}
        sizes = [
            graph.nodes[one].shape == graph.nodes[other].shape for one, other in moved.items() if other in graph.nodes
        ]
        if len(sizes) == len(moved) > 0 and all(sizes):
            yield words, _begin_with(node, moved)


def _other_part(site: str) -> str:
    """The cell state for a hidden state, and the other way round.

    >>> _other_part("encoder.0.rnn.last_state"), _other_part("decoder.0.bridge_cell")
    ('encoder.0.rnn.last_cell', 'decoder.0.bridge')
    """
    hidden, cell = ("last_state", "last_cell") if ".last_" in site else ("bridge", "bridge_cell")
    return site.replace(cell, hidden) if site.endswith(cell) else site.replace(hidden, cell)


def read_whole(loop: Node, sites: Sequence[str]) -> Node:
    """A loop whose body reads other sites, of all tokens at once."""
    return loop.change(whole=(*loop.options["whole"], *sites))._replace(inputs=(*loop.inputs, *sites))


def _begin_with(node: Node, instead: Mapping[str, str]) -> Node:
    """A loop, or what its tokens begin with, with other first states."""
    inputs = tuple(dict.fromkeys(instead.get(one, one) for one in node.inputs))
    if "carried" not in node.options:
        return node._replace(inputs=inputs)
    carried = tuple(one._replace(first=instead.get(one.first, one.first)) for one in node.options["carried"])
    whole = tuple(dict.fromkeys(instead.get(one, one) for one in node.options["whole"]))
    return node._replace(inputs=inputs).change(carried=carried, whole=whole)


def slip_last(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the last state of each text."""
    yield from _slip_padding(node)
    if len(node.options["directions"]) > 1:
        words = "the last state of the reverse direction is taken at the last token, which it reads first"
        yield words, node.change(forward=True)
        yield REVERSE_FIRST, node.change(sides=True)
    layer, _, name = node.site.rpartition(".")
    if name == "last_state" and f"{layer}.cell" in graph.nodes:
        yield CELL_FOR_STATE, node._replace(inputs=(f"{layer}.cell",))


def slip_alignment(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of the score of a state and a memory."""
    query, keys = node.inputs
    if node.options["score"] == "additive":
        yield "the tanh of the additive score is missing", node.change(linear=True)
        yield "the score is the dot product of the projected states, not additive", node.change(score="dot")
    elif node.options["score"] == "general":
        memory = graph.nodes[keys].inputs[0]
        if graph.nodes[memory].shape[-1] == graph.nodes[query].shape[-1]:
            words = "the weight of the score is missing (dot instead of general)"
            yield words, node._replace(inputs=(query, memory))
    yield from slip_query(node)


def slip_query(node: Node) -> Iterator[Change]:
    """The state that attention asks with: before the token, or after it."""
    layer, _, which = node.inputs[0].rpartition(".")
    if node.layer == "decoder.cross" and which in ASKED and layer.endswith(".rnn"):
        other = f"{layer}.{'state' if which == 'previous' else 'previous'}"
        yield ASKED[which], node._replace(inputs=(other, *node.inputs[1:]))


NOUNS = {"embed": "the embedding", "output": "the context", "state": "the state", "previous": "the state"}


def slip_concat(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of what is put side by side, for a cell or for the readout."""
    reads = node.inputs
    if "decoder.readout.previous" in reads:
        yield "the readout is not fed to the next token (no input feeding)", node.change(zeros=(1,))
    nouns = ["the readout" if ".readout." in one else NOUNS.get(one.rpartition(".")[2], "the input") for one in reads]
    for order in itertools.permutations(range(len(reads))):
        if order != tuple(range(len(reads))):
            words = ", ".join(nouns[at] for at in order)
            yield f"{node.site} has its parts in the order {words}", node.change(order=order)
    for at, one in enumerate(reads):
        layer, _, which = one.rpartition(".")
        if which == "previous" and layer.endswith(".rnn"):
            words = "the readout reads the state after the token, not the one before it"
            yield words, node._replace(inputs=(*reads[:at], f"{layer}.state", *reads[at + 1 :]))
        if which == "output" and layer == "decoder.cross":
            yield f"{node.site} has zeros in place of the context", node.change(zeros=(at,))


def slip_loop(graph: Graph, node: Node) -> Iterator[Change]:
    """Slips of a loop: of what it carries, and of the nodes of its body.

    Nodes of one name are changed all at once.
    """
    yield from slip_recurrence(graph, node)
    found: dict[str, dict[str, Node]] = {}
    for inner in node.options["body"]:
        for name, changed in slips_of(inner).changes(graph, inner):
            found.setdefault(name, {})[inner.site] = changed
    once = {
        frozenset((site, id(inner)) for site, inner in nodes.items()): name for name, nodes in [*found.items()][::-1]
    }
    for name in sorted(once.values(), key=[*found].index):
        nodes = found[name]
        changed = node.change(body=tuple(nodes.get(inner.site, inner) for inner in node.options["body"]))
        own = {*node.inputs, *(inner.site for inner in node.options["body"])}
        reads = {site: None for inner in nodes.values() for site in inner.inputs if site not in own}
        yield name, read_whole(changed, [one for one in reads if graph.nodes[one].kind == "loop"])


def slip_pool(graph: Graph, node: Node) -> Iterator[Change]:
    for kind in ("first", "mean"):
        if kind != node.options["kind"]:
            yield f"the head reads the {kind} of the states", node.change(kind=kind)
    if node.options["kind"] != "first" and node.options["real"] is not None:
        yield "the mean of the states counts the padding", node.change(real=None)


def slip_logits(graph: Graph, node: Node) -> Iterator[Change]:
    params, config = graph.core.params, graph.core.config
    if (factor := node.options["factor"]) != 1:
        yield "the scale of the logits is missing", node.change(factor=1.0)
        words = f"the logits are multiplied by {1 / factor:g} instead of {factor:g}"
        yield f"{words} (divided for multiplied, or the reverse)", node.change(factor=1 / factor)
    if node.options["softcap"]:
        yield "the soft cap of the logits is missing", node.change(softcap=0.0)
    if "b" in params["head"]:
        yield "the bias of the output head is missing", node.change(missing=("b",))
    table = params.get(f"{config.stacks[-1]}.embed", {}).get("table")
    weight = params["head"]["w"]
    if table is not None and table.T.shape == weight.shape and not np.shares_memory(table, weight):
        yield (
            "the output head is the table of the embeddings",
            node._replace(layer=f"{config.stacks[-1]}.embed").change(names=("table", "b"), transposed=True),
        )
    yield from _skip_norm(graph, node)


WIDE = 1e3  # how many times larger or smaller a factor may be


def _around(stated: float) -> tuple[float, float]:
    return abs(stated) / WIDE, abs(stated) * WIDE


def _multiplied(node: Node) -> str:
    """The site that a factor multiplies, or what a sub-layer reads."""
    return f"what follows {node.inputs[0]}" if node.site.endswith(".multiplied") else node.inputs[0]


def number_factor(graph: Graph, node: Node) -> Iterator[NumberRow]:
    """The factor of embeddings or scores."""
    factor = node.options["factor"]
    what = "scores" if "rules" in node.options else "embeddings"
    if node.site.endswith("multiplied"):
        words = f"{_multiplied(node)} is multiplied by {{}} instead of {factor:g}"
        yield words, "factor", factor, _around(factor)
    if node.site.endswith((".scaled", ".embed")):
        yield f"the {what} are multiplied by {{}} instead of {factor:g}", "factor", factor, _around(factor)


def number_residual(graph: Graph, node: Node) -> Iterator[NumberRow]:
    factor = node.options.get("factor", 1.0)
    if node.site.endswith(".residual"):
        yield f"the residual branch is multiplied by {{}} instead of {factor:g}", "factor", factor, _around(factor)


def number_norm(graph: Graph, node: Node) -> Iterator[NumberRow]:
    of_heads = node.kind == "norm of heads"
    eps, option = (node.options["norm"].eps, "norm.eps") if of_heads else (node.options["eps"], "eps")
    yield f"eps of the norm is {{}} instead of {eps:g}", option, eps, (1e-9, 1.0), *EPSILONS


def number_samples(graph: Graph, node: Node) -> Iterator[NumberRow]:
    if node.options["standardizes"]:
        eps = node.options["eps"]
        words = f"{{}} is added to the variance of the samples instead of {eps:g}"
        yield words, "eps", eps, (1e-12, 1.0), *EPSILONS


def number_heads(graph: Graph, node: Node) -> Iterator[NumberRow]:
    if (scale := node.options.get("key_scale", 1.0)) != 1:
        yield f"the keys are multiplied by {{}} instead of {scale:g}", "key_scale", scale, _around(scale)
    rope = node.options.get("rope")
    if rope is None or not node.options["times"]:
        return
    base = float(rope.get("rope_theta", 1e4))
    yield f"rope_theta is {{}} instead of {base:g}", "rope.rope_theta", base, (2.0, 1e12), *THETAS
    if "factor" in rope:
        factor, kind = float(rope["factor"]), rope.get("rope_type", "default")
        words = f"the factor of the scaling of rotary positions ({kind}) is {{}} instead of {factor:g}"
        yield words, "rope.factor", factor, (1.01, 1e3)


def number_cap(graph: Graph, node: Node) -> Iterator[NumberRow]:
    what = "logits" if node.kind == "logits" else "scores"
    if softcap := node.options["softcap"]:
        yield f"the soft cap of the {what} is {{}} instead of {softcap:g}", "softcap", softcap, _around(softcap)
    else:
        yield f"a soft cap of the {what} ({{}}) is applied", "softcap", 30.0, (0.1, 1e3)


def number_logits(graph: Graph, node: Node) -> Iterator[NumberRow]:
    factor = node.options["factor"]
    yield f"the logits are multiplied by {{}} instead of {factor:g}", "factor", factor, _around(factor)
    yield from number_cap(graph, node)


# kind of nodes -> its slips
SLIPS: dict[str, KindSlips] = {
    "words": KindSlips(slip_words),
    "types": KindSlips(slip_types),
    "pixels": KindSlips(slip_pixels),
    "patches": KindSlips(slip_patches),
    "tokens": KindSlips(slip_tokens),
    "spectrogram": KindSlips(slip_spectrogram),
    "samples": KindSlips(slip_samples, number_samples),
    "convolve": KindSlips(slip_convolve),
    "causal convolution": KindSlips(slip_causal_convolution),
    "norm of channels": KindSlips(slip_channel_norm, number_norm),
    "state": KindSlips(slip_state),
    "scale": KindSlips(slip_scale, number_factor),
    "rows": KindSlips(slip_rows),
    "add": KindSlips(slip_add, number_residual),
    "norm": KindSlips(slip_norm, number_norm),
    "norm of heads": KindSlips(slip_head_norm, number_norm),
    "linear": KindSlips(slip_linear),
    "heads": KindSlips(slip_heads, number_heads),
    "scores": KindSlips(slip_repeat),
    "cap": KindSlips(slip_cap, number_cap),
    "mask": KindSlips(slip_mask),
    "softmax": KindSlips(slip_softmax),
    "mix": KindSlips(slip_repeat),
    "join": KindSlips(slip_join),
    "activate": KindSlips(slip_activate),
    "multiply": KindSlips(slip_multiply),
    "expand": KindSlips(slip_expand),
    "latent keys": KindSlips(slip_heads, number_heads),
    "choose": KindSlips(slip_route),
    "gates": KindSlips(slip_route),
    "experts": KindSlips(slip_experts, fit=fit_experts),
    "add shared": KindSlips(slip_shared),
    "cell state": KindSlips(slip_cell_state),
    "hidden state": KindSlips(slip_hidden_state),
    "previous state": KindSlips(slip_recurrence),
    "last state": KindSlips(slip_last),
    "alignment": KindSlips(slip_alignment),
    "concat": KindSlips(slip_concat),
    "gate": KindSlips(slip_gate),
    "loop": KindSlips(slip_loop),
    "pool": KindSlips(slip_pool),
    "logits": KindSlips(slip_logits, number_logits),
}
for _kind, _changes in state_slips.SLIPS.items():
    SLIPS[_kind] = SLIPS.get(_kind, KindSlips()).and_also(_changes)
