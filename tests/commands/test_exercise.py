"""attnkit exercise: each solution by hand, right and wrong answers, fresh numbers, and no state."""

import contextlib
import inspect
import json
import math
import os
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest

from attnkit.cli import main, pipeline
from attnkit.commands import exercise as exercises
from attnkit.errors import DataError
from attnkit.formats import Source
from attnkit.inputs import answers, exercise_numbers
from attnkit.model import slips
from attnkit.model.exercises import marking, worked_slips, worked_steps
from tests.process import bash, run

ALL = exercises.read_exercises()
IDS = [one.number for one in ALL]
ROUNDED = "but for the rounding of the steps before it: keep three places until the end"


def softmax(rows):
    """The formula, row by row, in plain Python."""
    return [[math.exp(one) / sum(map(math.exp, row)) for one in row] for row in rows]


def product(a, b):
    """The product of two matrices, in plain Python."""
    return [[sum(x * y for x, y in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


def rows(given, name):
    return given[name]


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def recurrent(given):
    (w,), ((u,),) = given["weights"]["weight_ih_l0"], given["weights"]["weight_hh_l0"]
    first = math.tanh(w[0] * given["x"][0][0] + w[1] * given["x"][0][1])
    return [[first], [math.tanh(w[0] * given["x"][1][0] + w[1] * given["x"][1][1] + u * first)]]


def cells(given):
    states, c = [], 0.0
    for a, b, candidate in given["x"]:
        c = sigmoid(b) * c + sigmoid(a) * math.tanh(candidate)
        states.append([c])
    return states


def summed_state(given):
    """The sum over the tokens up to each, of the product of its query with their keys times their values."""
    rows = []
    for t, q in enumerate(given["q"]):
        pairs = zip(given["k"][: t + 1], given["v"][: t + 1], strict=True)
        rows.append([sum((q[0] * k[0] + q[1] * k[1]) * v for k, (v,) in pairs)])
    return rows


def corrected_state(given):
    a, b = 0.0, 0.0
    for (x, y), (v,) in zip(given["k"], given["v"], strict=True):
        error = v - (a * x + b * y)
        a, b = a + x * error, b + y * error
    return [[a], [b]]


def additive(given):
    (s,), v = given["s"], given["weights"]["va"]
    return [[sum(w * math.tanh(x + y) for w, x, y in zip(v, s, h, strict=True)) for h in given["h"]]]


def cosines(given):
    (q,) = given["q"]
    return [sorted((np.dot(q, e) / math.hypot(*q) / math.hypot(*e) for e in given["e"]), reverse=True)]


def positions(given):
    return [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in given["p"]]


def attention(x, width=None):
    scores = product(x, [*zip(*x, strict=True)])
    return softmax([[one / math.sqrt(width or len(x[0])) for one in row] for row in scores])


def causal(given):
    return [[*softmax([row[: t + 1]])[0], *[0] * (len(row) - t - 1)] for t, row in enumerate(given["scores"])]


def two_heads(given):
    halves = [[row[:2] for row in given["x"]], [row[2:] for row in given["x"]]]
    outputs = [product(attention(half), half) for half in halves]
    return [left + right for left, right in zip(*outputs, strict=True)]


def normalized(x):
    def of_row(row):
        mean = sum(row) / len(row)
        variance = sum((one - mean) ** 2 for one in row) / len(row)
        return [(one - mean) / math.sqrt(variance + 1e-5) for one in row]

    return [of_row(row) for row in x]


def network(given):
    weights = given["weights"]
    hidden = [
        [max(0, one + b) for one, b in zip(row, weights["b1"], strict=True)]
        for row in product(given["x"], weights["w1"])
    ]
    return [[one + b for one, b in zip(row, weights["b2"], strict=True)] for row in product(hidden, weights["w2"])]


def relu_path(given):
    """d(h_1 + h_2 + h_3)/dx_i where h_t = w x_t + u h_(t-1) is positive: w (1 + u + …) over the steps from i on."""
    ((w,),), ((u,),) = given["weights"]["weight_ih_l0"], given["weights"]["weight_hh_l0"]
    return [[w * sum(u**later for later in range(3 - at))] for at in range(3)]


def linear_map(given, x="x", weights="weights"):
    rows = product(given[x], given[weights]["w"])
    bias = given[weights].get("b", [0] * len(rows[0]))
    return [[one + more for one, more in zip(row, bias, strict=True)] for row in rows]


def first_gradients(given):
    rows = softmax(given["scores"])
    return [[row[0] * ((place == 0) - one) for place, one in enumerate(row)] for row in rows]


def neuron(given):
    w, (b,) = given["weights"]["w1"], given["weights"]["b1"]
    return [[sigmoid(row[0] * w[0][0] + row[1] * w[1][0] + b)] for row in given["x"]]


def attended(y, m):
    scores = product(y, transposed(m))
    return product(softmax([[one / math.sqrt(len(y[0])) for one in row] for row in scores]), m)


def smoothed(given):
    (p,) = softmax(given["logits"])
    return -sum((0.7 * (place == 0) + 0.1) * math.log(one) for place, one in enumerate(p))


def mean_loss(given):
    rows = softmax(given["logits"])
    return -sum(math.log(row[target]) for row, target in zip(rows, given["targets"], strict=True)) / len(rows)


def top_two(given):
    (logits,) = given["logits"]
    kept = sorted(range(4), key=lambda place: -logits[place])[:2]  # a stable sort: of equal ones the first
    total = sum(math.exp(logits[place]) for place in kept)
    return [[math.exp(one) / total if place in kept else 0 for place, one in enumerate(logits)]]


def transposed(matrix):
    return [list(column) for column in zip(*matrix, strict=True)]


# title -> the answer in plain Python, from what is given
BY_HAND = {
    "Two steps of a recurrent layer": recurrent,
    "What a forget gate keeps": cells,
    "A context vector": lambda given: product(softmax(given["scores"]), given["h"]),
    "Additive scores": additive,
    "One-hot times a table": lambda given: product(given["x"], given["table"]["w"]),
    "Which word is nearest": cosines,
    "Two rows of sinusoids": positions,
    "A sentence turned around": lambda given: product(attention(given["x"]), given["x"])[::-1],
    "Scores": lambda given: [[one / 2 for one in row] for row in product(given["x"], transposed(given["x"]))],
    "Weights": lambda given: softmax([[one / 2 for one in row] for row in product(given["q"], transposed(given["k"]))]),
    "Outputs": lambda given: product(attention(given["x"]), given["x"]),
    "A softmax that saturates": lambda given: softmax(given["scores"]),
    "Weights under a causal mask": causal,
    "The product of two masks": lambda given: [
        [int(key <= query and given["ids"][key] != 0) for key in range(3)] for query in range(3)
    ],
    "Two heads": two_heads,
    "Layer normalization": lambda given: normalized(given["x"]),
    "Add and normalize": lambda given: normalized(
        [[a + b for a, b in zip(*both, strict=True)] for both in zip(given["x"], given["y"], strict=True)]
    ),
    "A feed-forward network": network,
    "From a state to probabilities": lambda given: softmax(product(given["x"], transposed(given["e"]))),
    "Temperature": lambda given: softmax([[one / 2 for one in row] for row in given["logits"]]),
    "Cross-entropy": lambda given: -math.log(softmax(given["logits"])[0][0]),
    "Queries": linear_map,
    "Scores that are not symmetric": lambda given: product(
        product(given["x"], given["weights"]["wq"]), transposed(product(given["x"], given["weights"]["wk"]))
    ),
    "The gradient of a weight": first_gradients,
    "Heads put together": linear_map,
    "A neuron": neuron,
    "The first half of an encoder layer": lambda given: normalized(
        [
            [a + b for a, b in zip(*both, strict=True)]
            for both in zip(given["x"], product(attention(given["x"]), given["x"]), strict=True)
        ]
    ),
    "Cross-attention": lambda given: attended(given["y"], given["m"]),
    "Smoothed targets": smoothed,
    "The loss of a text": mean_loss,
    "A gradient through three steps": relu_path,
    "A gradient through attention": lambda given: [[sum(column)] * 2 for column in transposed(given["weights"])],
    "A masked word": lambda given: softmax(product(given["x"], transposed(given["e"]))),
    "Top-k": top_two,
    "A cache of keys": lambda given: attended(given["x"], [*given["past"][0], *given["x"]]),
    "What a layer would say": lambda given: product(given["x"], transposed(given["e"])),
    "Attention through two layers": lambda given: product(given["second"], given["first"]["w"]),
    "A patch becomes a vector": lambda given: linear_map(given, "patches"),
    "Patches by a kernel": lambda given: [
        [
            sum(
                given["x"][row][2 * patch + column][0] * given["weights"]["w"][0][0][row][column]
                for row in (0, 1)
                for column in (0, 1)
            )
        ]
        for patch in (0, 1)
    ],
    "Every second frame": lambda given: [
        [
            sum(
                a * b
                for a, (b,) in zip(given["weights"]["w"][0][0], [[0], *given["x"], [0]][start : start + 3], strict=True)
            )
        ]
        for start in (0, 2)
    ],
    "A state that sums": summed_state,
    "The delta rule": corrected_state,
    "The gradient of the loss": lambda given: [
        [one - (place == 0) for place, one in enumerate(row)] for row in softmax(given["logits"])
    ],
}


def run_pipeline(exercise):
    """The tensor of the answer, as the pipeline of the solution computes it."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a gradient of several numbers
        paths = {name: str(Path(folder, f"{name}.json")) for name in exercise.tensors}
        for name, value in exercise.tensors.items():
            Path(paths[name]).write_text(json.dumps(value))
        (record,) = pipeline.chain_stages(pipeline.parse_stages(exercise.pipeline.format(**paths))).items
    return np.asarray(record[exercise.tensor], float)


def verdict(exercise, numbers):
    return marking.mark(exercise_numbers.pose(exercise), np.array(numbers, float))


@pytest.mark.parametrize("seed", [None, 0, 1])
@pytest.mark.parametrize("exercise", ALL, ids=IDS)
def test_the_solution_is_what_a_pencil_gives(exercise, seed):
    drawn = exercise_numbers.draw_numbers(exercise, seed)
    right = np.array(BY_HAND[exercise.title](drawn.tensors), dtype=float)
    np.testing.assert_allclose(exercise_numbers.pose(drawn).solve().ravel(), right.ravel(), rtol=0, atol=1e-6)
    assert verdict(drawn, np.round(right, 2)) == verdict(drawn, right) == marking.Verdict(True)


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("exercise", ALL, ids=IDS)
def test_the_pipeline_gives_what_the_steps_on_paper_give(exercise, seed):
    drawn = exercise_numbers.draw_numbers(exercise, seed)
    right = exercise_numbers.pose(drawn).solve()
    np.testing.assert_allclose(run_pipeline(drawn).ravel(), right.ravel(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("exercise", ALL, ids=IDS)
def test_every_slip_is_named_and_none_passes(exercise, seed):
    """A slip in two places is wrong, and named alone or as one of several, unless it changes no number here."""
    problem = exercise_numbers.pose(exercise_numbers.draw_numbers(exercise, seed))
    right, outcomes = problem.solve(), [*problem.slips()]
    assert len(outcomes) >= 4
    for slip, outcome in outcomes:
        found = marking.mark(problem, np.round(outcome, 2))
        if marking.is_same(outcome, right):
            assert found == marking.Verdict(True), slip.name
        else:
            assert not found.is_right and slip.note in found.words.removeprefix("one of: "), slip.name


@pytest.mark.parametrize("seed", [None, 4])
@pytest.mark.parametrize("exercise", ALL, ids=IDS)
def test_steps_rounded_on_paper_are_right(exercise, seed):
    """Whatever steps are rounded to two places, the result is right; where it is off by more, a sentence says why."""
    problem = exercise_numbers.pose(exercise_numbers.draw_numbers(exercise, seed))
    steps = worked_steps.COMPUTATIONS[problem.computation]
    rng = np.random.default_rng(0)
    for share in (0.0, 0.3, 0.5, 0.7, 1.0):
        values = dict(problem.given)
        for name, formula in steps.items():
            value = np.asarray(formula(*[values[one] for one in inspect.signature(formula).parameters]), float)
            values[name] = np.round(value, 2) if rng.random() < share or name == problem.answer else value
        found = marking.mark(problem, values[problem.answer])
        assert found.is_right and found.words in ("", ROUNDED)


@pytest.mark.parametrize("exercise", ALL, ids=IDS)
def test_a_number_that_is_off_is_wrong(exercise):
    """Each number by one, or by 3 % if it is not whole, beyond what rounding moves it."""
    problem = exercise_numbers.pose(exercise)
    right, slack = problem.solve(), problem.slack()
    for at, place in enumerate(np.ndindex(right.shape)):
        is_whole = abs(right[place] - round(float(right[place]))) < 1e-9
        answer = np.array(np.round(right, 2))
        answer[place] += (-1) ** at * (1 if is_whole else max(0.02, 0.03 * abs(right[place])) + slack[place])
        assert not marking.mark(problem, answer).is_right


@pytest.mark.parametrize("exercise", ALL, ids=IDS)
def test_ten_seeds_draw_as_many_sheets(exercise):
    drawn = [exercise_numbers.draw_numbers(exercise, seed) for seed in range(1, 11)]
    assert len({json.dumps(one.tensors) for one in drawn}) >= 9
    for one in drawn:
        solution = exercise_numbers.pose(one).solve()
        assert len({*np.round(solution.ravel(), 2)}) > 1 or solution.size == 1
        for name, value in one.tensors.items():
            if exercise.fresh.get(name) and not isinstance(value, dict):
                assert len({*np.ravel(value)}) > 1, name


def scaled_attention(q, k, v, scale):
    """softmax(q kᵀ · scale) v, in plain Python."""
    return product(softmax([[one * scale for one in row] for row in product(q, transposed(k))]), v)


def masked_softmax(scores, may_attend, blocked=-math.inf):
    return softmax(
        [[one if may_attend(q, k) else blocked for k, one in enumerate(row)] for q, row in enumerate(scores)]
    )


WORDS = [[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]]  # The cat sat
MAN = [[1, 1], [0, 1], [1, 0]]  # man bites dog
SCORES = [[1, 3, 2], [0, 1, 5], [1, 1, 2]]
HALVES = [[[2, 0], [0, 2]], [[1, 1], [0, 1]]]
ENCODED, QUERIES, MEMORY = [[1, 0, 2], [0, 1, 0]], [[2, 0], [0, 0]], [[1, 0], [0, 1], [1, 1]]
SUM = [a + b for a, b in zip([1, 2, 3, 4], [1, 0, -1, 4], strict=True)]
LOSS = -math.log(softmax([[3, 2, 0]])[0][0])


def heads_of(scale):
    outputs = [scaled_attention(half, half, half, scale) for half in HALVES]
    return [left + right for left, right in zip(*outputs, strict=True)]


def encoder_half(scale):
    attended = scaled_attention(ENCODED, ENCODED, ENCODED, scale)
    return normalized([[a + b for a, b in zip(*both, strict=True)] for both in zip(ENCODED, attended, strict=True)])


def positions_at(angles):
    return [[math.sin(a), math.cos(b), math.sin(c), math.cos(d)] for a, b, c, d in angles]


# title, answer, a part of the words
KNOWN = [
    ("A sentence turned around", scaled_attention(MAN, MAN, MAN, 1), "the scale of the scores is missing"),
    ("Two heads", heads_of(1), "the scale of the scores is missing"),
    ("Two heads", heads_of(1 / 2), "1/√D of the whole width"),
    ("The first half of an encoder layer", encoder_half(1), "the scale of the scores is missing"),
    ("Cross-attention", scaled_attention(QUERIES, MEMORY, MEMORY, 1), "the scale of the scores is missing"),
    ("Outputs", scaled_attention(WORDS, WORDS, WORDS, 3**-0.5), "the root of the number of keys"),
    ("Outputs", scaled_attention(WORDS, WORDS, WORDS, 1 / 4), "the scale of the scores is applied twice"),
    ("Outputs", [[1.2669, 1, 1.2669, 1], [1, 1.2669, 1, 1.2669], [1.3642] * 4], "some notes do so and print [1.2669"),
    ("Weights", [0.75, 0.25], "some notes print .75 and .25"),
    ("Weights", [0.6, 0.4], "without the exponential"),
    ("Weights", softmax([[6 / 2**0.5, 4 / 2**0.5]]), "√4 is 2: some notes write √2"),
    ("Weights", [3, 2], "those are the scaled scores; the answer is the weights"),
    ("Scores", softmax([[1, 0, 1], [0, 1, 1], [1, 1, 2]]), "those are the weights; the answer is the scaled scores"),
    ("Layer normalization", [[-1.1619, -0.3873, 0.3873, 1.1619], [-0.866, -0.866, 0.866, 0.866]], "n − 1, not by n"),
    ("Layer normalization", [[-0.6, -0.2, 0.2, 0.6], [-0.5, -0.5, 0.5, 0.5]], "by σ², not by σ"),
    ("Layer normalization", [[-3, -1, 1, 3], [-2, -2, 2, 2]], "those are the distances from the mean"),
    ("Add and normalize", normalized([[1, 2, 3, 4]]), "the output of the sub-layer is not added"),
    ("Add and normalize", normalized([[1, 0, -1, 4]]), "the residual is missing"),
    ("Add and normalize", SUM, "those are the sums x + y"),
    (
        "Add and normalize",
        [a + b for a, b in zip(normalized([[1, 2, 3, 4]])[0], [1, 0, -1, 4], strict=True)],
        "the norm is that of the input alone",
    ),
    (
        "Add and normalize",
        [a + b for a, b in zip([1, 2, 3, 4], normalized([[1, 0, -1, 4]])[0], strict=True)],
        "the residual is added after the norm",
    ),
    ("Weights under a causal mask", masked_softmax(SCORES, lambda q, k: k <= q, 0), "0 instead of −∞"),
    ("Weights under a causal mask", softmax(SCORES), "the causal mask is missing"),
    ("Weights under a causal mask", masked_softmax(SCORES, lambda q, k: k >= q), "the wrong way round"),
    (
        "Weights under a causal mask",
        [[0, 0, 0], [1, 0, 0], [0.5, 0.5, 0]],
        "the causal mask excludes the token itself",
    ),
    (
        "Weights under a causal mask",
        [[one if k <= q else 0 for k, one in enumerate(row)] for q, row in enumerate(softmax(SCORES))],
        "the mask is applied after the softmax",
    ),
    (
        "The product of two masks",
        [[1, 0, 0], [1, 1, 0], [0, 0, 0]],
        "some notes set the row of the padding to 0; here only its column is",
    ),
    (
        "The product of two masks",
        [[1, 1, 1], [1, 1, 1], [0, 0, 0]],
        "the row of the padding is 0, and the causal mask is missing",
    ),
    ("Every second frame", [[432], [210]], "those are the right numbers in another order"),
    ("Patches by a kernel", [[4], [11]], "those are the right numbers in another order"),
    ("Weights", [73, 27], "those are percentages: write each with its sign, as 73%"),
    ("The product of two masks", [[1, 1, 0], [0, 1, 0], [0, 0, 0]], "the causal mask is the wrong way round"),
    ("The product of two masks", [[0, 0, 0], [1, 0, 0], [1, 1, 0]], "the causal mask excludes the token itself"),
    ("The product of two masks", [[0, 1, 1], [0, 0, 1], [0, 0, 1]], "1 and 0 are exchanged"),
    (
        "The product of two masks",
        [[1, -math.inf, -math.inf], [1, 1, -math.inf], [1, 1, -math.inf]],
        "a mask to add has 0, not 1, for what stays",
    ),
    ("Scores that are not symmetric", [[1, 0], [3, 1]], "queries and keys are exchanged"),
    ("A feed-forward network", [[2, 2], [2, -1]], "the bias b₁ is missing"),
    ("Cross-entropy", LOSS / math.log(2), "the logarithm has the base 2"),
    ("Cross-entropy", LOSS / math.log(10), "the logarithm has the base 10"),
    ("Cross-entropy", math.exp(LOSS), "that is the perplexity"),
    ("Cross-entropy", -LOSS, "the minus sign is missing"),
    ("Cross-entropy", math.exp(-LOSS), "that is the probability"),
    ("Smoothed targets", -math.log(softmax([[2, 1, 0]])[0][0]), "that is the loss without smoothing"),
    (
        "Two rows of sinusoids",
        positions_at([[math.radians(p / one) for one in (1, 1, 100, 100)] for p in (1, 2)]),
        "the angles are in degrees",
    ),
    (
        "Two rows of sinusoids",
        positions_at([[p / one for one in (1, 10, 100, 1000)] for p in (1, 2)]),
        "the exponent of the cosines is (2i+1)/d",
    ),
    (
        "Two rows of sinusoids",
        positions_at([[p / one for one in (1, 1, 100, 100)] for p in (2, 3)]),
        "positions are shifted by +1",
    ),
    ("Two rows of sinusoids", [[0.84, 0.34, 0.01, 1], [0.91, -0.42, 0.02, 1]], "some notes print .34"),
    ("Top-k", [0.6439, 0, 0.2369, 0], "not divided again by their sum"),
    ("Patches by a kernel", [[9], [11]], "the kernel is turned by 180°"),
    ("Every second frame", [[12], [234]], "the kernel is turned"),
    ("A gradient through three steps", [[0.25], [0.5], [1]], "that is the gradient of h_3 alone"),
    ("Attention through two layers", [[0.7, 0.3], [0.45, 0.55]], "the product is in the wrong order"),
]


@pytest.mark.parametrize(("title", "numbers", "words"), KNOWN, ids=[f"{a}: {c}" for a, _, c in KNOWN])
def test_a_known_slip_worked_by_hand_is_named(title, numbers, words):
    found = verdict(next(one for one in ALL if one.title == title), np.round(np.array(numbers, float), 4))
    assert not found.is_right and words in found.words


def test_a_slip_of_one_name_is_called_the_same_in_every_exercise():
    """What an exercise and `diff --why` both name has one sentence; no computation has the same formula twice."""
    for computation, some in worked_slips.SLIPS.items():
        codes = [(step, formula.__code__) for one in some for step, formula in one.changes.items()]
        formulas = {(step, code.co_code, code.co_consts, code.co_names, code.co_varnames) for step, code in codes}
        assert len(formulas) == len(codes), computation
    listed = {one.name for some in worked_slips.SLIPS.values() for one in some}
    assert len(listed) > 200 and {slips.NO_SCALE, slips.N_MINUS_1, slips.RESIDUAL_AFTER} <= listed


# an answer to 5.2 (.7311 .2689) and to others, in the forms that people write
FORMS = [
    (".73 .27", "5.2"),
    ("0.73,0.27", "5.2"),
    ("0,73 0,27", "5.2"),
    ("0,73; 0,27", "5.2"),
    ("0,73, 0,27", "5.2"),
    ("11/15 4/15", "5.2"),
    ("11 / 15, 4 / 15", "5.2"),
    ("73% 27 %", "5.2"),
    ("73,1% 26,9%", "5.2"),
    ("(0.73, 0.27)", "5.2"),
    ("[0.73 0.27]", "5.2"),
    ("[[0.73105858 0.26894142]]", "5.2"),
    ("array([[0.731, 0.269]], dtype=float32)", "5.2"),
    ("tensor([[0.7311, 0.2689]], device='cuda:0', grad_fn=<SoftmaxBackward0>)", "5.2"),
    ("[np.float64(0.731), np.float64(0.269)]", "5.2"),
    ("p_1 = 0.73, p_2 = 0.27", "5.2"),
    ("a,b\n0.73,0.27\n", "5.2"),
    ("word,The,cat\nq,0.73,0.27\n", "5.2"),
    ("| 0.73 | 0.27 |", "5.2"),
    ("7.3e-1 +0.27", "5.2"),
    ('{"weights": [[0.73, 0.27]]}', "5.2"),
    ("[0.73][0.27]", "5.2"),
    (".76 .97", "1.1"),
    ("[[0.76], [0.97]]", "1.1"),
    ("0.76\n0.97", "1.1"),
    ("(0.76,), (0.97,)", "1.1"),
    ("True False False True True False True True False", "8.2"),
    ("[[True, False, False], [True, True, False], [True, True, False]]", "8.2"),
    ("[[ True False False]\n [ True  True False]\n [ True  True False]]", "8.2"),
    ("true,false,false\ntrue,true,false\ntrue,true,false", "8.2"),
    ("1 0 0 1 1 0 1 1 0", "8.2"),
    ("1,0,0,1,1,0,1,1,0", "8.2"),
    ("1 & 0 & 0 \\\\ 1 & 1 & 0 \\\\ 1 & 1 & 0", "8.2"),
    ("T F F T T F T T F", "8.2"),
    ("yes no no / yes yes no / yes yes no", "8.2"),
    ("1 0 0 / 1 1 0 / 1 1 0", "8.2"),
    ("100 110 110", "8.2"),
    ("100 / 110 / 110", "8.2"),
    ("[100\n 110\n 110]", "8.2"),
    (r"\begin{pmatrix} 1 & 0 & 0 \\ 1 & 1 & 0 \\ 1 & 1 & 0 \end{pmatrix}", "8.2"),
    ("0.73 and 0.27", "5.2"),
    ("0.73 / 0.27", "5.2"),
    ("73 percent, 27 percent", "5.2"),
    (r"73\%, 27\%", "5.2"),
    (r"$\frac{11}{15}$, $\dfrac{4}{15}$", "5.2"),
    ("0.73 0.27 (rounded)", "5.2"),
    ("0,73 0,27 (rounded to two places)", "5.2"),
    ("0.349 nats", "14.1"),
    ("loss = 0.349 nats", "14.1"),
    ("-ln(0.705)", "14.1"),
    ("0,35", "14.1"),
    ("[0.35]", "14.1"),
    ("loss = 0.349", "14.1"),
    ("−1.34 −0.45 0.45 1.34 −1 −1 1 1", "10.1"),
    ("-3/√5 -1/√5 1/√5 3/√5 -1 -1 1 1", "10.1"),
    ("-3/sqrt(5) -1/sqrt(5) 1/sqrt(5) 3/sqrt(5) -1 -1 1 1", "10.1"),
    (r"\left( \frac{-3}{\sqrt{5}}, \frac{-1}{\sqrt{5}}, 1/\sqrt{5}, 3/\sqrt 5, -1, -1, 1, 1 \right)", "10.1"),
]


@pytest.mark.parametrize(("text", "number"), FORMS)
def test_an_answer_in_any_form(text, number):
    exercise = exercises.find_exercise(number)
    count = exercise_numbers.pose(exercise).solve().size
    numbers = answers.read_answer(Source.of(text.encode(), "--answer"), exercise.tensor, count)
    assert marking.mark(exercise_numbers.pose(exercise), numbers) == marking.Verdict(True)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1 2 / 1 1 / 0 -2", [1, 2, 1, 1, 0, -2]),
        ("1 1 / 1 2", [1, 1, 1, 2]),
        ("1 / 2 1 / 4", [0.5, 0.25]),
        ("√5 sqrt(5) sqrt 5", [5**0.5] * 3),
        ("ln(2) ln 2 -ln(0.5)", [math.log(2)] * 3),
        ("tanh(1) tanh(-1) 2*tanh(0)", [math.tanh(1), -math.tanh(1), 0]),
        ("e^2 exp(2) e^{2} e**2", [math.exp(2)] * 4),
        ("ln(3/4), 1/e^1", [math.log(0.75), math.exp(-1)]),
        ("tanh(0,5)", [math.tanh(0.5)]),
        ("10 11", [10, 11]),
    ],
)
def test_the_numbers_of_an_answer(text, numbers):
    found = answers.read_answer(Source.of(text.encode(), "--answer"), "x", len(numbers))
    np.testing.assert_allclose(found.ravel(), numbers, rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("0.73 or 0.27", "or"),
        ("0.73 not 0.27", "not"),
        ("0.73 some more", "more"),
        ("5 million", "million"),
        ("1 + 2", "+"),
        ("ln(0)", "ln(0)"),
        ("1 sqrt(-1)", "sqrt(-1)"),
        ("e^1000", "e^1000"),
        ("tanh(tanh(1))", "tanh"),
        ("__import__('os').system('id')", "__import__"),
        (r"2\frac{1}{2}", r"2\\frac"),
        (r"1 \input{x} 1", r"\\input"),
    ],
)
def test_words_that_are_no_numbers_are_named(text, word, capfd):
    assert main.main(["exercise", "5.2", "--answer", text]) == 3
    assert capfd.readouterr().err == f"attnkit exercise: --answer: '{word}' is not a number\n"


@pytest.mark.parametrize(
    "part", ["x", " ", "1", "√(", "tanh( ", r"\frac{", "(rounded ", "shape = <", "a.b", "e^", "h_1 "]
)
def test_a_long_answer_is_read_in_linear_time(part):
    """A quadratic search of its 60,000 characters would take minutes."""
    with contextlib.suppress(DataError):
        answers.read_answer(Source.of((part * (60000 // len(part))).encode(), "--answer"), "x", 1)


@pytest.mark.parametrize(
    ("text", "code", "problem"),
    [
        ("", 3, "--answer: no numbers"),
        ("words", 3, "--answer: 'words' is not a number"),
        ("0.73 and", 1, "5.2: wrong: it has 1 number (expected 2)"),
        ("100 110", 1, "5.2: wrong: number 1 is 100, too large"),
        ("[[0.73, 0.27", 0, ""),
        ("[[0.73", 3, "--answer: line 1 column 7: unexpected end of input"),
        ("1/0", 3, "--answer: '1/0' is not a number"),
        ('{"tensors":{"a":[1],"b":[2]}}', 3, "--answer: no tensor 'x' (it has a, b)"),
        ('{"x":["a"]}', 3, "--answer: "),
        ("nan nan", 1, "5.2: wrong: number 1 is nan, not a number"),
        ("0.73", 1, "5.2: wrong: it has 1 number (expected 2)"),
        ("0,73,0,27", 1, "5.2: wrong: it has 4 numbers (expected 2)"),
        (b"\xff\xfe 1", 3, "--answer: not UTF-8 text (byte 0)"),
        ("9" * 400 + " 1", 1, "5.2: wrong: number 1 is inf, too large"),
    ],
)
def test_what_is_no_answer_is_an_error_of_one_line(text, code, problem, capfd):
    line = ["exercise", "5.2", "--answer", os.fsdecode(text)]
    assert main.main(line) == code
    assert capfd.readouterr().err.startswith(f"attnkit exercise: {problem}" if problem else "")


@pytest.mark.parametrize("stdin", [b".73 .27", b"73%,27%\n", b"[[0.73, 0.27]]", b"0,73\t0,27\n"])
def test_an_answer_on_standard_input_has_any_form(stdin, tmp_path):
    done = run("exercise", "5.2", "--answer", "-", stdin=stdin, cwd=tmp_path)
    assert (done.code, done.out, done.err) == (0, b"5.2: right\n", "")


def test_a_binary_record_on_standard_input_is_an_answer(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[0.73, 0.27]], np.float32))
    data = (tmp_path / "x.npy").read_bytes()
    done = run("exercise", "5.2", "--answer", "-", stdin=data, cwd=tmp_path)
    assert (done.code, done.out) == (0, b"5.2: right\n")
    done = run("exercise", "5.2", "--answer", "-", stdin=data[:-4], cwd=tmp_path)
    assert (done.code, done.out) == (3, b"") and done.err.startswith("attnkit exercise: <stdin>: ")


def test_rounded_steps_are_right_with_a_sentence(capfd):
    """.35 from p = .71, whose −ln is .342: the loss is .349."""
    assert main.main(["exercise", "14.1", "--answer", "0.34"]) == 0
    assert capfd.readouterr().out == f"14.1: right, {ROUNDED}\n"


@pytest.mark.parametrize(
    ("number", "answer", "code"),
    [("20.3", "[[212],[430]]", 1), ("20.3", "[[210],[432]]", 0), ("6.2", "1 0 3 2", 1), ("3.1", "3 4 1 2 3 4", 0)],
)
def test_whole_numbers_are_exact(number, answer, code):
    assert main.main(["exercise", number, "--answer", answer]) == code


def test_every_chapter_of_arithmetic_has_its_exercises():
    assert len({one.title for one in ALL}) == len(ALL) == len(BY_HAND)
    assert {one.title for one in ALL} == {*BY_HAND}


def number_of(title):
    return next(one.number for one in ALL if one.title == title)


def test_every_exercise_has_fresh_numbers():
    assert all(any(exercise_numbers.draw_numbers(one, seed).tensors != one.tensors for seed in range(3)) for one in ALL)


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
def test_fresh_numbers_keep_what_the_text_says(seed):
    drawn = {one.title: exercise_numbers.draw_numbers(one, seed).tensors for one in ALL}
    first, second = drawn["A softmax that saturates"]["scores"]
    np.testing.assert_allclose(second, np.multiply(first, 4))
    first, second = drawn["The gradient of a weight"]["scores"]
    np.testing.assert_allclose(second, np.multiply(first, 10))
    layers = drawn["Attention through two layers"]
    for weights in (drawn["A gradient through attention"]["weights"], layers["first"]["w"], layers["second"]):
        np.testing.assert_allclose(np.sum(weights, axis=-1), 1)


def test_the_examples_of_the_help_are_right(tmp_path):
    files = "echo '[[2,3,4,1]]' > q.json; echo '[[1,0,1,0],[0,1,0,1]]' > k.json"
    examples = [line.strip() for line in run("exercise", "--help").out.decode().splitlines() if "--answer " in line]
    examples = [line for line in examples if line.startswith("attnkit ")]
    assert len(examples) == 3
    for line in examples:
        assert bash(f"{files}; {line}", cwd=tmp_path).out.decode() == "5.2: right\n", line


def test_a_tensor_on_standard_input_is_an_answer(tmp_path):
    number = number_of("Weights")
    files = "echo '[[2,3,4,1]]' > q.json; echo '[[1,0,1,0],[0,1,0,1]]' > k.json"
    line = f"{files}; attnkit attend q.json --memory k.json --keep weights | attnkit exercise {number} --answer -"
    assert bash(line, cwd=tmp_path).out.decode() == f"{number}: right\n"


@pytest.mark.parametrize("exercise", ALL, ids=IDS)
def test_the_printed_solution_runs_in_a_shell(exercise, tmp_path):
    """What --solution prints is pasted into a shell, and its result is a right answer."""
    lines = run("exercise", exercise.number, "--solution", cwd=tmp_path).out.decode().split("\n\n")[0]
    if exercise.tensor in ("x", "weights", "scaled", "cell", "mask"):
        marked = run("exercise", exercise.number, "--answer", "-", stdin=bash(lines, cwd=tmp_path).out)
        assert marked.out.decode() == f"{exercise.number}: right\n"


def test_the_list_has_every_exercise_in_order(tmp_path):
    listed = json.loads(run("exercise", "-f", "json", cwd=tmp_path).out)["exercises"]
    assert [one["number"] for one in listed] == IDS
    lines = run("exercise", cwd=tmp_path).out.decode().splitlines()
    assert lines == ["\t".join((one["number"], one["chapter"], one["title"])) for one in listed]


def test_one_exercise_is_text_and_no_json():
    done = run("exercise", "5.2", "-f", "json")
    assert (done.code, done.out) == (2, b"") and "which json cannot hold" in done.err


@pytest.mark.parametrize("answer", [b"\xff", b"[1, \xff]", b"[[\xed\xa0\x80]]"])
def test_an_answer_that_is_not_utf8_is_one_line(answer):
    done = run("exercise", "5.2", "--answer", os.fsdecode(answer))
    assert done.code == 3 and done.err.startswith("attnkit exercise: --answer: ") and done.err.count("\n") == 1


# what every slip of every exercise gives, one a line: exercise, slip, numbers; written by write_slips, then read
SLIPS_FILE = Path(__file__).with_name("exercise_slips.txt")


def list_slips():
    """The exercise, the slip and its numbers, for every slip of every exercise that changes the answer."""
    for exercise in exercises.read_exercises():
        problem = exercise_numbers.pose(exercise)
        right = problem.solve()
        for slip, outcome in problem.slips():
            if not marking.is_same(outcome, right):
                yield exercise.number, slip.name, outcome


def write_slips():
    """Write SLIPS_FILE anew, to be read as a diff."""
    lines = [
        "\t".join((number, name, " ".join(f"{one:.6g}" for one in (outcome + 0.0).ravel())))
        for number, name, outcome in list_slips()
    ]
    SLIPS_FILE.write_text("\n".join(lines) + "\n")


def test_every_slip_gives_the_numbers_that_were_read():
    stated = [line.split("\t") for line in SLIPS_FILE.read_text().splitlines()]
    found = [*list_slips()]
    assert [(number, name) for number, name, _ in found] == [(number, name) for number, name, _ in stated]
    wrong = [
        (number, name)
        for (number, name, outcome), (*_, numbers) in zip(found, stated, strict=True)
        if not np.allclose(outcome.ravel(), [*map(float, numbers.split())], rtol=1e-5, atol=1e-6)
    ]
    assert wrong == []
