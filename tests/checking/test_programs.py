"""Programs in C and Rust, compiled from the template of C and by hand: right ones pass, and a slip is named."""

import shutil
import subprocess

import pytest

from attnkit.checking.callees import open_object
from attnkit.checking.definitions import DEFINITIONS
from attnkit.checking.programs import ProgramCallee
from attnkit.checking.templates import TEMPLATES, write_template
from attnkit.checking.verdict import Examiner
from attnkit.errors import UsageError

ATTEND = """
    int n = q.axes;
    long T = q.shape[n - 2], K = q.shape[n - 1], S = k.shape[n - 2], V = v.shape[n - 1];
    answer = q;
    answer.shape[n - 1] = V;
    answer.data = calloc(count(answer), sizeof(float));
    double *weights = calloc(S, sizeof(double));
    for (long row = 0; row < count(answer) / V; row++) {
        long first = row / T * S;
        double largest = -INFINITY, sum = 0;
        for (long s = 0; s < S; s++) {
            double score = 0;
            for (long i = 0; i < K; i++) score += q.data[row * K + i] * k.data[(first + s) * K + i];
            weights[s] = mask.data && !mask.data[row * S + s] ? -INFINITY : score / sqrt(K);
            largest = fmax(largest, weights[s]);
        }
        for (long s = 0; s < S; s++) sum += weights[s] = exp(weights[s] - largest);
        for (long s = 0; s < S; s++)
            for (long i = 0; i < V; i++) answer.data[row * V + i] += weights[s] / sum * v.data[(first + s) * V + i];
    }
"""
SILU = """
use std::io::{Read, Write};

fn main() {
    let mut data = Vec::new();
    std::io::stdin().read_to_end(&mut data).unwrap();
    for four in data.chunks_exact(4) {
        let x = f32::from_le_bytes(four.try_into().unwrap());
        std::io::stdout().write_all(&(x / (1.0 + (-x).exp())).to_le_bytes()).unwrap();
    }
}
"""
BLANK = '\n    fprintf(stderr, "not implemented\\n");\n    return 1;\n'


def judge(name, command, send):
    definition = DEFINITIONS[name]
    return Examiner(definition, ProgramCallee(definition, command, send, 10.0, 0)).judge(definition.cases)


def compiled(folder, name, source, *compiler):
    """A program that a compiler made; skip the test without one."""
    if shutil.which(compiler[0]) is None:
        pytest.skip(f"there is no {compiler[0]}")
    (folder / name).write_text(source, encoding="utf-8")
    program = folder / "program"
    subprocess.run([*compiler, str(folder / name), "-o", str(program), *["-lm"] * (compiler[0] == "cc")], check=True)
    return [str(program)]


def test_attention_in_c_from_the_template_is_right_and_its_slip_is_named(tmp_path):
    blank = write_template("attend", DEFINITIONS["attend"], "c")
    assert BLANK in blank
    source = blank.replace(BLANK, ATTEND)
    assert judge("attend", compiled(tmp_path, "right.c", source, "cc", "-O2", "-Wall", "-Werror"), "npy").is_right
    wrong = source.replace("score / sqrt(K)", "score / K")
    (cause,) = judge("attend", compiled(tmp_path, "wrong.c", wrong, "cc", "-O1"), "npy").causes
    assert cause.slip.name == "the scale of the scores is applied twice"


def test_a_program_in_rust_that_reads_bare_numbers_is_right(tmp_path):
    assert judge("silu", compiled(tmp_path, "silu.rs", SILU, "rustc", "--edition", "2021"), "raw").is_right


@pytest.mark.parametrize("name", [name for name, one in DEFINITIONS.items() if not one.drive][::3])
def test_a_template_of_python_is_a_function_that_the_stage_takes(name):
    definition = DEFINITIONS[name]
    source = write_template(name, definition, "numpy")
    space = {"__name__": "mine"}
    exec(source, space)
    (function,) = [one for one in space.values() if getattr(one, "__module__", "") == "mine"]
    findings = Examiner(definition, open_object(definition, function, "numpy", {})).judge(definition.cases[:1])
    assert findings.is_missing


def test_a_template_of_c_is_of_stages_whose_inputs_have_an_order():
    for name, definition in [(name, one) for name, one in DEFINITIONS.items() if not one.drive]:
        try:
            text = write_template(name, definition, TEMPLATES[-1])
        except UsageError as error:
            assert "only some cases have" in str(error)
        else:
            assert text.count("read_array();") >= 1
