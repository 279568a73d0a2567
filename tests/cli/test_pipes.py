"""The law of the pipe: stages joined by a shell, by `run`, and called from Python give the same bytes."""

import os
import shlex
import shutil
import subprocess
import sys
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnkit
from attnkit import formats
from attnkit.cli.stage import to_flags
from attnkit.formats import Record
from tests import process
from tests.places import STORY

ENV = {"COLUMNS": "80"}


def shell(line, stdin=b"", check=True, **env):
    """What a line of bash writes to standard output."""
    code, out, err = process.bash(line, stdin=stdin, env=ENV | env)
    assert not check or code == 0, err
    return out


def words(stage):
    """A stage (name, argument, parameters) as a command line."""
    name, argument, parameters = stage
    flags = [word for key, value in parameters.items() for word in to_flags(key, value)]
    return shlex.join([name, *([] if argument is None else [argument]), *flags])


def by_shell(stages, format):
    first, *rest = [f"attnkit {words(stage)}" for stage in stages]
    return shell(" | ".join([f"{first} -f {format}", *rest]))


def by_run(stages, format):
    first, *rest = [words(stage) for stage in stages]
    done = process.run("run", " | ".join([f"{first} -f {format}", *rest]), env=ENV)
    assert done.code == 0, done.err
    return done.out


def by_calls(stages, format):
    """The same calls in Python, each record handed on as the format would bring it."""

    def call(record, stage):
        name, argument, parameters = stage
        made = getattr(attnkit, name)(record if argument is None else argument, **parameters)
        return formats.round_trip(made, format)

    return b"".join(bytes(part) for part in formats.encode(reduce(call, stages, None), format))


EMBED = ("embed", "The cat sat on the mat", {"dim": 8})
LAYER = [
    ("posenc", None, {}),
    ("mask", None, {"causal": True}),
    ("attend", None, {"heads": 2, "seed": 3, "keep": ("weights", "scores"), "residual": True}),
    ("layernorm", None, {"keep": ("mean", "inverse_std")}),
    ("rnn", None, {"cell": "lstm", "hidden": 8, "keep": ("gates", "cell"), "seed": 2}),
    ("ffn", None, {"hidden": 16, "activation": "gelu", "residual": True}),
    ("decode", None, {"top_k": 3, "seed": 7}),
]


@pytest.mark.slow
@pytest.mark.parametrize("format", ["json", "npz", "safetensors"])
def test_the_law_of_the_pipe(format):
    stages = [EMBED, *LAYER]
    expected = by_calls(stages, format)
    assert by_shell(stages, format) == expected
    assert by_run(stages, format) == expected


