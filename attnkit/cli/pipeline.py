"""Pipelines in one process: text to stages, chained to one stream."""

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from attnkit import formats
from attnkit.cli import TOOLS, operands, parser
from attnkit.cli.calls import make_item, named_files
from attnkit.cli.output_format import (
    DISPLAY_FORMATS,
    FIGURE_FORMATS,
    Result,
    check_figure_flags,
    text_format,
)
from attnkit.cli.stage import Stage, running
from attnkit.cli.tool import Records
from attnkit.errors import AttnkitError, UsageError
from attnkit.interpret.stage_calls import StageCall, run_noted
from attnkit.options import EngineOptions
from attnkit.records import Record

# a backslash and line end, among the quotes, comments and other backslashes that may hold one
CONTINUATION = re.compile(r"""('[^']*'|#[^\n]*|\\[^\n])|\\\n|("(?:[^"\\]|\\.)*")""", re.DOTALL)


EMPTY = "an empty stage: nothing on one side of a |"
LONGEST = 1 << 17  # characters of a pipeline: the bytes of the longest argument of a program on Linux
MOST_STAGES = 100  # each calls the one before it: Python limits how deep calls are nested


def join_continued_lines(text: str) -> str:
    r"""Join lines that end in a backslash, as a shell does.

    >>> join_continued_lines("attend \\\n  | ffn 'a\\\nb'  # c \\\n")
    "attend   | ffn 'a\\\nb'  # c \\\n"
    """

    def join(match: re.Match[str]) -> str:
        return match[1] or re.sub(r"(\\[^\n])|\\\n", r"\1", match[2] or "")

    return CONTINUATION.sub(join, text)


def parse_stages(text: str) -> list[Stage]:
    """Parse the stages of a pipeline, quoted as in a shell, separated by |.

    Text after # is a comment. A line end is a space, and a backslash before it is left out. A ~ that begins a word
    is the home folder.

    >>> [stage.tool.name for stage in parse_stages("embed 'a b' --dim 2 | attnkit layernorm  # normalize")]
    ['embed', 'layernorm']
    """
    if len(text) > LONGEST:
        raise UsageError(f"a pipeline of {len(text):,} characters (limit {LONGEST:,})")
    lexer = shlex.shlex(join_continued_lines(text), posix=True, punctuation_chars="|<>&;")
    lexer.whitespace_split, lexer.commenters = True, "#"
    parts: list[list[str]] = [[]]
    try:
        for word in lexer:
            add_word(parts, word)
    except ValueError as error:
        raise UsageError(f"cannot read the pipeline: {str(error).lower()}") from None
    stages = [parse_stage(part[1:] if part[:1] == ["attnkit"] else part) for part in parts]
    for stage in stages[:-1]:
        stage.format.is_piped = True
        if stage.common.get("output"):
            raise UsageError(f"{stage.tool.name} -o {stage.common['output']}: only the last stage writes a file")
        if stage.common.get("format") in DISPLAY_FORMATS or (stage.format.shows_table and "format" not in stage.common):
            raise UsageError(f"{stage.tool.name} prints text for people, which the next stage cannot read (-f FORMAT)")
        if stage.returns_text:
            text_format(stage.common, stage.gives)
        check_figure_flags(stage.common | stage.extra, stage.common.get("format") in FIGURE_FORMATS, stage.tool.name)
    return stages


def add_word(parts: list[list[str]], word: str) -> None:
    """Add a word to the last stage, or begin another one."""
    if word == "|":
        if not parts[-1]:
            raise UsageError(EMPTY)
        if len(parts) == MOST_STAGES:
            problem = f"more than {MOST_STAGES} stages; -o FILE writes a result that another pipeline reads"
            raise UsageError(problem)
        parts.append([])
    elif word and set(word) <= set("|<>&;"):
        raise UsageError(f"{word!r} is shell syntax: a pipeline of run has only | (-o FILE writes, INPUT reads)")
    else:
        parts[-1].append(os.path.expanduser(word) if re.match("~(/|$)", word) else word)


def is_pipeline(text: str) -> bool:
    """Whether a text begins with the name of a tool, or has several stages.

    >>> is_pipeline("embed 'a b' --dim 2"), is_pipeline("gpt2"), is_pipeline("a | b")
    (True, False, True)
    """
    return "|" in text or text.removeprefix("attnkit ").partition(" ")[0] in TOOLS


@contextlib.contextmanager
def blame_stage(name: str) -> Iterator[None]:
    """Attribute usage errors to the stage of this name, not to `run`."""
    try:
        yield
    except UsageError as error:
        error.place = error.place or f"attnkit {name}"
        raise


