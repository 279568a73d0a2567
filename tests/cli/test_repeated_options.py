"""An option that repeats what the input says: accepted where it agrees, refused with both values where it does not."""

import numpy as np
import pytest

import attnkit
from attnkit.cli import TOOLS, find_tool, main
from attnkit.errors import UsageError, flag_name
from tests.process import ROOT

STORY = str(ROOT / "samples/data/story")  # gpt2: 4 heads, width 64, hidden width 256
MODELS = ROOT / "tests/references/models"
LLAMA, MARIAN, T5 = (str(MODELS / name) for name in ("llama", "marian", "t5"))
SEQ2SEQ, LSTM = str(MODELS / "seq2seq"), str(MODELS / "lstm")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 8))
WIDE = RNG.standard_normal((3, 64)).astype(np.float32)
GRU = {
    f"{kind}_l{layer}{end}": RNG.standard_normal((9, width))
    for layer, inputs in ((0, 8), (1, 6))
    for end in ("", "_reverse")
    for kind, width in (("weight_ih", inputs), ("weight_hh", 3))
}
LSTM_PARAMS = {
    "weight_ih_l0": RNG.standard_normal((16, 8)),
    "weight_hh_l0": RNG.standard_normal((16, 2)),
    "weight_hr_l0": RNG.standard_normal((2, 4)),
    "peephole_l0": RNG.standard_normal((3, 4)),
}
FFN = {"w1": RNG.standard_normal((8, 5)), "w2": RNG.standard_normal((5, 8))}
# (tool, source, option): its input, the other options, the value that agrees, one that does not, and how it is refused
CASES = {
    ("attend", "model", "heads"): (WIDE, {"model": STORY, "layer": "decoder.0.self"}, 4, 3, "3, but 4"),
    ("attend", "model", "kv_heads"): (WIDE, {"model": STORY, "layer": "decoder.0.self"}, 4, 2, "2, but 4"),
    ("attend", "model", "score"): (
        WIDE,
        {"model": STORY, "layer": "decoder.0.self"},
        "scaled-dot",
        "dot",
        "dot, but scaled-dot",
    ),
    ("embed", "model", "dim"): ("the fox", {"model": STORY}, 64, 8, "8, but 64"),
    ("embed", "model", "scale"): ("a cat", {"model": MARIAN}, True, None, ""),
    ("embed", "table", "dim"): ("a", {"table": X, "vocab": ["a", "b", "c"]}, 8, 4, "4, but 8"),
    ("ffn", "params", "hidden"): (X, {"params": FFN}, 5, 8, "8, but 5"),
    ("ffn", "model", "hidden"): (WIDE, {"model": STORY, "layer": "decoder.0.ffn"}, 256, 8, "8, but 256"),
    ("ffn", "model", "gated"): (WIDE[:, :24], {"model": LLAMA, "layer": "decoder.0.ffn"}, True, None, ""),
    ("ffn", "model", "activation"): (
        WIDE,
        {"model": STORY, "layer": "decoder.0.ffn"},
        "gelu-tanh",
        "relu",
        "relu, but gelu-tanh",
    ),
    ("layernorm", "model", "kind"): (
        WIDE[:, :24],
        {"model": LLAMA, "layer": "decoder.0.norm1"},
        "rms",
        "layer",
        "layer, but rms",
    ),
    ("layernorm", "model", "eps"): (
        WIDE,
        {"model": STORY, "layer": "decoder.0.norm1"},
        1e-5,
        1e-6,
        "1e-06, but 1e-05",
    ),
    ("posenc", "model", "kind"): (WIDE, {"model": STORY}, "learned", "sinusoidal", "sinusoidal, but learned"),
    ("posenc", "model", "layout"): (WIDE[:, :16], {"model": MARIAN}, "halves", "paper", "paper, but halves"),
    ("posenc", "model", "base"): (WIDE[:, :16], {"model": MARIAN}, 10000.0, 100.0, "100, but 10000"),
    ("posenc", "model", "heads"): (WIDE, {"model": STORY}, 4, 2, "2, but 4"),
    ("posenc", "model", "max_distance"): (WIDE[:, :16], {"model": T5}, 128, 64, "64, but 128"),
    ("posenc", "model", "one_way"): (
        WIDE[:, :16],
        {"model": T5, "layer": "decoder.positions"},
        True,
        None,
        "",
    ),
    ("posenc", "cos", "rotary_dim"): (X, {"kind": "rotary", "cos": X[:, :2], "sin": X[:, :2]}, 4, 6, "6, but 4"),
    ("posenc", "table", "heads"): (X, {"kind": "t5", "table": RNG.standard_normal((32, 2))}, 2, 4, "4, but 2"),
    ("posenc", "x", "dim"): (X, {}, 8, 4, "4, but 8"),
    ("rnn", "params", "hidden"): (X, {"cell": "gru", "params": GRU}, 3, 9, "9, but 3"),
    ("rnn", "params", "layers"): (X, {"cell": "gru", "params": GRU}, 2, 1, "1, but 2"),
    ("rnn", "params", "bidirectional"): (X, {"cell": "gru", "params": GRU}, True, None, ""),
    ("rnn", "params", "projection"): (X, {"cell": "lstm", "params": LSTM_PARAMS}, 2, 4, "4, but 2"),
    ("rnn", "params", "peepholes"): (X, {"cell": "lstm", "params": LSTM_PARAMS}, True, None, ""),
    ("rnn", "model", "cell"): (
        WIDE[:, :4],
        {"model": LSTM, "layer": "decoder.0.rnn"},
        "lstm",
        "gru",
        "gru, but lstm",
    ),
    ("rnn", "model", "hidden"): (WIDE[:, :4], {"model": LSTM, "layer": "decoder.0.rnn"}, 6, 4, "4, but 6"),
    ("rnn", "model", "bidirectional"): (WIDE[:, :4], {"model": SEQ2SEQ, "layer": "encoder.0.rnn"}, True, None, ""),
}
# switches where the input is without: (tool, source, option) -> input, other options
OFF = {
    ("embed", "model", "scale"): ("the fox", {"model": STORY}),
    ("ffn", "model", "gated"): (WIDE, {"model": STORY, "layer": "decoder.0.ffn"}),
    ("posenc", "model", "one_way"): (WIDE[:, :16], {"model": T5, "layer": "encoder.positions"}),
    ("rnn", "params", "bidirectional"): (X, {"cell": "lstm", "params": LSTM_PARAMS}),
    ("rnn", "params", "peepholes"): (X, {"cell": "gru", "params": GRU}),
    ("rnn", "model", "bidirectional"): (WIDE[:, :4], {"model": LSTM, "layer": "decoder.0.rnn"}),
}
TABLE = [
    (name, source, option)
    for name in TOOLS
    for source, (options, _) in find_tool(name).rules.repeats.items()
    for option in options.split()
]


