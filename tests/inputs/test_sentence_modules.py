"""Folders of sentence-transformers and model2vec give the vectors that these libraries make, frozen."""

import json
import shutil
import warnings

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.matryoshka import says_matryoshka
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.interpret.model_sheet import describe_model
from tests.places import REFERENCES
from tests.sentence_folders import (
    FOLDERS,
    MODEL2VEC,
    NORMALIZE,
    dense,
    old_pooling,
    write_json,
    write_model2vec,
    write_sentences,
)

FROZEN = json.loads((REFERENCES / "sentence_modules.json").read_text(encoding="utf-8"))
TEXTS = FROZEN["texts"]
WHOLE = "sentence_embedding"
EXACT, CLOSE = 1e-8, 1e-6  # in float64, of numbers with nine digits; in float32
ASKED = {
    "plain": {},
    "query": {"task": "query"},
    "document": {"task": "document"},
    "cut": {"dim": 5, "force": True},
    "unit": {"dim": 5, "force": True, "normalize": True, "pool": "folder"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    place = tmp_path_factory.mktemp("sentences")
    written = {name: str(write_sentences(name, place / name)) for name in FOLDERS}
    wide = {f"{name} in float64": place / f"{name}64" for name in FOLDERS}
    written |= {name: str(write_sentences(name.partition(" ")[0], path, np.float64)) for name, path in wide.items()}
    return written | {name: str(write_model2vec(name, place / name)) for name in MODEL2VEC}


def encode(folder, text, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttnkitWarning)
        return attnkit.encode(text, model=folder, **options)["x"]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("name", FOLDERS)
def test_vectors_are_those_of_sentence_transformers(folders, name, asked):
    for text, expected in zip(TEXTS, FROZEN[name][asked], strict=True):
        found = encode(folders[f"{name} in float64"], text, dtype="float64", **ASKED[asked])
        assert found.shape == (len(expected),)
        np.testing.assert_allclose(found, expected, rtol=0, atol=EXACT, err_msg=text)


@pytest.mark.parametrize("name", FOLDERS)
def test_vectors_in_float32_are_those_of_float64_but_for_rounding(folders, name):
    for text, expected in zip(TEXTS, FROZEN[name]["plain"], strict=True):
        atol = 2 * CLOSE * max(1, np.abs(expected).max())
        np.testing.assert_allclose(encode(folders[name], text), expected, rtol=0, atol=atol, err_msg=text)


@pytest.mark.parametrize("name", FOLDERS)
def test_texts_of_a_batch_have_the_vectors_that_they_have_alone(folders, name):
    whole = encode(folders[name], TEXTS, batch=True)
    for row, text in zip(whole, TEXTS, strict=True):
        np.testing.assert_array_equal(row, encode(folders[name], text))


@pytest.mark.parametrize("name", MODEL2VEC)
def test_vectors_of_model2vec_are_those_of_its_library(folders, name):
    """Among the texts is one with words that no piece spells, and one longer than `max_length`."""
    for text, expected in zip(TEXTS, FROZEN[name]["plain"], strict=True):
        np.testing.assert_allclose(encode(folders[name], text), expected, rtol=0, atol=CLOSE)


def test_model2vec_and_sentence_transformers_differ_in_unknown_words_and_long_texts():
    """Every text but the first has a comma or a letter that no piece spells; six tokens are the most of one folder."""

    def agree(name):
        pairs = zip(FROZEN[name]["plain"], FROZEN[name]["sentence-transformers"], strict=True)
        return [np.allclose(*pair, atol=CLOSE) for pair in pairs]

    assert (agree("potion"), agree("potion-mapped")) == ([True, False, False, False], [False] * 4)


def test_an_empty_text_is_zeros(folders):
    for name, expected in FROZEN["empty"].items():
        np.testing.assert_array_equal(encode(folders[name], ""), expected)
        assert not any(expected)


def test_what_model2vec_leaves_out_is_said(folders):
    with pytest.warns(AttnkitWarning, match="^1 of 2 tokens not in the vocabulary left out, as in model2vec$"):
        attnkit.encode("Why?", model=folders["potion"])
    with pytest.warns(AttnkitWarning, match="^a text is cut to 6 characters, of 22, as in model2vec$"):
        attnkit.encode("the cat sat on the mat", model=folders["potion-mapped"])
    with pytest.warns(AttnkitWarning, match="^a text is cut to 9 tokens, of 14$"):
        attnkit.encode("a b c d e f g h i a b c d e", model=folders["static"])


def test_a_static_model_reads_the_end_of_a_text_where_its_tokenizer_says_so(folders, tmp_path):
    shutil.copytree(folders["static"], tmp_path, dirs_exist_ok=True)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["truncation"] |= {"direction": "Left"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.warns(AttnkitWarning, match="^a text is cut to 9 tokens, of 14$"):
        found = attnkit.encode("a b c d e f g h i a b c d e", model=str(tmp_path))
    np.testing.assert_array_equal(found["x"], attnkit.encode("f g h i a b c d e", model=folders["static"])["x"])


def test_weights_belong_to_ids_and_not_to_rows(tmp_path):
    """Two ids share a row: 1 and 3 of the row (2, 4), and a half of the row (10, 0)."""
    tensors = {"embeddings": np.array([[2.0, 4], [10, 0]], np.float32), "mapping": np.array([0, 0, 1]),
               "weights": np.array([1, 3, 0.5], np.float32)}  # fmt: skip
    folder = tmp_path / "folder"
    write_model2vec("potion-mapped", folder)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    record = attnkit.encode(attnkit.Record({"ids": np.array([0, 1, 2])}), model=str(folder), keep=["encoder.embed"])
    np.testing.assert_array_equal(record["encoder.embed"], [[2, 4], [6, 12], [5, 0]])
    np.testing.assert_allclose(record["x"], np.array([13, 16]) / 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"mapping": np.array([0, 2, 1])}, r"tensor 'mapping' names row 2, and embeddings has 2 rows"),
        ({"mapping": np.array([-1, 0])}, r"tensor 'mapping' is no list of numbers of rows"),
        ({"mapping": np.array([0.0, 1])}, r"tensor 'mapping' is no list of numbers of rows"),
        (
            {"weights": np.ones(3, np.float32)},
            r"tensor 'weights' has shape \(3,\) \(expected \(2,\), a number for each",
        ),
        ({"embeddings": np.ones((2, 2), np.int64)}, r"is int64 \(2, 2\) \(expected floats or int8 \(rows, D\)\)"),
        ({"embeddings": None, "other": np.ones(2, np.float32)}, r"no tensor 'embedding.weight', nor 'embeddings'"),
    ],
)
def test_a_table_that_does_not_fit_is_an_error(tensors, problem, tmp_path):
    folder = write_model2vec("potion", tmp_path / "folder")
    stored = {"embeddings": np.ones((2, 2), np.float32)} | tensors
    kept = {name: one for name, one in stored.items() if one is not None}
    safetensors.numpy.save_file(kept, folder / "model.safetensors")
    with pytest.raises(DataError, match=problem):
        attnkit.encode("a", model=str(folder))


