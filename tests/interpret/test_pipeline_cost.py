"""What a pipeline and a trace cost is what NumPy multiplies in them, to the last FLOP."""

import json
import subprocess
import sys

import numpy as np
import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import AttnkitError, UsageError
from attnkit.interpret.trace_cost import model_of_history
from tests.drawing import write_model
from tests.places import FRENCH, MODELS, ROOT, STORY

INPUTS = ROOT / "tests" / "transcripts" / "inputs"
CAT = 'embed "The cat sat on the mat" --dim 8'
LONG = "embed --ids long.npy --table table.npy"  # 600 tokens: the scores of two heads are computed in tiles
TRACED = {"bert": "short", "mistral": "short", "t5": "short", "gpt2": "texts"}  # models -> the ids of a trace
PIPELINES = (
    f"{CAT} | attend",
    f"{CAT} | attend --heads 2 --seed 1 --residual | layernorm | ffn --hidden 32 --residual | decode",
    f"{CAT} | posenc | mask --causal | attend --heads 4 --kv-heads 2 --seed 1 --softcap 5 --keep weights",
    f"{CAT} | attend --heads 2 --seed 1 --emit scores | softmax --temperature 2",
    f"{CAT} | attend --params all.npz --heads 2 --qk-norm rms",
    f"{CAT} | attend --score general --params general.npz",
    f"{CAT} | attend --score additive --seed 3",
    f"{CAT} | attend --memory memory.npz --heads 2 --seed 1",
    f"{CAT} | attend --past-key past.npy --past-value past.npy --heads 2 --causal",
    f"{CAT} | attend --weights-from weights.npy --heads 2 --params all.npz",
    f"{LONG} | attend --heads 2",
    f"{LONG} | attend --heads 2 --causal",
    f"{LONG} | attend --heads 2 --causal --window 20,0",
    f"{LONG} | attend --heads 2 --window 20,30 --keep weights",
    f"{LONG} | attend --heads 2 --softmax-dtype float16",
    f"{LONG} | attend --heads 2 --lengths lengths.npy",
    f"{CAT} | attend --partial --heads 2 --seed 1 | merge - --join",
    f"{CAT} | attend --heads 2 --seed 1 --explain 1,5,2",
    f"{LONG} | attend --heads 2 --causal --explain 1,5,2",
    *(f"{text} | attend --heads 2 {options} --weights {summary}" for summary in ("stats", "topk:3", "rows:2,-1")
      for text in (CAT, LONG) for options in ("", "--causal --window 20,0")),
    f"{CAT} | attend --memory memory.npz --heads 2 --kv-heads 1 --seed 1 --weights stats --keep heads",
    f"{LONG} | attend --score additive --seed 3 --weights stats",
    f"{LONG} | attend --heads 2 --lengths lengths.npy --weights stats",
    f"embed --model {MODELS}/mistral --ids short.npy"
    f" | attend --model {MODELS}/mistral --layer decoder.0.self --weights stats",
    f"{CAT} | ffn --hidden 6 --gated --activation silu",
    f"{CAT} | ffn --params experts.npz --experts 2 --gated",
    f"{CAT} | linear --params w.npz",
    f"{CAT} | linear --params diagonal.npz",
    f"{CAT} | rnn --cell gru --hidden 5 --layers 2 --bidirectional",
    f"{CAT} | rnn --cell lstm --hidden 5 --projection 3",
    f"{CAT} | rnn --hidden 5 --reverse",
    *(f"{CAT} | recall --heads 2 --seed 1 --rule {rule}" for rule in ("linear", "mamba2", "gated-delta")),
    *(f"{CAT} | recall --heads 2 --seed 1 --rule {rule} --chunk 4" for rule in ("mamba2", "gated-delta")),
    f"{CAT} | recall --feature elu --divide --chunk 6",
    "embed a 'b c d' --dim 4 --batch | attend --heads 2 | rnn --hidden 3",
    f"{CAT} | decode --emit text",
    f"{CAT} | decode --emit ids",
    f"embed --ids short.npy --model {STORY} --only ids | decode --model {STORY} --max-tokens 3",
    "conv image.npy --filters 4 --size 3,3 --stride 2 --padding 1 --groups 2",
    "mel sound.npy --mels 6 --window 64 --hop 32",
    f'encode --model {FRENCH} "je suis étudiant"',
    f'encode --model {FRENCH} --batch "je suis étudiant" "je suis" "je"',
    f'encode --model {FRENCH} "je suis étudiant" --layers 0:1 | encode --model {FRENCH} --layers 1:2',
    f'embed --model {FRENCH} "je suis" | posenc --model {FRENCH}'
    f" | attend --model {FRENCH} --layer encoder.0.self --residual"
    f" | layernorm --model {FRENCH} --layer encoder.0.norm1 | ffn --model {FRENCH} --layer encoder.0.ffn --residual",
    f'encode --model {STORY} "Once upon a time" | decode --model {STORY} --layer head',
    f"decode --model {STORY} 'Once upon a time' --max-tokens 5",
    f"decode --model {STORY} 'Once upon a time' Once --max-tokens 7 --temperature 1 --seed 1",
    f"decode --model {FRENCH} 'je suis étudiant' 'je suis'",
    f"encode --model {FRENCH} 'je suis' | decode --model {FRENCH}",
    f"decode --model {MODELS}/lstm --ids short.npy --max-tokens 4",
    f"encode --model {MODELS}/bert --ids short.npy",
    f"encode --model {MODELS}/deberta-v2 --ids short.npy",
    f"encode --model {MODELS}/llama --ids short.npy",
    *(f"encode --model {INPUTS}/{name} --audio {INPUTS}/tone.wav" for name in ("whisper", "wav2vec2")),
    f"encode --model {INPUTS}/whisper --audio {INPUTS}/tone.wav --trace whisper.npz",
    "encode --model dinov2-registers --image wide.npy",
    f"encode --model {MODELS}/vit --image {MODELS}/vit.png",
    f"encode --model {INPUTS}/siglip --image {MODELS}/vit.png --trace siglip.npz",
    f"encode --model {INPUTS}/siglip --batch cat 'a red dog'",
    *(f"encode --model {MODELS}/{name} --ids {ids}.npy --trace {name}.npz" for name, ids in TRACED.items()),
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the pipelines name."""
    place, rng = tmp_path_factory.mktemp("pipelines"), np.random.default_rng(0)
    draw = rng.standard_normal
    square = {f"w{letter}": draw((8, 8)) for letter in "qkvo"}
    arrays = {
        "long": rng.integers(0, 9, 600), "short": rng.integers(0, 9, 5), "texts": rng.integers(0, 9, (2, 7)),
        "table": draw((9, 8)),
        "past": draw((2, 3, 4)), "weights": rng.random((6, 6)), "lengths": np.array([300]),
        "image": draw((9, 7, 2)), "sound": draw(640),
    }  # fmt: skip
    for name, array in arrays.items():
        np.save(place / f"{name}.npy", array)
    (place / "dinov2-registers").mkdir()
    write_model("dinov2-registers", place / "dinov2-registers", kind="vision")
    np.save(place / "wide.npy", draw((3, 14, 35)).astype(np.float32))
    np.savez(place / "all.npz", **square, bo=draw(8))
    np.savez(place / "memory.npz", x=draw((4, 8)))
    np.savez(place / "general.npz", w=draw((8, 8)))
    np.savez(place / "w.npz", w=draw((8, 3)), b=draw(3))
    np.savez(place / "diagonal.npz", w=draw(8))
    stacked = {"w1": draw((4, 8, 6)), "w3": draw((4, 8, 6)), "w2": draw((4, 6, 8)), "b2": draw((4, 8))}
    np.savez(place / "experts.npz", router=draw((8, 4)), router_bias=draw(4), **stacked)
    return place


@pytest.fixture(scope="module")
def measured(folder):
    """What each pipeline really multiplies."""
    (folder / "cases.json").write_text(json.dumps(PIPELINES))
    command = [sys.executable, "-m", "tests.counting", str(folder / "cases.json")]
    path = {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, cwd=folder, env=path | {"PATH": ""}, capture_output=True, check=False, text=True)
    assert run.returncode == 0, run.stderr
    return [case["flops"] for case in json.loads(run.stdout)]


def flops_of(record):
    at = record.labels["quantity"].index("FLOPs")
    return {name: int(count) for name, count in zip(record.labels["stage"], record["x"][0, :, at], strict=True)}


@pytest.mark.slow
def test_the_table_counts_every_product_of_a_pipeline_to_the_last_flop(folder, measured, monkeypatch):
    monkeypatch.chdir(folder)
    counted = [sum(flops_of(attnkit.cost(text)).values()) for text in PIPELINES]
    assert dict(zip(PIPELINES, counted, strict=True)) == dict(zip(PIPELINES, measured, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TRACED, "whisper", "siglip"])
def test_a_trace_costs_what_the_run_that_made_it_multiplied(name, folder, measured, monkeypatch):
    monkeypatch.chdir(folder)
    [made] = [text for text in PIPELINES if f"--trace {name}.npz" in text]
    expected, before = measured[PIPELINES.index(made)], flops_of(attnkit.cost(made))
    record = attnkit.cost(f"{name}.npz")
    assert sum(flops_of(record).values()) + before.get("mel", 0) == expected  # the spectrogram is not in the trace
    with np.load(f"{name}.npz") as trace:
        layers = {one.rpartition(".")[0] for one in trace.files}
    parts = attnkit.cost(f"{name}.npz", parts=True).labels["stage"]
    assert {one.replace("#", "0").rpartition(".")[0] for one in parts if one.endswith(".scores")} <= layers


def test_each_stage_by_hand():
    """Three tokens of width 4: two heads of 2 with projections, a network of 6, the logits of three words."""
    record = attnkit.cost('embed "a b c" --dim 4 | attend --heads 2 --seed 0 | ffn --hidden 6 | decode', parts=True)
    flops = flops_of(record)
    assert {name: count for name, count in flops.items() if count} == {
        **{f"2.attend.{name}": 2 * 3 * 4 * 4 for name in ("q", "k", "v", "output")},
        "2.attend.scores": 2 * 2 * 3 * 3 * 2,  # heads, queries, keys, width of a head
        "2.attend.heads": 2 * 2 * 3 * 3 * 2,
        "3.ffn.hidden": 2 * 3 * 4 * 6,
        "3.ffn.output": 2 * 3 * 6 * 4,
        "4.decode.logits": 2 * 3 * 4 * 3,
    }
    assert record["weights"].tolist() == [4 * (3 * 4 + 4 * 16 + 2 * 24)]  # float32: the table is the head's too


def test_a_stream_adds_up():
    one, two = (flops_of(attnkit.cost(f"embed {lines} --dim 4 --lines | attend")) for lines in ("a", "a a"))
    assert {name: 2 * count for name, count in one.items()} == two


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["embed a --dim 2 | near --index x.npz"], "x.npz"),
        (["embed a --dim 2 | decode | loss --target a"], "no rule for this tool"),
        (["embed a --dim 2 | attnd"], "did you mean attend"),
        ([f"decode --model {STORY} Once --beam 2"], "--beam"),
        ([f"encode --model {STORY} Once --keep '*.weights' --weights topk:2"], "--weights: the scores"),
    ],
)
def test_what_is_not_counted_is_an_error_that_says_so(arguments, problem):
    with pytest.raises(AttnkitError, match=problem):
        attnkit.cost(*arguments)


@pytest.mark.parametrize("options", [{"tokens": 3}, {"generate": 2}, {"batch": 2}, {"train": True}, {"paper": True}])
def test_a_pipeline_states_its_own_tokens(options):
    with pytest.raises(UsageError, match="needs the folder of a model, not a pipeline"):
        attnkit.cost("embed a --dim 2", **options)


def test_the_labels_of_a_text_are_not_counted_in_a_pipeline():
    with pytest.raises(UsageError, match="stage 1, decode: what it computes of a whole text, image or sound is not"):
        attnkit.cost(f"decode --model {MODELS}/bert-mlm 'the cat [MASK]'")


def test_a_file_that_is_no_trace_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    attnkit.run(f"encode --model {STORY} Once", trace="pipeline.npz")
    with pytest.raises(AttnkitError, match="a trace of a pipeline; attnkit cost"):
        attnkit.cost("pipeline.npz")
    with pytest.raises(AttnkitError, match="history names no model"):
        attnkit.cost("memory.npz")


def test_a_trace_of_a_few_intermediates_has_their_layers(folder, monkeypatch):
    monkeypatch.chdir(folder)
    attnkit.encode(model=f"{MODELS}/gpt2", ids="short.npy", trace="few.npz", trace_only="decoder.0.self.scores")
    record = attnkit.cost("few.npz")
    assert record.labels["stage"] == ["decoder.#.self"]
    whole = attnkit.cost(f"{MODELS}/gpt2", tokens=5, parts=True)
    layers = open_checkpoint(f"{MODELS}/gpt2").config.decoder.layers
    flops = sum(count for name, count in flops_of(whole).items() if ".self." in name)
    assert sum(flops_of(record).values()) * layers == flops


def test_a_command_that_is_no_shell_line_names_no_model():
    history = [{"command": "attnkit encode --model gpt2 'open"}, {"command": 5}, {}]
    with pytest.raises(AttnkitError, match="history names no model"):
        model_of_history(history)
    assert model_of_history([{"command": "attnkit encode --model gpt2 a"}, *history]) == "gpt2"
