"""Reports of a run: the numbers of some steps, as a JSON line and as a line of text."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple


class Report(NamedTuple):
    """The numbers of a run at a step.

    loss           mean over the steps since the last report
    held_out_loss  of the held-out part; None where there is none
    bits_per_byte  the same loss in bits, for each byte of the text
    gradient_norm  of the last step, before clipping
    learning_rate  of the last step
    tokens         predicted so far; of labelled texts those read
    accuracy       of the labels of the held-out part
    """

    step: int
    loss: float
    held_out_loss: float | None
    bits_per_byte: float | None
    gradient_norm: float
    learning_rate: float
    tokens: int
    accuracy: float | None = None


OPTIONAL = ("held_out_loss", "bits_per_byte", "accuracy")


class Speed(NamedTuple):
    """What differs from run to run: tokens in a second, seconds so far, and seconds left, if that is known."""

    tokens_per_second: float
    seconds: float
    left: float | None = None


def report_values(report: Report, speed: Speed | None = None) -> dict[str, Any]:
    """Return the values of a report for a JSON line, without those that it has not; the speed only where it is.

    >>> report_values(Report(10, 2.5, None, None, 1.0, 0.001, 640))["loss"]
    2.5
    """
    values = {key: value for key, value in report._asdict().items() if value is not None}
    if speed is None:
        return values
    return {**values, "tokens_per_second": round(speed.tokens_per_second, 1), "seconds": round(speed.seconds, 2)}


def parse_report(values: Mapping[str, Any]) -> Report:
    """Return the report that `report_values` gave these values of; KeyError or TypeError for others."""
    optional: Any = {name: values.get(name) for name in OPTIONAL}
    others: Any = {name: values[name] for name in Report._fields if name not in optional}
    return Report(**optional, **others)


def table_rows(report: Report, speed: Speed, width: int) -> tuple[str, str]:
    """Return a report as a row of a table, below the headings: without the last columns where the width is too small.

    >>> for line in table_rows(Report(10, 2.5, 2.75, 3.968, 1.0, 0.001, 640), Speed(4321.0, 2.0), 70):
    ...     print(line)
        step     loss  held out  bits/byte  gradient      rate  tokens/s
          10   2.5000    2.7500      3.968         1     0.001     4,321
    """
    cells = {"step": f"{report.step:8,}", "loss": f"{report.loss:7.4f}"}
    if report.held_out_loss is not None:
        cells["held out"] = f"{report.held_out_loss:8.4f}"
    if report.accuracy is not None:
        cells["accuracy"] = f"{report.accuracy:8.1%}"
    if report.bits_per_byte is not None:
        cells["bits/byte"] = f"{report.bits_per_byte:9.3f}"
    cells |= {"gradient": f"{report.gradient_norm:8.3g}", "rate": f"{report.learning_rate:8.3g}"}
    cells["tokens/s"] = f"{speed.tokens_per_second:8,.0f}"
    headings = numbers = ""
    for heading, number in cells.items():
        if len(numbers) + len(number) + 2 > width:
            break
        headings += f"{heading:>{len(number) + 2}}"
        numbers += f"  {number}"
    return headings[2:], numbers[2:]


def bits_per_byte(loss: float, bytes_per_token: float | None) -> float | None:
    """Return a loss of a token, in nats, as bits for each byte of the text.

    >>> bits_per_byte(math.log(2), 2.0)
    0.5
    """
    return None if bytes_per_token is None else loss / math.log(2) / bytes_per_token


def time_text(seconds: float) -> str:
    """Return a time as minutes and seconds.

    >>> time_text(75.2), time_text(3700)
    ('1:15', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
