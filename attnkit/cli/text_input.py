"""Readers of tools that take text: TEXT arguments, standard input, the stage before."""

import contextlib
import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from attnkit import formats
from attnkit.cli.error_context import is_stdin
from attnkit.cli.operands import stdin_or_error
from attnkit.cli.stage import Records, Stage, read_records
from attnkit.errors import FileError, UsageError, flag_name
from attnkit.formats import Source, open_source
from attnkit.inference.operands import decode_text
from attnkit.record import Record

TEXT_NEEDED = "give TEXT, or pipe it in"


def read_texts(call: Stage, upstream: Records | None, alone: bool | None = None) -> Records:
    """Feed: the TEXT arguments, else standard input: one text, or one a line with --lines and --batch.

    alone  whether nothing is read, where the tool's own parameters do not say it all
    """
    lines, batch = call.extra.get("lines"), call.parameters["batch"]
    if call.tool.alone(call.parameters) if alone is None else alone:
        if call.operands or lines or batch:
            raise UsageError("--ids and --image stand in place of text: no TEXT, --lines or --batch with them")
        return Records(None, iter([()]))
    if call.operands:
        for text in filter(tensor_file, call.operands):
            reads = f"; attnkit {call.tool.name} … < {tensor_file(text)}" if call.tool.feed is not read_texts else ""
            what = "a pipe" if is_pipe(text) else "a file of tensors"
            raise UsageError(f"{what}, and TEXT is due{reads}", text)
        return Records(None, iter([(text,) for text in call.operands] if lines else [call.operands]))
    arriving = read_lines(open_source(stdin_or_error(TEXT_NEEDED))) if upstream is None else upstream_lines(upstream)
    if lines:
        return Records(None, ((line,) for line in arriving))
    return Records(None, (tuple(all_lines) if batch else ("\n".join(all_lines),) for all_lines in [list(arriving)]))


def read_model_input(call: Stage, upstream: Records | None, alone: bool | None = None) -> Records:
    """Feed of what runs a whole model: the TEXT arguments, or what arrives: records as they are, or text.

    Standard input is a record where it begins as one: a file of tensors, or JSON with the key "tensors".
    """
    alone = call.tool.alone(call.parameters) if alone is None else alone
    if call.operands or alone:
        return read_texts(call, upstream, alone)
    if upstream is None:
        source = open_source(stdin_or_error(TEXT_NEEDED))
        if looks_like_tensors(source.peek_available(16)):
            return call.reading(source, formats.read(source), "-", "")
        return read_texts(call, Records(None, read_lines(source)), alone)
    first = next(upstream.items, None)
    items = itertools.chain([] if first is None else [first], upstream.items)
    return (
        Records(upstream.format, items) if isinstance(first, Record) else read_texts(call, Records(None, items), alone)
    )


def looks_like_tensors(start: bytes) -> bool:
    """Whether bytes begin a file of tensors, and not a text.

    >>> looks_like_tensors(b'{"tensors":{'), looks_like_tensors(b"[CLS] is a token"), looks_like_tensors(b"The cat")
    (True, False, False)
    """
    header = start[3:8] == bytes(5) and start[8:9] in (b"{", b"")  # that of safetensors
    return header or start.startswith((b"\x93NUMPY", b"PK\x03\x04", b'{"tensors"'))


def is_pipe(name: str) -> bool:
    """Whether this is the name of a pipe; a text too long for a name is none.

    >>> is_pipe("word " * 100)
    False
    """
    try:
        return stat.S_ISFIFO(os.stat(name).st_mode)
    except (OSError, ValueError):
        return False


def tensor_file(text: str) -> str:
    """The file of tensors, or the pipe, that a text names, as FILE or as FILE:NAME; "" where it names none."""
    for name in (text, text.rpartition(":")[0]):
        if is_pipe(name):  # `<(another pipeline)`
            return name
        if os.path.isfile(name):
            with contextlib.suppress(FileError), open_source(name) as source:
                return name if looks_like_tensors(source.peek(16)) else ""
    return ""


def read_lines(source: Source) -> Iterator[str]:
    """The lines of a source, each as soon as it is there."""
    rest, empty = b"", True
    while chunk := source.read_available():
        empty = False
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (decode_text(line, source.name).removesuffix("\r") for line in whole)
    if empty:
        raise source.empty_error("text")
    if rest:
        yield decode_text(rest, source.name)


def upstream_lines(upstream: Records) -> Iterator[str]:
    """The lines that the stage before this one prints."""
    for item in upstream.items:
        if isinstance(item, Record):
            raise UsageError("text is due, and the stage before writes tensors")
        yield from item.split("\n")


def read_prompts(call: Stage, upstream: Records | None) -> Records:
    """Feed of decode: records, or with a model of words also text, unless flags say what a text begins with."""
    from attnkit.inference.prompts import encodes_text, generates_text

    given = call.parameters
    config = None if given["model_"] is None else call.content("model_").config
    if config is not None and encodes_text(config, given["layer"]) and not any(map(tensor_file, call.operands[:1])):
        return read_model_input(call, upstream)
    if config is None or not generates_text(config, given["layer"]):
        if len(call.operands) > 1:
            raise UsageError(f"one INPUT, not {len(call.operands)}: {' '.join(call.operands)}")
        if given["memory"] is None or given["ids"] is not None or given["image"] is not None:
            return read_records(call, upstream)
        if not call.operands and is_stdin(given["memory"]):
            raise UsageError("only one operand can be '-' (standard input)")
        return read_records(call, upstream, alone=False)  # what a decoder without words maps comes beside its memory
    if call.extra.get("top") and not given["steps"]:
        raise UsageError("needs --steps, where a model generates text", "--top")
    several = bool(call.operands or call.extra.get("lines") or given["batch"])
    alone = needs_no_input(given)
    if given["cache_in"] is not None and given["ids"] is None:
        alone = not several  # text goes on from the cache
    elif config.encoder and given["memory"] is None and given["cache_in"] is None:
        alone = False  # ids are what the target begins with
    if not alone and any(map(is_stdin, (given["ids"], given["cache_in"]))) and not call.operands:
        raise UsageError("only one operand can be '-' (standard input)")
    if alone and several:
        flag = next(name for name in ("ids", "image", "memory", "cache_in") if given[name] is not None)
        raise UsageError("stands in place of text: no TEXT, --lines or --batch with it", flag_name(flag))
    return read_model_input(call, upstream, alone)


def needs_no_input(given: Mapping[str, Any]) -> bool:
    """Whether flags alone say what a text begins with, so that nothing else is read."""
    files = [given[name] for name in ("ids", "image", "memory")]
    return given["model_"] is not None and (
        given["cache_in"] is not None or any(one is not None and not str(one).startswith(":") for one in files)
    )
