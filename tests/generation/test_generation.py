"""decode --model: text generated, searched for and scored, as the reference implementations do it."""

import itertools
import json
import math
import os
import pty
import re
import subprocess
import warnings
from dataclasses import replace

import numpy as np
import pytest

import attnkit
from attnkit import callbacks, formats, model
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.display import Style, format_table
from attnkit.errors import AttnkitWarning, DataError, NotFiniteError, UsageError
from attnkit.generation.kv_cache_file import cache_record, read_cache
from attnkit.generation.options import (
    CacheFiles,
    Choices,
    DecodeOptions,
    Length,
    Search,
    check_length_penalty,
)
from attnkit.generation.perplexity import ROWS, TextScore, score_pairs, targets_nll
from attnkit.generation.prompts import make_detokenizer, make_prompts, positions_left, tokenize_prompt
from attnkit.generation.text_generation import render_choice, run_decode, tokens_to_score
from attnkit.inputs.detokenizer import Detokenizer, fill_masks
from attnkit.model import Model
from attnkit.model.config import Config, PositionConfig, StackConfig
from attnkit.model.passes.generation import Filtered, StepInfo
from attnkit.records import Record
from tests import process
from tests.places import FRENCH, MODELS, STORY, folder, frozen
from tests.registry import CAUSAL, TRANSLATORS

SEARCHES = {"beam4.lp1": (4, "average:1", 1), "beam3.lp06": (3, "average:0.6", 1), "beam3.best3": (3, "average:1", 3)}
PENALIZED = [name for name in (*CAUSAL, *TRANSLATORS) if name != "marian-native"]  # whose reference has no such run
SEARCHED = [  # in float32 one search of each model
    *itertools.product(PENALIZED, SEARCHES, ["float64"]),
    *itertools.product(["marian-native"], ["beam4.lp1", "beam3.lp06"], ["float64"]),
    *itertools.product([*PENALIZED, "marian-native"], ["beam4.lp1"], ["float32"]),
]
NEW = 14  # tokens that the references generated at most


def generated(name, key, **options):
    """What is generated from the reference's input, after the prompt or the start token."""
    return attnkit.decode(Record({"ids": frozen(name)[key]}), model=folder(name), max_tokens=NEW, **options)


def expected(name, key):
    """The tokens that the reference generated, a row each, without its prompt and without what fills a row."""
    start = 1 if name in TRANSLATORS else frozen(name)["ids"].shape[1]
    return [row[start:][row[start:] >= 0].tolist() for row in frozen(name)[key]]


def run(*arguments, input=b"", status=0):
    """The real process: its standard output, and its lines on standard error."""
    code, out, err = process.run(*arguments, stdin=input)
    assert code == status, err
    return out, err


def test_a_text_may_be_one_token_longer_than_the_positions():
    """The last token needs none. Rotary positions have no end."""
    config = Config("gpt2", 2, positions=PositionConfig("learned", size=5))
    assert [positions_left(config, size) for size in (1, 5)] == [5, 1]
    with pytest.raises(DataError, match="6 tokens, and this gpt2 model has 5 positions"):
        positions_left(config, 6)
    rotary = replace(config, positions=PositionConfig("rotary", size=5))
    assert positions_left(rotary, 6) == 1 << 62


def test_scores_of_texts_add_up():
    assert TextScore(1.0, 2, 3) + TextScore(0.5, 1, 4) == TextScore(1.5, 3, 7)
    assert TextScore(709.0, 1, 1).perplexity == math.inf and TextScore(708.0, 1, 1).perplexity == math.exp(708)
    assert TextScore(1.0, 1, 1, average=2.0).perplexity == math.exp(2.0)
    nothing = TextScore(0.0, 0, 0)
    assert all(map(math.isnan, (nothing.loss, nothing.perplexity, nothing.bits_per_byte)))


def test_negative_logs_of_single_precision_are_summed_in_double():
    """Three logits of 0 have log p = -ln 3; 2 · 256 + 5 targets are three blocks of rows."""
    stack = StackConfig(layers=0, heads=1, hidden=1, kv_heads=1, head_dim=1, vocab=3)
    core = Model(Config("", 1, decoder=stack, head=True), {"head": {"w": np.zeros((1, 3), np.float32)}})
    count = 2 * ROWS + 5
    total = targets_nll(core, np.ones((count, 1), np.float32), np.arange(count) % 3)
    assert total == count * -float(model.log_probabilities(np.zeros(3, np.float32))[0])
    with pytest.raises(NotFiniteError, match="the log-probabilities are not finite"):
        targets_nll(core, np.full((1, 1), np.inf, np.float32), np.array([0]))


def test_the_scores_of_a_pair_are_those_of_decode():
    pairs = [(1, "le chat noir dort", "the cat"), (2, "le chien", "a dog sleeps")]
    for (_, source, target), score in zip(
        pairs, score_pairs(open_checkpoint(FRENCH), pairs, "f", "float64"), strict=True
    ):
        x = attnkit.decode(source, score=target, model=FRENCH, dtype="float64")["x"]
        assert (score.tokens, score.bytes) == (len(x), len(target))
        assert score.nll == pytest.approx(-x.sum(), rel=1e-12)


@pytest.mark.parametrize("row", [(" le chat" * 300, "the"), ("le", " the cat" * 300)])
def test_a_pair_longer_than_the_positions_is_named(row):
    with pytest.raises(DataError, match=r"^f: line 7: \d+ tokens, and this marian model has \d+ positions$"):
        score_pairs(open_checkpoint(FRENCH), [(7, *row)], "f", "float32")


