"""The logit lens: the words that the head reads in the state of each layer."""

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitError, AttnkitWarning, DataError, UsageError, counted
from attnkit.inputs import layers, text_inputs
from attnkit.inputs.detokenizer import Detokenizer
from attnkit.model.dtypes import quiet
from attnkit.model.formulas.norms import layer_norm, rms_norm
from attnkit.model.parameters import MIXERS
from attnkit.records import Array, Record, Tensor, join_names, row_labels
from attnkit.tokenizers import PADDING, Tokens

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


TOLERANCE = 1e-3  # of the logits of a trace, beside those of its last state: more is another model


def apply_lens(record: Record, checkpoint: "Checkpoint", top: int, position: int | None) -> Record:
    """The likeliest words of each layer's state: x (layer, token, rank) and `ids`.

    A trace of a batch has an axis more in front. The labels under `ids` are the words: a list for each state.

    position  the only token of each text, from its end if it is negative; None: all

    The state of each layer is normalized by the norm after the last layer, if the model has one, and the head
    applied: the row of the last layer is what the model predicts. DataError if the trace does not hold the states
    of this model, UsageError for a model without a head of words.
    """
    core, stack = layers.core_model(checkpoint), find_stack(checkpoint)
    layer_states = read_trace_states(record, checkpoint.config.head_states(stack), checkpoint)
    places = None if position is None else text_positions(record, next(iter(layer_states.values())).shape, position)
    ids, shares = [], []
    for states in layer_states.values():
        logits = state_logits(core, stack, take_places(states, places))
        likeliest = model.candidates(model.probabilities(logits), min(top, logits.shape[-1]))
        ids.append(likeliest[0])
        shares.append(likeliest[1])
    compare_logits(record, logits, places)
    lead = ("batch",)[: ids[0].ndim - 2]
    axes = (*lead, "layer", "token", "rank")
    stacked = np.stack(ids, axis=len(lead))
    labels: dict[str, Any] = {"layer": [*layer_states]}
    if tokens := record.labels.get("token"):
        if places is None:
            labels["token"] = tokens
        elif isinstance(tokens[0], str):
            labels["token"] = [tokens[places[0]]] if len({*places}) == 1 else [[tokens[at]] for at in places]
        else:
            labels["token"] = [[row[at]] for row, at in zip(tokens, places, strict=True)]
    if places is not None:
        labels["position"] = [[str(at)] for at in places] if lead else [str(places[0])]
    if words := find_words(checkpoint).words():
        labels["ids"] = [[words[id] for id in row] for row in stacked.reshape(-1, stacked.shape[-1]).tolist()]
    x = Tensor(np.stack(shares, axis=len(lead)), axes, formula="softmax(head(norm(state of a layer)))")
    return Record({"x": x, "ids": Tensor(stacked, axes)}, history=record.history).with_tensors({}, labels)


def find_stack(checkpoint: "Checkpoint") -> str:
    config = checkpoint.config
    stack = config.stacks[-1]
    if not config.head or config.classes or not (config.stack(stack).vocab or config.frame_labels):
        raise UsageError(f"this {config.family} model has no head that gives words", "--model")
    if len(config.head_states(stack)) < 2:
        widths = f"no state of its layers is as wide as what its head reads, {config.width}"
        raise UsageError(f"this {config.family} model is recurrent, and {widths}", "--model")
    return stack


def read_trace_states(record: Record, names: Mapping[str, str], checkpoint: "Checkpoint") -> dict[str, Array]:
    """The states of a trace by layer, (T, D) or (B, T, D)."""
    width = checkpoint.config.width
    for name in names.values():
        if name not in record:
            runs = "decode" if checkpoint.config.encoder and checkpoint.config.decoder else "encode or decode"
            hint = f"{runs} --trace FILE keeps all states"
            raise DataError(f"no {name}, which the model has (it has {join_names(record.tensors, 4)}); {hint}")
        states = record[name]
        if states.ndim not in (2, 3) or states.shape[-1] != width or states.dtype.kind != "f":
            expected = f"expected (T, {width}) or (B, T, {width}), the width of the model"
            raise DataError.about(name, f"{states.dtype} {states.shape}: {expected}")
    first = next(iter(names.values()))
    for name in names.values():
        if record[name].shape != record[first].shape or not record[name].size:
            problem = f"expected the shape of {first} {record[first].shape}, of at least one token"
            raise DataError.about(name, f"{record[name].shape}: {problem}")
    return {layer: record[name] for layer, name in names.items()}


