"""Heads that give labels, checked against transformers: texts, pairs, tokens, spans and answers."""

import json
import math
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.display import Style
from attnkit.display.blocks import drawn_in
from attnkit.errors import AttnkitNote, DataError, UsageError
from attnkit.generation.label_views import label_cells, label_table, list_labels, view_labels
from attnkit.generation.labels import (
    Span,
    find_answers,
    find_entities,
    labels_to_text,
    make_spans,
    select_labels,
    split_places,
)
from attnkit.model.backward.tape import Reverse
from attnkit.model.config import Config, StackConfig
from attnkit.model.context import Model
from attnkit.model.passes.model_gradients import head_backward
from attnkit.model.passes.output_head import head_logits
from attnkit.records import Record, Tensor
from attnkit.tokenizers import TokenPlaces
from tests import process
from tests.places import REFERENCES, folder

SEQUENCES = ("bert-sequence", "bert-topics", "bert-rank", "bert-score")
PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")
FUNCTIONS = "(use Identity, Sigmoid, Softmax of torch)"
TANH = f"sentence_transformers.activation_fn 'torch.nn.Tanh' is not supported {FUNCTIONS}"
AGGREGATE = "--aggregate: needs a model that labels each token; this one labels a text"
SPANS = "--emit: logits: the labels of this model have scores alone"
STRATEGIES = ("none", "simple", "first", "average", "max")


@cache
def frozen(name):
    return json.loads((REFERENCES / "heads.json").read_text())[name]


def label(text, name, **options):
    return attnkit.decode(text, model=folder(name), **options)