@pytest.mark.parametrize(
    ("given", "keys", "more", "kept"), [(3, 3, 0, 2), (3, 3, 2, 3), (4, 3, 0, 3), (4, 3, 1, 3), (1, 1, 0, 0)]
)
def test_the_keys_of_a_last_token_are_left_out_unless_one_follows(given, keys, more, kept):
    stack = StackConfig(layers=1, heads=2, hidden=1, kv_heads=1, head_dim=2, vocab=9)
    pair = {f"decoder.0.self.{half}": np.arange(2.0 * keys).reshape(1, 1, keys, 2) for half in ("key", "value")}
    tensors = {"ids": np.arange(given)} | pair
    cache, words = read_cache(tensors, Config("gpt2", 4, decoder=stack), "float32", more)
    assert (cache.length, words) == (kept, list(range(given)))
    for array in cache.get("decoder.0.self"):
        assert array.dtype == np.float32 and array.tolist() == pair["decoder.0.self.key"][..., :kept, :].tolist()


@pytest.mark.parametrize(("ids", "keys", "problem"), [
    (np.arange(3), 1, "ids (3,) for the keys of 1 tokens"),
    (np.arange(2), 3, "ids (2,) for the keys of 3 tokens"),
    (np.zeros((1, 3), int), 3, "ids (1, 3) for the keys of 3 tokens"),
])  # fmt: skip
def test_ids_and_keys_that_do_not_belong_together_are_no_cache(ids, keys, problem):
    stack = StackConfig(layers=1, heads=2, hidden=1, kv_heads=1, head_dim=2, vocab=9)
    tensors = {"ids": ids} | {f"decoder.0.self.{half}": np.zeros((1, 1, keys, 2)) for half in ("key", "value")}
    with pytest.raises(DataError) as error:
        read_cache(tensors, Config("gpt2", 4, decoder=stack), "float32", 1)
    assert str(error.value) == f"--cache-in: {problem}"


def test_a_cache_as_a_record():
    cache = model.KVCache()
    cache.set("decoder.0.self", np.ones((1, 2, 3)), np.zeros((1, 2, 3)))
    cache.set("decoder.0.cross", np.ones((1, 4, 3)), np.zeros((1, 4, 3)))
    config = Config("t5", 3)
    record = cache_record(cache, config, [5, 6, 7], ["a", "b", "c"], ["u", "v", "w", "x"])
    assert [record[f"decoder.0.{part}.key"].shape for part in ("self", "cross")] == [(1, 1, 2, 3), (1, 1, 4, 3)]
    assert record.axes_of("decoder.0.self.value") == ("batch", "head", "key", "head_dim")
    assert record.axes_of("decoder.0.cross.key") == ("batch", "head", "source", "head_dim")
    assert record.labels == {"token": ["a", "b", "c"], "key": ["a", "b"], "source": ["u", "v", "w", "x"]}
    assert record["ids"].dtype == cache_record(cache, config, [], None)["ids"].dtype == np.int64
    assert cache_record(cache, config, [5], None).labels == {}


MEMORY = np.zeros((2, 5))


