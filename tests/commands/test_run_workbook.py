"""The workbook of a pipeline: its formulas give the numbers of the pipe, computed by the spreadsheet of the tests."""

import json
import math
import re
import shutil
import subprocess
import zipfile

import numpy as np
import pytest

from tests.places import MODELS
from tests.process import run
from tests.spreadsheet import Place, Workbook

X = [[1, 0, 2, -1], [0.5, 1, 0, 1], [2, 1, 1, 0]]
BATCH = [X, [[0, 1, 2, -1], [0.5, 1, 3, 1], [2, 1, 1, 7]]]
FILES = {
    "gamma.json": [1, 2, 3, 4],
    "weights.json": [[0.5, 0.5, 0], [1, 0, 0], [0, 0, 1]],
    "memory.json": [[1, 1, 0, 2], [3, 0, 1, 1]],
    "table.json": [[1, 0, 1, 1], [2, 1, 1, 0], [0.5, 0, 0, 1]],
    "mask.json": [[True, False, True], [False, False, False], [True, True, True]],
    "lengths.json": [2, 3],
    "short.json": [[True, False], [True, True], [False, True]],
    "added.json": [[0, -1], [0.5, 0], [2, 0]],
}


@pytest.fixture
def here(tmp_path):
    for name, values in FILES.items():
        (tmp_path / name).write_text(json.dumps(values))
    np.savez(tmp_path / "linear.npz", w=np.arange(8).reshape(4, 2) / 3, b=np.ones(2))
    return tmp_path


def work(here, pipeline, x=X):
    """The workbook of a pipeline, and the x that it returns."""
    given, data = (["-"], json.dumps(x).encode()) if x is not None else ([], b"")
    done = run("run", pipeline, *given, "-q", "-o", "sheet.xlsx", cwd=here, stdin=data)
    assert (done.code, done.out, done.err) == (0, b"", "")
    result = json.loads(run("run", pipeline, *given, "-q", "-f", "json", cwd=here, stdin=data).out)
    return Workbook(here / "sheet.xlsx"), np.array(result["tensors"]["x"]["data"])


def numbers(workbook):
    """The places of the cells that hold numbers."""
    return [place for place, cell in workbook.cells.items() if isinstance(cell.value, float)]


def notes(workbook):
    return [cell.value for cell in workbook.cells.values() if str(cell.value).startswith("values: ")]


def check(workbook, x, tolerance=1e-12):
    """Compare every computed cell with its stored value, and those of the last x with the pipe's."""
    largest = max(
        1, *(abs(workbook.cells[place].value) for place in numbers(workbook) if not is_infinite(workbook, place))
    )
    for place in numbers(workbook):
        assert math.isclose(workbook.value(place), workbook.cells[place].value, abs_tol=1e-12 * largest), place
    found = workbook.block("x (", workbook.sheets[-1])
    expected = np.atleast_2d(x)
    expected = expected.reshape(-1, *expected.shape[-2:])[0]  # of the first text or head
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1, np.abs(expected).max()))


def is_infinite(workbook, place):
    return abs(workbook.cells[place].value) >= 1e299


LIVE = [
    "attend",
    "attend --heads 2 --seed 1",
    "attend --heads 2 --kv-heads 1 --seed 1 --residual",
    "attend --causal --window 1,0 --softcap 2 --scale 0.3",
    "attend --score dot --concat",
    "attend --heads 2 --emit scores",
    "attend --bias weights.json --lengths lengths.json",
    "attend --mask mask.json",
    "attend --mask short.json",
    "attend --mask added.json --heads 2",
    "softmax --mask short.json",
    "softmax --mask added.json",
    "attend --weights-from weights.json --heads 2",
    "attend --memory memory.json --seed 2",
    "mask --causal | attend --heads 2",
    "mask --causal --window 1,1 --any --invert | attend",
    "mask --chunk 2 | softmax",
    "softmax --temperature 0.5",
    "layernorm --gamma gamma.json --beta gamma.json --eps 0.1",
    "layernorm --kind rms",
    "layernorm --kind batch",
    "linear --params linear.npz",
    "ffn --hidden 6 --seed 1 --gated --activation silu --residual",
    *(
        f"ffn --hidden 3 --seed 1 --activation {name}"
        for name in ("gelu", "gelu-tanh", "quick-gelu", "tanh", "sigmoid")
    ),
    "posenc",
    "posenc --layout halves --base 100 --offset 3",
    "posenc --kind learned --seed 1",
    "decode --table table.json --temperature 2 --emit probs",
    "attend --heads 2 --seed 1 --residual | layernorm | ffn --hidden 8 --seed 3 --residual | layernorm",
]


