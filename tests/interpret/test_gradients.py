"""Gradients of pipelines: by hand, as slopes over random options, and as torch.autograd computes them, frozen."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attnkit
from attnkit import formats, model
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.sentence_modules import POOLS
from attnkit.cli import find_tool, parser
from attnkit.errors import AttnkitWarning, UsageError
from attnkit.inputs import layers
from attnkit.inputs.sound_inputs import model_spectrogram
from attnkit.records import Record
from tests.places import DATA, MODELS, REFERENCES, ROOT
from tests.registry import TOWERS, place_of
from tests.sentence_folders import write_late, write_sentences

TOLERANCE = 1e-6  # of a finite difference
PADDED = np.array([[False, True, True, True], [True, True, False, False]])  # the tokens of two texts, on both sides
CLIP = ROOT / "tests" / "transcripts" / "inputs" / "clip"

pytestmark = pytest.mark.filterwarnings("ignore::attnkit.errors.AttnkitWarning")  # of an x that is not one number


def run_tool(tool, *arguments):
    """The one result of a command line, as a record."""
    (result,) = parser.parse(find_tool(tool), list(arguments)).open_stream(None).items
    return result


def grad(*stages, check=False):
    return run_tool("grad", " | ".join(stages), *["--check"] * check)


def error_of(*stages):
    """The relative error of the gradients of a pipeline, as --check finds it."""
    return float(grad(*stages, check=True)["check"][2])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Operands of random numbers, and the folder that has them."""
    folder, normal = tmp_path_factory.mktemp("operands"), np.random.default_rng(3).standard_normal
    shapes = {"x": (4, 8), "bx": (2, 4, 8), "hx": (2, 2, 4, 4), "memory": (3, 8), "bmemory": (2, 3, 8)}
    shapes |= {"bias": (2, 4, 4), "additive": (4, 4), "add": (4, 8), "gamma": (8,), "beta": (8,), "shift": (4, 8)}
    shapes |= {"table": (10, 8), "buckets": (6, 2), "pk": (2, 2, 3, 4), "pv": (2, 2, 3, 4)}
    for name, shape in shapes.items():
        np.save(folder / f"{name}.npy", normal(shape))
    attention = {name: normal((8, 8)) for name in ("wq", "wk", "wv", "wo")} | {name: normal(8) for name in ("bq", "bo")}
    grouped = attention | {name: normal((8, 4)) for name in ("wk", "wv")}
    scores = {"wa": normal((4, 5)), "ua": normal((4, 5)), "va": normal(5)}
    np.savez(folder / "p.npz", **attention)
    np.savez(folder / "grouped.npz", **grouped)
    np.savez(folder / "additive.npz", **attention, **scores)
    np.savez(folder / "general.npz", **attention, w=normal((4, 4)))
    np.savez(folder / "f.npz", w1=normal((8, 12)), b1=normal(12), w2=normal((12, 8)), b2=normal(8))
    np.savez(folder / "g.npz", w1=normal((8, 12)), w2=normal((12, 8)), w3=normal((8, 12)), b3=normal(12))
    np.savez(
        folder / "experts.npz", router=normal((8, 3)), w1=normal((3, 8, 5)), w2=normal((3, 5, 8)), b2=normal((3, 8))
    )
    gates = {"router": normal((8, 3)), "router_bias": normal(3), "w3": normal((3, 8, 5))}
    np.savez(folder / "gated.npz", w1=normal((3, 8, 5)), w2=normal((3, 5, 8)), **gates)
    np.savez(folder / "head.npz", w=normal((8, 5)), b=normal(5))
    np.save(folder / "weights.npy", np.abs(normal(8)))
    np.save(folder / "ids.npy", np.array([3, 1, 4, 1]))
    np.save(folder / "bids.npy", np.array([[1, 2, 3, 0], [0, 1, 2, 3]]))
    np.save(folder / "texts.npy", np.array([[4, 2, 3, 5], [5, 1, 2, 4]]))  # that neither begin nor end with padding
    np.save(folder / "counts.npy", np.array([3, 4]))
    return folder


@pytest.fixture(autouse=True)
def inside(files, monkeypatch):
    monkeypatch.chdir(files)


def test_a_pipeline_by_hand():
    # logits = x [[1, 3], [2, 4]]ᵀ = 1 2 and 3 4 for the unit vectors; targets 0 and 1
    np.save("unit.npy", np.eye(2))
    np.save("rows.npy", np.array([[1.0, 3.0], [2.0, 4.0]]))
    result = grad("decode unit.npy --table rows.npy", "loss --target '0 1' --reduction sum")
    p = 1 / (1 + np.e)  # softmax of 1 2 and of 3 4: p, 1 − p
    dlogits = np.array([[p - 1, 1 - p], [p, -p]])
    np.testing.assert_allclose(result["1.decode.logits"], dlogits)
    np.testing.assert_allclose(result["0.input.x"], dlogits @ np.array([[1.0, 3.0], [2.0, 4.0]]))
    np.testing.assert_allclose(result["1.decode.table"], dlogits.T)
    np.testing.assert_allclose(result["x"], np.log1p(np.e) + np.log1p(np.exp(-1)))
    assert result["2.loss.x"] == 1
    assert list(result) == ["x", "0.input.x", "1.decode.table", "1.decode.logits", "2.loss.x"]


