"""Readers of tools that take text: arguments, standard input, another stage."""

import contextlib
import itertools
import os
import re
import shlex
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attnkit import formats
from attnkit.cli.operands import is_stdin, stdin_or_error
from attnkit.cli.stage import Stage, read_records, running
from attnkit.cli.tool import Records
from attnkit.errors import AttnkitNote, AttnkitWarning, DataError, FileError, UsageError, flag_name, with_article
from attnkit.formats import Source, open_source
from attnkit.formats.streams import decode_text
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit.model import Config

Blocks = Iterator[Iterator[str]]  # lines that arrive together
Together = Callable[[Stage, Blocks], Iterator[Any]]  # makes the items of --lines from blocks of lines
TEXT_NEEDED = "give TEXT, or pipe it in"


def read_texts(
    stage: Stage, upstream: Records | None, alone: bool | None = None, together: Together | None = None
) -> Records:
    """Read the TEXT arguments or standard input: one text, or one for each line.

    alone     whether no text is read; None: as the parameters of the tool decide
    together  makes the items of --lines; None: one for each line
    """
    lines, batch = stage.extra.get("lines"), stage.parameters.get("batch")
    if stage.tool.needs_no_input(stage.parameters) if alone is None else alone:
        if stage.operands or lines or batch:
            raise UsageError(
                "--ids, --image and --audio replace text: they cannot be combined with TEXT, --lines or --batch"
            )
        return Records(None, iter([()]))
    if not stage.operands:
        return divide_texts(stage, stdin_blocks(stage) if upstream is None else upstream_blocks(upstream), together)
    check_texts(stage)
    return (
        divide_texts(stage, iter([iter(stage.operands)]), together) if lines else Records(None, iter([stage.operands]))
    )


def divide_texts(stage: Stage, blocks: Blocks, together: Together | None) -> Records:
    """The items of a tool for lines: one for each line with --lines, else one of all."""
    if stage.extra.get("lines"):
        items = together(stage, blocks) if together else ((line,) for line in itertools.chain.from_iterable(blocks))
        return Records(None, items)
    lines = [*itertools.chain.from_iterable(blocks)]
    return Records(None, iter([tuple(lines) if is_text_a_line(stage) else ("\n".join(lines),)]))


def is_text_a_line(stage: Stage) -> bool:
    """Whether each line of the input is a text, of a batch or of documents."""
    return bool(stage.parameters.get("batch")) or stage.parameters.get("rerank") is not None


def stdin_blocks(stage: Stage) -> Blocks:
    """The lines of standard input as they arrive; UsageError for tensors."""
    source = open_source(stdin_or_error(TEXT_NEEDED))
    if looks_like_tensors(source.peek_available(16)):
        raise UsageError("expected text, got a record of tensors; --ids - takes its ids", source.name)
    warn_of_ids(stage, source)
    return read_blocks(source)


def warn_of_ids(stage: Stage, source: Source) -> None:
    """Warn of a text that is a JSON list of token ids, where ids are taken too."""
    if "ids" not in stage.parameters or not looks_like_ids(source.peek_available(256)):
        return
    config = stage.files.load("model_").config if stage.parameters.get("model_") is not None else None
    if config is not None and not any(stack and stack.vocab for stack in (config.encoder, config.decoder)):
        return
    is_target = stage.tool.name == "decode" and config is not None and config.encoder and config.decoder  # of --ids
    remedy = "attnkit show -f npy in between makes them ids" if is_target else "--ids - reads them as ids"
    with running(stage):
        warnings.warn(f"a list of numbers, taken as text; {remedy}", AttnkitWarning, stacklevel=2)


def looks_like_ids(start: bytes) -> bool:
    """Decide whether bytes start a JSON list of whole numbers, and no other text.

    >>> looks_like_ids(b"[[1, 2], [3, 4]]"), looks_like_ids(b"[1] and [2]"), looks_like_ids(b"[1]")
    (True, False, False)
    """
    return bool(re.fullmatch(rb"\s*\[(\s*\[|\s*\d+\s*,)[\d\s,\[\]]*", start))


def replaces_text(parameters: Mapping[str, Any]) -> bool:
    """Decide whether ids, an image or a sound is the input, so that no text is read."""
    return any(parameters.get(name) is not None for name in ("ids", "image", "audio"))


def check_texts(stage: Stage) -> None:
    """Refuse a TEXT that names a pipe or a file of tensors; warn of other files."""
    for text in filter(find_tensor_file, stage.operands):
        remedy = (
            f"; attnkit {stage.tool.name} … < {find_tensor_file(text)}" if stage.tool.reader is not read_texts else ""
        )
        raise UsageError(f"{'a pipe' if is_pipe(text) else 'a file of tensors'} (expected TEXT){remedy}", text)
    with running(stage):
        warn_odd_texts(stage.operands, is_batch=bool(stage.extra.get("lines")) or is_text_a_line(stage))


