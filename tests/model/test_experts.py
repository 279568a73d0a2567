"""Mixtures of experts by hand: which experts a router chooses, and with which gates."""

import numpy as np
import pytest

from attnkit.model.formulas.experts import ExpertConfig, Experts, mix_experts, route

LOGITS = np.log([[8.0, 4.0, 2.0, 2.0]])  # softmax 1/2 1/4 1/8 1/8


@pytest.mark.parametrize(("config", "chosen", "gates"), [
    ({}, [0, 1], [1 / 2, 1 / 4]),
    ({"renormalizes": True}, [0, 1], [2 / 3, 1 / 3]),
    ({"score": "chosen"}, [0, 1], [2 / 3, 1 / 3]),
    ({"score": "sigmoid"}, [0, 1], [8 / 9, 4 / 5]),
    ({"score": "sigmoid", "renormalizes": True, "scale": 2.5}, [0, 1], [2.5 * 40 / 76, 2.5 * 36 / 76]),
    ({"groups": 2, "chosen_groups": 1}, [0, 1], [1 / 2, 1 / 4]),
    ({"chosen": 3}, [0, 1, 2], [1 / 2, 1 / 4, 1 / 8]),
])  # fmt: skip
def test_the_choice_and_the_gates(config, chosen, gates):
    routing = route(LOGITS, ExpertConfig(**{"count": 4, "chosen": 2, "hidden": 1} | config))
    assert routing.chosen.tolist() == [chosen]
    np.testing.assert_allclose(routing.gates, [gates], rtol=1e-14)


def test_groups_are_chosen_by_their_best_scores_and_the_correction_counts_for_the_choice_alone():
    config = ExpertConfig(count=4, chosen=2, hidden=1, score="sigmoid", groups=2, chosen_groups=1, group_best=2)
    correction = np.array([0.0, 0, 1, 0])  # the second group: 1 + 2/3 + 2/3 > 8/9 + 4/5
    routing = route(LOGITS, config, correction)
    assert routing.chosen.tolist() == [[2, 3]]
    np.testing.assert_allclose(routing.gates, [[2 / 3, 2 / 3]], rtol=1e-14)


def test_every_token_has_its_own_experts_and_the_shared_network():
    one = np.array([[1.0]])
    expert = {"w1": one, "w2": one}
    experts = Experts(
        {"router": np.array([[1.0, -1.0]]), "shared_gate": np.zeros((1, 1))},
        lambda number: expert | {"w2": (number + 1) * one},
        {"w1": one, "w2": 10 * one},
    )
    config = ExpertConfig(count=2, chosen=1, hidden=1, shared=1, score="chosen")
    steps = mix_experts(np.array([[[2.0], [-3.0]]]), experts, config, activation="identity")
    assert steps["output"].tolist() == [[[12.0], [-21.0]]]  # 2 + 20/2, -6 - 30/2
    assert steps["chosen"].tolist() == [[[0], [1]]] and steps["router"].tolist() == [[[2.0, -2.0], [-3.0, 3.0]]]
