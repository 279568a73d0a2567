"""A tool's command line, split by Typer and converted by its types."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from attnkit.cli import TOOLS, find_tool, options
from attnkit.cli.causes import convert_option
from attnkit.cli.stage import Stage
from attnkit.cli.tool import INPUT, Tool
from attnkit.errors import UsageError
from attnkit.options import complete_operand

TYPER_ERROR: Any = typer.BadParameter.__mro__[1]  # base of the errors that Typer raises for a command line
# what stands for a hyphen, and for a space within a flag and its value, while help is wrapped, so that they stay whole
NO_BREAK, NO_SPACE = "\N{NON-BREAKING HYPHEN}", "\N{NO-BREAK SPACE}"
OUTPUT = "Output (`attnkit help output`)"  # the section of the options of all tools, which that page explains


class Command(typer.core.TyperCommand):
    """The command of a tool."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        operands = typer.core.TyperArgument(
            param_decls=["operands"],
            metavar=tool.operand,
            nargs=-1,
            show_default=False,
            autocompletion=lambda context, args, incomplete: complete_operand(incomplete),
        )
        known = {name.rstrip("_").replace("_", "-") for name in tool.options}
        parameters: list[Any] = [*[operands] * bool(tool.operand), *tool.options.values()]
        super().__init__(
            tool.name,
            params=parameters,
            help=inspect.cleandoc(tool.function.__doc__ or "").replace("-", NO_BREAK),
            context_settings={
                "help_option_names": ["-h", "--help"],
                "token_normalize_func": lambda word: (
                    hyphenated if (hyphenated := word.replace("_", "-")) in known else word
                ),
            },
            rich_markup_mode=None,
        )

    def get_help(self, ctx: Any) -> str:
        """Format the help of the tool; no line breaks at a hyphen."""
        return super().get_help(ctx).replace(NO_BREAK, "-").replace(NO_SPACE, " ")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of the tool in its sections, then those of all tools."""
        titles = self.tool.titles | {
            name: OUTPUT for name in ("help", *options.COMMON) if name not in self.tool.defaults
        }
        rows: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            if row := help_row(parameter, ctx):
                title = "Arguments" if parameter.name == "operands" else titles.get(parameter.name or "", "Options")
                rows.setdefault(title, []).append(row)
        flags = [flag.replace("-", NO_BREAK).replace(" ", NO_SPACE) for flag, _ in rows.pop(OUTPUT)]
        for title in ("Arguments", *self.tool.sections, "Options"):
            if rows.get(title):
                with formatter.section(title):
                    formatter.write_dl(rows[title])
        with formatter.section(OUTPUT):
            formatter.write_text("  ".join(flags))

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete options, without their help, which takes several lines."""
        return [type(one)(one.value) for one in super().shell_complete(ctx, incomplete)]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write which options exclude and which require each other."""
        self.epilog = self.tool.constraints.describe().replace("-", NO_BREAK)
        super().format_epilog(ctx, formatter)


def help_row(parameter: Any, ctx: Any) -> Any:
    """A flag with its value, and what the help says of it; None if it is hidden."""
    row = parameter.get_help_record(ctx)
    return row and (row[0], row[1].replace("-", NO_BREAK))


def open_command(tool: Tool, **settings: Any) -> tuple[Command, typer.Context]:
    """Build the command of a tool, and Typer's context of one use of it."""
    command = Command(tool)
    return command, typer.Context(command, info_name=f"attnkit {tool.name}", **command.context_settings, **settings)


def write_page(tool: Tool) -> str:
    """Write the page of a tool: its help as a terminal of the usual width shows it."""
    from attnkit import help as pages  # which no stage needs

    command, context = open_command(tool, terminal_width=pages.TOOL_WIDTH - 2)
    return command.get_help(context) + "\n"


