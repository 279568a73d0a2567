"""Many runs of a model that differ by one patch each, and the score of each run."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import UsageError, suggest
from attnkit.inputs import layers
from attnkit.interpret.edits import OF_TOKENS
from attnkit.interpret.tracer import intermediate_axes
from attnkit.records import Array, join_names

MOST_TOKENS = 8192  # tokens of all rows of a batch, which bounds its memory


class SweepBase(NamedTuple):
    """What a run of a text computes: each array has an axis of one row.

    inputs   of each step, and after the last one its result
    saved    what each step finds saved for its residual
    names    of the intermediates of each step, in order: the last one is its result
    states   the intermediates that match a pattern, by name
    cache    the keys and values of all tokens; None if they cannot be used again
    last     the last states of recurrent layers
    """

    inputs: list[Array]
    saved: list[Array]
    names: list[list[str]]
    states: dict[str, Array]
    cache: model.KVCache | None
    last: Mapping[str, model.State]


class Scored(NamedTuple):
    """A model, the steps of its first stack, and what its score is.

    head    the parameters of its head, of the scored words alone
    place   the position whose logits are the score
    dtype   to compute in
    target  the ids that begin the target of an encoder-decoder model; the logits after them are the score's
    """

    core: model.Model
    steps: list[model.Step]
    head: Mapping[str, Mapping[str, Array]]
    place: int
    dtype: str | None = None
    target: tuple[int, ...] | None = None

    @property
    def is_causal(self) -> bool:
        config = self.core.config
        return config.stack(config.stacks[0]).causal or (config.is_recurrent and config.encoder is None)

    @property
    def is_cached(self) -> bool:
        """Whether tokens before a patched one keep their keys and values."""
        return self.is_causal and model.cacheable(self.core.config) and not self.core.config.carries_states

    def score(self, x: Array, last: Mapping[str, model.State], start: int = 0) -> Array:
        """Score hidden states from a position on, (B, T, D) -> (B,).

        last  the last states of recurrent layers, of each text
        """
        rows = (
            self.decode(x, last)[:, -1] if self.target is not None else np.ascontiguousarray(x[:, self.place - start])
        )
        words = model.head_logits(model.Model(self.core.config, self.head), rows)
        score: Array = words[:, 0] - words[:, 1] if words.shape[1] > 1 else words[:, 0]
        return score

    def decode(self, memory: Array, last: Mapping[str, model.State]) -> Array:
        """Decode the tokens that begin the target: memory (B, S, D) -> (B, T, D)."""
        ids = np.tile(self.target or (), (len(memory), 1))
        context = layers.new_context(memory=memory, dtype=self.dtype, source_states=[*last.values()] or None)
        return model.run(self.core, self.core.config.plan("decoder"), ids, context)


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
    """Keys and values of the first tokens of a text, for every row of a batch."""

    def __init__(self, cache: model.KVCache, length: int) -> None:
        super().__init__()
        self._prefix = {layer: (k[..., :length, :], v[..., :length, :]) for layer, (k, v) in cache}
        self._size = length

    @property
    def length(self) -> int:
        """The number of tokens before the batch."""
        return self._size

    def append(self, layer: str, k: Array, v: Array) -> tuple[Array, Array, int]:
        """Join the keys and values of the prefix and of the batch; store nothing."""
        pair = zip(self._prefix[layer], (k, v), strict=True)
        keys, values = (
            np.concatenate([np.broadcast_to(one, (len(new), *one.shape[1:])), new], axis=-2) for one, new in pair
        )
        return keys, values, self._size


def run_text(scored: Scored, array: Array, patterns: Sequence[str]) -> SweepBase:
    """Run a model on one input; keep the intermediates that match patterns."""
    record = SweepBase([], [], [], {}, model.KVCache() if scored.is_cached else None, {})

    def save(name: str, array: Array) -> Array:
        record.states[name] = array[0]
        return array

    def hook(name: str) -> Callable[[Array], Array] | None:
        record.names[-1].append(name)
        is_wanted = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        return partial(save, name) if is_wanted else None

    context = layers.new_context(cache=record.cache, hook=hook, dtype=scored.dtype)
    x = saved = array[None]
    for step in scored.steps:
        record.inputs.append(x)
        record.saved.append(saved)
        record.names.append([])
        y = model.run(scored.core, [step], x, context, saved=saved)
        x, saved = y, x if step.changes_saved else saved
    return record._replace(inputs=[*record.inputs, x], saved=[*record.saved, saved], last=context.final_states)


def sweep(scored: Scored, base: SweepBase, patches: Sequence[Patch], values: Mapping[str, Array]) -> Array:
    """The scores of many runs of a text, each with one patch: (N,).

    base    the run of the text without patches
    values  name -> what the cells of an intermediate are patched with, in its whole shape
    """
    size, scores = base.inputs[0].shape[1], np.empty(len(patches), base.inputs[-1].dtype)
    order = sorted(range(len(patches)), key=lambda at: (patches[at].start, patches[at].step))
    for start, places in groupby(order, key=lambda at: patches[at].start):
        rows = [*places]
        most = max(MOST_TOKENS // (size - start), 1)
        for part in (rows[at : at + most] for at in range(0, len(rows), most)):
            scores[part] = run_patches(scored, base, [patches[at] for at in part], values)
    return scores


def run_patches(scored: Scored, base: SweepBase, patches: Sequence[Patch], values: Mapping[str, Array]) -> Array:
    """Score runs with patches of one start, in the order of their steps: (N,)."""
    start = patches[0].start
    cache = None if base.cache is None else PrefixCache(base.cache, start)
    context = layers.new_context(cache=cache, dtype=scored.dtype)
    x = saved = np.empty((0, 0, 0))
    last: dict[str, model.State] = {}
    for number in range(patches[0].step, len(scored.steps)):
        step = scored.steps[number]
        rows, rows_saved, context.final_states = [], [], {}
        if len(x):
            rows = [model.run(scored.core, [step], x, context, saved=saved)]
            rows_saved = [x if step.changes_saved else saved]
        for _, group in groupby((one for one in patches if one.step == number), key=lambda one: one.name):
            new = [*group]
            rows.append(apply_patches(scored, base, new, values, context))
            rows_saved.append(np.repeat(base.saved[number + 1][:, start:], len(new), axis=0))
        last = join_states(last | context.final_states, base.last, len(x), sum(map(len, rows)))
        x, saved = np.concatenate(rows), np.concatenate(rows_saved)
    return scored.score(x, last, start)


def join_states(
    states: Mapping[str, model.State], base: Mapping[str, model.State], old: int, rows: int
) -> dict[str, model.State]:
    """The last states of recurrent layers: old rows of a sweep, then new ones.

    New rows repeat the last states of the base.

    A patch changes what a layer hands on, and none of the states within it.
    """

    def join(part: Array, same: Array) -> Array:
        return np.concatenate([part[:old], np.repeat(same, rows - old, axis=0)])

    joined = {}
    for layer, one in base.items():
        hidden, cell = states.get(layer, one)
        whole = None if cell is None or one.cell is None else join(cell, one.cell)
        joined[layer] = model.State(join(hidden, one.hidden), whole)
    return joined


def apply_patches(
    scored: Scored, base: SweepBase, patches: Sequence[Patch], values: Mapping[str, Array], context: model.Context
) -> Array:
    """Run a step with patches of one of its intermediates, a row each: (N, T, D)."""
    number, name, start = patches[0].step, patches[0].name, patches[0].start

    def put(array: Array) -> Array:
        return put_values(array, patches, values[name])

    if name == base.names[number][-1]:
        return put(np.repeat(base.inputs[number + 1][:, start:], len(patches), axis=0))
    x, saved = (np.repeat(one[:, start:], len(patches), axis=0) for one in (base.inputs[number], base.saved[number]))
    hooked = replace(context, hook=lambda one: put if one == name else None)
    return model.run(scored.core, [scored.steps[number]], x, hooked, saved=saved)


def put_values(array: Array, patches: Sequence[Patch], values: Array) -> Array:
    """Put values in the cells of each row's patch of an intermediate.

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
    """The axes of heads and of tokens of an intermediate of one text, or None.

    >>> find_axes("decoder.0.self.weights", 3), find_axes("decoder.0.self.v", 3), find_axes("decoder.0.norm1", 2)
    ((0, 1), (0, 1), (None, 0))
    """
    axes = intermediate_axes(name, rank)
    tokens = [at for axis in (*OF_TOKENS, "key") for at, one in enumerate(axes) if one == axis]
    return (axes.index("head") if "head" in axes else None), (tokens[0] if tokens else None)


