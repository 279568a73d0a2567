"""`diff --rounding`: three verdicts by noise that is measured from a history, or derived from arrays alone."""

import json

import numpy as np
import pytest

import attnkit
from attnkit.cli import replay
from attnkit.errors import DataError
from attnkit.formats import save
from attnkit.interpret.comparison import Pair
from attnkit.interpret.rounding_report import Noise, RoundingPair, describe_histories, describe_line
from attnkit.model.rounding import EPSILON, Judgement, LinearFit, rows_of
from attnkit.records import Record
from tests import process
from tests.places import ROOT

LAYER = "embed 'the cat sat on the mat' --dim 32 | posenc | attend --heads 4 --seed 1 | ffn --hidden 64 --seed 2"


def diff(folder, *arguments):
    code, out, err = process.run("diff", *arguments, "--rounding", env={"NO_COLOR": "1", "COLUMNS": "100"}, cwd=folder)
    return code, out.decode().splitlines(), err


@pytest.fixture(scope="module")
def record():
    return attnkit.run(LAYER)


@pytest.fixture(scope="module")
def noise(record):
    return replay.measure_noise(record)


def test_measured_noise_is_some_units_in_the_last_place(record, noise):
    largest = np.abs(record["x"]).max()
    floor = noise.floors["x"]
    assert floor.shape == (6, 1) and (floor > EPSILON["float32"] * largest).all()
    assert (floor < 200 * EPSILON["float32"] * largest).all()
    assert [*noise.floors] == ["x"] and noise.ties == {}, "ids and table are drawn, in no other dtype"


def test_noise_of_float64_is_smaller_by_the_ratio_of_units(noise):
    wide = replay.measure_noise(attnkit.run(LAYER.replace("--dim 32", "--dim 32 --dtype float64")))
    ratio = np.median(wide.floors["x"] / noise.floors["x"])
    assert 0.2 < ratio / (EPSILON["float64"] / EPSILON["float32"]) < 5


@pytest.mark.parametrize(
    ("dtype", "least", "most"), [("float64", 0, 1e-14), ("float32", 1e-8, 1e-6), ("float16", 1e-5, 1e-3)]
)
def test_a_result_in_a_coarser_dtype_than_its_reference_is_rounding_in_either_order(dtype, least, most):
    reference = attnkit.run(LAYER.replace("--dim 32", "--dim 32 --dtype float64"))
    mine = Record({"x": attnkit.run(LAYER)["x"] if dtype == "float32" else reference["x"].astype(dtype)})
    for pair in (Pair(reference, mine), Pair(mine, reference)):
        report = RoundingPair(pair, lambda: replay.measure_noise(reference)).compare()
        [judged] = [one for one in report.judged if one.name == "x"]
        assert judged.verdict == ("identical" if dtype == "float64" else "rounding")
        assert least <= judged.judgement.relative < most
    wrong = Record({"x": mine["x"] * mine["x"].dtype.type(1.02)})
    wrong = RoundingPair(Pair(reference, wrong), lambda: replay.measure_noise(reference)).compare()
    assert wrong.labels["verdict"][0] == "different"


@pytest.mark.parametrize(
    "command", ["check attend -- touch {}", "run 'check attend -- touch {}'", "golden {}.toml", "train {}.txt -o {}"]
)
def test_no_program_of_a_history_runs_to_measure_noise(tmp_path, command):
    canary = tmp_path / "canary"
    (tmp_path / "canary.toml").write_text(f'[a]\nshell = "touch {canary}; echo 1"\n')
    (tmp_path / "canary.txt").write_text("a b c " * 200)
    record = Record(
        {"x": np.eye(2)}, history=({"command": f"attnkit {command.format(canary, canary)}", "version": "0.1.0"},)
    )
    noise = replay.measure_noise(record)
    assert not noise.floors and noise.problem and not canary.exists()


@pytest.mark.parametrize(
    "command", ["golden a.toml", "run 'golden a.toml --bless'", "train a.txt -o folder", "check attend -- touch a"]
)
def test_a_history_that_runs_programs_or_writes_files_is_not_run_again(command):
    with pytest.raises(DataError, match="a command that runs programs or writes files"):
        replay.parse_history(Record({}, history=({"command": f"attnkit {command}", "version": "0.1.0"},)))


