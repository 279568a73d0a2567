"""The verdict: a row for each site of an implementation, with its slips.

A slip explains what a node adds.

A site differs in part because the sites differ that it is computed from, and in part because its own node does. The
node is therefore computed from the implementation's own inputs: what that leaves is `added`, the rest `inherited`.
Noise is measured: the node is computed in float64, and once more in the dtype of the implementation.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from attnkit.debugger.pictures import pixel_noise
from attnkit.debugger.slips import AS_READ, find_numbers, find_slips, join_slips, slips_of
from attnkit.errors import AttnkitError
from attnkit.model.dtypes import Array, quiet
from attnkit.model.formulas.head_views import view_heads
from attnkit.model.graph.graph import CycleError, Graph, Known
from attnkit.model.graph.nodes import Node
from attnkit.model.rounding import EPSILON, MARGIN, ULPS, excess, gap, largest_gap, largest_of_rows, noise_floor
from attnkit.model.slips import Number, Slip

DECISIVE = 100.0  # how many times smaller a named slip leaves the difference
OF_PIXELS = 10.0  # likewise of pixels, which are rounded to grey levels
ALIKE = 4.0  # slips whose remaining differences are within this factor explain it equally
ALONE = " alone)"  # ends the name of a slip of one of the nodes that it could have changed
NEAR = 0.9  # the share of a difference that a slip may leave to be listed as near
FLIPPED = 0.02  # the share of numbers that may be rounded to the other side
OTHER_SIDE = 4.0  # how many times the largest change by rounding such a number may be off
BLOCKED = -1e4  # at most this large, a masked score counts as −∞
MOST_FOUND = 3  # slips found before that are tried together with others
TRIED = 40  # values of a number that are tried before the best is refined
REFINED = 12  # steps that refine it
NUDGE = 1e-5  # of its logarithm, by which its slope is measured
LEAST = 1e-10  # the last step
WIDE = 40  # nodes of a cone from which on only slips of all its layers are tried
APART = 2.0  # how far apart values of a number are told apart
NUDGES = 3  # times that inputs are moved
MEASURED = {"float64": "float32", "fp8-e4m3": "fp8-e4m3:unbounded"}  # dtype -> that in which noise is measured


class Cause(NamedTuple):
    """A slip that may explain a difference, and the largest difference that it leaves."""

    name: str
    remaining: float


@dataclass(frozen=True)
class SiteRow:
    """What is known of one site.

    kind       "" the same, or shape, dtype, not finite, numeric; missing and reordered are no difference
    largest    |mine − reference|, and the cosine of both
    inherited  the largest difference that the inputs of the node bring
    added      the largest difference that the node adds
    noise      the largest difference that rounding explains
    excess     added by noise, row by row: above 1 the node differs
    verdict    "" where nothing is added, otherwise named, undecidable, unknown, or "" without --why
    """

    site: str
    kind: str = ""
    largest: float = np.nan
    cosine: float = np.nan
    inherited: float = np.nan
    added: float = np.nan
    noise: float = np.nan
    excess: float = np.nan
    verdict: str = ""
    causes: tuple[Cause, ...] = ()
    note: str = ""

    @property
    def differs(self) -> bool:
        """Whether the node itself differs, beyond the noise of its dtype."""
        return self.kind not in ("", "missing", "reordered")


class Sites(Protocol):
    """Arrays by site, each read when it is asked for."""

    @property
    def problems(self) -> Mapping[str, str]:
        """Sites whose arrays have no layout of the model's, and why."""

    @property
    def parts(self) -> Mapping[str, slice]:
        """Sites whose arrays have some of the tokens alone, and which."""

    def __contains__(self, site: object, /) -> bool: ...

    def __getitem__(self, site: str, /) -> Array: ...

    def __iter__(self) -> Iterator[str]: ...

    def __len__(self) -> int: ...

    def fit(self, site: str, expected: Array) -> Array | None:
        """The array of a site in the layout nearest to what is expected, or None."""

    def dtype(self, site: str) -> str:
        """The name of the dtype of a site."""

    def digits(self, site: str) -> int:
        """How many significant digits of its numbers are given; 0 for all."""


