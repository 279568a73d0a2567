"""The layers of a model for many texts at once, their tokens as the rows of one matrix, without padding."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from attnkit.model.attention import attention, merge_heads, project_heads, with_relative_scores
from attnkit.model.config import Step
from attnkit.model.context import Context, Model
from attnkit.model.dtypes import Array, output_dtype, quiet, working
from attnkit.model.kernels.products import fixed_shapes, row_places
from attnkit.model.linear import linear
from attnkit.model.options import MULTI_HEAD_DEFAULT, MultiHeadOptions
from attnkit.model.rotary import rotate
from attnkit.model.transformer import apply_step, attention_options, run

Groups = list[tuple[int, int]]
PACKED = ("embed", "posenc", "layernorm", "linear", "attend", "ffn")  # operators of each row by itself, and attention
TOGETHER = 1 << 18  # scores of all heads that one call of attention computes, except for a longer text


def can_pack(model: Model, steps: Sequence[Step]) -> bool:
    """Return whether `run_packed` takes these steps: of an encoder of text that is a Transformer, from its ids on.

    Every other model computes its texts one by one: decoders, recurrent layers, and images.
    """
    operators = [step.op for step in steps]
    return operators[:1] == ["embed"] and {*operators} <= {*PACKED} and model.config.fixes_shapes(steps[0].layer)


def run_packed(
    model: Model, steps: Sequence[Step], ids: Sequence[Array], segments: Sequence[Array] | None, dtype: str | None
) -> list[Array] | None:
    """Apply the steps to several texts, not empty ones; None where a result is not finite.

    ids and segments (T,) of each text -> (T, D) of each, with the bits that `run` gives it alone

    Texts of one length should come one after another: attention takes them together. Errors are those of the steps.
    """
    if model.engine:
        return model.engine.run_packed(model, steps, ids, segments, dtype)
    lengths = [len(one) for one in ids]
    places, size = row_places(lengths)
    rows, positions, kinds = (np.zeros(size, np.int64) for _ in range(3))
    for at, place in enumerate(places):
        rows[place], positions[place] = ids[at], np.arange(lengths[at])
        kinds[place] = 0 if segments is None else segments[at]
    flaws: list[str] = []
    context = Context(positions=positions, segment_ids=kinds, dtype=dtype, on_non_finite=flaws.append)
    groups = group_lengths(lengths, model.config.stack(model.config.stacks[0]).heads)
    contexts = {length: Context(dtype=dtype) for length in lengths}  # what layers share is by length
    order = np.concatenate(places)
    apply = partial(apply_packed, order=order, groups=groups, contexts=contexts)
    x = run(model, steps, rows, context, apply)
    return None if flaws else [x[place] for place in places]


def group_lengths(lengths: Sequence[int], heads: int) -> Groups:
    """Return how many texts of which length attention takes together: those of one length that follow one another.

    >>> group_lengths([3, 3, 3, 5], 12), group_lengths([300, 300], 12)
    ([(3, 3), (1, 5)], [(1, 300), (1, 300)])
    """
    groups: Groups = []
    for length in lengths:
        count, last = groups[-1] if groups else (0, 0)
        if length == last and (count + 1) * heads * length * length <= TOGETHER:
            groups[-1] = (count + 1, length)
        else:
            groups.append((1, length))
    return groups


def apply_packed(
    model: Model, step: Step, x: Array, context: Context, *, order: Array, groups: Groups, contexts: dict[int, Context]
) -> Array:
    """Apply the operator of one step to the rows of all texts, (R, D) -> (R, D); attention within each text.

    order     the rows of one text after another
    groups    how many texts of which length attention takes together
    contexts  of a text alone, by its length
    """
    if step.op != "attend":
        with fixed_shapes(is_arranged=True):
            return apply_step(model, step, x, context)
    params = model.params.get(step.layer, {})
    first = attention_options(model, step.layer, 2, Context())
    plain = MULTI_HEAD_DEFAULT.replace(heads=first["heads"], kv_heads=first["kv_heads"])
    with fixed_shapes(is_arranged=True):
        q, k, v, _ = project_heads(x, x, x, params, plain, working(x, *params.values()))  # (H, R, K), (G, R, K), …
    merged = np.zeros((len(x), q.shape[0] * v.shape[-1]), v.dtype)
    start = 0
    for count, length in groups:
        options = MULTI_HEAD_DEFAULT.replace(**attention_options(model, step.layer, length, contexts[length]))
        stop = start + count * length
        texts = [stack_texts(one[:, order[start:stop]], count) for one in (q, k, v)]
        with fixed_shapes():
            merged[order[start:stop]] = merge_heads(attend_texts(texts, options)).reshape(stop - start, -1)
        start = stop
    with fixed_shapes(is_arranged=True):
        output = linear(merged, params.get("wo"), params.get("bo"), names=("heads", "wo", "bo"))
    return output.astype(output_dtype(x), copy=False)


@quiet
def attend_texts(texts: Sequence[Array], options: MultiHeadOptions) -> Array:
    """Return the heads of attention within texts of one length: q, k and v (..., H, T, K) -> (..., H, T, V)."""
    q, k, v = texts
    if options.rotary is not None:
        q, k = rotate(q, *options.rotary), rotate(k, *options.rotary)
    return attention(q, k, v, with_relative_scores(options, q, k), keep=())["heads"]


def stack_texts(x: Array, count: int) -> Array:
    """Split the rows of several texts of one length, (H, B*T, K) -> (B, H, T, K); a single one has no batch axis.

    >>> stack_texts(np.zeros((2, 6, 4)), 3).shape, stack_texts(np.zeros((2, 6, 4)), 1).shape
    ((3, 2, 2, 4), (2, 6, 4))
    """
    if count == 1:
        return x
    return np.swapaxes(x.reshape(x.shape[0], count, x.shape[1] // count, x.shape[2]), 0, 1)