def parse_stage(arguments: list[str], refused: tuple[str, ...] = ("run", "history")) -> Stage:
    """Parse one stage of a pipeline from its words.

    refused  the tools that cannot be a stage
    """
    if not arguments:
        raise UsageError(EMPTY)
    try:
        chosen = parser.choose_tool(arguments[0])
    except UsageError as error:
        program = arguments[0]
        if "did you mean" in error.problem or not shutil.which(program):
            raise
        raise UsageError(f"no tool {program!r}; other programs read the output of run: run … | {program}") from None
    if chosen.name in refused:
        raise UsageError(f"{chosen.name} cannot be a stage of a pipeline")
    with blame_stage(chosen.name):
        stage = parser.parse(chosen, arguments[1:])
    if stage is None:
        raise UsageError("--help cannot be a stage of a pipeline")
    return stage


def give_record(first: Stage, record: Any, call: str) -> Records | None:
    """The stream of a Python caller's record. Files become operands.

    call  how the record is given, for the error where the first stage reads one and there is none
    """
    if record is None:
        if first.count_stdin():
            raise UsageError(f"{first.tool.name} needs a record or an array: {call}")
        return None
    if paths := named_files(first.tool, record):
        first.operands = paths
        return None
    return Records("json", iter([make_item(first.tool, record)]))


def chain_stages(
    stages: list[Stage],
    after: Callable[[int, Stage, Result], None] = lambda at, stage, result: None,
    upstream: Records | None = None,
) -> Records:
    """Chain stages, and return the stream out of the last one.

    after   (index, stage, result), called with every result of every stage
    """
    for at, stage in enumerate(stages):
        here = stage.open_stream(upstream)
        results = with_callbacks(here.items, partial(after, at, stage))
        if stage is stages[-1]:
            break
        format, results = stage.format.settle(stage.format.choose(here.format), results)
        stage.note_idle_options(format)
        takes_bfloat16 = stages[at + 1].dtype == "bfloat16"
        arriving = split_pipeline(convert_all(stage, results, format), format, takes_bfloat16)
        upstream = Records(format, arriving)
    return Records(here.format, results)


def convert_all(stage: Stage, items: Iterator[Result], format: str) -> Iterator[Result]:
    """Yield results as a format holds them, with errors of their stage."""
    for result in items:
        try:
            with running(stage):
                converted = stage.format.convert(result, format)
        except AttnkitError as error:
            error.place = f"attnkit {stage.tool.name}"
            raise
        yield converted


def with_callbacks(results: Iterator[Result], after: Callable[[Result], None]) -> Iterator[Result]:
    """Yield the results, and call `after` with each before it."""
    for result in results:
        after(result)
        yield result


def split_pipeline(results: Iterator[Result], format: str, bfloat16: bool) -> Iterator[Result]:
    """Yield results as a pipe in this format would deliver them."""
    for result in results:
        yield formats.round_trip(result, format, bfloat16) if isinstance(result, Record) else result


def keep_calls(stage: Stage, number: int, calls: list[StageCall]) -> None:
    """Have a stage of a pipeline add each call of its tool to a list.

    number  the number of the stage, from 1
    """
    compute = stage.compute
    texts = {name: value for name, value in stage.parameters.items() if isinstance(value, str)}
    loaded = {name: value for name, value in texts.items() if stage.tool.flags[name].load}
    own = {name: value[1:] for name, value in loaded.items() if value.startswith(":")}
    piped = tuple(name for name, value in loaded.items() if operands.is_stdin(value) and number > 1)

    def keep(item: Any, **values: Any) -> Result:
        is_chat = stage.tool.name == "decode" and values.get("model_") is not None and values["model_"].pictures
        if values.get("model_") is not None and not is_chat:
            values["model_"] = values["model_"].reading(values.get("image") is not None)
        result, prepared = run_noted(compute, item, values)
        stage.format.keeps_history = True  # so that its files are hashed: the history of the result names them
        named = tuple(stage.operands)
        calls.append(StageCall(number, stage.tool.name, compute, item, values, own, piped, result, prepared, named))
        return result

    stage.compute = keep


def share_engine(
    stage: Stage, stages: Sequence[Stage], tools: Sequence[str] = ("attend", "encode", "decode", "train")
) -> None:
    """Give stages of some tools the engine of the whole pipeline if they name none."""
    chosen = stage.collect(EngineOptions)
    able = [one for one in stages if one.tool.name in tools]
    if not able and chosen not in (EngineOptions(), EngineOptions("numpy")):  # which computes the other tools
        names = f"{', '.join(tools[:-1])} and {tools[-1]}"
        raise UsageError(f"no stage of the pipeline computes on an engine: {names} do", "--engine")
    for one in able:
        if one.collect(EngineOptions) == EngineOptions():
            one.extra |= chosen._asdict()
