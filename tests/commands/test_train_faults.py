"""Bad input of train: one line, the right exit code, nothing lost and nothing left."""

import json
import re

import pytest

from tests.commands.test_train import SMALL, TEXT, TINY, files_of, run

PAIRS = "un chat\ta cat\nun chien\ta dog\nle chat\tthe cat\nle chien\tthe dog\n"


@pytest.fixture
def tales(tmp_path):
    """A text, pairs, and a trained folder."""
    (tmp_path / "tales.txt").write_text(TEXT)
    (tmp_path / "pairs.tsv").write_text(PAIRS)
    (tmp_path / "sizes.json").write_text('{"model_type": "gpt2"}')
    assert run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "2", cwd=tmp_path).code == 0
    return tmp_path


TEXTS = {
    "binary": (b"\x00\xff\xfe" * 99, "text.txt: not UTF-8 text (byte 1)"),
    "UTF-16": (TEXT.encode("utf-16"), "text.txt: not UTF-8 text (byte 0)"),
    "empty": (b"", "text.txt: empty text"),
    "blank": (b" \n\n", "text.txt: empty text"),
    "a mark alone": (b"\xef\xbb\xbf", "text.txt: empty text"),
    "short": (b"one tale", "text.txt: 8 tokens, fewer than a block of 16 and the token after it"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(tmp_path, name):
    content, problem = TEXTS[name]
    (tmp_path / "text.txt").write_bytes(content)
    done = run("train", "text.txt", "-o", "gpt", *TINY, "--steps", "2", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (3, b"", f"attnkit train: {problem}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def characters(folder):
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    return {token for token in vocabulary if len(token) == 1}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xef\xbb\xbf" + b"ab\n" * 30, {"a", "b", "\n"}),
        (b"ab\r\n" * 30, {"a", "b", "\r", "\n"}),
        (b"ab\0" * 30, {"a", "b", "\0"}),
    ],
)
def test_a_byte_order_mark_is_no_character_and_all_else_is(tmp_path, content, expected):
    (tmp_path / "text.txt").write_bytes(content)
    flags = (*SMALL, "--steps", "1", "--valid", "0")
    assert run("train", "text.txt", "-o", "gpt", *flags, cwd=tmp_path).code == 0
    assert characters(tmp_path / "gpt") == expected


def test_pairs_of_windows(tmp_path):
    flags = ("--family", "marian", "--layers", "1", "--heads", "2", "--dim", "16", "--steps", "2", "--valid", "0")
    for name, content in (("unix", PAIRS), ("windows", "\ufeff" + PAIRS.replace("\n", "\r\n"))):
        (tmp_path / f"{name}.tsv").write_bytes(content.encode())
        assert run("train", f"{name}.tsv", "-o", name, *flags, "--tokens", "bpe:280", cwd=tmp_path).code == 0
    first, second = (json.loads((tmp_path / name / "training.jsonl").read_text()) for name in ("unix", "windows"))
    assert first["tokens"] == second["tokens"]


VOCABULARY = "line 2: 'X' is not in the vocabulary"


def test_a_vocabulary_that_lacks_a_token(tales):
    (tales / "more.txt").write_text("the cat\nX" + TEXT)
    (tales / "more.tsv").write_text("un chat\ta cat\nun chien\tX\n")
    done = run("train", "more.txt", "-o", "new", "--from", "gpt", "--block", "16", cwd=tales)
    assert (done.code, done.err) == (3, f"attnkit train: more.txt: {VOCABULARY}\n")
    done = run("train", "more.tsv", "-o", "new", "--family", "marian", "--tokens", "gpt", cwd=tales)
    assert done.code == 3
    assert not (tales / "new").exists()


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "state.safetensors"]
)
def test_the_folder_of_another_model_is_not_lost(tales, name):
    (tales / "published").mkdir()
    (tales / "published" / name).write_text("theirs")
    for flags in (["-o", "published"], ["--resume", "gpt", "-o", "published"]):
        done = run("train", "tales.txt", *flags, "--steps", "1", cwd=tales)
        error = f"published: it has a {name} that attnkit train did not write; name another folder\n"
        assert (done.code, done.err) == (4, f"attnkit train: {error}")
    assert files_of(tales / "published") == {name: b"theirs"}


