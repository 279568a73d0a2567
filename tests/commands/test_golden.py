"""`golden`: cases in TOML, numbers in kilobytes, verdicts by stage, and the workflow of the page on numbers in CI."""

import itertools
import json
import os
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

import attnkit
from attnkit.commands.golden.cases import read_cases
from attnkit.commands.golden.report import write_annotations
from attnkit.commands.golden.summaries import (
    compare_full,
    compare_stored,
    read_summary,
    signs_of,
    summarize_tensor,
    write_summary,
)
from attnkit.errors import DataError
from tests import actions, process
from tests.places import ROOT

DRAWN = np.random.default_rng(5).standard_normal((300, 500)).astype(np.float32)
LAYER = "embed 'the cat sat on the mat' --dim 32 | posenc | attend --heads 4 --seed 1 | ffn --hidden 64 --seed 2"


def golden(folder, *arguments, **env):
    done = process.run("golden", *arguments, cwd=folder, env={"COLUMNS": "100", **env})
    return done.code, done.out.decode(), done.err


def write_cases(folder, **cases):
    """Write numbers.toml, a table for each case."""
    lines = [
        f"[{name}]\n" + "".join(f"{key} = {json.dumps(one)}\n" for key, one in case.items())
        for name, case in cases.items()
    ]
    (folder / "numbers.toml").write_text("\n".join(lines))


def verdicts(folder, *arguments):
    """The verdict of each stage by `case: stage`."""
    found = json.loads(golden(folder, "numbers.toml", "-f", "json", *arguments)[1])["labels"]
    return dict(zip(found["stage"], found["verdict"], strict=True))


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda x: x, "identical"),
        (lambda x: np.nextafter(x, np.float32(9)), "rounding"),
        (lambda x: np.where(x == x[7, 7], x + np.float32(0.02), x), "changed"),
        (lambda x: x * np.float32(1.00001), "changed"),
        (lambda x: x + np.float32(1e-4), "changed"),
        (lambda x: x[:, ::-1], "changed"),
        (lambda x: x[::-1], "changed"),
        (lambda x: np.where(x == x[7, 7], np.nan, x), "new NaN"),
        (lambda x: np.where(x == x[7, 7], -np.inf, x), "changed"),
        (lambda x: x.astype(np.float64), "changed"),
        (lambda x: x.reshape(500, 300), "changed"),
    ],
)
def test_the_verdict_of_a_large_tensor_by_its_sums_and_samples(change, verdict):
    now = np.ascontiguousarray(change(DRAWN))
    assert compare_stored(summarize_tensor(DRAWN), now).verdict == verdict


def test_a_summary_is_small_and_is_read_again_as_it_was():
    summary = summarize_tensor(DRAWN)
    written = json.dumps(write_summary(summary))
    assert len(written) < 4000 and (len(summary.sums), len(summary.samples)) == (64, 17)
    assert read_summary(json.loads(written), "f") == summary
    small = summarize_tensor(DRAWN[:4, :5])
    assert small.samples == tuple(map(float, DRAWN[:4, :5].ravel())) and small.sums == ()


