"""Sweeps of patches: many runs of a model, each with another part of one intermediate replaced, batched.

What a patch does not touch is not computed again. A run begins at the step that is patched, from the states of the run
without patches; in a causal model it has only the tokens from the patched position on, with the keys and values of
those before it. The runs of one position are the rows of a batch, which later steps extend.
"""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import UsageError, suggest
from attnkit.inference import layers
from attnkit.inference.edits import OF_TOKENS
from attnkit.inference.tracer import intermediate_axes
from attnkit.record import Array, join_names

MOST = 8192  # tokens of all rows of a batch, which bounds its memory


class SweepBase(NamedTuple):
    """What a run of a text computes: each array has an axis of one row.

    inputs   of each step, and after the last one its result
    saved    what each step finds saved for its residual
    names    of the intermediates of each step, in order: the last one is its result
    states   the intermediates that match a pattern, by name
    cache    the keys and values of all tokens; None where they cannot be used again
    """

    inputs: list[Array]
    saved: list[Array]
    names: list[list[str]]
    states: dict[str, Array]
    cache: model.KVCache | None


class Scored(NamedTuple):
    """A model, the steps of its first stack, and what its score is.

    head    the parameters of its head, of the scored words alone
    place   the position whose logits are the score
    dtype   to compute in
    target  the id that begins the target of an encoder-decoder model; the logits after it are the score's
    """

    core: model.Model
    steps: list[model.Step]
    head: Mapping[str, Mapping[str, Array]]
    place: int
    dtype: str | None = None
    target: int | None = None

    @property
    def is_causal(self) -> bool:
        """Whether a token attends to none after it."""
        return self.core.config.stack(self.core.config.stacks[0]).causal

    @property
    def is_cached(self) -> bool:
        """Whether the tokens before a patched one stay as they are, with their keys and values."""
        return self.is_causal and model.cacheable(self.core.config)

    def score(self, x: Array, start: int = 0) -> Array:
        """Return the score of hidden states from a position on: the logit of the first word, less that of the second.

        x (B, T, D) -> (B,)
        """
        rows = self.decode(x)[:, -1] if self.target is not None else np.ascontiguousarray(x[:, self.place - start])
        words = model.head_logits(model.Model(self.core.config, self.head), rows)
        score: Array = words[:, 0] - words[:, 1] if words.shape[1] > 1 else words[:, 0]
        return score

    def decode(self, memory: Array) -> Array:
        """Return the states of the decoder at the token that begins the target: memory (B, S, D) -> (B, 1, D)."""
        ids = np.full((len(memory), 1), self.target)
        context = layers.new_context(memory=memory, dtype=self.dtype)
        return model.run(self.core, model.layer_plan(self.core.config, "decoder"), ids, context)


class Patch(NamedTuple):
    """One patch: of an intermediate of a step, whole, or of one head or position.

    start  the first position that the patch may change
    """

    step: int
    name: str
    start: int
    head: int | None
    position: int | None


class PrefixCache(model.KVCache):
    """The keys and values of the first tokens of one text, which every row of a batch attends to."""

    def __init__(self, cache: model.KVCache, length: int) -> None:
        super().__init__()
        self._prefix = {layer: (k[..., :length, :], v[..., :length, :]) for layer, (k, v) in cache}
        self._size = length

    @property
    def length(self) -> int:
        """The number of tokens before those of the batch."""
        return self._size

    def append(self, layer: str, k: Array, v: Array) -> tuple[Array, Array, int]:
        """Return the keys and values of a layer, of the first tokens and of those of the batch; store nothing."""
        pair = zip(self._prefix[layer], (k, v), strict=True)
        keys, values = (
            np.concatenate([np.broadcast_to(one, (len(new), *one.shape[1:])), new], axis=-2) for one, new in pair
        )
        return keys, values, self._size


def run_text(scored: Scored, ids: Array, patterns: Sequence[str]) -> SweepBase:
    """Run a model on one text, ids (T,); keep the intermediates that match patterns, without the axis of rows."""
    record = SweepBase([], [], [], {}, model.KVCache() if scored.is_cached else None)

    def save(name: str, array: Array) -> Array:
        record.states[name] = array[0]
        return array

    def hook(name: str) -> Callable[[Array], Array] | None:
        record.names[-1].append(name)
        is_wanted = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        return partial(save, name) if is_wanted else None

    context = layers.new_context(cache=record.cache, hook=hook, dtype=scored.dtype)
    x = saved = ids[None]
    for step in scored.steps:
        record.inputs.append(x)
        record.saved.append(saved)
        record.names.append([])
        saved = x if step.saves_residual else saved
        x = model.run(scored.core, [step], x, context, saved=saved)
    return record._replace(inputs=[*record.inputs, x], saved=[*record.saved, saved])


