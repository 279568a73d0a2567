"""Labelled texts: lines of label, tab, text, as batches of ids with the number of each label as target."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attnkit.errors import DataError, shortened
from attnkit.tokenizers import Tokenizer
from attnkit.training.batches import Batch, LengthSampler, pad_ids
from attnkit.training.corpus import Corpus, Vocabulary
from attnkit.training.data import encode_line, hold_out_every, parse_columns, parse_share
from attnkit.training.recipe import Recipe

CLASSIFIERS = ("lstm",)  # families that are trained as classifiers


class LabelledText(NamedTuple):
    """A text as ids, and the number of its label."""

    ids: list[int]
    label: int


class LabelledLine(NamedTuple):
    """A line of a file: its number, its label and its text."""

    number: int
    label: str
    text: str


def parse_labelled(text: str, name: str) -> list[LabelledLine]:
    """Return the lines of a file of labelled texts; errors are those of `parse_columns`.

    >>> parse_labelled("good\\tI liked it\\n\\nbad\\tI did not\\n", "labels.tsv")[1]
    LabelledLine(number=3, label='bad', text='I did not')
    """
    return [LabelledLine(*line) for line in parse_columns(text, name, "labelled texts", ("label", "text"))]


def read_labels(
    recipe: Recipe, family: str, known: tuple[str, ...], text: str, name: str
) -> tuple[tuple[str, ...], str]:
    """Return the labels of a classifier and the texts that have them, line by line; no labels and the text otherwise.

    DataError for a family that is not trained as a classifier; errors of the file are those of labelled.py.
    """
    if not recipe.classify:
        return (), text
    check_classifier(family)
    lines = parse_labelled(text, name)
    return find_labels(lines, known, name), "\n".join(line.text for line in lines)


def find_labels(lines: Sequence[LabelledLine], known: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the labels of a model: those that it knows, else those of the lines, sorted.

    DataError for a label that the model does not know, and for lines that all have one label.

    >>> find_labels([LabelledLine(1, "good", "yes"), LabelledLine(2, "bad", "no")], (), "labels.tsv")
    ('bad', 'good')
    """
    labels = {line.label for line in lines}
    for line in lines:
        if known and line.label not in known:
            listed = ", ".join(known)
            raise DataError(f"line {line.number}: label {shortened(repr(line.label))}, not one of {listed}", name)
    if len(labels) < 2:
        raise DataError(f"all texts have the label {shortened(repr(*labels))} (expected two labels or more)", name)
    return tuple(known) or tuple(sorted(labels))


def encode_labelled(
    tokenizer: Tokenizer, lines: Sequence[LabelledLine], labels: Sequence[str], name: str
) -> list[LabelledText]:
    """Return the ids of texts, and the numbers of their labels.

    DataError names the line of a character that the vocabulary lacks.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    texts = []
    for line in lines:
        ids = encode_line(tokenizer, line.text, line.number, name, added=True)
        texts.append(LabelledText(ids, numbers[line.label]))
    return texts


def pad_labelled(texts: Sequence[LabelledText], pad: int) -> Batch:
    """Return padded texts, and as targets the numbers of their labels.

    >>> one = pad_labelled([LabelledText([5, 6], 1), LabelledText([7], 0)], 0)
    >>> one.ids.tolist(), one.targets.tolist(), one.mask.tolist()
    ([[5, 6], [7, 0]], [1, 0], [[True, True], [True, False]])
    """
    ids = pad_ids([text.ids for text in texts], max(pad, 0))
    lengths = np.array([len(text.ids) for text in texts])
    targets = np.array([text.label for text in texts])
    return Batch(ids, targets, mask=np.arange(ids.shape[1]) < lengths[:, None])


def labelled_corpus(text: str, name: str, vocabulary: Vocabulary, recipe: Recipe) -> Corpus:
    """Return batches of labelled texts of similar lengths, every text once an epoch."""
    share, pad = parse_share(recipe.valid), vocabulary.special.pad
    texts = encode_labelled(vocabulary.tokenizers[0], parse_labelled(text, name), vocabulary.labels, name)
    train, last = hold_out_every(texts, share)
    if share and not (last and train):
        part = "held out" if train else "left to train on"
        raise DataError(f"no text is {part}: {recipe.valid} of {len(texts)}; --valid 0 trains on all", name)
    size = recipe.batch * recipe.accumulate
    lengths = np.array([[len(one.ids)] for one in train])
    sampler = LengthSampler(
        lengths, lambda rows: pad_labelled([train[row] for row in rows], pad), size, recipe.seed
    )  # fmt: skip

    def held_out() -> Iterator[Batch]:
        for first in range(0, len(last), recipe.batch):
            yield pad_labelled(last[first : first + recipe.batch], pad)

    longest = max(len(one.ids) for one in texts)
    return Corpus(sampler.batch, held_out if last else None, sampler.steps_per_epoch, longest=longest)


def check_classifier(family: str) -> None:
    """Raise DataError for a family whose models are not trained as classifiers."""
    if family not in CLASSIFIERS:
        raise DataError(f"a {family} model is not trained as a classifier (--classify takes {', '.join(CLASSIFIERS)})")