@pytest.mark.parametrize("name", [*SEQUENCES, "bert-token"])
def test_logits_of_texts_are_those_of_transformers(name):
    for row in frozen(name)["texts"]:
        exact = label(row["text"], name, dtype="float64")["logits"]
        np.testing.assert_allclose(exact, row["logits"], rtol=0, atol=1e-10)
        np.testing.assert_allclose(label(row["text"], name)["logits"], row["logits"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", SEQUENCES)
def test_logits_of_pairs_are_those_of_transformers(name):
    for row in frozen(name)["pairs"]:
        exact = label(row["text"], name, pair=row["pair"], dtype="float64")
        np.testing.assert_allclose(exact["logits"], row["logits"], rtol=0, atol=1e-10)
        assert exact["types"].max() == 1


@pytest.mark.parametrize("name", SEQUENCES)
def test_probabilities_are_those_of_the_pipeline(name):
    for row in frozen(name)["texts"]:
        record = label(row["text"], name)
        names = record.labels["label"]
        expected = {one["label"]: one["score"] for one in row["labels"]}
        if name == "bert-rank":  # the folder says Identity, as sentence-transformers reads it; transformers does not
            assert "probs" not in record and np.array_equal(record["x"], record["logits"])
            continue
        np.testing.assert_allclose(record["x"], [expected[one] for one in names], rtol=0, atol=1e-6)
        assert ("probs" in record) == (name != "bert-score")


def test_a_span_has_its_text_its_words_its_best_label_and_its_characters():
    scores = Tensor(np.array([[0.25, 0.75], [0.5, 0.125]]), ("span", "label"))
    record = Record({"x": scores}).with_tensors(
        {"text": Tensor(np.array([1, 0]), ("span",)), "start": Tensor(np.array([4, 0]), ("span",)),
         "end": Tensor(np.array([9, 3]), ("span",))},
        {"label": ["LOC", "PER"], "span": ["Alice", "Rio"]},
    )  # fmt: skip
    config = Config("bert", 8, task="token")
    assert list_labels(record, config, None) == [(1, "Alice", "PER", 0.75, 4, 9), (0, "Rio", "LOC", 0.5, 0, 3)]
    assert labels_to_text(record, config) == "PER\tAlice\nLOC\tRio"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_spans_are_those_of_the_pipeline(strategy):
    found = 0
    for row in frozen("bert-token")["texts"]:
        record = label(row["text"], "bert-token", aggregate=strategy)
        expected = row[strategy]
        assert record["start"].tolist() == [span["start"] for span in expected]
        assert record["end"].tolist() == [span["end"] for span in expected]
        names = [record.labels["label"][at] for at in record["x"].argmax(axis=-1)] if expected else []
        assert names == [span.get("entity_group", span.get("entity")) for span in expected]
        scores = record["x"].max(axis=-1) if expected else []
        np.testing.assert_allclose(scores, [span["score"] for span in expected], rtol=0, atol=1e-6)
        assert record.labels["span"] == [row["text"][span["start"] : span["end"]] for span in expected]
        found += len(expected)
    assert found > 20


@pytest.mark.filterwarnings("ignore:question and text are")
def test_answers_are_those_of_the_pipeline():
    for row in json.loads((REFERENCES / "answers.json").read_text()):
        for best in row["best"]:
            expected = best if isinstance(best, list) else [best]
            record = label(row["text"], "bert-question", question=row["question"], top=len(expected))
            assert record.labels["span"] == [one["answer"] for one in expected]
            assert record["start"].tolist() == [one["start"] for one in expected]
            assert record["end"].tolist() == [one["end"] for one in expected]
            np.testing.assert_allclose(record["x"][:, 0], [one["score"] for one in expected], rtol=0, atol=1e-6)


def test_logits_of_the_ends_of_answers_are_those_of_transformers():
    for row in frozen("bert-question")["pairs"]:
        states = attnkit.encode(row["text"], model=folder("bert-question"), pair=row["pair"], dtype="float64")
        record = attnkit.decode(states, model=folder("bert-question"), layer="head")
        np.testing.assert_allclose(record["logits"], row["logits"], rtol=0, atol=1e-10)
        assert record.labels["label"] == ["start", "end"]


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_head_gives_each_text_of_a_batch_the_bits_that_it_has_alone(name):
    states = attnkit.encode([row["text"] for row in frozen(name)["texts"]], model=folder(name))
    batch = attnkit.decode(states, model=folder(name), layer="head")["logits"]
    for at, x in enumerate(states["x"]):
        alone = attnkit.decode(Record({"x": x}), model=folder(name), layer="head")["logits"]
        np.testing.assert_array_equal(batch[at], alone)
    order = np.argsort(states["mask"][:, 0], axis=-1, kind="stable")  # padding first
    left = {"x": np.take_along_axis(states["x"], order[..., None], 1), "mask": np.sort(states["mask"], axis=-1)}
    padded_left = attnkit.decode(Record(left), model=folder(name), layer="head")["logits"]
    np.testing.assert_array_equal(padded_left, batch)


@pytest.mark.parametrize("name", [*SEQUENCES, "bert-token"])
def test_the_head_alone_gives_the_bits_of_the_whole_model(name):
    for text in ("the cat sat", ["the cat sat", "reading every day: café"]):
        whole = label(text, name)
        states = attnkit.encode(text, model=folder(name))
        parts = attnkit.decode(states, model=folder(name), layer="head")
        for tensor in ("x", "logits"):
            np.testing.assert_array_equal(parts[tensor], whole[tensor])


def test_a_trace_has_the_intermediates_of_the_head(tmp_path):
    path = tmp_path / "trace.npz"
    record = label("the cat sat", "bert-sequence", trace=str(path))
    with np.load(path) as trace:
        np.testing.assert_array_equal(trace["logits"], record["logits"])
        assert trace["pooler"].shape == (24,) and "encoder.1.norm2" in trace
    whole = tmp_path / "encode.npz"
    attnkit.encode("the cat sat", model=folder("bert-sequence"), trace=str(whole))
    with np.load(whole) as trace:
        np.testing.assert_array_equal(trace["logits"], record["logits"])


@pytest.mark.parametrize("pool", ["pooler", "first", "mean"])
@pytest.mark.parametrize("has_norm", [None, False, True])
def test_gradients_of_a_head_equal_finite_differences(pool, has_norm):
    rng = np.random.default_rng(1)
    stack = StackConfig(layers=0, heads=1, hidden=1, kv_heads=1, head_dim=3)
    config = Config("", 3, encoder=stack, classes=("a", "b"), task="sequence", pooling=pool, pooler=True)
    if has_norm is not None:
        config = replace(config, transform=True, head_norm=has_norm, head_activation="gelu", activation="relu")
    shapes = {"pooler": {"w": (3, 3), "b": (3,)}, "head.dense": {"w": (3, 3)}, "head": {"w": (3, 2), "b": (2,)}}
    shapes["head.norm"] = {"gamma": (3,), "beta": (3,)}
    params = {layer: {key: rng.normal(size=shape) for key, shape in one.items()} for layer, one in shapes.items()}
    core, x, dy = Model(config, params), rng.normal(size=(2, 4, 3)), rng.normal(size=(2, 2))
    reverse = Reverse({})
    dx = head_backward(core, x, dy, reverse)
    used = ["head", *["pooler"] * (pool == "pooler"), *["head.dense"] * (has_norm is not None)]
    assert {*reverse.gradients} == {*used, *["head.norm"] * bool(has_norm)}
    for array, gradient in [
        (x, dx),
        *((params[n][k], g) for n, one in reverse.gradients.items() for k, g in one.items()),
    ]:
        for at in np.ndindex(array.shape):
            before, ends = array[at], []
            for step in (1e-6, -1e-6):
                array[at] = before + step
                ends.append((head_logits(core, x) * dy).sum())
            array[at] = before
            np.testing.assert_allclose(gradient[at], (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-7)


def test_by_hand_the_answers_of_a_text():
    """Starts have 1/4 and 1/4 beside no answer, ends 1/8 and 3/4."""
    logits = np.log([[1 / 2, 1 / 8], [1 / 4, 1 / 8], [1 / 4, 3 / 4]])
    places = TokenPlaces([(0, 0), (0, 3), (4, 7)], [(0, 0), (0, 3), (4, 7)], [None, 1, 1], [False] * 3)
    found = find_answers([(logits, places)], "cat sat", 3)
    assert [(span.start, span.end) for span in found] == [(0, 7), (4, 7), (0, 3)]
    assert [span.score for span in found] == pytest.approx([3 / 16, 3 / 16, 1 / 32])
    again = find_answers([(logits, places)], "sat sat", 1)  # the second word and the first are one answer
    assert [(span.start, span.end) for span in again] == [(4, 7)] and again[0].score == pytest.approx(7 / 32)


# of a text of five tokens, of which the first and the last are added: "New York", by subwords, and "is"
PLACES = TokenPlaces(
    offsets=[(0, 0), (0, 3), (4, 6), (6, 8), (9, 11), (0, 0)],
    words=[(0, 0), (0, 3), (4, 8), (4, 8), (9, 11), (0, 0)],
    parts=[None, 0, 0, 0, 0, None],
    subwords=[False, False, False, True, False, False],
)
NAMES = ["O", "B-LOC", "I-LOC"]
PROBS = np.array([[0, 1, 0], [0.25, 0.75, 0], [0.25, 0.125, 0.625], [0.9375, 0, 0.0625], [1, 0, 0], [0, 1, 0]])


@pytest.mark.parametrize(("strategy", "expected"), [
    ("none", [("B-LOC", 0.75, 0, 3), ("I-LOC", 0.625, 4, 6)]),
    ("simple", [("LOC", (0.75 + 0.625) / 2, 0, 6)]),
    ("first", [("LOC", (0.75 + 0.625) / 2, 0, 8)]),  # the word as its first token
    ("average", [("LOC", 0.75, 0, 3)]),  # the mean of York is 0.59 outside
    ("max", [("LOC", 0.75, 0, 3)]),  # the surest token of York is outside
])  # fmt: skip
def test_by_hand_the_entities_of_a_text(strategy, expected):
    assert [tuple(span) for span in find_entities(PROBS, PLACES, NAMES, strategy)] == expected


def test_by_hand_an_answer_has_at_most_fifteen_tokens_of_the_text():
    """Starts are at the first word of sixteen, ends at the last two, of which one is too far."""
    count = 16
    parts = [None, 0] + [1] * count
    places = [(0, 0), (0, 3)] + [(2 * at, 2 * at + 1) for at in range(count)]
    logits = np.full((count + 2, 2), -50.0)
    logits[[2, -1, -2], [0, 1, 1]] = 0
    logits[[0, 1]] = 9  # no answer, and a word of the question
    spots = TokenPlaces(places, places, parts, [False] * len(parts))
    [best] = find_answers([(logits, spots)], "a b c d e f g h i j k l m n o p", 1)
    assert (best.start, best.end) == (0, 29)
    share = math.exp(0 - 9)  # beside no answer, which both ends have in their sum
    assert best.score == pytest.approx((share / (1 + share)) * (share / (1 + 2 * share)), rel=1e-6)


@pytest.mark.parametrize(("count", "found"), [(1, 1), (2, 2), (9, 6)])
def test_as_many_answers_as_are_asked_for(count, found):
    places = TokenPlaces(
        [(0, 0), (0, 1), (2, 3), (4, 5)], [(0, 0), (0, 1), (2, 3), (4, 5)], [None, 1, 1, 1], [False] * 4
    )
    answers = find_answers([(np.zeros((4, 2)), places)], "a b c", count)
    assert len(answers) == found and all(one.score == pytest.approx(1 / 16) for one in answers)


def labelled(values, axes, **labels):
    values = np.array(values)
    return Record({}).with_tensors({"x": Tensor(values, (*axes, "label"))}, {"label": ["O", "PER"], **labels})


TOKENS = {"token": [["[CLS]", "Rio"], ["Al", "[PAD]"]]}
TWO_TEXTS = labelled([[[0.75, 0.25], [0.125, 0.875]], [[0.25, 0.75], [0.5, 0.5]]], ("batch", "token"), **TOKENS)
PADDED = TWO_TEXTS.with_tensors({"mask": np.array([[[True, True]], [[True, False]]])})
TOKEN, SEQUENCE = Config("bert", 8, task="token"), Config("bert", 8, task="sequence", label_function="sigmoid")


@pytest.mark.parametrize(("record", "config", "text"), [
    (PADDED, TOKEN, "O PER\nPER"),
    (TWO_TEXTS, TOKEN, "O PER\nPER O"),
    (labelled([[0.75, 0.25], [0.125, 0.875]], ("token",)), TOKEN, "O PER"),
    (labelled([[0.75, 0.5], [0.25, 0.125]], ("batch",)), SEQUENCE, "O, PER\n"),  # 0.5 holds
    (labelled([0.25, 0.75], ()), SEQUENCE, "PER"),
    (labelled([0.25, 0.75], ()), replace(SEQUENCE, label_function="softmax"), "PER"),
    (labelled([0.25, 0.75], ()), replace(SEQUENCE, label_function="none"), "0.25, 0.75"),
])  # fmt: skip
def test_by_hand_labels_as_text(record, config, text):
    assert labels_to_text(record, config) == text


def test_a_single_label_holds_in_any_case():
    record = Record({}).with_tensors({"x": Tensor(np.array([0.25]), ("label",))}, {"label": ["toxic"]})
    assert labels_to_text(record, SEQUENCE) == "toxic"


def rows_of(record, config, count=None):
    return [tuple(row)[:4] for row in list_labels(record, config, count)]


def test_labels_are_listed_for_each_token_but_padding():
    assert rows_of(TWO_TEXTS, TOKEN) == [(0, "[CLS]", "O", 0.75), (0, "Rio", "PER", 0.875), (1, "Al", "PER", 0.75)]
    assert rows_of(TWO_TEXTS, TOKEN, 2)[:2] == [(0, "[CLS]", "O", 0.75), (0, "[CLS]", "PER", 0.25)]
    single = labelled([[0.75, 0.25], [0.125, 0.875]], ("token",))
    assert rows_of(single, TOKEN) == [(None, "0", "O", 0.75), (None, "1", "PER", 0.875)]


def test_labels_are_listed_for_each_text():
    texts = labelled([[0.75, 0.5], [0.25, 0.125]], ("batch",), batch=["[PAD]", "b"])
    assert rows_of(texts, SEQUENCE) == [
        (0, "[PAD]", "O", 0.75), (0, "[PAD]", "PER", 0.5), (1, "b", "O", 0.25), (1, "b", "PER", 0.125),
    ]  # fmt: skip
    assert rows_of(texts, replace(SEQUENCE, label_function="softmax")) == [(0, "[PAD]", "O", 0.75), (1, "b", "O", 0.25)]
    assert rows_of(labelled([0.25, 0.75], ()), SEQUENCE, 1) == [(None, "", "PER", 0.75)]


@pytest.mark.parametrize(("record", "config", "heads", "rows"), [
    (TWO_TEXTS, TOKEN, ["batch", "label", "score", "token"], ["0 O 0.75 [CLS]", "0 PER 0.88 Rio", "1 PER 0.75 Al"]),
    (labelled([[0.75, 0.25]], ("token",)), TOKEN, ["label", "score", "token"], ["O 0.75 0"]),
    (labelled([[0.75, 0]], ("batch",), batch=["a"]), SEQUENCE, ["label", "score", "text"], ["O 0.75 a", "PER 0.00 a"]),
    (labelled([0.25, 0.75], ()), SEQUENCE, ["label", "score"], ["PER 0.75", "O 0.25"]),
])  # fmt: skip
def test_the_table_of_labels(record, config, heads, rows):
    cells = label_cells(record, config, list_labels(record, config, None))
    table = label_table(cells, Style(precision=2))
    assert table.heads == cells.heads == heads and [" ".join(row) for row in table.rows] == rows
    assert [heads[at] for at in table.numbers] == [head for head in heads if head in ("batch", "score")]


def test_the_table_of_spans():
    record = make_spans(
        [[Span("PER", 0.5, 0, 2)], [Span("LOC", 0.25, 3, 6)]], ["Al is", "in Rio"], ["PER", "LOC"], True
    )
    assert record["x"].tolist() == [[0.5, 0], [0, 0.25]] and record["text"].tolist() == [0, 1]
    assert (record["start"].tolist(), record["end"].tolist()) == ([0, 3], [2, 6])
    assert record.labels == {"span": ["Al", "Rio"], "label": ["PER", "LOC"]}
    assert record.tensor("x").formula == "score of each span"
    view = view_labels(record, TOKEN, None, Style(precision=2))
    assert view.cells().heads == ["batch", "label", "score", "start", "end", "span"]
    assert view.cells().rows == [[0, "PER", 0.5, 0, 2, "Al"], [1, "LOC", 0.25, 3, 6, "Rio"]]
    alone = make_spans([[Span("PER", 0.5, 0, 2)]], ["Al is"], ["PER"], False)
    assert "text" not in alone and view_labels(alone, TOKEN, None, Style()).cells().heads[0] == "label"
    assert labels_to_text(make_spans([[]], [""], ["PER"], False), TOKEN) == ""


def test_labels_of_one_text_are_lines_on_a_terminal_and_a_table_in_a_figure():
    view = view_labels(labelled([0.25, 0.75], ()), SEQUENCE, None, Style(precision=3))
    [lines], [table] = (drawn_in(view.blocks, medium) for medium in ("terminal", "figure"))
    assert lines.text == "PER  0.750\nO  0.250" and table.heads == ["label", "score"]
    assert len(view_labels(TWO_TEXTS, TOKEN, None, Style()).blocks) == 1


@pytest.mark.parametrize(("emit", "axes", "labels"), [("ids", (), {}), ("logits", ("label",), {"label": ["O", "PER"]})])
def test_the_tensor_of_labels_that_is_asked_for_is_x(emit, axes, labels):
    logits, next = Tensor(np.array([0.0, 2.0]), ("label",)), Tensor(np.array(1), ())
    tensors = {"x": logits, "ids": Tensor(np.array([3, 4]), ("token",)), "logits": logits, "next": next}
    record = Record({}).with_tensors(tensors, {"label": ["O", "PER"]})
    made = select_labels(record, emit)
    assert [*made] == ["x", "ids"] and made.axes_of("x") == axes and made.labels == labels
    np.testing.assert_array_equal(made["x"], record["next" if emit == "ids" else "logits"])
    assert select_labels(record, None) is record


def test_by_hand_the_gradient_of_capped_logits():
    """2 tanh(x w / 2): the slope of tanh at 0.5 is 1 - tanh² = 0.786448, times w = 2."""
    stack = StackConfig(layers=0, heads=1, hidden=1, kv_heads=1, head_dim=1, vocab=1)
    core = Model(Config("", 1, decoder=stack, head=True, logit_softcap=2.0), {"head": {"w": np.array([[2.0]])}})
    reverse = Reverse({})
    dx = head_backward(core, np.array([[[0.5]]]), np.array([[[3.0]]]), reverse)
    assert dx.item() == pytest.approx(3 * 0.7864477 * 2, rel=1e-6)
    assert reverse.gradients["head"]["w"].item() == pytest.approx(3 * 0.7864477 * 0.5, rel=1e-6)


def test_labels_as_text_and_as_tensors():
    assert label("The cat sat", "bert-sequence", emit="text") == "NEGATIVE"
    assert label(["The cat sat", "a dog"], "bert-sequence", emit="text") == "NEGATIVE\nNEGATIVE"
    assert label("The cat sat", "bert-topics", emit="text") == ""  # no label has 0.5
    assert (
        label("The cat sat upon", "bert-token", emit="text", aggregate="simple") == "LOC\tThe\nPER\tcat\nLOC\tsat upon"
    )
    assert label("cat", "bert-token", emit="text").split() == ["B-PER", "B-PER", "B-PER"]
    assert label(["The cat sat", "a dog"], "bert-sequence", emit="ids")["x"].tolist() == [0, 0]
    logits = label("The cat sat", "bert-sequence", emit="logits")
    assert list(logits) == ["x", "ids"] and logits.labels["label"][0] == "NEGATIVE"


def test_numbers_as_text():
    texts = ["The cat sat", "a dog"]
    expected = "\n".join(str(label(text, "bert-score")["x"][0]) for text in texts)
    assert label(texts, "bert-score", emit="text") == expected


def test_the_worst_answers_have_their_words_in_order():
    record = label("the cat sat on the mat", "bert-question", question="who sat?", top=10_000)
    assert len(record["start"]) > 10 and (record["start"] < record["end"]).all() and "" not in record.labels["span"]


def test_the_table_has_a_text_that_is_spelled_as_padding_and_no_control_characters(tmp_path):
    code, out, _ = process.run("decode", "--model", folder("bert-sequence"), "[PAD]", "cat", "-f", "csv")
    assert code == 0 and [line.split(b",")[-1] for line in out.splitlines()] == [b"text", b"[PAD]", b"cat"]
    path = changed(tmp_path, "bert-sequence", {"id2label": dict.fromkeys("012", "a\n\x1b[31m")})
    code, out, _ = process.run("decode", "--model", path, "cat", "-f", "table")
    assert code == 0 and out.startswith(b"a\\n\\x1b[31m  0.") and out.count(b"\n") == 1


def test_spans_of_several_texts_say_which_text_they_are_of():
    texts = ["The cat sat upon", "once"]
    record = label(texts, "bert-token", aggregate="simple")
    alone = [label(text, "bert-token", aggregate="simple") for text in texts]
    assert record["text"].tolist() == [0] * len(alone[0]["start"]) + [1] * len(alone[1]["start"])
    np.testing.assert_array_equal(record["x"], np.concatenate([one["x"] for one in alone]))
    assert "text" not in alone[0]


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("bert-sequence", {"aggregate": "max"}, AGGREGATE),
        ("bert-token", {"pair": "who?"}, "--pair: needs a model that labels a text; this one labels each token"),
        ("bert-token", {"top_k": 5}, "--top-k: needs a model that predicts words; this one labels each token"),
        ("bert-topics", {"emit": "ids"}, "--emit: ids: the labels of this model have logits, probs"),
        ("bert-score", {"emit": "probs"}, "--emit: probs: the labels of this model have logits"),
        ("bert-token", {"aggregate": "max", "emit": "logits"}, SPANS),
        ("bert-mlm", {"question": "who?"}, "--question: needs a model with a head of labels"),
    ],
)  # fmt: skip
def test_options_of_another_head_are_refused(name, options, problem):
    with pytest.raises(UsageError) as error:
        label("the cat", name, **options)
    assert str(error.value) == problem


@pytest.mark.parametrize("format", ["table", "csv", "html", "markdown"])
def test_the_ends_of_answers_to_no_question_are_shown_as_a_tensor(format):
    line = ["decode", "--model", folder("bert-question"), "--ids", "-"]
    record = json.loads(process.run(*line, stdin=b"[2, 3, 5]").out)
    run = process.run(*line, "-f", format, stdin=b"[2, 3, 5]")
    assert (run.code, run.err) == (0, "")
    if format == "csv":
        head, *rows = [row.split(",") for row in run.out.decode().splitlines()]
        assert head == ["token", "start", "end"]
        assert [[float(one) for one in row[1:]] for row in rows] == record["tensors"]["logits"]["data"]
    assert b"start" in run.out and b"[CLS]" in run.out.replace(b"\\", b"")


def test_one_answer_is_the_default_and_a_batch_may_be_of_one_text():
    assert len(label("the cat sat", "bert-question", question="who sat?")["start"]) == 1
    for options in ({"question": "who sat?"}, {"aggregate": "simple"}):
        name = "bert-question" if "question" in options else "bert-token"
        one, batch = (label("the cat sat", name, batch=batch, **options) for batch in (False, True))
        assert "text" not in one and batch["text"].tolist() == [0] * len(one["start"])
        np.testing.assert_array_equal(batch["x"], one["x"])


def test_of_equal_labels_the_first_comes_first():
    """A hundred of two values, as few are sorted in order by any method."""
    names = [f"L{at}" for at in range(100)]
    values = Tensor(np.tile([0.5, 0.25], 50), ("label",))
    record = Record({}).with_tensors({"x": values}, {"label": names})
    assert [row.label for row in list_labels(record, SEQUENCE, None)] == names[::2] + names[1::2]
    assert labels_to_text(record, SEQUENCE) == ", ".join(names[::2])
    text = " ".join("abcdefghijklmnopqrst")
    places = [(0, 0), *((2 * at, 2 * at + 1) for at in range(20))]
    spots = TokenPlaces(places, places, [None] + [1] * 20, [False] * 21)
    found = find_answers([(np.zeros((21, 2)), spots)], text, 20)
    assert [(span.start, span.end) for span in found[:3]] == [(0, 1), (0, 3), (0, 5)]


def test_ends_of_answers_are_no_text():
    with pytest.raises(UsageError, match="this model answers a question about TEXT: --question asks it"):
        attnkit.decode(ids=[2, 3, 5], model=folder("bert-question"), emit="text")


def test_a_question_that_leaves_no_room_for_the_text_is_an_error():
    with pytest.raises(DataError) as error:
        label("the cat sat", "bert-question", question="the " * 61)
    expected = "the question is 64 tokens, and a window of question and text has 64"
    assert str(error.value) == f"--question: {expected}"
    with pytest.warns(AttnkitNote, match="question and text are 66 tokens: read in 3 windows of at most 64"):
        label("the cat sat", "bert-question", question="the " * 60)
    with pytest.raises(UsageError, match="--trace: needs a text that is read at once, and this one is 3 windows"):
        label("the cat sat", "bert-question", question="the " * 60, trace="trace.npz")


def test_by_hand_windows_of_a_text_overlap():
    """[CLS] q [SEP] t t t t t t t [SEP]: six tokens of the text fit, and half a window overlaps."""
    places = TokenPlaces([], [], [None, 0, None, *[1] * 7, None], [])
    assert split_places(places, 10) == [[0, 1, 2, *range(3, 9), 10], [0, 1, 2, *range(4, 10), 10]]
    assert [window[3:-1] for window in split_places(places, 6)] == [[3, 4], [4, 5], [5, 6], [6, 7], [7, 8], [8, 9]]


def test_by_hand_an_equal_answer_in_two_windows_has_both_scores():
    """In each window three of the four ends are impossible, so that the answer has nearly all of both."""
    places = TokenPlaces([(0, 0), (0, 1)], [(0, 0), (0, 1)], [None, 1], [False] * 2)
    window = np.array([[-30.0, -30.0], [0.0, 0.0]]), places
    [answer] = find_answers([window, window], "a", 5)
    assert answer.score == pytest.approx(2) and (answer.start, answer.end) == (0, 1)


def changed(tmp_path, name, config=None, tensors=None):
    """Copy a model's folder with other values in its config.json, and without some tensors."""
    path = tmp_path / name
    shutil.copytree(folder(name), path)
    raw = json.loads((path / "config.json").read_text())
    for key, value in (config or {}).items():
        raw[key] = value
        if value is None:
            del raw[key]
    (path / "config.json").write_text(json.dumps(raw))
    if tensors:
        stored = load_file(path / "model.safetensors")
        save_file({key: value for key, value in stored.items() if key not in tensors}, path / "model.safetensors")
    return str(path)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"id2label": None}, "id2label is missing, so 2 labels, and the classifier has 3 rows"),
        ({"id2label": {"0": "A", "1": "B"}}, "id2label names 2 labels, and the classifier has 3 rows"),
        ({"id2label": {"0": "A", "2": "B", "3": "C"}}, "id2label does not name the classes 0 to 2"),
        ({"num_labels": 5}, "id2label names 3 labels, and num_labels is 5"),
        ({"problem_type": "guess"}, f"problem_type 'guess' is not supported (use {', '.join(PROBLEMS)})"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}}, TANH),
    ],
)  # fmt: skip
def test_a_configuration_that_disagrees_with_its_weights(tmp_path, config, problem):
    path = changed(tmp_path, "bert-sequence", config)
    with pytest.raises(DataError) as error:
        open_checkpoint(path)
    assert str(error.value) == f"{path}/config.json: {problem}"


def test_a_head_that_the_folder_lacks(tmp_path):
    path = changed(tmp_path, "bert-sequence", tensors=("classifier.weight", "classifier.bias"))
    code, out, err = process.run("decode", "--model", path, "the cat")
    assert (code, out) == (2, b"")
    assert err == "attnkit decode: --model: this bert model has no head: it maps tokens to vectors\n"
    attnkit.encode("the cat", model=path)


def test_a_pooler_that_the_folder_lacks(tmp_path):
    path = changed(tmp_path, "bert-sequence", tensors=("bert.pooler.dense.weight",))
    with pytest.raises(DataError) as error:
        open_checkpoint(path)
    assert str(error.value) == f"{path}/model.safetensors: no tensor 'pooler.dense.weight' (w of pooler)"
