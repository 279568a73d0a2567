"""Attributions of tokens: input × gradient and integrated gradients, as autograd gives them, and that they add up."""

import numpy as np
import pytest

import attnkit
from attnkit.errors import UsageError
from attnkit.interpret.gradients.attribution import attribute
from tests import process
from tests.places import MODELS, REFERENCES

FROZEN = dict(np.load(REFERENCES / "attributions.npz"))
POINTS = int(FROZEN["points"])
METHODS = {"input-x-gradient": "input-x-gradient", "integrated": f"integrated:{POINTS}"}
TEXTS = {
    "gpt2": ("The cat", " sat on the mat"),
    "llama": ("The cat", " sat on"),
    "marian": ("je suis", "I am a student"),
    "t5": ("the cat", "sat on"),
}
ALL = TEXTS | {"seq2seq": ("je suis", "I am")}
CLASSIFIER = MODELS / "bert-sequence"
CLASSIFY = f"encode --model {CLASSIFIER} 'the cat sat' --dtype float64 | decode --model {CLASSIFIER} --layer head "
CLASSIFY += "--emit logits | loss --target 1"
BY_HAND = 'embed "The cat sat" --dim 8 --dtype float64 | posenc | attend --heads 2 --seed 1 | layernorm | decode | '
BY_HAND += 'loss --target "cat sat The"'


def score(name, method, **options):
    text, continuation = ALL[name]
    folder = str(MODELS / name)
    return attnkit.decode(text, model=folder, score=continuation, attribute=method, dtype="float64", **options)


def total(record):
    return sum(record[name].sum() for name in ("x", "source") if name in record)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", TEXTS)
def test_attributions_of_a_scored_text_are_those_of_autograd(name, method):
    ours = score(name, METHODS[method])
    for part in ("x", "source"):
        assert (part in ours) == (f"{name}.{method}.{part}" in FROZEN)
        if part in ours:
            np.testing.assert_allclose(ours[part], FROZEN[f"{name}.{method}.{part}"], rtol=1e-5, atol=1e-5)
    assert float(ours["output"]) == pytest.approx(float(FROZEN[f"{name}.output"]), rel=1e-6)
    if method == "integrated":
        assert float(ours["baseline"]) == pytest.approx(float(FROZEN[f"{name}.baseline"]), rel=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_attributions_of_a_classifier_are_those_of_autograd(method):
    ours = attnkit.grad(CLASSIFY, attribute=METHODS[method])
    np.testing.assert_allclose(ours["x"], FROZEN[f"bert-sequence.{method}.x"], rtol=1e-9, atol=1e-12)
    assert ours.labels["token"] == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    assert float(ours["output"]) == pytest.approx(float(FROZEN["bert-sequence.output"]), rel=1e-9)


def test_the_output_is_the_sum_of_the_scores():
    folder = str(MODELS / "gpt2")
    scores = attnkit.decode(TEXTS["gpt2"][0], model=folder, score=TEXTS["gpt2"][1], dtype="float64")
    ours = score("gpt2", "input-x-gradient")
    assert float(ours["output"]) == pytest.approx(scores["x"].sum(), rel=1e-12)
    assert ours["x"][-1] == 0 and ours.labels["token"][-len(scores["x"]) :] == scores.labels["token"]


@pytest.mark.parametrize("name", ["gpt2", "marian", "seq2seq", "by hand", "classifier"])
def test_integrated_gradients_add_up_to_the_change_of_the_output(name):
    gaps = []
    for points in (8, 64):
        if name in ALL:
            found = score(name, f"integrated:{points}")
        else:
            found = attnkit.grad(BY_HAND if name == "by hand" else CLASSIFY, attribute=f"integrated:{points}")
        change = float(found["output"] - found["baseline"])
        gaps.append(abs(total(found) - change) / abs(change))
    assert gaps[1] < 2e-3 and gaps[1] < gaps[0] / 5


@pytest.mark.parametrize("points", [1, 7])
def test_integrated_gradients_of_a_linear_output_are_its_terms(points):
    weights = np.random.default_rng(0).standard_normal((3, 4))
    x = np.random.default_rng(1).standard_normal((3, 4))
    found = attribute({"x": x}, lambda e: (float((e["x"] * weights).sum()), {"x": weights}), points)
    np.testing.assert_allclose(found.values["x"], (x * weights).sum(axis=-1), rtol=1e-12)
    assert found.values["x"].sum() == pytest.approx(found.output - found.baseline)


def test_input_x_gradient_is_the_product_with_what_grad_returns():
    gradients = attnkit.grad(BY_HAND)
    x = attnkit.run(BY_HAND.partition(" | ")[0])["x"]
    found = attnkit.grad(BY_HAND, attribute="input-x-gradient")
    np.testing.assert_allclose(found["x"], (x * gradients["1.embed.x"]).sum(axis=-1), rtol=1e-12)
    assert float(found["output"]) == pytest.approx(float(gradients["x"]))


def test_vectors_that_a_pipeline_reads_are_its_tokens():
    record = attnkit.run(BY_HAND.partition(" | ")[0])
    rest = BY_HAND.partition(" | ")[2]
    whole, part = (attnkit.grad(*each, attribute="integrated:9") for each in ((BY_HAND,), (rest, record)))
    np.testing.assert_allclose(part["x"], whole["x"], rtol=1e-12)
    assert part.labels == whole.labels


def test_a_batch_has_a_row_for_each_text():
    folder = str(MODELS / "gpt2")
    both = attnkit.decode(["The cat", "A"], model=folder, score=" sat", attribute="integrated:4", batch=True)
    alone = attnkit.decode("A", model=folder, score=" sat", attribute="integrated:4")
    size = len(alone["x"])
    np.testing.assert_allclose(both["x"][1, :size], alone["x"], rtol=1e-5, atol=1e-6)
    assert both["output"].shape == (2,) and both["mask"][1, 0].sum() == size
    texts = f"encode --model {CLASSIFIER} 'the cat sat' 'the cat' | decode --model {CLASSIFIER} --layer head"
    rows = attnkit.grad(f"{texts} --emit logits | loss --target 1,1 --reduction sum", attribute="integrated:4")
    assert rows["x"].shape == (2, 5) and rows["output"].shape == ()


@pytest.mark.parametrize(
    ("pipeline", "options", "message"),
    [
        ("attend", {"attribute": "integrated"}, "expected input-x-gradient"),
        (BY_HAND, {"attribute": "integrated:2", "check": True}, "cannot be combined"),
        ("posenc --size 4 --dim 4 | attend", {"attribute": "integrated:2"}, "the pipeline reads no tokens"),
        (
            'embed "a" "a" --lines --dim 4 | attend --partial | merge --join',
            {"attribute": "integrated:2"},
            "no attributions of several records",
        ),
    ],
)
def test_pipelines_without_attributions_are_refused(pipeline, options, message):
    with pytest.raises(UsageError, match=message):
        attnkit.grad(pipeline, **options)


def test_words_have_colours_on_a_terminal_and_numbers_without(tmp_path):
    command = ("decode", "--model", str(MODELS / "gpt2"), "The cat", "--score", " sat", "--attribute", "integrated:8")
    plain = process.run(*command, "-f", "table", cwd=tmp_path, env={"NO_COLOR": "1"}).out.decode()
    colored = process.run(*command, "-f", "table", cwd=tmp_path, env={"FORCE_COLOR": "1"}).out.decode()
    assert "\x1b" not in plain and "of the baseline is" in plain
    assert "\x1b[48;2;" in colored.splitlines()[0] and "at" in colored.splitlines()[0]