def write_output_page(page: str) -> str:
    """Write the options of all tools into the block of the page of `help output`."""
    from attnkit import help as pages

    context = typer.Context(typer.core.TyperCommand("output"), terminal_width=pages.TOOL_WIDTH - 2)
    formatter = context.make_formatter()
    formatter.write_dl([help_row(options.declare(name, hint), context) for name, hint in options.COMMON.items()])
    options_of_all = formatter.getvalue().replace(NO_BREAK, "-")
    return re.sub(
        r"(```text\n).*?(```\n)", lambda block: f"{block[1]}{options_of_all}{block[2]}", page, flags=re.DOTALL
    )


def choose_tool(word: str) -> Tool:
    """Import the tool that the first word of a command names."""
    if word not in TOOLS:
        from attnkit.cli import hints

        kind = "option" if word.startswith("-") else "tool"
        raise UsageError(f"no {kind} {word!r}{hints.hint_at_tool(word) or '; attnkit --help lists the tools'}")
    return find_tool(word)


def parse(chosen: Tool, arguments: list[str]) -> Stage | None:
    """Parse a tool's command line into a stage; None once its help has been printed."""
    command, context = open_command(chosen)
    try:
        values, rest, order = command.make_parser(context).parse_args([*arguments])
    except TYPER_ERROR as error:
        raise UsageError(reword_error(error, chosen.name, arguments)) from None
    if values.pop("help", None):
        typer.echo(command.get_help(context))
        return None
    if [option.name for option in order].count("image") > 1:  # of other options the last one counts
        raise UsageError("given twice (expected one picture)", "--image")
    if rest:
        raise UsageError(f"got unexpected extra argument(s) ({' '.join(rest)})")
    operands = tuple(values.pop("operands", None) or ())
    values = {name: convert_option(chosen, name, value) for name, value in values.items()}
    passed = tuple(name for name in values if name in chosen.defaults)
    parameters = {name: values.pop(name, default) for name, default in chosen.defaults.items()}
    extra = {name: values.pop(name, None) for name in chosen.extra_names}
    try:
        if chosen.operand == INPUT and len(operands) > 1 and not chosen.takes_pair(operands):
            raise UsageError(f"expected one INPUT, got {len(operands)}: {' '.join(operands)}")
        chosen.constraints.check(parameters | extra, chosen.defaults)
    except UsageError as error:
        raise UsageError(f"{error.problem}{hint_at_input(error, parameters, operands)}", error.name) from None
    return Stage(chosen, parameters, values, extra, operands, passed)


def hint_at_input(error: UsageError, parameters: Mapping[str, Any], operands: Sequence[str]) -> str:
    """Suggest what to type for a missing model or an extra operand."""
    from attnkit.cli import hints

    takes_model = parameters.get("model_", "") is None
    hint = hints.hint_at_model("" if error.name else error.problem, operands) if takes_model else ""
    return hint or (hints.hint_at_operands(operands, parameters) if len(operands) > 1 and not error.name else "")


def reword_error(error: Any, tool: str, arguments: list[str]) -> str:
    """Reword an error of Typer to one line with a hint."""
    from attnkit.cli import hints

    wrong = error.option_name if hasattr(error, "possibilities") else ""
    if not wrong:
        message = error.format_message()
        return str(message[:1].lower() + message[1:].rstrip("."))
    if not wrong.startswith("--"):  # -heads, read as -h -e -a -d -s
        wrong = next((word for word in arguments if re.match(rf"-\w*{re.escape(wrong[1:])}", word)), wrong)
    return f"no such option: {wrong}{hints.hint_at_option(tool, wrong)}"


if __name__ == "__main__":
    from attnkit import help as pages

    for name in TOOLS:
        (pages.PAGES / "tools" / f"{name}.txt").write_text(write_page(find_tool(name)), encoding="utf-8")
    page = pages.PAGES / "output.md"
    page.write_text(write_output_page(page.read_text(encoding="utf-8")), encoding="utf-8")