def test_weights_of_attention_by_hand():
    # one query 0 sees keys 1 and 0 with weights 1/2; x = values' mean; the gradient of a weight is its value
    for name, rows in (("q", [[0.0]]), ("k", [[1.0], [0.0]])):
        np.save(f"{name}.npy", np.array(rows))
    result = grad("attend --query q.npy --key k.npy --value k.npy --scale 1")
    assert result["1.attend.weights"].tolist() == [[[1.0, 0.0]]]
    assert result["1.attend.scores"].tolist() == [[[0.25, -0.25]]]
    assert result["1.attend.query"].tolist() == [[0.25]]
    assert result["1.attend.value"].tolist() == [[0.5], [0.5]]


def test_a_tied_table_has_one_gradient_the_sum():
    both = grad("embed 'a b' --dim 4", "decode", "loss --target 'b a'")
    table = run_tool("embed", "a b", "--dim", "4")["table"]
    np.save("own.npy", table)
    np.save("ab.npy", np.arange(2))
    parts = grad("embed --ids ab.npy --table own.npy", "decode --table own.npy", "loss --target '1 0'")
    np.testing.assert_allclose(both["1.embed.table"], parts["1.embed.table"] + parts["2.decode.table"], atol=1e-7)
    assert both.labels["vocab"] == ["a", "b"] and both.axes_of("1.embed.table") == ("vocab", "model")


def test_the_steps_of_a_norm_by_hand():
    # x̂ = −1 1 and s = 1/2 for 1 5; y = x̂ γ + β with γ = 2 1; the last x is y times 1 0
    np.save("row.npy", np.array([[1.0, 5.0]]))
    np.save("two.npy", np.array([2.0, 1.0]))
    np.savez("first.npz", w=np.array([[1.0], [0.0]]))
    flags = "--gamma two.npy --beta two.npy --eps 1e-20"
    result = grad(f"layernorm row.npy {flags}", "decode --params first.npz --emit logits")
    expected = {
        "scaled": [1.0, 0.0],
        "normalized": [2.0, 0.0],
        "inverse_std": [-4.0],
        "variance": [0.25],
        "mean": [-1.0],
    }
    expected |= {"gamma": [-1.0, 0.0], "beta": [1.0, 0.0], "x": [1.0, 0.0]}
    for name, gradient in expected.items():
        np.testing.assert_allclose(result[f"1.layernorm.{name}"].ravel(), gradient, err_msg=name)
    assert result.axes_of("1.layernorm.mean") == ("token", "over model")


def test_x_is_that_of_run_and_labels_are_those_of_the_forward_pass():
    stages = ["embed 'The cat sat' --dim 8", "posenc", "mask --causal", "attend --heads 2 --seed 1 --keep weights"]
    result, ran = grad(*stages), run_tool("run", " | ".join(stages))
    assert result["x"].tobytes() == ran["x"].tobytes() and result.axes_of("x") == ran.axes_of("x")
    assert result.axes_of("4.attend.weights") == ran.axes_of("weights")
    assert result["4.attend.weights"].shape == ran["weights"].shape
    assert result.labels["query"] == ["The", "cat", "sat"] == result.labels["token"]
    assert {one.dtype for one in result.arrays().values()} == {np.dtype(np.float32)}


def test_what_passes_through_belongs_to_the_stage_that_made_it():
    result = grad("layernorm x.npy --keep residual", "mask --causal", "attend --add :residual", "peek")
    assert {"1.layernorm.residual", "1.layernorm.x", "3.attend.x"} <= {*result}
    assert not [name for name in result if name.startswith(("2.", "4."))]
    np.testing.assert_array_equal(result["1.layernorm.residual"], np.ones((4, 8)))


ATTEND = {
    "--heads": ["1", "2", "4"],
    "--causal": [""],
    "--window": ["1,1", "2,0", "-1,1"],
    "--scale": ["0.5", "1"],
    "--softcap": ["3"],
    "--score": ["dot"],
    "--seed": ["1", "7"],
    "--residual": [""],
    "--add": ["add.npy", ":x"],
    "--mask": ["additive.npy"],
}


@st.composite
def options(draw, table):
    chosen = draw(st.lists(st.sampled_from(sorted(table)), unique=True))
    return " ".join(f"{flag} {draw(st.sampled_from(table[flag]))}".strip() for flag in chosen)


def test_the_check_leaves_padding_where_it_is():
    # the hidden numbers of padding are exactly 0, where a ReLU has no derivative and a central difference takes 1/2
    assert error_of("embed a 'b c d' --dim 8 --batch", "ffn --hidden 6") < TOLERANCE


@pytest.mark.parametrize(
    "stages",
    [
        ("embed 'a b c' --dim 4", "mask --causal --as additive", "attend --heads 2"),
        ("softmax scores.npy --axis 0",),
    ],
)
def test_the_check_leaves_a_score_of_minus_infinity_where_it_is(stages, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("scores.npy", np.where(np.eye(3) > 0, -np.inf, np.arange(9.0).reshape(3, 3)))
    assert error_of(*stages) < TOLERANCE


@pytest.mark.parametrize("model", ["inputs/clip", "inputs/clip:vision"])
def test_slopes_of_the_tower_that_reads_an_image(model):
    place = f"{ROOT / 'tests' / 'transcripts'}/{model}"
    assert error_of(f"encode --model {place} --image {MODELS / 'vit.png'} --pool cls") < TOLERANCE


def test_integers_have_no_gradient_as_a_branch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("counts.npy", np.array([[1, 2, 4], [3, 0, 9]]))
    assert error_of("layernorm counts.npy --branch counts.npy --keep residual", "layernorm --add :residual") < TOLERANCE


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["x", "bx"]), options(ATTEND), st.booleans())
def test_slopes_of_attend(source, flags, is_cross):
    memory = f"--memory {'memory' if source == 'x' else 'bmemory'}.npy" * is_cross
    flags = flags.replace("--mask additive.npy", "") if is_cross else flags
    target = "loss --target " + ("'1 2 3 0'" if source == "x" else "bids.npy")
    assert error_of(f"attend {source}.npy {flags} {memory}", target) < TOLERANCE