TRACED = ("encode", "the fox looked", {"model": STORY, "keep": ("*",)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "stages",
    [
        [
            ("embed", "The cat sat", {"dim": 4}),
            ("decode", None, {}),
            ("loss", None, {"target": "cat sat", "smoothing": 0.1}),
        ],
        [("embed", "The cat", {"dim": 4}), ("near", None, {"index": ":table", "top": 1})],
        [("posenc", None, {"size": (3,), "dim": 4}), ("softmax", None, {"axis": 0, "keep": ("sum",)})],
        [TRACED, ("rollout", None, {"residual": 0.25})],
        [TRACED, ("heads", None, {"sort": "span"})],
        [TRACED, ("lens", None, {"model": STORY, "top": 2})],
        [TRACED, ("lens", None, {"model": STORY, "direct": " bear", "by": "head"})],
    ],
    ids=lambda stages: stages[-1][0],
)
def test_the_law_of_the_pipe_for_other_tools(stages):
    expected = by_calls(stages, "json")
    assert by_shell(stages, "json") == by_run(stages, "json") == expected


def test_the_law_of_the_pipe_in_npy():
    stages = [
        ("posenc", None, {"size": (5,), "dim": 8}),
        ("attend", None, {"heads": 4, "causal": True, "residual": True}),
        ("layernorm", None, {"kind": "rms"}),
        ("ffn", None, {"hidden": 4, "seed": 1}),
        ("rnn", None, {"cell": "gru", "hidden": 3, "layers": 2}),
    ]
    expected = by_calls(stages, "npy")
    assert expected.startswith(b"\x93NUMPY")
    assert by_shell(stages, "npy") == expected
    assert by_run(stages, "npy") == expected


def stage(name, **parameters):
    """A strategy for one stage: each parameter drawn from its values; None leaves it out."""
    drawn = st.fixed_dictionaries({key: st.sampled_from(values) for key, values in parameters.items()})
    return drawn.map(lambda given: (name, None, {key: value for key, value in given.items() if value is not None}))


STAGES = st.one_of(
    stage("posenc", kind=["sinusoidal", "rotary"], offset=[0, 9]),
    stage("mask", window=[(-1, 0), (2, 1)], causal=[None, True]),
    stage("mask", window=[(-1, 0), (2, 1)], prefix=[0, 3]),
    stage("attend", heads=[1, 2, 4], seed=[0, 3], softcap=[1.0, 30.0], keep=[("weights",), ("q", "masked")]),
    stage("rnn", cell=["tanh", "lstm", "gru-reset-before"], hidden=[4], bidirectional=[None, True], keep=[("all",)]),
    stage("layernorm", kind=["layer", "rms", "batch"], eps=[1e-9, 0.1]),
    stage(
        "ffn",
        hidden=[3],
        activation=["relu", "silu", "gelu-tanh"],
        gated=[None, True],
        dtype=["float64", "float32", "float16", "bfloat16"],
    ),
)


@pytest.mark.slow
@settings(max_examples=12)
@given(
    st.lists(STAGES, min_size=1, max_size=3),
    st.sampled_from(["json", "npz", "safetensors"]),
    st.sampled_from(["a b c d", "one", "x y x"]),
)
def test_the_law_of_the_pipe_holds_for_any_pipeline(stages, format, text):
    stages = [("embed", text, {"dim": 4}), *stages]
    expected = by_calls(stages, format)
    assert by_shell(stages, format) == expected
    assert by_run(stages, format) == expected


def test_nan_keeps_the_law():
    bits = np.array([[0x7FC00001, 0xFFC00000, 0x3F800000]], np.uint32).view(np.float32)
    record = formats.encode(Record({"x": bits}), "npz")
    data = b"".join(bytes(part) for part in record)
    piped = shell("attnkit attend -q -f json | attnkit layernorm -q", data)
    assert piped == shell("attnkit run -q 'attend -f json | layernorm'", data)


def test_the_same_seed_gives_the_same_bytes_on_any_number_of_threads():
    line = "attnkit run 'embed \"a b c d e\" --dim 64 | attend --heads 8 --seed 5 | ffn --hidden 256 --seed 6'"
    assert shell(line, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1") == shell(line, OPENBLAS_NUM_THREADS="8")


def test_a_word_has_the_same_vector_in_every_text():
    a, b = attnkit.embed("the cat", dim=4), attnkit.embed("a cat", dim=4)
    assert np.array_equal(a["x"][1], b["x"][1])
    assert not np.array_equal(a["x"][0], b["x"][0])
    assert not np.array_equal(a["x"], attnkit.embed("the cat", dim=4, seed=1)["x"])


def test_operands_from_a_fifo_a_member_and_the_record_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("w.npz", wq=np.eye(4), wk=np.eye(4), bias=np.ones((2, 2)))
    Path("x.json").write_text("[[1,2,3,4],[5,6,7,8]]")
    plain = shell("attnkit attend x.json --bias w.npz:bias --only x")
    fed = shell("mkfifo f; cat w.npz > f & attnkit attend x.json --bias f:bias --only x")
    assert tensors_of(plain) == tensors_of(fed)
    kept = shell("attnkit layernorm x.json --keep residual | attnkit attend --bias w.npz:bias --add :residual --only x")
    x = np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]])
    normed = attnkit.layernorm(Record({"x": x}))["x"]
    expected = attnkit.attend(Record({"x": normed}), bias=np.ones((2, 2)))["x"] + x
    assert np.array_equal(np.array(tensors_of(kept)[0]["x"]["data"]), expected)


