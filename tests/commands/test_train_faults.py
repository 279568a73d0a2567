"""Bad input of train: one line, the right exit code, nothing lost and nothing left."""

import json
import re

import pytest

from tests.commands.test_train import SMALL, TEXT, TINY, files_of, run
from tests.training.test_trained_references import REFERENCES

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


LINES = {
    "a\tb\nc\n": "line 2: 1 column (expected source, tab, target)",
    "a\tb\n\tc\n": "line 2: no source before the tab",
    "a\tb\r\n\r\nc\t\r\n": "line 3: no target after the tab",
    "a\tb\nc\td\te\n": "line 2: 3 columns (expected source, tab, target)",
    "a\u2028b\tc\x0bd\x85\nd\n": "line 2: 1 column (expected source, tab, target)",
    "\n \n": "empty text",
}


@pytest.mark.parametrize("content", LINES)
def test_pairs_name_the_line_of_an_editor(tmp_path, content):
    (tmp_path / "pairs.tsv").write_bytes(content.encode())
    done = run("train", "pairs.tsv", "-o", "m", "--family", "marian", "--steps", "1", cwd=tmp_path)
    assert (done.code, done.out, done.err) == (3, b"", f"attnkit train: pairs.tsv: {LINES[content]}\n")


def test_pairs_of_windows(tmp_path):
    flags = ("--family", "marian", "--layers", "1", "--heads", "2", "--dim", "16", "--steps", "2", "--valid", "0")
    for name, content in (("unix", PAIRS), ("windows", "\ufeff" + PAIRS.replace("\n", "\r\n"))):
        (tmp_path / f"{name}.tsv").write_bytes(content.encode())
        assert run("train", f"{name}.tsv", "-o", name, *flags, "--tokens", "bpe:280", cwd=tmp_path).code == 0
    first, second = (json.loads((tmp_path / name / "training.jsonl").read_text()) for name in ("unix", "windows"))
    assert first["tokens"] == second["tokens"]


VOCABULARY = "line 2: 'X' is not in the vocabulary"
LINE = {
    "--lr nan": (2, "--lr: expected a finite number above 0, got 'nan'"),
    "--lr inf": (2, "--lr: expected a finite number above 0, got 'inf'"),
    "--lr 0": (2, "--lr: expected a finite number above 0, got '0'"),
    "--weight-decay nan": (2, "--weight-decay: expected a finite number of at least 0, got 'nan'"),
    "--minutes 0": (2, "--minutes: expected a finite number above 0, got '0'"),
    "--steps -1": (2, "--steps: expected a whole number of at least 0, got '-1'"),
    "--every 0": (2, "--every: expected a whole number of at least 1, got '0'"),
    "--valid 100%": (2, "held-out part '100%' (expected a percentage below 100, as 5%)"),
    "--valid 99.9%": (3, "tales.txt: 1 token, fewer than a block of 64 and the token after it"),
    "--valid nan": (2, "held-out part 'nan' (expected a percentage below 100, as 5%)"),
    "--schedule cosine --minutes 1": (2, "schedule cosine needs the number of steps (--steps or --epochs)"),
    "--from gpt --tokens chars": (4, "chars: no such folder; a model keeps its own tokens, or has those of a folder"),
    "--config sizes.json": (3, "sizes.json: n_embd is missing (expected a whole number)"),
    "--block 1000000": (3, "tales.txt: 821 tokens, fewer than a block of 1000000 and the token after it"),
    "--block 1000000000000000000000": (2, "--block: expected a whole number of at least 1, of at most 18 digits"),
    "--dropout 1": (2, "dropout 1 (expected 0 or more, below 1)"),
    "--smoothing 1": (2, "label smoothing 1 (expected 0 or more, below 1)"),
    "--momentum 0.9": (2, "momentum 0.9 is of sgd, not of adamw"),
    "--freeze *": (2, "every parameter is frozen (--freeze)"),
    "--from gpt --config c.json": (2, "--from: cannot be combined with --config"),
    "--from gpt --family bert": (2, "--family: bert, but gpt2 in --from"),
    "--config c.json --family gpt2": (4, "c.json: No such file or directory"),
    "--resume gpt --family bert": (2, "--family: bert, but gpt2 in --resume"),
    "--resume gpt --from gpt": (2, "--from: gpt, but none in --resume"),
    "--resume gpt --config c.json": (2, "--resume: cannot be combined with --config"),
    "--resume gpt --cell lstm": (2, "--cell: lstm, but none in --resume"),
    "--from vit": (3, "this vit model has no head that predicts tokens"),
    "--family llama --heads 3 --dim 9": (2, "dim 9 over heads 3 is odd, and rotary positions need pairs"),
    "--family marian --heads 1 --dim 9 --valid 0": (2, "dim 9 is odd, and sinusoidal positions need pairs"),
    "--family bert --tokens gpt": (3, "gpt: it has no mask token, which this family needs"),
    "--tokens bpe:9": (2, "bpe:9 (expected 258 or more: 256 bytes and the special tokens)"),
    "--tokens nowhere/at/all": (4, "nowhere/at/all: no such folder"),
    "--config missing.json": (4, "missing.json: No such file or directory"),
}


@pytest.mark.parametrize("line", LINE)
def test_flags(tales, line):
    before = files_of(tales / "gpt")
    code, problem = LINE[line]
    text = "pairs.tsv" if "marian" in line else "tales.txt"
    flags = line.replace("vit", str(REFERENCES / "models" / "vit")).split()
    done = run("train", text, "-o", "new", *flags, cwd=tales)
    assert (done.code, done.out) == (code, b""), done.err
    assert done.err.count("\n") == 1
    assert problem in done.err
    assert not (tales / "new").exists()
    assert files_of(tales / "gpt") == before


def test_a_vocabulary_that_lacks_a_token(tales):
    (tales / "more.txt").write_text("the cat\nX" + TEXT)
    (tales / "more.tsv").write_text("un chat\ta cat\nun chien\tX\n")
    done = run("train", "more.txt", "-o", "new", "--from", "gpt", "--block", "16", cwd=tales)
    assert (done.code, done.err) == (3, f"attnkit train: more.txt: {VOCABULARY}\n")
    done = run("train", "more.tsv", "-o", "new", "--family", "marian", "--tokens", "gpt", cwd=tales)
    assert done.code == 3
    assert not (tales / "new").exists()


@pytest.mark.parametrize(("folder", "code"), [("", 2), ("-", 2), ("tales.txt", 4), ("tales.txt/new", 4)])
def test_names_that_are_no_folder(tales, folder, code):
    done = run("train", "tales.txt", "-o", folder, *TINY, "--steps", "1", cwd=tales)
    assert (done.code, done.out) == (code, b"")
    assert done.err.count("\n") == 1
    assert sorted(path.name for path in tales.iterdir()) == ["gpt", "pairs.tsv", "sizes.json", "tales.txt"]


def test_a_directory_is_no_text(tales):
    done = run("train", "gpt", "-o", "new", *TINY, "--steps", "1", cwd=tales)
    assert (done.code, done.err) == (4, "attnkit train: gpt: Is a directory\n")


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
