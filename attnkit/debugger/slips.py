"""Slips of implementations: stages with another option or input, and names.

`find_slips` lists the slips that can occur in some stages of a graph. A slip of one name may change several stages of a
layer at once, as rotary positions are applied to queries and to keys. `find_numbers` lists the numbers that an
implementation may have otherwise, which are found from its arrays.
"""

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attnkit import model
from attnkit.debugger import recurrent_slips
from attnkit.debugger.sounds import SPECTROGRAMS
from attnkit.inputs.image_processor import CLIP_MEAN, CLIP_STD, IMAGENET_MEAN, IMAGENET_STD
from attnkit.model.activations import ACTIVATIONS
from attnkit.model.config import POSITION_CONVOLUTION, ConvolutionLayer
from attnkit.model.dtypes import Array
from attnkit.model.experts import ExpertConfig
from attnkit.model.graph.embeddings import FILTERS
from attnkit.model.graph.graph import Graph, SubLayer
from attnkit.model.graph.head import vector_places
from attnkit.model.graph.models import with_positions
from attnkit.model.graph.nodes import Node
from attnkit.model.positions import alibi_slopes
from attnkit.model.rotary import has_same_rotation, rope_frequencies
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
)

THETAS = (1e4, 1.5e5, 1.6e5, 5e5, 1e6)  # of published models
EPSILONS = (1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)  # of published models
ROUNDINGS = ("bfloat16", "float16")
TELLING = 1e-4  # of the largest number: by which a token differs that another expert computed
OF_EACH, MOST_TOKENS = 2, 64  # of each expert and of all: tokens that are looked at to find which

Change = tuple[str, Node]  # the name of a slip, and the stage as it has it


class Slip(NamedTuple):
    """A slip by name: the stages of a graph that it changes, by site.

    number, value  of a slip that is another value of a number
    """

    name: str
    stages: Mapping[str, Node]
    number: "Number | None" = None
    value: float = math.nan


def find_slips(graph: Graph, cone: Sequence[Node], dtype: str, named: Collection[str] = ()) -> list[Slip]:
    """The slips that some stages of a graph may have in a dtype, each name once.

    named  the slips that stages before these have
    """
    found: dict[str, dict[str, Node]] = {}
    for stage in cone:
        changes = [*SLIPS.get(stage.kind, _no_changes)(graph, stage)]
        changes += block_slips(graph, stage)
        if dtype in ("float32", "float64"):
            changes += rounding_slips(stage)
        for name, changed in changes:
            found.setdefault(name, {})[stage.site] = changed
    published = [number.slip(value) for number in find_numbers(graph, cone) for value in number.published]
    late = {name for name, end in FIRST_AT.items() if not any(stage.site.endswith(end) for stage in cone)}
    return [*(Slip(name, stages) for name, stages in found.items() if name not in late or name in named), *published]


class Number(NamedTuple):
    """A number that an implementation may have otherwise.

    sentence  the slip in words, with {} for the number
    stages    the changed stages by site, made from the number
    stated    the number of the model
    range     where it is looked for, on a logarithmic scale
    published  other values that models have, which are tried before
    """

    sentence: str
    stages: Mapping[str, Callable[[float], Node]]
    stated: float
    range: tuple[float, float]
    published: tuple[float, ...] = ()

    def slip(self, value: float) -> Slip:
        """The slip with a value of the number.

        >>> Number("ε is {}", {}, 1e-5, (1e-12, 1.0)).slip(1e-3).name
        'ε is 0.001'
        """
        stages = {site: make(value) for site, make in self.stages.items()}
        return Slip(self.sentence.format(f"{value:g}"), stages, self, value)


def find_numbers(graph: Graph, cone: Sequence[Node]) -> list[Number]:
    """The numbers that some stages of a graph may have otherwise, each sentence once."""
    found: dict[str, Number] = {}
    for stage in cone:
        for sentence, option, stated, limits, *published in NUMBERS.get(stage.kind, _no_numbers)(graph, stage):
            make = functools.partial(_with_number, stage, option)
            others = tuple(one for one in published if not math.isclose(one, stated))
            number = found.setdefault(sentence, Number(sentence, {}, stated, limits, others))
            found[sentence] = number._replace(stages={**number.stages, stage.site: make})
    return [*found.values()]


def _with_number(stage: Node, option: str, value: float) -> Node:
    """A stage with a number as an option, or as an entry of one.

    Rope.rope_theta, norm.eps.
    """
    name, _, entry = option.partition(".")
    if not entry:
        return stage.change(**{name: value})
    whole = stage.options[name]
    return stage.change(**{name: {**whole, entry: value} if isinstance(whole, dict) else whole._replace(eps=value)})


EPS_OUTSIDE = "eps of the norm is added to the standard deviation, not to the variance"
GATE_AND_UP = "gate and up are exchanged"
POST_NORM = "the norms follow the residuals (post-norm, not pre-norm)"
PARALLEL = "the sub-layers read the same input (parallel, not serial)"
CAPPED_FIRST = "the soft cap of the scores is applied before their scale, not after it"
FIRST_AT = {CAPPED_FIRST: ".scaled"}  # slips of several stages, and the end of the site that shows them first
SERIAL = "the sub-layers follow one another (serial, not parallel)"
AS_READ = " (as the next norm reads it)"


