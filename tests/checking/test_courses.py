"""The adapters of a course: right ones pass, and slips that the course's own tests let pass are seen and named."""

import importlib.util
import sys

import pytest

import attnkit
from attnkit.checking.callees import open_object
from attnkit.checking.checks import Assignment, CheckRun, Conventions, Limits
from attnkit.checking.courses import CS336
from attnkit.checking.definitions import DEFINITIONS
from attnkit.checking.verdict import Examiner, StatedTolerance
from attnkit.errors import UsageError
from tests.places import ROOT

# what the tests of the course let pass: dim and positions are the usual ones alone, its tolerance is 1e-2, every call
# has a mask, and no gradient is small beside eps
LET_PASS = """
import numpy as np

def run_softmax(in_features, dim):
    exponentials = np.exp(in_features - in_features.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)

def run_rope(d_k, theta, max_seq_len, in_query_or_key, token_positions):
    x, y = in_query_or_key[..., ::2], in_query_or_key[..., 1::2]
    angles = np.arange(x.shape[-2])[:, None] * theta ** (-np.arange(0, d_k, 2) / d_k)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.stack([x * cos - y * sin, x * sin + y * cos], -1).reshape(in_query_or_key.shape)

def run_scaled_dot_product_attention(Q, K, V, mask=None):
    scores = np.where(~mask, -np.inf, Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1]))
    return run_softmax(scores, -1) @ V

def run_linear(d_in, d_out, weights, in_features):
    return (in_features.astype(np.float16) @ weights.T.astype(np.float16)).astype(np.float32)

def run_embedding(vocab_size, d_model, weights, token_ids):
    return weights.astype(np.float16)[token_ids].astype(np.float32)

class AdamW:
    def __init__(self, params, lr, betas, eps, weight_decay):
        self.params, self.lr, self.betas, self.eps, self.weight_decay = params, lr, betas, 100 * eps, weight_decay
        self.means, self.squares, self.steps = [one * 0 for one in params], [one * 0 for one in params], 0

    def step(self, gradients):
        self.steps += 1
        for x, g, mean, square in zip(self.params, gradients, self.means, self.squares):
            mean += (1 - self.betas[0]) * (g - mean)
            square += (1 - self.betas[1]) * (g * g - square)
            root = np.sqrt(square / (1 - self.betas[1] ** self.steps)) + self.eps
            x *= 1 - self.lr * self.weight_decay
            x -= self.lr * mean / (1 - self.betas[0] ** self.steps) / root

def get_adamw_cls():
    return AdamW
"""


def check_course(path):
    run = CheckRun(Assignment("cs336", (str(path),)), 0, "float32", None, StatedTolerance(), Conventions(), Limits())
    return {part.title.partition("(")[0]: part for part in run.check()}


def test_the_adapters_by_the_public_api_pass(monkeypatch):
    pytest.importorskip("torch")
    place = ROOT / "tests" / "references" / "cs336_adapters.py"
    spec = importlib.util.spec_from_file_location("cs336_adapters", place)
    course = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, course)
    spec.loader.exec_module(course)
    wrong = {}
    for name, adapter in CS336.items():
        definition = DEFINITIONS[adapter.stage]
        callee = open_object(definition, getattr(course, name), "torch", {})
        findings = Examiner(definition, callee, fixed=adapter.convention).judge(definition.cases)
        wrong |= {} if findings.is_right else {name: findings.failing}
    assert wrong == {} and len(CS336) == 21


def test_what_the_tests_of_the_course_let_pass_is_seen(tmp_path):
    path = tmp_path / "adapters.py"
    path.write_text(LET_PASS)
    parts = check_course(path)
    assert {name: part.status for name, part in parts.items()} == {
        "run_linear": "FAIL",
        "run_embedding": "FAIL",
        "run_scaled_dot_product_attention": "FAIL",
        "run_rope": "FAIL",
        "run_softmax": "FAIL",
        "get_adamw_cls": "FAIL",
    }
    found = {name: part.findings for name, part in parts.items()}
    causes = {name: [cause.slip.name for cause in one.causes] for name, one in found.items() if one.causes}
    assert causes == {
        "run_softmax": ["softmax is over the last axis, whatever the axis asked for"],
        "run_rope": ["the positions are ignored: they are always 0, 1, 2, …"],
        "get_adamw_cls": ["eps is multiplied by 100"],
    }
    attention = {row.name: row.words for row in found["run_scaled_dot_product_attention"].failing}
    assert attention["plain"].startswith("TypeError: bad operand type for unary ~: 'NoneType'")
    assert "causal" not in attention
    for name in ("run_linear", "run_embedding"):  # in float16: the tolerance of the course is 1e-2
        assert all(1e-5 < row.largest < 1e-2 for row in found[name].counted)


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
