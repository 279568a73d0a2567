"""What an error says to type where the input, the model or the names of two files are not what a tool can read."""

import json
import shlex
import shutil

import numpy as np
import pytest

from tests import process
from tests.places import MODELS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with models at several depths, and files of tensors."""
    path = tmp_path_factory.mktemp("inputs")
    shutil.copytree(MODELS / "gpt2", path / "gpt2")
    shutil.copytree(MODELS / "bert-sentences", path / "minilm")
    shutil.copytree(MODELS / "gpt2", path / "hub/snapshots/0a1b")
    np.savez(path / "mine.npz", hidden=np.ones((2, 4)), attn=np.ones((2, 2)))
    np.savez(path / "t.npz", x=np.ones((2, 4)), weights=np.ones((2, 2)))
    np.savez(path / "idx.npz", x=np.eye(16))
    return path


def refused(line, folder, code):
    """The one line on standard error of a command line that is refused, after the tool's name."""
    run = process.run(*shlex.split(line), cwd=folder)
    assert (run.code, run.out, run.err.count("\n")) == (code, b"", 1), run
    return run.err.removesuffix("\n").partition(": ")[2]


TEXT = "No such file or directory; for a text: attnkit"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("attend 'The cat' --heads 2", f"{TEXT} embed 'The cat' --dim 8 | attnkit attend --heads 2"),
        ("mask --causal 'The cat'", f"{TEXT} embed 'The cat' --dim 8 | attnkit mask --causal"),
        ("posenc 'The cat'", f"{TEXT} embed 'The cat' --dim 8 | attnkit posenc"),
        ("layernorm 'The cat'", f"{TEXT} embed 'The cat' --dim 8 | attnkit layernorm"),
        (
            "ffn 'The cat' --model gpt2 --layer decoder.0.ffn",
            f"{TEXT} embed 'The cat' --model gpt2 | attnkit ffn --model gpt2 --layer decoder.0.ffn",
        ),
        ("decode 'The cat'", f"{TEXT} decode 'The cat' --model DIR"),
        (
            "near --index idx.npz animals",
            f"{TEXT} encode animals --model DIR --pool mean | attnkit near --index idx.npz",
        ),
        (
            "score 'Once upon' --model gpt2",
            f"{TEXT} echo 'Once upon' | attnkit score --model gpt2".replace("attnkit ", "", 1),
        ),
        ("softmax [3,2]", "No such file or directory; for numbers: echo '[3,2]' | attnkit softmax"),
        (
            "attend '[[1, 0], [.5, 1]]' --causal",
            "directory; for numbers: echo '[[1, 0], [.5, 1]]' | attnkit attend --causal",
        ),
        ("run \"attend 'The cat'\"", f"{TEXT} embed 'The cat' --dim 8 | attnkit attend"),
        ("heads 'The cat'", f"{TEXT} encode 'The cat' --model DIR --keep '*.self.weights' | attnkit heads"),
    ],
)
def test_a_text_in_place_of_a_file_is_answered_with_the_pipeline(line, hint, folder):
    assert refused(line, folder, 4).endswith(hint)


