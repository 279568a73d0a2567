"""Spans of a text: entities from the labels of its tokens, and answers from the logits of their ends.

The rules are those of transformers' TokenClassificationPipeline and QuestionAnsweringPipeline.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.record import Array
from attnkit.tokenizers import TokenPlaces

OUTSIDE = "O"  # the label of tokens of no entity
LONGEST_ANSWER = 15  # tokens


class Span(NamedTuple):
    """A part of a text from character `start` to the one before `end`, its label and its score."""

    label: str
    score: float
    start: int
    end: int


def group_names(labels: Sequence[str], strategy: str | None) -> list[str]:
    """Return the labels that spans can have: without B- and I- where tokens are joined.

    >>> group_names(["O", "B-PER", "I-PER"], "simple"), group_names(["O", "B-PER", "I-PER"], "none")
    (['PER'], ['B-PER', 'I-PER'])
    """
    names = labels if strategy == "none" else [name.split("-", 1)[-1] for name in labels]
    return [name for name in dict.fromkeys(names) if name != OUTSIDE]


def find_entities(probs: Array, places: TokenPlaces, labels: Sequence[str], strategy: str) -> list[Span]:
    """Return the spans of a text whose tokens have a label other than O.

    probs  (T, C), of each token

    none: each token by itself. simple: neighbors of one label are one span, but a label B- begins a new one. first,
    average, max: so, once all tokens of a word have the label of its first token, that of their mean probabilities,
    or that of the token with the largest probability.

    >>> places = TokenPlaces([(0, 3), (3, 6)], [(0, 6), (0, 6)], [0, 0], [False, True])
    >>> probs = np.array([[0.25, 0.75], [0.75, 0.25]])
    >>> find_entities(probs, places, ["O", "B-PER"], "first")
    [Span(label='PER', score=0.75, start=0, end=6)]
    """
    tokens = [at for at, part in enumerate(places.parts) if part is not None]
    words = [[at] for at in tokens] if strategy in ("none", "simple") else group_words(tokens, places)
    spans = []
    for word in words:
        scores = word_scores(probs[word], strategy)
        best = int(scores.argmax())
        start, end = places.offsets[word[0]][0], places.offsets[word[-1]][1]
        spans.append(Span(labels[best], float(scores[best]), start, end))
    joined = spans if strategy == "none" else join_spans(spans)
    return [span for span in joined if span.label != OUTSIDE]


def group_words(tokens: Sequence[int], places: TokenPlaces) -> list[list[int]]:
    """Return the tokens of each word.

    >>> group_words([1, 2, 3], TokenPlaces([], [], [], [False, False, True, False]))
    [[1, 2], [3]]
    """
    words: list[list[int]] = []
    for at in tokens:
        if words and places.subwords[at]:
            words[-1].append(at)
        else:
            words.append([at])
    return words


def word_scores(probs: Array, strategy: str) -> Array:
    """Return the probabilities of a word, from those of its tokens, (T, C) -> (C,)."""
    if strategy == "average":
        mean: Array = probs.mean(axis=0)
        return mean
    scores: Array = probs[int(probs.max(axis=-1).argmax()) if strategy == "max" else 0]
    return scores


def join_spans(spans: Sequence[Span]) -> list[Span]:
    """Join neighbors of one label, without B- and I-, to one span with the mean of their scores.

    >>> join_spans([Span("B-PER", 0.5, 0, 3), Span("I-PER", 1.0, 4, 7), Span("B-PER", 1.0, 8, 9)])
    [Span(label='PER', score=0.75, start=0, end=7), Span(label='PER', score=1.0, start=8, end=9)]
    """
    groups: list[list[Span]] = []
    for span in spans:
        if groups and not span.label.startswith("B-") and tag(span.label) == tag(groups[-1][-1].label):
            groups[-1].append(span)
        else:
            groups.append([span])
    return [
        Span(
            group[0].label.split("-", 1)[-1],
            float(np.mean([one.score for one in group])),
            group[0].start,
            group[-1].end,
        )
        for group in groups
    ]


def tag(label: str) -> str:
    """Return a label without B- or I-.

    >>> tag("B-PER"), tag("PER")
    ('PER', 'PER')
    """
    return label[2:] if label.startswith(("B-", "I-")) else label


def find_answers(logits: Array, places: TokenPlaces, text: str, count: int) -> list[Span]:
    """Return the best answers to a question, best first; answers with the same words are one, their scores added.

    logits  (T, 2), of each token as the start and the end of the answer
    places  those of the question and the text; the first token, which the tokenizer adds, means no answer

    The score of an answer is the product of the probabilities of its ends, which are made whole words. It has at most
    15 tokens.
    """
    allowed = np.array([at == 0 or part == 1 for at, part in enumerate(places.parts)])
    ends = model.probabilities(np.where(allowed[:, None], logits, -10000.0).astype(logits.dtype).T)
    ends[:, 0] = 0
    scores = np.tril(np.triu(ends[0][:, None] * ends[1]), LONGEST_ANSWER - 1)
    order = np.argsort(-scores, axis=None, kind="stable")[: 2 * count + 10]
    answers: dict[str, Span] = {}
    for first, last in zip(*np.unravel_index(order, scores.shape), strict=True):
        if allowed[first] and allowed[last] and 0 < first <= last:
            start, end, score = places.words[first][0], places.words[last][1], float(scores[first, last])
            same = answers.setdefault(text[start:end].lower(), Span("answer", 0.0, start, end))
            answers[text[start:end].lower()] = same._replace(score=same.score + score)
    return sorted(answers.values(), key=lambda span: -span.score)[:count]