def test_the_cut_comes_after_the_normalization_and_before_the_option():
    """Unit vectors are shorter than 1 after the cut: the dot product is then no cosine."""
    cut, unit = (np.array(FROZEN["bge"][asked]) for asked in ("cut", "unit"))
    lengths = np.linalg.norm(cut, axis=1)
    assert (lengths < 0.9).all()
    np.testing.assert_allclose(unit, cut / lengths[:, None], atol=1e-8)


def test_a_folder_may_state_the_cut(folders):
    whole = encode(folders["every"], "a cat", dim=10)
    np.testing.assert_array_equal(encode(folders["every"], "a cat"), whole[:6])
    assert encode(folders["every"], "a cat", pool="mean").shape == (24,)  # of another pooling nothing is cut


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("bge", {"dim": 5}, "--dim: 5: nothing in the folder says that the model was trained for shorter vectors"),
        ("nomic", {"dim": 25}, "--dim: 25: the vectors have 24 numbers"),
        ("gemma", {"dim": 25, "force": True, "pool": "mean"}, "--dim: 25: the vectors have 24 numbers"),
        ("nomic", {"dim": 5, "pool": "none"}, "--dim: needs vectors of whole texts: --pool"),
        ("nomic", {"task": "query", "pool": "cls"}, "--task: needs a model whose folder has prompts"),
        ("nomic", {"force": True}, "--force: needs --dim N"),
        ("qwen", {"prompt": "topic"}, "--prompt: the folder has no prompt 'topic'"),
    ],
)
def test_a_cut_or_a_task_that_the_folder_does_not_allow(folders, name, options, problem):
    with pytest.raises(UsageError) as caught:
        attnkit.encode("a", model=folders[name], **options)
    assert problem in str(caught.value)


@pytest.mark.parametrize(("name", "dim"), [("nomic", 5), ("every", 4), ("potion", 5), ("potion-int8", 5)])
def test_what_says_that_vectors_may_be_cut(folders, name, dim):
    """The model card, truncate_dim of the folder, or the principal components of model2vec."""
    assert encode(folders[name], "a cat", dim=dim).shape == (dim,)


