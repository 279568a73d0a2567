"""scan: sweeps of patches and ablations; each cell is one run of decode with --patch or --ablate."""

import fnmatch
import re
import shutil
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

import attnkit
from attnkit import display, model
from attnkit.checkpoints import open_checkpoint
from attnkit.commands.scan import map_view
from attnkit.errors import DataError, UsageError
from attnkit.generation.options import DecodeOptions
from attnkit.generation.prompts import begin_transcription
from attnkit.inputs import layers
from attnkit.interpret.lens import find_word
from attnkit.records import Record, Tensor
from tests import process
from tests.places import MODELS, REFERENCES, ROOT

STORY, TRANSLATOR = (str(ROOT / "samples/data" / name) for name in ("story", "fr-en"))
WHISPER, TONE = (str(ROOT / "tests" / "transcripts" / "inputs" / name) for name in ("whisper", "tone.wav"))
CLEAN, CORRUPTED = (f"There was a small {hero} by the sea. Every evening the" for hero in ("bear", "robot"))
TOLERANCE = {"float32": 2e-5, "float64": 1e-10}
HELPERS = {
    "resid_pre": ("decoder.*.ffn.residual", ["positions"]),
    "resid_mid": ("decoder.*.self.residual", ["positions"]),
    "attn_out": ("decoder.*.self.output", ["positions"]),
    "mlp_out": ("decoder.*.ffn.output", ["positions"]),
    "attn_head_out_all_pos": ("decoder.*.self.heads", ["heads"]),
    "attn_head_out_by_pos": ("decoder.*.self.heads", ["heads", "positions"]),
    "attn_head_v_all_pos": ("decoder.*.self.v", ["heads"]),
    "attn_head_pattern_all_pos": ("decoder.*.self.weights", ["heads"]),
}


def scan(text=CLEAN, **values):
    return attnkit.scan(text, **({"model": STORY, "score": " bear"} | values))


@cache
def traced(model, text, dtype):
    return attnkit.encode(text, model=model, keep="*", dtype=dtype)


def word(model, text, name):
    one, two = (attnkit.encode(part, model=model)["ids"] for part in (text, text + name))
    assert len(two) == len(one) + 1
    return int(two[-1])


def final_logits(text, dtype, model=STORY, **values):
    return attnkit.decode(text, model=model, max_tokens=0, emit="logits", dtype=dtype, **values)["x"][-1]


