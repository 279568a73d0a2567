"""Which stage, operand and record an error or a warning names; in one process as in the shell."""

import numpy as np
import pytest

from tests import process


def bash(line, folder, text=b""):
    """The exit code and the lines on standard error of a line of bash; $A is attnkit."""
    code, _, err = process.bash(line, stdin=text, cwd=folder, env={"A": "attnkit"})
    return code, err.splitlines()


def test_equal_warnings_of_two_stages_are_both_shown_in_run_as_in_the_shell(tmp_path):
    stages = ["mask --causal --invert", "attend", "attend"]
    _, apart = bash(" | ".join(f"$A {stage}" for stage in stages), tmp_path, b"[[1,2],[3,4]]")
    _, together = bash(f"$A run '{' | '.join(stages)}'", tmp_path, b"[[1,2],[3,4]]")
    assert len(apart) == 2 and len(set(apart)) == 1
    assert together == apart


def test_equal_warnings_of_two_records_are_both_shown(tmp_path):
    _, lines = bash("$A mask --causal --invert | $A attend", tmp_path, b"[[1,2],[3,4]]\n[[1,2],[3,4]]\n")
    assert len(lines) == 2 and len(set(lines)) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("$A layernorm x.npy --gamma -", "attnkit layernorm: <stdin>: gamma (3,): expected (2,), the normalized axes"),
        ("$A attend x.npy --params -", "attnkit attend: <stdin>: parameter 'x' is not one of wq"),
        ("$A attend x.npy --memory -", "attnkit attend: Q (2,2) and K (2,3)"),
    ],
)
def test_an_operand_on_standard_input_is_named_so(line, message, tmp_path):
    np.save(tmp_path / "x.npy", np.ones((2, 2)))
    operand = b"[[1,2,3],[4,5,6]]" if "memory" in line else b"[1,2,3]"
    code, lines = bash(line, tmp_path, operand)
    assert code == 3 and len(lines) == 1 and lines[0].startswith(message)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--haeds 2", "no such option: --haeds; did you mean --heads?"),
        ("--heads x", "--heads: expected a whole number of at least 1, got 'x'"),
        ("--layer encoder.0", "--layer: needs --model DIR"),
    ],
)
def test_a_wrong_flag_of_a_pipeline_is_an_error_of_its_stage(flags, message, tmp_path):
    assert bash(f"$A run 'embed a --dim 2 | attend {flags}'", tmp_path) == (2, [f"attnkit attend: {message}"])
