"""What was chosen among what: the candidates of a step, the beams of a search, the score of a text."""

import math
from collections.abc import Sequence

from attnkit.display.facts import facts_table
from attnkit.display.style import Style
from attnkit.display.text import ansi, glyphs
from attnkit.errors import escaped


def choice_table(
    title: str,
    rows: Sequence[tuple[int, str, float, float, float]],
    filters: Sequence[tuple[str, int, Sequence[str]]],
    chosen: tuple[str, float],
    look: Style,
) -> str:
    """One step: its candidates, what each filter removed, what was chosen, and how likely the model itself found it.

    rows     id, token, and the model's own logit and probability; the probability that the choice was made by
    filters  what changed the one into the other: name, how many tokens it removed, the likeliest of them

    >>> filters = [("temperature", 0, []), ("top-k", 2, ["dog", "cow"])]
    >>> print(choice_table("step 0", [(7, "cat", 2.5, 0.5, 0.75)], filters, ("cat", -0.6931), Style()))
    step 0
    id  token   logit  probability  after temperature, top-k
    ────────────────────────────────────────────────────────
    7   cat    2.5000       0.5000                    0.7500
    top-k removed 2: dog cow · chosen: cat (the model's own log-probability -0.6931)
    """
    width = 5 if filters else 4  # without filters the two probabilities are one
    after = f"after {', '.join(name for name, _, _ in filters)}"
    cells = [[str(id), token, *_decimals(numbers, look)][:width] for id, token, *numbers in rows]
    said = [
        f"{name} removed {count}: {' '.join(words)}{f' {glyphs(look).ellipsis}' if count > len(words) else ''}"
        for name, count, words in filters
        if count
    ]
    own = "the model's own log-probability" if filters else "log-probability"
    last = glyphs(look).join.join([*said, f"chosen: {chosen[0]} ({own} {_decimals(chosen[1:], look)[0]})"])
    heads = ["id", "token", "logit", "probability", after][:width]
    return facts_table(*_righted(heads, cells, range(2, width)), look, title, last)


def beams_table(title: str, rows: Sequence[tuple[str, float | None, float | None, str]], look: Style) -> str:
    """One step of a beam search: each text, whether it goes on, its sum of log-probabilities, its penalised score.

    rows  None for a number that there is not: a text has its score once it ended

    >>> print(beams_table("step 1", [("goes on", -0.5, None, "a cat"), ("ended", None, -0.75, "a")], Style()))
    step 1
    beam         sum    score  text
    ────────────────────────────────
    goes on  -0.5000        -  a cat
    ended          -  -0.7500  a
    """
    cells = [
        [state, *("-" if number is None else _decimals([number], look)[0] for number in numbers), text]
        for state, *numbers, text in rows
    ]
    return facts_table(*_righted(["beam", "sum", "score", "text"], cells, (1, 2)), look, title)


def _decimals(numbers: Sequence[float], look: Style) -> list[str]:
    """Numbers with as many decimals as tables have."""
    return [f"{number:.{look.precision}f}" for number in numbers]


def _righted(heads: list[str], rows: list[list[str]], numbers: Sequence[int]) -> tuple[list[str], list[list[str]]]:
    """The headings and rows of a table, its columns of numbers at their right edge."""
    wide = {at: max(len(row[at]) for row in [heads, *rows]) for at in numbers}
    heads, *rows = [[text.rjust(wide.get(at, 0)) for at, text in enumerate(row)] for row in [heads, *rows]]
    return heads, rows


def dim_then_bold(before: str, after: str, look: Style) -> str:
    """A text on a terminal, what it began with dim; its lines stay lines, what a terminal would obey is spelled out.

    >>> dim_then_bold("Once ", "upon\\na time", Style())
    'Once upon\\na time'
    """
    before, after = (escaped(text.expandtabs(), "\n") for text in (before, after))
    return "\n".join(ansi(line, "2", look) for line in before.split("\n")) + after


def scores_table(
    tokens: Sequence[str], ids: Sequence[int], logprobs: Sequence[float], ranks: Sequence[int], look: Style
) -> str:
    """The log-probability of each token, and what they come to: their sum, their mean, the perplexity.

    >>> print(scores_table(["a", "cat"], [0, 7], [-0.5, -1.5], [1, 3], Style()))
    token  id  log-probability  probability  rank
    ─────────────────────────────────────────────
    a       0          -0.5000       0.6065     1
    cat     7          -1.5000       0.2231     3
    2 tokens, sum -2.0000, mean -1.0000, perplexity 2.7183
    """
    cells = [
        [token, str(id), *_decimals([one, math.exp(one)], look), str(rank)]
        for token, id, one, rank in zip(tokens, ids, logprobs, ranks, strict=True)
    ]
    count, total = len(logprobs), sum(logprobs)
    mean = total / count if count else 0.0
    perplexity = math.exp(-mean) if -mean < 700 else math.inf
    summed, averaged, perplexed = _decimals([total, mean, perplexity], look)
    last = f"{count} token{'' if count == 1 else 's'}, sum {summed}, mean {averaged}, perplexity {perplexed}"
    heads = ["token", "id", "log-probability", "probability", "rank"]
    return facts_table(*_righted(heads, cells, (1, 2, 3, 4)), look, last=last)
