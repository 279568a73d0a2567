"""The exercises of the lecture, as its file of exercises states them."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnkit.help import PAGES, list_chapters


class Exercise(NamedTuple):
    """An exercise of a chapter.

    number    "3.2": the second of chapter 3
    tensors   name -> the tensor in nested lists, or the tensors of a file of parameters by name
    fresh     name -> the numbers, rows or matrices that fresh ones are drawn from, of a file of parameters also by
              their names
    multiples name of a tensor -> the factors of its rows, which are multiples of one row of fresh numbers
    pipeline  the solution, in which {name} is the file of a tensor; tensor: what of its record is the answer
    steps     the solution on paper: the name of a computation, with its inputs that have other names here, or that
              no tensor holds, and the step that is the answer, "" for the last one
    """

    number: str
    chapter: str
    title: str
    text: str
    tensors: Mapping[str, Any]
    fresh: Mapping[str, Any]
    multiples: Mapping[str, Sequence[float]]
    pipeline: str
    tensor: str
    steps: str
    inputs: Mapping[str, Any]
    answer: str

    def present(self) -> str:
        """The exercise as text: its question and its numbers."""
        return "\n".join([f"{self.number} {self.title}", "", self.text, "", *self._list_tensors()])

    def _list_tensors(self) -> list[str]:
        """Write each tensor in a line, parameters of a file by their own names."""
        lines = []
        for name, value in self.tensors.items():
            parts = value if isinstance(value, dict) else {name: value}
            lines += [f"{part} = {json.dumps(numbers)}" for part, numbers in parts.items()]
        return lines


def read_exercises() -> list[Exercise]:
    """The exercises of all chapters, in the order of the lecture.

    >>> read_exercises()[0].number
    '1.1'
    """
    texts = tomllib.loads((PAGES / "lecture" / "exercises.toml").read_text(encoding="utf-8"))
    return [
        Exercise(
            f"{chapter.number}.{place}",
            chapter.name,
            raw["title"],
            raw["text"].strip(),
            raw["tensors"],
            raw.get("fresh", {}),
            raw.get("multiples", {}),
            raw["pipeline"],
            raw.get("tensor", "x"),
            raw["steps"],
            raw.get("inputs", {}),
            raw.get("answer", ""),
        )
        for chapter in list_chapters()
        for place, raw in enumerate(texts.get(chapter.name, []), start=1)
    ]
