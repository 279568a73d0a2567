"""BLEU and chrF of translations, computed by the sacrebleu library."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit import callbacks
from attnkit.errors import AttnkitWarning, DataError, counted
from attnkit.libraries import call_library, import_library
from attnkit.record import Array

Lines = Sequence[str]
PART = 500  # lines whose n-grams are in memory at a time
TOKENIZED = 100  # lines that end in " .", as in sacrebleu


class Metric(NamedTuple):
    """The scores of a metric, from 0 to 100: of all lines, then of each group; its name and signature of sacrebleu."""

    name: str
    signature: str
    scores: list[float]


def score_translations(
    hypotheses: Lines, references: Sequence[Lines], word_order: int = 0, groups: Sequence[Sequence[int]] = ()
) -> list[Metric]:
    """Return BLEU and chrF of hypotheses with one or more references each, and of groups of them.

    references  for each translator the lines that belong to the hypotheses
    word_order  of the n-grams of words of chrF: 2 is chrF++
    groups      the indices of the lines of each group, each line in one of them

    UsageError where sacrebleu is missing. The lines are counted part by part: sacrebleu itself keeps the n-grams of
    all references, which are some hundred times as large as the text.
    """
    library: Any = import_library("sacrebleu", "score", "--references")
    group_of = np.zeros(len(hypotheses), np.int64)
    for number, lines in enumerate(groups):
        group_of[lines] = number
    metrics = []
    for metric in (library.BLEU(force=True), library.CHRF(word_order=word_order)):
        with call_library("cannot score", "sacrebleu"):
            sums = add_statistics(metric, hypotheses, references, group_of)
            results = [metric._aggregate_and_compute([row.tolist()]) for row in (sums.sum(axis=0), *sums)]
            scores = [float(result.score) for result in results[: None if groups else 1]]
            metrics.append(Metric(results[0].name, str(metric.get_signature()), scores))
    warn_tokenized(hypotheses)
    return metrics


def add_statistics(metric: Any, hypotheses: Lines, references: Sequence[Lines], group_of: Array) -> Array:
    """Return the sums of what a metric counts in each line, a row for each group."""
    sums: Array = np.zeros((int(group_of.max(initial=0)) + 1, 0), np.int64)
    for at in range(0, len(hypotheses), PART):
        callbacks.current().on_progress(f"line {at:,} of {len(hypotheses):,}")
        part = slice(at, at + PART)
        counts = np.array(metric._extract_corpus_statistics(hypotheses[part], [lines[part] for lines in references]))
        if not sums.size:
            sums = np.zeros((len(sums), counts.shape[1]), np.int64)
        np.add.at(sums, group_of[part], counts)
    return sums


def warn_tokenized(hypotheses: Lines) -> None:
    """Warn where many lines end in a period apart from the last word, as in text split into tokens."""
    count = sum(line.endswith(" .") for line in hypotheses)
    if count >= TOKENIZED:
        problem = f"{count:,} lines end in ' .': the metrics expect text that is not split into tokens"
        warnings.warn(problem, AttnkitWarning, stacklevel=2)


def check_lines(hypotheses: Lines, others: Sequence[Lines], names: Sequence[str]) -> None:
    """Raise DataError where texts have not a line for each hypothesis; names: of the hypotheses, then of the others.

    >>> check_lines(["a", "b"], [["a"]], ["out.txt", "refs.txt"])
    Traceback (most recent call last):
    attnkit.errors.DataError: refs.txt: 1 line for the 2 lines of out.txt
    """
    count = len(hypotheses)
    for lines, name in zip(others, names[1:], strict=True):
        if len(lines) != count:
            problem = f"{counted(len(lines), 'line')} for the {counted(count, 'line')}"
            raise DataError(f"{problem} of {names[0]}", name)


def classify_lengths(texts: Lines, width: int) -> dict[str, list[int]]:
    """Return the indices of texts by their length in words, in classes of so many lengths, the shortest first.

    >>> classify_lengths(["a", "a b c", "a b", ""], 2)
    {'0': [3], '1-2': [0, 2], '3-4': [1]}
    """
    groups: dict[int, list[int]] = {}
    for at, text in enumerate(texts):
        groups.setdefault(-(-len(text.split()) // width), []).append(at)
    return {class_name(one, width): groups[one] for one in sorted(groups)}


def class_name(number: int, width: int) -> str:
    """Return the name of the class of lengths with this number: 0 of empty texts alone, 1 of the shortest.

    >>> class_name(2, 10), class_name(3, 1)
    ('11-20', '3')
    """
    first, last = (number - 1) * width + 1, number * width
    return str(last) if number == 0 or width == 1 else f"{first}-{last}"