def block_slips(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the order in a block, which change what several stages read.

    A name for the sum with a residual may stand for what the next norm reads, if the dump names what modules read.
    """
    block = graph.blocks.get(".".join(stage.site.split(".")[:2]))
    if block is None:
        return
    parts, start = block.parts, block.start
    for at, part in enumerate(parts):
        if graph.core.config.parallel:
            yield from _serial(stage, part, parts, at)
        elif graph.core.config.norm_first:
            yield from _post_norm(stage, part, parts, at, start)
            yield from _parallel(stage, part, parts, at, start)
        else:
            yield from _pre_norm(graph, stage, part, parts, at, start)


def _post_norm(stage: Node, part: SubLayer, parts: Sequence[SubLayer], at: int, start: str) -> Iterator[Change]:
    before = parts[at - 1].norm if at else start  # the result of the sub-layer before
    if stage.site == part.norm:
        yield POST_NORM, stage._replace(inputs=(part.output, before))
    elif part.norm in stage.inputs and stage.kind == "linear":
        yield POST_NORM, stage._replace(inputs=(before,))
    elif stage.site == part.residual and at + 1 == len(parts):
        yield POST_NORM, stage._replace(inputs=(part.norm,))
    elif stage.site == part.residual:
        yield POST_NORM, stage._replace(inputs=(part.output, before))
        yield POST_NORM + AS_READ, stage._replace(inputs=(parts[at + 1].output, part.norm))


def _parallel(stage: Node, part: SubLayer, parts: Sequence[SubLayer], at: int, start: str) -> Iterator[Change]:
    yield from _one_norm(stage, part, parts, at)
    if at and stage.site == part.norm:
        yield PARALLEL, stage._replace(inputs=(start,))
    elif stage.site == part.residual and at + 1 == len(parts):
        yield PARALLEL, stage._replace(inputs=(*(one.output for one in parts), start))
    elif stage.site == part.residual:
        yield PARALLEL + AS_READ, stage._replace(inputs=(start,))


def _serial(stage: Node, part: SubLayer, parts: Sequence[SubLayer], at: int) -> Iterator[Change]:
    """Slips of sub-layers that read the same input in the model."""
    yield from _one_norm(stage, part, parts, at)
    if at and stage.site == part.norm:
        yield SERIAL, stage._replace(inputs=(parts[at - 1].residual,))


def _one_norm(stage: Node, part: SubLayer, parts: Sequence[SubLayer], at: int) -> Iterator[Change]:
    """A sub-layer that reads the norm of the first.

    Its input may have the name of its own norm.
    """
    words, first = f"{part.norm} is left out: the sub-layers read one norm (parallel)", (parts[0].norm,)
    if at and stage.site == part.norm:
        yield words, stage._replace(kind="scale", inputs=first)
    elif at and part.norm in stage.inputs and stage.kind == "linear":
        yield words, stage._replace(inputs=first)


def _pre_norm(
    graph: Graph, stage: Node, part: SubLayer, parts: Sequence[SubLayer], at: int, start: str
) -> Iterator[Change]:
    before = next((one.parts[-1].residual for one in graph.blocks.values() if one.parts[-1].norm == start), start)
    first = parts[at - 1].residual if at else before
    reads = parts[at - 1].norm if at else start  # what the sub-layer reads in a post-norm model
    if stage.site == part.norm:
        yield PRE_NORM, stage._replace(inputs=(first,))
    elif stage.site == part.residual:
        yield PRE_NORM, stage._replace(inputs=(part.output, first))
    elif reads in stage.inputs and stage.kind == "linear":
        yield PRE_NORM, stage._replace(inputs=(part.norm,))


def join_slips(graph: Graph, one: Slip, other: Slip) -> Slip:
    """Two slips at once."""
    stages = dict(one.stages)
    for site, stage in other.stages.items():
        before = graph.nodes[site]
        if site in stages:
            options = {name: value for name, value in stage.options.items() if value is not before.options.get(name)}
            stage = (
                stages[site]
                .change(**options)
                ._replace(inputs=stage.inputs if stage.inputs != before.inputs else stages[site].inputs)
            )
        stages[site] = stage
    return Slip(f"{one.name} and {other.name}", stages)


def rounding_slips(stage: Node) -> Iterator[Change]:
    for form in ROUNDINGS:
        yield f"{stage.site} is rounded to {form}", stage.change(rounds=form)
        yield f"the inputs of {stage.site} are rounded to {form}", stage.change(rounds_inputs=form)
        if stage.layer:
            yield f"the parameters are rounded to {form}", stage.change(rounds_parameters=form)


def slip_words(graph: Graph, stage: Node) -> Iterator[Change]:
    params = graph.core.params
    head = params["head"].get("w") if "head" in params else None
    table = params[stage.layer]["table"]
    if head is not None and head.T.shape == table.shape and not np.shares_memory(head, table):
        other = stage._replace(layer="head").change(table="w", transposed=True)
        yield "the embeddings are the rows of the output head", other
    yield "the embeddings are multiplied by √D", stage.change(factor=math.sqrt(graph.core.config.width))


# sentence -> what is different in `prepare_pixels`
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


def slip_pixels(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of what becomes of a picture before the first stage."""
    picture = stage.options["picture"]
    if picture.pixels.dtype.kind == "f":
        return
    for words, preparation in PREPARATIONS.items():
        yield words, stage.change(preparation=preparation)
    for name, (mean, std) in STATISTICS.items():
        values = {"image_mean": [*mean], "image_std": [*std]}
        yield f"the pixels are normalized by mean and deviation of {name}", stage.change(preparation={"values": values})
    size, crop = picture.processor.sizes(picture.pixels.shape[:2], "--image")
    whole = {"height": crop[0], "width": crop[1]}
    if size != crop:
        squeezed = {"do_center_crop": False, "size": whole}
        yield "the whole picture is resized, and nothing is cut off", stage.change(preparation={"values": squeezed})
        yield (
            "the picture is not cropped after it is resized",
            stage.change(preparation={"values": {"do_center_crop": False}}),
        )
        near = {"size": {"shortest_edge": min(crop)}}
        yield "the shorter edge is resized to that of the crop", stage.change(preparation={"values": near})
    if size != picture.pixels.shape[:2]:
        yield from _slip_filters(stage)


def _slip_filters(stage: Node) -> Iterator[Change]:
    """Slips of the filter that resizes a picture."""
    for number, name in enumerate(RESAMPLES):
        yield f"the picture is resized by the filter {name}", stage.change(preparation={"values": {"resample": number}})
    for name in WITHOUT_ANTIALIAS:
        words = f"the picture is resized by the filter {name} without antialias"
        yield words, stage.change(preparation={"resampling": name, "rounds": False})
        yield f"{words}, and its pixels are rounded", stage.change(preparation={"resampling": name})


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


def slip_patches(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the patches of an image."""
    for words, order in ORDERS.items():
        yield words, stage.change(order=order)
    yield "the channels of the patches are read in reverse order", stage.change(channels=-1)
    if "b" in graph.core.params[stage.layer]:
        yield "the bias of the patches is missing", stage.change(missing=("b",))


def slip_tokens(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the order of the tokens of an image."""
    yield from _slip_order(graph, stage, stage.layer)
    yield "the patches are taken column by column, not row by row" + AS_READ, stage.change(by_column=True)


def _slip_order(graph: Graph, stage: Node, layer: str) -> Iterator[Change]:
    there = [name for name in ("cls", "registers", "patches") if name in graph.core.params[layer] or name == "patches"]
    for words, order in TOKENS.items():
        if [name for name in order if name in there] != there:
            yield words, stage.change(order=order)


def slip_grid(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the learned positions of patches."""
    cut, image = graph.core.config.patches, graph.inputs.image
    assert cut is not None and image is not None
    yield from _slip_order(graph, stage, f"{stage.layer.partition('.')[0]}.embed")
    for step, words in (
        (1, "each token has the position before its own"),
        (-1, "each token has the position after its own"),
    ):
        yield f"positions are one off: {words}", stage.change(rolled=step)
    if cut.has_class:
        yield "the class token has no position", stage.change(spares_class=True)
        off = "the class token has no position, and that of the class is the first of the patches"
        yield off, stage.change(rolled=1, spares_class=True)
    if cut.grid(*image.shape[-2:]) != cut.grid(cut.height, cut.width):
        for name in FILTERS:
            yield f"the positions are resized by the filter {name}", stage.change(filter=name)


def slip_spectrogram(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of what becomes of a sound before the first convolution."""
    for words, mistake in SPECTROGRAMS.items():
        yield words, stage._replace(kind="mistaken spectrogram").change(mistake=mistake)
    heard = graph.core.config.sound
    assert heard is not None and heard.spectrogram is not None
    for mels in MELS:
        if mels != heard.spectrogram.mels:
            words = f"the spectrogram has {mels} mel filters instead of {heard.spectrogram.mels}"
            yield words, stage._replace(kind="mistaken spectrogram").change(mistake={"numbers": {"mels": mels}})


def slip_samples(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the samples that the first convolution reads."""
    if not stage.options["standardizes"]:
        yield "the samples are brought to mean 0 and variance 1", stage.change(standardizes=True)
        return
    yield "the samples are not brought to mean 0 and variance 1", stage.change(standardizes=False)
    yield "the samples are divided by the deviation with n − 1, not with n", stage.change(ddof=1)


def slip_convolve(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of a convolution: its kernel, its windows, and the zeros around its input."""
    cut: ConvolutionLayer = stage.options["cut"]
    kernels = {**TURNED, **(BY_FRAMES if cut.window > cut.size else {}), **(LENGTHS if cut.is_scaled else {})}
    for words, kernel in kernels.items():
        yield words, stage._replace(kind="mistaken kernel").change(kernel=kernel)
    if cut.is_scaled:
        yield "the weight normalization of the convolution is missing", stage.change(cut=cut._replace(is_scaled=False))
    if "b" in graph.core.params[stage.layer]:
        yield "the bias of the convolution is missing", stage.change(missing=("b",))
    for words, changes in _slip_windows(cut):
        yield words, stage.change(cut=cut._replace(options=cut.options._replace(**changes)))
    if stage.options.get("real") is not None:
        yield "the padding is not set to 0 before the convolution of positions", stage.change(real=None)


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
# sentence -> the kernel instead, by its name in KERNELS: of any convolution, of several channels, and with lengths
TURNED = {"the kernel of the convolution is turned around": "turned"}
BY_FRAMES = {"the weights of the convolution are read frame by frame, not channel by channel": "by frames"}
LENGTHS = {
    "the weight normalization of the convolution is over each filter, not over each place of the kernel": (
        "lengths of filters"
    ),
    "the weights of the convolution are not divided by their norm (weight normalization)": "not divided",
    "the weights of the convolution are not multiplied by their length g (weight normalization)": "not multiplied",
}


def slip_channel_norm(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of a norm of each channel over all frames."""
    yield "the norm is missing", stage.change(skips=True)
    yield "the norm is of each frame (layer norm), not of each channel over all frames", stage._replace(kind="norm")
    together = "the norm is over all channels and frames (one group), not of each channel"
    yield together, stage.change(together=True)
    yield N_MINUS_1, stage.change(ddof=1)
    yield EPS_OUTSIDE, stage.change(eps_outside=True)
    yield from _slip_weights(graph.core.params[stage.layer], stage)


def slip_state(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the token whose state is the vector of a text or image."""
    config, inputs = graph.core.config, graph.inputs
    if stage.site == "vector.state":
        batch, tokens, _ = graph.nodes[stage.inputs[0]].shape
        for which, words in STATES.items():
            at = vector_places(config, inputs, which, batch)
            if not np.array_equal(at % tokens, stage.options["at"] % tokens):
                yield f"the vector is the state of {words}", stage.change(at=at)
    yield from _skip_norm(graph, stage)


STATES = {"cls": "the first token", "last": "the last token, padding or not", "largest": "the token of the largest id"}


def slip_types(graph: Graph, stage: Node) -> Iterator[Change]:
    yield "the embeddings of segments are missing", stage.change(absent=True)
    yield "all tokens are of the first segment", stage.change(all_first=True)


def slip_scale(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the factor on embeddings, and on scores."""
    factor = stage.options["factor"]
    if (rules := stage.options.get("rules")) is None:
        width = math.sqrt(graph.core.config.width)
        if factor != 1:
            words = "√D" if math.isclose(factor, width) else f"{factor:g}"
            yield f"the factor {words} of the embeddings is missing", stage.change(factor=1.0)
        if not math.isclose(factor, width):
            yield "the embeddings are multiplied by √D", stage.change(factor=width)
        if len(stage.inputs) > 1:
            yield "the embeddings of segments are missing", stage._replace(inputs=stage.inputs[:1])
        return
    yield NO_SCALE, stage.change(factor=1.0)
    yield "the scale of the scores is 1/√K", stage.change(factor=rules.head_dim**-0.5)
    yield SCALE_OF_WIDTH, stage.change(factor=(rules.heads * rules.head_dim) ** -0.5)
    share = graph.core.config.width / rules.heads
    if not math.isclose(share, rules.head_dim):
        yield "the scale of the scores is 1/√(D/H), though a head is not D/H wide", stage.change(factor=share**-0.5)
    yield SCALED_TWICE, stage.change(factor=factor * factor)
    yield MULTIPLIED_SCALE, stage.change(factor=rules.head_dim**0.5)
    if rules.softcap:
        yield CAPPED_FIRST, stage._replace(inputs=(stage.site.replace(".scaled", ".capped"),))
    if rules.latent is not None:
        yield from _slip_latent_scale(stage)


def _slip_latent_scale(stage: Node) -> Iterator[Change]:
    """Slips of the scale of latent attention, by head width or long-text growth."""
    rules, factor = stage.options["rules"], stage.options["factor"]
    is_grown = not math.isclose(factor, plain := rules.head_dim**-0.5)
    for name, width in (
        ("content", rules.latent.content),
        ("rotary", rules.latent.rotary),
        ("value", rules.latent.value),
    ):
        words = f"the scale of the scores is 1/√{width}, of the {name} features of a head, not 1/√{rules.head_dim}"
        yield words, stage.change(factor=width**-0.5)
        if is_grown:
            yield f"{words} (times mscale²)", stage.change(factor=factor * (rules.head_dim / width) ** 0.5)
    if is_grown:
        yield "the square of mscale is missing in the scale of the scores", stage.change(factor=plain)
        yield "mscale is in the scale of the scores once, not squared", stage.change(factor=math.sqrt(factor * plain))


def slip_rows(graph: Graph, stage: Node) -> Iterator[Change]:
    config, where = graph.core.config, np.asarray(stage.options["where"])
    positions = config.positions
    if config.patches is not None:
        yield from slip_grid(graph, stage)
        return
    rows = 0 if positions.kind == "sinusoidal" else len(graph.core.params[stage.layer]["table"])
    for shift in dict.fromkeys((1, 2, -1, -2, -positions.first)):
        if shift:
            moved = with_positions(config, first=positions.first + shift, size=positions.size and positions.size + 9)
            if positions.kind == "sinusoidal":
                yield f"positions are shifted by {shift:+}", stage.change(where=where + shift)
            elif positions.first + shift >= 0 and positions.first + shift + where.max(initial=0) < rows:
                first = f" (they begin at {positions.first + shift} instead of {positions.first})"
                yield f"positions are shifted by {shift:+}{first}", stage.change(config=moved)
    if where.ndim == 2:
        yield "positions count the padding", stage.change(where=np.arange(where.shape[-1]))
    if positions.kind == "sinusoidal":
        other = "halves" if positions.layout == "paper" else "paper"
        words = {"halves": "all sines before all cosines", "paper": "alternating sines and cosines"}
        yield f"sinusoidal positions have {words[other]}", stage.change(config=with_positions(config, layout=other))


def slip_add(graph: Graph, stage: Node) -> Iterator[Change]:
    first, second = stage.inputs
    if not stage.site.endswith(".residual"):
        yield "the positions are missing", stage._replace(inputs=(first,))
        return
    if stage.options.get("factor", 1.0) != 1:
        yield "the multiplier of the residual branch is missing", stage.change(factor=1.0)
    yield NO_RESIDUAL, stage._replace(inputs=(first,))
    is_of_positions = stage.site.endswith(f".{POSITION_CONVOLUTION}.residual")
    yield "the positions are missing" if is_of_positions else RESIDUAL_ALONE, stage._replace(inputs=(second,))
    if not graph.core.config.norm_first:
        yield RESIDUAL_AFTER, stage._replace(inputs=(first,))
    yield RESIDUAL_TWICE, stage._replace(inputs=(first, second, second))
    if norm := _norm_before(graph, stage):
        yield f"the residual is added after the norm ({norm}), not before it", stage._replace(inputs=(first, norm))


def _norm_before(graph: Graph, residual: Node) -> str:
    """The norm between what a residual adds and its sub-layer, in a pre-norm model."""
    saved = residual.inputs[1]
    layer = residual.site.rpartition(".")[0]
    reads = {one for name, stage in graph.nodes.items() if name.startswith(f"{layer}.") for one in stage.inputs}
    norms = [name for name, stage in graph.nodes.items() if stage.kind == "norm" and saved in stage.inputs]
    return next((norm for norm in norms if norm in reads), "")


UNIT_OFFSETS = (
    (1.0, "the norm multiplies by 1 + weight, not by weight"),
    (-1.0, "the norm multiplies by weight, not by 1 + weight"),
)


def slip_norm(graph: Graph, stage: Node) -> Iterator[Change]:
    params = graph.core.params.get(stage.layer, {})
    yield EPS_OUTSIDE, stage.change(eps_outside=True)
    yield N_MINUS_1, stage.change(ddof=1)
    yield "the norm is missing", stage.change(skips=True)
    if stage.options["kind"] == "layer":
        yield NO_MEAN, stage.change(kind="rms")
    else:
        yield "the norm subtracts the mean (layer norm)", stage.change(kind="layer")
    yield "the squares of the norm overflow in float16", stage.change(rounds_squares="float16")
    yield from _slip_weights(params, stage)
    yield from _neighbours(graph, stage)
    yield from _other_norms(graph, stage)
    if stage.site.endswith(".normalized"):
        words = "the norm is of each channel over all frames, not of each frame (layer norm)"
        yield words, stage._replace(kind="norm of channels")
    before = graph.nodes[stage.inputs[0]]
    if before.kind == "add" and before.site.endswith(".residual") and not graph.core.config.norm_first:
        yield RESIDUAL_AFTER, stage._replace(inputs=before.inputs[:1])


def _neighbours(graph: Graph, stage: Node) -> Iterator[Change]:
    """Parameters of the layers before and after."""
    stack, number, part = model.parse_layer_name(stage.layer)
    for other in () if number is None else (number - 1, number + 1):
        layer = f"{stack}.{other}.{part}"
        if layer in graph.core.params and _same_shapes(graph, stage.layer, layer):
            yield f"the parameters are those of {layer}", stage._replace(layer=layer)


def _other_norms(graph: Graph, stage: Node) -> Iterator[Change]:
    """Parameters of another norm of the layer, whose own may be those of this one."""
    block, is_numbered = stage.layer.rpartition(".")[0], stage.layer.count(".") == 2
    norms = [one for one in graph.core.params if one.startswith(f"{block}.") and "norm" in one]
    for other in norms if is_numbered else ():
        if other != stage.layer and _same_shapes(graph, stage.layer, other):
            changed = stage._replace(layer=other)
            yield f"the parameters are those of {other}", changed
            first, second = sorted((stage.layer, other))
            yield f"the parameters of {first} and {second} are exchanged", changed


def slip_head_norm(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of a norm of queries or keys."""
    letter, params = stage.site.rpartition(".")[2][0], graph.core.params[stage.layer]
    gamma, beta = stage.options["names"]
    norm = stage.options["norm"]
    rotation = graph.nodes[stage.site.removesuffix("_normed")].options
    yield from of_both(letter, "not normalized", stage.change(skips=True))
    if "rope" in rotation:
        turned = {name: rotation[name] for name in ROTATION if name in rotation}
        yield from of_both(letter, "normalized after the rotation, not before", stage.change(rotates=True, **turned))
    if norm.scope == "projection":
        each = stage.change(norm=norm._replace(scope="heads"))
        yield from of_both(letter, "normalized head by head, not over all heads together", each)
    elif stage.options["heads"] > 1:
        whole = stage.change(norm=norm._replace(scope="projection"))
        yield from of_both(letter, "normalized over all heads together, not head by head", whole)
    other = "qk".replace(letter, "")
    names = tuple(f"{name.removesuffix(f'_{letter}')}_{other}" for name in (gamma, beta))
    if gamma in params and params[gamma].shape == params[names[0]].shape:
        exchanged = stage.change(names=names)
        yield f"{WHOSE[letter]} are normalized with the parameters of {WHOSE[other]}", exchanged
        yield "the norms of queries and keys are exchanged", exchanged
    yield EPS_OUTSIDE, stage.change(eps_outside=True)
    if norm.kind == "layer":
        yield "the norm does not subtract the mean (RMS norm)", stage.change(norm=norm._replace(kind="rms"))
    else:
        yield "the norm subtracts the mean (layer norm)", stage.change(norm=norm._replace(kind="layer"))
    yield from _slip_weights(params, stage)
    yield from _neighbours(graph, stage)


def _slip_weights(params: Mapping[str, Any], stage: Node) -> Iterator[Change]:
    """Slips of the weight and the bias of a norm."""
    gamma, beta = stage.options["names"]
    if gamma in params:
        for offset, words in UNIT_OFFSETS:
            yield words, stage.change(offset=offset)
        yield "the weight of the norm is missing", stage.change(missing=(gamma,))
    if beta in params:
        yield "the bias of the norm is missing", stage.change(missing=(beta,))
    if {gamma, beta} <= {*params}:
        yield "weight and bias of the norm are missing", stage.change(missing=(gamma, beta))


WHOSE = {"q": "queries", "k": "keys"}


def of_both(letter: str, words: str, changed: Node) -> Iterator[Change]:
    """A slip of queries or of keys alone, and of both."""
    yield f"{WHOSE[letter]} are {words}", changed
    yield f"queries and keys are {words}", changed


def _same_shapes(graph: Graph, layer: str, other: str) -> bool:
    shapes = [{name: array.shape for name, array in graph.core.params[one].items()} for one in (layer, other)]
    return shapes[0] == shapes[1]


def slip_linear(graph: Graph, stage: Node) -> Iterator[Change]:
    weight, bias = stage.options["names"]
    params = graph.core.params.get(stage.layer, {})
    if bias in params:
        yield f"the bias {bias} is missing", stage.change(missing=(bias,))
    if weight in params and params[weight].ndim == 1:
        yield "the factors of the features (LayerScale) are missing", stage.change(missing=(weight,))
    elif weight in params and params[weight].shape[0] == params[weight].shape[1]:
        yield f"the weight {weight} is transposed", stage.change(transposed=not stage.options.get("transposed"))
    yield from _neighbours(graph, stage)
    if weight in ("w1", "w3") and "w3" in params:
        other = {"w1": ("w3", "b3"), "w3": ("w1", "b1")}[weight]
        yield GATE_AND_UP, stage.change(names=other)
        for cut, words in CUT.items():
            yield words, stage._replace(kind="cut gate").change(cut=cut, place=int(weight == "w3"))
    yield from _skip_norm(graph, stage)
    yield from recurrent_slips.slip_query(stage)
    for instead in ("wq", "wk", "wv") if weight in ("wq", "wk", "wv") else ():
        if instead != weight and params[instead].shape == params[weight].shape:
            exchanged = stage.change(names=(instead, f"b{instead[1:]}"))
            yield f"{weight[1:]} is computed with the weight of {instead[1:]}", exchanged
    if weight in ("wq", "wk", "wv"):
        yield from _cut_fused(graph, stage, weight[1:], stage._replace(kind="split wrong"))


def _cut_fused(graph: Graph, stage: Node, letter: str, cut: Node) -> Iterator[Change]:
    """Another layout of fused queries, keys and values.

    cut: the stage that cuts them
    """
    rules = graph.core.config.attention_rules.get(stage.site.rpartition(".")[0])
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


def slip_expand(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the keys and values that a latent expands to."""
    yield from slip_linear(graph, stage)
    for cut, words in EXPANSIONS.items():
        changed = stage._replace(kind="cut latent").change(cut=cut, place=stage.options["names"][0][-1])
        yield words, changed


def _skip_norm(graph: Graph, stage: Node) -> Iterator[Change]:
    """A stage that reads what the norm before it reads."""
    before = graph.nodes.get(stage.inputs[0])
    if before is not None and before.kind == "norm":
        yield f"{before.site} is not applied", stage._replace(inputs=before.inputs)


def slip_heads(graph: Graph, stage: Node) -> Iterator[Change]:
    letter = stage.site.rpartition(".")[2]
    if stage.options["heads"] > 1:
        yield "heads are split without transposing", stage.change(splits="no transposing")
        yield HEADS_LAST, stage.change(splits="heads last")
    if stage.options.get("splits") != "before":  # by a norm
        projected = tuple(f"{stage.site[:-1]}{one}_projected" for one in "qkv")
        yield from _cut_fused(graph, stage, letter, stage._replace(inputs=projected))
    if "rope" not in stage.options:
        yield from _rotate_unrotated(graph, stage, letter)
    elif letter == "v":
        yield "values are rotated", stage.change(times=1)
    else:
        yield from _slip_rotation(graph, stage, letter)


def _slip_rotation(graph: Graph, stage: Node, letter: str) -> Iterator[Change]:
    """Slips of the rotation of queries or keys."""
    where, rope = np.asarray(stage.options["where"]), stage.options["rope"]
    whose = WHOSE[letter]
    if stage.options.get("part") == "last":
        yield "the first features of a head are rotated, not the last", stage.change(part="first")
    is_interleaved = stage.options.get("interleaved", False)
    order = "halves instead of neighbours" if is_interleaved else "interleaved"
    yield f"rotary pairs are {order}", stage.change(interleaved=not is_interleaved)
    yield "the rotation turns the other way", stage.change(direction=-1)
    for times, words in ((0, "not rotated"), (2, "rotated twice")):
        changed = stage.change(times=times)
        yield from of_both(letter, words, changed)
        if times == 0 and stage.options.get("splits") == "before":  # by the norm
            yield from of_both(letter, "normalized after the rotation, not before", changed)
    for shift in (1, -1):
        yield f"rotary positions are shifted by {shift:+}", stage.change(where=where + shift)
        yield f"rotary positions of {whose} are shifted by {shift:+}", stage.change(where=where + shift)
    if where.ndim == 2:
        yield from _rotate_padding(stage, where, rope)
    size, width = stage.shape[-1], stage.options["width"]
    for share in (2, 4):
        if size % (2 * share) == 0 and size // share != width:
            yield f"only {size // share} of {size} features of a head are rotated", stage.change(width=size // share)
    if width < size:
        yield "all features of a head are rotated", stage.change(width=size)
        yield "the frequencies of rotary positions are those of the whole head", stage.change(base_width=size)
        if stage.options.get("part") != "last":
            yield "rotary pairs are (i, i + K/2), across the whole head", stage.change(distant=True)
    positions = graph.core.config.positions
    if positions.local_rope:
        is_local = rope is positions.local_rope
        other = positions.rope if is_local else positions.local_rope
        words = f"rotary positions are those of layers {'without' if is_local else 'with'} a window"
        yield words, stage.change(rope=other)
    yield from _slip_frequencies(stage, rope)


def _rotate_padding(stage: Node, where: Array, rope: Mapping[str, Any]) -> Iterator[Change]:
    """Slips of the rotation of a padded batch, whose positions are (B, T)."""
    lengths = where.max(axis=-1) + 1
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest < longest and not has_same_rotation(rope, shortest, longest):
        words = "rotary frequencies are those of the longest text of the batch, as in transformers"
        yield words, stage.change(length=longest)
    counted = stage.change(where=np.arange(where.shape[-1]))
    for words in ("rotary positions count the padding", NO_PADDING + COUNTED, INVERTED_PADDING + COUNTED):
        yield words, counted


COUNTED = ", and rotary positions count the padding"  # those of the padding itself matter where it is not masked
ROTATION = ("rope", "width", "interleaved", "where", "places")  # the options of a stage that rotates


def _rotate_unrotated(graph: Graph, stage: Node, letter: str) -> Iterator[Change]:
    """The rotation of other layers in a layer without."""
    others = (one.options for one in graph.nodes.values() if one.kind == "heads" and "rope" in one.options)
    rotation = next(others, None)
    if rotation is not None and letter != "v":
        turned = {name: rotation[name] for name in ROTATION if name in rotation}
        words = "rotated, in a layer without rotary positions"
        yield from of_both(letter, words, stage.change(times=1, **turned))


def _slip_frequencies(stage: Node, rope: Mapping[str, Any]) -> Iterator[Change]:
    """Slips of the base of rotary positions and of its scaling for long texts."""
    base = float(rope.get("rope_theta", 1e4))
    for form in ROUNDINGS:
        yield f"the frequencies of rotary positions are rounded to {form}", stage.change(rounds_frequencies=form)
        yield f"the cosines and sines of rotary positions are rounded to {form}", stage.change(rounds_angles=form)
    kind = rope.get("rope_type", "default")
    if kind != "default":
        plain = {"rope_type": "default", "rope_theta": base}
        yield f"the scaling of rotary positions ({kind}) is ignored", stage.change(rope=plain, factor=1.0)
    longest = int(np.asarray(stage.options["where"]).max(initial=0)) + 1
    factor = rope_frequencies(stage.options["width"], rope, longest)[1]
    if factor != 1:
        yield f"the factor of {kind} on cosines and sines is missing", stage.change(factor=1.0)
        yield f"the factor of {kind} on cosines and sines is applied twice", stage.change(factor=factor * factor)
    if rope.get("attention_factor") is not None:
        formula = {name: value for name, value in rope.items() if name != "attention_factor"}
        words = f"the factor of {kind} on cosines and sines is that of the formula, not the one that is stated"
        yield words, stage.change(rope=formula)
    if kind == "yarn":
        is_whole = rope.get("truncate", True)
        words = f"the ramp of yarn is {'not ' * is_whole}truncated to whole pairs"
        yield words, stage.change(rope={**rope, "truncate": not is_whole})
    if kind == "longrope":
        plain = {"rope_type": "default", "rope_theta": base}
        yield "the factors of longrope are missing", stage.change(rope=plain, factor=factor)
        original = int(rope["original_max_position_embeddings"])
        is_long = longest > original
        words = f"the {'short' if is_long else 'long'} factors of longrope are used"
        yield words, stage.change(length=original + (not is_long))
    for other in ("linear", "dynamic"):
        if "factor" in rope and other != kind:
            words = f"the scaling of rotary positions is {other} instead of {kind}"
            yield words, stage.change(rope={**rope, "rope_type": other}, factor=1.0)


def slip_repeat(graph: Graph, stage: Node) -> Iterator[Change]:
    if stage.options.get("is_grouped"):
        yield "key heads are repeated in turn, not in blocks", stage.change(in_turn=True)


def slip_mask(graph: Graph, stage: Node) -> Iterator[Change]:
    rules, padding = stage.options["rules"], stage.options["padding"]
    if rules.causal:
        yield NO_CAUSAL, stage.change(rules=rules._replace(causal=False))
        yield STRICT_CAUSAL, stage.change(offset=-1)
        yield SHIFTED_CAUSAL, stage.change(offset=1)
        opposite = rules._replace(causal=False, window=(0, rules.window[0]))
        yield OPPOSITE_CAUSAL, stage.change(rules=opposite)
    elif not rules.is_cross:
        yield "a causal mask is applied", stage.change(rules=rules._replace(causal=True))
    if not rules.is_cross:
        yield from _slip_window(graph, stage)
    if padding is not None:
        for words, changed in (
            (NO_PADDING, stage.change(padding=None)),
            (INVERTED_PADDING, stage.change(padding=~padding)),
        ):
            yield words, changed
            yield words + COUNTED, changed
    if padding is not None or rules.causal or rules.window != (-1, -1):
        for fill in (-1.0, 0.0, 1.0):
            yield f"blocked scores are {fill:g} instead of −∞", stage.change(fill=fill)
    if rules.softcap:
        capped = stage.inputs[0]
        yield CAPPED_FIRST, stage._replace(inputs=(capped.replace(".capped", ".scaled"), *stage.inputs[1:]))
    if rules.relative and not rules.is_cross:
        yield "the bias of relative positions is missing", stage.change(no_bias=True)
        yield from RELATIVE.get(rules.relative, _no_changes)(graph, stage)


def _slip_window(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the window of a layer, or of one that it has not."""
    rules = stage.options["rules"]
    left, right = rules.window
    if left >= 0:
        yield "the window is missing", stage.change(rules=rules._replace(window=(-1, -1)))
        if rules.causal:
            none = rules._replace(window=(-1, -1), causal=False)
            yield "the causal mask and the window are missing", stage.change(rules=none)
        for width, words in other_widths(left, stage.shape[-1]).items():
            sides = (width, width if right >= 0 else right)
            words = f"the window is {width} keys before a query instead of {left} ({words})"
            yield words, stage.change(rules=rules._replace(window=sides))
    else:
        for width in sorted({*graph.core.config.stack(rules.stack).windows} - {-1}):
            words = f"a window of {width} keys before a query is applied, which is that of other layers"
            yield words, stage.change(rules=rules._replace(window=(width, -1 if rules.causal else width)))


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


def slip_alibi(graph: Graph, stage: Node) -> Iterator[Change]:
    rules = stage.options["rules"]
    right, order = alibi_slopes(rules.heads), np.arange(rules.heads)
    for slopes, words in (
        (2.0 ** (-8 * (order + 1) / rules.heads), "are 2^(−8 i/H) though H is no power of two"),
        (2.0 ** (-8 * order / rules.heads), "begin at 1"),
        (right[::-1], "are in reverse order"),
    ):
        if not np.allclose(slopes, right):
            yield f"the slopes of ALiBi {words}", stage.change(slopes=slopes)
    yield "the bias of ALiBi has the other sign", stage.change(bias_factor=-1.0)
    if graph.core.config.positions.rounds_bias:
        yield "the bias of ALiBi is not scaled as the scores are", stage.change(bias_factor=1 / rules.factor)
    else:
        yield "the bias of ALiBi is scaled as the scores are", stage.change(bias_factor=rules.factor)


def slip_buckets(graph: Graph, stage: Node) -> Iterator[Change]:
    config, name = graph.core.config, stage.options["rules"].stack
    stack = config.stack(name)
    words = f"the buckets of relative positions are those of {'both directions' if stack.causal else 'one direction'}"
    other: dict[str, Any] = {name: replace(stack, causal=not stack.causal)}
    yield words, stage.change(config=replace(config, **other))


def _no_changes(graph: Graph, stage: Node) -> Iterator[Change]:
    yield from ()


# what distances add to the scores -> its slips
RELATIVE: dict[str, Callable[[Graph, Node], Iterator[Change]]] = {"alibi": slip_alibi, "t5": slip_buckets}


def slip_cap(graph: Graph, stage: Node) -> Iterator[Change]:
    if stage.options["softcap"]:
        yield "the soft cap of the scores is missing", stage.change(softcap=0.0)
        scores = stage.inputs[0].replace(".scaled", ".scores")
        yield CAPPED_FIRST, stage._replace(inputs=(scores,))


SCORES = {  # what the gates are made of, by the scores of a configuration
    "softmax": "the gates are softmax over all experts",
    "chosen": "the gates are softmax over the chosen experts alone",
    "sigmoid": "the gates are sigmoids",
}


def slip_route(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the choice of experts, and of their gates."""
    mixture = stage.options["mixture"]
    for words, changes in _slip_mixture(mixture):
        yield words, stage.change(mixture=replace(mixture, **changes))
    if "correction" in graph.core.params[stage.layer]:
        yield "the correction of the choice of experts is missing", stage.change(missing=("correction",))
        yield "the correction of the choice of experts is in the gates too", stage.change(corrects_gates=True)


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


def slip_experts(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the networks of experts."""
    mixture = graph.core.config.mixture(stage.layer)
    assert mixture is not None
    params = graph.core.params[f"{stage.layer.removesuffix('.ffn')}.expert.0"]
    for words, options in EXPERTS.items():
        if {*options.get("missing", ())} <= {*params}:
            yield words, stage.change(**options)
    for cut, words in CUT.items():
        yield words, stage.change(cut=cut)
    yield from _slip_activation(stage)
    if limit := stage.options["limit"]:
        yield "the 1 that is added to the up projection is missing", stage.change(offset=0.0)
        yield f"gate and up are not bounded by {limit:g}", stage.change(limit=0.0)
        yield f"neither bounded by {limit:g} nor increased by 1 are gate and up", stage.change(limit=0.0, offset=0.0)
    for step, words in ((1, "after"), (-1, "before")):
        instead = {number: (number + step) % mixture.count for number in range(mixture.count)}
        yield f"each expert is the one {words} it (numbers one off)", stage.change(instead=instead)


def fit_experts(graph: Graph, stage: Node, reads: Sequence[Array], mine: Array, noise: float) -> Iterator[Change]:
    """The experts that compute in place of others, found from what some tokens got.

    reads  the arrays that the stage reads; mine (B, T, D), its result, within a noise
    """
    mixture = graph.core.config.mixture(stage.layer)
    assert mixture is not None
    gap = mine - graph.apply(stage, reads)
    least = max(TELLING * float(np.abs(gap).max()), noise)
    wrong = np.argwhere(np.abs(gap).max(axis=-1) > least)
    of_token = reads[2][tuple(wrong.T)]  # (N, k)
    seen = [np.flatnonzero((of_token == number).any(axis=-1))[:OF_EACH] for number in np.unique(of_token)]
    wrong = wrong[np.unique(np.concatenate([*seen, np.arange(0)]))[:MOST_TOKENS].astype(np.int64)]
    x, gates, chosen, gap = (one[tuple(wrong.T)] for one in (*reads, gap))  # (N, D), (N, k), (N, k), (N, D)
    each = [np.full((1, len(x), 1), number) for number in range(mixture.count)]
    ones = np.ones((1, len(x), 1), x.dtype)
    parts = np.stack([graph.apply(stage, [x[None], ones, number])[0] for number in each])  # (E, N, D)
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
        yield _describe_moved(instead), stage.change(instead=instead)


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


def slip_shared(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of the network that all tokens share, and of its gate."""
    experts, shared, *gate = stage.inputs
    yield "the shared expert is missing", stage._replace(inputs=(experts,), kind="add")
    yield "the shared expert is all there is", stage._replace(inputs=(shared,), kind="add")
    if gate:
        yield "the gate of the shared expert is missing", stage._replace(inputs=(experts, shared))
        yield "the gate of the shared expert is not a sigmoid", stage.change(gate="identity")
    if (scale := stage.options["mixture"].scale) != 1:
        yield "the factor of the gates multiplies the shared expert too", stage.change(factor=scale)


def slip_softmax(graph: Graph, stage: Node) -> Iterator[Change]:
    if "sinks" in graph.core.params.get(stage.layer, {}):
        yield "the sinks are missing", stage.change(missing=("sinks",))
    yield OVER_QUERIES, stage.change(axis=-2)
    yield "softmax is over the heads, not the keys", stage.change(axis=-3)


def slip_join(graph: Graph, stage: Node) -> Iterator[Change]:
    yield "heads are joined without transposing", stage.change(no_transposing=True)


def slip_activate(graph: Graph, stage: Node) -> Iterator[Change]:
    yield from _slip_activation(stage)
    if stage.options.get("is_gated"):
        other = stage.site.replace(".activated", ".linear")
        yield GATE_AND_UP, stage._replace(inputs=(other,))
        for cut, words in CUT.items():
            changed = stage._replace(kind="cut gate", inputs=(*stage.inputs, other))
            yield words + AS_READ, changed.change(cut=cut, place=0)


def _slip_activation(stage: Node) -> Iterator[Change]:
    where = next((f", in the {part}" for part in ("bridge", "readout") if f".{part}" in stage.site), "")
    for name in ACTIVATIONS:
        if name != stage.options["activation"]:
            words = NO_ACTIVATION if name == "identity" else f"the activation is {name}"
            yield f"{words} (expected {stage.options['activation']}{where})", stage.change(activation=name)


def slip_multiply(graph: Graph, stage: Node) -> Iterator[Change]:
    first, second = stage.inputs
    yield GATE_AND_UP, stage._replace(inputs=(first, first.replace(".activated", ".hidden")))
    yield "the gate is not applied", stage._replace(kind="scale", inputs=(second,), options={})
    for cut, words in CUT.items():
        changed = stage._replace(kind="cut gate", inputs=(first, first.replace(".activated", ".hidden"), second))
        yield words + AS_READ, changed.change(cut=cut, place=1)


def slip_gate(graph: Graph, stage: Node) -> Iterator[Change]:
    yield from recurrent_slips.slip_gate(graph, stage)
    yield from _neighbours(graph, stage)


def slip_loop(graph: Graph, stage: Node) -> Iterator[Change]:
    """Slips of a loop: of what it carries, and of the nodes of its body.

    Nodes of one name are changed all at once.
    """
    yield from recurrent_slips.slip_recurrence(graph, stage)
    found: dict[str, dict[str, Node]] = {}
    for node in stage.options["body"]:
        for name, changed in SLIPS.get(node.kind, _no_changes)(graph, node):
            found.setdefault(name, {})[node.site] = changed
    once = {frozenset((site, id(node)) for site, node in nodes.items()): name for name, nodes in [*found.items()][::-1]}
    for name in sorted(once.values(), key=[*found].index):
        nodes = found[name]
        changed = stage.change(body=tuple(nodes.get(node.site, node) for node in stage.options["body"]))
        own = {*stage.inputs, *(node.site for node in stage.options["body"])}
        reads = {site: None for node in nodes.values() for site in node.inputs if site not in own}
        yield name, recurrent_slips.read_whole(changed, [one for one in reads if graph.nodes[one].kind == "loop"])


def slip_pool(graph: Graph, stage: Node) -> Iterator[Change]:
    for kind in ("first", "mean"):
        if kind != stage.options["kind"]:
            yield f"the head reads the {kind} of the states", stage.change(kind=kind)
    if stage.options["kind"] != "first" and stage.options["real"] is not None:
        yield "the mean of the states counts the padding", stage.change(real=None)


def slip_logits(graph: Graph, stage: Node) -> Iterator[Change]:
    params, config = graph.core.params, graph.core.config
    if (factor := stage.options["factor"]) != 1:
        yield "the scale of the logits is missing", stage.change(factor=1.0)
        words = f"the logits are multiplied by {1 / factor:g} instead of {factor:g}"
        yield f"{words} (divided for multiplied, or the reverse)", stage.change(factor=1 / factor)
    if stage.options["softcap"]:
        yield "the soft cap of the logits is missing", stage.change(softcap=0.0)
    if "b" in params["head"]:
        yield "the bias of the output head is missing", stage.change(missing=("b",))
    table = params.get(f"{config.stacks[-1]}.embed", {}).get("table")
    weight = params["head"]["w"]
    if table is not None and table.T.shape == weight.shape and not np.shares_memory(table, weight):
        yield (
            "the output head is the table of the embeddings",
            stage._replace(layer=f"{config.stacks[-1]}.embed").change(names=("table", "b"), transposed=True),
        )
    yield from _skip_norm(graph, stage)


# operation -> slips whose options are found from what its stage reads and what an implementation made of it
FITS: dict[str, Callable[[Graph, Node, Sequence[Array], Array, float], Iterator[Change]]] = {"experts": fit_experts}

SLIPS: dict[str, Callable[[Graph, Node], Iterator[Change]]] = {
    "words": slip_words,
    "types": slip_types,
    "pixels": slip_pixels,
    "patches": slip_patches,
    "tokens": slip_tokens,
    "spectrogram": slip_spectrogram,
    "samples": slip_samples,
    "convolve": slip_convolve,
    "norm of channels": slip_channel_norm,
    "state": slip_state,
    "scale": slip_scale,
    "rows": slip_rows,
    "add": slip_add,
    "norm": slip_norm,
    "norm of heads": slip_head_norm,
    "linear": slip_linear,
    "heads": slip_heads,
    "scores": slip_repeat,
    "cap": slip_cap,
    "mask": slip_mask,
    "softmax": slip_softmax,
    "mix": slip_repeat,
    "join": slip_join,
    "activate": slip_activate,
    "multiply": slip_multiply,
    "expand": slip_expand,
    "latent keys": slip_heads,
    "choose": slip_route,
    "gates": slip_route,
    "experts": slip_experts,
    "add shared": slip_shared,
    **recurrent_slips.SLIPS,
    "gate": slip_gate,
    "loop": slip_loop,
    "pool": slip_pool,
    "logits": slip_logits,
}


# operation -> the numbers of a stage: sentence, option, the number of the model, the range of others, published ones

NumberRow = tuple[str, str, float, tuple[float, float], *tuple[float, ...]]
WIDE = 1e3  # how many times larger or smaller a factor may be


def _around(stated: float) -> tuple[float, float]:
    return abs(stated) / WIDE, abs(stated) * WIDE


def _no_numbers(graph: Graph, stage: Node) -> Iterator[NumberRow]:
    yield from ()


def number_factor(graph: Graph, stage: Node) -> Iterator[NumberRow]:
    """The factor of embeddings or scores."""
    factor = stage.options["factor"]
    what = "scores" if "rules" in stage.options else "embeddings"
    if stage.site.endswith((".scaled", ".embed")):
        yield f"the {what} are multiplied by {{}} instead of {factor:g}", "factor", factor, _around(factor)


def number_residual(graph: Graph, stage: Node) -> Iterator[NumberRow]:
    factor = stage.options.get("factor", 1.0)
    if stage.site.endswith(".residual"):
        yield f"the residual branch is multiplied by {{}} instead of {factor:g}", "factor", factor, _around(factor)


def number_norm(graph: Graph, stage: Node) -> Iterator[NumberRow]:
    of_heads = stage.kind == "norm of heads"
    eps, option = (stage.options["norm"].eps, "norm.eps") if of_heads else (stage.options["eps"], "eps")
    yield f"eps of the norm is {{}} instead of {eps:g}", option, eps, (1e-9, 1.0), *EPSILONS


def number_samples(graph: Graph, stage: Node) -> Iterator[NumberRow]:
    if stage.options["standardizes"]:
        eps = stage.options["eps"]
        words = f"{{}} is added to the variance of the samples instead of {eps:g}"
        yield words, "eps", eps, (1e-12, 1.0), *EPSILONS


def number_heads(graph: Graph, stage: Node) -> Iterator[NumberRow]:
    rope = stage.options.get("rope")
    if rope is None or not stage.options["times"]:
        return
    base = float(rope.get("rope_theta", 1e4))
    yield f"rope_theta is {{}} instead of {base:g}", "rope.rope_theta", base, (2.0, 1e12), *THETAS
    if "factor" in rope:
        factor, kind = float(rope["factor"]), rope.get("rope_type", "default")
        words = f"the factor of the scaling of rotary positions ({kind}) is {{}} instead of {factor:g}"
        yield words, "rope.factor", factor, (1.01, 1e3)


def number_cap(graph: Graph, stage: Node) -> Iterator[NumberRow]:
    what = "logits" if stage.kind == "logits" else "scores"
    if softcap := stage.options["softcap"]:
        yield f"the soft cap of the {what} is {{}} instead of {softcap:g}", "softcap", softcap, _around(softcap)
    else:
        yield f"a soft cap of the {what} ({{}}) is applied", "softcap", 30.0, (0.1, 1e3)


def number_logits(graph: Graph, stage: Node) -> Iterator[NumberRow]:
    factor = stage.options["factor"]
    yield f"the logits are multiplied by {{}} instead of {factor:g}", "factor", factor, _around(factor)
    yield from number_cap(graph, stage)


NUMBERS: dict[str, Callable[[Graph, Node], Iterator[NumberRow]]] = {
    "add": number_residual,
    "cap": number_cap,
    "heads": number_heads,
    "latent keys": number_heads,
    "logits": number_logits,
    "norm": number_norm,
    "norm of channels": number_norm,
    "norm of heads": number_norm,
    "samples": number_samples,
    "scale": number_factor,
}
