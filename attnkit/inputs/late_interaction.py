"""Texts of a late-interaction model, and the vectors of their tokens."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnkit.checkpoints.sentence_modules import SentenceModules
from attnkit.inputs import text_inputs
from attnkit.records import Array, Record, Tensor, shared_labels
from attnkit.tokenizers import Tokenizer
from attnkit.tokenizers.tokens import PADDING

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


def read_marked_text(
    checkpoint: "Checkpoint", modules: SentenceModules, task: str, text: str, tokenizer: Tokenizer | None
) -> tuple[Array, Record]:
    """The ids (T) of a query or document with its prompt, and their record.

    `counts` (T) tells which tokens have a vector that counts; `mask` (1, T), which are attended to, unless all are.
    """
    late = modules.late
    assert late is not None
    tokenizer = tokenizer or text_inputs.text_tokenizer(checkpoint, "source")
    source = text_inputs.ModelInput([text.lower() if modules.is_lower else text], most=late.most(task))
    [tokens] = text_inputs.encode_texts(source.texts, tokenizer, None)
    if source.most is not None:
        [tokens] = text_inputs.cut_texts([tokens], source, tokenizer)
    text_inputs.warn_unknown(text_inputs.count_unknown([tokens], tokenizer), len(tokens.spellings))
    marked = late.mark(tokens, task, tokenizer)
    ids, labels = np.array(marked.tokens.ids, np.int64), {"token": marked.tokens.spellings}
    tensors = {"ids": Tensor(ids, ("token",), labels), "counts": Tensor(np.array(marked.counts), ("token",))}
    if not all(marked.attended):
        tensors["mask"] = Tensor(np.array([marked.attended]), ("all queries", "key"), {"key": marked.tokens.spellings})
    return ids, Record({}).with_tensors(tensors)


def make_token_vectors(base: Record, vectors: Array, formula: str) -> Record:
    """The record of the vectors of the tokens of a text (R, E), with their ids.

    Of a record it has the vectors of all tokens (..., T, E), and the mask.
    """
    if "counts" not in base:
        x = Tensor(vectors, ("batch", "token", "model")[3 - vectors.ndim :], formula=formula)
        return Record({"x": x}).merge(base).with_tensors({"x": x})
    counts = np.flatnonzero(base["counts"])
    words = shared_labels(base.labels.get("token"))
    labels = {"token": [words[at] for at in counts]}
    tensors = {
        "x": Tensor(vectors, ("token", "model"), formula=formula),
        "ids": Tensor(base["ids"][counts], ("token",), labels),
    }
    return Record({}).with_tensors(tensors)


def pad_token_vectors(texts: Sequence[Record]) -> Record:
    """The vectors of the tokens of texts as one record, padded on the right.

    -> x (B, R, E), ids (B, R) and their mask (B, 1, R)
    """
    longest = max(len(one["x"]) for one in texts)
    first = texts[0]["x"]
    x = np.zeros((len(texts), longest, first.shape[1]), first.dtype)
    ids, real = np.zeros((len(texts), longest), np.int64), np.zeros((len(texts), 1, longest), bool)
    words: list[list[str]] = []
    for at, one in enumerate(texts):
        count = len(one["x"])
        x[at, :count], ids[at, :count], real[at, 0, :count] = one["x"], one["ids"], True
        words.append([*shared_labels(one.labels.get("token")), *[PADDING[0]] * (longest - count)])
    tensors = {
        "x": Tensor(x, ("batch", "token", "model"), formula=texts[0].tensors["x"].formula),
        "ids": Tensor(ids, ("batch", "token"), {"token": words}),
        "mask": Tensor(real, ("batch", "all queries", "key"), {"key": words}, "token ≠ padding"),
    }
    return Record({}).with_tensors(tensors)
