"""Lines of two columns: a sentence and its translation, or a label and a text."""

from attnkit.errors import DataError, counted


def parse_pairs(text: str, name: str) -> list[tuple[int, str, str]]:
    """Read tab-separated pairs: line number, source and target of each line.

    >>> parse_pairs("je dors\\tI sleep\\n\\noui\\tyes\\n", "pairs.tsv")
    [(1, 'je dors', 'I sleep'), (3, 'oui', 'yes')]
    """
    return parse_columns(text, name, "pairs", ("source", "target"))


def parse_columns(text: str, name: str, content: str, columns: tuple[str, str]) -> list[tuple[int, str, str]]:
    """Read a tab-separated text: line number and both columns of each line.

    `content` and `columns` name the lines and their columns in errors. DataError names the line that has no tab, more
    than one, or nothing on a side; and a file without such lines.
    """
    lines = []
    first, second = columns
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        sides = [side.strip() for side in line.split("\t")]
        if len(sides) != 2:
            raise DataError(f"line {number}: {counted(len(sides), 'column')} (expected {first}, tab, {second})", name)
        if not all(sides):
            raise DataError(f"line {number}: no {f'{second} after' if sides[0] else f'{first} before'} the tab", name)
        lines.append((number, sides[0], sides[1]))
    if not lines:
        raise DataError(f"no {content} (expected lines of {first}, tab, {second})", name)
    return lines