def state_logits(core: "model.Model", stack: str, states: Array) -> Array:
    if core.config.stack(stack).final_norm:
        states = model.normalize(core, f"{stack}.norm", states).y
    return model.head_logits(core, states)


def text_positions(record: Record, shape: tuple[int, ...], position: int) -> list[int]:
    """A position of each text of states (T, D) or (B, T, D), from 0.

    >>> text_positions(Record({}, {"token": [["a", "[PAD]"], ["a", "b"]]}), (2, 2, 8), -1)
    [0, 1]
    """
    places = []
    for row in range(shape[0] if len(shape) == 3 else 1):
        size = text_size(record, row, shape[-2])
        if not -size <= position < size:
            text = f"text {row} of the batch" if len(shape) == 3 else "the trace"
            raise UsageError(f"{position}: {text} has positions 0 to {size - 1}", "--position")
        places.append(position % size)
    return places


def text_size(record: Record, row: int, tokens: int) -> int:
    """How many tokens a text has in its row of a batch, without padding at its end.

    >>> text_size(Record({}, {"token": [["<pad>", "a", "<pad>"]]}), 0, 3), text_size(Record({}), 0, 3)
    (2, 3)
    """
    labels = record.labels.get("token")
    is_batch = labels and not isinstance(labels[0], str)
    words = row_labels(labels, row) if is_batch else []
    return max((at + 1 for at, word in enumerate(words) if word not in PADDING), default=tokens)


def take_places(states: Array, places: Sequence[int] | None) -> Array:
    """Take the states of one position of each text: (B, T, D) -> (B, 1, D).

    >>> take_places(np.array([[1], [2]]), [1]).tolist()
    [[2]]
    """
    if places is None:
        return states
    return states[places] if states.ndim == 2 else states[np.arange(len(places)), places][:, None]


def compare_logits(record: Record, logits: Array, places: Sequence[int] | None) -> None:
    """Warn if the logits of a trace do not follow from its last states."""
    if "logits" not in record or record["logits"].shape[:-2] != logits.shape[:-2]:
        return
    theirs = take_places(record["logits"], places)
    if theirs.shape != logits.shape or np.abs(theirs - logits).max() > TOLERANCE * max(
        1.0, float(np.abs(theirs).max())
    ):
        problem = "the logits of the trace are not those of this model: it is of another one, or its head was patched"
        warnings.warn(problem, AttnkitWarning, stacklevel=2)


def find_words(checkpoint: "Checkpoint") -> Detokenizer:
    """A detokenizer of a model, with its tokenizer if it has one."""
    config = checkpoint.config
    side = "target" if config.encoder and config.decoder else "source"
    size = config.stack(config.stacks[-1]).vocab or config.frame_labels
    try:
        return Detokenizer(text_inputs.tokenizer_of(checkpoint, side), size)
    except AttnkitError:
        return Detokenizer(None, size)


def find_word(checkpoint: "Checkpoint", text: str, flag: str) -> int:
    """The id of a word that is one token; UsageError with the flag for another.

    A word is as the tokenizer reads it, with the space before it, or as it spells the token: ` fox`, Ġfox, ▁fox. For
    a model without a tokenizer, it is an id.
    """
    tokenizer, size = find_words(checkpoint)[:2]
    if tokenizer is None:
        if not re.fullmatch("[0-9]{1,9}", text, re.ASCII) or int(text) >= size:
            raise UsageError(f"{text!r}: the model has no tokenizer (expected an id from 0 to {size - 1})", flag)
        return int(text)
    is_label = checkpoint.config.frame_labels > 0  # which a text is not read as
    tokens = Tokens([], []) if is_label else text_inputs.encode_texts([text], tokenizer, None)[0]
    languages = tokenizer.languages.ids.values() if tokenizer.languages else ()
    special = {*tokenizer.special.values(), *languages}
    ids = [id for id in tokens.ids or [] if id not in special]
    spellings = [text, *(mark + text.removeprefix(" ") for mark in "Ġ▁" if text.startswith(" "))]
    known = [tokenizer.vocabulary.index(one) for one in spellings if one in tokenizer.vocabulary]
    if len(ids) != 1 and not known:
        is_unknown = is_label or (not ids and text_inputs.count_unknown([tokens], tokenizer))
        pieces = join_names([repr(word) for word in find_words(checkpoint).token_strings(ids)])
        number = f"{counted(len(ids), 'token')}: {pieces} (expected one)"
        raise UsageError(f"{text!r} is {'not in the vocabulary' if is_unknown else number}", flag)
    return ids[0] if len(ids) == 1 else known[0]


