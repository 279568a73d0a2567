"""Calls of the tools as a user writes them: mypy reads this file as strictly as the package, and the tests run it.

Each `type: ignore` is a mistake that a type checker must report: one that it does not is an error of its own.
"""

import pathlib

import numpy as np

import attnkit
from attnkit import Record


def attend_in_a_pipeline() -> Record:
    """Chain tools; what each gives is a record for the next."""
    record = attnkit.embed("The cat sat", dim=8, seed=1)
    record = attnkit.posenc(record, kind="sinusoidal")
    return attnkit.attend(record, heads=2, causal=True, window=(1, 0), keep=["weights"], only=("x", "weights"))


def pass_files_arrays_and_records(file: str) -> list[Record]:
    """Pass an operand as an array, a record, or the name of a file."""
    x = np.arange(6.0).reshape(2, 3)
    return [
        attnkit.layernorm(x, gamma=np.ones(3), dtype="float32"),
        attnkit.attend(Record({"x": x}), memory=Record({"x": x}), scale=1),
        attnkit.ffn(file, hidden=4),
        attnkit.ffn(pathlib.Path(file), hidden=4, activation="gelu"),
        attnkit.merge([attnkit.attend(x, partial=True)], join=True),
    ]


def show_compare_and_run() -> tuple[bool, str, tuple[int, ...]]:
    """Show a record, compare two, run a pipeline on one, and print its history."""
    record = attnkit.layernorm(np.arange(6.0).reshape(2, 3))
    text: str = repr(attnkit.show(record, heatmap=True, precision=2))
    report = attnkit.diff(record, record["x"] + 1, atol=0.5, all=True)
    assert text and not report.same and report["max_abs"][0] > 0.5
    script: str = attnkit.history(attnkit.peek(record, stats=True))
    result = attnkit.run("attend | layernorm", record)
    attnkit.plot(record, "x", slice="0").set_title("one word")
    return report.same, script.split("\n")[0], result["x"].shape


def record_what_a_program_computes(file: pathlib.Path) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float64]], int]:
    """Write an array to a recording, and use it as before."""
    with attnkit.record(file):
        eye: np.ndarray[tuple[int, int], np.dtype[np.float64]] = attnkit.tap("eye", np.eye(2))
        number: int = attnkit.tap("number", 2)
    return eye, number


def make_mistakes() -> None:
    """Make the mistakes that a type checker reports before the program runs."""
    x = np.zeros((2, 3))
    attnkit.attend(x, haeds=2)  # type: ignore[call-arg]
    attnkit.attend(x, heads="two")  # type: ignore[arg-type]
    attnkit.attend(x, align="left")  # type: ignore[arg-type]
    attnkit.posenc(x, kind="rotery")  # type: ignore[arg-type]
    attnkit.layernorm()  # type: ignore[call-arg]
    attnkit.show(x, heatmaps=True)  # type: ignore[call-arg]
    attnkit.record("mine.npz", number=1)  # type: ignore[call-arg]
    attnkit.attend(x).softmax()  # type: ignore[attr-defined]
