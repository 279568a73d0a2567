"""Tables of generation: candidates, beams, and the score of a text."""

import math
from collections.abc import Sequence

from attnkit.display.facts import TextTable
from attnkit.display.labels import plain_labels
from attnkit.display.style import Style
from attnkit.display.text import ansi, glyphs
from attnkit.errors import counted, escaped
from attnkit.records import shared_labels


def choice_table(
    title: str,
    rows: Sequence[tuple[int, str, float, float, float]],
    filters: Sequence[tuple[str, int, Sequence[str]]],
    chosen: tuple[str, float],
    style: Style,
) -> TextTable:
    """One step of generation: candidates, tokens filtered out, the choice.

    rows     id, token, the model's logit and probability, and the probability after the filters
    filters  name, number of tokens it removed, the most probable of these
    chosen   token, and its log-probability in the model

    >>> from attnkit.display.facts import format_table
    >>> filters = [("temperature", 0, []), ("top-k", 2, ["dog", "cow"])]
    >>> table = choice_table("step 0", [(7, "cat", 2.5, 0.5, 0.75)], filters, ("cat", -0.6931), Style())
    >>> print(format_table(table, Style()))
    step 0
    id  token   logit  probability  after temperature, top-k
    ────────────────────────────────────────────────────────
    7   cat    2.5000       0.5000                    0.7500
    top-k removed 2: dog cow · chosen: cat (the model's own log-probability -0.6931)
    """
    removed = [word for _, _, words in filters for word in words]
    spelling = _spell([*(token for _, token, *_ in rows), *removed, chosen[0]], style)
    width = 5 if filters else 4  # without filters the two probabilities are one
    after = f"after {', '.join(name for name, _, _ in filters)}"
    cells = [[str(id), spelling[token], *_format_decimals(numbers, style)][:width] for id, token, *numbers in rows]
    more = f" {glyphs(style).ellipsis}"
    notes = [
        f"{name} removed {count}: {' '.join(spelling[word] for word in words)}{more if count > len(words) else ''}"
        for name, count, words in filters
        if count
    ]
    own = "the model's own log-probability" if filters else "log-probability"
    footer = glyphs(style).separator.join(
        [*notes, f"chosen: {spelling[chosen[0]]} ({own} {_format_decimals(chosen[1:], style)[0]})"]
    )
    heads = ["id", "token", "logit", "probability", after][:width]
    return TextTable(heads, cells, range(2, width), title, footer)


def beams_table(title: str, rows: Sequence[tuple[str, float | None, float | None, str]], style: Style) -> TextTable:
    """One step of a beam search: each text, its state, its scores.

    rows  state, sum, score, text; None for no number: a text has its score once it ended

    >>> from attnkit.display.facts import format_table
    >>> table = beams_table("step 1", [("goes on", -0.5, None, "a cat"), ("ended", None, -0.75, "a")], Style())
    >>> print(format_table(table, Style()))
    step 1
    beam         sum    score  text
    ────────────────────────────────
    goes on  -0.5000        -  a cat
    ended          -  -0.7500  a
    """
    cells = [
        [state, *("-" if number is None else _format_decimals([number], style)[0] for number in numbers), text]
        for state, *numbers, text in rows
    ]
    return TextTable(["beam", "sum", "score", "text"], cells, (1, 2), title)


def _format_decimals(numbers: Sequence[float], style: Style) -> list[str]:
    return [f"{number:.{style.precision}f}" for number in numbers]


def losses_table(
    rows: Sequence[tuple[str, str, float, float]], style: Style, title: str = "", *, has_weights: bool = False
) -> TextTable:
    """Token, target, probability and loss of each row, with total and mean.

    Losses with weights have no mean here: it divides by the weights.

    >>> from attnkit.display.facts import format_table
    >>> print(format_table(losses_table([("I", "am", 0.5, 0.6931), ("am", "a", 0.25, 1.3863)], Style()), Style()))
    token  target  probability    loss
    ──────────────────────────────────
    I      am           0.5000  0.6931
    am     a            0.2500  1.3863
    2 targets, total 2.0794, mean 1.0397, perplexity 2.8284
    """
    heads = ["token", "target", "probability", "loss"]
    cells = [[token, target, *_format_decimals(numbers, style)] for token, target, *numbers in rows]
    count, total = len(rows), sum(loss for *_, loss in rows)
    if not count:
        return TextTable(heads, [], title=title, footer="no targets")
    surprise = sum(-math.log(probability) if probability else math.inf for _, _, probability, _ in rows) / count
    perplexity = math.inf if surprise >= 700 else math.exp(surprise)
    numbers = {"total": total} | ({} if has_weights else {"mean": total / count}) | {"perplexity": perplexity}
    texts = [f"{name} {text}" for name, text in zip(numbers, _format_decimals([*numbers.values()], style), strict=True)]
    footer = ", ".join([counted(count, "target"), *texts])
    return TextTable(heads, cells, (2, 3), title, footer)


def _spell(tokens: Sequence[str], style: Style) -> dict[str, str]:
    return dict(zip(tokens, shared_labels(plain_labels(list(tokens))) if style.plain_tokens else tokens, strict=True))


def dim_then_bold(before: str, after: str, style: Style) -> str:
    """Draw `before` dim and `after` plain, with control characters escaped.

    >>> dim_then_bold("Once ", "upon\\na time", Style())
    'Once upon\\na time'
    """
    before, after = (escaped(text.expandtabs(), "\n") for text in (before, after))
    return "\n".join(ansi(line, "2", style) for line in before.split("\n")) + after


def scores_table(
    tokens: Sequence[str], ids: Sequence[int], logprobs: Sequence[float], ranks: Sequence[int], style: Style
) -> TextTable:
    """The log-probability of each token, with sum, mean and perplexity.

    >>> from attnkit.display.facts import format_table
    >>> print(format_table(scores_table(["a", "cat"], [0, 7], [-0.5, -1.5], [1, 3], Style()), Style()))
    token  id  log-probability  probability  rank
    ─────────────────────────────────────────────
    a       0          -0.5000       0.6065     1
    cat     7          -1.5000       0.2231     3
    2 tokens, sum -2.0000, mean -1.0000, perplexity 2.7183
    """
    spelling = _spell(tokens, style)
    cells = [
        [spelling[token], str(id), *_format_decimals([logprob, math.exp(logprob)], style), str(rank)]
        for token, id, logprob, rank in zip(tokens, ids, logprobs, ranks, strict=True)
    ]
    count, total = len(logprobs), sum(logprobs)
    mean = total / count if count else 0.0
    perplexity = math.exp(-mean) if -mean < 700 else math.inf
    texts = _format_decimals([total, mean, perplexity], style)
    footer = f"{counted(count, 'token')}, sum {texts[0]}, mean {texts[1]}, perplexity {texts[2]}"
    heads = ["token", "id", "log-probability", "probability", "rank"]
    return TextTable(heads, cells, (1, 2, 3, 4), footer=footer)
