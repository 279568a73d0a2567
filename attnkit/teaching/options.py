"""The options of a class of students."""

from typing import Annotated, NamedTuple

import typer


class ClassOptions(NamedTuple):
    """The names of a class, and the forms that it has filled in."""

    class_: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="draw a sheet for each student of a CSV file of names; -o DIR writes the sheets and their forms",
        ),
    ] = None
    mark: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="mark the filled forms of a folder; --class FILE lists the missing ones too"),
    ] = None
