"""--patch and --ablate: whole intermediates and cells of them, replaced, added to, or set to their means."""

from functools import cache

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.errors import DataError, UsageError
from attnkit.interpret.edits import mean_heads
from attnkit.records import Record
from tests import process
from tests.places import MODELS, ROOT, STORY

TRANSLATOR = str(ROOT / "samples/data/fr-en")
TEXT, OTHER = "Once upon a time there", "Every evening the fox looked"
NAME = "decoder.1.self.residual"
HEADS = "decoder.1.self.heads"


@cache
def traced(text=TEXT):
    return attnkit.encode(text, model=STORY, keep="*")


def encoded(text=TEXT, **values):
    return attnkit.encode(text, model=STORY, keep="*", **values)


def scored(text, **values):
    return attnkit.decode(text, model=STORY, max_tokens=0, emit="logits", **values)["x"]


@pytest.mark.parametrize("name", ["gpt2", "llama", "marian", "bert"])
def test_a_patch_with_what_was_there_changes_no_bit(name):
    model, ids = str(MODELS / name), np.array([3, 1, 4, 5])
    whole = attnkit.encode(model=model, ids=ids, keep="*")
    patch = {each: whole[each] for each in whole if "." in each}
    assert len(patch) > 15
    parts = {f"{each}[1]": whole[each][1] for each in patch} | {f"{each}[..., :1]": whole[each] for each in patch}
    zeros = {f"{each}+": np.zeros_like(whole[each]) for each in patch}
    for given in (patch, parts, zeros):
        np.testing.assert_array_equal(attnkit.encode(model=model, ids=ids, patch=given)["x"], whole["x"])


@pytest.mark.parametrize(
    ("target", "cells"),
    [
        (f"{HEADS}[2,:,5]", np.s_[2, :, 5]),
        (f"{HEADS}[2,1:3]", np.s_[2, 1:3]),
        (f"{HEADS}[...,-1,:]", np.s_[..., -1, :]),
        (f"{HEADS}[-1,::2,4:]", np.s_[-1, ::2, 4:]),
        (f"{HEADS}[:,Ġupon]", np.s_[:, 1]),
        (f"{NAME}[3]", np.s_[3]),
        (f"{NAME}[-2:,0]", np.s_[-2:, 0]),
        ("decoder.0.self.weights[1,4,0]", np.s_[1, 4, 0]),
    ],
)
def test_the_cells_of_a_slice_are_those_of_numpy(target, cells):
    name = target.partition("[")[0]
    before, other = traced()[name], traced(OTHER)[name]
    for values in (other[cells], other, np.full_like(other[cells], 2)):
        for adds in (False, True):
            expected, new = before.copy(), values[cells] if values.shape == other.shape else values
            expected[cells] = before[cells] + new if adds else new
            made = encoded(patch={target + "+" * adds: values})
            np.testing.assert_array_equal(made[name], expected)
            assert (made["x"] != traced()["x"]).any() or np.array_equal(expected, before)


def test_the_cells_of_a_text_of_another_length_are_those_of_the_same_positions():
    longer = traced(f"{OTHER} at the stars")
    made = encoded(patch={f"{NAME}[1:3]": longer[NAME], f"{HEADS}[0,4]": longer[HEADS]})
    np.testing.assert_array_equal(made[NAME][1:3], longer[NAME][1:3])
    np.testing.assert_array_equal(made[HEADS][0, 4], longer[HEADS][0, 4])
    with pytest.raises(DataError, match=r"--patch: shape \(8, 64\) for decoder.1.self.residual of shape \(5, 64\)"):
        encoded(patch={NAME: longer[NAME]})
    with pytest.raises(DataError, match=r"--patch: shape \(3, 64\) for decoder.1.self.residual\[3\] of shape \(64,\)"):
        encoded(patch={f"{NAME}[3]": longer[NAME][:3]})


