"""Compare an implementation's dump with a model or another dump, site by site."""

import math
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from attnkit.checkpoints import Checkpoint
from attnkit.checkpoints.config_reader import read_preprocessor
from attnkit.debugger import layouts, matching
from attnkit.debugger.dumps import Dump, open_dump, record_dump
from attnkit.debugger.graphs import debugged_graph
from attnkit.debugger.model_inputs import (
    LAST_PARTS,
    SoundInput,
    channels_first,
    find_features,
    find_image,
    frames_first,
    is_model_input,
    read_model_inputs,
)
from attnkit.debugger.modules import build_nodes
from attnkit.debugger.names import Located, TensorSource, locate_sites, read_map
from attnkit.debugger.pictures import PictureInput
from attnkit.debugger.processed_weights import NOTE, is_processed, keep_unchanged
from attnkit.debugger.report import Facts, VerdictReport, make_verdict
from attnkit.debugger.token_calls import gather_tokens
from attnkit.debugger.verdict import Judge, SiteRow, compare_arrays, order_problems
from attnkit.errors import DataError, UsageError, counted
from attnkit.inputs import layers
from attnkit.inputs.image_processor import read_processor
from attnkit.inputs.sound_inputs import RATE, find_samples, normalizes_samples
from attnkit.inputs.text_inputs import ModelInput, model_inputs
from attnkit.model.config import SoundConfig
from attnkit.model.dtypes import FLOATS, rounded
from attnkit.model.formulas.embedding import check_ids
from attnkit.model.graph.convolutions import sound_site
from attnkit.model.graph.graph import Graph
from attnkit.model.graph.nodes import Inputs
from attnkit.model.passes.incremental_decoder import keeps_cache
from attnkit.model.rounding import EPSILON
from attnkit.records import Array, Record, join_names

FEW = 4  # tensors that tell the dtype of a dump
KEPT = 1 << 26  # bytes of arrays that are held at a time


@dataclass
class Request:
    """The options of a comparison.

    map_file  a file of names and sites
    match     whether names of no site are paired by shape and value
    why       whether causes are looked for
    all_rows  whether sites after the first that differs are compared, and sites that are the same listed
    """

    map_file: str | None = None
    match: bool = False
    why: bool = False
    all_rows: bool = False


@dataclass(frozen=True)
class DumpPair:
    """The dumps of two implementations."""

    takes: ClassVar[tuple[str, ...]] = ("map_", "all_")

    reference: Dump
    mine: Dump

    @classmethod
    def open(cls, operands: Sequence[str | Record]) -> "DumpPair":
        """Open REFERENCE and MINE."""
        if len(operands) != 2:
            raise UsageError(f"expected REFERENCE MINE, got {counted(len(operands), 'operand')}")
        return cls(*map(open_side, operands))

    def compare(self, map_: str | None, all_: bool) -> VerdictReport:
        """Compare the dumps by their names, or by the sites that these stand for."""
        return compare_dumps(self.reference, self.mine, Request(map_, all_rows=all_))


@dataclass(frozen=True)
class Port:
    """The dump of an implementation, to compare with a model.

    reference  another dump, whose arrays count in place of those of the model; text: what the token ids should be of
    """

    takes: ClassVar[tuple[str, ...]] = ("model_", "ids", "image", "audio", "map_", "match", "why", "all_")

    mine: Dump
    reference: Dump | None = None
    text: str | None = None

    @classmethod
    def open(cls, operands: Sequence[str | Record]) -> "Port":
        """Open MINE, after a TEXT or a REFERENCE."""
        if not 1 <= len(operands) <= 2:
            problem = f"expected [TEXT or REFERENCE] MINE with --model, got {counted(len(operands), 'operand')}"
            raise UsageError(problem)
        *before, mine = operands
        first = before[0] if before else None
        if isinstance(first, str) and not os.path.exists(first):
            return cls(open_side(mine), text=first)
        return cls(open_side(mine), None if first is None else open_side(first))

    def compare(
        self,
        model_: Checkpoint,
        ids: Record | None,
        image: Array | None,
        audio: Record | None,
        map_: str | None,
        match: bool,
        why: bool,
        all_: bool,
    ) -> VerdictReport:
        """Compare the dump with the model, whose tower of images reads an image."""
        checkpoint, expected = model_ if image is None else model_.tower("vision"), None
        if self.text is not None or ids is not None:
            stack = checkpoint.config.stacks[-1 if checkpoint.config.sound else 0]  # a sound has no tokens
            expected = model_inputs(checkpoint, stack, ModelInput(self.text, ids=ids))[0]
        request = Request(map_, match, why, all_)
        return compare_with_model(checkpoint, self.mine, request, expected, self.reference, image, audio)