@pytest.mark.parametrize("pipeline", LIVE)
def test_the_formulas_give_the_numbers_of_the_pipe(here, pipeline):
    workbook, x = work(here, pipeline, BATCH if "lengths" in pipeline else X)
    assert notes(workbook) == []
    assert sum(map(workbook.is_computed, numbers(workbook))) >= np.size(x)
    check(workbook, x)


@pytest.mark.parametrize("pipeline", ["attend --heads 2 --seed 1", "mask --lengths lengths.json | attend", "layernorm"])
def test_each_text_of_a_batch_has_its_block(here, pipeline):
    workbook, x = work(here, pipeline, BATCH)
    check(workbook, x)
    assert sum(cell.value == "batch 1" for cell in workbook.cells.values()) >= 1


def test_words_positions_and_probabilities(here):
    line = (
        "embed 'a b a c' --dim 4 --seed 1 --dtype float64 --scale | posenc | mask --causal | attend --heads 2 | decode"
    )
    workbook, x = work(here, line, None)
    assert workbook.sheets == ["1 embed", "2 posenc", "3 mask", "4 attend", "5 decode"]
    check(workbook, x, 1e-6)  # the table of random words is float32
    assert notes(workbook) == []
    check(*work(here, "embed 'a b a' --one-hot", None))
    check(*work(here, "posenc --size 3 --dim 4", None))


def formulas(workbook, sheet):
    return [cell.formula for place, cell in workbook.cells.items() if cell.formula and place.sheet == sheet]


def test_the_formulas_of_attention_by_hand(here):
    """The numbers of the lecture: The has the weights .4223, .1554 and .4223."""
    workbook, _ = work(here, "attend", [[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 1, 1]])
    found = formulas(workbook, "1 attend")
    assert "MMULT($B$12:$E$14,TRANSPOSE($B$19:$E$21))" in found
    assert "$B$33/SQRT(4)" in found
    assert "EXP($B$40:$D$40-MAX($B$40:$D$40))/SUM(EXP($B$40:$D$40-MAX($B$40:$D$40)))" in found
    weights = workbook.block("weights (", "1 attend")
    np.testing.assert_allclose(weights[0], [0.42231879825, 0.1553624035, 0.42231879825], atol=1e-10)
    assert workbook.cells[Place("1 attend", 1, 1)].value == "attnkit attend"


def test_a_changed_input_changes_what_is_computed_from_it(here):
    workbook, _ = work(here, "mask --causal | attend --heads 2 --seed 1 | layernorm")
    changed = [[7, *X[0][1:]], *X[1:]]
    first = next(place for place in numbers(workbook) if place.sheet == "2 attend" and not workbook.is_computed(place))
    assert workbook.value(first) == X[0][0]
    workbook.set(first, 7.0)
    _, x = work(here, "mask --causal | attend --heads 2 --seed 1 | layernorm", changed)
    np.testing.assert_allclose(workbook.block("x (", "3 layernorm"), x, atol=1e-12)


def test_a_blocked_score_is_shown_as_infinite_and_a_fully_masked_row_is_zero(here):
    workbook, _ = work(here, "attend --mask mask.json")
    masked, weights = (workbook.block(f"{name} (", "1 attend") for name in ("masked", "weights"))
    assert (masked[1] == -1e300).all() and masked[0, 1] == -1e300 and masked[0, 0] == 3
    assert (weights[1] == 0).all() and weights[2].sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(
    ("pipeline", "count"),
    [
        ("rnn --cell gru --hidden 3 --seed 1", 1),
        ("attend --score additive --seed 1 | layernorm", 1),
        ("posenc --kind rotary --heads 2 | attend --heads 2", 1),
        ("decode --table table.json --top-k 2 --emit probs", 1),
        ("softmax --axis 1", 0),
        ("softmax --axis 0", 1),
    ],
)
def test_a_stage_without_formulas_has_its_values_and_says_so(here, pipeline, count):
    workbook, x = work(here, pipeline)
    assert len(notes(workbook)) == count
    check(workbook, x)