def test_one_vector_is_for_all_positions_and_a_factor_scales_it(tmp_path):
    vector, path = traced(OTHER)[NAME][2], str(tmp_path / "vector.npy")
    formats.save(Record({"x": vector}), path)
    expected = traced()[NAME] + np.float32(-2.5) * vector
    np.testing.assert_array_equal(encoded(patch=f"{NAME}+={path}*-2.5")[NAME], expected)
    expected[1:] = traced()[NAME][1:]
    np.testing.assert_array_equal(encoded(patch=f"{NAME}[0]+={path}*-2.5")[NAME], expected)
    both = encoded(patch=f"{HEADS}[2,:,5]={tmp_path / 'zero.json'},{NAME}[0]={path}") if zero(tmp_path) else None
    assert not both[HEADS][2, :, 5].any() and (both[NAME][0] == vector).all()


def zero(folder):
    return (folder / "zero.json").write_text("0")


TEXTS = [TEXT, "Once upon", "The fox looked at the"]
VECTOR, FACTORS = np.cos(np.arange(64, dtype=np.float32)), np.sin(np.arange(16, dtype=np.float32))
MEAN = {HEADS: np.arange(64, dtype=np.float32).reshape(4, 16)}
EDITS = [
    {"ablate": ("decoder.1.self:1",)},
    {"ablate": ("decoder.1.self:0:2", "decoder.0.self")},
    {"ablate": ("decoder.1.self[1,1:3]", "2:4")},
    {"ablate": ("decoder.1.self[3,-1]",)},
    {"ablate": ("decoder.1.self:1", "decoder.1.self[0,1:]"), "mean": MEAN},
    {"patch": {f"{NAME}[0]": VECTOR}},
    {"patch": {f"{NAME}[-1]+": VECTOR}},
    {"patch": {f"{NAME}[1:]": VECTOR, f"{NAME}[0,:32]+": VECTOR[:32]}},
    {"patch": {f"{HEADS}[2]": FACTORS, f"{HEADS}[0,1,3]": np.float32(7)}},
    {"patch": {"decoder.1.self.weights[:,1,0]": np.float32(1), "decoder.2.ffn.hidden[:,5]": np.float32(0)}},
    {"patch": {"decoder.0.self.scores[1,:,1]+": np.float32(3)}},
]


def padded(texts, side):
    """A batch of the ids of texts, padded on one side, with its mask, and the cells of each text."""
    rows = [attnkit.embed(text, model=STORY)["ids"] for text in texts]
    size = max(map(len, rows))
    starts = [size - len(row) if side == "left" else 0 for row in rows]
    ids, mask = np.zeros((len(rows), size), int), np.zeros((len(rows), 1, size), bool)
    for row, (start, one) in enumerate(zip(starts, rows, strict=True)):
        ids[row, start : start + len(one)], mask[row, :, start : start + len(one)] = one, True
    spans = [slice(start, start + len(row)) for start, row in zip(starts, rows, strict=True)]
    return Record({"ids": ids, "mask": mask}), spans


@pytest.mark.parametrize("edits", EDITS, ids=str)
def test_an_edit_of_a_batch_is_that_of_each_text_alone(edits):
    """Positions count from the first token of each text, whatever its padding."""
    each = [encoded(text, **edits) for text in TEXTS]
    for text, alone in zip(TEXTS, each, strict=True):
        assert np.abs(alone["x"] - traced(text)["x"]).max() > 1e-3, "the edit changes the text"
    for side in ("right", "left", "texts"):
        record, spans = padded(TEXTS, "right" if side == "texts" else side)
        batch = encoded(TEXTS if side == "texts" else record, **edits)
        for row, (alone, span) in enumerate(zip(each, spans, strict=True)):
            np.testing.assert_allclose(batch["x"][row, span], alone["x"], rtol=0, atol=1e-4)
            np.testing.assert_allclose(batch[HEADS][row, :, span], alone[HEADS], rtol=0, atol=1e-4)


def test_the_trace_of_a_batch_replaces_the_intermediate_of_each_text():
    other = encoded([OTHER, "The bear"])
    made = encoded([TEXT, "Once upon"], patch={NAME: other[NAME]})
    np.testing.assert_allclose(made["x"][0, :5], encoded(TEXT, patch={NAME: other[NAME][0]})["x"], atol=1e-4)
    np.testing.assert_allclose(made["x"][1, :2], encoded("Once upon", patch={NAME: other[NAME][1, :2]})["x"], atol=1e-4)