def test_every_number_counts_in_one_sum():
    summary = summarize_tensor(DRAWN.astype(np.float64))
    runs = (DRAWN.ravel() * signs_of(DRAWN.size)).astype(np.float64)
    edges = [-(-at * DRAWN.size // 64) for at in range(65)]
    expected = [runs[a:b].sum() for a, b in itertools.pairwise(edges)]
    np.testing.assert_allclose(summary.sums, expected, atol=1e-9)
    assert abs(signs_of(10**5).sum()) < 1000


def test_samples_are_those_that_were_stored_where_two_numbers_are_largest():
    x = np.float32(np.random.default_rng(1).uniform(-1, 1, (40, 50)))
    x[3, 4] = x[30, 40] = 2.0
    now = x.copy()
    now[30, 40] = np.nextafter(np.float32(2), np.float32(3))
    assert compare_stored(summarize_tensor(x), now).verdict == "rounding"


def test_sums_that_overflow_are_stored_as_large_numbers():
    x = np.full(1000, 1.5e308)
    summary = summarize_tensor(x)
    assert read_summary(json.loads(json.dumps(write_summary(summary), allow_nan=False)), "f") == summary
    assert compare_stored(summary, x.copy()).verdict == "identical"
    assert compare_stored(summary, x / 2).verdict == "changed"


def test_whole_tensors_see_what_sums_do_not():
    summary, now = summarize_tensor(DRAWN), DRAWN.copy()
    now[123, 321] += np.float32(0.0005)
    assert compare_stored(summary, now).verdict == "rounding"
    outcome = compare_full(DRAWN, now, summary)
    assert outcome.verdict == "changed" and outcome.words.startswith("first at [123][321]; 0.000667 %")
    now[123, 321] = np.nan
    assert compare_full(DRAWN, now, summary).verdict == "new NaN"


def test_whole_numbers_are_changed_or_a_tie():
    then, now = summarize_tensor(np.array([1, 2])), np.array([1, 3])
    assert compare_stored(then, now).verdict == "changed"
    tied = summarize_tensor(np.array([1, 2]), ties=[np.array([1, 3])])
    assert compare_stored(tied, now).verdict == "rounding"
    assert read_summary(json.loads(json.dumps(write_summary(tied))), "f") == tied


@pytest.mark.parametrize(
    "values",
    [[], {"dtype": "float32"}, {"dtype": 1, "shape": "x", "sha256": ""},
     {"dtype": "float32", "shape": [2], "sha256": "", "samples": [[9, 0, 0]]},
     {"dtype": "float32", "shape": [2], "sha256": "", "sums": [1]},
     {"dtype": "float32", "shape": [2], "sha256": "", "noise": [1]}],
)  # fmt: skip
def test_a_summary_that_is_none_is_refused(values):
    with pytest.raises(DataError, match="not a file of golden numbers"):
        read_summary(values, "f")


def test_a_pipeline_is_judged_stage_by_stage(tmp_path):
    write_cases(tmp_path, layer={"pipeline": LAYER})
    assert golden(tmp_path, "numbers.toml", "--bless")[0] == 0
    stored = json.loads((tmp_path / "numbers.golden.json").read_text())
    tensors = stored["cases"]["layer"]["tensors"]
    assert [*tensors] == ["1.embed/x", "1.embed/ids", "1.embed/table", "2.posenc/x", "3.attend/x", "4.ffn/x"]
    derived = summarize_tensor(attnkit.run(" | ".join(LAYER.split(" | ")[:3]))["x"])
    assert 0.1 < tensors["3.attend/x"]["noise"][0] / derived.noise < 0.9, "it is measured"
    assert stored["cases"]["layer"]["machine"].count(",") == 2 and stored["cases"]["layer"]["reason"] == "first numbers"
    assert set(verdicts(tmp_path).values()) == {"identical"}
    write_cases(tmp_path, layer={"pipeline": LAYER.replace("--heads 4", "--heads 2")})
    found = verdicts(tmp_path)
    assert [*found.values()] == ["identical", "identical", "changed", "changed"]
    assert "layer: the first stage that moved is 3.attend" in golden(tmp_path, "numbers.toml")[1]


def test_another_kernel_of_blas_is_rounding(tmp_path):
    write_cases(tmp_path, layer={"pipeline": f"{LAYER} | layernorm"})
    assert golden(tmp_path, "numbers.toml", "--bless")[0] == 0
    stored = json.loads((tmp_path / "numbers.golden.json").read_text())
    tensor = stored["cases"]["layer"]["tensors"]["4.ffn/x"]
    unit = 2.0**-23 * tensor["largest"]  # as if another machine had stored it
    tensor["samples"] = [[at, number + unit * (-1) ** at, noise] for at, number, noise in tensor["samples"]]
    tensor["sums"] = [[number + 2 * unit * (-1) ** at, noise] for at, (number, noise) in enumerate(tensor["sums"])]
    tensor["sha256"], stored["cases"]["layer"]["machine"] = "0" * 64, "OpenBLAS Abacus, NumPy 2.0.0, 1 thread"
    (tmp_path / "numbers.golden.json").write_text(json.dumps(stored))
    code, out, _ = golden(tmp_path, "numbers.toml")
    assert code == 0 and verdicts(tmp_path)["layer: 4.ffn"] == "rounding"
    assert re.search(r"^stored on OpenBLAS Abacus, NumPy 2.0.0, 1 thread; this is \S", out, re.MULTILINE)


def test_what_is_identical_or_rounding_stays_as_it_was_stored(tmp_path):
    write_cases(tmp_path, a={"command": ["echo", "[[1.5, 2.5]]"]}, b={"command": "echo 7.5"})
    assert golden(tmp_path, "numbers.toml", "--bless")[0] == 0
    before = (tmp_path / "numbers.golden.json").read_bytes()
    assert golden(tmp_path, "numbers.toml", "--bless")[0] == 0
    assert (tmp_path / "numbers.golden.json").read_bytes() == before
    write_cases(tmp_path, a={"command": ["echo", "[[1.5, 2.5]]"]}, c={"command": "echo 8.5"})
    code, _, err = golden(tmp_path, "numbers.toml", "--bless")
    assert code == 2 and "the numbers of b changed; --reason TEXT" in err
    assert golden(tmp_path, "numbers.toml", "--bless", "--reason", "b is c now")[0] == 0
    stored = json.loads((tmp_path / "numbers.golden.json").read_text())
    assert [*stored["cases"]] == ["a", "c"]
    assert stored["reasons"] == [
        {"reason": "first numbers", "cases": ["a", "b"]},
        {"reason": "b is c now", "cases": ["c", "b"]},
    ]


def test_programs_write_any_format_to_standard_output_or_a_file(tmp_path):
    np.savez(tmp_path / "in.npz", a=np.float32([1.5]), b=np.float32([2.5]))
    np.save(tmp_path / "in.npy", np.float32([1.5, 3.5]))
    (tmp_path / "sub").mkdir()
    write_cases(
        tmp_path,
        npz={"command": "cat in.npz"},
        npy={"shell": "cat in.npy && cat in.npy"},
        json={"command": ["printf", '{"w": [[1, 2]], "v": [0.5]}']},
        file={"shell": "cp in.npy sub/out.npy", "output": "sub/out.npy"},
    )
    assert golden(tmp_path, "numbers.toml", "--bless")[0] == 0
    assert [*verdicts(tmp_path)] == ["npz: output", "npy: output", "npy: output#2", "json: output", "file: output"]
    stored = json.loads((tmp_path / "numbers.golden.json").read_text())["cases"]
    assert [*stored["json"]["tensors"]] == ["output/w", "output/v"]
    assert stored["json"]["tensors"]["output/w"]["dtype"] == "float64", "1 may be 1.5 tomorrow"


def test_a_file_that_was_there_before_does_not_count(tmp_path):
    np.save(tmp_path / "out.npy", np.float32([1.5]))
    write_cases(tmp_path, a={"command": "true", "output": "out.npy"})
    code, out, _ = golden(tmp_path, "numbers.toml")
    assert code == 3 and "it did not write out.npy" in out


def test_cases_run_in_the_folder_of_their_file(tmp_path):
    (tmp_path / "inner").mkdir()
    np.save(tmp_path / "inner" / "x.npy", np.float32([[1.5, 2.5]]))
    write_cases(tmp_path / "inner", a={"pipeline": "layernorm x.npy"}, b={"command": "cat x.npy"})
    assert golden(tmp_path, "inner/numbers.toml", "--bless")[0] == 0
    assert (tmp_path / "inner" / "numbers.golden.json").exists()


def test_a_command_runs_without_a_shell_and_is_ended_in_time(tmp_path):
    write_cases(
        tmp_path,
        quoted={"command": "echo 1.5; touch canary"},
        late={"command": "sleep 30", "timeout": 0.05},
        endless={"shell": "while true; do sleep 1; done", "timeout": 0.2},
        lines={"shell": "yes '[1.5]' | head -300"},
    )
    code, out, _ = golden(tmp_path, "numbers.toml")
    assert code == 3 and not (tmp_path / "canary").exists()
    assert "no answer within 0.05 s" in out and "no answer within 0.2 s" in out
    assert "more than 200 records" in re.sub(r"\s+", " ", out)


def test_too_much_output_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("attnkit.commands.golden.runs.MOST", 1000)
    write_cases(tmp_path, large={"shell": "yes"}, file={"shell": "yes | head -c 2000 > out.npy", "output": "out.npy"})
    code, out, _ = golden(tmp_path, "numbers.toml")
    assert (
        code == 3
        and out.count("more than 1000 bytes") == 1
        and "file    failed" in re.sub(r"(?m)^file +failed", "file    failed", out)
    )


def test_a_pipeline_writes_no_files(tmp_path):
    write_cases(
        tmp_path, a={"pipeline": "embed a --dim 2 -o out.npz"}, b={"pipeline": "run 'embed a --dim 2' --save d"}
    )
    code, out, _ = golden(tmp_path, "numbers.toml")
    assert code == 3 and "--output: a case writes no files" in out and "run cannot be a stage" in out
    write_cases(tmp_path, a={"pipeline": "golden numbers.toml"})
    code, out, _ = golden(tmp_path, "numbers.toml")
    assert code == 3 and "golden cannot be a stage of a case" in out
    assert os.listdir(tmp_path) == ["numbers.toml"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a]\ncommand = 'x' 'y'", "not TOML"),
        ("a" * (1 << 20) + " = 1", "longer than 1048576 bytes"),
        ("[a]\ncommand = [1]", "command is not text or a list of words"),
        ('[a]\ncommand = "it\'s"', "[a]: command has a quotation mark that is not closed"),
        ('[a]\ncommand = "a\\u0000b"', "command is not text or a list of words"),
        ("[a]\nshell = ['x']", "shell is not text"),
        ("[a]\npipeline = ''", "[a]: pipeline is empty"),
        ("[a]\ncommand = ' '", "[a]: command is empty"),
        ("[a]\nshell = ' '", "[a]: shell is empty"),
        ("[a]\npipeline = 3", "pipeline is not text"),
        ("[a]\ncommand = 'x'\nshell = 'y'", "expected one of pipeline, command, shell, got command and shell"),
        ("[a]\ncommand = 'x'\nonly = [1]", "only: expected names of tensors"),
        ("[a]\ncommand = 'x'\nrtol = 'y'", "rtol: expected a number of at least 0, got y"),
        ("[a]\ncommand = 'x'\natol = nan", "atol: expected a number of at least 0, got nan"),
        ("[a]\ncommand = 'x'\ntimeout = true", "timeout: expected a number of at least 0, got True"),
        ("['a/b']\ncommand = 'x'", "a name has up to 80 letters"),
        ("timeout = -1\n[a]\ncommand = 'x'", "timeout: expected a number of at least 0, got -1"),
    ],
)
def test_a_bad_file_of_cases_is_refused(tmp_path, text, problem):
    (tmp_path / "n.toml").write_text(text)
    with pytest.raises(DataError) as caught:
        read_cases(str(tmp_path / "n.toml"))
    assert problem in str(caught.value)