POSITIONS = ["", "--kind rotary --heads 2", "--kind alibi --heads 2", "--kind t5 --heads 2 --table buckets.npy"]
POSITIONS += ["--kind learned --table table.npy --offset 1", "--kind rotary --heads 2 --interleaved", "--layout halves"]
WEIGHTS = ["--params p.npz", "--params grouped.npz --kv-heads 1", "--params additive.npz --score additive"]
WEIGHTS += ["--params general.npz --score general", "--seed 2 --score dot"]
HEADS = {
    "--causal": [""],
    "--window": ["1,1", "0,2"],
    "--softcap": ["2", "20"],
    "--scale": ["0.3"],
    "--bias": ["bias.npy"],
    "--mask": ["additive.npy"],
    "--residual": [""],
    "--keep": ["weights,present", "q,scores"],
}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["x", "bx"]),
    st.sampled_from(POSITIONS),
    st.sampled_from(WEIGHTS),
    options(HEADS),
    st.sampled_from(["", " --partial", " --emit heads", " --lengths counts.npy"]),
)
def test_slopes_of_heads_with_positions_and_scores(source, positions, weights, flags, result):
    if result == " --partial":
        flags = " ".join(word for word in flags.split() if word != "--residual")
    is_emitted = result == " --emit heads"
    result = "" if result == " --lengths counts.npy" and source == "x" else result
    flags = flags.replace("--residual", "") if is_emitted else flags
    join = ["merge --join"] * (result == " --partial")
    target = "loss --target " + ("'1 2 3 0'" if source == "x" else "bids.npy")
    last = "ffn --hidden 3 --activation silu" if is_emitted else target
    assert (
        error_of(f"posenc {source}.npy {positions}", f"attend --heads 2 {weights} {flags}{result}", *join, last)
        < TOLERANCE
    )


LAYERNORM = {
    "--gamma": ["gamma.npy"],
    "--eps": ["0.1"],
    "--keep": ["residual", "inverse_std,residual"],
    "--steps": [""],
}
FFN = {"--activation": ["gelu", "gelu-tanh", "silu", "relu"], "--residual": [""], "--add": ["add.npy"], "--steps": [""]}
POSENC = {"--offset": ["3"], "--layout": ["halves"], "--base": ["100"]}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["x", "bx"]),
    options(POSENC),
    st.sampled_from(["--kind layer --beta beta.npy", "--kind rms", "--kind batch"]),
    options(LAYERNORM),
    st.sampled_from(["--hidden 5 --seed 3", "--hidden 4 --gated", "--params f.npz", "--params g.npz --gated"]),
    options(FFN),
    st.sampled_from(["", "--smoothing 0.2", "--reduction sum --weights weights.npy", "--ignore 2"]),
)
def test_slopes_of_layers(source, positions, kind, norm, weights, flags, reduction):
    target = "'1 2 3 0'" if source == "x" else "bids.npy"
    stages = [f"posenc {source}.npy {positions}", f"layernorm {kind} {norm}", f"ffn {weights} {flags}"]
    assert error_of(*stages, f"loss --target {target} {reduction}") < TOLERANCE


TARGETS = "loss --target '1 2 3 0'"


