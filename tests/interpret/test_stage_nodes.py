"""The nodes of every tool compute what the tool computes: each tensor of its result that has a site."""

import json

import numpy as np
import pytest

from attnkit import formats
from attnkit.cli import pipeline
from attnkit.interpret.stage_nodes.tools import KINDS, NODES
from attnkit.records import Record
from tests.drawing import write_model
from tests.places import MODELS

pytestmark = pytest.mark.filterwarnings("ignore::attnkit.errors.AttnkitWarning")
GPT2, LSTM = (f"--model {MODELS / name}" for name in ("gpt2", "lstm"))

# the tools of a pipeline -> the tensors of their results that are compared, in order
LINES = {
    "embed 'a b c' --dim 8 --scale | posenc | attend --heads 2 --seed 1 --residual | layernorm | decode": 7,
    "posenc x.npz --kind learned --seed 1 | posenc --kind rotary | posenc --kind t5 --table t.npy": 3,
    "layernorm x.npz --kind rms --add y.npy | layernorm --kind batch --branch y.npy | layernorm --add-after y.npy": 4,
    "ffn x.npz --hidden 5 --keep all --gated --add y.npy | ffn --params e.npz --experts 2 --keep all --residual": 9,
    "conv x.npz --filters 3 --size 2 --activation relu | conv --filters 3 --size 3 --padding 1 --residual": 2,
    "conv x.npz --filters 3 --size 2 --channels first --stride 2 | softmax --temperature 2 --axis 0": 2,
    "rnn x.npz --cell lstm --hidden 3 --bidirectional | linear --params w.npz | loss --target '0 1 2 0' --steps": 5,
    "recall x.npz --heads 2 --seed 1 --rule gated-delta | recall --rule retnet --feature elu --divide --chunk 3": 2,
    "attend x.npz --weights-from s.npy --heads 2 --keep heads,v | attend --concat": 4,
    "attend x.npz --partial --heads 2 --params o.npz | merge --join": 3,
    "decode x.npz --table e.npy --top-k 2 --temperature 0.5": 2,
    f"embed --ids i.npy {GPT2} | ffn {GPT2} --layer decoder.0.ffn --keep all | decode {GPT2} --layer head": 6,
    f"embed --ids i.npy {LSTM} | rnn {LSTM} --layer decoder.0.rnn": 2,
    f"encode --model {MODELS / 'bert'} --ids i.npy --pool mean --normalize": 1,
}


@pytest.fixture(autouse=True)
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    normal = np.random.default_rng(2).standard_normal
    formats.save(Record({"x": normal((4, 6))}), "x.npz")
    shapes = {"y": (4, 6), "t": (5, 2), "e": (7, 6)}
    for name, shape in shapes.items():
        np.save(f"{name}.npy", normal(shape))
    np.save("s.npy", np.abs(normal((2, 4, 4))))
    np.save("i.npy", np.array([3, 1, 2, 5]))
    np.savez("w.npz", w=normal((6, 3)), b=normal(3))
    np.savez("o.npz", wo=normal((6, 6)), bo=normal(6))
    np.savez("e.npz", router=normal((6, 3)), w1=normal((3, 6, 5)), b1=normal((3, 5)), w2=normal((3, 5, 6)))


def run(line):
    """The calls of the stages of a pipeline."""
    calls, stages = [], pipeline.parse_stages(line)
    for number, stage in enumerate(stages, start=1):
        pipeline.keep_calls(stage, number, calls)
    list(pipeline.chain_stages(stages).items)
    return calls


def compare(call):
    """Compare the tensors of a result with the sites of its nodes; return their names."""
    graph, compared = NODES[call.tool](call), []
    _, known, memo = graph.evaluate(KINDS)
    for name, site in graph.results.items():
        if name in call.result and site in {*known, *memo}:
            ours, theirs = (memo | known)[site], call.result[name]
            tolerance = 1e-12 if theirs.dtype == np.float64 else 1e-5
            np.testing.assert_allclose(
                ours, theirs, atol=tolerance * np.abs(theirs).max(), err_msg=f"{call.tool} {name}"
            )
            compared.append(f"{call.tool} {name}")
    return compared


@pytest.mark.parametrize("line", LINES)
def test_the_nodes_of_a_stage_compute_its_result(line):
    assert len([name for call in run(line) for name in compare(call)]) == LINES[line]


def test_the_nodes_of_experts_compute_what_each_model_computes(tmp_path):
    folder = write_model("deepseek_v3", tmp_path)
    np.save("h.npy", np.ones((2, json.loads((folder / "config.json").read_text())["hidden_size"])))
    (call,) = run(f"ffn h.npy --model {folder} --layer decoder.3.ffn --keep gates,router")
    assert compare(call) == ["ffn router", "ffn gates", "ffn x"]


def test_every_tool_with_nodes_is_among_the_lines():
    assert {name.split()[0] for line in LINES for name in line.split(" | ")} == {*NODES}