def tensors_of(output):
    """The tensors of every JSON record of an output."""
    import json

    return [json.loads(line)["tensors"] for line in output.splitlines()]


def test_a_stream_is_written_as_soon_as_each_record_is_done():
    line = "attnkit embed --lines --dim 2 | attnkit posenc"
    with subprocess.Popen(
        ["bash", "-c", line], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | ENV
    ) as child:
        for word in (b"one\n", b"two\n"):
            child.stdin.write(word)
            child.stdin.flush()
            assert word.strip() in child.stdout.readline()  # while standard input is still open
        child.stdin.close()
        assert child.wait(10) == 0


@pytest.mark.slow
def test_a_long_stream_takes_no_more_memory_than_a_short_one():
    code = (
        "import resource, subprocess, sys;"
        "subprocess.run(['attnkit', 'embed', '--lines', '--dim', '16'], stdout=subprocess.DEVNULL, check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // (1024 if sys.platform == 'darwin' else 1))"
    )

    def peak(lines):
        text = b"the cat sat on the mat\n" * lines
        return int(process.run_command([sys.executable, "-c", code], stdin=text, env={"PATH": process.ALONE}).out)

    assert peak(5_000) < peak(200) + 2_000  # KiB


@pytest.mark.skipif(shutil.which("jq") is None, reason="it pipes into jq")
def test_jq_and_numpy_read_what_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shell("attnkit posenc --size 2 --dim 2 | jq -c .tensors.x.data[0]") == b"[0,1]\n"
    shell("attnkit embed 'a b' --dim 2 -o r.npz && attnkit show r.npz:x -o x.npy")
    with np.load("r.npz", allow_pickle=False) as stored:
        assert np.array_equal(stored["x"], np.load("x.npy", allow_pickle=False))
    np.savez("plain.npz", only=np.arange(6.0).reshape(2, 3))
    assert tensors_of(shell("attnkit layernorm plain.npz -f json"))[0]["x"]["shape"] == [2, 3]
    assert shell("jq -c . <<< '[[1, 2]]' | attnkit show --only x -f json | jq -c .tensors.x.dtype") == b'"int64"\n'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "environment", "start"),
    [
        ("", {}, b'{"tensors"'),
        ("", {"ATTNKIT_FORMAT": "npz"}, b"PK"),
        ("-f npz", {"ATTNKIT_FORMAT": "json"}, b"PK"),
        ("-f table", {}, b"x (token 1, model 2)"),
        ("-o /dev/stdout", {}, b'{"tensors"'),
        ("-o - -f npz", {}, b"PK"),
        ("--only ids --only x", {}, b'{"tensors":{"ids"'),
    ],
)
def test_the_format_of_the_output(arguments, environment, start):
    assert shell(f"attnkit embed a --dim 2 {arguments}", **environment).startswith(start)


@pytest.mark.slow
def test_pictures_are_files_of_their_own(tmp_path, monkeypatch):
    import xml.dom.minidom

    monkeypatch.chdir(tmp_path)
    shell("attnkit embed 'The cat sat' --dim 4 | attnkit attend --keep weights -o w.npz")
    shell("attnkit show w.npz --name weights --heatmap -o w.svg")
    assert xml.dom.minidom.parse("w.svg").documentElement.tagName == "svg"
    assert "http" not in Path("w.svg").read_text().replace("http://www.w3.org", "")
    shell("attnkit posenc --size 3 --dim 4 -o p.html")
    assert Path("p.html").read_text().lstrip().lower().startswith("<!doctype html")
