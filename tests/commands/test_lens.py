"""The tool lens: what the head reads in each layer, and what each part adds to a logit, of models of every family."""

import contextlib
import warnings
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.records import Record
from tests import process
from tests.drawing import drawn_models, write_model
from tests.places import MODELS, STORY, arrays

ROOT = Path(__file__).parent.parent
FROZEN = np.load(ROOT / "references" / "interpretability.npz")
IDS = Record({"ids": np.array([3, 5, 7, 3, 5, 9, 7, 3, 5])})  # of make_interpretability.py
DECODERS = ["gpt2", "gpt2-scaled", "llama", "llama3", "mistral", "qwen2", "openai-gpt"]
MASKED = ["bert-mlm", "distilbert", "modernbert", "roberta", "electra", "albert", "mpnet", "deberta-v3"]
TRANSLATORS = ["marian", "t5", "t5-gated"]


@pytest.fixture
def trace(tmp_path):
    """A trace of a reference model on IDS, or of a translator on a target."""

    def run(model, **options):
        folder, file = str(MODELS / model), str(tmp_path / "run.npz")
        if model in TRANSLATORS:
            source = attnkit.encode(IDS, model=folder)
            attnkit.decode(source, model=folder, ids=IDS["ids"], max_tokens=0, emit="logits", trace=file)
        else:
            attnkit.encode(options.pop("source", IDS), model=folder, trace=file, **options)
        return attnkit.formats.load(file), folder

    return run


def word(folder, id):
    """The spelling of a token that has only this id."""
    from attnkit.checkpoints import open_checkpoint
    from attnkit.interpret.lens import find_word, find_words

    checkpoint = open_checkpoint(folder)
    words = find_words(checkpoint).words()
    if words is None:
        return str(id)
    return next(one for one in words[id:] if one and find_word(checkpoint, one, "") == words.index(one))


RECURRENT = {  # the states that are as wide as what the head reads
    "lstm": {"embedding": "decoder.embed", "decoder.2": "decoder.2.rnn.state"},
    "seq2seq-luong": {
        "decoder.0": "decoder.0.rnn.state", "decoder.1": "decoder.1.rnn.state", "readout": "decoder.readout.output",
    },
}  # fmt: skip


@pytest.mark.parametrize("model", RECURRENT)
def test_the_head_of_a_recurrent_model_reads_its_states_of_one_width(model, tmp_path):
    folder, ids = str(MODELS / model), np.array([3, 5, 7])
    memory = attnkit.encode(ids=[3, 4], model=folder) if model != "lstm" else None
    attnkit.decode(memory, model=folder, ids=ids, max_tokens=0, emit="logits", trace=str(tmp_path / "run.npz"))
    record = attnkit.formats.load(str(tmp_path / "run.npz"))
    x, states = attnkit.lens(record, model=folder, top=9), RECURRENT[model]
    assert x.labels["layer"] == [*states]
    head = open_checkpoint(folder).params["head"]
    for row, site in enumerate(states.values()):
        logits = record[site] @ head["w"] + head["b"]
        np.testing.assert_array_equal(x["ids"][row][:, 0], logits.argmax(axis=-1))
    shares = attnkit.model.candidates(attnkit.model.probabilities(record["logits"]), 9)[1]
    np.testing.assert_array_equal(x["x"][-1], shares)


def test_parts_and_widths_that_a_recurrent_model_lacks_are_one_error(tmp_path):
    lstm, seq2seq = (str(MODELS / name) for name in ("lstm", "seq2seq"))
    attnkit.encode(ids=[3, 4], model=lstm, trace=str(tmp_path / "run.npz"))
    record = attnkit.formats.load(str(tmp_path / "run.npz"))
    with pytest.raises(UsageError, match=r"recurrent: the states of its layers are not added up"):
        attnkit.lens(record, model=lstm, direct="je")
    with pytest.raises(UsageError, match=r"no state of its layers is as wide as what its head reads, 7"):
        attnkit.lens(record, model=seq2seq)