def test_a_tolerance_of_the_user_counts_in_place_of_noise(tmp_path):
    for tolerance, verdict in (({"rtol": 0.1}, "rounding"), ({"atol": 0.2}, "rounding"), ({"rtol": 0.01}, "changed")):
        write_cases(tmp_path, a={"command": "cat x.json", **tolerance})
        (tmp_path / "x.json").write_text("[1.5, 2.5]")
        (tmp_path / "numbers.golden.json").unlink(missing_ok=True)
        assert golden(tmp_path, "numbers.toml", "--bless")[0] == 0
        (tmp_path / "x.json").write_text("[1.6, 2.6]")
        assert verdicts(tmp_path) == {"a: output": verdict}


def test_a_tolerance_of_the_user_counts_for_all_numbers_of_a_large_tensor():
    summary, own = summarize_tensor(DRAWN), {"rtol": 1e-3}
    within = (DRAWN * np.float32(1.0009)).astype(np.float32)
    assert compare_stored(summary, within, **own).verdict == "rounding", "a common factor within it is no change"
    now = DRAWN.copy()
    now.ravel()[1:6000] *= np.float32(1.5)  # none of them is a sample
    outcome = compare_stored(summary, now, **own)
    assert outcome.verdict == "changed" and outcome.words == "sum 1 of 64 is beyond the tolerance"
    assert compare_stored(summary, now, rtol=0.6).verdict == "rounding"
    assert compare_stored(summary, now, atol=1e9, rtol=2.0).verdict == "rounding"
    one = DRAWN.copy()
    one[123, 321] *= np.float32(1.01)
    assert compare_full(DRAWN, one, summary, **own).words.startswith("first at [123][321]; 0.000667 % beyond the tol")
    assert compare_full(DRAWN, one, summary, rtol=0.02).verdict == "rounding"
    assert compare_full(DRAWN, within, summary, **own).verdict == "rounding"


