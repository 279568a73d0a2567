"""decode --trace while a text is generated: the trace of one pass over the whole text."""

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.errors import UsageError
from tests.places import MODELS

CAUSAL = ("gpt2", "openai-gpt", "llama", "llama-dynamic", "mistral", "qwen2", "lstm")
TRANSLATORS = ("t5", "marian", "seq2seq")
PROMPT = np.array([5, 8, 2, 7])
SEARCHES = {"greedy": {}, "sampled": {"temperature": 1.5, "seed": 3}, "beams": {"beam": 3}}


def start(name):
    """What each text of a model begins with."""
    return {"model": str(MODELS / name), "dtype": "float32"}


def assert_same(a, b):
    assert list(a) == list(b)
    assert a.labels == b.labels
    for name in a:
        assert a.axes_of(name) == b.axes_of(name)
        np.testing.assert_allclose(a[name], b[name], rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", CAUSAL)
def test_a_trace_of_generated_text_is_that_of_its_score(name, search, tmp_path):
    ours, theirs = (str(tmp_path / f"{file}.npz") for file in "ab")
    made = attnkit.decode(None, ids=PROMPT, max_tokens=5, trace=ours, **start(name), **SEARCHES[search])
    whole = np.concatenate([PROMPT, made["ids"]])
    attnkit.decode(None, ids=whole, max_tokens=0, trace=theirs, **start(name))
    assert_same(formats.load(ours), formats.load(theirs))


@pytest.mark.parametrize("name", TRANSLATORS)
def test_a_trace_of_a_translation_has_the_cross_attention_of_every_token(name, tmp_path):
    ours, theirs = (str(tmp_path / f"{file}.npz") for file in "ab")
    made = attnkit.decode("je suis un chat", max_tokens=4, trace=ours, **start(name))
    attnkit.decode("je suis un chat", ids=made["ids"], max_tokens=0, trace=theirs, **start(name))
    assert_same(formats.load(ours), formats.load(theirs))
    traced = formats.load(ours)
    cross = next(each for each in traced if each.endswith("cross.weights"))
    assert traced[cross].shape[-2] == 1 + len(made["ids"])


def test_the_logits_of_a_trace_are_those_that_words_were_chosen_by(tmp_path):
    file = str(tmp_path / "trace.npz")
    made = attnkit.decode(None, ids=PROMPT, max_tokens=6, emit="logits", trace=file, **start("gpt2"))
    traced = formats.load(file)["logits"]
    np.testing.assert_allclose(traced[len(PROMPT) - 1 : -1], made["x"], rtol=1e-5, atol=1e-5)
    assert traced.shape[0] == len(PROMPT) + len(made["ids"])


def test_a_trace_without_some_heads_is_that_of_the_text_generated_without_them(tmp_path):
    file = str(tmp_path / "trace.npz")
    ablate = ("decoder.0.self:0",)
    made = attnkit.decode(None, ids=PROMPT, max_tokens=4, ablate=ablate, trace=file, **start("gpt2"))
    traced = formats.load(file)
    assert not traced["decoder.0.self.heads"][0].any()
    assert traced["logits"][len(PROMPT) - 1 : -1].argmax(-1).tolist() == made["ids"].tolist()


@pytest.mark.parametrize("part", ["", "[-1]"])
def test_a_trace_of_patched_generation_is_that_of_the_text_it_chose(part, tmp_path):
    file = str(tmp_path / "trace.npz")
    width = attnkit.encode(None, ids=PROMPT, model=str(MODELS / "gpt2"))["x"].shape[-1]
    patch = {f"decoder.0.ffn.residual{part}+": np.linspace(-3, 3, width, dtype=np.float32)}
    made = attnkit.decode(None, ids=PROMPT, max_tokens=4, patch=patch, trace=file, **start("gpt2"))
    assert formats.load(file)["logits"][len(PROMPT) - 1 : -1].argmax(-1).tolist() == made["ids"].tolist()


@pytest.mark.parametrize("name", ("gpt2", "marian"))
def test_a_trace_after_a_cache_has_the_rows_of_the_new_tokens(name, tmp_path):
    cache, ours, theirs = (str(tmp_path / f"{file}.npz") for file in "cab")
    source = {"source": "je suis"} if name == "marian" else {}
    text = source.get("source")
    attnkit.decode(text, ids=PROMPT, max_tokens=0, cache_out=cache, **start(name))
    kept = dict(formats.load(cache).arrays())
    made = attnkit.decode(None, cache_in=cache, max_tokens=4, trace=ours, **start(name))
    attnkit.decode(None, cache_in=cache, ids=made["ids"], score=None, max_tokens=0, trace=theirs, **start(name))
    assert_same(formats.load(ours), formats.load(theirs))
    assert all(np.array_equal(kept[each], formats.load(cache)[each]) for each in kept)


def test_texts_of_a_batch_have_one_padded_trace(tmp_path):
    both, alone = (str(tmp_path / f"{file}.npz") for file in "ab")
    options = start("gpt2") | {"max_tokens": 3}
    attnkit.decode(["The cat", "The cat sat on"], trace=both, **options)
    attnkit.decode("The cat", trace=alone, **options)
    traced, one = formats.load(both), formats.load(alone)
    assert traced.axes_of("decoder.0.self.weights") == ("batch", "head", "query", "key")
    size = one["logits"].shape[0]
    np.testing.assert_array_equal(traced["logits"][0, :size], one["logits"])
    assert traced["logits"].shape[1] > size
    assert not traced["decoder.0.self.weights"][0, :, size:].any()


def test_the_last_token_has_no_row_where_the_model_has_no_position_for_it(tmp_path):
    file = str(tmp_path / "trace.npz")
    model = str(MODELS / "gpt2")
    from attnkit.checkpoints import open_checkpoint

    most = open_checkpoint(model).config.positions.size
    with pytest.warns(UserWarning, match="positions"):
        made = attnkit.decode(None, ids=np.full(most - 1, 5), max_tokens=9, trace=file, model=model)
    assert len(made["ids"]) == 2
    assert formats.load(file)["logits"].shape[0] == most


def test_what_has_no_trace_is_refused(tmp_path):
    file = str(tmp_path / "trace.npz")
    with pytest.raises(UsageError, match="--trace"):
        attnkit.decode(None, ids=PROMPT, beam=3, best=2, trace=file, **start("gpt2"))
    with pytest.raises(UsageError, match="matches no intermediate"):
        attnkit.decode(None, ids=PROMPT, max_tokens=2, trace=file, trace_only=("encoder.*",), **start("gpt2"))
    assert not list(tmp_path.iterdir())