def warn_odd_texts(texts: Sequence[str], is_batch: bool) -> None:
    """Warn of texts that are names of files, and of words that are not one text.

    is_batch  whether a flag says that there are several texts
    """
    for text in texts:
        if is_file(text):
            problem = f"{text!r} is the name of a file, taken as text; < {shlex.quote(text)} reads it"
            warnings.warn(problem, AttnkitWarning, stacklevel=2)
    if len(texts) > 1 and not is_batch and not any(re.search(r"\s", text) for text in texts):
        note = f"{len(texts)} texts of one word each, a batch (--batch says so); in quotes they are one text"
        warnings.warn(note, AttnkitNote, stacklevel=2)


def is_file(text: str) -> bool:
    """Decide whether a text is the name of a file; one too long for a name is not."""
    try:
        return stat.S_ISREG(os.stat(text).st_mode)
    except (OSError, ValueError):
        return False


def read_model_input(
    stage: Stage, upstream: Records | None, alone: bool | None = None, together: Together | None = None
) -> Records:
    """Read the input of a tool that runs a whole model: texts or records.

    Standard input is read as a record where it starts as a file of tensors, or as JSON with the key "tensors".
    """
    alone = stage.tool.needs_no_input(stage.parameters) if alone is None else alone
    if stage.operands or alone:
        return read_texts(stage, upstream, alone, together)
    if upstream is None:
        source = open_source(stdin_or_error(TEXT_NEEDED))
        start = source.peek_available(16)
        if looks_like_tensors(start):
            return stage.read_stream(source, formats.read(source))
        if start.startswith(b"RIFF"):
            raise DataError("a WAV file (expected text or tensors); --audio - reads it", source.name)
        warn_of_ids(stage, source)
        return divide_texts(stage, read_blocks(source), together)
    first = next(upstream.items, None)
    items = itertools.chain([] if first is None else [first], upstream.items)
    if isinstance(first, Record):
        return Records(upstream.format, items)
    return read_texts(stage, Records(None, items), alone, together)


def looks_like_tensors(start: bytes) -> bool:
    """Decide whether bytes are the start of a file of tensors, and not of a text.

    >>> looks_like_tensors(b'{"tensors":{'), looks_like_tensors(b"[CLS] is a token"), looks_like_tensors(b"The cat")
    (True, False, False)
    """
    start = re.sub(rb"^\{\s*", b"{", start)  # of indented JSON
    header = start[3:8] == bytes(5) and start[8:9] in (b"{", b"")  # that of safetensors
    return header or start.startswith((b"\x93NUMPY", b"PK\x03\x04", b'{"tensors"'))


def is_pipe(name: str) -> bool:
    """Decide whether a text is the name of a pipe; one too long for a name is not.

    >>> is_pipe("word " * 100)
    False
    """
    try:
        return stat.S_ISFIFO(os.stat(name).st_mode)
    except (OSError, ValueError):
        return False


def find_tensor_file(text: str) -> str:
    """Find the file of tensors, or the pipe, that a text names; "" for none."""
    for name in (text, text.rpartition(":")[0]):
        if is_pipe(name):  # `<(another pipeline)`
            return name
        if os.path.isfile(name):
            with contextlib.suppress(FileError), open_source(name) as source:
                return name if looks_like_tensors(source.peek(16)) else ""
    return ""


def read_blocks(source: Source) -> Blocks:
    """Yield the lines of a source, those that arrive together in one block."""
    rest, empty = b"", True
    while chunk := source.read_available():
        empty = False
        *whole, rest = (rest + chunk).split(b"\n")
        yield (decode_text(line, source.name).removesuffix("\r") for line in whole)
    if empty:
        raise source.empty_error("text")
    if rest:
        yield iter([decode_text(rest, source.name)])


def upstream_blocks(upstream: Records) -> Blocks:
    """Yield the lines of each text that the stage before prints."""
    for item in upstream.items:
        if isinstance(item, Record):
            raise UsageError("expected text, but the previous stage writes tensors")
        yield iter(item.split("\n"))


def read_prompts(stage: Stage, upstream: Records | None) -> Records:
    """Read the input of decode: records or text, unless flags give the prompt."""
    task = stage.task
    if task.reads == "text" and not any(map(find_tensor_file, stage.operands[:1])):
        return read_model_input(stage, upstream)
    options, config = task.options, task.options.model_ and task.options.config
    if task.reads != "prompt":
        if config is not None and (flag := find_input_flag(config)) and not all(map(is_input, stage.operands)):
            raise UsageError(
                f"{with_article(config.family)} model takes {flag} FILE, or hidden states in a file", stage.operands[0]
            )
        return read_decoder_input(stage, upstream)
    if options.choices.asks_for_next_word and options.emit == "text":
        raise UsageError("needs --steps with --emit text", "--top")
    if options.choices.asks_for_next_word and options.length.max_tokens == 0:
        raise UsageError("needs --max-tokens of at least 1 when a model generates text", "--top")
    shows_picture = options.model_ is not None and options.model_.pictures is not None  # beside the text
    alone = is_prompt_complete(stage, has_encoder=bool(config.encoder), shows_picture=shows_picture)
    check_prompt_sources(stage, alone)
    return read_model_input(stage, upstream, alone)


def find_input_flag(config: "Config") -> str:
    """The flag of what an encoder reads in place of text; "" for one of text."""
    return "--audio" if config.sound else "--image" if config.patches and not config.decoder else ""


