"""Describe the tools to programs: `attnkit help --json`, and tables of SKILL.md.

Options are described in the words of JSON Schema: type, items, enum, minimum, exclusiveMinimum, maximum, default.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from attnkit import __version__
from attnkit import help as pages
from attnkit.cli import TOOLS, options
from attnkit.cli.constraints import INPUT, Constraints, split_term
from attnkit.cli.options import Option
from attnkit.cli.parser import choose_tool
from attnkit.cli.stage import Stage
from attnkit.cli.tool import Tool
from attnkit.errors import EXIT_CODES, flag_name

SKILL = pages.PAGES / "skill" / "SKILL.md"
MADE = re.compile(r"(<!-- made from the code: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def describe_tools(names: Sequence[str]) -> dict[str, Any]:
    """Describe tools, their common exit codes and formats, and the pages of help."""
    return {
        "version": __version__,
        "usage": "attnkit TOOL [INPUT] [OPTIONS]",
        "exit_codes": {str(code): meaning for code, meaning in EXIT_CODES.items()},
        "formats": [*options.FORMATS],
        "topics": pages.list_topics(),
        "tools": [describe_tool(choose_tool(name)) for name in names],
    }


def describe_tool(tool: Tool) -> dict[str, Any]:
    """Describe a tool: its input, its result, its options and the rules between them.

    >>> mask = describe_tool(choose_tool("mask"))
    >>> mask["operand"], mask["gives"], mask["constraints"][0]["terms"]
    ('[INPUT]', 'record', [['--offset'], ['--align']])
    """
    text, _, examples = inspect.cleandoc(tool.function.__doc__ or "").replace("\b\n", "").partition("\nExample")
    return {
        "name": tool.name,
        "summary": TOOLS[tool.name],
        "help": text.strip(),
        "operand": tool.operand,
        "gives": Stage(tool, dict(tool.defaults)).gives,
        "options": [
            describe_option(tool, name, tool.titles.get(name, "Output" if name in options.COMMON else "Options"))
            for name in tool.options
        ],
        "constraints": list(describe_constraints(tool.constraints)),
        "examples": [line.strip() for line in examples.splitlines()[1:] if line.strip()],
    }


def describe_option(tool: Tool, name: str, section: str) -> dict[str, Any]:
    """Describe an option: its flags, type, bounds or choices, default and file.

    >>> described = describe_option(choose_tool("attend"), "heads", "")
    >>> described["flags"], described["type"], described["minimum"], described["default"]
    (['--heads'], 'integer', 1, 1)
    """
    option = tool.options[name]
    is_list = option.multiple
    values = {"enum": [*option.choices]} if option.choices else {}
    kind: dict[str, Any] = {"type": "array", "items": {"type": "string"} | values} if is_list else values_of(option)
    return {
        "name": name.rstrip("_"),
        "flags": option.opts,
        **kind,
        **({"file": option.load} if option.load else {}),
        **({} if option.is_flag else {"metavar": option.metavar}),
        "default": default_of(option, tool.defaults.get(name)),
        "section": section,
        "help": option.help,
    }


def default_of(option: Option, default: Any) -> Any:
    """The default of an option in its type: a list, or the text that says the same.

    >>> attend = choose_tool("attend")
    >>> default_of(attend.options["window"], (-1, -1)), default_of(attend.options["keep"], ())
    ('-1,-1', [])
    """
    if option.is_flag:
        return bool(default)
    if not isinstance(default, tuple):
        return default
    return [*default] if option.multiple else ",".join(map(str, default)) or None


def values_of(option: Option) -> dict[str, Any]:
    """The type of one value of an option: choices, or a number with its bounds."""
    if option.choices:
        return {"type": "string", "enum": [*option.choices]}
    if option.is_flag:
        return {"type": "boolean"}
    kind = option.type
    is_number = kind.name.startswith(("int", "float"))
    least = "exclusiveMinimum" if getattr(kind, "min_open", False) else "minimum"
    bounds = {least: getattr(kind, "min", None), "maximum": getattr(kind, "max", None)}
    name = "string" if not is_number else "integer" if kind.name.startswith("int") else "number"
    return {"type": name} | {word: bound for word, bound in bounds.items() if bound is not None}


def describe_constraints(tables: Constraints) -> Iterator[dict[str, Any]]:
    """Yield the rules between the options of a tool.

    A term, as `--kind=alibi`, is met where one of its flags is passed or the default.

    exclusive  at most one term may be met
    requires   the first term needs the second
    one_of     one term must be met
    agree      options that may only repeat what the source, an option or the input, says
    """
    rows = [("exclusive", row) for row in tables.exclusive]
    rows += [("requires", pair) for pair in tables.requires] + [("one_of", row) for row in tables.one_of]
    for rule, terms in rows:
        yield {"rule": rule, "terms": [spell_term(term) for term in terms]}
    for source, (names, _) in tables.repeats.items():
        from_input = source == INPUT
        yield {
            "rule": "agree",
            "source": "input" if from_input else flag_name(source),
            "options": [flag_name(name) for name in names.split()],
        }


def spell_term(term: str) -> list[str]:
    """The flags that meet a term, each by itself.

    >>> spell_term("memory|key"), spell_term("kind=alibi|t5")
    (['--memory', '--key'], ['--kind=alibi', '--kind=t5'])
    """
    names, valued, allowed = split_term(term)
    return [*map(flag_name, names), *(f"{flag_name(valued)}={value}" for value in allowed)]


def write_skill(text: str) -> str:
    """Make the parts of SKILL.md that come from the code anew."""
    made = {
        "tools": "".join(f"- `{name}`: {summary}\n" for name, summary in TOOLS.items()),
        "codes": "| exit code | meaning |\n|---|---|\n"
        + "".join(f"| {code} | {meaning} |\n" for code, meaning in EXIT_CODES.items()),
    }
    return MADE.sub(lambda part: f"{part[1]}{made[part[2]]}{part[3]}", text)


if __name__ == "__main__":
    SKILL.write_text(write_skill(SKILL.read_text(encoding="utf-8")), encoding="utf-8")