def open_side(operand: str | Record) -> Dump:
    """Open a file or folder, or take the tensors of a record."""
    return open_dump(operand) if isinstance(operand, str) else record_dump(operand)


@dataclass
class Implementation(Mapping[str, Array]):
    """The sites of a dump, each brought to its layout when it is asked for.

    findings  what had to be found by value, by site
    problems  sites whose arrays have no layout of the model's, with both shapes
    parts     sites of some of the tokens, and which
    wholes    those sites with the other tokens as expected
    ranks     by mixture of experts, where the chosen expert of each rank stands: they may be in any order
    orders    the orders of the columns of heads that were found in earlier layers, by the last part of the site
    """

    dump: Dump
    sources: Mapping[str, TensorSource]
    graph: Graph
    findings: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    parts: dict[str, slice] = field(default_factory=dict)
    wholes: dict[str, Array] = field(default_factory=dict)
    ranks: dict[str, Array] = field(default_factory=dict)
    orders: dict[str, Array] = field(default_factory=dict)
    _arrays: dict[str, Array] = field(default_factory=dict)

    def __contains__(self, site: object) -> bool:
        return site in self.sources and site in self.graph.nodes and site not in self.problems

    def __iter__(self) -> Iterator[str]:
        return (site for site in self.graph.nodes if site in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, site: str) -> Array:
        if site in self.wholes:
            return self.wholes[site]
        if site not in self._arrays:
            fitted = self._fit(site, None)
            if fitted.array is None:
                raise KeyError(site)
            self._keep(site, fitted.array)
        return self._arrays[site]

    def fit(self, site: str, expected: Array) -> Array | None:
        """The array of a site, whose values decide between layouts of one shape."""
        layer, _, name = site.rpartition(".")
        if name == "chosen":
            self.ranks.pop(layer, None)
        fitted = self._fit(site, expected)
        if fitted.array is None and (part := self._fit_part(site, expected)) is not None:
            return part
        if fitted.array is None:
            self.problems[site] = fitted.problem
            return None
        array = fitted.array
        if name == "chosen":
            self.ranks[layer] = layouts.match_ranks(array, expected)
            array = np.take_along_axis(array, self.ranks[layer], axis=-1)
        if fitted.finding:
            self.findings[site] = fitted.finding
        self._keep(site, array)
        return array

    def _fit_part(self, site: str, expected: Array) -> Array | None:
        """An array of one token alone, with the others as expected.

        Generation computes the logits of the last token, and CLIP the norm at the end of an image of the first.
        """
        array = as_floats(self.dump[self.sources[site].name])
        is_first = site == "encoder.norm" and self.graph.core.config.vector_pooling == "cls"
        if expected.ndim != 3 or array.size != expected[:, -1].size or not (is_first or site == "logits"):
            return None
        self.findings[site] = f"of the {'first' if is_first else 'last'} token alone"
        self.parts[site] = slice(1) if is_first else slice(-1, None)
        whole = expected.copy()
        whole[:, self.parts[site]] = array.reshape(expected[:, -1:].shape)
        self.wholes[site] = whole
        return whole

    def dtype(self, site: str) -> str:
        """The name of the dtype that a site was computed in."""
        source = self.sources[site]
        dtype = source.dtype or self.dump.dtype(source.name)
        return max(dtype if dtype in FLOATS else "float64", self.usual_dtype, key=EPSILON.__getitem__)

    @cached_property
    def usual_dtype(self) -> str:
        """The dtype of most sites.

        The parameters have it too that a node of a wider dtype reads.
        """
        dtypes = Counter(self.dump.dtype(source.name) for source in self.sources.values())
        floats = [dtype for dtype, _ in dtypes.most_common() if dtype in FLOATS]
        usual = floats[0] if floats else "float64"
        return "fp8-e4m3" if usual == "float16" and self._has_eight_bits() else usual

    def _has_eight_bits(self) -> bool:
        """Whether the first tensors of float16 have numbers of fp8-e4m3 alone."""
        names = [one.name for one in self.sources.values() if self.dump.dtype(one.name) == "float16"][:FEW]
        arrays = [one[np.isfinite(one)] for one in (self.dump[name].astype(np.float32) for name in names)]
        is_some = any(one.any() for one in arrays)
        return is_some and all(np.array_equal(one, rounded(one, "fp8-e4m3")) for one in arrays)

    def digits(self, site: str) -> int:
        """How many significant digits of its numbers the dump has; 0 for all."""
        return self.dump.digits(self.sources[site].name)

    def _fit(self, site: str, expected: Array | None) -> layouts.Fitted:
        source, node = self.sources[site], self.graph.nodes[site]
        shape = node.shape if expected is None else expected.shape
        array = as_floats(self.dump[source.name])
        if node.kind == "choose":  # the numbers of experts, by which parameters are read
            try:
                array = check_ids(array, node.options["mixture"].count, "expert")
            except DataError as error:
                return layouts.Fitted(None, problem=error.problem)
        if site == "pixels":  # whose rows and columns no program exchanges freely
            array = channels_first(array, shape[1])
            same = array.shape == shape
            return layouts.Fitted(
                array if same else None, problem="" if same else f"shape {array.shape}, expected {shape}"
            )
        columns = source.columns
        if columns and node.kind in ("loop", "previous state", "last state", "activate"):  # of layers, not of numbers
            array, columns = layouts.cut_layers(array, columns), None
            if array.ndim > len(shape) and len(array):  # of each token: before the first, or after the last
                array = array[0 if ".input" in source.name else -1]
        if site in ("spectrogram", "samples") and (heard := self.graph.core.config.sound):
            array = frames_first(array, heard)
        if site.endswith(".patches") and array.ndim == 4:  # the rows and columns of the patches
            array = array if array.shape[-1] == shape[-1] else np.moveaxis(array, 1, -1)
            array = array.reshape(len(array), -1, shape[-1])
        if site.endswith(".rows") and array.shape in (shape[-2:], (1, *shape[-2:])):  # often the same for all texts
            array = np.broadcast_to(array.reshape(shape[-2:]), shape)
        if ".recall." in site and array.ndim == 2 and array.size == math.prod(shape):
            array = array.reshape(shape)  # of a module that reads each head as a row
        axes = layouts.site_axes(site, len(shape))
        heads = self.graph.nodes[site].options.get("heads", 0) if site.endswith("_projected") else 0
        layer, _, part = site.rpartition(".")
        fitted = layouts.to_layout(array, shape, axes, columns, expected, heads, self.orders.get(part))
        if fitted.order is not None:
            self.orders[part] = fitted.order
        if fitted.array is not None and part in ("chosen", "gates") and layer in self.ranks:
            return fitted._replace(array=np.take_along_axis(fitted.array, self.ranks[layer], axis=-1))
        return fitted

    def _keep(self, site: str, array: Array) -> None:
        self._arrays[site] = array
        while len(self._arrays) > 1 and sum(one.nbytes for one in self._arrays.values()) > KEPT:
            del self._arrays[next(iter(self._arrays))]


