"""BLEU and chrF of translations, as sacrebleu computes and signs them."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from attnkit import callbacks
from attnkit.errors import AttnkitWarning
from attnkit.generation.length_classes import with_classes
from attnkit.libraries import call_library, import_library
from attnkit.records import Array, Labels, Record, Tensor

Lines = Sequence[str]


METRICS = ("bleu", "chrf")
PART = 500  # lines whose n-grams are in memory at a time
TOKENIZED = 100  # lines that end in " .", as in sacrebleu


class Metric(NamedTuple):
    """The scores of a metric, from 0 to 100, of all lines and of each group."""

    name: str
    signature: str
    scores: list[float]


def score_translations(
    hypotheses: Lines, references: Sequence[Lines], word_order: int = 0, groups: Sequence[Sequence[int]] = ()
) -> list[Metric]:
    """BLEU and chrF of hypotheses with references, and of groups of lines.

    references  for each translator the lines that belong to the hypotheses
    word_order  of the n-grams of words of chrF: 2 is chrF++
    groups      the indices of the lines of each group, each line in one of them

    UsageError if sacrebleu is missing. The lines are counted part by part: sacrebleu itself keeps the n-grams of
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
    if (count := sum(line.endswith(" .") for line in hypotheses)) >= TOKENIZED:
        problem = f"{count:,} lines end in ' .': the metrics expect text that is not split into tokens"
        warnings.warn(problem, AttnkitWarning, stacklevel=2)
    return metrics


def measure_translations(
    hypotheses: Lines, references: Sequence[Lines], word_order: int, groups: Mapping[str, Sequence[int]]
) -> Record:
    """Measure BLEU and chrF of translations, and of each of some classes of lines.

    groups  class -> the indices of its lines, each line in one class; {}: no classes

    The other arguments are those of `score_translations`.
    """
    metrics = score_translations(hypotheses, references, word_order, list(groups.values()))
    labels: dict[str, Labels] = {
        "metric": [one.name for one in metrics],
        "signature": [one.signature for one in metrics],
    }
    whole = {name: Tensor(np.array(one.scores[0]), ()) for name, one in zip(METRICS, metrics, strict=True)}
    whole["sentences"] = Tensor(np.array(len(hypotheses)), ())
    columns: dict[str, list[Any]] = {name: one.scores[1:] for name, one in zip(METRICS, metrics, strict=True)}
    record = with_classes(whole, columns, groups) if groups else Record({}).with_tensors(whole)
    return record.with_tensors({}, labels)


def add_statistics(metric: Any, hypotheses: Lines, references: Sequence[Lines], group_of: Array) -> Array:
    """Sum what a metric counts in each line, a row for each group."""
    sums: Array = np.zeros((int(group_of.max(initial=0)) + 1, 0), np.int64)
    for at in range(0, len(hypotheses), PART):
        callbacks.current().on_progress(f"line {at:,} of {len(hypotheses):,}")
        part = slice(at, at + PART)
        counts = np.array(metric._extract_corpus_statistics(hypotheses[part], [lines[part] for lines in references]))
        if not sums.size:
            sums = np.zeros((len(sums), counts.shape[1]), np.int64)
        np.add.at(sums, group_of[part], counts)
    return sums