def test_a_word_of_a_batch_is_found_in_each_text():
    texts, word = ["Once upon a time", "There upon a time was"], "Ġupon"
    batch = encoded(texts, patch={f"{NAME}[{word}]": VECTOR})
    for row, text in enumerate(texts):
        alone = encoded(text, patch={f"{NAME}[{word}]": VECTOR})["x"]
        np.testing.assert_allclose(batch["x"][row, : len(alone)], alone, atol=1e-4)


def test_several_texts_of_decode_are_patched_alike():
    texts, patch = [TEXT, "Once upon"], {f"{NAME}[1]+": np.arange(64, dtype=np.float32)}
    both = attnkit.decode(texts, model=STORY, max_tokens=0, patch=patch)
    for row, text in enumerate(texts):
        alone = attnkit.decode(text, model=STORY, max_tokens=0, patch=patch)["x"]
        np.testing.assert_array_equal(both["x"][row, : len(alone)], alone)


@pytest.mark.parametrize(
    "target",
    [f"{NAME}[1]", f"{NAME}[-1]", f"{NAME}[6]+", f"{NAME}+", f"{NAME}[4:]+", f"{NAME}[2:7]", f"{HEADS}[1,5:]"],
)
def test_generation_with_a_cache_is_as_scoring_the_whole_text(target):
    """A position counts from the start of the text, and one of the text to come is changed when it is computed."""
    vector = np.cos(np.arange(64 if NAME in target else 16, dtype=np.float32))
    made = attnkit.decode(TEXT, model=STORY, max_tokens=6, emit="logits", patch={target: vector})
    text = [*traced()["ids"], *made["ids"]]
    absolute = target.replace("-1", "4")
    whole = attnkit.decode(model=STORY, ids=np.array(text), max_tokens=0, emit="logits", patch={absolute: vector})
    np.testing.assert_allclose(made["x"], whole["x"][-7:-1], atol=1e-4)
    plain = attnkit.decode(TEXT, model=STORY, max_tokens=6, emit="logits")["x"]
    assert np.abs(plain - made["x"]).max() > 1e-3


@pytest.mark.parametrize("target", [f"{NAME}[-1]", f"{NAME}[3:]+", NAME, f"{HEADS}[1]"])
def test_the_trace_of_a_generated_text_has_the_patch(target, tmp_path):
    path, name = str(tmp_path / "run.npz"), target.partition("[")[0]
    values = traced(OTHER)[name] if target == name else np.ones(traced()[name].shape[-1], np.float32)
    made = attnkit.decode(TEXT, model=STORY, max_tokens=4, emit="logits", patch={target: values}, trace=path)
    trace = formats.load(path)
    np.testing.assert_allclose(trace["logits"][4:8], made["x"], atol=1e-4)
    if target == NAME:
        np.testing.assert_array_equal(trace[NAME][:5], values)


def test_a_tensor_of_the_prompt_is_for_the_prompt_alone():
    patch = {NAME: traced(OTHER)[NAME]}
    made = attnkit.decode(TEXT, model=STORY, max_tokens=3, emit="logits", patch=patch)
    np.testing.assert_allclose(made["x"][0], scored(TEXT, patch=patch)[-1], atol=1e-4)
    assert len(made["ids"]) == 3


def test_logits_and_beams_are_patched_while_decoding():
    word = int(attnkit.embed(" fox", model=STORY)["ids"][0])
    patch = {f"logits[6,{word}]+": np.array(1000.0)}
    for beam in (None, 3):
        made = attnkit.decode(TEXT, model=STORY, max_tokens=4, beam=beam, patch=patch)
        assert made["ids"].reshape(-1)[2] == word


def test_positions_of_a_cache_are_counted_and_not_computed_again(tmp_path):
    path = str(tmp_path / "cache.npz")
    attnkit.decode(TEXT, model=STORY, max_tokens=0, cache_out=path)
    vector = np.cos(np.arange(64, dtype=np.float32))
    patch = {f"{NAME}[6]": vector}
    cached = attnkit.decode(" was a little", model=STORY, max_tokens=0, emit="logits", cache_in=path, patch=patch)
    whole = scored(f"{TEXT} was a little", patch=patch)
    np.testing.assert_allclose(cached["x"][-1], whole[-1], atol=1e-4)
    with pytest.raises(UsageError, match=r"--patch: .*\[2\] selects nothing: the run computes positions 4 to 7"):
        attnkit.decode(" was a little", model=STORY, max_tokens=0, cache_in=path, patch={f"{NAME}[2]": vector})


