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

WRONG: Any = typer.BadParameter.__mro__[1]  # every error of the command line that Typer raises
SEVERAL = ("NAMES", "PATTERNS", "NAME=FILE", "LAYER[:HEADS]")  # what may also come one by one


def parse(chosen: Tool, arguments: list[str]) -> Stage | None:
    """A tool's command line as a call; None once its help has been printed."""
    own = chosen.flags | chosen.extra
    taken = {flag.short for flag in own.values()}
    flags = own | {
        name: replace(flag, short="") if flag.short in taken else flag
        for name, flag in options.COMMON.items()
        if name not in own
    }
    parameters = [
        argument(chosen.operand),
        *(option(name, flag, chosen.defaults) for name, flag in flags.items()),
    ]
    given: dict[str, Any] = {}

    def callback(**values: Any) -> None:
        given.update(values)

    callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    callback.__annotations__ = {one.name: one.annotation for one in parameters}
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(
        chosen.name,
        help=chosen.function.__doc__,
        epilog=constraints.describe_flags(chosen),
        context_settings={"help_option_names": ["-h", "--help"]},
    )(callback)
    try:
        typer.main.get_command(app).main(arguments, prog_name=f"attnkit {chosen.name}", standalone_mode=False)
    except WRONG as error:
        raise UsageError(reworded(error)) from None
    if not given:
        return None
    operands = tuple(given.pop("operands") or ())
    if chosen.operand == "[INPUT]" and len(operands) > 1:
        raise UsageError(f"one INPUT, not {len(operands)}: {' '.join(operands)}")
    values = {name: single(name, flag, given[name]) for name, flag in flags.items()}
    parameters_of = {name: chosen.defaults[name] if values[name] is None else values[name] for name in chosen.flags}
    extra = {name: values[name] for name in chosen.extra}
    common = {name: values[name] for name in options.COMMON if name not in chosen.flags and values[name] is not None}
    constraints.check_flags(chosen, parameters_of | extra)
    return Stage(chosen, parameters_of, common, extra, operands)


def reworded(error: Any) -> str:
    """What Typer says of a wrong command line, as a line of ours with the option that was probably meant."""
    from attnkit import commands

    wrong, close = getattr(error, "option_name", ""), getattr(error, "possibilities", None)
    hint = commands.flag_hint(error.ctx.info_name.split()[-1], wrong) if wrong and error.ctx else ""
    known = hint or (wrong and close)
    message = error.message + (hint or suggest(wrong, close or [])) if known else error.format_message()
    return str(message[:1].lower() + message[1:].rstrip("."))


def argument(operand: str) -> Any:
    """The positional arguments of a tool as Typer declares them."""
    declared = typer.Argument(metavar=operand, show_default=False)
    return inspect.Parameter(
        "operands",
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[list[str] | None, declared],
    )


def option(name: str, flag: Flag, defaults: dict[str, Any]) -> Any:
    """A flag as Typer declares it; each may come once, which `single` checks."""
    spellings = [flag_name(name)]
    spellings += [flag.short] if flag.short else []
    default = defaults.get(name)
    plain = default is None or default is False or default in ((), "")
    shown = "" if plain else f" [default: {','.join(map(str, default)) if isinstance(default, tuple) else default}]"
    if flag.parse is None:
        declared, kind, start = (
            typer.Option(*spellings, count=True, help=flag.help, show_default=False),
            int,
            0,
        )
    else:
        declared = typer.Option(*spellings, metavar=flag.metavar, help=flag.help + shown, show_default=False)
        kind, start = list[str] | None, None  # type: ignore[assignment]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=start, annotation=Annotated[kind, declared])


def single(name: str, flag: Flag, given: Any) -> Any:
    """The one value of a flag, parsed; None where it was not given."""
    spelling = flag_name(name)
    if flag.metavar in SEVERAL and given:
        given = [",".join(given)]
    times = given if isinstance(given, int) else len(given or [])
    if times > 1 and not flag.several:
        raise UsageError(f"given {times} times", spelling)
    if flag.parse is None:
        return True if times else None
    if not given:
        return None
    return options.parse_value(spelling, flag, given if flag.several else given[0])
