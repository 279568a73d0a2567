"""Recurrent models against a reference in PyTorch, frozen by tests/references/make_recurrent_models.py."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from safetensors.numpy import save_file

import attnkit
from attnkit import formats
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import DataError, UsageError
from attnkit.generation.kv_cache_file import cache_record, read_cache
from tests.places import MODELS, REFERENCES
from tests.registry import write_recurrent

ARCHIVE = np.load(REFERENCES / "recurrent_models.npz")
CASES = list(dict.fromkeys(name.partition("/")[0] for name in ARCHIVE if not name.startswith("lstm/")))


def members(case: str) -> dict[str, np.ndarray]:
    """Return the arrays of a case."""
    prefix = f"{case}/"
    return {name.removeprefix(prefix): ARCHIVE[name] for name in ARCHIVE if name.startswith(prefix)}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, dict[str, np.ndarray]]:
    """A model and what it is to compute."""
    return open_checkpoint(str(write_recurrent(request.param, tmp_path / "model"))), members(request.param)


def batch(arrays: dict[str, np.ndarray]) -> Any:
    """Return the padded batch of sources."""
    mask = np.arange(arrays["ids"].shape[1]) < arrays["lengths"][:, None]
    return attnkit.Record({"ids": arrays["ids"], "mask": mask[:, None]})


def test_greedy_and_beam_search_choose_the_same_tokens(case: Any) -> None:
    model, arrays = case
    for row, length in enumerate(arrays["lengths"]):
        source = attnkit.Record({"ids": arrays["ids"][row, :length]})
        greedy = attnkit.decode(source, model=model, max_tokens=9, emit="ids")
        assert greedy["x"].tolist() == arrays[f"greedy.{row}"].tolist()
        best = attnkit.decode(source, model=model, max_tokens=9, beam=3, best=3)
        texts = [text[text >= 0].tolist() for text in arrays[f"beams.{row}"]]
        mask = best["mask"][:, 0] if "mask" in best else np.ones(best["ids"].shape, bool)
        assert [ids[real].tolist() for ids, real in zip(best["ids"], mask, strict=True)] == texts
        assert_allclose(best["scores"], arrays[f"scores.{row}"], rtol=0, atol=1e-12)


def test_a_padded_batch_gives_what_single_texts_give(case: Any) -> None:
    model, arrays = case
    together = attnkit.decode(attnkit.encode(batch(arrays), model=model), model=model, max_tokens=9, emit="ids")
    mask = together["mask"][:, 0] if "mask" in together else np.ones(together["x"].shape, bool)
    for row, (ids, real) in enumerate(zip(together["x"], mask, strict=True)):
        assert ids[real].tolist() == arrays[f"greedy.{row}"].tolist()


def test_padding_on_the_left_changes_no_state(case: Any) -> None:
    model, arrays = case
    width, lengths = arrays["ids"].shape[1], arrays["lengths"]
    ids = np.stack([np.roll(row, width - length) for row, length in zip(arrays["ids"], lengths, strict=True)])
    mask = np.arange(width) >= (width - lengths)[:, None]
    left = attnkit.encode(attnkit.Record({"ids": ids, "mask": mask[:, None]}), model=model)
    for row, length in enumerate(lengths):
        assert_allclose(left["memory"][row, width - length :], arrays["memory"][row, :length], rtol=0, atol=1e-12)
        assert not left["memory"][row, : width - length].any()
    right = attnkit.encode(batch(arrays), model=model)
    assert_allclose(left["memory_state"], right["memory_state"], rtol=0, atol=1e-12)


def test_a_cache_continues_where_the_text_ended(case: Any, tmp_path: Path) -> None:
    model, arrays = case
    source = attnkit.Record({"ids": arrays["ids"][0]})
    first = attnkit.decode(source, model=model, max_tokens=1, emit="ids", cache_out=str(tmp_path / "cache.npz"))
    rest = attnkit.decode(model=model, max_tokens=8, emit="ids", cache_in=str(tmp_path / "cache.npz"))
    whole = arrays["greedy.0"].tolist()
    if first["x"].tolist() != [2]:
        assert [*first["x"], *rest["x"]] == whole


def test_sampling_depends_on_the_seed_alone(case: Any) -> None:
    model, arrays = case
    source = attnkit.Record({"ids": arrays["ids"][0]})
    texts = [
        attnkit.decode(source, model=model, max_tokens=9, seed=seed, emit="ids")["x"].tolist() for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1]


def test_an_alignment_can_be_replaced(tmp_path: Path) -> None:
    """Attention that sees the first token alone makes the context its state."""
    for name in ("bahdanau", "luong", "general"):
        arrays = members(name)
        model = open_checkpoint(str(write_recurrent(name, tmp_path / name)))
        memory = attnkit.encode(attnkit.Record({"ids": arrays["ids"][0]}), model=model)
        weights, trace = np.zeros((1, 5, 6)), str(tmp_path / f"{name}.npz")
        weights[..., 0] = 1
        attnkit.decode(memory, model=model, ids=arrays["target"][0, 1:], max_tokens=0, emit="logits", trace=trace,
                       patch={"decoder.cross.weights": weights})  # fmt: skip
        context = formats.load(trace)["decoder.cross.output"]
        assert_allclose(context, np.tile(memory["memory"][0], (5, 1)), rtol=0, atol=1e-15)


def test_a_gate_can_be_read_and_not_replaced(tmp_path: Path) -> None:
    model = open_checkpoint(str(write_recurrent("bahdanau", tmp_path / "model")))
    patch = {"encoder.0.rnn.reset_gate": np.zeros((2, 10))}
    with pytest.raises(UsageError, match="can be read, not replaced"):
        attnkit.encode(attnkit.Record({"ids": np.array([3, 4])}), model=model, patch=patch)


def test_a_language_model_has_the_states_and_logits_of_torch(tmp_path: Path) -> None:
    arrays, trace = members("lstm"), str(tmp_path / "trace.npz")
    model = open_checkpoint(str(write_recurrent("lstm", tmp_path / "model")))
    scored = attnkit.decode(model=model, ids=arrays["ids"][0], max_tokens=0, emit="logits", trace=trace)
    assert_allclose(scored["x"], arrays["logits"][0], rtol=0, atol=1e-12)
    run = formats.load(trace)
    for number in range(3):
        assert_allclose(run[f"decoder.{number}.rnn.state"], arrays[f"states.{number}"][0], rtol=0, atol=1e-12)
    assert_allclose(attnkit.encode(model=model, ids=arrays["ids"])["x"], arrays["states.2"], rtol=0, atol=1e-12)
    text = attnkit.decode(model=model, ids=arrays["ids"][0, :3], max_tokens=9, emit="ids")
    assert text["x"].tolist() == arrays["greedy.0"].tolist()


def test_layers_one_by_one_leave_the_states_of_all() -> None:
    folder = open_checkpoint(str(MODELS / "seq2seq-luong"))
    first = attnkit.encode(attnkit.Record({"ids": np.array([3, 4, 5])}), model=folder, layers="0:1")
    second, whole = attnkit.encode(first, model=folder, layers="1:2"), attnkit.encode(ids=[3, 4, 5], model=folder)
    for name in ("memory", "memory_state", "memory_cell"):
        assert np.array_equal(second[name], whole[name])


def test_names_of_other_programs_are_read(tmp_path: Path) -> None:
    """Those of AWD-LSTM in fastai: a prefix, a module around each LSTM, a raw weight."""
    arrays = members("lstm")
    config = json.loads(str(arrays["config"]))
    stored = {name.removeprefix("weights/"): one for name, one in arrays.items() if name.startswith("weights/")}
    names = {name: re.sub(r"(rnns\.[0-9])\.(?=weight_ih|bias)", r"\1.module.", name) for name in stored}
    names = {name: f"{new}_raw" if "weight_hh" in new else new for name, new in names.items()}
    prefixes = {name: "1." if name.startswith("decoder") else "0." for name in stored}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({prefixes[name] + names[name]: one for name, one in stored.items()}, tmp_path / "model.safetensors")
    x = attnkit.encode(model=open_checkpoint(str(tmp_path)), ids=arrays["ids"])["x"]
    assert_allclose(x, arrays["states.2"], rtol=0, atol=1e-12)


def test_the_alignments_of_a_stage_are_those_of_the_model(tmp_path: Path) -> None:
    folder = open_checkpoint(str(MODELS / "seq2seq"))
    memory = attnkit.encode("je suis un chat", model=folder)
    memory.save(str(tmp_path / "memory.npz")) if hasattr(memory, "save") else formats.save(
        memory, str(tmp_path / "memory.npz")
    )
    target = attnkit.embed("I am a cat", model=folder, layer="decoder.embed")
    stage = attnkit.rnn(
        target, model=folder, layer="decoder.rnn", memory=str(tmp_path / "memory.npz"), keep="weights,gates"
    )
    trace = str(tmp_path / "trace.npz")
    attnkit.decode(memory, model=folder, score="I am a cat", trace=trace)
    run = formats.load(trace)
    assert np.array_equal(stage["weights"], run["decoder.cross.weights"])
    assert np.array_equal(stage["reset_gate"], run["decoder.0.rnn.reset_gate"])
    assert stage.labels["source"] == ["je", "suis", "un", "chat", "</s>"]


WRONG = {
    "cell 'sru' is not supported (use tanh, relu, gru, gru-reset-before, lstm)": {"cell": "sru"},
    "attention 'cosine' is not supported (use none, dot, general, additive)": {"attention": "cosine"},
    "bridge 'identity' from states of width 10 to states of width 5 (use bridge 'tanh')": {"bridge": "identity"},
    "bridge 'tanh' from 1 layers to 2 (use bridge 'none')": {"decoder_layers": 2},
    "bridge 'tanh' from a cell gru-reset-before to lstm (use bridge 'none')": {"decoder_cell": "lstm"},
    "input_feeding needs an attention whose attention_query is 'current'": {"input_feeding": True},
    "attention 'dot' of states of width 5 and 10 (use general)": {"attention": "dot"},
    "readout 'none' leaves attention unused where attention_query is 'current' (use tanh)": {
        "attention_query": "current", "readout": "none"},
    "tie_word_embeddings needs two tables of one size, got 7 and 4": {"tie_word_embeddings": True},
    "share_encoder_decoder_embeddings needs two tables of one size, got (9, 4) and (11, 4)": {
        "share_encoder_decoder_embeddings": True},
    "decoder_start_token_id 11 is outside the vocabulary of 11": {"decoder_start_token_id": 11},
    "encoder_layers 70, and only 23 tensors are stored": {"encoder_layers": 70},
    "tensor 'encoder.rnn.weight_ih_l0' (input of encoder.0.rnn) has shape (15, 4) (expected (20, 4))": {
        "encoder_cell": "lstm", "bridge": "none"},
    "tensor 'attention.query.weight' (wa of decoder.cross) has shape (6, 5) (expected (5, 5))": {"attention_size": 5},
    "no tensor 'attention.weight' (w of decoder.cross)": {
        "attention": "general", "attention_query": "previous", "attention_size": None},
    "hidden_size is '0' (expected a whole number from 1 on)": {"hidden_size": 0},
}  # fmt: skip


@pytest.mark.parametrize("problem", WRONG)
def test_a_config_that_its_weights_contradict_is_one_error(problem: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        open_checkpoint(str(write_recurrent("bahdanau", tmp_path / "model", **WRONG[problem])))
    assert error.value.problem == problem


def test_a_memory_without_the_states_of_its_encoder_is_refused(tmp_path: Path) -> None:
    model = open_checkpoint(str(write_recurrent("bahdanau", tmp_path / "model")))
    memory = attnkit.encode(attnkit.Record({"ids": np.array([3, 4])}), model=model)
    with pytest.raises(DataError, match="no memory_state, which the decoder begins with"):
        attnkit.decode(memory.select(["memory"]), model=model, emit="ids")
    with pytest.raises(DataError, match=r"memory_state \(1, 9\): expected \(1, 1, 10\)"):
        attnkit.decode(memory.with_tensors({"memory_state": np.zeros((1, 9))}), model=model, emit="ids")


@pytest.mark.parametrize(("changes", "more", "problem"), [
    ({"position": None}, 1, "no cache of this model: it has no position"),
    ({"position": np.array(2.0)}, 1, "no cache of this model: it has no position"),
    ({"position": np.array([2])}, 1, "no cache of this model: it has no position"),
    ({"position": np.array(0)}, 1, "ids (3,) for the states after 0 tokens"),
    ({"position": np.array(1)}, 1, "ids (3,) for the states after 1 tokens"),
    ({"position": np.array(4)}, 1, "ids (3,) for the states after 4 tokens"),
    ({"ids": np.zeros((1, 3), int)}, 1, "ids (1, 3) for the states after 3 tokens"),
    ({"decoder.0.rnn.state": None}, 1, "no cache of this model: no tensor 'decoder.0.rnn.state'"),
    ({"decoder.0.rnn.state": np.zeros((1, 4))}, 1,
     "no cache of this model: decoder.0.rnn.state has shape (1, 4) (expected (1, 6))"),
    ({}, 0, "its states follow all of its tokens: TEXT or --ids must continue them"),
    ({}, 1, ""),
    ({"position": np.array(2)}, 0, ""),
])  # fmt: skip
def test_states_that_are_no_cache_are_named(tmp_path, changes, more, problem):
    config = open_checkpoint(str(write_recurrent("lstm", tmp_path / "model"))).config
    states = {f"{layer}.{part}": np.ones((1, *axes.values()))
              for layer, parts in config.states.items() for part, axes in parts.items()}  # fmt: skip
    tensors = {"ids": np.array([1, 2, 3]), "position": np.array(3)} | states | changes
    given = {name: array for name, array in tensors.items() if array is not None}
    if problem:
        with pytest.raises((DataError, UsageError)) as error:
            read_cache(given, config, "float32", more)
        assert str(error.value) == f"--cache-in: {problem}"
        return
    cache, words = read_cache(given, config, "float32", more)
    assert (cache.length, words) == (int(given["position"]), [1, 2, 3])
    assert all(part.dtype == np.float32 for state in cache.states.values() for part in state)
    record = cache_record(cache, config, words, ["a", "b", "c"])
    assert record.labels == {"token": ["a", "b", "c"], "key": []} and record["position"] == cache.length
    assert {*record} == {*given} and record.axes_of("decoder.0.rnn.cell") == ("batch", "model")