@pytest.mark.parametrize(
    "stages",
    [
        ["attend x.npy --heads 2 --params p.npz --keep q,weights,scores --causal", TARGETS],
        ["attend x.npy --heads 2 --kv-heads 1 --params grouped.npz --bias bias.npy", TARGETS],
        ["attend x.npy --heads 2 --params additive.npz --score additive", TARGETS],
        ["attend x.npy --heads 2 --params general.npz --score general --softcap 2", TARGETS],
        ["attend x.npy --emit weights", TARGETS],
        ["attend x.npy --emit heads", "layernorm --gamma gamma.npy"],
        ["attend x.npy --query :x --key memory.npy --value memory.npy --seed 2", TARGETS],
        ["attend --query memory.npy --key x.npy --value add.npy", "loss --target '1 2 3'"],
        ["attend bx.npy --heads 2 --past-key pk.npy --past-value pv.npy --keep present", "loss --target bids.npy"],
        ["attend bx.npy --heads 2 --past-key pk.npy --past-value pv.npy --emit present_key"],
        ["attend bx.npy --lengths counts.npy --seed 2", "loss --target bids.npy"],
        ["attend hx.npy --score dot"],
        ["attend x.npy --softmax-dtype float16 --seed 1", TARGETS],
        ["attend x.npy --partial"],
        ["layernorm bx.npy --axis -2 --gamma shift.npy", "loss --target bids.npy"],
        ["layernorm x.npy --keep mean,residual --add add.npy", "attend --add :residual --memory :x", TARGETS],
        ["layernorm x.npy --keep all", "attend --add :inverse_std --memory :x", "ffn --hidden 3 --add :mean", TARGETS],
        [
            "layernorm x.npy --steps --gamma gamma.npy --beta beta.npy",
            "attend --add :scaled --query :normalized",
            TARGETS,
        ],
        ["layernorm x.npy --steps --beta beta.npy", "attend --add :variance --query :normalized --key :x", TARGETS],
        ["layernorm x.npy --kind rms --keep all", "attend --add :mean_square --seed 1", "ffn --hidden 3", TARGETS],
        ["layernorm bx.npy --kind batch --keep all", "attend --add :inverse_std --seed 1", "loss --target bids.npy"],
        [
            "layernorm x.npy --kind batch --mean beta.npy --variance weights.npy --keep all",
            "attend --add :mean",
            TARGETS,
        ],
        ["layernorm x.npy --keep all --add add.npy", "attend --add :residual --bias :inverse_std", TARGETS],
        ["posenc x.npy --kind learned --table table.npy --offset 2", TARGETS],
        ["posenc bx.npy --kind learned --table table.npy", "loss --target bids.npy"],
        ["posenc x.npy --kind learned --table table.npy --alone", TARGETS],
        ["posenc --size 4 --dim 8 --kind learned --table table.npy", TARGETS],
        ["posenc x.npy --kind rotary --heads 2 --interleaved --rotary-dim 2", TARGETS],
        ["posenc hx.npy --kind rotary", "attend --score dot --scale 0.3"],
        ["posenc x.npy --kind alibi --heads 2", "attend --heads 2 --seed 1", TARGETS],
        ["posenc x.npy --kind t5 --heads 2 --table buckets.npy", "attend --heads 2", TARGETS],
        ["posenc x.npy --kind t5 --heads 2 --table buckets.npy --alone", "attend --seed 3"],
        ["mask x.npy --causal --as additive", "attend --seed 1", TARGETS],
        ["decode x.npy --params head.npz --temperature 0.5 --emit probs", TARGETS],
        ["decode x.npy --table table.npy --top-k 4 --emit probs", "layernorm", TARGETS],
        ["decode x.npy --table table.npy", "loss --target '1 2 3 0' --reduction none"],
        ["embed 'a b a' --dim 8 --scale", "mask --causal", "attend --seed 2", "decode", "loss --target 'b a a'"],
        ["embed 'a b' 'a' --dim 8 --batch", "attend --heads 2 --seed 2", "decode", "loss --target :ids"],
        ["embed 'a b' --one-hot", "attend --seed 2", "loss --target 1"],
        ["embed --ids ids.npy --table table.npy", "attend --seed 2", "decode", "loss --target '1 2 3 0'"],
        ["layernorm x.npy --dtype float32", "attend --seed 3 --only x", TARGETS],
        ["ffn x.npy --params experts.npz --experts 1 --activation gelu --residual", TARGETS],
        ["ffn x.npy --params gated.npz --experts 2 --gated --keep gates", TARGETS],
        [f"embed --ids ids.npy --model {MODELS / 'gpt2'}", f"posenc --model {MODELS / 'gpt2'} --offset 2", "layernorm"],
    ],
    ids=lambda stages: stages[0] if isinstance(stages, list) else "",
)
def test_slopes(stages):
    assert error_of(*stages) < TOLERANCE


MODEL_STAGES = {
    "gpt2": [
        "posenc",
        "layernorm --layer decoder.0.norm1",
        "attend --layer decoder.0.self",
        "ffn --layer decoder.0.ffn",
    ],
    "llama": ["attend --layer decoder.0.self", "layernorm --layer decoder.0.norm2", "ffn --layer decoder.0.ffn"],
    "t5": ["attend --layer encoder.0.self --residual", "layernorm --layer encoder.0.norm2"],
    "bert-mlm": ["posenc", "attend --layer encoder.0.self"],
}


@pytest.mark.parametrize("family", MODEL_STAGES)
def test_slopes_of_the_layers_of_models(family):
    folder = MODELS / family
    named = [f"{stage} --model {folder}" for stage in MODEL_STAGES[family]]
    head = [] if family == "t5" else [f"decode --model {folder} --layer head"]
    result = grad(f"embed --ids ids.npy --model {folder}", *named, *head, TARGETS, check=True)
    assert result["check"][2] < TOLERANCE
    layer = "encoder.0.self" if family in ("t5", "bert-mlm") else "decoder.0.self"
    assert result.axes_of(f"{layer}.wq") == ("model", "heads")


def test_the_weights_of_experts_by_hand():
    # x = 2 and the router's 1 and 0 choose expert 0, whose gate is 1: y = relu(2 w1) w2 = 2 · 3 · 5
    np.save("two.npy", np.array([[2.0]]))
    np.savez("pair.npz", router=[[1.0, 0.0]], w1=[[[3.0]], [[7.0]]], w2=[[[5.0]], [[9.0]]])
    result = grad("ffn two.npy --params pair.npz --experts 1")
    assert result["x"].tolist() == [[30.0]] and result["0.input.x"].tolist() == [[15.0]]
    assert result["1.ffn.w1"].ravel().tolist() == [10.0, 0.0] and result["1.ffn.w2"].ravel().tolist() == [6.0, 0.0]
    assert result["1.ffn.router"].tolist() == [[0.0, 0.0]] and result["1.ffn.gates"].tolist() == [[30.0]]
    assert result.axes_of("1.ffn.w1") == ("expert", "model", "hidden")