class Measured(NamedTuple):
    """The expected array of a site, with the noise of each of its rows."""

    expected: Array
    floor: Array


class Nudged(Known):
    """Known arrays with each number moved by a share of itself, up or down."""

    def __init__(self, arrays: Mapping[str, Array], share: float, seed: int) -> None:
        super().__init__(arrays)
        self.share, self.seed = share, seed

    def __getitem__(self, site: str) -> Array:
        array = super().__getitem__(site)
        if array.dtype.kind != "f":
            return array
        signs = np.random.default_rng((self.seed, array.size)).integers(0, 2, array.shape) * 2 - 1
        nudged: Array = array.astype(np.float64) * (1 + self.share * signs)
        return nudged


@dataclass
class Judge:
    """Compares the sites of an implementation with a graph, in order.

    graph      the nodes of the model
    mine       the implementation's arrays
    reference  arrays to compare with in place of those of the graph, where it has them
    favourites  the names of slips that were found, which are tried first
    values     the values that were found of numbers, by their sentence
    fitted     the sentences of numbers that were looked for, each once in a comparison
    not_finite  the sites that no other is computed from
    unread     those of projections whose columns are not found yet, which queries are cut out of by a slip
    """

    graph: Graph
    mine: Sites
    reference: Sites | None = None
    favourites: list[str] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)
    fitted: set[str] = field(default_factory=set)
    not_finite: set[str] = field(default_factory=set)
    unread: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.unread = {site for site in self.graph.nodes if site.endswith("_projected")}

    def rows(self, why: bool) -> Iterator[SiteRow]:
        """The rows of all sites that the implementation has."""
        memo: dict[str, Array] = {}
        last_use = {one: at for at, node in enumerate(self.graph.nodes.values()) for one in node.inputs}
        for at, site in enumerate(self.graph.nodes):
            computed = self.graph.evaluate(site, self.graph.roots, memo=memo)
            if site in self.mine:
                wanted = self.reference.fit(site, computed) if self.reference and site in self.reference else None
                yield self.judge(site, computed if wanted is None else wanted, why)
            if site in self.graph.roots:  # pixels of another shape
                memo[site] = self.graph.roots[site]
            for done in [one for one in memo if last_use.get(one, -1) <= at]:
                del memo[done]

    def judge(self, site: str, wanted: Array, why: bool) -> SiteRow:
        """The row of a site."""
        self.unread.discard(site)
        known = Known(self.graph.roots, self.mine, hidden={site, *self.not_finite, *self.unread})
        base: dict[str, Array] = {}
        measured = self.measure(site, known, base)
        mine = self.mine.fit(site, measured.expected)  # of the same inputs, so that only this node can differ
        if site in self.mine.parts:
            measured = self.measure(site, known, base)
        if mine is None:
            row = SiteRow(site, "shape", note=self.mine.problems[site])
            return self.explain_shape(row, known) if why else row
        own, right, expected = (self.select(site, one) for one in (mine, wanted, measured.expected))
        own = as_blocked(own, expected)
        row = SiteRow(
            site,
            largest=largest_gap(own, right),
            cosine=cosine(own, right),
            inherited=largest_gap(expected, right),
            added=largest_gap(own, expected),
            noise=float(measured.floor.max(initial=0)),
        )
        bad = (np.isnan(own) if site.endswith(".masked") else ~np.isfinite(own)) & np.isfinite(expected)
        if bad.any():
            self.not_finite.add(site)
            at, column = np.argwhere(bad)[0]
            return replace(row, kind="not finite", note=f"{own[at, column]} in row {at}, column {column}")
        row = replace(row, excess=excess(own, expected, measured.floor))
        if row.excess > 1:  # unless rounding is worse there than it was measured: differences of what is nearly equal
            measured = self.measure(site, known, base, nudges=True)
            row = replace(row, excess=excess(own, expected, measured.floor), noise=float(measured.floor.max(initial=0)))
        row = replace(row, kind="numeric" if row.excess > 1 else "")
        return self.explain(row, own, measured, known, base) if why and row.kind else row

    def measure(
        self,
        site: str,
        known: Mapping[str, Array],
        memo: dict[str, Array],
        changes: Mapping[str, Node] | None = None,
        nudges: bool = False,
    ) -> Measured:
        """Compute a site in float64 and in the dtype of the implementation.

        nudges  whether what the inputs leave open counts as noise, each of them off by half a unit in the last place
        """
        dtype = self.mine.dtype(site)
        expected = self.graph.evaluate(site, known, changes, memo=memo)
        narrow = self.graph.evaluate(site, known, changes, precision=MEASURED.get(dtype, dtype))
        scale = largest_of_rows(self.select(site, expected))
        node = (changes or {}).get(site, self.graph.nodes[site])
        if node.kind == "activate":  # 1 + erf(x) and its like cancel where x is far below 0
            read = self.graph.evaluate(node.inputs[0], known, changes, memo=memo)
            scale = np.maximum(scale, largest_of_rows(self.select(site, read)))
        norm = node.options.get("norm")  # of heads
        is_of_rows = node.kind in ("norm", "norm of heads")
        if is_of_rows and "layer" in (norm.kind if norm else "", node.options.get("kind")):
            arrays = [self.graph.evaluate(one, known, changes, memo=memo) for one in node.inputs]
            read = sum(arrays[1:], arrays[0])
            read = view_heads(read, node.options["heads"]) if read.ndim < expected.ndim else read
            scale = scale * cancellation(self.select(site, read))
        floor = noise_floor(self.select(site, expected), self.select(site, narrow), dtype, scale)
        if node.kind == "pixels":
            floor = (
                floor
                + ULPS * EPSILON[dtype] * scale.max()
                + pixel_noise(node.options["picture"], **node.options.get("preparation", {}))
            )
        if nudges:
            unit = EPSILON.get(dtype, EPSILON["float32"]) / 2
            for seed in range(NUDGES):
                nudged = self.select(site, self.graph.evaluate(site, Nudged(known, unit, seed), changes))
                floor = np.maximum(floor, noise_floor(self.select(site, expected), nudged, dtype, scale))
        if digits := self.mine.digits(site):  # which its inputs were printed with too
            floor = floor + MARGIN * 10.0**-digits * scale[:, None]
        return Measured(expected, floor)

    def select(self, site: str, array: Array) -> Array:
        """The rows of a site that the implementation has, without padding.

        (..., N) -> (rows, N)
        """
        config, stack = self.graph.core.config, site.partition(".")[0]
        _, mask = self.graph.inputs.of(stack if stack in config.stacks else config.stacks[-1], config)
        if site.endswith(".chosen"):  # in any order
            array = np.sort(array, axis=-1)
        part = self.mine.parts.get(site, slice(None))
        if array.ndim == 3:
            array, mask = array[:, part], mask if mask is None else mask[:, part]
        return rows_of_tokens(array, mask)

    def explain(
        self, row: SiteRow, own: Array, measured: Measured, known: Mapping[str, Array], base: Mapping[str, Array]
    ) -> SiteRow:
        """Try the slips that can occur between a site and its inputs."""
        expected = self.select(row.site, measured.expected)
        found: list[Cause] = []
        doubtful: list[Cause] = []
        others: list[Cause] = []
        if cause := self.find_dropout(row.site, own, measured, known):
            found.append(cause)
        slips = self.order_slips(row.site, known)
        fitted = itertools.chain(
            self.fit_slips(row.site, measured, known, found),
            self.fit_numbers(row, own, measured, known, base, (found, doubtful)),
        )
        for slip in itertools.chain(slips, fitted, self.join_found(slips, found, doubtful)):
            tried = self.attempt(row.site, slip, known, base)
            if tried is None or tried.shape != expected.shape or np.array_equal(tried, expected):
                continue
            blocked = as_blocked(own, tried)
            if " rounded to " in slip.name:
                blocked = without_flipped(blocked, tried, expected)
            cause = Cause(slip.name.removesuffix(AS_READ), largest_gap(blocked, tried))
            if not cause.remaining < row.added:
                continue
            within = self.is_within(row, slip, tried, blocked, known, measured, cause)
            if within == 2 and slip.number and not self.is_exact(row, slip, own, known, measured, base):
                within = 1
            (others, doubtful, found)[within].append(cause)
            if within == 2 and slip.name in self.favourites:
                break
        return self.conclude(row, found, doubtful, others)

    def explain_shape(self, row: SiteRow, known: Mapping[str, Array]) -> SiteRow:
        """Try the slips that give a site the shape that the implementation has."""
        for slip in self.order_slips(row.site, known):
            tried = self.compute(row.site, slip, known, {})
            if tried is None or tried.shape == self.graph.nodes[row.site].shape:
                continue
            mine = self.mine.fit(row.site, tried)
            if mine is None:
                continue
            measured = self.measure(row.site, known, {}, slip.changes)
            own, expected = (self.select(row.site, one) for one in (mine, measured.expected))
            if excess(own, expected, measured.floor) <= 1:
                self.favourites += [slip.name] * (slip.name not in self.favourites)
                return replace(row, verdict="named", causes=(Cause(slip.name, largest_gap(own, expected)),))
        return row

    def fit_slips(
        self, site: str, measured: Measured, known: Mapping[str, Array], found: Sequence[Cause]
    ) -> Iterator[Slip[Node]]:
        """The slips whose options follow from a site's numbers, if no other explains it."""
        if found:
            return
        for node in self.graph.cone(site, known):
            fit = slips_of(node).fit
            if fit is None or not (node.site == site or node.site in self.graph.nodes[site].inputs):
                continue
            reads = [known[one] if one in known else self.graph.evaluate(one, known) for one in node.inputs]
            result = measured.expected if node.site == site else self.graph.evaluate(node.site, known)
            result, noise = result + (self.mine[site] - measured.expected), float(measured.floor.max(initial=0))
            for name, changed in fit(self.graph, node, reads, result, noise):
                yield Slip(name, {node.site: changed})

    def join_found(
        self, slips: Sequence[Slip[Node]], found: Sequence[Cause], doubtful: Sequence[Cause]
    ) -> Iterator[Slip[Node]]:
        """Each slip with each that was found before, if none alone explains it."""
        if found or doubtful:
            return
        before = [slip for slip in slips if slip.name in self.favourites and " and " not in slip.name]
        for one, other in itertools.product(before[:MOST_FOUND], slips):
            if one is not other and not other.name.endswith(ALONE):
                yield join_slips(self.graph, one, other)

    def fit_numbers(
        self,
        row: SiteRow,
        own: Array,
        measured: Measured,
        known: Mapping[str, Array],
        base: Mapping[str, Array],
        explained: tuple[Sequence[Cause], Sequence[Cause]],
    ) -> Iterator[Slip[Node]]:
        """The slips of numbers with the nearest value, if no other slip explains it."""
        cone = self.graph.cone(row.site, known)
        for number in find_numbers(self.graph, cone) if len(cone) <= WIDE else ():
            if any(explained):
                return
            if number.sentence in self.fitted:
                continue
            self.fitted.add(number.sentence)

            @quiet
            def residual(logarithm: float, number: Number[Node] = number) -> Array:
                tried = self.attempt(row.site, number.slip(float(np.exp(logarithm))), known, base)
                if tried is None:
                    return np.full_like(own, np.inf)
                difference: Array = tried - as_blocked(own, tried)
                return np.where(np.isfinite(difference), difference, 0.0)

            if (value := nearest_value(residual, number, measured.floor)) is not None:
                self.values[number.sentence] = value
                yield number.slip(value)

    def find_dropout(self, site: str, own: Array, measured: Measured, known: Mapping[str, Array]) -> Cause | None:
        """The slip of dropout on a site, or on the first of the terms that it adds."""
        expected, node = self.select(site, measured.expected), self.graph.nodes[site]
        if node.kind != "add":
            return explain_dropout(own, expected, measured.floor)
        term = self.select(site, self.graph.evaluate(node.inputs[0], known))
        return explain_dropout(own - (expected - term), term, measured.floor)

    def is_within(
        self,
        row: SiteRow,
        slip: Slip[Node],
        tried: Array,
        own: Array,
        known: Mapping[str, Array],
        measured: Measured,
        cause: Cause,
    ) -> int:
        """How well a slip explains a difference: 2 decisively, 1 within the noise, 0 not."""
        scale = np.maximum(largest_of_rows(tried), 1e-300) / np.maximum(
            largest_of_rows(self.select(row.site, measured.expected)), 1e-300
        )
        rough = measured.floor * np.maximum(scale, 1)[:, None]
        if row.site not in ("pixels", "spectrogram") and excess(own, tried, 4 * rough) > 1:
            return 0
        floor = self.measure(row.site, known, {}, slip.changes, nudges=True).floor
        if excess(own, tried, floor) > 1:
            return 0
        decisive = OF_PIXELS if row.site == "pixels" else DECISIVE
        return 2 if cause.remaining * decisive <= row.added else 1

    def is_exact(
        self,
        row: SiteRow,
        slip: Slip[Node],
        own: Array,
        known: Mapping[str, Array],
        measured: Measured,
        base: Mapping[str, Array],
    ) -> bool:
        """Whether the value of a number explains a difference, and no other near it."""
        assert slip.number is not None
        is_published = slip.value in slip.number.published
        if self.mine.dtype(row.site) not in ("float32", "float64") and not is_published:
            return False  # which would be one of many values
        for other in (slip.value / APART, slip.value * APART):
            near = slip.number.slip(other)
            tried = self.attempt(row.site, near, known, base)
            if tried is None:
                continue
            cause = Cause(near.name, largest_gap(as_blocked(own, tried), tried))
            if self.is_within(row, near, tried, as_blocked(own, tried), known, measured, cause):
                return False
        return True

    def conclude(self, row: SiteRow, found: list[Cause], doubtful: list[Cause], others: list[Cause]) -> SiteRow:
        """The verdict from slips that explain a difference decisively, or in part."""
        if found:
            best = min(cause.remaining for cause in found)
            limit = max(ALIKE * best, row.noise / MARGIN)
            equal = [cause for cause in found if cause.remaining <= limit]
            whole = [cause for cause in equal if not cause.name.endswith(ALONE)]
            named = tuple(sorted(whole or equal, key=lambda one: one.remaining))
            self.favourites += [cause.name for cause in named if cause.name not in self.favourites]
            return replace(row, verdict="named", causes=named)
        if doubtful or row.added < DECISIVE * row.noise / MARGIN:
            return replace(row, verdict="undecidable", causes=tuple(sorted(doubtful, key=lambda one: one.remaining)))
        near = [cause for cause in others if cause.remaining <= NEAR * row.added]
        nearest = sorted(near, key=lambda one: one.remaining)[:3]
        return replace(row, verdict="unknown", causes=tuple(nearest))

    def order_slips(self, site: str, known: Mapping[str, Array]) -> list[Slip[Node]]:
        """The slips between a site and its inputs, those that were named before first."""
        cone = self.graph.cone(site, known)
        slips = find_slips(self.graph, cone, self.mine.dtype(site), self.favourites)
        slips += [
            number.slip(self.values[number.sentence])
            for number in find_numbers(self.graph, cone)
            if number.sentence in self.values
        ]
        if len(cone) <= WIDE:
            slips += [
                Slip(f"{slip.name} ({one}{ALONE}", {one: node})
                for slip in slips
                if len(slip.changes) > 1
                for one, node in slip.changes.items()
            ]
        return drop_same(sorted(slips, key=lambda slip: slip.name not in self.favourites))

    def attempt(
        self, site: str, slip: Slip[Node], known: Mapping[str, Array], base: Mapping[str, Array]
    ) -> Array | None:
        """Compute a site with a slip; None if the slip cannot be computed there."""
        tried = self.compute(site, slip, known, base)
        return None if tried is None or tried.shape != self.graph.nodes[site].shape else self.select(site, tried)

    def compute(
        self, site: str, slip: Slip[Node], known: Mapping[str, Array], base: Mapping[str, Array]
    ) -> Array | None:
        """The whole array of a site with a slip.

        None if the slip cannot be computed there.
        """
        affected: set[str] = set()
        for node in self.graph.cone(site, known):
            changed = slip.changes.get(node.site, node)
            if node.site in slip.changes or any(one in affected and one not in known for one in changed.inputs):
                affected.add(node.site)
        memo = {one: array for one, array in base.items() if one not in affected}
        try:
            return self.graph.evaluate(site, known, slip.changes, memo=memo)
        except (AttnkitError, CycleError, ValueError, IndexError, KeyError):
            return None


