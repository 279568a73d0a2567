"""Heads of the text encoders beyond BERT, checked against transformers: texts, pairs, tokens, spans, answers, words."""


import numpy as np
import pytest

import attnkit
from tests.inference.family_heads import arrays, frozen, head_folder

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
        for dtype in ("float64", "float32"):
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
        assert ("probability" in record) == (name != "camembert-sequence")


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