def compare_with_model(
    checkpoint: Checkpoint,
    mine: Dump,
    request: Request,
    ids: Array | None = None,
    reference: Dump | None = None,
    image: Array | None = None,
    audio: Record | None = None,
) -> VerdictReport:
    """Compare a dump with what a model computes from the same inputs.

    The inputs are token ids, an image or a sound.

    ids        (T,) or (B, T), which those of the dump should be; None: those of the dump
    reference  another dump, whose arrays count in place of those that attnkit computes
    image      the picture of the pixels of the dump, (height, width, 3) uint8, or these pixels, (C, height, width)
    audio      the sound that the model hears, a record with x (T,)

    DataError if the dump has no token ids and none are given, or no name of a site.
    """
    core, chosen = layers.complete_model(checkpoint), None
    if layers.recurrent_layers(checkpoint):
        mine = gather_tokens(mine)
    if request.map_file is not None:
        sites = [*build_nodes(checkpoint.config, checkpoint.params.specs), *LAST_PARTS]
        chosen = read_map(request.map_file, [*mine], sites)
    located = locate_sites([*mine], checkpoint, chosen)
    picture = None
    if image is not None:
        located, picture = locate_pixels(mine, located), make_picture(checkpoint, image)
    sound = None
    if checkpoint.config.sound:
        located = locate_features(mine, located, sound_site(checkpoint.config))
        sound = None if audio is None else make_sound(checkpoint, checkpoint.config.sound, audio)
    elif audio is not None:
        raise UsageError(f"this {core.config.family} model reads no sounds", "--audio")
    inputs, difference = read_model_inputs(core, mine, located, ids, picture, sound)
    graph = debugged_graph(core, inputs, picture)
    if request.match:
        located = match_others(located, mine, graph)
    has_processed = located.scheme == "TransformerLens" and is_processed(mine, located.sources, graph)
    if has_processed:
        located = replace(located, sources=keep_unchanged(located.sources))
    own = Implementation(mine, located.sources, graph)
    if not len(own):
        names = join_names([*mine], 3)
        raise DataError(f"none of its names is a stage of this {core.config.family} model: {names}", mine.name)
    other = None
    if reference is not None:
        other = Implementation(reference, locate_sites([*reference], checkpoint).sources, graph)
    dtypes = Counter(own.dtype(site) for site in own)
    judged = until_first(Judge(graph, own, other).rows(request.why), request)
    early = {site for site, _ in find_reordered(mine, located, own)}
    rows = [mark_kind(row, own, dtypes, early) for row in judged]
    if request.all_rows:
        missing = [SiteRow(site, "missing", note="not in the dump") for site in graph.nodes if site not in own.sources]
        rows = sorted([*rows, *missing], key=lambda row: [*graph.nodes].index(row.site))
    facts = Facts(
        mine.name,
        names="--map" if request.map_file else f"the names of {located.scheme}" if located.scheme else "--match",
        ids=difference,
        tokens=count_tokens(inputs),
        found=(len(own) + len(own.problems), len(graph.nodes)),
        unknown=tuple(name for name in located.unknown if not is_model_input(name)),
        dtype=dtypes.most_common(1)[0][0] if dtypes else "float32",
        notes=(*[NOTE] * has_processed, *list_notes(mine, located, own, request)),
        why=request.why,
        shows_all=request.all_rows,
    )
    return make_verdict(rows, facts)