def test_whole_tensors_of_another_dtype_are_changed():
    assert compare_full(DRAWN, DRAWN.astype(float), summarize_tensor(DRAWN)).verdict == "changed"


def test_a_stored_case_that_is_gone_is_missing(tmp_path):
    write_cases(tmp_path, a={"command": "echo 1.5"}, b={"pipeline": "embed a --dim 2 | layernorm"})
    assert golden(tmp_path, "numbers.toml", "--bless", "--full")[0] == 0
    write_cases(tmp_path, a={"command": "echo 1.5"})
    code, out, _ = golden(tmp_path, "numbers.toml")
    assert code == 1 and "stored, and no longer a case" in out and "2 cases: 1 identical, 1 missing" in out
    assert verdicts(tmp_path) == {"a: output": "identical", "b": "missing"}
    assert verdicts(tmp_path, "--case", "a") == {"a: output": "identical"}
    code, out, _ = golden(tmp_path, "numbers.toml", "--bless", "--case", "a", "--reason", "b is tested elsewhere")
    assert code == 0 and out.splitlines()[-2:] == ["stored: 0 cases", "removed: 1 case: b"]
    assert golden(tmp_path, "numbers.toml")[0] == 0
    assert [*np.load(tmp_path / "numbers.golden.npz")] == ["a/output/x", "meta.json"]


