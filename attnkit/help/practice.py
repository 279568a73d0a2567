"""What a chapter of the lecture ends with: its exercises and samples."""

from attnkit.help.exercises import read_exercises
from attnkit.help.samples import list_samples


def list_practice(chapter: str) -> str:
    """List the exercises and the samples of a chapter, in Markdown; "" without any.

    >>> list_practice("projections").splitlines()[3]
    '- `attnkit exercise 6.1`: Queries'
    """
    lines = [f"- `attnkit exercise {one.number}`: {one.title}\n" for one in read_exercises() if one.chapter == chapter]
    lines += [
        f"- `attnkit sample {row['name']}`: {row['idea']}\n" for row in list_samples() if row["chapter"] == chapter
    ]
    return f"\n## Practice\n\n{''.join(lines)}" if lines else ""