@pytest.mark.parametrize("model", [*DECODERS, *MASKED, *TRANSLATORS])
def test_the_last_layer_predicts_what_the_model_predicts_bit_for_bit(trace, model):
    record, folder = trace(model)
    x = attnkit.lens(record, model=folder, top=4)
    ids, shares = attnkit.model.candidates(attnkit.model.probabilities(record["logits"]), 4)
    np.testing.assert_array_equal(x["ids"][-1], ids)
    np.testing.assert_array_equal(x["x"][-1], shares)
    assert x.labels["layer"][0] == "embedding" and len(x["x"]) == len(x.labels["layer"]) > 2


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_every_layer_is_that_of_transformer_lens(trace, model):
    record, folder = trace(model)
    ours = attnkit.lens(record, model=folder, top=5)
    probs = attnkit.model.probabilities(FROZEN[f"{model}.lens"])
    np.testing.assert_allclose(ours["x"], np.take_along_axis(probs, ours["ids"], axis=-1), atol=1e-5)
    np.testing.assert_allclose(ours["x"], -np.sort(-probs, axis=-1)[..., :5], atol=1e-5)


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_every_part_is_that_of_transformer_lens(trace, model):
    record, folder = trace(model)
    token, other = (word(folder, id) for id in (11, 23))
    from attnkit.checkpoints import open_checkpoint
    from attnkit.interpret.lens import find_word

    assert [find_word(open_checkpoint(folder), one, "") for one in (token, other)] == [11, 23]
    for minus, name in ((None, "direct"), (other, "minus")):
        parts = attnkit.lens(record, model=folder, direct=token, minus=minus)
        theirs = FROZEN[f"{model}.{name}"]
        np.testing.assert_allclose(parts["x"][: len(theirs)], theirs, atol=1e-5)
    heads = attnkit.lens(record, model=folder, direct=token, minus=other, by="head")
    ours = [x for part, x in zip(heads.labels["part"], heads["x"], strict=True) if ":" in part]
    np.testing.assert_allclose(ours, FROZEN[f"{model}.heads"], atol=1e-5)


@pytest.mark.parametrize("model", [*DECODERS, *TRANSLATORS])
@pytest.mark.parametrize("by", ["layer", "head"])
def test_the_parts_add_up_to_the_logit(trace, model, by):
    """Before or after norms of either kind, with cross-attention, scaled logits and biases; the rest is rounding."""
    record, folder = trace(model)
    token, other = word(folder, 40), word(folder, 31)
    for position in (0, 3, -1):
        parts = attnkit.lens(record, model=folder, direct=token, minus=other, by=by, position=position)
        whole = attnkit.lens(record, model=folder, direct=token, by=by, position=position)
        less = attnkit.lens(record, model=folder, direct=other, by=by, position=position)
        assert parts.labels["part"][-1] == "rest" and parts["x"][-1] == 0
        np.testing.assert_allclose(parts["x"].sum(), parts["logit"], atol=1e-5 * max(np.abs(parts["x"]).max(), 1))
        np.testing.assert_allclose(parts["x"][:-1], (whole["x"] - less["x"])[:-1], atol=1e-9)
        from attnkit.checkpoints import open_checkpoint
        from attnkit.interpret.lens import find_word

        assert whole["logit"] == record["logits"][position, find_word(open_checkpoint(folder), token, "")]


def test_the_rest_is_what_the_parts_lack_of_the_logit(trace):
    record, folder = trace("gpt2")
    token, name = word(folder, 11), "decoder.1.ffn.output"
    parts = attnkit.lens(record, model=folder, direct=token)
    halved = attnkit.lens(record.with_tensors({name: record[name] / 2}), model=folder, direct=token)
    at = parts.labels["part"].index("decoder.1.ffn")
    np.testing.assert_allclose(halved["x"][-1], parts["x"][at] / 2, atol=1e-5)
    assert abs(halved["x"][-1]) > 0.01 and halved["logit"] == parts["logit"]


def test_the_heads_of_a_layer_and_its_bias_add_up_to_the_layer(trace):
    record, folder = trace("gpt2")
    token = word(folder, 11)
    layers, heads = (attnkit.lens(record, model=folder, direct=token, by=by) for by in ("layer", "head"))
    for part, x in zip(layers.labels["part"], layers["x"], strict=True):
        if part.endswith(".self"):
            mine = [x for name, x in zip(heads.labels["part"], heads["x"], strict=True) if name.startswith(part)]
            assert len(mine) == 5
            np.testing.assert_allclose(sum(mine), x, atol=1e-6)


def test_a_batch_is_its_texts(tmp_path):
    texts, file = ["the fox looked at the stars", "Once upon a time"], str(tmp_path / "run.npz")
    attnkit.encode(texts, model=STORY, batch=True, trace=file)
    batch = attnkit.formats.load(file)
    words, parts = attnkit.lens(batch, model=STORY), attnkit.lens(batch, model=STORY, direct=" fox", by="head")
    for row, text in enumerate(texts):
        attnkit.encode(text, model=STORY, trace=file)
        one = attnkit.formats.load(file)
        alone = attnkit.lens(one, model=STORY)
        tokens = alone["x"].shape[1]
        np.testing.assert_array_equal(words["ids"][row, :, :tokens], alone["ids"])
        np.testing.assert_allclose(words["x"][row, :, :tokens], alone["x"], atol=1e-5)
        np.testing.assert_allclose(
            parts["x"][row], attnkit.lens(one, model=STORY, direct=" fox", by="head")["x"], atol=1e-4
        )