@pytest.mark.parametrize("name", ["seq2seq", "seq2seq-luong"])
def test_a_recurrent_decoder_gives_gradients_to_its_memory_and_to_its_last_states(name):
    encoded = run_tool("encode", *f"--model {MODELS / name} --ids ids.npy".split())
    words = run_tool("embed", *f"--model {MODELS / name} --ids ids.npy --layer decoder.embed".split())
    memory = {each: encoded[each] for each in encoded if each.startswith("memory")}
    line = f"rnn --model {MODELS / name} --layer decoder.rnn --memory :memory | ffn --hidden 3 --activation gelu"
    result = attnkit.grad(line, Record({"x": words["x"], **memory}), check=True)
    assert result["check"][2] < TOLERANCE
    assert {each for each in result if each.startswith("0.")} == {"0.input.x", *(f"0.input.{one}" for one in memory)}


FAMILIES = (  # each kind of layer
    "albert-groups", "bert-mlm", "bert-sentences", "bert-sequence", "deberta-v2", "deberta-v3", "electra", "gpt2",
    "gpt2-scaled", "llama-dynamic", "marian", "mistral", "modernbert", "mpnet", "openai-gpt", "qwen2", "t5", "t5-gated",
    "transformer", "transformer-prenorm", "vit",
)  # fmt: skip
HIDDEN = ("transformer", "transformer-prenorm")  # models without embeddings


LAYERS = {
    "lstm": ["decoder.0.rnn", "decoder.1.rnn", "decoder.2.rnn"],
    "seq2seq": ["encoder.0.rnn"],
    "seq2seq-luong": ["encoder.0.rnn", "encoder.1.rnn"],
}


@pytest.mark.parametrize("family", LAYERS)
def test_the_layers_of_a_recurrent_model_have_the_gradients_of_its_whole(family):
    np.save("words.npy", np.array([[3, 4, 5], [6, 3, 8]]))
    source, after = f"--model {MODELS / family} --ids words.npy", "ffn --hidden 3 --activation gelu --seed 4"
    layers = [f"rnn --model {MODELS / family} --layer {layer}" for layer in LAYERS[family]]
    pieces, whole = grad(f"embed {source}", *layers, after, check=True), grad(f"encode {source}", after)
    assert pieces["check"][2] < TOLERANCE
    names = [name for name in whole if re.match(r"(en|de)coder\.(embed\.table|\d\.rnn\.(input|hidden))", name)]
    assert len(names) >= 5
    for name in names:
        np.testing.assert_allclose(pieces[name], whole[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_slopes_of_encode_for_every_kind_of_layer(family):
    np.save("wide.npy", np.random.default_rng(5).standard_normal((2, 4, 16)))
    source = f"--image {MODELS / 'vit.png'}" if family == "vit" else "" if family in HIDDEN else "--ids texts.npy"
    source += " --pool none" * (family == "bert-sentences")
    before = ["peek wide.npy -q"] if family in HIDDEN else []
    stages = [*before, f"encode --model {MODELS / family} {source}", "ffn --hidden 3 --activation gelu --seed 4"]
    result = grad(*stages, check=True)
    assert result["check"][2] < TOLERANCE
    stack = "decoder" if "decoder.0.self.wq" in result else "encoder"
    lead = () if family == "vit" else ("batch",)
    assert result.axes_of(f"{stack}.0.self.weights") == (*lead, "head", "query", "key")
    names = {f"{stack}.0.ffn.hidden", f"{stack}.0.ffn.w2", f"{stack}.0.self.residual", f"{len(before) + 1}.encode.x"}
    assert names <= {*result}
    assert ("0.input.x" in result) == (family in HIDDEN) and ("1.encode.image" in result) == (family == "vit")


def test_the_gradient_of_a_spectrogram_is_a_slope():
    whisper, inputs = ROOT / "tests" / "transcripts" / "inputs" / "whisper", ROOT / "tests" / "transcripts" / "inputs"
    line = f"encode --model {whisper} --audio {inputs / 'tone.wav'} --dtype float64"
    with pytest.warns(AttnkitWarning, match="gradients of the sum of its elements"):
        result = grad(line)
    gradient = result["1.encode.spectrogram"]
    assert result.axes_of("1.encode.spectrogram") == ("frame", "mel")
    core, sound = layers.core_model(open_checkpoint(str(whisper))), formats.load(str(inputs / "tone.wav"))
    features = model_spectrogram(sound, core.config.sound, core.config.sound.spectrogram).astype(np.float64)
    direction = np.random.default_rng(0).standard_normal(features.shape) * 1e-5
    sides = [
        model.run(core, core.config.plan("encoder"), features + sign * direction, model.Context(dtype="float64")).sum()
        for sign in (1, -1)
    ]
    np.testing.assert_allclose((gradient * direction).sum(), (sides[0] - sides[1]) / 2, rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in TOWERS if "wide" not in name and "old" not in name])
def test_slopes_of_the_vector_of_a_tower(name):
    """By the end token and by the first token (CLIP), by the last token and by the probe (SigLIP)."""
    np.save("marked.npy", np.array([[3, 8, 4, 5], [6, 3, 4, 9]]))
    read = "--ids marked.npy" if name.endswith(":text") else f"--image {MODELS / 'vit.png'}"
    result = grad(f"encode --model {place_of(name)} {read}", "ffn --hidden 3 --activation gelu --seed 4", check=True)
    assert result["check"][2] < TOLERANCE
    names = {"modules.1", "vector.cross.weights", "vector.probe"} if name == "siglip:vision" else {"vector.w"}
    assert names <= {*result} and result["modules.1"].any()


def test_the_vector_of_an_image_has_the_gradients_of_its_tower():
    """The model of a folder with two towers is the one that reads the input."""
    line = f"encode --model {{}} --image {MODELS / 'vit.png'}"
    for one_line in (line, line.replace("encode", "embed")):
        whole, tower = (grad(one_line.format(one), "ffn --hidden 3") for one in (CLIP, f"{CLIP}:vision"))
        assert [*whole] == [*tower] and all(np.array_equal(whole[name], tower[name]) for name in tower)
    folder, image = str(CLIP), str(MODELS / "vit.png")
    whole, tower = (attnkit.embed(model=one, image=image)["x"] for one in (folder, f"{folder}:vision"))
    assert np.array_equal(whole, tower)


def test_slopes_of_the_modules_of_a_folder(tmp_path):
    """Every pooling, alone and before a dense layer and a normalization, of padded texts."""
    folder = tmp_path / "sentences"
    shutil.copytree(MODELS / "bert-sentences", folder)
    np.savez("padded.npz", ids=np.load("bids.npy"), mask=PADDED)
    lines = f"encode --model {folder} --ids padded.npz", "ffn --hidden 3 --activation gelu --seed 4"
    for mode in POOLS:
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 24, "pooling_mode": mode}))
        assert error_of(*lines) < TOLERANCE, mode
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:2]))
    flags = {"pooling_mode_max_tokens": True, "pooling_mode_lasttoken": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, **flags}))
    result = grad(*lines, check=True)
    assert result["modules.1"].shape == (2, 48) and result["check"][2] < TOLERANCE