def make_picture(checkpoint: Checkpoint, image: Array) -> PictureInput:
    """A picture with the processor of a model; UsageError for a model of texts."""
    cut = checkpoint.config.patches
    if cut is None:
        raise UsageError(f"this {checkpoint.config.family} model reads no images", "--image")
    return PictureInput(image, read_processor(checkpoint.place, (cut.height, cut.width)))


def make_sound(checkpoint: Checkpoint, sound: SoundConfig, audio: Record) -> SoundInput:
    """A sound as a model hears it."""
    settings = read_preprocessor(checkpoint.place)
    rate = sound.spectrogram.rate if sound.spectrogram else settings.get_int("sampling_rate", RATE)
    samples = find_samples(audio, rate, "--audio")
    least = sound.frames_before("", 1) if sound.spectrogram is None else sound.spectrogram.hop
    if samples.ndim != 1 or len(samples) < least:
        raise DataError(f"x {samples.shape} (expected the samples of a sound, {least} or more)", "--audio")
    return SoundInput(as_floats(samples), normalizes_samples(settings))


def locate_features(mine: Dump, located: Located, site: str) -> Located:
    """The sites of a dump, with the spectrogram or samples that the model reads."""
    name = find_features(mine)
    return replace(located, sources={site: TensorSource(name), **located.sources}) if name else located