REST = "rest"
Parts = dict[str, Array]  # name -> the vector (D,) that it adds


def attribute_logit(
    record: Record, checkpoint: "Checkpoint", words: Sequence[str], position: int | None, by: str
) -> Record:
    """How much each part of a model adds to the logit of a word: x (part).

    words     the word, and the one whose logit is subtracted, if there is one
    position  of the token whose next word it is; None: the last one
    by        layer: attention with its bias is one part; head: each head is one, and the bias

    `logit` is the logit as the model computes it, and the last part the rest of it, 0 if that is rounding.
    UsageError for a model whose head is not linear, or a word of several tokens; DataError if the trace lacks what
    is needed.
    """
    core, stack = layers.core_model(checkpoint), find_stack(checkpoint)
    if core.config.is_recurrent:
        problem = f"this {core.config.family} model is recurrent: the states of its layers are not added up"
        raise UsageError(problem, "--direct")
    if core.config.logit_softcap:
        raise UsageError(f"the logits of this {core.config.family} model are capped: parts do not add up", "--direct")
    if core.config.transform:
        problem = f"the head of this {core.config.family} model is not linear: parts do not add up to its logits"
        raise UsageError(problem, "--direct")
    ids = [find_word(checkpoint, word, flag) for word, flag in zip(words, ("--direct", "--minus"), strict=False)]
    last = [*read_trace_states(record, core.config.head_states(stack), checkpoint).values()][-1]
    places = text_positions(record, last.shape, -1 if position is None else position)
    logits = state_logits(core, stack, last)
    compare_logits(record, logits, None)
    rows = [()] if last.ndim == 2 else [(row,) for row in range(len(last))]
    head = core.params["head"]  # its column for a word reads the logit of the word in a state
    direction, *less = [head["w"][:, id].astype(np.float64) for id in ids]
    direction = (direction - sum(less)) * core.config.logit_scale
    biases = [float(head["b"][id]) for id in ids] if "b" in head else []
    bias = {"head.b": biases[0] - sum(biases[1:])} if biases else {}
    columns, totals, labels, names = [], [], [], [""]
    for row, at in zip(rows, places, strict=True):
        parts = decompose_state(core, stack, record, (*row, at), by)
        added = {name: float(part @ direction) for name, part in parts.items()} | bias
        chosen = require_finite(logits[(*row, at)][ids].astype(np.float64), "the logits", (*row, at))
        total = float(chosen[0] - sum(chosen[1:]))
        names = [*added, REST]
        columns.append([*added.values(), find_rest(total, added, parts, direction, logits.dtype)])
        totals.append(total)
        labels.append(" ".join([str(at), *row_labels(record.labels.get("token"), sum(row))[at : at + 1]]))
    lead = ("batch",)[: last.ndim - 2]
    formula = "part · norm · head, at the scale of the run"
    arrays = {"x": (np.array(columns), formula), "logit": (np.array(totals), "")}
    tensors = {
        name: Tensor(array if lead else array[0], (*lead, *("part",)[: array.ndim - 1]), formula=formula)
        for name, (array, formula) in arrays.items()
    }
    return Record(tensors, {"part": names, "word": [*words], "position": labels}, record.history)


