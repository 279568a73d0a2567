"""The tool rollout: traces and records of encoders and decoders, batches, and what is refused."""

import json

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.model.formulas.head_scores import roll_out
from attnkit.records import Record, Tensor
from tests import process

STORY = "samples/data/story"
FRENCH = "samples/data/fr-en"
AXES = ("head", "query", "key")


def make_trace(stack="decoder", numbers=(0, 1), tokens=2):
    weights = {f"{stack}.{at}.self.weights": Tensor(np.full((3, tokens, tokens), 1 / tokens), AXES) for at in numbers}
    return Record(weights, {"query": [*"ab"], "key": [*"ab"]} if tokens == 2 else {})


def test_a_trace_by_hand():
    result = attnkit.rollout(make_trace())
    # A = [[.75, .25], [.25, .75]], squared
    assert result["x"].tolist() == [[0.625, 0.375], [0.375, 0.625]]
    assert result.axes_of("x") == ("query", "key") and result.labels["key"] == ["a", "b"]
    assert [*result] == ["decoder.0.self.weights", "decoder.1.self.weights", "x"]
    assert attnkit.rollout(make_trace(), layers="1:")["x"].tolist() == [[0.75, 0.25], [0.25, 0.75]]


@pytest.mark.parametrize(("model", "text", "stack"), [(STORY, "the fox", "decoder"), (FRENCH, "le chat", "encoder")])
def test_of_a_model(model, text, stack):
    record = attnkit.encode(text, model=model, keep="*.self.weights")
    result = attnkit.rollout(record, residual=0.3)
    weights = [record[name] for name in record if name.endswith(".self.weights")]
    assert np.array_equal(result["x"], roll_out(weights, 0.3)) and f"{stack}.0.self.weights" in result
    assert result["x"].dtype == np.float32 and result["x"].sum(-1) == pytest.approx(1, abs=1e-6)
    assert np.array_equal(result["ids"], record["ids"])


def test_a_padded_batch_is_its_texts():
    texts = ["le chat", "le chat noir dort"]
    batch = attnkit.rollout(attnkit.encode(texts, model=FRENCH, batch=True, keep="*.self.weights"))
    assert batch.axes_of("x") == ("batch", "query", "key")
    for row, text in enumerate(texts):
        alone = attnkit.rollout(attnkit.encode(text, model=FRENCH, keep="*.self.weights"))["x"]
        np.testing.assert_allclose(batch["x"][row, : len(alone), : len(alone)], alone, atol=1e-6)
        assert (batch["x"][row, : len(alone), len(alone) :] == 0).all()  # nothing of the padding


def test_weights_without_names_of_axes():
    record = Record({name: make_trace()[name] for name in make_trace()})
    assert attnkit.rollout(record).axes_of("x") == ("query", "key")


def test_the_only_tensor_of_a_file(tmp_path):
    path = str(tmp_path / "run.npz")
    formats.save(make_trace(numbers=[0]), path)
    assert attnkit.rollout(path)["x"].tolist() == [[0.75, 0.25], [0.25, 0.75]]


@pytest.mark.parametrize(
    ("record", "flags", "error", "problem"),
    [
        (
            make_trace(numbers=[0, 1, 3]),
            {},
            DataError,
            "no decoder.2.self.weights (it has the weights of layers 0, 1, 3)",
        ),
        (
            make_trace(numbers=[1, 2]),
            {},
            DataError,
            "no decoder.0.self.weights (it has the weights of layers 1, 2); --lay",
        ),
        (make_trace(), {"layers": "0:3"}, UsageError, "--layers: 0:3: the trace has layers 0:2"),
        (make_trace(), {"layers": "1:1"}, UsageError, "--layers: 1:1: the trace has layers 0:2"),
        (Record({"encoder.0.self.weights": np.ones((1, 2, 3))}), {}, DataError, "2 queries for 3 keys"),
        (
            make_trace().merge(make_trace(numbers=[2], tokens=3)),
            {},
            DataError,
            "decoder.2.self.weights (3, 3, 3): expected the tokens of decoder.0.self.weights (3, 2, 2)",
        ),
    ],
)
def test_bad_input(record, flags, error, problem):
    with pytest.raises(error) as caught:
        attnkit.rollout(record, **flags)
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_a_hint_for_two_stacks_works(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    formats.save(make_trace().merge(make_trace("encoder")), "run.npz")
    done = process.bash("attnkit show run.npz --only 'encoder.*' -f npz | attnkit rollout -f json")
    assert done.err == "" and [*json.loads(done.out)["tensors"]] == [
        "encoder.0.self.weights",
        "encoder.1.self.weights",
        "x",
    ]


def test_weights_that_are_not_finite_are_named():
    weights = np.full((1, 2, 2), 0.5)
    weights[0, 1, 0] = np.nan
    record = attnkit.Record({"encoder.0.self.weights": weights})
    with pytest.warns(
        AttnkitWarning, match=r"the result is nan at .*: encoder.0.self.weights is nan at \[0\]\[1\]\[0\]"
    ):
        attnkit.rollout(record)
    with pytest.raises(DataError, match=r"encoder.0.self.weights is nan at \[0\]\[1\]\[0\]"):
        attnkit.rollout(record, check_finite=True)
