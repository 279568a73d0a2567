"""What a check finds of implementations: conventions, slips, the smallest case that fails, notes, ends of processes."""

import sys

import numpy as np
import pytest

import attnkit
from attnkit.checking.callees import CalleeError, PythonFile, open_object
from attnkit.checking.definitions import DEFINITIONS
from attnkit.checking.verdict import Examiner
from attnkit.cli import main
from attnkit.errors import UsageError

ATTEND = DEFINITIONS["attend"]


def softmax(scores):
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def scores_of(q, k):
    return q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])


def judge(function, name="attend", **options):
    definition = DEFINITIONS[name]
    return Examiner(definition, open_object(definition, function, "", {}), **options).judge(definition.cases)


def keep(query, key, value, mask=None):
    scores = scores_of(query, key)
    return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ value


def block(K, Q, V, attn_mask=None):
    scores = scores_of(Q, K)
    return softmax(scores if attn_mask is None else np.where(attn_mask, -1e9, scores)) @ V, scores


def add(q, k, v, m=None):
    return softmax(scores_of(q, k) + (0 if m is None else m)) @ v


def without_names(a, b, c):
    return softmax(scores_of(b, a)) @ c


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (keep, ()),
        (block, ("mask: True = blocked",)),
        (add, ("mask: added to the scores, −∞ where blocked",)),
        (without_names, ("the arguments are k, q, v",)),
    ],
)
def test_conventions_are_found_by_value(function, found):
    findings = judge(function)
    assert findings.is_right and findings.found == found


def test_a_stated_convention_is_not_looked_for():
    findings = judge(block, fixed={"mask": "keep"})
    assert [row.drawn.case.name for row in findings.rows if row.status == "FAIL"] == ["causal", "padding", "any mask"]


def test_a_convention_explains_every_case_or_none():
    def inverted_with_heads(q, k, v, mask=None):
        return keep(q, k, v, ~mask if mask is not None and q.ndim == 4 else mask)

    findings = judge(inverted_with_heads)
    assert not findings.is_right and not findings.causes and findings.found == ()


def test_cases_of_an_argument_that_it_lacks_do_not_count():
    findings = judge(without_names)
    assert [row.status for row in findings.rows] == ["ok", "skip", "skip", "skip", "ok", "ok", "ok", "skip"]


def test_the_slip_that_explains_every_case_is_named():
    def by_width_of_values(q, k, v, mask=None):
        scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(v.shape[-1])
        return softmax(scores if mask is None else np.where(mask, scores, -np.inf)) @ v

    (cause,) = judge(by_width_of_values).causes
    assert cause.slip.name == "the scores are divided by the root of the width of the values" and cause.is_decisive


def test_two_slips_at_once_are_named():
    def twice(q, k, v, mask=None):
        scores = q @ np.swapaxes(k, -1, -2)
        return softmax(scores if mask is None else np.where(mask, scores, 0)) @ v

    names = {cause.slip.name for cause in judge(twice, fixed={"mask": "keep"}).causes}
    assert "the scale of the scores is missing and blocked scores are 0 instead of −∞" in names


def test_without_a_known_slip_the_smallest_case_that_fails_is_shown():
    def off_in_the_third_row(q, k, v, mask=None):
        output = keep(q, k, v, mask)
        output[..., 2:3, :] += 1
        return output

    findings = judge(off_in_the_third_row)
    assert not findings.causes and findings.smallest.drawn.sizes == {"T": 3, "S": 1, "K": 1, "V": 1}
    assert findings.smallest.at == (2, 0) and findings.smallest.drawn.lead == ()


def test_rounding_to_half_precision_inside_is_seen():
    findings = judge(lambda q, k, v: keep(q.astype(np.float16), k, v))
    assert not findings.is_right


def test_a_higher_precision_inside_is_right():
    assert judge(lambda q, k, v: keep(*(one.astype(np.float64) for one in (q, k, v)))).is_right


def test_an_input_that_is_changed_in_place_is_noted():
    def halves(q, k, v):
        q /= np.float32(np.sqrt(q.shape[-1]))
        return softmax(q @ np.swapaxes(k, -1, -2)) @ v

    findings = judge(halves)
    assert findings.is_right and {row.outcome.changed for row in findings.counted} == {("q",)}


