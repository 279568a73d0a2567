"""The logit lens: the words that a model's head reads in the state of each layer, as a trace keeps it."""

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit import model
from attnkit.errors import AttnkitError, AttnkitWarning, DataError, UsageError, counted
from attnkit.inputs import layers, text_inputs
from attnkit.inputs.detokenizer import Detokenizer
from attnkit.record import Array, Record, Tensor, join_names, row_labels
from attnkit.tokenizers import PADDING

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

EMBEDDING = "embedding"  # the label of the state before layer 0
TOLERANCE = 1e-3  # of the logits of a trace, beside those of its last state: more is another model


def apply_lens(record: Record, checkpoint: "Checkpoint", top: int, position: int | None) -> Record:
    """Return the likeliest words of each layer's state: x (layer, token, rank), their probabilities, and `ids`.

    A trace of a batch has an axis more in front. The labels under `ids` are the words: a list for each state.

    position  the only token of each text, from its end where it is negative; None: all

    The state of each layer is normalized by the norm after the last layer, where the model has one, and the head
    applied: the row of the last layer is what the model predicts. DataError where the trace does not hold the states
    of this model, UsageError for a model without a head of words.
    """
    core, stack = layers.core_model(checkpoint), find_stack(checkpoint)
    layer_states = states_of_trace(record, state_names(checkpoint.config, stack), checkpoint)
    places = None if position is None else text_positions(record, layer_states[EMBEDDING].shape, position)
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
    if tokens := take_labels(record, places):
        labels["token"] = tokens
    if places is not None:
        labels["position"] = [[str(at)] for at in places] if lead else [str(places[0])]
    if words := find_words(checkpoint).words():
        labels["ids"] = [[words[id] for id in row] for row in stacked.reshape(-1, stacked.shape[-1]).tolist()]
    x = Tensor(np.stack(shares, axis=len(lead)), axes, formula="softmax(head(norm(state of a layer)))")
    return Record({"x": x, "ids": Tensor(stacked, axes)}, history=record.history).with_tensors({}, labels)


def find_stack(checkpoint: "Checkpoint") -> str:
    """Return the stack whose states the head reads; UsageError for a model whose head gives no words."""
    config = checkpoint.config
    if isinstance(config, model.RecurrentConfig):
        raise UsageError(
            f"this {config.family} model is recurrent: the states of its layers are not added up", "--model"
        )
    stack = config.stacks[-1]
    if not config.head or config.classes or not config.stack(stack).vocab:
        raise UsageError(f"this {config.family} model has no head that gives words", "--model")
    return stack


def state_names(config: "model.Config", stack: str) -> dict[str, str]:
    """Return the names of the states between the layers of a stack in a trace, by layer: before layer 0, after each.

    >>> small = model.StackConfig(layers=1, heads=1, hidden=4, kv_heads=1, head_dim=2, vocab=5, final_norm=True)
    >>> state_names(model.Config("gpt2", 2, decoder=small, norm_first=True), "decoder")
    {'embedding': 'decoder.embed', 'decoder.0': 'decoder.0.ffn.residual'}
    """
    names = {}
    for step in model.layer_plan(config, stack):
        number = model.parse_layer_name(step.layer)[1]
        if step.layer != f"{stack}.norm":
            names[EMBEDDING if number is None else f"{stack}.{number}"] = result_name(step)
    return names


def result_name(step: "model.Step") -> str:
    """Return the name of the result of a step in a trace: with a residual connection that of the sum."""
    return f"{step.layer}.residual" if step.adds_residual else step.layer


def states_of_trace(record: Record, names: Mapping[str, str], checkpoint: "Checkpoint") -> dict[str, Array]:
    """Return the states of a trace by layer, (T, D) or (B, T, D); DataError for missing ones, or of another model."""
    width = checkpoint.config.width
    for name in names.values():
        if name not in record:
            runs = "decode" if checkpoint.config.encoder and checkpoint.config.decoder else "encode or decode"
            hint = f"{runs} --trace FILE keeps all states"
            raise DataError(f"no {name}, which the model has (it has {join_names(record.tensors, 4)}); {hint}")
        states = record[name]
        if states.ndim not in (2, 3) or states.shape[-1] != width or states.dtype.kind != "f":
            expected = f"expected (T, {width}) or (B, T, {width}), the width of the model"
            raise DataError(f"{name} {states.dtype} {states.shape}: {expected}")
    first = next(iter(names.values()))
    for name in names.values():
        if record[name].shape != record[first].shape or not record[name].size:
            problem = f"expected the shape of {first} {record[first].shape}, of at least one token"
            raise DataError(f"{name} {record[name].shape}: {problem}")
    return {layer: record[name] for layer, name in names.items()}


