"""Figures of results, as `-o FILE.svg` and `-f svg` write them."""

from typing import TYPE_CHECKING

from attnkit.cli import views
from attnkit.cli.stage import Stage
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.display import Style
    from attnkit.display.figures import FigureOptions, Section


def encode_figure(stage: Stage, result: Record | str, kind: str) -> bytes:
    """Write a result as a figure, below what its stage reported beside it."""
    from attnkit.display import figures

    last = stage.extra.get("last", stage)  # of `run` the last stage
    looks = figure_options(last)
    if "sheet" in stage.extra:
        return figures.render_sheet(stage.extra["sheet"].sections, looks, kind, f"attnkit {stage.tool.name}")
    name = f"attnkit {last.tool.name}"
    beside = figures.block_sections([*stage.beside, *(last.beside if last is not stage else [])], looks)
    return figures.render_figure([*beside, *make_sections(result, last, looks)], looks, kind, name)


def figure_options(stage: Stage) -> "FigureOptions":
    """Read the flags of a stage that change the looks of its figure."""
    from attnkit.display.figures import FigureOptions

    look, common = stage.collect(views.LookOptions), stage.common
    numbers = True if look.numbers else False if look.no_numbers else None
    theme, title = common.get("theme"), common.get("title") or ""
    return FigureOptions(theme, title, numbers, common.get("precision"), look.range, look.cmap)


def make_sections(result: Record | str, stage: Stage, looks: "FigureOptions") -> "list[Section]":
    """The sections of a result: a text, or what is shown of a record."""
    from attnkit import display
    from attnkit.display.figures import block_sections

    if isinstance(result, str):
        return block_sections([display.Text(result)], looks)
    return block_sections(views.view_of(result, stage, figure_style(stage, looks)).blocks, looks)


def figure_style(stage: Stage, looks: "FigureOptions") -> "Style":
    """The style of the texts in the figure of a stage."""
    from attnkit.display import figures

    return figures.text_style(looks, plain_tokens=stage.common.get("tokens") != "raw")
