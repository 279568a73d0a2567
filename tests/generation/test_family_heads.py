"""Heads of the text encoders beyond BERT, checked against transformers: texts, pairs, tokens, spans, answers, words."""

import re
import warnings

import numpy as np
import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import DataError, UsageError, counted
from tests.generation.family_heads import arrays, build_folder, frozen, head_folder

NAMES = [*frozen()]
SEQUENCES = [name for name in NAMES if name.endswith(("-sequence", "-mean"))]
TOKENS = [name for name in NAMES if name.endswith("-token")]
QUESTIONS = [name for name in NAMES if name.endswith("-question")]
PARTLY_FLOAT32 = ("modernbert", "deberta")  # inside, in the reference
STRATEGIES = ("none", "simple", "first", "average", "max")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder of each model."""
    path = tmp_path_factory.mktemp("heads")
    return {name: str(head_folder(path / name, name)) for name in NAMES}


def texts(name):
    """The texts of a model, each with its pair or None, its frozen row, and the names of its logits."""
    for number, row in enumerate(frozen()[name]["texts"]):
        first, second = (*row["text"], None)[:2]
        yield first, second, row, f"{name}:{number}"


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(folders, name):
    for first, second, row, place in texts(name):
        for dtype in ("float64", "float32")[: 1 + place.endswith(":0")]:
            states = attnkit.encode(first, model=folders[name], pair=second, dtype=dtype)
            record = attnkit.decode(states, model=folders[name], layer="head", emit="logits")
            assert record["ids"].tolist() == row["ids"]
            expected = arrays()[f"{place}.{'f64' if dtype == 'float64' else 'f32'}"]
            tolerance = 1e-5 if dtype == "float32" else 1e-6 if name.startswith(PARTLY_FLOAT32) else 1e-10
            np.testing.assert_allclose(record["x"], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", SEQUENCES)
def test_labels_are_those_of_the_pipeline(folders, name):
    for first, second, row, _ in texts(name):
        record = attnkit.decode(first, model=folders[name], pair=second)
        if "labels" in row:
            expected = [row["labels"][label] for label in record.labels["label"]]
            np.testing.assert_allclose(record["x"], expected, rtol=0, atol=1e-6)
        assert ("probs" in record) == (name != "camembert-sequence")


@pytest.mark.parametrize("name", TOKENS)
def test_spans_are_those_of_the_pipeline(folders, name):
    found = 0
    for text, _, row, _ in texts(name):
        for strategy in STRATEGIES:
            record = attnkit.decode(text, model=folders[name], aggregate=strategy)
            spans, expected = read_spans(record), row[strategy]
            assert [span[0] for span in spans] == [span[0] for span in expected]
            assert [span[2:] for span in spans] == [span[2:] for span in expected], strategy
            np.testing.assert_allclose([s[1] for s in spans], [s[1] for s in expected], rtol=0, atol=3e-6)
            assert record.labels["span"] == [text[start:end] for *_, start, end in expected]
            found += len(expected)
    assert found > 20


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_are_those_of_the_pipeline(folders, name):
    for question, text, row, _ in texts(name):
        record = attnkit.decode(text, model=folders[name], question=question, top=5)
        spans = [[words, *span[1:]] for words, span in zip(record.labels["span"], read_spans(record), strict=True)]
        assert [[one[0], *one[2:]] for one in spans] == [[one[0], *one[2:]] for one in row["answers"]]
        np.testing.assert_allclose([one[1] for one in spans], [one[1] for one in row["answers"]], rtol=0, atol=1e-6)


def read_spans(record):
    """The label, score, start and end of each span of a record."""
    names, best = record.labels["label"], record["x"].argmax(axis=-1) if len(record["x"]) else []
    rows = zip(best, record["x"], record["start"].tolist(), record["end"].tolist(), strict=True)
    return [[names[label], float(scores[label]), start, end] for label, scores, start, end in rows]


@pytest.mark.parametrize("name", [*SEQUENCES, *TOKENS])
def test_a_padded_batch_gives_what_each_text_gives_alone(folders, name):
    single = [first for first, second, *_ in texts(name) if second is None]
    batch = attnkit.decode(single, model=folders[name])
    for at, text in enumerate(single):
        one = attnkit.decode(text, model=folders[name])
        np.testing.assert_allclose(batch["logits"][at][: len(one["logits"])], one["logits"], rtol=0, atol=1e-5)


def test_a_masked_word_of_camembert(folders):
    ((text, _, row, place),) = texts("camembert-words")
    record = attnkit.decode(text, model=folders["camembert-words"])
    at = row["ids"].index(max(row["ids"]))  # <mask> is the last of the vocabulary
    best = int(arrays()[f"{place}.f64"][at].argmax())
    assert record["next"][at] == best
    filled = attnkit.decode(text, model=folders["camembert-words"], emit="text")
    assert filled == f"The cat{record.labels['vocab'][best].replace('▁', ' ')} on the mat."


def changed(tmp_path, name, config=None, head=None):
    """The folder of a model with other values in config.json, and other tensors in its head; None leaves one out."""
    one, start = frozen()[name], f"{name}:head:"
    tensors = {key.removeprefix(start): array for key, array in arrays().items() if key.startswith(start)}
    kept = {key: array for key, array in (tensors | (head or {})).items() if array is not None}
    path = build_folder(tmp_path / name, one["base"], one["prefix"], one["config"] | (config or {}), kept)
    return str(path)


def output_of(name):
    """The published name of the layer that gives the logits of a model."""
    return next(one for one in OUTPUTS if f"{name}:head:{one}.weight" in arrays())


OUTPUTS = ("classifier", "classifier.out_proj", "qa_outputs")


@pytest.mark.parametrize("name", [*SEQUENCES, *TOKENS, *QUESTIONS])
def test_a_head_that_the_folder_lacks(tmp_path, name):
    output = output_of(name)
    path = changed(tmp_path, name, head={f"{output}.weight": None, f"{output}.bias": None})
    family = open_checkpoint(path).config.family
    with pytest.raises(UsageError) as error:
        attnkit.decode("the cat", model=path)
    assert str(error.value) == f"--model: this {family} model has no head: it maps tokens to vectors"
    attnkit.encode("the cat", model=path)


@pytest.mark.parametrize("name", [*SEQUENCES, *TOKENS])
def test_labels_that_are_missing_or_disagree_with_the_head(tmp_path, name):
    rows = len(arrays()[f"{name}:head:{output_of(name)}.weight"])
    cases = [(None, "id2label is missing, so 2 labels"), ({str(n): "A" for n in range(7)}, "id2label names 7 labels")]
    for number, (labels, problem) in enumerate(cases):
        with pytest.raises(DataError) as error:
            open_checkpoint(changed(tmp_path / str(number), name, {"id2label": labels}))
        assert str(error.value).endswith(f"config.json: {problem}, and the classifier has {counted(rows, 'row')}")


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_longer_than_the_window(folders, name):
    config = open_checkpoint(folders[name]).config
    if not config.positions.longest:  # of DeBERTa, whose distances have no end
        assert attnkit.decode("the cat", model=folders[name], question="the " * 200)["x"].shape == (1, 1)
        return
    counts = []
    for number in (200, 201):
        with pytest.raises(DataError) as error:
            attnkit.decode("the cat", model=folders[name], question="the " * number)
        said = re.fullmatch(r"--question: the question is (\d+) tokens, and (.*)", str(error.value))
        assert said[2] == f"a window of question and text has {config.positions.longest}"
        counts.append(int(said[1]))
    each = counts[1] - counts[0]  # tokens of `the `
    fits = 200 + (config.positions.longest - 1 - counts[0]) // each
    with warnings.catch_warnings(action="ignore"):
        assert attnkit.decode("the cat", model=folders[name], question="the " * fits)["x"].shape == (1, 1)
    with pytest.raises(DataError):
        attnkit.decode("the cat", model=folders[name], question="the " * (fits + 1))


@pytest.mark.parametrize("name", TOKENS)
def test_a_configuration_that_disagrees_with_its_weights(tmp_path, name):
    output = output_of(name)
    weight = arrays()[f"{name}:head:{output}.weight"]
    path = changed(tmp_path, name, head={f"{output}.weight": weight[:, 1:]})
    with pytest.raises(DataError) as error:
        open_checkpoint(path)
    rows, columns = weight.shape
    problem = f"tensor '{output}.weight' (w of head) has shape ({rows}, {columns - 1}) (expected ({rows}, {columns}))"
    assert str(error.value) == f"{path}/model.safetensors: {problem}"


@pytest.mark.parametrize(
    ("name", "config", "problem"),
    [
        ("roberta-sequence", {"problem_type": "guess"}, "problem_type 'guess' is not supported (use"),
        ("modernbert-sequence", {"classifier_pooling": "max"}, "classifier_pooling 'max' is not supported"),
        ("deberta-sequence", {"pooler_hidden_act": "mish"}, "pooler_hidden_act 'mish' is not supported (use relu,"),
        ("albert-token", {"num_labels": 4}, "id2label names 5 labels, and num_labels is 4"),
        ("electra-token", {"id2label": {"0": "A", "2": "B"}}, "id2label does not name the classes 0 to 1"),
    ],
)  # fmt: skip
def test_values_of_a_head_that_are_refused(tmp_path, name, config, problem):
    with pytest.raises(DataError) as error:
        open_checkpoint(changed(tmp_path, name, config))
    assert f"config.json: {problem}" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["roberta-sequence", "modernbert-mean", "deberta-sequence"])
def test_a_part_of_a_head_that_the_folder_lacks(tmp_path, name):
    dense = {"roberta-sequence": "classifier.dense", "modernbert-mean": "head.dense"}.get(name, "pooler.dense")
    with pytest.raises(DataError) as error:
        open_checkpoint(changed(tmp_path, name, head={f"{dense}.weight": None}))
    assert str(error.value).endswith(f"model.safetensors: no tensor '{dense}.weight' (w of head.dense)")
