"""Write sections as Markdown: a heading, the formula and a table for each."""

from collections.abc import Iterator, Sequence

from attnkit.display.figures.shapes import Drawing, Panel, Section, Table


def markdown_page(sections: Sequence[Section], title: str) -> str:
    r"""Write sections below a title; a section without panels is the heading of those after it.

    >>> page = markdown_page([Section("1. embed", []), Section("x", [Table([["a|b"], ["1"]])], "a + b")], "Sum")
    >>> print(page, end="")
    # Sum
    <BLANKLINE>
    ## 1. embed
    <BLANKLINE>
    ### x = a + b
    <BLANKLINE>
    | a\|b |
    | --- |
    | 1 |
    """
    blocks = [f"# {title}", *(block for section in sections for block in _blocks(section))]
    return "\n\n".join(blocks) + "\n"


def _blocks(section: Section) -> Iterator[str]:
    formula = f" = {section.formula}" if section.formula else ""
    if section.title:
        yield f"{'###' if section.panels else '##'} {section.title}{formula}"
    if section.description:
        yield section.description
    yield from map(_panel, section.panels)
    yield from section.notes


def _panel(panel: Panel) -> str:
    if isinstance(panel, Table):
        return _table(panel)
    if isinstance(panel, Drawing):
        return "(a drawing, in the HTML and PDF of this sheet)"
    return "\n".join(["```text", *panel.lines, "```"])


def _table(table: Table) -> str:
    head, *rows = [[text.replace("|", r"\|") for text in row] for row in table.rows]
    rules = ["---" if at in table.left else "---:" for at in range(len(head))]
    lines = [f"| {' | '.join(row)} |" for row in (head, rules, *rows)]
    return "\n".join([*([f"**{table.title}**", ""] if table.title else []), *lines])
