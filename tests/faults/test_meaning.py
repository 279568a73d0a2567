# ruff: noqa: E501 - a case of a table is a line
"""Tensors that are well formed and make no sense: shapes, ranges and values that no operator can use."""

import io
import itertools
import json

import numpy as np
import pytest


@pytest.fixture
def files(attnkit):
    """Makes files of arrays and texts in the test's folder: .json, .npy by its array, .npz by a dict, .txt by its text."""

    def make(contents):
        for name, content in contents.items():
            buffer = io.BytesIO()
            if name.endswith(".npz"):
                np.savez(buffer, **content)
            elif name.endswith(".npy"):
                np.save(buffer, content)
            else:
                buffer.write(content.encode() if isinstance(content, str) else json.dumps(content).encode())
            attnkit.file(name, buffer.getvalue())

    return make


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def loaded(run):
    """The record that a process wrote as NPZ."""
    assert run.code == 0, run.err
    return dict(np.load(io.BytesIO(run.out), allow_pickle=False))


X = np.array([[1, 2], [3, 4], [5, 7]], np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("line", ["layernorm", "ffn --hidden 4", "posenc", "decode --table t.npy --emit logits"])
def test_a_row_that_is_not_finite_spoils_no_other(attnkit, files, line, value):
    spoilt = X.copy()
    spoilt[1, 0] = float(value)
    files({"x.npy": X, "spoilt.npy": spoilt, "t.npy": np.eye(2, dtype=np.float32)})
    tool, *flags = line.split()
    run = attnkit(tool, "spoilt.npy", *flags, "-f", "npz")
    assert run.err.startswith(f"attnkit {tool}: warning: x is {value} at [1][0]")
    assert run.err.count("\n") == 1
    clean = loaded(attnkit(tool, "x.npy", *flags, "-f", "npz"))["x"]
    assert np.array_equal(loaded(run)["x"][[0, 2]], clean[[0, 2]])


def test_a_key_that_is_not_finite_spoils_no_query_that_may_not_see_it(attnkit, files):
    spoilt = X.copy()
    spoilt[2, 1] = np.nan
    files({"x.npy": X, "spoilt.npy": spoilt})
    outputs = [loaded(attnkit("attend", name, "--causal", "-f", "npz"))["x"] for name in ("x.npy", "spoilt.npy")]
    assert np.array_equal(outputs[0][:2], outputs[1][:2])
    assert np.isnan(outputs[1][2]).all()


# M10, N13: no rows at all
@pytest.mark.parametrize("shape", [(0, 4), (0, 3, 4), (2, 0, 4), (2, 1, 0, 4)])
@pytest.mark.parametrize("line", ["attend", "layernorm", "posenc", "ffn --hidden 3"])
def test_nothing_in_nothing_out(attnkit, files, main, shape, line):
    files({"x.npy": zeros(*shape)})
    tool, *flags = line.split()
    run = main(tool, "x.npy", *flags)
    assert (run.code, run.err) == (0, "")
    assert np.load(io.BytesIO(run.out)).shape == shape


SHAPES = [(), (0,), (4,), (0, 5), (2, 0), (2, 0, 3), (1, 1), (1, 1, 1, 1), (1, 1, 1, 1, 1)]
DTYPES = ["f2", "f4", "f8", "i1", "u8", "?"]
LINES = ["posenc", "posenc --kind rotary", "posenc --kind alibi", "mask --causal", "attend", "attend --seed 1", "attend --causal --steps",
         "layernorm", "layernorm --kind rms", "layernorm --kind batch", "ffn --hidden 2 --steps", "ffn --hidden 2 --gated", "decode --table x.npy", "decode --table good.json",
         "show", "show --heatmap", "show --heads", "show --stats", "show --list", "peek", "diff"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_every_shape_gives_a_result_or_a_line(attnkit, files, main, refused, line):
    tool, *flags = line.split()
    for shape, dtype in itertools.product(SHAPES, DTYPES):
        files({"x.npy": np.ones(shape, dtype)})
        operands = ["x.npy", "x.npy"] if tool == "diff" else ["x.npy"]
        run = main(tool, *operands, *flags)
        assert run.code in (0, 3), (shape, dtype, run.err)
        if run.code:
            refused(run, 3, tool + ": ")
        assert "RuntimeWarning" not in run.err


TEXTS = {
    "emoji": "🙂🙂",
    "family": "👨\u200d👩\u200d👧",
    "decomposed": "e\u0301",
    "wide": "日本",
    "megabyte": "a" * (1 << 20),
    "NUL": "a\0b",
    "bidi": "\u202eabc",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("tokenizer", ["words", "chars"])
def test_text_of_every_kind(attnkit, text, tokenizer):
    if tokenizer == "chars" and len(text) > 9:
        text = text[:5000]
    run = attnkit("embed", "--dim", "2", "--tokenizer", tokenizer, stdin=text.encode())
    assert (run.code, run.err) == (0, "")
    assert len(json.loads(run.out)["tensors"]["ids"]["data"]) >= 1


def test_composed_and_decomposed_are_the_same_word(attnkit):
    records = [json.loads(attnkit("embed", text, "--dim", "2").out) for text in ("é", "e\u0301")]
    assert records[0]["tensors"] == records[1]["tensors"]
