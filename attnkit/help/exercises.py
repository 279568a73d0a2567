"""The exercises of the lecture, as its file of exercises states them."""

import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from attnkit.help import PAGES, list_chapters


class Slip(NamedTuple):
    """A common mistake: the pipeline and tensor that show it, and what to tell."""

    pipeline: str
    tensor: str
    note: str


class Exercise(NamedTuple):
    """An exercise of a chapter.

    number    "3.2": the second of chapter 3
    tensors   name -> the tensor in nested lists, or the tensors of a file of parameters by name
    fresh     name -> the numbers, rows or matrices that fresh ones are drawn from, of a file of parameters also by
              their names
    pipeline  the solution, in which {name} is the file of a tensor; tensor: what of its record is the answer
    """

    number: str
    chapter: str
    title: str
    text: str
    tensors: Mapping[str, Any]
    fresh: Mapping[str, Any]
    pipeline: str
    tensor: str
    slips: tuple[Slip, ...]


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
            raw["pipeline"],
            raw.get("tensor", "x"),
            tuple(
                Slip(slip["pipeline"], slip.get("tensor", raw.get("tensor", "x")), slip["note"])
                for slip in raw.get("slip", [])
            ),
        )
        for chapter in list_chapters()
        for place, raw in enumerate(texts.get(chapter.name, []), start=1)
    ]