def drop_same(slips: Sequence[Slip[Node]]) -> list[Slip[Node]]:
    """The slips without those that change the same nodes in the same way."""
    found: dict[frozenset[tuple[str, int]], Slip[Node]] = {}
    for slip in slips:
        found.setdefault(frozenset((site, id(node)) for site, node in slip.changes.items()), slip)
    return [*found.values()]


@quiet
def nearest_value(residual: Callable[[float], Array], number: Number[Any], floor: Array) -> float | None:
    """The value of a number that leaves the least, in as few digits as noise allows.

    None if it changes nothing.

    residual  what a logarithm of the number leaves: (rows, N), infinite where it cannot be computed
    floor     the noise of each row

    >>> doubled = Number("{} times", {}, 1.0, (0.01, 100.0))
    >>> x, y = np.array([[1.0, 3.0]]), np.array([[2.5, 7.5]])
    >>> nearest_value(lambda logarithm: np.exp(logarithm) * x - y, doubled, np.array([1e-6]))
    2.5
    """

    def loss(logarithm: float) -> float:
        return float(np.abs(residual(logarithm)).mean())

    first, last = np.log(number.range)
    spacing = (last - first) / (TRIED - 1)
    best = min((float(first + at * spacing) for at in range(TRIED)), key=loss)
    for _ in range(REFINED):  # Gauss and Newton's steps, halved while they lead away
        left = residual(best)
        slope = (residual(best + NUDGE) - left) / NUDGE
        if not np.isfinite(slope).all() or not slope.any():
            return None
        step = float(np.clip(-np.vdot(slope, left) / np.vdot(slope, slope), -spacing, spacing))
        while abs(step) > LEAST and loss(best + step) > loss(best):
            step /= 2
        best += step
        if abs(step) <= LEAST:
            break
    value, worth = float(np.exp(best)), float((np.abs(slope) / floor).max())
    fewer = (float(f"{value:.{digits}g}") for digits in range(1, 7))
    return next((one for one in fewer if 2 * worth * abs(np.log(one) - best) <= 1), value)