def decompose_state(core: "model.Model", stack: str, record: Record, at: tuple[int, ...], by: str) -> Parts:
    """The parts that add up to what the head reads at one token, by name, float64.

    at  the index of the token: of its text in a batch, and of its position
    """
    parts: Parts = {}
    branch: Parts = {}  # of the result of a sub-layer, which a norm passes before it is added
    state, width = "", 0  # the name of the state that the parts add up to, and its width

    def normalize(parts: Parts, state: str, layer: str, params: Mapping[str, Array]) -> Parts:
        x = read_token(record, state, at, (width,))
        passed = normalize_parts(np.stack([*parts.values()]), x, params, core.config.norm, core.config.eps)
        beta = {f"{layer}.beta": params["beta"].astype(np.float64)} if "beta" in params else {}
        return dict(zip(parts, passed, strict=True)) | beta

    for step in core.config.plan(stack):
        params = core.params.get(step.layer, {})
        if step.op == "ffn" or step.attends or step.op in MIXERS.values():
            if step.op != "attend" or by == "layer":
                branch = {step.layer: read_token(record, f"{step.layer}.output", at, (core.config.width,))}
            else:
                rules = core.config.attention_rules[step.layer]
                shape = rules.heads, rules.value_dim
                heads = read_token(record, f"{step.layer}.{'gated_heads' if rules.is_gated else 'heads'}", at, shape)
                each = (heads[:, None] @ params["wo"].reshape(*shape, -1))[:, 0]  # (H, 1, V) @ (H, V, D) -> (H, D)
                branch = {f"{step.layer}:{head}": part for head, part in enumerate(each)}
                branch |= {f"{step.layer}.bo": params["bo"].astype(np.float64)} if "bo" in params else {}
            if not step.adds_residual:
                continue
            parts |= {name: step.scale * part for name, part in branch.items()}
        elif step.op == "layernorm" and step.adds_residual:
            layer = next(iter(branch)).partition(":")[0].removesuffix(".bo")
            branch = normalize(branch, f"{layer}.output", step.layer, params)
            parts |= {name: step.scale * part for name, part in branch.items()}
        elif step.op == "layernorm" and not step.changes_saved:
            parts = normalize(parts, state, step.layer, params)
        elif step.op == "linear":
            width = params["w"].shape[1]
            parts = {name: part @ params["w"] for name, part in parts.items()}
            parts |= {f"{step.layer}.b": params["b"].astype(np.float64)} if "b" in params else {}
        elif step.op == "conv":
            width = core.config.result_width(step.layer)
            convolved = {step.layer: read_token(record, step.layer, at, (width,))}
            parts = {**parts, **convolved} if step.adds_residual else convolved
        elif step.op in ("embed", "posenc"):
            width = width or params["table"].shape[1]
            before = read_token(record, state, at, (width,)) if state else 0
            parts[step.layer] = read_token(record, step.layer, at, (width,)) - before
        if not step.changes_saved:
            state = step.trace_name
    return parts


def read_token(record: Record, name: str, at: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """What a trace keeps of one token, in float64: (D,), or (H, V) of heads."""
    if name not in record:
        raise DataError(f"no {name} in the trace; encode or decode --trace FILE keeps all that a run computes")
    kept = record[name]
    array = np.swapaxes(kept, -3, -2) if len(shape) == 2 and kept.ndim > 2 else kept  # (..., T, H, V)
    is_there = array.ndim == len(at) + len(shape) and all(i < n for i, n in zip(at, array.shape, strict=False))
    if not is_there or array.shape[len(at) :] != shape:
        expected = "(" + ", T, ".join(map(str, shape)) + ")" if len(shape) == 2 else f"(T, {shape[0]})"
        raise DataError.about(name, f"{kept.shape}: expected {expected} for each text, as the model has")
    return require_finite(array[at].astype(np.float64), name, at)


def require_finite(numbers: Array, name: str, at: tuple[int, ...]) -> Array:
    if not np.isfinite(numbers).all():
        raise DataError(f"{name}: not finite at position {at[-1]}, where parts cannot add up")
    return numbers


def find_rest(total: float, added: dict[str, float], parts: Parts, direction: Array, dtype: np.dtype[Any]) -> float:
    """What the parts lack of the logit; 0 if that is rounding.

    added  what each part adds to the logit; dtype of the logit

    >>> parts, direction = {"a": np.array([2.0, -1.0])}, np.array([1.0, 1.0])
    >>> [find_rest(total, {"a": 1.0}, parts, direction, np.dtype("float32")) for total in (1.0000001, 1.5)]
    [0.0, 0.5]
    """
    rest = total - sum(added.values())
    products = sum(float(np.abs(part) @ np.abs(direction)) for part in parts.values())
    return rest if abs(rest) > float(np.finfo(dtype).eps) * products else 0.0


@quiet
def normalize_parts(parts: Array, x: Array, params: Mapping[str, Array], norm: str, eps: float) -> Array:
    """Normalize parts of x as a norm does x, without its shift: (P, D) -> (P, D).

    parts (P, D), x (D,) -> (P, D); each part is centered unless the norm is rms, and divided by the deviation of x

    >>> x = np.array([1.0, 3.0])
    >>> normalize_parts(np.array([[1.0, 0], [0, 3]]), x, {"gamma": np.full(2, 2.0)}, "layer", 1e-12).round(4)
    array([[ 1., -1.],
           [-3.,  3.]])
    """
    scale = (rms_norm if norm == "rms" else layer_norm)(x, eps=eps).inverse_std
    centered = parts if norm == "rms" else parts - parts.mean(axis=-1, keepdims=True)
    return np.asarray(centered * scale * params.get("gamma", 1.0))