def test_the_link_in_every_card_of_sentence_transformers_says_nothing_of_the_model(tmp_path):
    link = "- [Introduction to Matryoshka Embedding Models](https://huggingface.co/blog/matryoshka): variable-size"
    for text, is_said in ((link, False), (f"{link}\n- loss:MatryoshkaLoss", True), ("trained with MRL", True)):
        (tmp_path / "README.md").write_text(text)
        assert says_matryoshka(str(tmp_path), {}) is is_said, text


def test_the_history_states_the_modules_in_their_order(folders):
    def modules(name, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AttnkitWarning)
            return attnkit.encode("a cat", model=folders[name], **options).history[-1].get("modules")

    assert modules("every") == [
        "Transformer", "Pooling: mean and cls of the tokens, without the prompt",
        "Dense: 48 to 10, tanh, plus its input", "Dense: 10 to 10, relu, plus its input",
        "LayerNorm: 10", "Normalize: to length 1", "first 6 numbers",
    ]  # fmt: skip
    assert modules("tokens")[1:3] == ["Dense: 24 to 8, tanh, of each token", "Normalize: to length 1, of each token"]
    assert modules("static") == ["StaticEmbedding", "Pooling: mean of the tokens", "Normalize: to length 1"]
    assert modules("every", pool="mean") is None
    assert modules("nomic", dim=5)[-1] == "first 5 numbers"


def test_a_dense_layer_has_tanh_unless_a_class_of_torch_is_named(tmp_path):
    folder = write_sentences("bge", tmp_path / "folder")

    def result(*modules):
        entries = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
        for number, (kind, config, shapes) in enumerate(modules, start=1):
            entries.append({"type": kind, "path": f"{number}"})
            write_json(folder / f"{number}" / "config.json", config)
            if shapes:
                tensors = {"linear.weight": np.eye(24, dtype=np.float32)}
                safetensors.numpy.save_file(tensors, folder / f"{number}" / "model.safetensors")
        write_json(folder / "modules.json", entries)
        return attnkit.encode("a", model=str(folder))["x"]

    plain = result(old_pooling("cls_token"))
    np.testing.assert_array_equal(result(old_pooling("cls_token"), dense(24, 24, False)), np.tanh(plain))
    with pytest.warns(AttnkitWarning, match=r"activation_function 'mine.ReLU' is not one of torch; Tanh is taken"):
        other = result(old_pooling("cls_token"), dense(24, 24, False, activation_function="mine.ReLU"))
    np.testing.assert_array_equal(other, np.tanh(plain))


@pytest.mark.parametrize(
    ("modules", "problem"),
    [
        ([NORMALIZE], "module 1 reads the vector of a text, before a Pooling makes one"),
        ([old_pooling("cls"), old_pooling("cls")], "module 2 is a second Pooling"),
        ([old_pooling("cls"), dense(24, 8, module_input_name="token_embeddings")],
         "module 2 reads the vectors of tokens, after a Pooling"),
        ([old_pooling("cls"), dense(24, 8, module_input_name="token_embeddings", module_output_name=WHOLE)],
         "module_input_name 'token_embeddings', module_output_name 'sentence_embedding' are not supported"),
        ([old_pooling("cls"), dense(23, 8)], "module 2 takes vectors of 23, and those before it are of 24"),
        ([("sentence_transformers.models.CNN", {}, {})], "module 1 is a 'sentence_transformers.models.CNN'"),
    ],
)  # fmt: skip
def test_modules_in_an_order_that_does_not_work(modules, problem, tmp_path, monkeypatch):
    monkeypatch.setitem(FOLDERS, "wrong", FOLDERS["bge"]._replace(modules=tuple(modules)))
    folder = write_sentences("wrong", tmp_path / "folder")
    with pytest.raises(DataError, match="^" + str(folder) + ".*" + problem):
        attnkit.encode("a", model=str(folder))


def test_the_facts_list_the_modules(folders):
    sheet = describe_model(open_checkpoint(folders["every"]))
    facts = dict(zip(sheet.labels["fact"], zip(sheet.labels["key"], sheet.labels["value"], strict=True), strict=True))
    assert facts["module 0"] == ("modules.json", "Transformer")
    assert facts["module 4"] == ("modules.json", "LayerNorm: 10")
    assert facts["kept numbers"] == ("config_sentence_transformers.json", "6")
    assert facts["prompts"][1] == "query 'search: ', document 'text: ' (default)"
    static = describe_model(open_checkpoint(folders["static"])).labels["fact"]
    assert {"width", "vocabulary", "module 1"} <= {*static} and not {"heads", "norm eps", "score scale"} & {*static}


def test_the_script_of_a_history_names_the_modules(folders):
    script = str(attnkit.history(attnkit.encode("a cat", model=folders["static"])))
    assert "\n# modules: StaticEmbedding; Pooling: mean of the tokens; Normalize: to length 1\n" in script