def compare_arrays(name: str, mine: Array, wanted: Array, dtype: str, note: str = "") -> SiteRow:
    """The row of two arrays of one shape, against the rounding of their dtype."""
    own, right = rows_of_tokens(np.atleast_1d(mine), None), rows_of_tokens(np.atleast_1d(wanted), None)
    own = as_blocked(own, right)
    floor = np.asarray(ULPS * EPSILON.get(dtype, 0.0) * largest_of_rows(right) + 1e-300)[:, None]
    row = SiteRow(
        name, largest=largest_gap(own, right), cosine=cosine(own, right), noise=float(floor.max(initial=0)), note=note
    )
    row = replace(row, added=row.largest, excess=excess(own, right, floor))
    if (np.isnan(own) & ~np.isnan(right)).any():
        return replace(row, kind="not finite", note="NaN in it")
    return replace(row, kind="numeric" if row.excess > 1 else "")


def rows_of_tokens(array: Array, mask: Array | None) -> Array:
    """The rows of real tokens as a matrix: (B, T, N) or (B, H, T, N) -> (rows, N).

    mask (B, T), True = a token, no padding; None: all

    >>> rows_of_tokens(np.arange(4.0).reshape(1, 2, 2), np.array([[True, False]])).tolist()
    [[0.0, 1.0]]
    """
    if mask is not None and array.ndim in (3, 4):
        rows = array if array.ndim == 3 else np.swapaxes(array, 1, 2)
        if rows.shape[:2] == mask.shape:
            array = rows[mask]
    return np.ascontiguousarray(array, np.float64).reshape(math.prod(array.shape[:-1]), array.shape[-1])