def test_the_last_position_of_a_batch_is_that_of_each_text(tmp_path):
    texts, file = ["the fox looked at the stars", "Once upon a time"], str(tmp_path / "run.npz")
    attnkit.encode(texts, model=STORY, batch=True, trace=file)
    batch = attnkit.formats.load(file)
    last, parts = attnkit.lens(batch, model=STORY, position=-1), attnkit.lens(batch, model=STORY, direct=" fox")
    at_the_end = attnkit.lens(batch, model=STORY, direct=" fox", position=-1)
    assert [one.split()[1] for one in at_the_end.labels["position"]] == ["Ġstars", "Ġtime"]
    assert last.labels["token"] == [["Ġstars"], ["Ġtime"]] and last.labels["position"] == [["7"], ["3"]]
    np.testing.assert_array_equal(parts["x"], at_the_end["x"])
    for row, text in enumerate(texts):
        attnkit.encode(text, model=STORY, trace=file)
        alone = attnkit.lens(attnkit.formats.load(file), model=STORY, position=-1)
        np.testing.assert_array_equal(last["ids"][row], alone["ids"])
    with pytest.raises(UsageError, match="--position: 4: text 1 of the batch has positions 0 to 3"):
        attnkit.lens(batch, model=STORY, position=4)


def test_the_first_token_of_a_decoder_is_no_padding(tmp_path):
    folder, file = str(ROOT.parent / "samples" / "data" / "fr-en"), str(tmp_path / "run.npz")
    attnkit.decode(attnkit.encode("le chat", model=folder), model=folder, score="the cat", trace=file)
    cells = process.run("lens", file, "--model", folder, "--top", "1", "-f", "csv").out.decode().splitlines()
    assert [line.split(",")[1:3] for line in cells[-4:-1]] == [["0", "<pad>"], ["1", "▁the"], ["2", "▁cat"]]
    one = process.run("lens", file, "--model", folder, "--top", "1", "--position", "0", "-f", "table").out.decode()
    assert one.startswith("position 0 <pad>") and "▁the" in one


def test_the_same_as_the_pipeline_of_tools(tmp_path):
    """The page traces: a part of the layers, the final norm, the head."""
    text, file = "Every evening the fox", str(tmp_path / "run.npz")
    attnkit.encode(text, model=STORY, trace=file)
    ours = attnkit.lens(attnkit.formats.load(file), model=STORY, top=5)
    for layers in range(3):
        x = attnkit.layernorm(
            attnkit.encode(text, model=STORY, layers=f"0:{layers}"), model=STORY, layer="decoder.norm"
        )
        probs = attnkit.decode(x, model=STORY, layer="head")["x"]
        np.testing.assert_allclose(ours["x"][layers], -np.sort(-probs, axis=-1)[:, :5], atol=1e-6)


def test_one_position(trace):
    record, folder = trace("llama")
    whole = attnkit.lens(record, model=folder)
    for position in (0, 4, -2):
        one = attnkit.lens(record, model=folder, position=position)
        np.testing.assert_array_equal(one["ids"][:, 0], whole["ids"][:, position])
        np.testing.assert_allclose(one["x"][:, 0], whole["x"][:, position], atol=1e-6)
        assert one.labels["position"] == [str(position % 9)]


def test_a_trace_of_generation(tmp_path):
    file = str(tmp_path / "run.npz")
    chosen = attnkit.decode("Once upon a time", model=STORY, max_tokens=4, emit="ids", trace=file)["x"]
    ids = attnkit.lens(attnkit.formats.load(file), model=STORY, top=1)["ids"][-1, :, 0]
    assert ids[-5:-1].tolist() == chosen[-4:].tolist()


def test_a_trace_that_is_not_finite_is_named(trace):
    record, folder = trace("llama")
    states = record["decoder.0.ffn.residual"].copy()
    states[2, 0] = np.nan
    record = Record({**record.tensors, "decoder.0.ffn.residual": states})
    problem = r"the result is nan at \[1\]\[2\]\[0\]: decoder.0.ffn.residual is nan at \[2\]\[0\]"
    with pytest.warns(AttnkitWarning, match=problem):
        attnkit.lens(record, model=folder)
    with pytest.raises(DataError, match=problem):
        attnkit.lens(record, model=folder, check_finite=True)


def test_words_of_one_token():
    from attnkit.checkpoints import open_checkpoint
    from attnkit.interpret.lens import find_word

    story = open_checkpoint(STORY)
    assert find_word(story, " fox", "--direct") == find_word(story, "Ġfox", "--direct")
    fr_en = open_checkpoint(str(ROOT.parent / "samples" / "data" / "fr-en"))
    assert find_word(fr_en, "cat", "--direct") == find_word(fr_en, " cat", "--direct") == find_word(fr_en, "▁cat", "")
    with pytest.raises(UsageError, match=r"--minus: ' elephant' is \d tokens: .* \(expected one\)"):
        find_word(story, " elephant", "--minus")
    with pytest.raises(UsageError, match="'' is 0 tokens: none"):
        find_word(story, "", "--direct")