def state_logits(core: "model.Model", stack: str, states: Array) -> Array:
    """Return the logits of the states of any layer: (..., T, D) -> (..., T, N)."""
    if core.config.stack(stack).final_norm:
        states = model.normalize(core, f"{stack}.norm", states).y
    return model.head_logits(core, states)


def text_positions(record: Record, shape: tuple[int, ...], position: int) -> list[int]:
    """Return a position of each text of states (T, D) or (B, T, D), from 0; UsageError where one does not have it.

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
    """Return how many tokens a text has, of `tokens` in its row of a batch: all but the padding at its end.

    >>> text_size(Record({}, {"token": [["<pad>", "a", "<pad>"]]}), 0, 3), text_size(Record({}), 0, 3)
    (2, 3)
    """
    labels = record.labels.get("token")
    is_batch = labels and not isinstance(labels[0], str)
    words = row_labels(labels, row) if is_batch else []
    return max((at + 1 for at, word in enumerate(words) if word not in PADDING), default=tokens)


def take_places(states: Array, places: Sequence[int] | None) -> Array:
    """Return the states of one position of each text, (T, D) -> (1, D) or (B, T, D) -> (B, 1, D); None: of all.

    >>> take_places(np.array([[1], [2]]), [1]).tolist()
    [[2]]
    """
    if places is None:
        return states
    return states[places] if states.ndim == 2 else states[np.arange(len(places)), places][:, None]


def take_labels(record: Record, places: Sequence[int] | None) -> Any:
    """Return the labels of the tokens of a trace, or of one position of each text; [] where it has none."""
    labels = record.labels.get("token", [])
    if places is None or not labels:
        return labels
    if isinstance(labels[0], str):
        return [labels[places[0]]] if len({*places}) == 1 else [[labels[at]] for at in places]
    return [[row[at]] for row, at in zip(labels, places, strict=True)]


def compare_logits(record: Record, logits: Array, places: Sequence[int] | None) -> None:
    """Warn where a trace holds other logits than those of its last states: it is of another model, or patched."""
    if "logits" not in record or record["logits"].shape[:-2] != logits.shape[:-2]:
        return
    theirs = take_places(record["logits"], places)
    if theirs.shape != logits.shape or np.abs(theirs - logits).max() > TOLERANCE * max(
        1.0, float(np.abs(theirs).max())
    ):
        problem = "the logits of the trace are not those of this model: it is of another one, or its head was patched"
        warnings.warn(problem, AttnkitWarning, stacklevel=2)


def find_words(checkpoint: "Checkpoint") -> Detokenizer:
    """Return what spells the ids of a model: its tokenizer, if it has one."""
    config = checkpoint.config
    side, size = "target" if config.encoder and config.decoder else "source", config.stack(config.stacks[-1]).vocab
    try:
        return Detokenizer(text_inputs.tokenizer_of(checkpoint, side), size)
    except AttnkitError:
        return Detokenizer(None, size)


def find_word(checkpoint: "Checkpoint", text: str, flag: str) -> int:
    """Return the id of a word that is one token; UsageError with the flag for another.

    A word is as the tokenizer reads it, with the space before it, or as it spells the token: ` fox`, Ġfox, ▁fox. For
    a model without a tokenizer, it is an id.
    """
    tokenizer, size = find_words(checkpoint)[:2]
    if tokenizer is None:
        return read_id(text, size, flag)
    tokens = text_inputs.encode_texts([text], tokenizer, None)[0]
    special = {*tokenizer.special.values()}
    ids = [id for id in tokens.ids or [] if id not in special]
    spellings = [text, *(mark + text.removeprefix(" ") for mark in "Ġ▁" if text.startswith(" "))]
    known = [tokenizer.vocabulary.index(one) for one in spellings if one in tokenizer.vocabulary]
    if len(ids) != 1 and not known:
        is_unknown = not ids and text_inputs.count_unknown([tokens], tokenizer)
        pieces = join_names([repr(word) for word in find_words(checkpoint).token_strings(ids)])
        number = f"{counted(len(ids), 'token')}: {pieces} (expected one)"
        raise UsageError(f"{text!r} is {'not in the vocabulary' if is_unknown else number}", flag)
    return ids[0] if len(ids) == 1 else known[0]


def read_id(text: str, size: int, flag: str) -> int:
    """Return a word of a model without a tokenizer: its id; UsageError with the flag for another text.

    >>> read_id("3", 5, "--direct")
    3
    """
    if not re.fullmatch("[0-9]{1,9}", text, re.ASCII) or int(text) >= size:
        raise UsageError(f"{text!r}: the model has no tokenizer (expected an id from 0 to {size - 1})", flag)
    return int(text)