def rank_below(x: Array, share: float) -> Array:
    """Which numbers are not among a share of the largest: (...) -> (...)."""
    result: Array = x <= np.quantile(x, 1 - share, method="lower")
    return result


def without_flipped(mine: Array, rounded: Array, exact: Array) -> Array:
    """Mine without the few numbers that were rounded to the other side.

    They are near the middle between two, and off by about as much as rounding changes any number; what is further off
    has another cause.

    >>> without_flipped(np.array([0.5, 1.0, 9.0]), np.array([1.0, 1.0, 1.0]), np.array([0.8, 1.0, 1.0])).tolist()
    [0.5, 1.0, 9.0]
    >>> without_flipped(np.array([0.5, 1.0, 1.0]), np.array([1.0, 1.0, 1.0]), np.array([0.8, 1.0, 1.0])).tolist()
    [1.0, 1.0, 1.0]
    """
    off = gap(mine, rounded)
    flipped = ~rank_below(off, FLIPPED) & (off <= OTHER_SIDE * largest_gap(rounded, exact))
    return np.where(flipped, rounded, mine)


@quiet
def cosine(x: Array, y: Array) -> float:
    """The cosine similarity of two tensors as vectors, without infinities."""
    both = np.isfinite(x) & np.isfinite(y)
    left, right = x[both], y[both]
    norms = float(np.sqrt((left @ left) * (right @ right)))
    return float(np.clip(left @ right / norms, -1, 1)) if norms else 1.0