def test_the_decoder_of_a_translator_is_patched_in_its_cross_attention():
    source, name = "le chat noir dort", "decoder.1.cross.weights"
    plain = attnkit.decode(source, model=TRANSLATOR)
    row = np.eye(5, dtype=np.float32)[1]  # all on ▁chat
    patched = attnkit.decode(source, model=TRANSLATOR, patch={f"{name}[:,:,▁noir]": np.zeros(()), f"{name}": row})
    assert plain.labels["text"] != patched.labels["text"]
    score = attnkit.decode(source, model=TRANSLATOR, score="the cat", patch={f"{name}[:,1]": row}, emit="logits")
    assert np.isfinite(score["x"]).all()


def test_heads_at_positions_are_ablated():
    made = encoded(ablate=("decoder.1.self[2,1:3]", "0"))[HEADS]
    expected = traced()[HEADS].copy()
    expected[2, 1:3] = expected[0] = 0
    np.testing.assert_array_equal(made, expected)


def test_the_mean_of_a_head_takes_its_place(tmp_path):
    texts, path = [TEXT, OTHER, "The fox"], str(tmp_path / "heads.npz")
    runs = [encoded(text)[HEADS].astype(np.float64) for text in texts]
    mean = np.concatenate(runs, axis=1).mean(axis=1)

    process.run("encode", "--model", STORY, "--lines", "--keep", "*.heads", *texts, "-o", path)
    expected = traced()[HEADS].copy()
    expected[1:3] = mean[1:3, None]
    expected[0, 2] = mean[0]
    ablate = ("decoder.1.self:1:3", "decoder.1.self[0,2]")
    for given in (path, {HEADS: mean}, {"decoder.1.self.heads": np.concatenate(runs, axis=1)}):
        np.testing.assert_allclose(encoded(ablate=ablate, mean=given)[HEADS], expected, rtol=0, atol=1e-6)
    batch = mean_heads([encoded(texts)], "batch")
    np.testing.assert_allclose(batch[HEADS], mean, rtol=0, atol=1e-6)
    made = attnkit.decode(TEXT, model=STORY, max_tokens=4, emit="logits", ablate=ablate[0], mean=path)
    text = np.array([*traced()["ids"], *made["ids"]])
    whole = attnkit.decode(model=STORY, ids=text, max_tokens=0, emit="logits", ablate=ablate[0], mean=path)
    np.testing.assert_allclose(made["x"], whole["x"][-5:-1], atol=1e-4)


def test_a_patch_in_python_is_an_array_a_tensor_or_a_record_with_it():
    one = scored(TEXT, patch={f"{NAME}[-1]": traced(OTHER)[NAME]})
    assert not np.array_equal(one, scored(TEXT))
    for value in (traced(OTHER), traced(OTHER).tensors[NAME], Record({"x": traced(OTHER)[NAME]})):
        np.testing.assert_array_equal(scored(TEXT, patch={f"{NAME}[-1]": value}), one)
    with pytest.raises(DataError, match=f"no tensor '{NAME}'"):
        scored(TEXT, patch={NAME: Record({"y": np.ones(3)})})
    with pytest.raises(UsageError, match="--patch: expected an array of numbers, got dtype <U7"):
        scored(TEXT, patch={NAME: "run.npz"})


