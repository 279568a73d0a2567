"""The corpus of each kind of model: the batch of each step, and held-out batches.

causal  blocks of a text, each token predicted from those before it
masked  blocks of a text with words masked, as for BERT
spans   blocks of a text with spans replaced, as for T5
pairs   sentence pairs, the second predicted token by token from the first
labels  texts with labels, predicted from the whole text
"""

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from attnkit.errors import AttnkitNote, DataError, counted, shortened, with_article
from attnkit.formats.memory import check_memory
from attnkit.inputs.text_columns import parse_columns, parse_pairs
from attnkit.model import Array
from attnkit.model.config import Config
from attnkit.tokenizers import Tokenizer
from attnkit.training import batches
from attnkit.training.batches import Batch, Collate, LengthSampler, Measure, SpecialIds, pad_ids, pair_lengths
from attnkit.training.data import (
    Item,
    encode_line,
    encode_pairs,
    encode_text,
    hold_out_end,
    hold_out_every,
    parse_share,
)
from attnkit.training.families import FAMILIES, learns
from attnkit.training.recipe import Recipe


class Vocabulary(NamedTuple):
    """The tokenizers of source and target, special tokens, and the number of tokens.

    labels  of a classifier, in the order of their numbers
    """

    tokenizers: tuple[Tokenizer, Tokenizer]
    special: SpecialIds
    size: int
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Corpus:
    """The data of a run.

    batch            step, from 1 -> the batch of that step
    held_out         () -> the batches of the held-out part, the same each time; None if there is none
    steps_per_epoch  steps that draw as many tokens as the text has
    bytes_per_token  of the held-out part; None if a loss does not cover a whole text
    longest          tokens of the longest text
    """

    batch: Callable[[int], Batch]
    held_out: Callable[[], Iterator[Batch]] | None
    steps_per_epoch: int
    bytes_per_token: float | None = None
    longest: int = 0


def corpus_kind(config: Config, pairs: bool) -> str:
    """The kind of corpus of a model. DataError for a model that learns from no text."""
    if config.patches:
        raise DataError(f"{with_article(config.family)} model learns from no text")
    if config.decoder is None:
        return "masked"
    if config.encoder is None:
        return "causal"
    return "spans" if learns(config.family, "spans") and not pairs else "pairs"


def read_corpus(kind: str, text: str, name: str, vocabulary: Vocabulary, recipe: Recipe) -> Corpus:
    """The batches of a text. DataError if it is empty, too short or not of its tokens.

    name  the file of the text
    """
    if kind not in ("pairs", "labels"):
        texts = recipe.batch * recipe.accumulate
        subject = f"a step of {counted(texts, 'text')} of {counted(recipe.block, 'token')}"
        check_memory(2 * 8 * texts * recipe.block, subject, "--accumulate" if recipe.accumulate > 1 else "--batch")
    return CORPORA[kind](text, name, vocabulary, recipe)


def split_text(text: str, name: str, vocabulary: Vocabulary, recipe: Recipe) -> tuple[Array, Array, float, Recipe]:
    """Split a text: ids to train on, held-out ids, and bytes of a held-out token.

    The recipe comes back with a shorter block if the default is longer than the text; a note says so.
    """
    share, tokenizer = parse_share(recipe.valid), vocabulary.tokenizers[0]
    if not text.strip():
        raise DataError("empty text", name)
    first, last = hold_out_end(text, share)
    if last and recipe.tokens == "words":  # a part of a word is no word
        first = re.sub(r"\S+$", "", first)
        last = text[len(first) :]
    ids = encode_text(tokenizer, first, name) if first else encode_text(tokenizer, text, name)[:0]
    if recipe.block == Recipe.block and 2 <= len(ids) <= recipe.block:
        shorter = f"{counted(len(ids), 'token')}, so that a block has {len(ids) - 1}, not {recipe.block}"
        warnings.warn(f"{name}: {shorter}", AttnkitNote, stacklevel=2)
        recipe = replace(recipe, block=len(ids) - 1)
    if len(ids) <= recipe.block:
        size = f"{counted(len(ids), 'token')}, fewer than a block of {recipe.block}"
        raise DataError(f"{size} and the token after it", name)
    if not share:
        return ids, ids[:0], 0.0, recipe
    if not last:
        size = counted(len(text), "character")
        raise DataError(f"{size} are too few to hold out {recipe.valid} of them; --valid 0 holds out nothing", name)
    held_out = encode_text(tokenizer, last, name, 1 + first.count("\n"))
    if len(held_out) < 2:
        raise DataError(f"{len(held_out)} token is held out (expected 2 or more); --valid 0 trains on all", name)
    return ids, held_out, len(last.encode("utf-8", "surrogatepass")) / len(held_out), recipe