@pytest.mark.parametrize(
    ("pattern", "heads", "positions", "dtype", "limit"),
    [
        ("decoder.*.self.residual", False, True, "float32", 8192),
        ("decoder.*.ffn.residual", False, True, "float64", 8192),
        ("decoder.*.self.heads", True, False, "float64", 30),
        ("decoder.*.self.[qkv]", True, True, "float64", 8192),
        ("decoder.*.self.weights", True, True, "float32", 8192),
        ("decoder.1.*", False, True, "float64", 30),
        ("decoder.[ep]*", False, True, "float64", 8192),
        ("decoder.*.norm?", False, False, "float64", 8192),
        ("decoder.norm", False, True, "float32", 8192),
    ],
)
def test_every_cell_is_one_run_with_one_patch(pattern, heads, positions, dtype, limit, monkeypatch):
    monkeypatch.setattr("attnkit.interpret.sweeps.MOST_TOKENS", limit)  # few rows at a time give the same
    made = scan(against=CORRUPTED, minus=" robot", patch=pattern, heads=heads, positions=positions, dtype=dtype)
    clean = traced(STORY, CLEAN, dtype)
    names = [name if name in clean else pattern.replace("*", name) for name in made.labels["layer"]]
    bear, robot = (word(STORY, CLEAN, name) for name in (" bear", " robot"))
    assert made["x"].shape == (len(names), *[4] * heads, *[len(clean["ids"])] * positions)
    for cell in [*np.ndindex(made["x"].shape)][:: made["x"].size // 4 + 1]:
        name, at = names[cell[0]], [*map(str, cell[1:])]
        whole_heads = [":"] * ("head" in clean.axes_of(name) and not heads)
        logits = final_logits(
            CORRUPTED, dtype, patch={f"{name}[{','.join(whole_heads + at)}]" if at else name: clean[name]}
        )
        assert abs(logits[bear] - logits[robot] - made["patched"][cell]) < TOLERANCE[dtype]
    difference = made["clean"] - made["corrupted"]
    np.testing.assert_allclose(made["x"], (made["patched"] - made["corrupted"]) / difference, rtol=1e-6, atol=1e-7)
    for text, name in ((CLEAN, "clean"), (CORRUPTED, "corrupted")):
        logits = final_logits(text, dtype)
        assert abs(logits[bear] - logits[robot] - made[name]) < TOLERANCE[dtype]


RECURRENT_CLEAN, RECURRENT_CORRUPTED = "je suis un petit chat", "je suis je petit noir"


@pytest.mark.parametrize("name", ["lstm", "seq2seq"])
def test_a_cell_of_a_recurrent_model_is_one_run_with_one_patch(name):
    """A patched state is what the layer hands on: the states within it, and the last ones, remain."""
    folder = str(MODELS / name)
    stack, score = ("decoder", "je") if name == "lstm" else ("encoder", "I")
    made = attnkit.scan(
        RECURRENT_CLEAN, against=RECURRENT_CORRUPTED, model=folder, score=score, patch=f"{stack}.*.rnn.state",
        positions=True, dtype="float64",
    )  # fmt: skip
    clean = attnkit.encode(RECURRENT_CLEAN, model=folder, keep="*", dtype="float64")
    assert made["x"].shape == (1 if name == "seq2seq" else 3, len(clean["ids"]))
    for layer, position in np.ndindex(made["x"].shape):
        state = f"{stack}.{layer}.rnn.state"
        options = {"patch": {f"{state}[{position}]": clean[state]}, "dtype": "float64"}
        if name == "lstm":
            logits = final_logits(RECURRENT_CORRUPTED, model=folder, **options)
            expected = logits[word(folder, "je", " je")]
        else:
            memory = attnkit.encode(RECURRENT_CORRUPTED, model=folder, **options)
            logits = attnkit.decode(memory, model=folder, max_tokens=1, top=11, emit="logits", dtype="float64")["x"]
            expected = logits[-1][int(attnkit.embed("I", model=folder, layer="decoder.embed")["ids"][1])]
        assert abs(expected - made["patched"][layer, position]) < 1e-10
    assert len({*made["patched"].ravel().round(9)}) > 3


def test_what_a_recurrent_model_lacks_is_one_error():
    folder = str(MODELS / "lstm")
    with pytest.raises(UsageError, match="has no heads of self-attention"):
        attnkit.scan(RECURRENT_CLEAN, model=folder, score="je", ablate="heads")
    with pytest.raises(UsageError, match="can be read, not replaced"):
        attnkit.scan(RECURRENT_CLEAN, against=RECURRENT_CORRUPTED, model=folder, score="je", patch="*.forget_gate")


def test_a_text_patched_with_itself_is_the_text():
    made = scan(against=CORRUPTED, patch="decoder.*.self.residual", positions=True)
    np.testing.assert_allclose(made["x"][:, :4], 0, atol=1e-6)  # equal tokens have equal states
    np.testing.assert_allclose(made["x"][-1, -1], 1, atol=1e-5)
    assert made.axes_of("x") == ("layer", "token") and made.labels["layer"] == ["0", "1", "2"]
    assert [token for token in made.labels["token"] if "|" in token] == ["Ġbear|Ġrobot"]


@pytest.mark.parametrize("helper", HELPERS)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_maps_are_those_of_transformer_lens(name, helper, tmp_path):
    folder = tmp_path / name
    shutil.copytree(MODELS / name, folder)
    (folder / "tokenizer.model").unlink(missing_ok=True)
    (folder / "tokenizer_config.json").unlink(missing_ok=True)
    shutil.copy(MODELS / "gpt2/tokenizer.json", folder)
    with np.load(REFERENCES / "patching.npz") as arrays:
        frozen = {key.partition(".")[2]: arrays[key] for key in arrays if key.startswith(f"{name}.")}
    pattern, flags = HELPERS[helper]
    texts = {"against": "the mat was on", "score": " the", "model": str(folder)}
    made = attnkit.scan("the cat was on", patch=pattern, **texts, **dict.fromkeys(flags, True))
    ids = [attnkit.embed(text, model=str(folder))["ids"] for text in ("the cat was on", "the mat was on")]
    np.testing.assert_array_equal(ids, frozen["ids"])
    ours, theirs = made["patched"], frozen[helper]
    if helper == "resid_pre":  # of the next layer
        ours, theirs = ours[:-1], theirs[1:]
    theirs = theirs.swapaxes(-1, -2) if theirs.ndim == 3 else theirs
    for key in ("clean", "corrupted"):
        np.testing.assert_allclose(made[key], frozen[key], rtol=0, atol=1e-5)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mean", [None, np.arange(64.0).reshape(4, 16)])
def test_every_ablated_head_is_one_run_without_it(mean):
    means = None if mean is None else {f"decoder.{layer}.self.heads": mean for layer in range(3)}
    made = scan(ablate="heads", mean=means, dtype="float64")
    bear = word(STORY, CLEAN, " bear")
    for layer, head in np.ndindex(3, 4):
        logits = final_logits(CLEAN, "float64", ablate=f"decoder.{layer}.self:{head}", mean=means)
        assert abs(logits[bear] - made["ablated"][layer, head]) < 1e-10
    np.testing.assert_allclose(made["x"], made["ablated"] - made["clean"], atol=1e-12)
    assert abs(made["clean"] - final_logits(CLEAN, "float64")[bear]) < 1e-10
    assert made.axes_of("x") == ("layer", "head")
    each = scan(ablate="heads", positions=True, dtype="float64")
    logits = final_logits(CLEAN, "float64", ablate="decoder.1.self[3,4:5]")
    assert abs(each["ablated"][1, 3, 4] - logits[bear]) < 1e-10


def test_the_scores_below_a_map_fit_the_terminal_and_have_its_precision():
    arguments = ("scan", CLEAN, "--model", STORY, "--against", CORRUPTED, "--score", " bear", "--heatmap")
    asked = (*arguments, "--patch", "decoder.*.self.residual", "--positions", "--precision", "1", "-f", "table")
    lines = process.run(*asked, env={"COLUMNS": "30"}).out.decode().splitlines()
    assert max(map(len, lines)) <= 30
    assert " ".join(line.strip() for line in lines[-2:]).startswith("the logit of ' bear': clean 13.")
    assert re.fullmatch(r"\s+.*corrupted -?\d+\.\d", lines[-1])


def test_a_model_with_a_mask_is_scored_in_its_place():
    texts, name = ("the cat [MASK] on a mat", "a cat [MASK] on a book"), "encoder.*.norm1"
    model = str(MODELS / "bert-mlm")
    made = attnkit.scan(
        texts[0], against=texts[1], model=model, score="sat", patch=name, positions=True, dtype="float64"
    )
    ids, clean = attnkit.embed(texts[1], model=model)["ids"], traced(model, texts[0], "float64")
    [sat] = attnkit.embed("sat", model=model)["ids"][1:-1]
    for layer, position in np.ndindex(made["x"].shape):
        patch = {f"encoder.{layer}.norm1[{position}]": clean[f"encoder.{layer}.norm1"]}
        logits = attnkit.decode(model=model, ids=ids, emit="logits", patch=patch, dtype="float64")["x"]
        assert abs(logits[3, sat] - made["patched"][layer, position]) < 1e-10
    assert made["x"].shape == (2, len(ids)) and np.ptp(made["x"]) > 0.1


def test_the_encoder_of_a_translator_is_swept():
    texts, name, dtype = ("je suis un chat", "il est un chat"), "encoder.*.self.residual", "float64"
    options = {"model": TRANSLATOR, "score": " I", "minus": " he", "dtype": dtype}
    made = attnkit.scan(texts[0], against=texts[1], patch=name, positions=True, **options)
    clean = traced(TRANSLATOR, texts[0], dtype)
    vocab = attnkit.decode("je", model=TRANSLATOR, max_tokens=1, emit="logits").labels["vocab"]
    one, other = vocab.index("▁I"), vocab.index("▁he")
    for layer, position in ((0, 0), (1, 1), (1, 4)):
        patch = {f"encoder.{layer}.self.residual[{position}]": clean[f"encoder.{layer}.self.residual"]}
        memory = attnkit.encode(texts[1], model=TRANSLATOR, patch=patch, dtype=dtype)
        logits = attnkit.decode(memory, model=TRANSLATOR, max_tokens=0, emit="logits", dtype=dtype)["x"]
        assert abs(logits[0, one] - logits[0, other] - made["patched"][layer, position]) < 1e-10
    assert made["clean"] > 0 > made["corrupted"] and made["x"].shape == (2, 5)
    assert attnkit.scan(texts[0], ablate="heads", **options)["x"].shape[0] == 2


@pytest.fixture
def sounds():
    """A model of sounds, and two spectrograms' worth of samples."""
    return {"model": WHISPER, "audio": TONE, "against_audio": np.random.default_rng(1).normal(size=16000) / 8}


def first_word(memory, name):
    """The logit of a word as the first of a transcript, by hidden states of the encoder."""
    checkpoint, context = open_checkpoint(WHISPER), model.Context(memory=memory, dtype="float64")
    clean = attnkit.encode(audio=TONE, model=WHISPER, dtype="float64")["x"]
    core, begin = layers.core_model(checkpoint), begin_transcription(DecodeOptions(checkpoint), clean)
    x = model.run(core, core.config.plan("decoder"), np.array(begin), context)
    return model.head_logits(core, x)[-1, find_word(checkpoint, name, "")]


@pytest.mark.parametrize("pattern", ["encoder.*.self.residual", "encoder.conv2"])
def test_the_encoder_of_a_sound_is_swept(sounds, pattern):
    made = attnkit.scan(patch=pattern, positions=True, score="t", dtype="float64", **sounds)
    clean = attnkit.encode(audio=TONE, model=WHISPER, keep="*", dtype="float64")
    names = [name for name in clean if fnmatch.fnmatchcase(name, pattern)]
    assert made["x"].shape == (len(names), len(clean["x"]))
    for layer, position in ((0, 3), (len(names) - 1, 17)):
        patch = {f"{names[layer]}[{position}]": clean[names[layer]]}
        states = attnkit.encode(audio=sounds["against_audio"], model=WHISPER, patch=patch, dtype="float64")["x"]
        assert abs(first_word(states, "t") - made["patched"][layer, position]) < 1e-10
    assert abs(first_word(clean["x"], "t") - made["clean"]) < 1e-10 and np.ptp(made["x"]) > 0.01
    whole = attnkit.scan(patch=pattern, score="t", dtype="float64", **sounds)
    np.testing.assert_allclose(whole["x"][-1], 1, atol=1e-9)  # what follows reads this alone


def test_every_head_of_the_encoder_of_a_sound_is_ablated(sounds):
    made = attnkit.scan(model=WHISPER, audio=TONE, score="t", ablate="heads", dtype="float64")
    for layer, head in ((0, 2), (1, 3)):
        ablate = f"encoder.{layer}.self:{head}"
        states = attnkit.encode(audio=TONE, model=WHISPER, ablate=ablate, dtype="float64")["x"]
        assert abs(first_word(states, "t") - made["ablated"][layer, head]) < 1e-10
    english, german = (
        attnkit.scan(score="t", patch="encoder.*.norm1", language=name, **sounds)["clean"] for name in ("en", "de")
    )
    assert english != german


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"patch": "*.residual", "against_audio": None}, "--patch: needs --against-audio FILE"),
        ({"patch": "*.residual", "against": "a"}, "--audio: cannot be combined with --against"),
        ({"patch": "encoder.conv*", "positions": True}, "--positions: the intermediates have 50, 100 tokens"),
        ({"patch": "*.norm1", "against_audio": TONE}, r"tone\.wav: both sounds have the score .*, so there is"),
        ({"patch": "*.norm1", "language": "xx"}, "--language: the model has no language 'xx'"),
        ({"patch": "*.norm1", "model": STORY}, "a gpt2 model takes no sound"),
        ({"patch": "*.norm1", "text": "a"}, "replaces text: cannot be combined with TEXT"),
    ],
)
def test_what_cannot_be_scanned_of_sounds(sounds, values, problem):
    texts = [values[name] for name in ("text",) if name in values]
    values = sounds | {"score": "t"} | {name: one for name, one in values.items() if name != "text"}
    with pytest.raises((UsageError, DataError), match=problem):
        attnkit.scan(*texts, **values)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"patch": "*"}, "--patch: needs --against"),
        ({"against": CORRUPTED, "ablate": "heads"}, "--ablate: cannot be combined with --against"),
        ({"against": "Once upon", "patch": "*"}, "--against: 2 tokens, but the text has 14; both must have the same"),
        (
            {"against": CLEAN, "patch": "decoder.*.ffn"},
            r"--patch: 'decoder.\*.ffn' matches no intermediate of the run",
        ),
        ({"against": CORRUPTED, "patch": "*.residul"}, r"--patch: '\*.residul' matches no intermediate of the run"),
        (
            {"against": CLEAN, "patch": "*.norm1"},
            "--against: both texts have the score .*, so there is nothing",
        ),
        (
            {"against": CORRUPTED, "patch": "*.norm1", "heads": True},
            r"--heads: decoder.0.norm1 \(14, 64\) has no axis of",
        ),
        ({"score": " bears and", "ablate": "heads"}, "--score: ' bears and' is 3 tokens: 'Ġbear', 's', 'Ġand' "),
        ({"score": "", "ablate": "heads"}, "--score: '' is 0 tokens: none"),
        ({"minus": " bear", "ablate": "heads"}, "--minus: ' bear' is the word of --score"),
        ({"ablate": "heads", "mean": {"decoder.0.self.heads": np.ones((4, 16))}}, "--mean: no 'decoder.1.self.heads'"),
        (
            {"ablate": "heads", "mean": {f"decoder.{n}.self.heads": np.ones((4, 3)) for n in range(3)}},
            r"\(4, 3\) .expec",
        ),
        (
            {"model": str(MODELS / "bert-mlm"), "score": "sat", "ablate": "heads"},
            "TEXT: 0 mask tokens in .* .expected 1, whose",
        ),
    ],
)
def test_what_cannot_be_scanned(values, problem):
    with pytest.raises((UsageError, DataError), match=problem):
        scan(**values)


def test_one_text_is_scanned():
    with pytest.raises(UsageError, match=r"TEXT: 2 texts \(expected 1; --against is the other\)"):
        scan([CLEAN, CORRUPTED], ablate="heads")
    with pytest.raises(DataError, match="TEXT: an empty text has no score"):
        scan("", ablate="heads")
    with pytest.raises(UsageError, match="TEXT: takes text, got a record"):
        scan(attnkit.embed("a", dim=2), ablate="heads")


@pytest.mark.parametrize(
    ("layers", "width", "shape"), [(3, 100, (8, 3)), (12, 100, (8, 12)), (30, 100, (30, 8)), (30, 300, (8, 30))]
)
def test_layers_that_do_not_fit_as_columns_are_rows(layers, width, shape):
    record = Record({"x": Tensor(np.zeros((layers, 8)), ("layer", "position"))})
    stage = SimpleNamespace(parameters={"ablate": None, "score": " fox", "minus": None}, common={}, extra={})
    assert map_view(record, stage, display.Style(width=width)).array.shape == shape