@pytest.mark.parametrize(
    ("model", "values", "problem"),
    [
        ("gpt2", {}, r"decoder.embed|expected \(T, 24\)"),
        ("llama", {"position": 9}, "--position: 9: the trace has positions 0 to 8"),
        ("llama", {"direct": "a very long word"}, "--direct: 'a very long word' is .* tokens"),
    ],
)
def test_refused(trace, model, values, problem):
    record, _ = trace("bert-mlm" if model == "bert-mlm" else "llama")
    with pytest.raises((UsageError, DataError), match=problem):
        attnkit.lens(record, model=str(MODELS / model), **values)


def test_what_a_trace_lacks_is_named_with_the_option_that_keeps_it(trace):
    record, folder = trace("llama")
    for name, values in (
        ("decoder.0.ffn.residual", {}),
        ("decoder.1.self.heads", {"direct": "a", "by": "head"}),
        ("decoder.0.ffn.output", {"direct": "a"}),
    ):
        with pytest.raises(DataError, match=f"no {name}.* --trace FILE keeps all"):
            attnkit.lens(record.without([name]), model=folder, **values)
    with pytest.raises(DataError, match=r"decoder\.1\.self\.heads \(3, 9, 8\): expected \(4, T, 8\)"):
        bad = record.with_tensors({"decoder.1.self.heads": np.ones((3, 9, 8), np.float32)})
        attnkit.lens(bad, model=folder, direct="a", by="head")


def test_logits_of_another_model_or_patched_are_a_warning(trace):
    record, folder = trace("llama")
    with pytest.warns(
        AttnkitWarning, match="are not those of this model: it is of another one, or its head was patched"
    ):
        attnkit.lens(record.with_tensors({"logits": record["logits"] + 1}), model=folder, direct="a")


def test_no_shape_and_no_number_in_a_trace_is_a_bug(tmp_path):
    """What heads and lens read, in another shape or dtype, or not finite."""
    attnkit.encode(["the fox looked", "the cat"], model=STORY, batch=True, trace=str(tmp_path / "run.npz"))
    record = attnkit.formats.load(tmp_path / "run.npz")
    layer = ("self.weights", "self.heads", "self.output", "ffn.residual")
    for name in ("decoder.embed", *(f"decoder.1.{part}" for part in layer), "logits"):
        for changed in mutations(record[name]):
            bad = record.with_tensors({name: changed})
            for values in ({"top": 1, "position": 0}, {"direct": " fox"}, {"direct": " fox", "by": "head"}):
                with contextlib.suppress(UsageError, DataError), warnings.catch_warnings():
                    warnings.simplefilter("ignore", AttnkitWarning)
                    attnkit.lens(bad, model=STORY, **values)
            with contextlib.suppress(DataError):
                attnkit.heads(bad)


def mutations(array):
    """Arrays that are not what a trace holds."""
    yield from (array[..., :-1], array[:-1], array[None], array[0], array[:0], array[..., None], np.array(1.0))
    yield from (np.full_like(array, np.nan), np.full_like(array, np.inf), np.zeros_like(array), array > 0)
    yield from (np.ones(array.shape, np.int64), array.astype(np.float64) * 1e300)


@pytest.mark.parametrize("name", drawn_models())
def test_parts_of_a_drawn_model_add_up_to_its_logits(name, tmp_path):
    """Output norms, parallel blocks, factors on residuals, experts and latent attention: no rest remains."""
    folder, file = str(write_model(name, tmp_path)), str(tmp_path / "t.npz")
    ids = Record({"ids": arrays("decoders")[f"{name}/ids"][0, :6]})
    attnkit.decode(ids, model=folder, max_tokens=0, emit="logits", trace=file)
    record, config = attnkit.formats.load(file), open_checkpoint(folder).config
    for by in ("layer", "head"):
        if config.logit_softcap or config.transform:
            with pytest.raises(UsageError, match="parts do not add up"):
                attnkit.lens(record, model=folder, direct="5", by=by)
            continue
        parts = attnkit.lens(record, model=folder, direct="5", by=by)
        assert parts.labels["part"][-1] == "rest" and parts["x"][-1] == 0
        rounding = 1e-5 * np.abs(parts["x"]).max()
        assert abs(parts["logit"] - record["logits"][-1, 5]) <= rounding
        assert abs(parts["x"].sum() - parts["logit"]) <= rounding
