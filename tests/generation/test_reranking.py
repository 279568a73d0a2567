"""Rerankers: documents sorted by a query, with the scores of sentence-transformers, model cards and mxbai-rerank."""

import json
import shutil
import warnings

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit.errors import DataError, UsageError
from attnkit.generation.answer_prompts import PROMPTS
from attnkit.generation.options import RERANKERS
from attnkit.generation.reranking import PublishedPrompt
from tests import process
from tests.drawing import draw_tensors
from tests.places import REFERENCES, folder

FOLDER = REFERENCES / "rerankers"
FROZEN = json.loads((FOLDER / "rerankers.json").read_text())
QUERY, DOCUMENTS = FROZEN["query"], FROZEN["documents"]
BERT = REFERENCES / "models" / "bert-rank"  # whose tokenizer the cross-encoders have
OWN = {"tokenizer_class": "Qwen2Tokenizer", "pad_token": "<|endoftext|>", "eos_token": "<|im_end|>"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A function that writes the folder of a case once."""
    known = {}

    def write(name):
        if name not in known:
            case, known[name] = FROZEN["cases"][name], tmp_path_factory.mktemp(name)
            write_reranker(known[name], case["model"], case["files"])
        return known[name]

    return write


def write_reranker(folder, model, files):
    kind = FROZEN["models"][model]
    tensors = draw_tensors(kind["config"]["model_type"], kind["shapes"])
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    place = BERT if model == "bert" else FOLDER
    shutil.copy(place / "tokenizer.json", folder)
    own = json.loads((BERT / "tokenizer_config.json").read_text()) if model == "bert" else OWN
    for name, content in ({"config.json": {}, "tokenizer_config.json": own} | files).items():
        (folder / name).parent.mkdir(exist_ok=True)
        content = kind["config"] | content if name == "config.json" else content
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def rerank(folder, documents=DOCUMENTS, query=QUERY, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attnkit.decode(documents, model=str(folder), rerank=query, **options)


@pytest.mark.parametrize("name", FROZEN["cases"])
def test_scores_are_those_of_the_library(name, place):
    case = FROZEN["cases"][name]
    logits, scores = np.array(case["logits"]), np.array(case["scores"])
    order = np.argsort(-logits, kind="stable")
    record = rerank(place(name), instruction=case["instruction"], dtype="float64")
    assert record["rows"].tolist() == order.tolist()
    assert record.labels["rows"] == [DOCUMENTS[at] for at in order]
    np.testing.assert_allclose(record["logits"], logits[order], rtol=0, atol=1e-10)
    np.testing.assert_allclose(record["x"], scores[order], rtol=0, atol=1e-10)
    single = rerank(place(name), instruction=case["instruction"])
    assert single["x"].dtype == np.float32
    np.testing.assert_allclose(single["logits"], logits[single["rows"]], rtol=0, atol=5e-6)


def test_documents_are_sorted_by_logits_where_scores_are_rounded_alike(place, tmp_path):
    """The sigmoid of 20 and of 30 is 1 in float32: ties would keep the order of the lines."""
    shutil.copytree(place("cross"), tmp_path, dirs_exist_ok=True)
    weights = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    bias, logits = weights["classifier.bias"], FROZEN["cases"]["cross"]["logits"]
    weights["classifier.weight"] = np.float32(1e4) * weights["classifier.weight"]
    weights["classifier.bias"] = np.float32(20 - 1e4 * (min(logits) - bias))  # all are 20 or more
    safetensors.numpy.save_file(weights, tmp_path / "model.safetensors")
    record = rerank(tmp_path)
    assert (record["x"] == 1).all() and (np.diff(record["logits"]) < 0).all()
    assert record["rows"].tolist() == np.argsort(-np.array(FROZEN["cases"]["cross"]["logits"])).tolist()


def test_top_is_how_many_documents_are_kept(place):
    whole, best = rerank(place("cross")), rerank(place("cross"), top=2)
    assert best["rows"].tolist() == whole["rows"][:2].tolist() and best["x"].tolist() == whole["x"][:2].tolist()
    assert best.labels["rows"] == whole.labels["rows"][:2]
    assert rerank(place("cross"), top=99)["rows"].shape == (len(DOCUMENTS),)


def test_lines_are_documents_and_text_is_printed_best_first(place):
    data = "".join(f"{line}\n" for line in DOCUMENTS).encode()
    command = ("decode", "--model", str(place("qwen3")), "--rerank", QUERY, "-q")
    expected = [DOCUMENTS[at] for at in rerank(place("qwen3"))["rows"]]
    done = process.run(*command, "--emit", "text", "--top", "3", stdin=data)
    assert (done.code, done.out.decode().splitlines()) == (0, expected[:3])
    rows = process.run(*command, "--top", "2", "-f", "csv", stdin=data).out.decode().splitlines()
    score, logit, row, document = rows[1].split(",", 3)
    assert (rows[0], row, document) == ("score,logit,row,document", "2", f'"{expected[0]}"')
    assert (float(score), float(logit)) == pytest.approx((0.593988, 0.380477), abs=1e-5)
    record = json.loads(process.run(*command, "-f", "json", stdin=data).out)
    assert record["labels"]["rows"] == expected and record["tensors"]["rows"]["data"][0] == 2
    assert process.run(*command, "--emit", "logits", "-f", "npy", stdin=data).code == 0


def test_the_rows_of_near_keep_their_numbers(place):
    """encode | near | decode --rerank: the documents are the labels of the rows."""
    rows = np.array([5, 0, 3])
    near = attnkit.Record({"x": np.ones(3), "rows": rows}).with_tensors({}, {"rows": [DOCUMENTS[at] for at in rows]})
    found, every = rerank(place("stated"), near), rerank(place("stated"))
    kept = [at for at in every["rows"].tolist() if at in rows]
    assert found["rows"].tolist() == kept == [0, 3, 5]
    assert found["x"].tolist() == [every["x"][every["rows"].tolist().index(at)] for at in kept]


def test_pieces_are_cut_to_their_share_of_the_room():
    """A query of at most three quarters of the room, and a document of what is left."""
    prompt = PROMPTS["mxbai-rerank-v2"]
    judge = PublishedPrompt.__new__(PublishedPrompt)
    judge.prompt, judge.query, judge.instruction, judge.room, judge.cut = prompt, "q " * 30, "", 20, 0
    judge.encode = lambda text: [len(word) for word in text.replace("\n", " newline ").split()]
    [(ids, types)] = judge.inputs(["d " * 30])
    fixed = [len(judge.encode(piece.text)) for piece in prompt.pieces if not piece.share]
    assert len(ids) == sum(fixed) + 20 and types is None and judge.cut == 1
    assert ids[fixed[0] :][:20] == [6, *[1] * 14, 7, 9, 1, 1, 1]  # query: and 14 words, a new line, document: and 3


def test_an_instruction_is_written_as_the_reranker_reads_it():
    forms = {name: prompt.form.format("find it") for name, prompt in PROMPTS.items()}
    assert (*forms,) == RERANKERS
    assert forms == {"qwen3-reranker": "find it", "mxbai-rerank-v2": "instruction: find it\n"}


def without(name, *documents, **options):
    return attnkit.decode([*documents], model=folder(name), rerank="the cat", **options)


def test_models_that_are_no_rerankers():
    for name, problem in {
        "bert-sequence": r"--rerank: needs a reranker: this one has \d labels",
        "bert-mlm": "--rerank: needs a reranker, which this bert model is not",
        "marian": "--rerank: needs a reranker, which this marian model is not",
        "gpt2": r"--rerank: the folder of this gpt2 model does not say how it judges a document; --reranker qwen3-",
    }.items():
        with pytest.raises(UsageError, match=problem):
            without(name, "a")
    with pytest.raises(UsageError, match=r"--instruction: needs a reranker that generates text"):
        without("bert-rank", "a", instruction="x")
    with pytest.raises(DataError, match=r"no documents: expected TEXT, lines, or the record of near"):
        attnkit.decode(attnkit.Record({"x": np.ones(2)}), model=folder("bert-rank"), rerank="a")


@pytest.mark.parametrize("given", [{"rerank": "a"}, {}])
def test_a_decoder_with_the_head_of_a_classifier_is_named(tmp_path, given):
    shutil.copytree(folder("qwen2"), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    named = {"architectures": ["Qwen2ForSequenceClassification"], "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config | named))
    weights = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    weights["score.weight"] = weights.pop("lm_head.weight", np.ones((1, config["hidden_size"]), np.float32))[:1]
    safetensors.numpy.save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match=r"--model: this qwen2 model is a Qwen2ForSequenceClassification, whose head"):
        attnkit.decode(["the cat"], model=str(tmp_path), **given)


def test_the_assumed_prompt_is_named_and_another_one_can_be_chosen(place):
    with pytest.warns(match="a qwen2 model reads the prompt of mxbai-rerank-v2"):
        assumed = attnkit.decode(DOCUMENTS[:2], model=str(place("mxbai")), rerank=QUERY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = attnkit.decode(DOCUMENTS[:2], model=str(place("mxbai")), rerank=QUERY, reranker="mxbai-rerank-v2")
        other = attnkit.decode(DOCUMENTS[:2], model=str(place("mxbai")), rerank=QUERY, reranker="qwen3-reranker")
    assert chosen["x"].tolist() == assumed["x"].tolist()
    assert other["x"].tolist() != chosen["x"].tolist() and ((other["x"] > 0) & (other["x"] < 1)).all()


def test_documents_that_are_cut_are_counted(place):
    with pytest.warns(match=r"1 document is cut to fit the model"):
        attnkit.decode(DOCUMENTS, model=str(place("stated-cut")), rerank=QUERY)
    with pytest.warns(match=r"2 documents are cut to fit the model"):
        attnkit.decode(DOCUMENTS[-1:] * 2, model=str(place("cross-cut")), rerank=QUERY)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"1_LogitScore/config.json": {"true_token_id": 999}}, "token 999 of the answer is not in the vocabulary"),
        ({"1_LogitScore/config.json": {}}, "true_token_id"),
        ({"chat_template.jinja": "{{ messages[0].content }}"}, "leaves out the messages of the roles query and docum"),
        (
            {"config_sentence_transformers.json": {"activation_fn": "torch.nn.Tanh"}},
            r"activation_fn 'torch.nn.Tanh' is",
        ),
        ({"modules.json": [{"type": "a.LogitScore", "path": "../b"}]}, r"path '../b' is not within the folder"),
    ],
)
def test_folders_that_do_not_fit(files, problem, place, tmp_path):
    write_reranker(tmp_path, "qwen3", FROZEN["cases"]["stated"]["files"] | files)
    with pytest.raises(DataError, match=problem):
        rerank(tmp_path, DOCUMENTS[:1])