def as_blocked(mine: Array, expected: Array) -> Array:
    """Masked scores with −∞ in place of a large negative number.

    >>> as_blocked(np.array([-1e9, 1.0]), np.array([-np.inf, 1.0])).tolist()
    [-inf, 1.0]
    """
    return np.where(np.isneginf(expected) & (mine <= BLOCKED), -np.inf, mine)


@quiet
def cancellation(x: Array) -> Array:
    """How many times rounding grows where the mean is subtracted.

    (rows, N) -> (rows,)

    >>> cancellation(np.array([[99.0, 101.0], [-1.0, 1.0]])).tolist()
    [101.0, 1.0]
    """
    return np.maximum(largest_of_rows(x) / largest_of_rows(x - x.mean(axis=-1, keepdims=True)), 1.0)


@quiet
def explain_dropout(own: Array, expected: Array, floor: Array) -> Cause | None:
    """Dropout that is left on: some numbers are 0, the others multiplied."""
    strong = np.isfinite(expected) & (np.abs(expected) > 8 * floor)
    dropped = strong & (np.abs(own) <= floor)
    kept = strong & ~dropped
    share = dropped.sum() / max(strong.sum(), 1)
    if not 0.01 < share < 0.9 or kept.sum() < 4:
        return None
    factor = float(np.median(own[kept] / expected[kept]))
    explained = np.where(np.abs(own) <= floor, 0.0, factor * expected)
    if abs(factor * (1 - share) - 1) > 0.35 or not factor > 1 or excess(own, explained, factor * floor) > 1:
        return None
    return Cause(f"dropout is left on (p ≈ {1 - 1 / factor:.2g})", largest_gap(own, explained))


def order_problems(sites: Sequence[str], graph: Graph) -> list[tuple[str, str]]:
    """Pairs of sites recorded in another order than they are computed in.

    sites  in the order of their recording
    """
    place = {site: at for at, site in enumerate(sites)}
    problems = []
    for site, node in graph.nodes.items():
        problems += [(site, one) for one in node.inputs if site in place and one in place and place[one] > place[site]]
    return problems