@pytest.mark.parametrize(
    "line",
    [
        "attend 'The cat' --heads 2",
        "mask --causal 'The cat'",
        "ffn 'The cat' --model gpt2 --layer decoder.0.ffn",
        "score 'Once upon' --model gpt2",
        "heads 'The cat'",
        "lens 'The cat' --model gpt2",
        "loss 'The cat' --target cat",
        "near --index idx.npz animals",
    ],
)
def test_the_pipeline_of_a_hint_runs(line, folder):
    pipeline = refused(line, folder, 4).partition("for a text: ")[2].replace("DIR", "gpt2")
    run = process.bash(f"{pipeline} -f json", cwd=folder)
    assert run.code == 0 and run.out, run.err


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("attend tt.npz", "tt.npz: No such file or directory; did you mean t.npz?"),
        ("show t", "t: No such file or directory; did you mean t.npz?"),
        ("mask 4 --causal", "did you mean --size 4?"),
        ("heads gpt2", "gpt2: Is a directory; did you mean --model gpt2?"),
        ("attend t.npz --mask mask", "mask: No such file or directory; :mask is that tensor of the input"),
        ("attend t.npz --mask mime.npz", "mime.npz: No such file or directory; did you mean mine.npz?"),
        ("attend t.npz --lengths 2", "2: No such file or directory; numbers are given as a file: <(echo '[2]')"),
        ("embed --ids 1,2 --dim 4", "1,2: No such file or directory; numbers are given as a file: <(echo '[1,2]')"),
        ("attend t.npz --mask [[1,0],[1,1]]", "numbers are given as a file: <(echo '[[1,0],[1,1]]')"),
        ("embed cat --dim 4 --tokenizer char", "char: No such file or directory; did you mean chars?"),
        ("embed cat --dim 4 --tokenizer gpt2", "gpt2: Is a directory; did you mean gpt2/tokenizer.json?"),
        ("show weights --heatmap", "--name weights shows that tensor of a record"),
        ("attend q.npz", "q.npz: No such file or directory"),
        ("attend data/none.npz", "data/none.npz: No such file or directory"),
        ("diff 'The cat' t.npz", "The cat: No such file or directory"),
    ],
)
def test_a_missing_file_is_answered_with_what_is_there(line, hint, folder):
    assert refused(line, folder, 4).endswith(hint)


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("show minilm/1_Pooling", 3, "the folder above it looks like the model: minilm"),
        ("encode --model hub cat", 4, "did you mean hub/snapshots/0a1b?"),
        ("show gpt2:wte", 3, "gpt2: no tensor 'wte' (near: wte.weight)"),
        ("show gpt2 wte.weight", 2, "expected one INPUT, got 2: gpt2 wte.weight; did you mean gpt2:wte.weight?"),
        ("attend t.npz mine.npz idx.npz", 2, "did you mean --query t.npz --key mine.npz --value idx.npz?"),
        ("show .", 4, "did you mean ./gpt2?"),
        (
            "encode --model gpt3 cat",
            4,
            "gpt3: no such folder; a model is a local folder as published: attnkit help models",
        ),
        ("encode --model gpt2/model.safetensors cat", 4, "not a folder; did you mean gpt2?"),
        ("encode minilm 'a cat'", 2, "needs --model DIR; did you mean --model minilm?"),
        ("encode 'a cat'", 2, "needs --model DIR; a model is a local folder as published: attnkit help models"),
        ("decode gpt2 'a cat'", 2, "expected one INPUT, got 2: gpt2 a cat; did you mean --model gpt2?"),
        ("lens gpt2 t.npz", 2, "did you mean --model gpt2?"),
        ("score gpt2", 2, "needs --model DIR or --references FILES; did you mean --model gpt2?"),
        ("ffn t.npz", 2, "needs --params FILE, --model DIR or --hidden F"),
    ],
)
def test_a_folder_that_is_no_model_is_answered_with_one_that_is(line, code, message, folder):
    assert refused(line, folder, code).endswith(message)


def test_the_page_named_in_the_hint_says_how_to_get_a_model():
    assert b"git clone" in process.run("help", "models").out


def test_two_files_without_a_name_in_common_are_one_error(folder):
    message = refused("diff t.npz mine.npz", folder, 1)
    assert message == (
        "no name in common: t.npz has x, weights and mine.npz has hidden, attn; FILE:NAME compares one tensor of each: "
        "attnkit diff t.npz:x mine.npz:hidden"
    )
    assert process.run("diff", "t.npz:x", "mine.npz:hidden", cwd=folder).code == 0  # both are ones


def test_a_stream_that_is_longer_is_still_a_difference(folder):
    (folder / "one").write_text('{"tensors":{"x":[1]}}\n')
    (folder / "two").write_text('{"tensors":{"x":[1]}}\n' * 2)
    assert process.run("diff", "one", "two", cwd=folder).code == 1


def test_a_window_of_one_number_names_both_that_may_be_meant(folder):
    message = refused("mask --causal --size 8 --window 3", folder, 2)
    assert message == (
        "--window: expected L,R, two whole numbers of at least -1, got '3'; "
        "3,0 is the 3 before the query and itself, 3,3 also the 3 after it"
    )
    run = process.run("mask", "--size", "8", "--window", "3,0", "-f", "json")
    rows = json.loads(run.out)["tensors"]["x"]["data"]
    assert [sum(row) for row in rows] == [1, 2, 3, 4, 4, 4, 4, 4]