@pytest.mark.parametrize("name", ["every", "tokens", "static"])
def test_slopes_of_all_kinds_of_modules(name, tmp_path):
    """Dense layers with a residual or of each token, a layer norm, a table, and vectors that are cut and scaled."""
    folder = write_sentences(name, tmp_path / name)
    np.savez("padded.npz", ids=np.load("bids.npy"), mask=PADDED)
    line = f"encode --model {folder} --ids padded.npz --pool folder --dim 4 --force --normalize"
    assert error_of(line, "ffn --hidden 3 --activation gelu --seed 4") < TOLERANCE


@pytest.mark.parametrize("task", ["query", "document"])
def test_slopes_of_the_vectors_of_tokens(task, tmp_path):
    folder = write_late("pylate", tmp_path / "late", np.float64)
    assert error_of(f"encode --model {folder} --task {task} 'the cat'", "ffn --hidden 3 --seed 4") < TOLERANCE


BERT, GPT2, MLM = (f"--model {MODELS / name}" for name in ("bert", "gpt2", "bert-mlm"))


@pytest.mark.parametrize(
    "stages",
    [
        [f"encode {BERT} --ids texts.npy --pool mean --normalize", "ffn --hidden 3"],
        [f"encode {BERT} --ids texts.npy --pool cls", "ffn --hidden 3"],
        [f"encode {BERT} --ids ids.npy --pool cls --normalize", "ffn --hidden 3"],
        [f"encode {BERT} --ids texts.npy --pool pooler --normalize", "layernorm", "ffn --hidden 3"],
        [f"encode {BERT} --ids padded.npz --pool mean", "ffn --hidden 3"],
        [f"encode {BERT} --ids padded.npz --pool cls", "ffn --hidden 3"],
        *([f"encode {BERT} --ids padded.npz --pool {pool} --normalize", "ffn --hidden 3"] for pool in model.POOLINGS),
        [f"encode {BERT} --ids padded.npz", "ffn --hidden 3"],
        [f"encode {GPT2} --ids ids.npy --layers :1", f"encode {GPT2} --layers 1:", "ffn --hidden 9"],
        [f"encode {GPT2} --ids ids.npy", f"decode {GPT2} --layer head", "loss --target :ids"],
        [f"encode {MLM} --ids ids.npy --keep logits", "loss --target :ids"],
        [f"encode {MLM} --ids ids.npy", f"decode {MLM}", "loss --target :ids"],
        [f"embed --image {MODELS / 'vit.png'} --model {MODELS / 'vit'}", "ffn --hidden 3"],
        [f"encode --model {MODELS / 'marian'} --ids ids.npy", "attend --memory :memory", "ffn --hidden 3"],
        [f"encode {BERT} --ids ids.npy --keep *.0.norm1", "attend --query :encoder.0.norm1", "ffn --hidden 5"],
    ],
    ids=lambda stages: " ".join(stages).replace(str(MODELS), ""),
)
def test_slopes_of_encode(stages):
    np.savez("padded.npz", ids=np.load("bids.npy"), mask=PADDED)
    assert error_of(*stages) < TOLERANCE