def causal_corpus(text: str, name: str, vocabulary: Vocabulary, recipe: Recipe) -> Corpus:
    """Blocks of a text from random places; the targets are the next tokens."""
    ids, last, size, recipe = split_text(text, name, vocabulary, recipe)
    rows = recipe.batch * recipe.accumulate
    draw = partial(batches.block_batch, ids, rows, recipe.block, recipe.seed)
    held_out = partial(batches.consecutive_blocks, last, recipe.batch, recipe.block) if len(last) else None
    return Corpus(draw, held_out, steps_per_epoch(len(ids), rows, recipe), size or None, recipe.block)


def masked_corpus(text: str, name: str, vocabulary: Vocabulary, recipe: Recipe) -> Corpus:
    """Blocks of a text with 15 % of the words to be restored."""
    draw = partial(batches.masked_batch, special=vocabulary.special, seed=recipe.seed, size=vocabulary.size)
    return corrupted_corpus(draw, split_text(text, name, vocabulary, recipe), around=2)


def span_corpus(text: str, name: str, vocabulary: Vocabulary, recipe: Recipe) -> Corpus:
    """Blocks of a text with spans to be restored."""
    draw = partial(batches.span_batch, special=vocabulary.special, seed=recipe.seed)
    return corrupted_corpus(draw, split_text(text, name, vocabulary, recipe))


