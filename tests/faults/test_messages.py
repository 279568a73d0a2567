"""What an error says is a line of a few hundred bytes, however much input it quotes."""

import json

import numpy as np
import pytest

import attnkit
from attnkit.cli import TOOLS, find_tool, main, parser
from attnkit.errors import AttnkitError, DataError
from attnkit.formats import Record, save

LONGEST = 500  # bytes of a line on standard error
LONG = {
    "letters": "x" * 10_000,
    "escapes": "\x1b" * 10_000,
    "words": "é " * 5_000,
    "path": "a/" * 5_000,
    "digits": "9" * 10_000,
}
LARGE = {"mask": ["--causal"], "ffn": ["--hidden", "2"], "decode": ["--table", "good.json"], "embed": ["--dim", "2"]}


def brief(done, *what):
    """Check that every line on standard error is short and harmless."""
    assert done.code != 70, (*what, done.err[:1000])
    for line in done.err.splitlines():
        assert len(line.encode()) < LONGEST and line.isprintable(), (*what, len(line), line[:1000])


@pytest.mark.slow
@pytest.mark.parametrize("tool", TOOLS)
def test_a_long_argument(attnkit, main, tool):
    more = LARGE.get(tool, [])
    for text in LONG.values():
        brief(main(tool, text, *more), tool)
        brief(main(tool, f"good.json:{text}", *more), tool)
        brief(main(tool, "good.json", f"--{text}"), tool)
        brief(main(tool, "good.json", f"--quiet={text}"), tool)
        for flag in ("-o", "-f", "--only", "--dtype", "--precision"):
            brief(main(tool, "good.json", flag, text, *more), tool, flag)
        brief(main(text), text[:1])


@pytest.mark.slow
@pytest.mark.parametrize("tool", TOOLS)
def test_a_long_value_of_a_flag(attnkit, main, tool):
    """What quotes longest, a number that is too long to convert, and of files a path."""
    found, more = find_tool(tool), LARGE.get(tool, [])
    for name in (*found.flags, *found.extra_names):
        is_file, spelling = found.options[name].load, "--" + name.rstrip("_").replace("_", "-")
        for text in (LONG["escapes"], LONG["path" if is_file else "digits"]):
            brief(main(tool, "good.json", spelling, text, *more), tool, name)
        if is_file:
            brief(main(tool, "good.json", spelling, f"good.json:{LONG['escapes']}", *more), tool, name)
            brief(main(tool, "good.json", spelling, f":{LONG['escapes']}", *more), tool, name)


DOCUMENTS = {
    "key": lambda text: {text: 1},
    "key of a tensor": lambda text: {"tensors": {"x": {"data": [1], text: 1}}},
    "key of a record": lambda text: {"tensors": {"x": {"data": [1]}}, text: 1},
    "dtype": lambda text: {"tensors": {"x": {"dtype": text, "data": [1]}}},
    "number": lambda text: [[1, text]],
    "name": lambda text: {"tensors": {text: {"data": [[1, 2], [3]]}}},
    "name of two": lambda text: {"tensors": {text: {"data": [1]}, text + "2": {"data": [1]}}},
    "axes": lambda text: {"tensors": {"x": {"data": [1], "axes": [text, text]}}},
    "axis": lambda text: {"tensors": {"x": {"data": [1], "axes": [text]}}, "labels": {text: ["a", "b"]}},
    "labels": lambda text: {"tensors": {"x": {"data": [1]}}, "labels": {text: 1}},
    "command": lambda text: {"tensors": {"x": {"data": [1]}}, "history": [{"command": text, "version": "1"}]},
    "flag": lambda text: {
        "tensors": {"x": {"data": [1]}},
        "history": [{"command": f"attnkit attend --{text}", "version": "1"}],
    },
    "version": lambda text: {"tensors": {"x": {"data": [1]}}, "history": [{"command": "attnkit", "version": text}]},
    "digest": lambda text: {
        "tensors": {"x": {"data": [1]}},
        "history": [{"command": "attnkit", "version": "1", "files": {text: text}}],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_long_text_in_a_file(attnkit, main, kind, text):
    attnkit.file("long.json", json.dumps(DOCUMENTS[kind](text), ensure_ascii=False).encode())
    for line in ("show long.json --name y", "attend long.json", "history long.json", "layernorm long.json --gamma :y"):
        done = main(*line.split())
        brief(done, kind, line)


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_long_word_in_a_file(attnkit, main, text):
    attnkit.file("words", f"a\n{text}\n{text}\n".encode())
    brief(main("embed", "a", "--vocab", "words", "--dim", "2"))
    attnkit.file("words", text.encode())
    brief(main("embed", text, "b", "--vocab", "words", "--dim", "2"))
    brief(main("run", "./words"))


def test_a_long_warning(attnkit, main):
    name = "y" * 250
    save(Record({"x": np.array([[np.nan, 1.0]])}), str(attnkit.folder / f"{name}.npz"))
    brief(main("layernorm", f"{name}.npz"))


def test_python_is_told_as_briefly():
    with pytest.raises(AttnkitError) as caught:
        attnkit.attend(np.eye(2), weights="x" * 70_000)
    assert len(str(caught.value)) < LONGEST
    error = DataError("no tensor 'y'", "x" * 70_000)
    assert len(str(error)) < LONGEST and str(error).endswith("x: no tensor 'y'") and len(error.name) == 70_000


class Panic(BaseException):
    """As a library in Rust has them: no Exception."""


def test_what_is_no_exception_is_a_bug_all_the_same(monkeypatch, capfd):
    def panic(name):
        raise Panic("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr(parser, "choose_tool", panic)
    assert main.main(["attend"]) == 70
    assert capfd.readouterr().err.startswith("attnkit attend: a bug in attnkit: Panic: called `Option::unwrap()`")
    monkeypatch.setattr(parser, "choose_tool", lambda name: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        main.main(["attend"])
