"""A tool's command line, built with Typer from the flags in its signature."""

import inspect
from dataclasses import replace
from typing import Annotated, Any

import typer

from attnkit.cli import constraints, options
from attnkit.cli.options import Flag
from attnkit.cli.stage import Stage
from attnkit.cli.tool import Tool
from attnkit.errors import UsageError, flag_name, suggest

TYPER_ERROR: Any = typer.BadParameter.__mro__[1]  # base of the errors that Typer raises for a command line
REPEATABLE = ("NAMES", "PATTERNS", "NAME=FILE", "LAYER[:HEADS]")  # lists that may be given in several flags


def parse(chosen: Tool, arguments: list[str]) -> Stage | None:
    """Parse a tool's command line into a call; None once its help has been printed."""
    flags = collect_flags(chosen)
    raw = parse_arguments(chosen, flags, arguments)
    if not raw:
        return None
    operands = tuple(raw.pop("operands") or ())
    if chosen.operand == "[INPUT]" and len(operands) > 1:
        raise UsageError(f"one INPUT, not {len(operands)}: {' '.join(operands)}")
    values = {name: parse_single(name, flag, raw[name]) for name, flag in flags.items()}
    parameters = {name: chosen.defaults[name] if values[name] is None else values[name] for name in chosen.flags}
    extra = {name: values[name] for name in chosen.extra}
    common = {name: values[name] for name in options.COMMON if name not in chosen.flags and values[name] is not None}
    constraints.check_flags(chosen, parameters | extra)
    return Stage(chosen, parameters, common, extra, operands)


def collect_flags(chosen: Tool) -> dict[str, Flag]:
    """Collect the flags of a tool's command line: its own, then those of all tools, without a short name in use."""
    own = chosen.flags | chosen.extra
    taken = {flag.short for flag in own.values()}
    return own | {
        name: replace(flag, short="") if flag.short in taken else flag
        for name, flag in options.COMMON.items()
        if name not in own
    }


def parse_arguments(chosen: Tool, flags: dict[str, Flag], arguments: list[str]) -> dict[str, Any]:
    """Split a command line into {parameter: its texts} with Typer; {} once the help has been printed."""
    parameters = [
        declare_operands(chosen.operand),
        *(declare_option(name, flag, chosen.defaults) for name, flag in flags.items()),
    ]
    raw: dict[str, Any] = {}

    def callback(**values: Any) -> None:
        raw.update(values)

    callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    callback.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(
        chosen.name,
        help=chosen.function.__doc__,
        epilog=constraints.describe_flags(chosen),
        context_settings={"help_option_names": ["-h", "--help"]},
    )(callback)
    try:
        typer.main.get_command(app).main(arguments, prog_name=f"attnkit {chosen.name}", standalone_mode=False)
    except TYPER_ERROR as error:
        raise UsageError(reword_error(error)) from None
    return raw


def reword_error(error: Any) -> str:
    """Reword an error of Typer to one line, with a hint at the option that was probably meant."""
    from attnkit import commands

    wrong, close = getattr(error, "option_name", ""), getattr(error, "possibilities", None)
    hint = commands.flag_hint(error.ctx.info_name.split()[-1], wrong) if wrong and error.ctx else ""
    known = hint or (wrong and close)
    message = error.message + (hint or suggest(wrong, close or [])) if known else error.format_message()
    return str(message[:1].lower() + message[1:].rstrip("."))


def declare_operands(operand: str) -> Any:
    """Declare the positional arguments of a tool for Typer."""
    declared = typer.Argument(metavar=operand, show_default=False)
    return inspect.Parameter(
        "operands",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[list[str] | None, declared],
    )


def declare_option(name: str, flag: Flag, defaults: dict[str, Any]) -> Any:
    """Declare a flag for Typer; `parse_single` checks that it comes once."""
    spellings = [flag_name(name)]
    spellings += [flag.short] if flag.short else []
    default = defaults.get(name)
    is_empty = default is None or default is False or default in ((), "")
    suffix = "" if is_empty else f" [default: {','.join(map(str, default)) if isinstance(default, tuple) else default}]"
    if flag.parse is None:
        declared, kind, start = (
            typer.Option(*spellings, count=True, help=flag.help, show_default=False),
            int,
            0,
        )
    else:
        declared = typer.Option(*spellings, metavar=flag.metavar, help=flag.help + suffix, show_default=False)
        kind, start = list[str] | None, None  # type: ignore[assignment]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=start, annotation=Annotated[kind, declared])


def parse_single(name: str, flag: Flag, raw: Any) -> Any:
    """Parse the one value of a flag from its texts, or from how often a switch occurs; None where it is absent."""
    spelling = flag_name(name)
    if flag.metavar in REPEATABLE and raw:
        raw = [",".join(raw)]
    times = raw if isinstance(raw, int) else len(raw or [])
    if times > 1 and not flag.several:
        raise UsageError(f"given {times} times", spelling)
    if flag.parse is None:
        return True if times else None
    if not raw:
        return None
    return options.parse_value(spelling, flag, raw if flag.several else raw[0])