def test_other_files_of_a_folder_stay(tales):
    (tales / "gpt" / "notes.txt").write_text("mine")
    (tales / "new").mkdir()
    (tales / "new" / "notes.txt").write_text("mine")
    for folder in ("gpt", "new"):
        assert run("train", "tales.txt", "-o", folder, *TINY, "--steps", "1", cwd=tales).code == 0
        assert (tales / folder / "notes.txt").read_text() == "mine"


def test_a_new_run_leaves_no_tokenizer_of_the_run_before(tales):
    for name in ("generation_config.json", "vocab.json", "source.spm"):
        (tales / "gpt" / name).write_text("{}")
    assert run("train", "tales.txt", "--resume", "gpt", "--steps", "3", cwd=tales).code == 0
    assert (tales / "gpt" / "vocab.json").exists(), "a resumed run keeps what is there"
    assert run("train", "tales.txt", "-o", "new", *TINY, "--steps", "2", cwd=tales).code == 0
    assert run("train", "tales.txt", "--resume", "new", "--steps", "3", "-o", "gpt", cwd=tales).code == 0
    assert files_of(tales / "gpt").keys() == files_of(tales / "new").keys()
    (tales / "gpt" / "source.spm").write_text("{}")
    assert run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "2", cwd=tales).code == 0
    assert files_of(tales / "gpt").keys() == files_of(tales / "new").keys()


def spoil(folder, name, change):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


STATES = {
    "no state": ("state.safetensors", None, 4, r"gpt/state\.safetensors: No such file or directory"),
    "half a state": ("state.safetensors", lambda data: data[:-99], 3, r"gpt/state\.safetensors: .*"),
    "no curve": ("training.jsonl", None, 4, r"gpt/training\.jsonl: No such file or directory"),
    "half a curve": ("training.jsonl", lambda data: data[:-9], 3, r"gpt/training\.jsonl: line 1 is not a report"),
    "no origin": ("training.json", None, 4, r"gpt: no training\.json in this folder: it was not made by attnkit train"),
    "half an origin": ("training.json", lambda data: data[:-9], 3, r"gpt/training\.json: .*"),
    "a list": ("training.json", lambda data: b"[]", 3, r"gpt/training\.json: .*"),
    "another version": (
        "training.json", lambda data: data.replace(b'"layers"', b'"depth"'), 3,
        r"gpt/training\.json: a recipe has no 'depth'",
    ),
    "a word for a number": (
        "training.json", lambda data: data.replace(b'"layers": 1', b'"layers": "one"'), 3,
        r"gpt/training\.json: layers of the recipe cannot be 'one'",
    ),
    "a value for a name": (
        "training.json", lambda data: data.replace(b'"batch": 4', b'"tokens": 4'), 3, r"gpt/training\.json: .*",
    ),
    "a number below its least": (
        "training.json", lambda data: data.replace(b'"every": 4', b'"every": 0'), 3,
        r"gpt/training\.json: every of the recipe cannot be 0",
    ),
    "no such schedule": (
        "training.json", lambda data: data.replace(b'"batch": 4', b'"schedule": "step"'), 2, r"schedule 'step'.*",
    ),
    "no such optimizer": (
        "training.json", lambda data: data.replace(b'"batch": 4', b'"optimizer": "lamb"'), 2, r"optimizer 'lamb'.*",
    ),
    "no such family": (
        "training.json", lambda data: data.replace(b'"batch": 4', b'"family": "gpt5"'), 2,
        r"no new model.*'gpt5'.*",
    ),
    "another model": (
        "training.json", lambda data: data.replace(b'"layers": 1', b'"layers": 2'), 3, r"gpt/state\.safetensors: .*",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_a_folder_that_no_run_can_go_on_from(tales, name):
    file, change, code, problem = STATES[name]
    if change is None:
        (tales / "gpt" / file).unlink()
    else:
        spoil(tales / "gpt", file, change)
    before = files_of(tales / "gpt")
    done = run("train", "tales.txt", "--resume", "gpt", "--steps", "5", cwd=tales)
    assert (done.code, done.out) == (code, b""), done.err
    assert re.fullmatch(f"attnkit train: {problem}\n", done.err), done.err
    assert files_of(tales / "gpt") == before