def test_a_class_gets_its_parameters_by_name_and_shape():
    class Linear:
        def __init__(self, in_features, out_features):
            self.weight = np.zeros((out_features, in_features), np.float32)
            self.bias = np.zeros(out_features, np.float32)

        def __call__(self, x):
            return x @ self.weight.T + self.bias

    assert judge(Linear, "linear").is_right


def test_a_parameter_that_no_argument_has_is_named():
    with pytest.raises(UsageError, match=r"what does the parameter 'g' take\? --bind g=ARGUMENT says it"):
        open_object(DEFINITIONS["linear"], lambda x, w, b, g: x, "", {})


SOURCE = """
import os, sys
import numpy as np

def attention(q, k, v):
    print("a line of its own")
    if q.ndim == 2:
        os._exit(7)
    if q.ndim == 4:
        while True:
            pass
    return {answer}
"""


@pytest.fixture
def written(tmp_path):
    def write(answer):
        path = tmp_path / "mine.py"
        path.write_text(SOURCE.replace("{answer}", answer))
        return str(path)

    return write


def test_a_case_that_hangs_or_ends_the_process_is_a_verdict_and_the_next_one_runs(written):
    callee = PythonFile.load(written("np.zeros((1,))"), sys.executable, 0.5, 0).take(ATTEND, "", "", {})
    findings = Examiner(ATTEND, callee).judge(ATTEND.cases)
    callee.close()
    words = {row.drawn.case.name: row.words for row in findings.rows if row.status == "FAIL"}
    assert words == {
        "plain": "shape (1,), expected (2, 5, 6)",
        "leading axes": "no answer within 0.5 s",
        "no leading axis": "its process ended with exit code 7",
        "large scores": "shape (1,), expected (2, 5, 6)",
    }


def test_a_file_that_cannot_be_loaded_is_an_error(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import numpy\n\ndef attention(q, k, v):\n    return missing\n\nraise RuntimeError('at the top')\n")
    with pytest.raises(CalleeError, match=r"RuntimeError: at the top \(mine.py, line 6\)"):
        PythonFile.load(str(path), sys.executable, 5, 0)


def test_what_it_prints_is_shown_unless_the_seed_is_hidden(written, tmp_path, capfd):
    path, seed = written("np.zeros(1)"), tmp_path / "seed.txt"
    seed.write_text("3")
    for options, shown in (([], True), (["--hidden-seed", str(seed)], False)):
        assert main.main(["check", "attend", path, "--timeout", "0.5", *options]) == 1
        assert ("a line of its own" in capfd.readouterr().err) == shown


def test_a_class_without_a_parameter_that_it_needs_is_an_error():
    class Linear:
        def __init__(self, in_features, out_features):
            self.bias = np.zeros(out_features, np.float32)

        def __call__(self, x):
            return x

    with pytest.raises(CalleeError, match=r"no parameter of it is w \(7, 5\); it has bias \(7,\)"):
        judge(Linear, "linear")


def test_what_is_neither_a_function_nor_a_class_is_an_error():
    with pytest.raises(CalleeError, match="it is int, neither a function nor a class"):
        attnkit.check("attend", 3)


def test_an_answer_that_is_too_large_is_not_read(written):
    callee = PythonFile.load(written("np.zeros(1 << 19)"), sys.executable, 5, 0).take(ATTEND, "attention", "", {})
    (row, *_) = Examiner(ATTEND, callee).judge(ATTEND.cases[:1]).rows
    callee.close()
    assert row.words == "its answer has 4194304 bytes where at most 1048576 were expected"


def test_a_check_in_python_is_a_report():
    report = attnkit.check("attend", keep)
    assert report.same and report.share == 1 and report.require() is None
    wrong = attnkit.check("attend", lambda q, k, v: keep(q * 2, k, v))
    assert wrong.share == 0.25 and wrong["answer"].shape == wrong["expected"].shape
    with pytest.raises(AssertionError, match="no known slip"):
        wrong.require()