def locate_pixels(mine: Dump, located: Located) -> Located:
    """The sites of a dump, with the pixels that the model reads."""
    name = find_image(mine)
    return replace(located, sources={"pixels": TensorSource(name), **located.sources}) if name else located


def compare_dumps(reference: Dump, mine: Dump, request: Request) -> VerdictReport:
    """Compare two dumps by their names, or by the sites that these stand for.

    DataError if they have no name and no site in common.
    """
    chosen = None
    if request.map_file is not None:
        chosen = read_map(request.map_file, [*mine], [*reference])
    left, right = locate_sites([*reference]), locate_sites([*mine])
    pairs = {name: (TensorSource(name), TensorSource(name)) for name in reference if name in mine}
    if chosen:
        pairs |= {other: (TensorSource(other), TensorSource(name)) for name, other in chosen.items()}
    elif len(pairs) < min(len(reference), len(mine)):
        pairs = {site: (one, right.sources[site]) for site, one in left.sources.items() if site in right.sources}
    if not pairs:
        names = " and ".join(f"{one.name} has {join_names([*one], 3)}" for one in (reference, mine))
        raise DataError(f"no name or stage in common: {names}; --map FILE or --model DIR brings them together")
    compared = (compare_pair(name, reference, mine, *pair) for name, pair in pairs.items())
    rows = [*until_first(compared, request)]
    if request.all_rows:
        rows += [SiteRow(site, "missing", note="not in the dump") for site in left.sources if site not in pairs]
    known = {source.name for _, source in pairs.values()}
    dtypes = Counter(mine.dtype(source.name) for _, source in pairs.values())
    scheme = (
        f"the names of {right.scheme}" if pairs.keys() <= right.sources.keys() else "--map" if chosen else "their names"
    )
    facts = Facts(
        mine.name,
        names=scheme,
        found=(len(pairs), len(left.sources) if right.scheme else len(reference)),
        unknown=tuple(name for name in mine if name not in known),
        dtype=dtypes.most_common(1)[0][0],
        shows_all=request.all_rows,
    )
    return make_verdict(rows, facts)


def compare_pair(name: str, reference: Dump, mine: Dump, left: TensorSource, right: TensorSource) -> SiteRow:
    """The row of one tensor of two dumps, against the noise of its dtype."""
    wanted = reference[left.name]
    if left.columns is not None:
        wanted = next(layouts.cut_columns(wanted, left.columns)).array
    if wanted.ndim > 4:
        fitted = layouts.Fitted(mine[right.name]) if mine.shape(right.name) == wanted.shape else layouts.Fitted(None)
    else:
        axes = layouts.site_axes(name, wanted.ndim) if wanted.ndim else ()
        fitted = layouts.to_layout(mine[right.name], wanted.shape, axes, right.columns, wanted)
    if fitted.array is None:
        return SiteRow(name, "shape", note=f"shape {mine.shape(right.name)}, expected {wanted.shape}")
    return compare_arrays(name, fitted.array, wanted, mine.dtype(right.name), fitted.finding)


def as_floats(array: Array) -> Array:
    """An array of a site as floats.

    JSON, for one, writes floats that are whole as integers.
    """
    return array.astype(np.float64) if array.dtype.kind in "iub" else array


