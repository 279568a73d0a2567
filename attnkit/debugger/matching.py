"""Pair unnamed tensors with the sites of a reference by size and value.

Tensors of one size are first compared by fingerprints that no order of axes changes, then the nearest of them number by
number. One tensor of each side is in memory at a time.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from attnkit.debugger.layouts import distance, site_axes, to_layout
from attnkit.debugger.modules import Columns
from attnkit.model.dtypes import Array

Print = tuple[int, Array]  # the size of a tensor, and numbers that no order of axes changes

NEAREST = 4  # tensors of a size that are compared number by number with a site
QUANTILES = 65  # numbers of a fingerprint
FARTHEST = 0.9  # distance of the farthest pair, relative to the norm; a tensor of zeros has 1
# dtype -> the distance that rounding alone explains; a node that accumulates errors is farther
NOISE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


class Match(NamedTuple):
    """A tensor of a dump and the site that it is taken for.

    distance  relative to the norm of the site; the largest of queries, keys and values of one tensor
    sureness  1 - the ratio of this distance and that of the second-best tensor; 1 if rounding explains the difference
    done      how the tensor was brought to the layout of the site
    columns   of a tensor that holds queries, keys and values, as in `TensorSource`
    """

    site: str
    name: str
    distance: float
    sureness: float
    done: str = ""
    columns: Columns | None = None


def pair_tensors(mine: Mapping[str, Array], reference: Mapping[str, Array], names: Iterable[str]) -> list[Match]:
    """Pair tensors of a dump with sites of a reference, the sites in their order.

    mine, reference  name or site -> array, read when it is asked for
    names            of the tensors that may be paired

    No tensor is paired twice, nor with a site that is farther from it than from zeros.

    >>> reference = {"decoder.0.norm1": np.ones((1, 2, 3)), "decoder.1.norm1": np.array([[[1.0, 2, 3], [4, 5, 6]]])}
    >>> mine = {"b": np.array([[1.0, 2, 3], [4, 5, 6]]), "a": np.ones((2, 3)), "c": np.ones(7)}
    >>> [(match.name, match.site, match.sureness) for match in pair_tensors(mine, reference, mine)]
    [('a', 'decoder.0.norm1', 1.0), ('b', 'decoder.1.norm1', 1.0)]
    """
    prints = {name: _fingerprint(mine[name]) for name in names}
    found: list[Match] = []
    for site in reference:
        expected = reference[site]
        size, numbers = _fingerprint(expected)
        apart = {
            name: float(np.linalg.norm(other - numbers)) for name, (count, other) in prints.items() if count == size
        }
        found += _compare(mine, site, expected, sorted(apart, key=apart.__getitem__)[:NEAREST], prints)
    chosen = _choose(found, list(reference))
    used = {match.name for match in chosen}
    fused = _match_fused(mine, reference, {name: one[0] for name, one in prints.items() if name not in used}, chosen)
    order = {site: at for at, site in enumerate(reference)}
    return sorted([*chosen, *fused], key=lambda match: order[match.site])


def _match_fused(
    mine: Mapping[str, Array], reference: Mapping[str, Array], sizes: dict[str, int], chosen: Iterable[Match]
) -> list[Match]:
    """Tensors that hold the queries, keys and values of a layer without a pair.

    sizes  of the tensors that are left
    """
    paired, found = {match.site for match in chosen}, list[Match]()
    for first in [site for site in reference if site.endswith(".q_projected")]:
        sites = [first.replace("q_projected", f"{letter}_projected") for letter in "qkv"]
        if paired & {*sites} or not {*sites} <= {*reference}:
            continue
        parts = [reference[site] for site in sites]
        widths = [part.shape[-1] for part in parts]
        unit, ends = math.gcd(*widths), [sum(widths[:at]) for at in range(4)]
        columns = [(ends[at] // unit, ends[at + 1] // unit, ends[3] // unit) for at in range(3)]
        near = []
        for name in [name for name, size in sizes.items() if size == sum(part.size for part in parts)]:
            array = mine[name]
            fits = [
                to_layout(array, part.shape, site_axes(site, part.ndim), cut, part)
                for site, part, cut in zip(sites, parts, columns, strict=True)
            ]
            apart = [distance(fit.array, part) for fit, part in zip(fits, parts, strict=True) if fit.array is not None]
            near += [(max(apart), name, NOISE[_precision(array)])] if len(apart) == 3 else []
        near.sort()
        if near and near[0][0] < FARTHEST:
            (least, name, noise), second = near[0], near[1][0] if len(near) > 1 else 1.0
            sureness = 1.0 if least <= noise else max(0.0, 1 - least / second)
            found += [Match(site, name, least, sureness, "", cut) for site, cut in zip(sites, columns, strict=True)]
            del sizes[name]
    return found


def _compare(
    mine: Mapping[str, Array], site: str, expected: Array, names: Iterable[str], prints: Mapping[str, Print]
) -> list[Match]:
    """The tensors near a site, each with its distance, the nearest first."""
    found, noise = list[Match](), dict[str, float]()
    for name in names:
        array = mine[name]
        fitted = to_layout(array, expected.shape, site_axes(site, expected.ndim), expected=expected)
        noise[name] = NOISE[_precision(array)]
        if fitted.array is not None:
            found.append(Match(site, name, distance(fitted.array, expected), 0.0, fitted.done))
    found.sort(key=lambda match: match.distance)
    best = prints[found[0].name][1] if found else np.zeros(0)
    others = [match.distance for match in found if not np.allclose(prints[match.name][1], best)]
    second = max(min(others, default=1.0), np.finfo(float).tiny)
    return [
        match._replace(sureness=1.0 if match.distance <= noise[match.name] else max(0.0, 1 - match.distance / second))
        for match in found
        if match.distance < FARTHEST
    ]


def _choose(found: list[Match], order: list[str]) -> list[Match]:
    """The nearest pairs, in which no tensor and no site occurs twice."""
    nearest = sorted(found, key=lambda one: (one.sureness < 1, float(f"{one.distance:.3g}"), one.done != ""))
    of_site, of_name = ({one[at]: one for one in reversed(nearest)} for at in (0, 1))
    chosen: dict[str, Match] = {}
    used: set[str] = set()
    for match in nearest:
        is_mutual = of_site[match.site] is match and of_name[match.name] is match and match.sureness > 0
        if (match.sureness == 1 or is_mutual) and match.site not in chosen and match.name not in used:
            chosen[match.site] = match
            used.add(match.name)
    return [chosen[site] for site in order if site in chosen]


def _fingerprint(array: Array) -> Print:
    """The size of a tensor, and figures of its finite numbers."""
    numbers = array.astype(np.float64).ravel()
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return array.size, np.zeros(QUANTILES + 2)
    spread = np.quantile(numbers, np.linspace(0, 1, QUANTILES))
    scale = np.sqrt(np.mean(np.square(numbers)))
    return array.size, np.concatenate([spread, [numbers.mean(), scale]])


def _precision(array: Array) -> str:
    """The dtype in which numbers were computed: bfloat16 if they need no more bits.

    >>> _precision(np.array([1.5], np.float32)), _precision(np.array([1.1], np.float32))
    ('bfloat16', 'float32')
    """
    if array.dtype == np.float32 and not (np.ascontiguousarray(array).view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    return array.dtype.name if array.dtype.name in NOISE else "float32"