def corrupted_corpus(draw: Callable[..., Batch], parts: tuple[Array, Array, float, Recipe], around: int = 0) -> Corpus:
    """A corpus of blocks that `draw` corrupts; held-out blocks are always the same.

    draw    (ids, number of blocks, their length, step) -> batch
    parts   of `split_text`
    around  special tokens that a block has around the words of the text
    """
    ids, last, _, recipe = parts
    rows, block = recipe.batch * recipe.accumulate, min(recipe.block, len(last) + around)

    def held_out() -> Iterator[Batch]:
        for step in range(1, 1 + -(-len(last) // (recipe.batch * block))):
            yield draw(last, recipe.batch, block, step=step)

    epoch = steps_per_epoch(len(ids), rows, recipe)
    every = partial(draw, ids, rows, recipe.block)
    return Corpus(lambda step: every(step=step), held_out if len(last) else None, epoch, longest=recipe.block)


def pair_corpus(text: str, name: str, vocabulary: Vocabulary, recipe: Recipe) -> Corpus:
    """Batches of sentence pairs of similar lengths, every pair once an epoch."""
    special = vocabulary.special
    pairs = encode_pairs(vocabulary.tokenizers, parse_pairs(text, name), special.eos, name)
    return sampled_corpus(pairs, pair_lengths, lambda own: batches.pad_pairs(own, special), recipe, ("pair", name))


def sampled_corpus(
    items: list[Item], measure: Measure[Item], collate: Collate[Item], recipe: Recipe, names: tuple[str, str]
) -> Corpus:
    """A corpus of items for `LengthSampler`; `names` are an item's noun and the file."""
    share, (noun, name) = parse_share(recipe.valid), names
    train, last = hold_out_every(items, share)
    if share and not (last and train):
        part = "held out" if train else "left to train on"
        raise DataError(f"no {noun} is {part}: {recipe.valid} of {len(items)}; --valid 0 trains on all", name)
    sampler = LengthSampler(train, measure, collate, recipe.batch * recipe.accumulate, recipe.seed)

    def held_out() -> Iterator[Batch]:
        for first in range(0, len(last), recipe.batch):
            yield collate(last[first : first + recipe.batch])

    longest = max(max(measure(item)) for item in items)
    return Corpus(sampler.batch, held_out if last else None, sampler.steps_per_epoch, longest=longest)


def steps_per_epoch(tokens: int, rows: int, recipe: Recipe) -> int:
    """The number of steps that draw as many tokens as the text has."""
    return max(-(-tokens // (rows * recipe.block)), 1)


class LabelledText(NamedTuple):
    """A text as ids, and the number of its label."""

    ids: list[int]
    label: int


def parse_labelled(text: str, name: str) -> list[tuple[int, str, str]]:
    """Read labelled texts: line number, label and text of each line.

    >>> parse_labelled("good\\tI liked it\\n\\nbad\\tI did not\\n", "labels.tsv")
    [(1, 'good', 'I liked it'), (3, 'bad', 'I did not')]
    """
    return parse_columns(text, name, "labelled texts", ("label", "text"))


def read_labels(
    recipe: Recipe, family: str, known: tuple[str, ...], text: str, name: str
) -> tuple[tuple[str, ...], str]:
    """The labels of a classifier and its texts, line by line; else () and the text.

    known  the labels of the model; () for those of the text, sorted

    DataError for a family that is not trained as a classifier, for a label that is not known, and for texts that all
    have one label.
    """
    if not recipe.classify:
        return (), text
    if not learns(family, "labels"):
        others = ", ".join(one for one in FAMILIES if learns(one, "labels"))
        raise DataError(f"{with_article(family)} model is not trained as a classifier (--classify takes {others})")
    lines = parse_labelled(text, name)
    for number, label, _ in lines:
        if known and label not in known:
            listed = ", ".join(known)
            raise DataError(f"line {number}: label {shortened(repr(label))}, not one of {listed}", name)
    labels = {label for _, label, _ in lines}
    if len(labels) < 2:
        raise DataError(f"all texts have the label {shortened(repr(*labels))} (expected two labels or more)", name)
    return known or tuple(sorted(labels)), "\n".join(line for _, _, line in lines)


def pad_labelled(texts: Sequence[LabelledText], pad: int) -> Batch:
    """Pad texts; the targets are the numbers of their labels.

    >>> one = pad_labelled([LabelledText([5, 6], 1), LabelledText([7], 0)], 0)
    >>> one.ids.tolist(), one.targets.tolist(), one.mask.tolist()
    ([[5, 6], [7, 0]], [1, 0], [[True, True], [True, False]])
    """
    ids = pad_ids([text.ids for text in texts], max(pad, 0))
    lengths = np.array([len(text.ids) for text in texts])
    targets = np.array([text.label for text in texts])
    return Batch(ids, targets, mask=np.arange(ids.shape[1]) < lengths[:, None])


def labelled_corpus(text: str, name: str, vocabulary: Vocabulary, recipe: Recipe) -> Corpus:
    """Batches of labelled texts of similar lengths, every text once an epoch."""
    tokenizer, labels, pad = vocabulary.tokenizers[0], vocabulary.labels, vocabulary.special.pad
    texts = [
        LabelledText(encode_line(tokenizer, line, number, name, added=True), labels.index(label))
        for number, label, line in parse_labelled(text, name)
    ]
    return sampled_corpus(texts, lambda one: [len(one.ids)], lambda own: pad_labelled(own, pad), recipe, ("text", name))


CORPORA = {
    "causal": causal_corpus,
    "masked": masked_corpus,
    "spans": span_corpus,
    "pairs": pair_corpus,
    "labels": labelled_corpus,
}