def is_input(name: str) -> bool:
    """Decide whether an operand names standard input or a file, which may be missing.

    >>> is_input("-"), is_input("states.npz"), is_input("hello there.")
    (True, True, False)
    """
    return name == "-" or os.path.exists(name) or bool(re.search(r"^\S*([.:]\w+|/\S*)$", name))


def read_decoder_input(stage: Stage, upstream: Records | None) -> Records:
    """Read the records of decode, with the decoder's input beside a memory."""
    parameters = stage.parameters
    if len(stage.operands) > 1:
        from attnkit.cli.hints import hint_at_model

        hint = "" if parameters["model_"] else hint_at_model("needs --model DIR", stage.operands)
        raise UsageError(f"expected one INPUT, got {len(stage.operands)}: {' '.join(stage.operands)}{hint}")
    if parameters["memory"] is None or parameters["ids"] is not None or parameters["image"] is not None:
        return read_records(stage, upstream)
    if not stage.operands and is_stdin(parameters["memory"]):
        raise UsageError("only one operand can be '-' (standard input)")
    return read_records(stage, upstream, needs_no_input=False)


def has_texts(stage: Stage) -> bool:
    """Decide whether TEXT, --lines or --batch is given."""
    return bool(stage.operands or stage.extra.get("lines") or stage.parameters.get("batch"))


def is_prompt_complete(stage: Stage, has_encoder: bool, shows_picture: bool = False) -> bool:
    """Decide whether the flags of decode give the prompt, so that no text is read.

    shows_picture  whether an image is in a text, not in its place
    """
    parameters = {**stage.parameters, "image": None} if shows_picture else stage.parameters
    if parameters["audio"] is not None or parameters["image"] is not None:
        return True
    if parameters["cache_in"] is not None and parameters["ids"] is None:
        return not has_texts(stage)  # a text continues the cache
    if parameters["messages"] is not None:
        return not has_texts(stage)  # a text is the next message
    if has_encoder and parameters["memory"] is None and parameters["cache_in"] is None:
        return False  # ids are the start of the target
    return needs_no_input(parameters)


def check_prompt_sources(stage: Stage, alone: bool) -> None:
    """Refuse standard input that is read twice, or text beside flags of a prompt."""
    parameters = stage.parameters
    if not alone and any(map(is_stdin, map(parameters.get, ("ids", "cache_in", "messages")))) and not stage.operands:
        raise UsageError("only one operand can be '-' (standard input)")
    if alone and has_texts(stage):
        flag = next(name for name in ("audio", "ids", "image", "memory", "cache_in") if parameters[name] is not None)
        raise UsageError("replaces text: cannot be combined with TEXT, --lines or --batch", flag_name(flag))


def needs_no_input(parameters: Mapping[str, Any]) -> bool:
    """Decide whether flags alone give the prompt, so that nothing else is read."""
    files = [parameters[name] for name in ("ids", "image", "audio", "memory")]
    return parameters["model_"] is not None and (
        any(parameters[name] is not None for name in ("cache_in", "messages"))
        or any(file is not None and not str(file).startswith(":") for file in files)
    )


def read_trace_or_text(stage: Stage, upstream: Records | None, keep: str) -> Records:
    """Read the input of a tool that looks into a model.

    A file, a stage, or a text that --model reads now.

    keep  the intermediates that a text needs

    An operand is a text if it has several words and is no file.
    """
    if (record := trace_of_text(stage, keep)) is not None:
        return Records(None, iter([record]))
    return read_records(stage, upstream, needs_no_input=False)


def is_text_alone(stage: Stage) -> bool:
    """Whether the only operand is a text of several words, and no file."""
    return (
        len(stage.operands) == 1
        and bool(re.search(r"\s", stage.operands[0].strip()))
        and not is_input(stage.operands[0])
    )


def trace_of_text(stage: Stage, keep: str) -> Record | None:
    """The trace of the operand if it is a text, as `encode` records it, or None."""
    model = stage.files.values.get("model_")
    if not isinstance(model, str) or not is_text_alone(stage):
        return None
    from attnkit.cli import pipeline

    encoded = pipeline.parse_stage(["encode", "--model", model, "--keep", keep, "--", *stage.operands]).open_stream(
        None
    )
    (record,) = encoded.items
    return record if isinstance(record, Record) else None


def name_reader(kind: str, flags: Sequence[str]) -> Callable[[Stage, Records | None], Records]:
    """Make the reader of a tool that takes one name, or none to list all of its kind.

    flags  those that need a name

    The reader raises UsageError for several names, and for one of these flags without a name.
    """

    def read_name(stage: Stage, upstream: Records | None) -> Records:
        if len(stage.operands) > 1:
            raise UsageError(f"expected one {kind}, got {len(stage.operands)}: {' '.join(stage.operands)}")
        for flag in flags:
            if stage.parameters[flag] not in (None, False) and not stage.operands:
                raise UsageError(f"needs the name of one: attnkit {kind} lists them", f"--{flag}")
        return Records(None, iter(stage.operands or ("",)))

    return read_name