@pytest.mark.parametrize(("source", "options", "problem"), [
    (["le chat", "le chien", "a"], {"ids": np.array([[5, 6], [6, 7]]), "model": FRENCH}, "--ids: 2 rows for 3 sources"),
    (None, {"ids": np.zeros((1, 1, 2), int)}, "--ids: shape (1, 1, 2) is not (T) or (B, T)"),
    (Record({"x": MEMORY}), {}, "the record has no ids (decode --model --layer head takes its x)"),
    (Record({"ids": np.array([5]), "memory": MEMORY}), {},
     "the record has a memory, and a gpt2 model has no cross-attention"),
    (Record({"ids": np.zeros((1, 1, 2), int)}), {"model": FRENCH}, "ids: shape (1, 1, 2) is not (T) or (B, T)"),
    (None, {"model": FRENCH}, "no source: a marian model needs TEXT, a record, or --memory FILE"),
    (Record({"x": MEMORY}), {"model": FRENCH}, "the record has no ids and no memory (encode --model makes one)"),
    (Record({"memory": MEMORY}), {"model": FRENCH}, "memory (2, 5): expected (S, 64) or (B, S, 64)"),
    (Record({"memory": np.zeros(64)}), {"model": FRENCH}, "memory (64,): expected (S, 64) or (B, S, 64)"),
    (None, {"memory": MEMORY}, "--memory: a gpt2 model has no cross-attention to a memory"),
    ("x", {"beam": 513}, "--beam: expected at most 512, the size of the vocabulary, got 513"),
    ("x", {"beam": 2, "best": 3}, "--best: 3 of --beam 2 (expected 1 to 2)"),
    ("x", {"score": ""}, "--score: an empty text has no score"),
    ("x", {"stop": ("a", "")}, "--stop: empty text"),
    ("x", {"score": "a", "trace": "a.npz", "cache_out": "./a.npz"}, "--trace: a.npz: --cache-out writes the same file"),
    ("x", {"score": " a", "trace": "a.npz", "grad": "./a.npz"}, "--grad: ./a.npz: --trace writes the same file"),
    ("x", {"score": "a", "cache_out": "a.npz", "grad": "./a.npz"}, "--grad: ./a.npz: --cache-out writes the same file"),
    (["x", "y"], {"cache_out": "a.npz"}, "--cache-out: needs a single text, got a batch"),
    (["x", "y"], {"beam": 2, "best": 2}, "--best: needs a single text, got a batch"),
    (["x", "y"], {"score": " a", "grad": "a.npz"}, "--grad: needs a single text, got a batch"),
    ("x", {"vocab": ["a"]}, "--model and --vocab are mutually exclusive where the model generates text"),
    ("x", {"model": folder("bert")}, "--model: this bert model has no head: it maps tokens to vectors"),
    ("le", {"model": FRENCH, "max_tokens": 0}, "--max-tokens 0: nothing to score; --score TEXT"),
])  # fmt: skip
def test_what_cannot_be_generated_from_is_told(source, options, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((UsageError, DataError)) as error:
        attnkit.decode(source, **{"model": STORY} | options)
    assert str(error.value) == problem


@pytest.mark.parametrize(("name", "text", "score", "ids", "first"), [
    (STORY, "Once upon", " a time", [364, 349, 261, 350], 2),
    (STORY, "Once up", "on a time", [364, 349, 261, 350], 1),  # a token covers the end of the prompt
    (STORY, "", "Once", [0, 364], 1),  # after the start token
    (folder("llama"), "", "the cat", [1, 262, 267, 269], 1),
    (folder("llama"), None, "the cat", [1, 5, 262, 267, 269], 2),  # after ids, without another start token
    (FRENCH, "le chat", "the", [538, 498, 0], 1),  # with the end of a translation
])  # fmt: skip
@pytest.mark.filterwarnings("ignore::attnkit.errors.AttnkitWarning")
def test_a_score_is_of_the_tokens_after_the_prompt(name, text, score, ids, first):
    given = Record({"ids": np.array([1, 5])}) if text is None else None
    options = DecodeOptions(open_checkpoint(name), score=score, ids=given)
    detokenizer = make_detokenizer(options)
    [prompt], _ = make_prompts(None if text is None else (text,), options, detokenizer)
    assert tokens_to_score(prompt, options, detokenizer) == (ids, first)


def test_a_text_after_a_cache_has_no_start_of_its_own():
    options = DecodeOptions(open_checkpoint(folder("llama")))
    after = options._replace(cache=CacheFiles(cache_in={"ids": np.array([1])}))
    detokenizer = make_detokenizer(options)
    assert tokenize_prompt("the cat", options, detokenizer) == [1, 262, 267, 269]
    assert tokenize_prompt("the cat", after, detokenizer) == [262, 267, 269]
    story = after._replace(model_=open_checkpoint(STORY))  # whose tokenizer adds none
    assert tokenize_prompt("Once upon", story, make_detokenizer(story)) == [364, 349]


def test_a_score_within_a_word_quotes_forty_characters_of_both_sides():
    prompt = "Once upon a time there was a fox who saw a cat and a do"
    score = "g and a bear who saw the fox and the cat there once"
    said = f"'{score[:40]}' continues the last word of '{prompt[-40:]}'; ' {score[:40]}' begins a new one"
    with pytest.warns(AttnkitWarning, match=f"^--score: {said}$"):
        attnkit.decode(prompt, score=score, model=STORY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for ends in ((prompt, " a"), ("Once.", "a"), ("Once", ".")):
            attnkit.decode(ends[0], score=ends[1], model=STORY)


def test_the_first_tokens_of_a_target_may_have_its_start():
    for ids in ([538, 498], [498]):
        options = DecodeOptions(open_checkpoint(FRENCH), ids=Record({"ids": np.array(ids)}))
        [prompt], _ = make_prompts(("le chat",), options, make_detokenizer(options))
        assert (prompt.ids, prompt.prefix) == ([538, 498], 1)


def test_generation_computes_in_the_dtype_and_with_the_heads_that_are_asked_for():
    """Each score of a generated text is that of the same text scored at once, whose hooks and dtype are its own."""
    options = {"model": STORY, "dtype": "float64", "ablate": ("decoder.1.self:1",)}
    made = attnkit.decode("Once upon", max_tokens=5, **options)
    whole = attnkit.decode(None, ids=[364, 349, *made["ids"]], max_tokens=0, **options)
    np.testing.assert_allclose(made["x"], whole["x"][-5:], rtol=1e-12)
    assert made["x"].dtype == np.float64
    assert not np.allclose(made["x"], attnkit.decode("Once upon", model=STORY, max_tokens=5)["x"], rtol=1e-6)


@pytest.mark.parametrize("limit", [0, 2])
def test_a_batch_may_be_of_one_text(limit):
    one, batch = (attnkit.decode("Once upon a", model=STORY, max_tokens=limit, batch=batch) for batch in (False, True))
    assert batch.axes_of("x") == ("batch", "token") and "mask" not in batch
    np.testing.assert_array_equal(batch["x"], one["x"][None])
    assert batch.tensor("x").formula == one.tensor("x").formula == "log-probability of each token"
    assert batch.labels["token"] == [one.labels["token"]] and batch.labels["text"] == one.labels["text"]
    logits = attnkit.decode("Once upon a", model=STORY, max_tokens=limit, batch=True, emit="logits")
    assert len(logits.labels["vocab"]) == logits["x"].shape[-1] == 512


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", [*CAUSAL, *TRANSLATORS])
def test_the_likeliest_tokens(name, dtype):
    assert [generated(name, "ids", dtype=dtype)["ids"][0].tolist()] == expected(name, "greedy")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", PENALIZED)
def test_a_repetition_penalty(name, dtype):
    ours = generated(name, "ids", dtype=dtype, repetition_penalty=1.3)["ids"][0].tolist()
    assert [ours] == expected(name, "greedy.rep13")


@pytest.mark.parametrize(("name", "search", "dtype"), SEARCHED)
def test_beam_search(name, search, dtype):
    beams, penalty, best = SEARCHES[search]
    ids = Record({"ids": frozen(name)["ids"][0]})
    options = {"beam": beams, "length_penalty": penalty, "max_tokens": NEW, "dtype": dtype}
    ours = attnkit.decode(ids, model=folder(name), **options, **({"best": best} if best > 1 else {}))
    rows = expected(name, search)
    for row, theirs in zip(np.atleast_2d(ours["ids"]).tolist(), rows, strict=True):
        assert row[: len(theirs)] == theirs
    np.testing.assert_allclose(ours["scores"], frozen(name)[f"{search}.scores"], rtol=0, atol=2e-5)


def padded(name):
    """The padded batch that the reference generated from, as a record, and the name of its results."""
    side = "left" if name in CAUSAL else "batch"
    given = frozen(name)
    return Record({"ids": given[f"{side}_ids"], "mask": given[f"{side}_mask"].astype(bool)[:, None]}), side


@pytest.mark.parametrize("name", PENALIZED)
@pytest.mark.parametrize("search", ["greedy", "beam4.lp1"])
def test_a_padded_batch(name, search):
    record, side = padded(name)
    start = 1 if name in TRANSLATORS else record["ids"].shape[1]
    options = {"beam": 4, "length_penalty": "average:1"} if search != "greedy" else {}
    ours = attnkit.decode(record, model=folder(name), max_tokens=NEW, dtype="float64", **options)
    for row, theirs in zip(ours["ids"].tolist(), frozen(name)[f"{side}.{search}"], strict=True):
        new = theirs[start:][theirs[start:] >= 0].tolist()
        assert row[: len(new)] == new
    if options:
        np.testing.assert_allclose(ours["scores"], frozen(name)[f"{side}.{search}.scores"], rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", [*CAUSAL, *TRANSLATORS])
def test_padding_changes_nothing(name):
    given, sides = frozen(name), ("batch",) if name in TRANSLATORS else ("left", "batch")
    alone = []
    for row, real in zip(given["batch_ids"], given["batch_mask"].astype(bool), strict=True):
        one = attnkit.decode(Record({"ids": row[real]}), model=folder(name), max_tokens=NEW)
        alone.append((one["ids"].tolist(), one["x"]))
    for side in sides:
        mask = given[f"{side}_mask"].astype(bool)
        record = Record({"ids": given[f"{side}_ids"], "mask": mask[:, None]})
        ours = attnkit.decode(record, model=folder(name), max_tokens=NEW)
        for (ids, x), row, scores in zip(alone, ours["ids"].tolist(), ours["x"], strict=True):
            assert row[: len(ids)] == ids
            np.testing.assert_array_equal(scores[: len(ids)], x)
            assert not scores[len(ids) :].any()


@pytest.mark.parametrize("name", ["gpt2", "openai-gpt", "llama", "mistral", "t5"])
def test_a_cache_in_a_file_goes_on_where_it_ended(name, tmp_path):
    record, file = Record({"ids": frozen(name)["ids"][0]}), str(tmp_path / "cache.npz")
    options = {"model": folder(name), "dtype": "float64"}
    whole = attnkit.decode(record, max_tokens=9, **options)["ids"].tolist()
    if name in TRANSLATORS:
        first = attnkit.decode(record, max_tokens=4, cache_out=file, **options)["ids"].tolist()
        rest = attnkit.decode(None, max_tokens=9 - len(first), cache_in=file, **options)["ids"].tolist()
    else:  # a prompt read in two parts as well
        head, tail = Record({"ids": record["ids"][:5]}), Record({"ids": record["ids"][5:]})
        attnkit.decode(head, max_tokens=0, cache_out=file, **options)
        more = str(tmp_path / "more.npz")
        first = attnkit.decode(tail, max_tokens=4, cache_in=file, cache_out=more, **options)["ids"].tolist()
        rest = attnkit.decode(None, max_tokens=9 - len(first), cache_in=more, **options)["ids"].tolist()
    assert (first + rest)[: len(whole)] == whole


def test_a_cache_of_another_model_is_refused(tmp_path):
    file = str(tmp_path / "cache.npz")
    attnkit.decode("The cat", model=folder("gpt2"), max_tokens=2, cache_out=file)
    with pytest.raises(DataError, match=r"decoder.0.self.key has shape \(1, \d+, \d+, \d+\) \(expected"):
        attnkit.decode(None, model=folder("llama"), cache_in=file)
    with pytest.raises(DataError, match="no ids"):
        attnkit.decode(None, model=folder("gpt2"), cache_in={"x": np.zeros(2)})
    with pytest.raises(UsageError, match="--cache-out"):
        attnkit.decode("The cat", model=folder("llama-dynamic"), cache_out=file)


def test_a_score_is_what_the_model_gives_each_token():
    given = frozen("gpt2")
    ours = attnkit.decode(Record({"ids": given["ids"][0]}), model=folder("gpt2"), max_tokens=0, dtype="float64")
    logs = model.log_probabilities(given["logits.f64"][0])
    ids = given["ids"][0][1:]
    np.testing.assert_allclose(ours["x"], logs[np.arange(len(ids)), ids], rtol=0, atol=1e-10)
    assert ours["ids"].tolist() == ids.tolist()
    logits = attnkit.decode(Record({"ids": given["ids"][0]}), model=folder("gpt2"), max_tokens=0, emit="logits")
    np.testing.assert_allclose(logits["x"], given["logits.f64"][0], rtol=0, atol=1e-5)
    assert logits.axes_of("x") == ("token", "vocab") and len(logits.labels["vocab"]) == logits["x"].shape[-1]


def test_the_score_of_what_was_generated_is_what_it_was_generated_with(tmp_path):
    for name, text in (("gpt2", "The cat sat"), ("marian", "Le chat"), ("t5", "The cat")):
        made = attnkit.decode(text, model=folder(name), max_tokens=6, emit="ids")
        x = attnkit.decode(text, model=folder(name), max_tokens=6)["x"]
        file = str(tmp_path / f"{name}.npz")
        attnkit.decode(text, model=folder(name), max_tokens=0, cache_out=file)
        given = attnkit.decode(None, ids=made["x"], cache_in=file, model=folder(name), max_tokens=0)
        np.testing.assert_allclose(given["x"], x, rtol=0, atol=1e-5)


def test_a_scored_text_follows_the_prompt():
    ours = attnkit.decode("The cat", score=" sat on the mat.", model=folder("gpt2"))
    whole = attnkit.decode("The cat sat on the mat.", max_tokens=0, model=folder("gpt2"))
    np.testing.assert_allclose(ours["x"], whole["x"][-len(ours["x"]) :], rtol=0, atol=1e-6)
    assert "".join(ours.labels["token"]).replace("Ġ", " ") == " sat on the mat."
    assert (ours["rank"] >= 1).all()
    translated = attnkit.decode("Le chat", score="The cat", model=folder("marian"))
    assert translated["ids"][-1] == 0  # the end


def test_text_ends_before_a_stop_and_is_the_prompt_and_what_follows():
    options = {"model": folder("gpt2"), "max_tokens": 12}
    record = attnkit.decode("The cat", **options)
    text, prompt = record.labels["text"][0], record.labels["prompt"][0]
    assert text.startswith("The cat") and prompt == "The cat"
    assert attnkit.decode("The cat", emit="text", **options) == text
    stop = text[len(prompt) + 2 : len(prompt) + 5]
    cut = attnkit.decode("The cat", emit="text", stop=["never there", stop], **options)
    assert cut == prompt + text[len(prompt) :].partition(stop)[0]
    searched = attnkit.decode("The cat", emit="text", stop=stop, beam=1, **options)
    assert searched == cut


def test_several_texts_are_a_batch_and_lines_a_stream():
    lines = ["The cat sat", "Once upon a time"]
    batch = attnkit.decode(lines, model=folder("gpt2"), max_tokens=5)
    assert batch.axes_of("ids") == ("batch", "token")
    out, _ = run("decode", "--model", folder("gpt2"), "--max-tokens", "5", "--lines", input="\n".join(lines).encode())
    for row, (record, line) in enumerate(zip(formats.read(formats.Source.of(out)), lines, strict=True)):
        one = attnkit.decode(line, model=folder("gpt2"), max_tokens=5)
        size = len(one["ids"])
        assert record["ids"].tolist() == one["ids"].tolist() == batch["ids"][row][:size].tolist()
        assert record.labels["text"] == one.labels["text"] == [batch.labels["text"][row]]


def test_drawn_tokens_depend_on_the_seed_alone():
    options = {"model": folder("gpt2"), "max_tokens": 8, "temperature": 1.5}
    one, same, other = (attnkit.decode("The cat", seed=seed, **options)["ids"].tolist() for seed in (1, 1, 2))
    assert one == same != other
    likeliest = attnkit.decode("The cat", model=folder("gpt2"), max_tokens=8)["ids"].tolist()
    assert attnkit.decode("The cat", model=folder("gpt2"), max_tokens=8, top_k=1, seed=3)["ids"].tolist() == likeliest
    probs = attnkit.decode("The cat", model=folder("gpt2"), max_tokens=3, top_k=2, emit="probs")
    assert ((probs["x"] > 0).sum(axis=-1) == 2).all()


def test_translation_from_text_from_a_record_and_from_a_file(tmp_path):
    name, file = folder("marian"), str(tmp_path / "memory.npz")
    direct = attnkit.decode("Le chat", model=name, max_tokens=8)
    record = attnkit.encode("Le chat", model=name)
    formats.save(record, file)
    for ours in (
        attnkit.decode(record, model=name, max_tokens=8),
        attnkit.decode(None, memory=file, model=name, max_tokens=8),
        attnkit.decode(attnkit.embed("Le chat", model=name), model=name, max_tokens=8),
    ):
        assert ours["ids"].tolist() == direct["ids"].tolist()
    batch = attnkit.encode(["Le chat", "Le chien mange la pomme"], model=name)
    formats.save(batch, file)
    both = attnkit.decode(batch, model=name, max_tokens=8)
    assert both["ids"][0][: len(direct["ids"])].tolist() == direct["ids"].tolist()
    again = attnkit.decode(None, memory=file, model=name, max_tokens=8)
    np.testing.assert_array_equal(both["ids"], again["ids"])
    prefix = direct["ids"][:2]
    rest = attnkit.decode("Le chat", ids=prefix, model=name, max_tokens=6)
    assert rest["ids"].tolist() == direct["ids"][2:].tolist()


def test_the_head_alone():
    given = frozen("bert-mlm")
    states = attnkit.encode(None, ids=given["ids"], model=folder("bert-mlm"), dtype="float64")
    ours = attnkit.decode(states, model=folder("bert-mlm"))
    np.testing.assert_allclose(ours["logits"], given["logits.f64"], rtol=0, atol=1e-9)
    assert (ours["next"] == given["logits.f64"].argmax(axis=-1)).all() and len(ours.labels["vocab"]) == ours["x"].shape[
        -1
    ]
    image = attnkit.encode(None, image=str(MODELS / "vit.png"), model=folder("vit"))
    classes = attnkit.decode(image, model=folder("vit"))
    assert classes.labels["label"] == list(open_checkpoint(folder("vit")).config.classes)
    states = attnkit.encode(None, ids=frozen("gpt2")["ids"], model=folder("gpt2"), dtype="float64")
    ours = attnkit.decode(states, model=folder("gpt2"), layer="head", emit="logits")
    np.testing.assert_allclose(ours["x"], frozen("gpt2")["logits.f64"], rtol=0, atol=1e-9)


def test_a_decoder_without_words_maps_vectors():
    given = frozen("transformer")
    states = attnkit.encode(Record({"x": given["x"].astype(float)}), model=folder("transformer"))
    ours = attnkit.decode(states.with_tensors({"x": given["tgt"]}), model=folder("transformer"), dtype="float64")
    np.testing.assert_allclose(ours["x"], given["y.f64"], rtol=0, atol=1e-9)


def test_the_end_of_the_positions(tmp_path):
    positions = open_checkpoint(folder("gpt2")).config.positions.size
    ids = np.arange(positions - 2) % 40
    with pytest.warns(AttnkitWarning, match=f"stopped after 3 tokens: the model has {positions} positions"):
        ours = attnkit.decode(None, ids=ids, model=folder("gpt2"), max_tokens=30)
    assert len(ours["ids"]) == 3
    with pytest.raises(DataError, match=f"{positions + 1} tokens, and this gpt2 model has {positions} positions"):
        attnkit.decode(None, ids=np.zeros(positions + 1, int), model=folder("gpt2"))


def test_a_trace_of_a_score_and_a_head_switched_off(tmp_path):
    file = str(tmp_path / "trace.npz")
    plain = attnkit.decode("The cat sat", model=folder("gpt2"), max_tokens=0, trace=file)
    traced = formats.load(file)
    assert traced["decoder.0.self.weights"].shape[-2:] == (traced["logits"].shape[0],) * 2
    assert traced.labels["query"] == traced.labels["key"] == traced.labels["token"]
    assert traced.labels["token"][1:] == plain.labels["token"]
    other = attnkit.decode("The cat sat", model=folder("gpt2"), max_tokens=0, ablate=("decoder.0.self:0",))
    assert not np.array_equal(plain["x"], other["x"])


def test_steps_show_what_was_chosen_among_what():
    line = ("decode", "--model", folder("gpt2"), "The cat", "--max-tokens", "2")
    out, err = run(*line, "--steps", "--top-k", "3", "--top", "2", "-f", "json")
    record = json.loads(out)
    assert err.count("step ") == 2 and err.count("top-k removed 297") == 2
    assert f"chosen: {record['labels']['token'][0]}" in err
    assert run(*line, "--steps", "-q")[1] == ""
    assert "goes on" in run(*line, "--steps", "--beam", "2")[1]


@pytest.mark.parametrize("stops", [False, True])
def test_text_on_a_terminal_is_there_once(stops):
    options = {"model": folder("gpt2"), "max_tokens": 12}
    text = attnkit.decode("The cat", emit="text", **options)
    stop = text[len("The cat") + 3 :][:3]
    flags = ["--stop", stop] if stops else []
    line = ["attnkit", "decode", "--model", folder("gpt2"), "The cat", "--max-tokens", "12", *flags]
    ours, theirs = pty.openpty()
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "80", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    shown = b"".join(iter(lambda: read_terminal(ours), b"")).decode().replace("\r\n", "\n")
    os.close(ours)
    assert done.returncode == 0 and done.stderr == b""
    expected = attnkit.decode("The cat", emit="text", stop=(stop,) if stops else (), **options)
    assert shown == "".join(c if c.isprintable() or c in "\t\n" else repr(c)[1:-1] for c in expected) + "\n"
    assert (expected != text) == stops


def read_terminal(descriptor):
    """What there is to read, nothing once the other side is closed."""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:
        return b""


def test_a_shell_pipeline_and_the_same_in_one_process():
    line = f"encode --model {folder('marian')} 'Le chat' | decode --model {folder('marian')} --beam 2 --max-tokens 6"
    one, _ = run("run", line)
    first, second = line.split(" | ")
    middle, _ = run(*first.replace("'Le chat'", "").split(), "Le chat")
    two, _ = run(*second.split(), input=middle)
    assert json.loads(one)["tensors"] == json.loads(two)["tensors"]


def test_the_head_of_text_is_that_of_its_hidden_states(tmp_path):
    name, text = folder("bert-mlm"), "the [MASK] sat"
    direct = attnkit.decode(text, model=name)
    apart = attnkit.decode(attnkit.encode(text, model=name), model=name)
    assert list(direct) == list(apart.tensors) and direct.labels == apart.labels
    for key in apart:
        np.testing.assert_array_equal(direct[key], apart[key])
    out, _ = run("decode", "--model", name, "--lines", "-f", "json", input=f"{text}\n{text}\n".encode())
    for record in formats.read(formats.Source.of(out)):
        np.testing.assert_array_equal(record["x"], apart["x"])
    given = frozen("bert-mlm")["ids"]
    ours = attnkit.decode(None, ids=given, model=name, dtype="float64")
    np.testing.assert_allclose(ours["logits"], frozen("bert-mlm")["logits.f64"], rtol=0, atol=1e-9)
    file, trace = str(tmp_path / "states.npz"), str(tmp_path / "trace.npz")
    formats.save(attnkit.encode(text, model=name), file)
    attnkit.decode(text, model=name, trace=trace, trace_only=("encoder.embed", "logits"))
    assert list(formats.load(trace)) == ["encoder.embed", "logits"]
    where = apart.labels["token"].index("[MASK]")
    guess = int(apart["next"][where])
    tokenizer = open_tokenizer(name)
    words = f"the {tokenizer.decode([guess]) or tokenizer.vocabulary[guess]} sat"
    for line in ([text], [file], ["--layer", "head", file]):
        assert run("decode", "--model", name, "--emit", "text", *line)[0].decode() == f"{words}\n"


def test_the_classes_of_an_image_are_those_of_its_hidden_states():
    name, image = folder("vit"), str(MODELS / "vit.png")
    direct = attnkit.decode(None, image=image, model=name)
    np.testing.assert_array_equal(
        direct["x"], attnkit.decode(attnkit.encode(None, image=image, model=name), model=name)["x"]
    )
    assert attnkit.decode(None, image=image, model=name, emit="text") == direct.labels["label"][int(direct["next"])]
    with pytest.raises(UsageError, match="--image: a gpt2 model takes no image"):
        attnkit.decode(None, image=np.zeros((3, 4, 4)), model=folder("gpt2"))


def test_steps_say_how_likely_the_model_found_a_token_and_by_what_it_was_drawn(tmp_path):
    logits = np.log(np.array([0.5, 0.3, 0.2]))
    tempered = logits / 0.5  # 0.25, 0.09 and 0.04 over their sum
    told = (Filtered("temperature", logits, tempered),
            Filtered("top-k", tempered, np.where([True, True, False], tempered, -np.inf)))  # fmt: skip
    info = StepInfo(0, logits, told, 1, float(np.log(0.3)))
    style = Style(precision=3)
    lines = format_table(render_choice(info, Detokenizer(None, 3), style), style).splitlines()
    assert lines[1] == "id  token   logit  probability  after temperature, top-k"
    assert [line.split() for line in lines[3:5]] == [["0", "0", "-0.693", "0.500", "0.735"],
                                                     ["1", "1", "-1.204", "0.300", "0.265"]]  # fmt: skip
    assert lines[5] == "top-k removed 1: 2 · chosen: 1 (the model's own log-probability -1.204)"
    _, err = run("decode", "--model", folder("gpt2"), "The cat", "--max-tokens", "1", "--steps", "--precision", "2")
    assert re.search(r"chosen: .* \(log-probability -\d\.\d\d\)\n", err) and "after" not in err


def test_a_translation_has_no_prompt_unless_one_is_given():
    name = folder("marian")
    made = attnkit.decode("Le chat", model=name, max_tokens=4)
    assert "prompt" not in made.labels and made.labels["text"]
    begun = attnkit.decode("Le chat", ids=made["ids"][:2], model=name, max_tokens=2)
    assert "".join(begun.labels["prompt"])
    both = attnkit.decode(["Le chat", "a"], model=name, max_tokens=6)
    sizes = [attnkit.decode(text, model=name, max_tokens=6)["ids"].size for text in ("Le chat", "a")]
    assert all(set(row[size:]) <= {"<pad>"} for row, size in zip(both.labels["token"], sizes, strict=True))


def test_a_memory_may_be_one_tensor_of_a_file(tmp_path):
    name, file = folder("marian"), str(tmp_path / "memory.npz")
    formats.save(attnkit.encode("Le chat", model=name), file)
    direct = attnkit.decode("Le chat", model=name, max_tokens=8)["ids"].tolist()
    for memory in (file, f"{file}:memory", f"{file}:x"):
        assert attnkit.decode(None, memory=memory, model=name, max_tokens=8)["ids"].tolist() == direct
    with pytest.raises(DataError, match="no tensor 'nope'"):
        attnkit.decode(None, memory=f"{file}:nope", model=name)


def test_a_cache_needs_no_text(tmp_path):
    file = str(tmp_path / "cache.npz")
    line = ("decode", "--model", folder("gpt2"), "--emit", "text", "--max-tokens", "3")
    run(*line, "The cat", "--cache-out", file)
    assert run(*line, "--cache-in", file) == run(*line, "--cache-in", file, "")


def test_the_guess_stands_in_place_of_the_mask_alone():
    name = folder("bert-mlm")
    words = open_tokenizer(name).vocabulary
    wanted, mask = words.index("cat") if "cat" in words else 40, words.index("[MASK]")
    ids, guesses = np.array([[2, mask, 7], [mask, 5, 6]]), np.full((2, 3), wanted)
    assert fill_masks(ids, guesses, words).tolist() == [[2, wanted, 7], [wanted, 5, 6]]
    assert run("decode", "--model", name, "the cat sat", "--emit", "text")[0] == b"the cat sat\n"
    pair = attnkit.encode(["the cat sat", "the"], model=name)
    assert attnkit.decode(pair, model=name, emit="text") == "the cat sat\nthe"


@pytest.mark.parametrize("flags", [(), ("--beam", "2"), ("--beam", "2", "--best", "2"), ("--score", "a")])
def test_texts_of_a_stream_stand_in_lines_and_tables_apart(flags):
    limit = () if "--score" in flags else ("--max-tokens", "3")
    line = ("decode", "--model", folder("gpt2"), *limit, "--lines", "-f", "table", *flags)
    out, _ = run(*line, input=b"the cat\nthe dog\n")
    tables = "--best" in flags or "--score" in flags
    assert ("\n\n" in out.decode()) == tables


@pytest.mark.parametrize(
    ("name", "ablated", "problem"),
    [
        ("gpt2", "decoder.0.ffn", "no attention layer 'decoder.0.ffn'; did you mean decoder.0.self?"),
        ("gpt2", "xyz", r"no attention layer 'xyz' \(it has decoder.0.self, decoder.1.self\)"),
        ("marian", "decoder.0.cross:0:5", "decoder.0.cross has heads 0 to 3, not 4"),
    ],
)
def test_heads_that_the_model_lacks_are_a_wrong_usage(name, ablated, problem):
    for limit in (0, 1):
        with pytest.raises(UsageError, match=f"--ablate: .*{problem}"):
            attnkit.decode("le chat", model=folder(name), max_tokens=limit, ablate=(ablated,))


@pytest.mark.parametrize(("options", "stop"), [({}, ()), ({"choices": Choices(top=2)}, None), ({"emit": "ids"}, None),
                                               ({"batch": True}, ()), ({"emit": "text"}, (" a", "there"))])  # fmt: skip
def test_a_text_is_streamed_token_by_token_after_its_prompt(options, stop):
    given = DecodeOptions(open_checkpoint(STORY), stop=stop or (), length=Length(max_tokens=4), **options)
    parts = []
    with callbacks.use_callbacks(callbacks.Callbacks(on_text=lambda *part: parts.append(part))):
        made = run_decode(("Once upon",), given)
    if stop is None:
        assert not parts
        return
    text = made if isinstance(made, str) else made.labels["text"][0]
    assert parts[0] == ("Once upon", True) and not any(is_prompt for _, is_prompt in parts[1:])
    assert "".join(part for part, _ in parts) == text and len(parts) >= 2
    assert text == ("Once upon" if stop else "Once upon a time there was")


def test_texts_of_a_batch_are_not_streamed_and_tokens_are_told():
    parts, told = [], []
    given = DecodeOptions(open_checkpoint(STORY), length=Length(max_tokens=2))
    calls = callbacks.Callbacks(on_text=lambda *part: parts.append(part), on_progress=told.append)
    with callbacks.use_callbacks(calls):
        run_decode(("Once upon", "One day"), given)
    assert not parts and [one for one in told if one.startswith("token")] == ["token 1", "token 2"] * 2


def test_a_table_of_each_step_is_shown_of_a_choice_and_of_beams():
    tables = []
    with callbacks.use_callbacks(callbacks.Callbacks(on_table=tables.append)):
        steps = DecodeOptions(open_checkpoint(STORY), length=Length(max_tokens=2), choices=Choices(steps=True, top=3))
        run_decode(("Once upon",), steps)
        run_decode(("Once upon",), steps._replace(choices=Choices(steps=True), search=Search(beam=2)))
    first, second, *beams = (make(Style(precision=2)) for make in tables)
    assert (first.title, second.title) == ("step 0", "step 1") and len(first.rows) == 3
    assert [table.title for table in beams] == ["step 0", "step 1"]
    assert [[row[0], row[2]] for row in beams[0].rows] == [["goes on", "-"]] * 2
    assert [[row[0], row[1]] for row in beams[1].rows] == [["ended", "-"]] * 2
    assert [table.rows[0][3] for table in beams] == ["Once upon a", "Once upon a time"]


@pytest.mark.parametrize(("emit", "formula", "names"), [
    (None, "log-probability of each token", ["x", "ids"]), ("ids", "tokens", ["x"]), ("logits", "logits", ["x", "ids"]),
    ("probs", "probs", ["x", "ids"]),
])  # fmt: skip
def test_the_formula_of_each_result_of_a_text(emit, formula, names):
    for limit, end, more in ((0, "", ["rank"] if emit is None else []), (2, " chosen" if emit == "ids" else "", [])):
        made = attnkit.decode("Once upon a", model=STORY, max_tokens=limit, emit=emit)
        assert made.tensor("x").formula == formula + end and [*made] == names + more
        assert not any(made.tensor(name).formula for name in [*made][1:])
    stack = attnkit.decode(
        Record({"x": np.zeros((2, 16)), "memory": np.ones((3, 16))}), model=folder("transformer"), dtype="float64"
    )
    assert stack.tensor("x").formula == "hidden states of the decoder"


def test_removed_tokens_are_listed_by_how_likely_they_were():
    logits = np.log(np.array([0.1, 0.5, 0.15, 0.25]))
    told = (Filtered("top-k", logits, np.where([False, True, False, False], logits, -np.inf)),)
    table = render_choice(StepInfo(3, logits, told, 1, -0.5), Detokenizer(None, 4), Style(precision=2))
    assert (table.title, table.footer[:26]) == ("step 3", "top-k removed 3: 3 2 0 · c") and len(table.rows) == 1


def test_options_of_the_choice_of_tokens_are_those_of_the_loop():
    plain = {"model": STORY, "max_tokens": 12}
    assert len({*attnkit.decode("Once upon", no_repeat_ngram=1, **plain)["ids"].tolist()}) == 12
    short = attnkit.decode("le chat noir dort", model=FRENCH)["ids"]
    assert len(attnkit.decode("le chat noir dort", model=FRENCH, min_tokens=len(short) + 3)["ids"]) > len(short) + 2


@pytest.mark.parametrize("text", ["gnmt", "gnmt:", "gnmt:x", "gnmt:inf", "mean:1", ":1", "1"])
def test_a_length_penalty_has_a_form_and_a_number(text):
    with pytest.raises(ValueError, match=r"^gnmt:A or average:A$"):
        check_length_penalty(text)