@pytest.mark.parametrize(
    ("patch", "problem"),
    [
        ({f"{NAME}[9]": 0}, r"--patch: index 9 is outside axis token of size 5"),
        ({f"{HEADS}[4]": 0}, r"--patch: index 4 is outside axis head of size 4"),
        ({f"{NAME}[5:]": 0}, r"--patch: .*\[5:\] selects nothing: the run computes positions 0 to 4"),
        ({f"{NAME}[0,0,0]": 0}, r"--patch: 3 indices for decoder.1.self.residual of shape \(5, 64\)"),
        ({f"{NAME}[Ġsea]": 0}, r"--patch: axis token of decoder.1.self.residual has no label 'Ġsea' \(it has Once, "),
        ({f"{NAME}[1]": np.ones(3)}, r"--patch: shape \(3,\) for decoder.1.self.residual\[1\] of shape \(64,\)"),
        ({f"{NAME}[:2]+": np.ones((3, 63))}, r"--patch: shape \(3, 63\) for .*\[:2\] of shape \(2, 64\)"),
        ({f"{NAME}[1": 0}, r"--patch: 'decoder.1.self.residual\[1' is not NAME or NAME\[SLICE\]"),
        ({f"{NAME}[]": 0}, r"--patch: .* expected a slice such as 0,:,2:5 in the brackets"),
        ({"decoder.1.self.residul[1]": 0}, "the run has no intermediate '.*'; did you mean decoder.1.self.residual"),
        ({"decoder.1.self.residul[1]+": 0}, "the run has no intermediate '.*'; did you mean decoder.1.self.residual"),
    ],
)
def test_what_cannot_be_patched(patch, problem):
    patch = {target: np.asarray(values, np.float32) for target, values in patch.items()}
    with pytest.raises((UsageError, DataError), match=problem):
        encoded(patch=patch)
    with pytest.raises((UsageError, DataError), match=problem):
        scored(TEXT, patch=patch)


def test_a_position_that_generation_does_not_reach_is_an_error():
    with pytest.raises(UsageError, match=r"--patch: .*\[40\] selects nothing: the run computes positions 0 to 6"):
        attnkit.decode(TEXT, model=STORY, max_tokens=3, patch={f"{NAME}[40]": np.zeros(64)})
    with pytest.raises(UsageError, match="--patch: index 4 is outside axis head of size 4"):
        attnkit.decode(TEXT, model=STORY, max_tokens=3, patch={f"{HEADS}[4]": np.zeros(16)})


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"ablate": "decoder.1.self[4]"}, "--ablate: decoder.1.self has heads 0 to 3, not 4"),
        ({"ablate": "decoder.1.self[0,9]"}, "--ablate: index 9 is outside axis query of size 5"),
        ({"ablate": "decoder.1.self[0,1,2]"}, r"--ablate: expected LAYER\[HEADS\] or LAYER\[HEADS,POSITIONS\]"),
        ({"ablate": "decoder.1.self[Ġtime]"}, r"--ablate: expected LAYER\[HEADS\]"),
        ({"mean": {HEADS: np.ones((4, 16))}}, "--mean: needs --ablate"),
        ({"ablate": "decoder.2.self:0", "mean": {HEADS: np.ones((4, 16))}}, "--mean: no 'decoder.2.self.heads'"),
        ({"ablate": "decoder.1.self:0", "mean": {HEADS: np.ones((3, 16))}}, "has 3 heads .expected 4"),
        ({"ablate": "decoder.1.self:0", "mean": {HEADS: np.ones((4, 15))}}, r"--ablate: shape \(15,\)"),
        ({"ablate": "decoder.1.self:0", "mean": {"x": np.ones(3)}}, "--mean: no heads to average .it has x.; encode"),
        ({"ablate": "decoder.1.self:0", "mean": {HEADS: np.ones(3)}}, r"--mean: .* \(3,\): expected \(head, query"),
        ({"ablate": "decoder.1.self:0", "mean": {HEADS: np.ones((2, 4, 5, 16))}}, "does not say what is padding"),
        ({"ablate": "decoder.1.self:0", "mean": {HEADS: np.ones((4, 0, 16))}}, "expected .head, query, head_dim"),
    ],
)
def test_what_cannot_be_ablated(values, problem):
    with pytest.raises((UsageError, DataError), match=problem):
        encoded(**values)


def test_the_records_of_a_mean_have_the_same_heads():
    one, two = ({f"{name}.heads": np.ones((2, 1, 3))} for name in ("a", "b"))
    with pytest.raises(DataError, match=r"f: a\.heads is in some of its records only"):
        mean_heads([Record(one), Record(two)], "f")
    with pytest.raises(DataError, match=r"f: a\.heads: heads \(4, 3\) after heads \(2, 3\)"):
        mean_heads([Record(one), Record({"a.heads": np.ones((4, 1, 3))})], "f")
