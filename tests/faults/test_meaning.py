# ruff: noqa: E501 - a case of a table is a line
"""Tensors that are well formed and make no sense: shapes, ranges and values that no operator can use."""

import io
import itertools
import json
import re

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


Q, K, V = "--query q.npy", "--key k.npy", "--value v.npy"

# command line: exit code, what the line says, the files it reads
BAD = {
    # M1, M2
    "attend x.npy --heads 3": (3, "d_model 10 is not divisible by heads 3", {"x.npy": zeros(2, 10)}),
    "attend x.npy --heads 3 --seed 1": (3, "d_model 10 is not divisible by heads 3", {"x.npy": zeros(2, 10)}),
    "posenc x.npy --kind rotary --heads 3": (3, "10 is not divisible by heads 3", {"x.npy": zeros(2, 10)}),
    "attend good.json --heads 0": (2, "--heads: expected a whole number of at least 1, got '0'", {}),
    "attend good.json --heads -1": (2, "--heads: expected a whole number of at least 1, got '-1'", {}),
    "attend x.npy --heads 8 --kv-heads 3": (2, "heads 8, kv_heads 3 (expected kv_heads to divide heads)", {"x.npy": zeros(2, 8)}),
    "attend x.npy --heads 8 --kv-heads 3 --seed 1": (2, "heads 8, kv_heads 3 (expected kv_heads to divide heads)", {"x.npy": zeros(2, 8)}),
    "attend x.npy --heads 4 --kv-heads 2": (3, "Q (2,8) in 4 heads and K (2,8) in 2: 2 and 4 dimensions per head", {"x.npy": zeros(2, 8)}),
    "layernorm good.json --eps 0": (2, "--eps: expected a finite number above 0, got '0'", {}),
    "layernorm good.json --eps -1": (2, "--eps: expected a finite number above 0, got '-1'", {}),
    "decode good.json --table good.json --temperature 0": (2, "--temperature: expected a finite number above 0", {}),
    "decode good.json --table good.json --top-p 1.5": (2, "--top-p: expected a finite number above 0 and of at most 1", {}),
    "decode good.json --table good.json --top-k 0": (2, "--top-k: expected a whole number of at least 1", {}),
    # an index that a flag names and the tensor does not have
    "show good.json --slice 9": (2, "--slice: index 9 is outside axis token of size 2", {}),
    "peek good.json --slice 0,0,0": (2, "--slice: 3 indices for x of shape (2, 2)", {}),
    "mask good.json --causal --explain 2,0": (2, "--explain: 2,0 is outside the mask of shape (2, 2)", {}),
    "mask good.json --causal --as lengths": (2, "--as lengths: mask is not a padding mask", {}),
    "attend good.json --weights rows:2": (2, "query 2 of 2 (expected -2 to 1)", {}),
    # N14
    "mask --size 1000000000000,0 --causal": (3, "--size: shape (1000000000000, 0) too large for no elements (limit 16777216", {}),
    "mask --size 0,16777217 --causal": (3, "--size: shape (0, 16777217) too large for no elements", {}),
    "posenc --size 0 --dim 1000000000000": (3, "--size: shape (0, 1000000000000) too large for no elements (limit 16777216", {}),
    # M3
    f"attend {Q} {K} {V}": (3, "Q (2,4,8) and K (2,6,9): last dimension 8 != 9", {"q.npy": zeros(2, 4, 8), "k.npy": zeros(2, 6, 9), "v.npy": zeros(2, 6, 9)}),
    f"attend {V} {K} {Q}": (3, "K (2,6,8) and V (2,5,8): 6 keys but 5 values", {"q.npy": zeros(2, 4, 8), "k.npy": zeros(2, 6, 8), "v.npy": zeros(2, 5, 8)}),
    f"attend {K} {V} {Q}": (3, "Q (2,4,8) and K (3,6,8): batch 2 != 3", {"q.npy": zeros(2, 4, 8), "k.npy": zeros(3, 6, 8), "v.npy": zeros(3, 6, 8)}),
    "attend x.npy": (3, "x.npy: ", "(4,)", "rank 1", {"x.npy": zeros(4)}),
    "attend x.npy --causal": (3, "(1,1,1,2,4)", "rank 5", {"x.npy": zeros(1, 1, 1, 2, 4)}),
    "attend -": (3, "<stdin>: ", "rank 0", {}),
    "attend good.json --memory m.npy": (3, "Q (2,2) and K (3,5): last dimension 2 != 5", {"m.npy": zeros(3, 5)}),
    "ffn x.npy --params p.npz": (3, "w1 (5,3) for x (2,4)", {"x.npy": zeros(2, 4), "p.npz": {"w1": zeros(5, 3), "w2": zeros(3, 5)}}),
    "ffn good.json --params p.npz": (3, "p.npz: no w2 (it has w1)", {"p.npz": {"w1": zeros(2, 2)}}),
    "attend good.json --params p.npz": (3, "wx", {"p.npz": {"wx": zeros(2, 2)}}),
    "attend good.json --params p.npz --heads 2": (3, "wq (3,2) for x (2,2): first dimension 3 != 2", {"p.npz": {"wq": zeros(3, 2)}}),
    "layernorm good.json --gamma g.npy": (3, "(3,)", {"g.npy": zeros(3)}),
    "layernorm good.json --add r.npy": (3, "residual (3,2)", "x (2,2)", {"r.npy": zeros(3, 2)}),
    "layernorm good.json --axis 2": (2, "axis 2 for x (2,2) (expected -2..1)", {}),
    "decode good.json --table t.npy": (3, "2", "3", {"t.npy": zeros(5, 3)}),
    "decode good.json --table v.npy": (3, "shape (2,) is not vocab × model", {"v.npy": zeros(2)}),
    "decode good.json --table good.json --vocab v.txt": (3, "v.txt: 1 word for 2 logits", {"v.txt": "a\n"}),
    # M5
    "attend good.json --mask m.npy": (3, "mask", "2", {"m.npy": np.array([[0, 2], [1, 1]])}),
    "attend good.json --causal --mask m.npy": (3, "mask (3,3)", {"m.npy": np.ones((3, 3), bool)}),
    "mask good.json --with m.npy": (3, "mask", {"m.npy": np.array([[0, -1], [1, 1]])}),
    "mask good.json --causal --with m.npy": (3, "with (3, 3)", {"m.npy": np.ones((3, 3), bool)}),
    # M6, M7
    "attend good.json --strict --mask m.npy": (3, "may not attend to any key", "first [0][1]", {"m.npy": np.array([[1, 1], [0, 0]])}),
    "layernorm x.json --check-finite": (3, "x.json: x is nan at [0][1]", {"x.json": [[1, "NaN"], [3, 4]]}),
    "attend x.json --check-finite": (3, "x.json: x is -inf at [1][0]", {"x.json": [[1, 2], ["-Infinity", 4]]}),
    # M11, M12
    **{
        f"embed --table t.npy --ids {name}": (3, *parts, {"t.npy": zeros(100, 2), name: ids})
        for name, ids, *parts in (
            ("negative.json", [[0, 1, 2, -1]], "token id -1 at [0][3] outside 0..99"),
            ("large.json", [100], "token id 100 at [0] outside 0..99"),
            ("huge.json", [2**40], "token id 1099511627776 at [0] outside 0..99"),
            ("half.json", [0, 2.5], "token id 2.5 at [1]"),
            ("nan.json", [0, "NaN"], "token id nan at [1]"),
            ("true.json", [True], "bool"),
            ("deep.json", [[[1]]], "shape (1, 1, 1) is not (T) or (B, T)"),
        )
    },
    "embed zzz --dim 2 --vocab v.txt": (3, "v.txt: token 'zzz' at [0] is not in the vocabulary", {"v.txt": "a\nb\n"}),
    "embed a --dim 2 --vocab v.txt": (3, "v.txt: word 'a' occurs twice", {"v.txt": "a\nb\na\n"}),
    "embed b --dim 2 --vocab v.txt": (3, "v.txt: no words", {"v.txt": "\n\n"}),
    "embed a --table t.npy": (2, "--vocab FILE", {"t.npy": zeros(3, 2)}),
    "embed a": (2, "needs --model DIR, --dim D, --one-hot or --table FILE", {}),
    # M13
    "posenc x.npy --kind learned --table t.npy": (3, "position 2", "0..1", {"x.npy": zeros(3, 4), "t.npy": zeros(2, 4)}),
    "posenc good.json --kind learned --table t.npy": (3, "width 2 != 4", {"t.npy": zeros(9, 4)}),
    "posenc x.npy": (3, "width 3 is not even", {"x.npy": zeros(2, 3)}),
    "posenc x.npy --kind rotary": (3, "rotary width 3 is not even", {"x.npy": zeros(2, 3)}),
    "posenc good.json --kind rotary --rotary-dim 3": (3, "rotary width 3 is not even", {}),
    "posenc good.json --kind rotary --rotary-dim 4": (3, "rotary", "4", {}),
    "posenc good.json --positions p.json": (3, "-1", {"p.json": [0, -1]}),
    # M16
    **{f"embed a --dim 2 --seed {seed}": (2, f"--seed: expected a whole number of at least 0, got '{seed}'", {}) for seed in ("-1", "1.5", "abc")},
    f"embed a --dim 2 --seed {2**64}": (2, f"--seed: expected a whole number of at least 0, of at most 18 digits, got '{2**64}'", {}),
    # M17
    "decode x.json --table t.json": (3, "no finite logit at step 1", {"x.json": [[1.0, 1.0], ["NaN", 1.0]], "t.json": [[1, 0], [0, 1]]}),
    "decode x.json --table u.json": (3, "no finite logit at step 0", {"x.json": [["-Infinity", 1.0]], "u.json": [[1, 0], [1, 0]]}),
    # M18
    "embed a --dim 2 --tokenizer m.json": (3, "m.json: the precompiled_charsmap is malformed", {"m.json": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////wAA"}, "model": {"type": "Unigram", "vocab": [["a", 0.0]]}}}),
    "embed a --dim 2 --tokenizer p.json": (3, "p.json: a piece of 9000 characters (expected at most 4096)", {"p.json": {"model": {"type": "Unigram", "vocab": [["a" * 9000, 0.0]]}}}),
}  # fmt: skip


@pytest.mark.parametrize(("line", "case"), BAD.items(), ids=BAD)
def test_refused(attnkit, files, refused, line, case):
    code, *parts, contents = case
    files(contents)
    before = {path: path.read_bytes() for path in attnkit.folder.iterdir()}
    run = attnkit(*line.split(), stdin=b"3")
    refused(run, code, line.split()[0] + ": ", *parts)
    assert {path: path.read_bytes() for path in attnkit.folder.iterdir()} == before


def loaded(run):
    """The record that a process wrote as NPZ."""
    assert run.code == 0, run.err
    return dict(np.load(io.BytesIO(run.out), allow_pickle=False))


X = np.array([[1, 2], [3, 4], [5, 7]], np.float32)


def test_a_query_that_may_attend_to_nothing_is_zero_with_a_warning(attnkit, files):
    files({"x.npy": X, "m.npy": np.array([[1, 1, 0], [0, 0, 0], [0, 0, 1]])})
    run = attnkit("attend", "x.npy", "--mask", "m.npy", "--keep", "weights", "-f", "npz")
    assert re.fullmatch(r"attnkit attend: warning: 1 .*may not attend to any key.*\[0\]\[1\]\)?\n", run.err)
    assert loaded(run)["x"][1].tolist() == [0, 0]
    assert loaded(run)["weights"][0, 1].tolist() == [0, 0, 0]
    assert attnkit("attend", "x.npy", "--mask", "m.npy", "--quiet").err == ""


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


def test_no_keys_give_zeros_with_a_warning(attnkit, files):
    files({"q.npy": X, "k.npy": zeros(0, 2)})
    run = attnkit("attend", "q.npy", "--memory", "k.npy", "-f", "npz")
    assert loaded(run)["x"].tolist() == [[0, 0]] * 3
    assert re.fullmatch(r"attnkit attend: warning: 3 .*may not attend to any key.*\[0\]\[0\]\)?\n", run.err)


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


# M15
def test_causal_of_more_keys_than_queries_starts_at_the_first_unless_told(attnkit, files):
    files({"q.npy": X[:2], "k.npy": X})
    line = ["attend", "q.npy", "--memory", "k.npy", "--causal", "--keep", "weights", "-f", "npz"]
    open_cells = [loaded(attnkit(*line, *flags))["weights"][0] > 0 for flags in ([], ["--align", "bottom-right"])]
    assert open_cells[0].tolist() == [[True, False, False], [True, True, False]]
    assert open_cells[1].tolist() == [[True, True, False], [True, True, True]]


def test_no_seed_is_seed_0(attnkit):
    run = attnkit("embed", "a b", "--dim", "3")
    assert run == attnkit("embed", "a b", "--dim", "3", "--seed", "0")
    assert b"--seed 0" in run.out


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


def test_no_text(attnkit, refused):
    refused(attnkit("embed", "--dim", "2"), 3, "embed: <stdin>: ", "empty input (expected text)")
    run = attnkit("embed", "", "--dim", "2")
    assert (run.code, run.err) == (0, "")
    assert json.loads(run.out)["tensors"]["x"]["shape"] == [0, 2]
    refused(attnkit("embed", "--dim", "2", stdin=b"a \xff"), 3, "embed: <stdin>: not UTF-8 text (byte 2)")


def test_an_unknown_word_becomes_the_unknown_token(attnkit, files):
    files({"v.txt": "a\n[UNK]\n"})
    run = attnkit("embed", "a zzz", "--dim", "2", "--vocab", "v.txt")
    assert json.loads(run.out)["tensors"]["ids"]["data"] == [0, 1]


def test_segments_of_a_single_number(attnkit, refused):
    attnkit.file("one.json", b"7")
    refused(attnkit("mask", "good.json", "--segments", "one.json"), 3, "mask: one.json: segments (): a single number")
