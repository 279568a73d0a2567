"""The samples: where their scripts are, and what the comment of each says."""

import re
from pathlib import Path

from attnkit.errors import FileError
from attnkit.help import PAGES, list_chapters

LECTURE = "# Lecture: "  # the start of the line of a script that names its chapter


def samples_folder() -> Path:
    """Locate the samples: in an installed package, or beside it in a clone."""
    package = PAGES.parent
    return next((folder for folder in (package / "samples", package.parent / "samples") if folder.is_dir()), package)


def sample_scripts() -> list[Path]:
    """List the scripts by number; FileError if they are not installed."""
    scripts = sorted(samples_folder().glob("[0-9]*.sh"))
    if not scripts:
        raise FileError("the samples are not installed with this copy of attnkit")
    return scripts


def list_samples() -> list[dict[str, str]]:
    """List every sample with its chapter and its idea, in the order of the lecture.

    >>> list_samples()[0]["chapter"], list_samples()[-1]["chapter"]
    ('recurrence', '')
    """
    rows = [{"name": path.stem} | read_comment(path.read_text(encoding="utf-8")) for path in sample_scripts()]
    order = [chapter.name for chapter in list_chapters()]
    return sorted(rows, key=lambda row: order.index(row["chapter"]) if row["chapter"] in order else len(order))


def read_comment(script: str) -> dict[str, str]:
    r"""Read the comment at the head of a script: its chapter, and its first sentence.

    >>> read_comment("#!/usr/bin/env bash\n# One idea: it takes\n# two lines. And more.\n# Lecture: masks\nset -e\n")
    {'chapter': 'masks', 'idea': 'One idea: it takes two lines.'}
    """
    lines = script.split("\n")[1:]
    comment = lines[: next(number for number, line in enumerate(lines) if not line.startswith("# "))]
    chapter = "".join(line.removeprefix(LECTURE) for line in comment if line.startswith(LECTURE))
    text = " ".join(line[2:] for line in comment if not line.startswith(LECTURE))
    return {"chapter": chapter, "idea": re.split(r"(?<=[.?]) ", text)[0]}