def test_gradients_of_a_scored_text_are_those_of_its_pipeline(tmp_path):
    folder, text, next_word = str(DATA / "story"), "Every evening the fox", " looked"
    path = str(tmp_path / "g.npz")
    attnkit.decode(text, model=folder, score=next_word, grad=path, dtype="float64")
    scored = formats.load(path)
    np.save("next.npy", attnkit.decode(text, model=folder, score=next_word)["ids"])
    result = grad(
        f"encode --model {folder} '{text}' --dtype float64",
        f"decode --model {folder} --layer head",
        "loss --target next.npy",
    )
    np.testing.assert_allclose(result["x"], scored["loss"], rtol=1e-6)
    for name in ("decoder.0.self.wq", "decoder.embed.table", "decoder.2.ffn.w2", "head.w"):
        largest = np.abs(scored[name]).max()
        np.testing.assert_allclose(result[name], scored[name], atol=1e-5 * largest, err_msg=name)
    for name in ("decoder.0.self.weights", "decoder.1.ffn.hidden", "decoder.0.norm1"):
        rows = scored[name][..., :-1, :-1] if name.endswith("weights") else scored[name][:-1]
        np.testing.assert_allclose(result[name], rows, atol=1e-5 * np.abs(rows).max(), err_msg=name)


def test_intermediates_of_the_same_name_have_their_stage_in_front():
    model = f"encode --model {MODELS / 'gpt2'}"
    result = grad(f"{model} --ids ids.npy", f"{model} --layers 1:", "ffn --hidden 9")
    assert {"1.encode.decoder.1.self.q", "2.encode.decoder.1.self.q", "decoder.0.self.q"} <= {*result}
    assert "decoder.1.self.q" not in result and "decoder.1.self.wq" in result


def test_tied_parameters_of_a_model_have_one_gradient():
    folder = MODELS / "gpt2"
    result = grad(f"embed --ids ids.npy --model {folder}", f"decode --layer head --model {folder}", TARGETS)
    np.testing.assert_array_equal(result["decoder.embed.table"], result["head.w"].T)