def list_patches(
    scored: Scored, base: SweepBase, names: Sequence[str], by_head: bool, by_position: bool
) -> tuple[list[Patch], tuple[int, ...]]:
    """List the patches of intermediates, heads and positions, and their shape.

    UsageError for an intermediate without heads or tokens, and for different numbers of heads.
    """
    heads, positions = (
        range(count_parts(base, names, axis)) if is_wanted else [None]
        for axis, is_wanted in enumerate((by_head, by_position))
    )
    steps = {name: number for number, names in enumerate(base.names) for name in names}
    patches = [
        Patch(steps[name], name, (position or 0) * scored.is_cached, head, position)
        for name in names
        for head in heads
        for position in positions
    ]
    return patches, (len(names), *[len(heads)] * by_head, *[len(positions)] * by_position)


def count_parts(base: SweepBase, names: Sequence[str], which: int) -> int:
    """Count the heads (0) or tokens (1) that are patched one by one."""
    kind, counts = ("heads", "tokens")[which], set[int]()
    flag = ("--heads", "--positions")[which]
    for name in names:
        shape = base.states[name].shape
        axis = find_axes(name, len(shape))[which]
        if axis is None:
            raise UsageError(f"{name} {shape} has no axis of {kind}", flag)
        counts.add(shape[axis])
    if len(counts) > 1:
        raise UsageError(f"the intermediates have {join_names([*map(str, sorted(counts))])} {kind}", flag)
    return counts.pop()


def match_names(base: SweepBase, pattern: str) -> list[str]:
    names = [*dict.fromkeys(name for names in base.names for name in names)]
    if matches := [name for name in names if name in base.states and fnmatch.fnmatchcase(name, pattern)]:
        return matches
    near = suggest(pattern, names) or f" (it has {join_names(names, 4)})"
    raise UsageError(f"{pattern!r} matches no intermediate of the run{near}", "--patch")
