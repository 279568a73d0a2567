"""Models of late interaction give the vectors of tokens that PyLate and sentence-transformers make, frozen."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit.checkpoints.late_interaction import Expansion, LateInteraction
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.tokenizers.tokens import Tokenizer, Tokens
from tests.places import REFERENCES
from tests.sentence_folders import LATE, write_json, write_late, write_stanford

FROZEN = json.loads((REFERENCES / "late_interaction.json").read_text())
TEXTS = {"query": FROZEN["queries"], "document": FROZEN["documents"]}
LIBRARIES = [name for name in FROZEN if " " in name]
NAMES = (*LATE, "stanford")
EXACT, CLOSE = 1e-8, 2e-6


def write(name, folder, dtype=np.float32):
    return str(write_stanford(folder, dtype) if name == "stanford" else write_late(name, folder, dtype))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("late")
    return {name: write(name, place / name) for name in NAMES} | {
        f"{name} in float64": write(name, place / f"{name}64", np.float64) for name in NAMES
    }


def encode(folder, text, task, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttnkitWarning)
        return attnkit.encode(text, model=folder, task=task, **options)


@pytest.mark.parametrize("task", TEXTS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_vectors_are_those_of_the_library(folders, library, task):
    folder = folders[f"{library.partition(' ')[0]} in float64"]
    expected = FROZEN[library]["queries" if task == "query" else "documents"]
    for text, vectors in zip(TEXTS[task], expected, strict=True):
        found = encode(folder, text, task, dtype="float64")["x"]
        assert found.shape == np.shape(vectors)
        np.testing.assert_allclose(found, vectors, rtol=0, atol=EXACT, err_msg=text)


@pytest.mark.parametrize("library", LIBRARIES)
def test_scores_are_those_of_the_library(folders, library):
    folder = folders[library.partition(" ")[0]]
    index = encode(folder, TEXTS["document"], "document", batch=True)
    queries = encode(folder, TEXTS["query"], "query", batch=True)
    result = attnkit.near(queries, index=index, metric="maxsim", top=len(TEXTS["document"]))
    expected = np.array(FROZEN[library]["scores"])
    found = np.empty_like(expected)
    np.put_along_axis(found, result["rows"], result["x"], axis=1)
    np.testing.assert_allclose(found, expected, rtol=CLOSE)
    assert result["x"].tolist() == np.sort(result["x"], axis=1)[:, ::-1].tolist()
    assert result.labels["rows"][0] == [TEXTS["document"][at] for at in result["rows"][0]]


@pytest.mark.parametrize("name", NAMES)
def test_lines_batches_and_texts_alone_have_the_same_bits(folders, name):
    for task, texts in TEXTS.items():
        whole = encode(folders[name], texts, task, batch=True)
        alone = [encode(folders[name], text, task) for text in texts]
        for row, mask, ids, one in zip(whole["x"], whole["mask"][:, 0], whole["ids"], alone, strict=True):
            np.testing.assert_array_equal(row[mask], one["x"])
            np.testing.assert_array_equal(ids[mask], one["ids"])
            assert not row[~mask].any()


def test_all_vectors_of_a_query_count_although_no_token_attends_to_the_fill(folders):
    """Twelve vectors of a query of one letter; the states of the letter do not depend on how many there are."""
    record = encode(folders["pylate"], "b", "query", keep=["encoder.0.self.weights"])
    assert record.labels["token"] == ["[CLS]", "[Q] ", "b", "[SEP]", *["[MASK]"] * 8]
    assert record["x"].shape == (12, 8)
    assert not record["encoder.0.self.weights"][..., 4:].any() and record["encoder.0.self.weights"][:, 4:, :4].all()


def test_a_document_has_no_vector_of_what_is_skipped(folders):
    record = encode(folders["pylate"], "the cat sat on a mat.", "document")
    assert record.labels["token"] == ["[CLS]", "[D] ", "cat", "sat", "on", "mat", "[SEP]"]
    query = encode(folders["pylate"], "the cat", "query")
    assert query.labels["token"][:5] == ["[CLS]", "[Q] ", "the", "cat", "[SEP]"]


def test_the_marker_is_a_token_that_ends_with_a_space(folders, tmp_path):
    assert encode(folders["pylate"], "b", "query")["ids"][1] == 65
    folder = write("pylate", tmp_path / "folder")
    settings = LATE["pylate"][2]["config_sentence_transformers.json"] | {"query_prefix": "[Q]"}
    write_json(tmp_path / "folder" / "config_sentence_transformers.json", settings)
    with pytest.raises(DataError, match=r"the tokenizer has no token '\[Q\]', which marks texts"):
        encode(folder, "b", "query")


def test_unknown_spellings_are_skipped_as_the_unknown_token_by_pylate_alone():
    tokenizer = Tokenizer(lambda text: Tokens([text]), lambda: ["[UNK]", "a", "."], special={"unk": 0})
    late = LateInteraction(skipped=[".", "?"])
    assert late.skipped_ids(tokenizer) == {2}
    assert LateInteraction(skipped=[".", "?"], skips_unknown=True).skipped_ids(tokenizer) == {0, 2}


def test_marks_and_fills_by_hand():
    tokenizer = Tokenizer(
        lambda text: Tokens([text]), lambda: ["[M]", "[CLS]", "a", "[Q]", "[SEP]"], special={"mask": 0}
    )
    tokens = Tokens(["[CLS]", "a", "[SEP]"], [1, 2, 4])
    late = LateInteraction({"query": "[Q]"}, {"query": 6}, Expansion(6), skipped=["a"])
    marked = late.mark(tokens, "query", tokenizer)
    assert marked.tokens.ids == [1, 3, 2, 4, 0, 0] and marked.tokens.spellings[4:] == ["[M]", "[M]"]
    assert [*marked.attended] == [True] * 4 + [False] * 2 and all(marked.counts)
    document = late.mark(tokens, "document", tokenizer)
    assert document.tokens.ids == [1, 2, 4] and [*document.counts] == [True, False, True] and all(document.attended)
    assert late.most("query") == 5 and late.most("document") is None
    attends = LateInteraction(expansion=Expansion(5, attends=True)).mark(tokens, "query", tokenizer)
    assert attends.tokens.ids == [1, 2, 4, 0, 0] and all(attends.attended)
    padded = replace(tokenizer, pads_left=True)
    on_left = LateInteraction(expansion=Expansion(5), skipped=["a"], skips_in=["query"]).mark(tokens, "query", padded)
    assert on_left.tokens.ids == [0, 0, 1, 2, 4] and on_left.tokens.spellings[:2] == ["[M]", "[M]"]
    assert [*on_left.attended] == [False] * 2 + [True] * 3
    assert [*on_left.counts] == [True, True, True, False, True]
    at_least = LateInteraction(expansion=Expansion(5, is_least=True)).mark(tokens, "query", padded)
    assert at_least.tokens.ids == [1, 2, 4, 0, 0]
    with pytest.raises(DataError, match="neither a mask token nor an end token"):
        late.mark(tokens, "query", Tokenizer(lambda text: Tokens([text]), lambda: ["", "", "", "[Q]"]))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "--task: needs query or document"),
        ({"task": "query", "dim": 3}, "--dim: the model has a vector for each token"),
        ({"task": "query", "pair": "b"}, "a model of late interaction takes one TEXT at a time"),
        ({"task": "query", "layers": "1:"}, "--layers from A > 0 needs x from a record"),
    ],
)
def test_what_such_a_model_does_not_take(folders, options, problem):
    with pytest.raises(UsageError) as caught:
        attnkit.encode("a", model=folders["pylate"], **options)
    assert problem in str(caught.value)


def test_states_need_no_task(folders):
    record = attnkit.encode("a b", model=folders["pylate"], pool="none")
    assert record["x"].shape == (4, 24)


def test_the_history_and_the_folder_say_what_is_done(folders):
    modules = encode(folders["pylate"], "a", "query").history[-1]["modules"]
    assert modules[1:] == [
        "late interaction: marked query '[Q] ', document '[D] ', queries of 12 tokens, 3 tokens skipped in documents",
        "Dense: 24 to 8, identity, of each token", "Normalize: to length 1, of each token",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"query_length": "long"}, "query_length is 'long' (expected a whole number"),
        ({"skiplist_words": [3]}, "skiplist_words is not a list of strings"),
        ({"query_prefix": 3}, "query_prefix is '3' (expected a string)"),
    ],
)
def test_settings_that_cannot_be_read(changes, problem, tmp_path):
    folder = write("pylate", tmp_path / "folder")
    settings = LATE["pylate"][2]["config_sentence_transformers.json"] | changes
    write_json(tmp_path / "folder" / "config_sentence_transformers.json", settings)
    with pytest.raises(DataError) as caught:
        encode(folder, "b", "query")
    assert problem in str(caught.value)


def test_a_folder_of_colbert_needs_its_matrix(tmp_path):
    folder = write("stanford", tmp_path / "folder")
    tensors = safetensors.numpy.load_file(tmp_path / "folder" / "model.safetensors")
    safetensors.numpy.save_file({name: one for name, one in tensors.items() if name != "linear.weight"},
                                tmp_path / "folder" / "model.safetensors")  # fmt: skip
    with pytest.raises(DataError, match=r"tensor 'linear.weight' has shape \(\)"):
        encode(folder, "b", "query")


def test_a_record_of_ids_or_states_has_vectors_of_all_its_tokens(folders):
    """As the last stage of a printed pipeline."""
    text = encode(folders["pylate"], "the cat", "document")
    states = attnkit.encode(attnkit.Record({"ids": text["ids"]}), model=folders["pylate"], pool="none")
    vectors = attnkit.encode(states, model=folders["pylate"], layers="2:")
    np.testing.assert_allclose(np.linalg.norm(vectors["x"], axis=1), 1, rtol=1e-6)
    assert vectors["x"].shape == (4, 8) and vectors.axes_of("x") == ("token", "model")
    whole = attnkit.encode(attnkit.Record({"ids": np.array([[2, 65, 5, 3], [2, 65, 3, 0]]),
                                           "lengths": np.array([4, 3])}), model=folders["pylate"])  # fmt: skip
    assert whole["x"].shape == (2, 4, 8) and "mask" in whole


def test_the_engine_computes_the_same(folders):
    pytest.importorskip("jax")
    for task in TEXTS:
        here, there = (encode(folders["pylate"], "a cat", task, **options)["x"] for options in ({}, {"engine": "jax"}))
        np.testing.assert_allclose(there, here, rtol=0, atol=1e-5)