REFERENCE = [
    "embed --ids tokens.npy --table ref.npz:table",
    "posenc",
    "layernorm --gamma ref.npz:gamma1 --beta ref.npz:beta1",
    "attend --heads 2 --causal --params self.npz --bias ref.npz:bias --residual",
    "layernorm --kind rms --gamma ref.npz:gamma2",
    "ffn --params ffn.npz --activation gelu --residual",
    "attend --heads 2 --kv-heads 1 --memory ref.npz:memory --params cross.npz",
    "decode",
    "loss --target expected.npy --smoothing 0.1",
]
NAMES_OF = {
    "table": "1.embed.table", "gamma1": "3.layernorm.gamma", "beta1": "3.layernorm.beta", "bias": "4.attend.bias",
    "gamma2": "5.layernorm.gamma", "memory": "7.attend.memory",
    **{name: f"4.attend.{name}" for name in ("wq", "wk", "wv", "wo", "bq", "bv", "bo")},
    **{name: f"6.ffn.{name}" for name in ("w1", "b1", "w2", "b2")},
    **{f"c{letter}": f"7.attend.w{letter}" for letter in "qkvo"},
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-9), (np.float32, 1e-5)])
def test_a_whole_pipeline_is_that_of_torch_autograd(dtype, tolerance):
    with np.load(REFERENCES / "pipeline_gradients.npz") as members:
        frozen = dict(members)
    inputs = {
        name: frozen[name].astype(dtype) for name in frozen if not name.startswith(("grad.", "loss", "ids", "targ"))
    }
    np.save("tokens.npy", frozen["ids"])
    np.save("expected.npy", frozen["targets"])
    np.savez("ref.npz", **inputs)
    np.savez("self.npz", **{name: inputs[name] for name in ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")})
    np.savez("ffn.npz", **{name: inputs[name] for name in ("w1", "b1", "w2", "b2")})
    np.savez("cross.npz", **{f"w{letter}": inputs[f"c{letter}"] for letter in "qkvo"})
    result = grad(*REFERENCE)
    np.testing.assert_allclose(result["x"], frozen["loss"], rtol=tolerance)
    for name, ours in NAMES_OF.items():
        expected = frozen[f"grad.{name}"]
        assert result[ours].dtype == dtype
        np.testing.assert_allclose(
            result[ours], expected, rtol=0, atol=tolerance * np.abs(expected).max(), err_msg=name
        )
    assert np.abs(result["4.attend.bk"]).max() < tolerance  # a bias of all keys changes no softmax


@pytest.mark.parametrize(
    ("stages", "problem"),
    [
        (["decode x.npy --table table.npy --emit ids"], "stage 1, decode: its x is int64: only floats have a gradient"),
        (["embed 'a b' --dim 4", "decode --emit text"], "stage 2, decode: text has no gradient"),
        (["mask --size 3 --causal"], "stage 1, mask: its x is bool: only floats have a gradient"),
        (["attend x.npy --partial", "merge part1.npz"], "stage 2, merge: this stage ignores the result before it"),
        (
            ["attend x.npy --params p.npz --heads 2 --partial", "merge two.npz -"],
            "stage 2, merge: no gradient of files of several parts before",
        ),
        (
            [f"encode --model {MODELS / 'bert'} --ids ids.npy --ablate encoder.0.self"],
            "stage 1, encode: no gradient with --patch or --ablate",
        ),
        (
            ["layernorm x.npy", "attend --query add.npy --key - --value add.npy"],
            "stage 2, attend: its --key is the whole stage before",
        ),
        (["posenc x.npy", "run 'attend'"], "run cannot be a stage of a pipeline"),
    ],
)
def test_what_has_no_gradient_is_one_line_with_its_stage(parts, stages, problem):
    with pytest.raises(UsageError, match=problem.replace("(", r"\(")):
        grad(*stages)


PARTIAL = "attend x.npy --params p.npz --heads 2 --partial"


@pytest.fixture(scope="module")
def parts(files):
    """Parts of attention of the queries x over three memories: part1.npz …, all in parts.npz, two in two.npz."""
    x, records = np.load(files / "x.npy"), []
    for number in range(3):
        memory = np.random.default_rng(number).standard_normal((3 + number, 8))
        part = attnkit.attend(x, memory=memory, params=str(files / "p.npz"), heads=2, partial=True)
        formats.save(part, str(files / f"part{number + 1}.npz"))
        records.append(part)
    for name, some in (("parts", records), ("two", records[:2])):
        (files / f"{name}.npz").write_bytes(
            b"".join(bytes(one) for part in some for one in formats.encode(part, "npz"))
        )
    return records


@pytest.mark.parametrize(
    "stages",
    [
        ["merge part1.npz part2.npz part3.npz --join", TARGETS],
        ["merge parts.npz --join", TARGETS],
        ["merge part1.npz part2.npz", "ffn --hidden 3"],
        [PARTIAL, "merge --join", TARGETS],
        [f"{PARTIAL} --causal", "merge - part2.npz part3.npz --join", TARGETS],
        [PARTIAL, "merge part1.npz - part3.npz --join", "ffn --hidden 3", TARGETS],
        [PARTIAL, "merge - two.npz --join", TARGETS],
        [PARTIAL, "merge", "merge - part3.npz --join", TARGETS],
        ["attend x.npy --partial --softcap 2 --bias bias.npy --heads 2", "merge --join", TARGETS],
        [
            f"embed --ids ids.npy --model {MODELS / 'gpt2'}",
            f"attend --partial --model {MODELS / 'gpt2'} --layer decoder.0.self",
            "merge --join",
        ],
    ],
    ids=str,
)
def test_slopes_of_merge(parts, stages):
    assert error_of(*stages) < TOLERANCE


def test_merged_parts_have_the_gradients_of_attention_to_all_keys(parts):
    memories = [np.random.default_rng(number).standard_normal((3 + number, 8)) for number in range(3)]
    np.save("memories.npy", np.concatenate(memories))
    whole = grad("attend x.npy --memory memories.npy --params p.npz --heads 2", TARGETS)
    records = [Record({"x": np.load("x.npy"), "memory": memory}) for memory in memories]
    stream = b"".join(bytes(one) for record in records for one in formats.encode(record, "npz"))
    Path("stream.npz").write_bytes(stream)
    merged = grad("attend stream.npz --memory :memory --params p.npz --heads 2 --partial", "merge --join", TARGETS)
    for name in ("wq", "wk", "wv", "wo", "bo", "bq"):
        np.testing.assert_allclose(merged[f"1.attend.{name}"], whole[f"1.attend.{name}"], atol=1e-12, err_msg=name)
    keys = [merged[f"0.input.part{number}.memory"] for number in (1, 2, 3)]
    np.testing.assert_allclose(np.concatenate(keys), whole["1.attend.memory"], atol=1e-12)
    np.testing.assert_allclose(sum(merged[f"0.input.part{n}.x"] for n in (1, 2, 3)), whole["0.input.x"], atol=1e-12)
    assert "1.attend.part2.weights" in merged and merged.axes_of("1.attend.part2.lse") == ("head", "query")
    checked = grad("attend stream.npz --memory :memory --params p.npz --partial", "merge --join", TARGETS, check=True)
    assert checked["check"][2] < TOLERANCE


def test_tables_of_several_texts_are_their_own_and_weights_are_shared():
    result = grad(
        "embed --lines 'a b' 'a b' --dim 4", "attend --seed 1 --partial", "merge --join", "layernorm", check=True
    )
    assert result["check"][2] < TOLERANCE
    assert {"1.embed.part1.table", "1.embed.part2.table", "2.attend.wq"} <= {*result}
    assert not {"1.embed.table", "2.attend.part1.wq"} & {*result}


def test_a_stream_gives_a_record_of_gradients_for_each_record():
    call = parser.parse(find_tool("grad"), ["embed --lines 'a b' 'c' --dim 4 | attend | loss --target 0"])
    lengths = [record["1.embed.x"].shape for record in call.open_stream(None).items]
    assert lengths == [(2, 4), (1, 4)]


def test_the_record_is_read_by_every_format_and_names_its_command(tmp_path):
    pipeline = "attend x.npy --seed 1 | loss --target 1"
    result = run_tool("grad", pipeline)
    for format in ("npz", "safetensors", "json"):
        data = b"".join(bytes(part) for part in formats.encode(result, format))
        (tmp_path / f"g.{format}").write_bytes(data)
        again = run_tool("show", str(tmp_path / f"g.{format}"))
        assert isinstance(again, Record) and [*again] == [*result]
    entry = result.history[-1]
    assert shlex.split(entry["command"]) == ["attnkit", "grad", pipeline] and list(entry["files"]) == ["x.npy"]
