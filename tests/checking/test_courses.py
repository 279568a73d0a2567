"""The adapters of a course: right ones pass, and slips that the course's own tests let pass are seen and named."""

from pathlib import Path

import pytest

import attnkit
from attnkit.checking.checks import Assignment, Conventions, Limits, Run
from attnkit.checking.courses import CS336
from attnkit.checking.verdict import StatedTolerance
from attnkit.errors import UsageError

RIGHT = Path(__file__).parent / "course_adapters.py"
OF_TORCH = {"run_save_checkpoint", "run_load_checkpoint"}

# what the tests of the course let pass: dim and positions are the usual ones alone, its tolerance is 1e-2, and no eps
# is large beside a gradient
LET_PASS = """
right_softmax, right_rope, right_attention = run_softmax, run_rope, run_scaled_dot_product_attention

def run_softmax(in_features, dim):
    return right_softmax(in_features, -1)

def run_rope(d_k, theta, max_seq_len, in_query_or_key, token_positions):
    return right_rope(d_k, theta, max_seq_len, in_query_or_key, np.arange(in_query_or_key.shape[-2]))

def run_scaled_dot_product_attention(Q, K, V, mask=None):
    return right_attention(Q, K, V, ~~mask)

def run_linear(d_in, d_out, weights, in_features):
    return (in_features.astype(np.float16) @ weights.T.astype(np.float16)).astype(np.float32)

def run_embedding(vocab_size, d_model, weights, token_ids):
    return weights.astype(np.float16)[token_ids].astype(np.float32)

class AdamWithLargeEps(AdamW):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, lr, betas, 100 * eps, weight_decay)

def get_adamw_cls():
    return AdamWithLargeEps
"""


def check_course(path):
    run = Run(Assignment("cs336", (str(path),)), 0, "float32", None, StatedTolerance(), Conventions(), Limits())
    return {part.title.partition("(")[0]: part for part in run.check()}


@pytest.fixture(scope="module")
def of_right():
    return check_course(RIGHT)


def test_the_right_adapters_of_a_course_pass(of_right):
    assert {name for name, part in of_right.items() if part.status != "ok"} == set()
    assert {*of_right} == {*CS336} - OF_TORCH


def test_what_the_tests_of_the_course_let_pass_is_seen(tmp_path, of_right):
    path = tmp_path / "adapters.py"
    path.write_text(RIGHT.read_text() + LET_PASS)
    found = {name: part.findings for name, part in check_course(path).items() if part.status == "FAIL"}
    causes = {name: [cause.slip.name for cause in findings.causes] for name, findings in found.items()}
    # others call the functions that are wrong now
    wrong = {name: found[name] for name in found if name not in ("run_transformer_block", "run_transformer_lm")}
    assert {*wrong} == {
        "run_softmax", "run_rope", "run_scaled_dot_product_attention", "run_linear", "run_embedding", "get_adamw_cls",
        "run_multihead_self_attention_with_rope",
    }  # fmt: skip
    assert causes["run_softmax"] == ["softmax is over the last axis, whatever the axis asked for"]
    assert causes["run_rope"] == ["the positions are ignored: they are always 0, 1, 2, …"]
    assert causes["run_multihead_self_attention_with_rope"] == causes["run_rope"]
    assert causes["get_adamw_cls"] == ["eps is multiplied by 100"]
    assert "TypeError: bad operand type for unary ~" in found["run_scaled_dot_product_attention"].failing[0].words
    assert all(row.largest < 1e-2 for name in ("run_linear", "run_embedding") for row in found[name].failing)


def test_functions_that_are_not_implemented_are_left_out(tmp_path):
    path = tmp_path / "adapters.py"
    path.write_text("def get_adamw_cls():\n    raise NotImplementedError\n\ndef run_silu(in_features):\n    return 0\n")
    assert {name: part.status for name, part in check_course(path).items()} == {
        "run_silu": "FAIL",
        "get_adamw_cls": "skip",
    }


def test_a_program_is_no_optimizer():
    with pytest.raises(UsageError, match=r"\./mine: this stage is checked in Python \(FILE.py:NAME\): a class"):
        attnkit.run("check adamw -- ./mine")