def test_a_reason_is_text(tmp_path):
    write_cases(tmp_path, a={"command": "echo 1.5"})
    assert golden(tmp_path, "numbers.toml", "--bless")[0] == 0
    write_cases(tmp_path, a={"command": "echo 2.5"})
    assert golden(tmp_path, "numbers.toml", "--bless", "--reason", " ")[0] == 2
    assert golden(tmp_path, "numbers.toml", "--bless", "--reason", "caf\udce9 ")[0] == 0
    assert json.loads((tmp_path / "numbers.golden.json").read_text())["reasons"][1]["reason"] == "caf\\xe9"


def test_only_some_tensors_count(tmp_path):
    write_cases(
        tmp_path, a={"pipeline": "embed 'a b' --dim 4 | attend --keep weights,scores", "only": ["weights", "x"]}
    )
    assert golden(tmp_path, "numbers.toml", "--bless")[0] == 0
    stored = json.loads((tmp_path / "numbers.golden.json").read_text())
    assert [*stored["cases"]["a"]["tensors"]] == ["1.embed/x", "2.attend/weights", "2.attend/x"]
    write_cases(tmp_path, a={"pipeline": "embed 'a b' --dim 4", "only": ["wieghts"]})
    assert "no tensor 'wieghts'" in golden(tmp_path, "numbers.toml")[1]


