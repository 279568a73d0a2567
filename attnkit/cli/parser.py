"""A tool's command line, built with Typer from the options in its signature."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from attnkit.cli import options
from attnkit.cli.options import Option
from attnkit.cli.stage import INPUT, Stage, Tool
from attnkit.errors import UsageError, flag_name

TYPER_ERROR: Any = typer.BadParameter.__mro__[1]  # base of the errors that Typer raises for a command line
REPEATABLE = ("NAMES", "PATTERNS", "NAME=FILE", "LAYER[:HEADS]")  # lists, to which each further flag adds


class Command(typer.core.TyperCommand):
    """A command of Typer with the help of the tool that is the object of its context."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options of the tool in its sections, then those of all tools."""
        rows: dict[str, list[tuple[str, str]]] = {}
        titles = {name: title for title, names in ctx.obj.sections.items() for name in names.split()}
        titles |= {name: "Output" for name in ("help", *options.COMMON) if name not in ctx.obj.flags}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            title = titles.get(parameter.name, "Options")
            rows.setdefault("Arguments" if parameter.name == "operands" else title, []).extend([row] if row else [])
        for title in ("Arguments", *ctx.obj.sections, "Options", "Output"):
            if rows.get(title):
                with formatter.section(title):
                    formatter.write_dl(rows[title])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write which options exclude and which require each other."""
        self.epilog = ctx.obj.constraints.describe()
        super().format_epilog(ctx, formatter)


def parse(chosen: Tool, arguments: list[str]) -> Stage | None:
    """Parse a tool's command line into a call; None once its help has been printed."""
    flags = collect_flags(chosen)
    raw = parse_arguments(chosen, flags, arguments)
    if not raw:
        return None
    operands = tuple(raw.pop("operands", None) or ())
    values = {name: parse_value(chosen, name, flags[name], texts) for name, texts in raw.items() if texts}
    passed = tuple(name for name in values if name in chosen.defaults)
    parameters = {name: values.pop(name, default) for name, default in chosen.defaults.items()}
    extra = {name: values.pop(name, None) for name in chosen.extra}
    common = values
    try:
        if chosen.operand == INPUT and len(operands) > 1:
            raise UsageError(f"expected one INPUT, got {len(operands)}: {' '.join(operands)}")
        chosen.constraints.check(parameters | extra, chosen.defaults)
    except UsageError as error:
        raise UsageError(f"{error.problem}{hint_at_input(error, parameters, operands)}", error.name) from None
    return Stage(chosen, parameters, common, extra, operands, passed)


def hint_at_input(error: UsageError, parameters: Mapping[str, Any], operands: Sequence[str]) -> str:
    """Return a hint for a command line that lacks a model, or has an operand too many."""
    from attnkit.cli import hints

    takes_model = parameters.get("model_", "") is None
    hint = hints.hint_at_model("" if error.name else error.problem, operands) if takes_model else ""
    return hint or (hints.hint_at_operands(operands, parameters) if len(operands) > 1 and not error.name else "")


def collect_flags(chosen: Tool) -> dict[str, Option]:
    """Collect the options of a tool's command line: its own, then those of all tools, without a short name in use."""
    own = chosen.flags | chosen.extra
    taken = {option.short for option in own.values()}
    return own | {
        name: option._replace(short="") if option.short in taken else option
        for name, option in chosen.shared.items()
        if name not in own
    }


def parse_arguments(chosen: Tool, flags: dict[str, Option], arguments: list[str]) -> dict[str, Any]:
    """Split a command line into {parameter: its texts} with Typer; {} once the help has been printed."""
    parameters = [declare_operands(chosen.operand)] if chosen.operand else []
    parameters += [declare_option(name, flag, chosen.defaults) for name, flag in flags.items()]
    known = {flag_name(name).removeprefix("--") for name in flags}
    command = Command(
        chosen.name,
        params=parameters,
        callback=dict,
        help=inspect.cleandoc(chosen.function.__doc__ or ""),
        context_settings={
            "help_option_names": ["-h", "--help"],
            "obj": chosen,
            "token_normalize_func": lambda word: (
                hyphenated if (hyphenated := word.replace("_", "-")) in known else word
            ),
        },
        rich_markup_mode=None,
    )
    try:
        raw = command.main(arguments, prog_name=f"attnkit {chosen.name}", standalone_mode=False)
    except TYPER_ERROR as error:
        raise UsageError(reword_error(error, chosen.name, arguments)) from None
    return raw or {}  # the exit code of the help is 0


def reword_error(error: Any, tool: str, arguments: list[str]) -> str:
    """Reword an error of Typer to one line, with a hint at the option that was probably meant."""
    from attnkit.cli import hints

    wrong = error.option_name if hasattr(error, "possibilities") else ""
    if not wrong:
        message = error.format_message()
        return str(message[:1].lower() + message[1:].rstrip("."))
    if not wrong.startswith("--"):  # -heads, read as -h -e -a -d -s
        wrong = next((word for word in arguments if re.match(rf"-\w*{re.escape(wrong[1:])}", word)), wrong)
    return f"no such option: {wrong}{hints.hint_at_option(tool, wrong)}"


def declare_operands(operand: str) -> Any:
    """Declare the positional arguments of a tool for Typer."""
    return typer.core.TyperArgument(param_decls=["operands"], metavar=operand, nargs=-1, show_default=False)


def declare_option(name: str, option: Option, defaults: dict[str, Any]) -> Any:
    """Declare an option for Typer, which collects all its texts; `parse_single` chooses among them."""
    declarations = [name, flag_name(name), *filter(None, [option.short])]
    if option.parser is None:
        return typer.core.TyperOption(param_decls=declarations, count=True, type=int, default=0, help=option.help)
    default = defaults.get(name)
    is_empty = default is None or default is False or default in ((), "")
    suffix = "" if is_empty else f" [default: {','.join(map(str, default)) if isinstance(default, tuple) else default}]"
    return typer.core.TyperOption(
        param_decls=declarations, multiple=True, metavar=option.metavar, help=option.help + suffix
    )


def parse_value(chosen: Tool, name: str, option: Option, raw_value: Any) -> Any:
    """Parse the value of an option; an error ends with the hint that the tool has at this value."""
    try:
        return parse_single(name, option, raw_value)
    except UsageError as error:
        hint = "" if isinstance(raw_value, int) else chosen.hint_at_value(name, raw_value[-1])
        raise UsageError(f"{error.problem}{hint}", error.name) from None


def parse_single(name: str, option: Option, raw_value: Any) -> Any:
    """Parse the value of an option from its texts: the last one, or all of a list; a switch has none."""
    if option.parser is None:
        return True
    if option.metavar in REPEATABLE:
        raw_value = [",".join(raw_value)]
    return options.parse_value(flag_name(name), option, raw_value if option.multiple else raw_value[-1])
