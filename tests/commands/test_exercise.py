"""attnkit exercise: each solution by hand, right and wrong answers, fresh numbers, and no state."""

import json
import math
import os

import numpy as np
import pytest

from attnkit.commands import exercise as exercises
from tests.process import bash, run

ALL = exercises.read_exercises()
IDS = [one.number for one in ALL]


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
    "The gradient of the loss": lambda given: [
        [one - (place == 0) for place, one in enumerate(row)] for row in softmax(given["logits"])
    ],
}


def answer(number, *words, given="", cwd, stdin=b""):
    return run("exercise", number, *words, "--answer", given, stdin=stdin, cwd=cwd)


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("exercise", ALL, ids=IDS)
def test_the_solution_is_what_a_pencil_gives(exercise, seed):
    drawn = exercises.draw_numbers(exercise, seed)
    right = exercises.remove_single_axes(np.array(BY_HAND[exercise.title](drawn.tensors), dtype=float))
    np.testing.assert_allclose(exercises.solve(drawn), right, rtol=0, atol=1e-6)
    assert exercises.check_answer(drawn, np.round(right, 2)) == f"{exercise.number}: right"


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize(
    ("exercise", "slip"), [(one, slip) for one in ALL for slip in one.slips], ids=lambda one: getattr(one, "number", "")
)
def test_a_slip_is_named(exercise, slip, seed):
    drawn = exercises.draw_numbers(exercise, seed)
    with pytest.raises(exercises.DifferentError) as wrong:
        exercises.check_answer(drawn, exercises.solve(drawn, slip))
    assert str(wrong.value) == f"{exercise.number}: wrong: {slip.note}"


def test_every_chapter_of_arithmetic_has_its_exercises():
    assert len({one.title for one in ALL}) == len(ALL) == len(BY_HAND)
    assert {one.title for one in ALL} == {*BY_HAND}


def number_of(title):
    return next(one.number for one in ALL if one.title == title)


def test_every_exercise_has_fresh_numbers():
    assert all(any(exercises.draw_numbers(one, seed).tensors != one.tensors for seed in range(3)) for one in ALL)


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
def test_fresh_numbers_keep_what_the_text_says(seed):
    drawn = {one.title: exercises.draw_numbers(one, seed).tensors for one in ALL}
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
    assert len(examples) == 2
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
        line = f"{lines} | attnkit exercise {exercise.number} --answer -"
        assert bash(line, cwd=tmp_path).out.decode() == f"{exercise.number}: right\n"


def test_the_list_has_every_exercise_in_order(tmp_path):
    listed = json.loads(run("exercise", cwd=tmp_path, env=os.environ | {}).out)["exercises"]
    assert [one["number"] for one in listed] == IDS