def test_what_a_tool_computes_in_one_dtype_alone_has_derived_noise():
    def run(change):
        stage = replay.parse_command("attnkit layernorm")
        change(stage)
        x = np.float32([0.1, 0.2])  # as a tool computes it that converts its result
        return Record({"x": x.astype(stage.common.get("dtype", "float32"))})

    assert replay.compare_runs(run).floors == {}


def test_the_dtype_of_a_cost_is_no_rounding():
    story = str(ROOT / "samples" / "data" / "story")
    record = attnkit.run(f"cost {story} --tokens 4")
    assert len(record) and replay.measure_noise(record).ties == {}


def test_noise_of_a_narrow_dtype(record):
    half = attnkit.run(LAYER.replace("--dim 32", "--dim 32 --dtype float16"))
    floor = replay.measure_noise(half).floors["x"]
    assert half["x"].dtype == np.float16
    off = np.abs(rows_of(half["x"]) - rows_of(record["x"])).max(axis=-1, keepdims=True)
    assert (off < floor).all() and (floor < 0.1).all()


def test_a_rounded_result_is_rounding_and_a_changed_one_is_different(record, noise):
    pair = Pair(record, record.with_tensors({"x": np.nextafter(record["x"], np.float32(99))}))
    report = RoundingPair(pair, lambda: noise).compare()
    assert report.same and report.labels["verdict"] == ["rounding", "identical", "identical"]
    moved = record["x"].copy()
    moved[4, 7] += 0.001
    report = RoundingPair(Pair(record, record.with_tensors({"x": moved})), lambda: noise).compare()
    assert not report.same and report["first"][0].tolist() == [4, 7]
    assert report.labels["first"][0] == "token 4 'the', model 7" and report["beyond"][0] == 1 / 192


def test_a_tie_of_whole_numbers_is_measured():
    table = Record({"x": np.float32([[1.0, 1.0 + 2.0**-23]])})

    def run(change):
        stage = replay.parse_command("attnkit layernorm")
        change(stage)
        wide = stage.common.get("dtype") == "float64"
        return Record({"x": np.array([[0.1, 0.2]], float if wide else np.float32), "ids": np.array([int(wide)])})

    measured = replay.compare_runs(run)
    assert [one.tolist() for one in measured.ties["ids"]] == [[1], [0], [1], [1]]
    report = RoundingPair(
        Pair(table.with_tensors({"ids": np.array([0])}), table.with_tensors({"ids": np.array([1])})), lambda: measured
    ).compare()
    assert report.same and report.labels["verdict"] == ["identical", "rounding"]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (None, ""),
        ("attnkit layernorm", "its first command read standard input"),
        ("attnkit layernorm /dev/fd/63", "/dev/fd/63 cannot be read again"),
        ("attnkit layernorm missing.npy", "missing.npy: No such file or directory"),
        ("touch canary", "its history has a command that is not attnkit's: touch canary"),
    ],
)
def test_a_history_that_cannot_run_leaves_noise_derived(tmp_path, command, problem):
    files = {"/dev/fd/63": "0" * 64} if command and "/dev" in command else {}
    history = [{"command": command, "version": "0.1.0", "files": files}] if command else []
    save(Record({"x": np.float32([[0.1, 0.2]])}, history=history), str(tmp_path / "a.npz"))
    save(Record({"x": np.float32([[0.1, 0.2000001]])}), str(tmp_path / "b.npz"))
    code, lines, err = diff(tmp_path, "a.npz", "b.npz")
    assert (code, err) == (0, "")
    derived = "rounding: at most 7 ulp, 5.2e-07 of the largest (x); noise derived from dtype, depth and size"
    assert lines[3:] == [derived, *[f"its history was not run: {problem}"] * bool(problem)]
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("scale", lambda x: 1.5 * x, "x: B = 1.5 · A; the rest is rounding"),
        ("offset", lambda x: x + np.float32(0.05), "x: B = A + 0.05; the rest is rounding"),
        ("both", lambda x: 2 * x - 1, "x: B = 2 · A − 1; the rest is rounding"),
        ("transposed", lambda x: x.T, "x: B is A transposed"),
        (
            "nan",
            lambda x: np.where(x == x[2, 3], np.nan, x).astype(np.float32),
            "x: 1 number of B is NaN, and finite in A",
        ),
        ("inf", lambda x: np.where(x > 0, np.inf, x).astype(np.float32), None),
        ("one wrong", lambda x: x + np.eye(8, dtype=np.float32)[:, ::-1] * (x == x[2, 3]), None),
    ],
)
def test_what_explains_a_difference_is_said(tmp_path, name, change, sentence):
    x = np.random.default_rng(3).standard_normal((8, 8)).astype(np.float32)
    np.save(tmp_path / "a.npy", x)
    np.save(tmp_path / "b.npy", change(x))
    code, lines, _ = diff(tmp_path, "a.npy", "b.npy")
    assert (code == 1 and lines[2].startswith("different: first x [")) or lines[2].startswith("x")
    assert sentence is None or sentence in lines