def arrays(record):
    return {name: record[name].tolist() for name in record}


def test_every_row_of_the_tables_has_a_case():
    assert [row for row in TABLE if row[0] != "train"] == sorted(CASES, key=TABLE.index)
    assert {row for row, case in CASES.items() if case[3] is None} == {*OFF}


@pytest.mark.parametrize("row", CASES, ids="-".join)
def test_an_option_that_agrees_changes_nothing(row):
    name, _, option = row
    item, others, value, *_ = CASES[row]
    call = getattr(attnkit, name)
    alone, repeated = call(item, **others), call(item, **others, **{option: value})
    assert arrays(repeated) == arrays(alone)
    assert [entry["command"] for entry in repeated.history] == [entry["command"] for entry in alone.history]


@pytest.mark.parametrize("row", CASES, ids="-".join)
def test_an_option_that_contradicts_is_refused_with_both_values(row):
    name, source, option = row
    item, others, _, wrong, message = CASES[row]
    if row in OFF:
        (item, others), wrong, message = OFF[row], True, "on, but off"
    where = "x" if source == "x" else flag_name(source)
    with pytest.raises(UsageError) as caught:
        getattr(attnkit, name)(item, **others, **{option: wrong})
    assert str(caught.value) == f"{flag_name(option)}: {message} in {where}"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("gru.npz", **GRU)
    np.savez("ffn.npz", **FFN)
    np.save("x.npy", X)
    np.save("angles.npy", X[:, :2])
    return tmp_path


@pytest.mark.parametrize(
    ("line", "code", "problem"),
    [
        ("rnn x.npy --cell gru --params gru.npz --layers 2 --only x", 0, ""),
        ("rnn x.npy --cell gru --params gru.npz --layers 1", 2, "attnkit rnn: --layers: 1, but 2 in --params"),
        ("ffn x.npy --params ffn.npz --hidden 5", 0, ""),
        ("ffn x.npy --params ffn.npz --hidden 6", 2, "attnkit ffn: --hidden: 6, but 5 in --params"),
        ("ffn x.npy --params ffn.npz --hidden 5 --seed 1", 2, "attnkit ffn: --seed: cannot be combined with --params"),
        ("posenc x.npy --kind rotary --rotary-dim 4 --cos angles.npy --sin angles.npy", 0, ""),
        (
            "posenc x.npy --kind rotary --rotary-dim 2 --cos angles.npy --sin angles.npy",
            2,
            "attnkit posenc: --rotary-dim: 2, but 4 in --cos",
        ),
        ("posenc x.npy --dim 9", 2, "attnkit posenc: --dim: 9, but 8 in x"),
    ],
)
def test_the_command_line_says_the_same_of_values_that_are_defaults_too(line, code, problem, folder, capfd):
    assert main.main(line.split()) == code
    assert capfd.readouterr().err == f"{problem}\n" * bool(problem)


def test_each_record_of_a_stream_is_compared(folder, capfd):
    np.save("narrow.npy", X[:, :4])
    (folder / "two.npy").write_bytes((folder / "x.npy").read_bytes() + (folder / "narrow.npy").read_bytes())
    assert main.main(["posenc", "two.npy", "--dim", "8", "-f", "json"]) == 2
    out, err = capfd.readouterr()
    assert (out.count("\n"), err) == (1, "attnkit posenc: --dim: 8, but 4 in x\n")