def mark_kind(row: SiteRow, own: Implementation, dtypes: Counter[str], early: Collection[str]) -> SiteRow:
    """The row of a site whose numbers agree, if its dtype is narrower or it is early."""
    usual, dtype = dtypes.most_common(1)[0][0], own.dump.dtype(own.sources[row.site].name)
    if not row.kind and EPSILON.get(dtype, 0.0) > EPSILON.get(usual, 0.0):
        return replace(row, kind="dtype", note=f"{dtype}, most stages are {usual}")
    return replace(row, kind="reordered") if not row.kind and row.site in early else row


def count_tokens(inputs: Inputs) -> int:
    ids, mask = (inputs.ids, inputs.mask) if inputs.features is None else (inputs.target, inputs.target_mask)
    if ids is None:
        return 0
    return int(ids.size if mask is None else mask.sum())


def match_others(located: Located, mine: Dump, graph: Graph) -> Located:
    """The sites of a dump, those of names that say nothing by value."""
    wanted = Computed(graph, [site for site in graph.nodes if site not in located.sources])
    matches = matching.pair_tensors(mine, wanted, [name for name in located.unknown if mine.dtype(name) in FLOATS])
    by_value = {one.site: TensorSource(one.name, one.columns, describe_match(one)) for one in matches}
    found, used = {**located.sources, **by_value}, {one.name for one in matches}
    unknown = {name: why for name, why in located.unknown.items() if name not in used}
    sources = {site: found[site] for site in (*graph.roots, *graph.nodes) if site in found}
    return replace(located, sources=sources, unknown=unknown)


def describe_match(match: matching.Match) -> str:
    how = f", {match.done}" if match.done else ""
    return f"{match.name} is taken for {match.site} by its values ({100 * match.sureness:.3g} % sure{how})"


class Computed(Mapping[str, Array]):
    """Sites of a graph, each computed when it is asked for."""

    def __init__(self, graph: Graph, sites: Sequence[str]) -> None:
        self.graph, self.sites = graph, sites
        self.memo: dict[str, Array] = {}

    def __getitem__(self, site: str) -> Array:
        return self.graph.evaluate(site, self.graph.roots, memo=self.memo)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)


def until_first(rows: Iterator[SiteRow], request: Request) -> Iterator[SiteRow]:
    """The rows up to the first that differs, or all."""
    for row in rows:
        yield row
        if row.differs and not (request.why or request.all_rows):
            return


def list_notes(mine: Dump, located: Located, own: Implementation, request: Request) -> Iterator[str]:
    """Layouts found by value, guessed pairs, and sites in another order."""
    yield from (f"{site}: {finding}" for site, finding in own.findings.items())
    if request.match:
        yield from (source.note for source in located.sources.values() if source.note)
    if rotates_by_length(own.graph):
        yield "the rotation depends on the length of a text: here each has its own, in transformers that of the longest"
    if problems := find_reordered(mine, located, own):
        first, second = problems[0]
        more = f", and {counted(len(problems) - 1, 'more pair')}" * (len(problems) > 1)
        yield f"reordered: {first} is computed before {second}, which it is made from{more}"


def rotates_by_length(graph: Graph) -> bool:
    """Whether the texts of a padded batch have rotary frequencies of their own.

    Each then has its own length.
    """
    mask = graph.inputs.mask
    if mask is None or not mask.size:
        return False
    lengths = mask.sum(axis=-1)
    shortest, longest = int(lengths.min()), int(lengths.max())
    return shortest < longest and not keeps_cache(graph.core.config, shortest, longest)


def find_reordered(mine: Dump, located: Located, own: Implementation) -> list[tuple[str, str]]:
    """Pairs of sites of an ordered dump: one, and a later one that it reads."""
    if not mine.is_ordered:
        return []
    place = {name: at for at, name in enumerate(mine)}
    late = (".masked", ".weights") if located.scheme == "TransformerLens" else ()  # which it may write after the result
    outputs = [site for site in own if ".input" not in located.sources[site].name and not site.endswith(late)]
    return order_problems(sorted(outputs, key=lambda site: place[located.sources[site].name]), own.graph)