def test_histories_that_differ_name_the_first_stage(tmp_path):
    for name, seed in (("a", 1), ("b", 3)):
        save(
            attnkit.run(LAYER.replace("attend --heads 4 --seed 1", f"attend --heads 4 --seed {seed}")),
            f"{tmp_path}/{name}.npz",
        )
    code, lines, _ = diff(tmp_path, "a.npz", "b.npz", "--only", "x")
    assert code == 1
    assert (
        "the commands differ first in stage 3: attnkit attend --heads 4 --seed 1 | attnkit attend --heads 4 --seed 3"
        in lines
    )
    entry = {"command": "attnkit attend --params w.npz", "version": "0.1.0", "files": {"w.npz": "0" * 64}}
    a, b = Record({}, history=[entry]), Record({}, history=[entry | {"files": {"w.npz": "1" * 64}}])
    assert describe_histories(a, b) == ["stage 1 read another w.npz"]
    assert describe_histories(a, Record({})) == []
    assert describe_histories(a, Record({}, history=[entry, {"command": "attnkit ffn"}])) == [
        "one side has a further stage: attnkit ffn"
    ]


def test_machines_of_both_sides_are_named():
    x, y = np.float32([0.1, 0.2, 0.3]), np.float32([0.1, 0.2, np.nextafter(np.float32(0.3), np.float32(1))])
    a, b = (Record({"x": one}, history=[{"command": "attnkit ffn", "machine": m}]) for one, m in ((x, "P"), (y, "Q")))
    lines = RoundingPair(Pair(a, b), Noise).compare().blocks(attnkit.display.DEFAULT_STYLE)[-1].block.line
    assert lines == "A on P; B on Q"


def test_traces_stop_at_the_first_stage_that_differs(tmp_path):
    for name, norm in (("a", 2.0), ("b", 2.5)):
        tensors = {
            "decoder.embed": np.float32([0.1]),
            "decoder.0.norm1": np.float32([norm]),
            "decoder.norm": np.float32([9]),
        }
        save(Record(tensors), str(tmp_path / f"{name}.npz"))
    code, lines, _ = diff(tmp_path, "a.npz", "b.npz")
    assert code == 1 and lines[2].split()[:2] == ["decoder.0.norm1", "different"]
    assert lines[-1] == "1 later stage not compared; --all compares all"
    assert diff(tmp_path, "a.npz", "b.npz", "--all")[1][-1] != lines[-1]


def test_the_record_and_the_cells_of_a_report(tmp_path):
    np.save(tmp_path / "a.npy", np.float32([1, 2, 4]))
    np.save(tmp_path / "b.npy", np.float32([1.5, 3, 6]))
    code, out, _ = process.run("diff", "a.npy", "b.npy", "--rounding", "-f", "json", cwd=tmp_path)
    found = json.loads(out)
    assert code == 1 and found["tensors"]["same"]["data"] is False and found["labels"]["verdict"] == ["different"]
    assert found["tensors"]["scale"]["data"] == pytest.approx([1.5]) and found["tensors"]["rest"]["data"][0] < 1e-9
    assert found["tensors"]["beyond"]["data"] == [1.0] and found["tensors"]["first"]["data"] == [[0]]
    out = process.run("diff", "a.npy", "b.npy", "--rounding", "-f", "csv", cwd=tmp_path).out
    assert out.decode().splitlines()[0] == "tensor,verdict,largest,ulp,relative,noise,beyond,scale,offset,rest,first"


def test_a_line_leaves_out_what_changes_nothing():
    judged = Judgement("different", largest=0.5, relative=0.25, noise=1e-7)
    assert describe_line(LinearFit(1.25, 1e-9, 0), judged) == "1.25 · A"
    assert describe_line(LinearFit(1.0, -0.5, 0), judged) == "A − 0.5"