def sweep(scored: Scored, base: SweepBase, patches: Sequence[Patch], values: Mapping[str, Array]) -> Array:
    """Return the scores of many runs of a text, each with one patch: (N,).

    base    the run of the text without patches
    values  name -> what the cells of an intermediate are patched with, in its whole shape
    """
    size, scores = base.inputs[0].shape[1], np.empty(len(patches), base.inputs[-1].dtype)
    order = sorted(range(len(patches)), key=lambda at: (patches[at].start, patches[at].step))
    for start, places in groupby(order, key=lambda at: patches[at].start):
        rows = [*places]
        most = max(MOST // (size - start), 1)
        for part in (rows[at : at + most] for at in range(0, len(rows), most)):
            scores[part] = run_patches(scored, base, [patches[at] for at in part], values)
    return scores


def run_patches(scored: Scored, base: SweepBase, patches: Sequence[Patch], values: Mapping[str, Array]) -> Array:
    """Return the scores of runs with patches of one start, in the order of their steps, as rows of one batch: (N,)."""
    start = patches[0].start
    cache = None if base.cache is None else PrefixCache(base.cache, start)
    context = layers.new_context(cache=cache, dtype=scored.dtype)
    x = saved = np.empty((0, 0, 0))
    for number in range(patches[0].step, len(scored.steps)):
        step = scored.steps[number]
        rows, rows_saved = [], []
        if len(x):
            saved = x if step.saves_residual else saved
            rows, rows_saved = [model.run(scored.core, [step], x, context, saved=saved)], [saved]
        for _, group in groupby((one for one in patches if one.step == number), key=lambda one: one.name):
            new = [*group]
            rows.append(apply_patches(scored, base, new, values, context))
            rows_saved.append(np.repeat(base.saved[number + 1][:, start:], len(new), axis=0))
        x, saved = np.concatenate(rows), np.concatenate(rows_saved)
    return scored.score(x, start)


def apply_patches(
    scored: Scored, base: SweepBase, patches: Sequence[Patch], values: Mapping[str, Array], context: model.Context
) -> Array:
    """Return the result of a step with patches of one of its intermediates, a row each: (N, T, D)."""
    number, name, start = patches[0].step, patches[0].name, patches[0].start

    def put(array: Array) -> Array:
        return put_values(array, patches, values[name])

    if name == base.names[number][-1]:
        return put(np.repeat(base.inputs[number + 1][:, start:], len(patches), axis=0))
    x, saved = (
        np.repeat(one[:, start:], len(patches), axis=0) for one in (base.inputs[number], base.saved[number + 1])
    )
    hooked = replace(context, hook=lambda one: put if one == name else None)
    return model.run(scored.core, [scored.steps[number]], x, hooked, saved=saved)


def put_values(array: Array, patches: Sequence[Patch], values: Array) -> Array:
    """Return an intermediate, a row for each patch, with values in the cells of the patch of the row.

    array (N, ...), of the tokens of a pass; values (...), of the whole text
    """
    changed, (head_axis, axis) = array.copy(), find_axes(patches[0].name, values.ndim)
    for row, patch in zip(changed, patches, strict=True):
        cells: list[slice | int] = [slice(None)] * values.ndim
        if patch.head is not None and head_axis is not None:
            cells[head_axis] = patch.head
        source = [*cells]
        if patch.position is not None and axis is not None:
            source[axis] = patch.position
            cells[axis] = patch.position - (values.shape[axis] - row.shape[axis])
        row[tuple(cells)] = values[tuple(source)]
    return changed


def find_axes(name: str, rank: int) -> tuple[int | None, int | None]:
    """Return the axis of the heads of an intermediate of one text and that of its tokens, None where there is none.

    >>> find_axes("decoder.0.self.weights", 3), find_axes("decoder.0.self.v", 3), find_axes("decoder.0.norm1", 2)
    ((0, 1), (0, 1), (None, 0))
    """
    axes = intermediate_axes(name, rank)
    tokens = [at for axis in (*OF_TOKENS, "key") for at, one in enumerate(axes) if one == axis]
    return (axes.index("head") if "head" in axes else None), (tokens[0] if tokens else None)


def list_patches(
    scored: Scored, base: SweepBase, names: Sequence[str], by_head: bool, by_position: bool
) -> tuple[list[Patch], tuple[int, ...]]:
    """Return a patch for each of some intermediates, or for each of its heads and positions, and the shape of all.

    UsageError for an intermediate without heads or tokens, and for different numbers of heads.
    """
    counts = {count_heads(base, name, by_head, by_position) for name in names}
    if len(counts) > 1:
        raise UsageError(f"the intermediates have {join_names([*map(str, sorted(counts))])} heads", "--heads")
    heads = range(*counts) if by_head else [None]
    positions = range(base.inputs[0].shape[1]) if by_position else [None]
    steps = {name: number for number, names in enumerate(base.names) for name in names}
    patches = [
        Patch(steps[name], name, (position or 0) * scored.is_cached, head, position)
        for name in names
        for head in heads
        for position in positions
    ]
    return patches, (len(names), *[len(heads)] * by_head, *[len(positions)] * by_position)


def count_heads(base: SweepBase, name: str, by_head: bool, by_position: bool) -> int:
    """Return how many heads of an intermediate are patched one by one, else 1; UsageError where it has none."""
    shape = base.states[name].shape
    head_axis, axis = find_axes(name, len(shape))
    for flag, kind, lacks in (
        ("--heads", "heads", by_head and head_axis is None),
        ("--positions", "tokens", by_position and axis is None),
    ):
        if lacks:
            raise UsageError(f"{name} {shape} has no axis of {kind}", flag)
    return shape[head_axis] if by_head and head_axis is not None else 1


def match_names(base: SweepBase, pattern: str) -> list[str]:
    """Return the intermediates of a run that fit a shell pattern, in their order; UsageError where none does."""
    names = [*dict.fromkeys(name for names in base.names for name in names)]
    if matches := [name for name in names if name in base.states and fnmatch.fnmatchcase(name, pattern)]:
        return matches
    near = suggest(pattern, names) or f" (it has {join_names(names, 4)})"
    raise UsageError(f"{pattern!r} matches no intermediate of the run{near}", "--patch")