def test_junit_has_a_suite_for_each_case(tmp_path):
    write_cases(
        tmp_path, a={"command": "echo 1.5"}, b={"command": "false"}, c={"pipeline": "embed a --dim 2 | layernorm"}
    )
    golden(tmp_path, "numbers.toml", "--bless", "--case", "a")
    code, out, _ = golden(tmp_path, "numbers.toml", "-f", "junit")
    suites = ElementTree.fromstring(out)
    counts = {one.get("name"): (one.get("tests"), one.get("failures"), one.get("errors")) for one in suites}
    assert code == 3 and counts == {"a": ("1", "0", "0"), "b": ("1", "0", "1"), "c": ("2", "2", "0")}
    assert suites[1][0][0].get("message") == "failed: it ended with exit code 1"
    assert suites[2][0][0].get("message") == "new: x (also ids, table)"


def test_annotations_name_the_line_of_the_case(tmp_path):
    write_cases(tmp_path, a={"command": "echo 1.5"}, b={"command": "sh -c 'echo 50% >&2; exit 1'"})
    golden(tmp_path, "numbers.toml", "--bless", "--case", "a")
    report = attnkit.golden(tmp_path / "numbers.toml")
    assert not report.same and report.status == 3
    annotation = "line=4,title=golden%3A b::failed: it ended with exit code 1: 50%25"
    assert write_annotations(report) == f"::error file={tmp_path}/numbers.toml,{annotation}"
    code, _, err = golden(tmp_path, "numbers.toml", GITHUB_ACTIONS="true")
    assert (code, err) == (
        3,
        "::error file=numbers.toml,line=4,title=golden%3A b::failed: it ended with exit code 1: 50%25\n",
    )


def test_the_numbers_of_the_samples_are_golden():
    report = attnkit.golden(ROOT / "samples" / "numbers.toml")
    assert report.same and len(report.results) >= 18, repr(report)
    assert {one.verdict for one in report.results} <= {"identical", "rounding"}


@pytest.fixture
def repository(tmp_path):
    """A repository with golden numbers of a program and a pipeline; and how the job of the page runs there."""
    (tmp_path / "numbers.toml").write_text(
        '[port]\ncommand = "cat port.json"\n[layer]\npipeline = "embed cat --dim 8 | layernorm"\n'
    )
    (tmp_path / "port.json").write_text("[[0.5, 1.5], [2.5, 4.75]]")
    assert golden(tmp_path, "numbers.toml", "--bless")[0] == 0
    programs = tmp_path / "bin"
    programs.mkdir()
    python = programs / "python3"  # as pip would install attnkit for it
    python.write_text(f'#!/bin/sh\ncase "$2" in pip) echo "$@" >> pip.txt;; *) exec {sys.executable} "$@";; esac\n')
    python.chmod(0o755)
    page = (ROOT / "attnkit" / "help" / "numbers.md").read_text(encoding="utf-8")
    [workflow] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    environment = process.environment(PYTHONPATH=str(ROOT), PATH=f"{programs}:{os.environ['PATH']}")
    return lambda: actions.run_workflow(workflow, tmp_path, environment)


@pytest.mark.slow
def test_the_workflow_of_the_page_runs_and_names_a_change(repository, tmp_path):
    (tmp_path / "port.json").write_text("[[0.5, 1.5], [2.5, 4.8]]")
    code, printed, summary = repository()
    where = "::error file=numbers.toml,line=1,title=golden%3A port::output changed: x: "
    assert code == 1 and printed == f"{where}first sample beyond rounding: [1][1]\n"
    assert (tmp_path / "pip.txt").read_text() == f"-m pip install --quiet {ROOT}/.github/actions/golden/../../..\n"
    assert summary.startswith("### Golden numbers: numbers.toml\n\n| case |")
    assert "| port | output | changed |" in summary and "| layer | 2.layernorm | identical |" in summary
    suites = ElementTree.parse(tmp_path / "golden.xml").getroot()
    assert [one.get("failures") for one in suites] == ["1", "0"]
