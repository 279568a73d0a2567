"""Pages of help as a notebook of Jupyter, with the output of their commands.

The format is version 4.5 of https://nbformat.readthedocs.io/en/latest/format_description.html
"""

import doctest
import json
from collections.abc import Iterator, Sequence
from typing import Any

from attnkit.display.documents.inline import Page, formula_html
from attnkit.help import PageBlock

# `!` runs a command on a terminal, as the pages show it: 100 columns, without colour
SET_UP = "%env SHELL=bash\n%env COLUMNS=100\n%env NO_COLOR=1\n%env TERM=dumb"
SET_UP_OUTPUT = "env: SHELL=bash\nenv: COLUMNS=100\nenv: NO_COLOR=1\nenv: TERM=dumb\n"
EMPTY_FOLDER = "import os, tempfile\n\nos.chdir(tempfile.mkdtemp())  # an empty folder for the files of this chapter"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebook_document(pages: Sequence[Page]) -> str:
    """Write pages as one notebook.

    >>> page = Page("masks", "# masks\\n\\nA text.\\n\\n```console\\n$ echo hi\\nhi\\n```\\n")
    >>> for cell in json.loads(notebook_document([page]))["cells"]:
    ...     print(cell["cell_type"], "".join(cell["source"]).replace("\\n", "; "))
    markdown # masks; ; A text.
    code %env SHELL=bash; %env COLUMNS=100; %env NO_COLOR=1; %env TERM=dumb
    code !echo hi
    """
    cells, is_set_up = list[dict[str, Any]](), False
    for page in pages:
        own = [*page_cells(page)]
        has_commands = any(cell["cell_type"] == "code" for cell in own)
        if has_commands and page.is_chapter:
            own.insert(1, code_cell(EMPTY_FOLDER, ""))
        if has_commands and not is_set_up:
            own.insert(1, code_cell(SET_UP, SET_UP_OUTPUT))
            is_set_up = True
        cells += own
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    notebook = {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def page_cells(page: Page) -> Iterator[dict[str, Any]]:
    """Yield the cells of a page: the text between commands, and the commands."""
    text: list[str] = []
    for block in page.blocks():
        if block.kind not in ("console", "python"):
            text.append(block_markdown(block))
            continue
        if text:
            yield markdown_cell(text)
            text = []
        if block.kind == "console":
            yield code_cell(*split_console(block.text))
        else:
            yield from python_cells(block.text)
    if text:
        yield markdown_cell(text)


def block_markdown(block: PageBlock) -> str:
    if block.kind == "formula":
        return f"<p><i>{formula_html(block.text)}</i></p>"
    if block.kind in ("heading", "paragraph", "list", "table"):
        return block.text
    return f"```{block.kind}\n{block.text}\n```"


def split_console(text: str) -> tuple[str, str]:
    """The commands of a block as lines of a cell, and what they print.

    >>> split_console("$ echo hi\\nhi\\n$ true")
    ('!echo hi\\n!true', 'hi\\n')
    """
    lines = text.split("\n")
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    shown = "".join(f"{line}\n" for line in lines if not line.startswith("$ "))
    return "\n".join(f"!{command}" for command in commands), shown


def python_cells(text: str) -> Iterator[dict[str, Any]]:
    """Yield the cells of a block of Python; each value that it shows ends a cell.

    >>> [("".join(cell["source"]), len(cell["outputs"])) for cell in python_cells(">>> x = 1\\n>>> x\\n1\\n>>> y = 2")]
    [('x = 1\\nx', 1), ('y = 2', 0)]
    """
    source = ""
    for example in doctest.DocTestParser().get_examples(text + "\n"):
        source += example.source
        if example.want:
            is_printed = example.source.startswith("print(")
            yield code_cell(source.rstrip("\n"), example.want if is_printed else "", "" if is_printed else example.want)
            source = ""
    if source or ">>>" not in text:
        yield code_cell((source or text).rstrip("\n"), "")


def markdown_cell(texts: Sequence[str]) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": as_lines("\n\n".join(texts))}


def code_cell(source: str, shown: str, value: str = "") -> dict[str, Any]:
    """A cell of code that has not been run here, with what it printed elsewhere.

    value  the text of the value of its last line, if that is shown
    """
    outputs: list[dict[str, Any]] = []
    if shown:
        outputs.append({"name": "stdout", "output_type": "stream", "text": as_lines(shown)})
    if value:
        data = {"text/plain": as_lines(value.rstrip("\n"))}
        outputs.append({"output_type": "execute_result", "execution_count": None, "data": data, "metadata": {}})
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": outputs,
        "source": as_lines(source),
    }


def as_lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)