def test_words_of_markup_are_escaped(here):
    (here / "x.csv").write_text('"<b>&\'",1,0\n=1+1,0,1\n')
    assert run("run", "attend x.csv", "-q", "-o", "sheet.xlsx", cwd=here).code == 0
    texts = {cell.value for cell in Workbook(here / "sheet.xlsx").cells.values() if isinstance(cell.value, str)}
    assert {"<b>&'", "=1+1"} <= texts


def test_a_layer_of_a_model_is_live(here):
    model = "models/gpt2"
    (here / "models").symlink_to(MODELS)
    line = f"embed hello --model {model} | attend --model {model} --layer decoder.0.self"
    workbook, x = work(here, line, None)
    assert len(notes(workbook)) == 1  # the embedding of the model
    check(workbook, x, 1e-5)


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (
            ["attend", "memory.json", "-o", "a.xlsx"],
            2,
            "attend: a.xlsx: a workbook has the stages of a pipeline: attnkit run '… | attend …' -o a.xlsx",
        ),
        (
            ["run", "posenc --size 400 --dim 400", "-o", "a.xlsx"],
            3,
            "run: the workbook would have more than 100,000 numbers; fewer words, a smaller --dim or fewer stages",
        ),
        (
            ["run", "attend memory.json", "--steps", "--blank", "x", "-o", "a.xlsx"],
            2,
            "run: --blank: needs a sheet: -o FILE.html, .pdf, .md, .svg or .png",
        ),
        (["run", "show memory.json", "-o", "a.xlsx"], 2, "run: no stage of the pipeline computes a tensor for a sheet"),
        (
            ["run", "attend memory.json", "-o", "none/a.xlsx"],
            4,
            "run: cannot write none/a.xlsx: No such file or directory",
        ),
    ],
)
def test_what_is_no_workbook(here, words, code, problem):
    done = run(*words, cwd=here)
    assert (done.code, done.out, done.err) == (code, b"", f"attnkit {problem}\n")
    assert not (here / "a.xlsx").exists()


def test_a_stream_is_no_workbook(here):
    done = run("run", "attend", "-", "-o", "a.xlsx", cwd=here, stdin=b"[[1,2]] [[3,4]]")
    assert done.code == 3 and "xlsx holds one record" in done.err
    assert not (here / "a.xlsx").exists()


def without_results(source, target):
    """Copy a workbook without the stored values of formulas, so that a program has to compute them."""
    computed = re.compile(r'(<c r="[A-Z]+\d+" s="0">)(<f.*?</f>)?<v>[^<]*</v>')
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, computed.sub(lambda match: match[1] + (match[2] or ""), old.read(name).decode()))


@pytest.mark.slow
def test_libreoffice_computes_the_same_numbers(here):
    office = shutil.which("soffice") or shutil.which("libreoffice")
    if not office:
        pytest.skip("no LibreOffice on PATH")
    line = (
        "mask --causal | attend --heads 2 --seed 1 --residual | layernorm | ffn --hidden 8 --seed 2 --activation gelu"
    )
    workbook, _ = work(here, line)
    without_results(here / "sheet.xlsx", here / "empty.xlsx")
    command = [office, "--headless", f"-env:UserInstallation=file://{here}/profile", "--convert-to", "xlsx"]
    subprocess.run([*command, "--outdir", "out", "empty.xlsx"], cwd=here, check=True, capture_output=True, timeout=120)
    computed = Workbook(here / "out" / "empty.xlsx")
    for place in numbers(workbook):
        assert math.isclose(computed.cells[place].value, workbook.cells[place].value, abs_tol=1e-12), place
