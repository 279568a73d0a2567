"""What rounding explains of two arrays, and what it does not, by numbers that can be checked by hand."""

import numpy as np
import pytest

from attnkit.model.processor.machine import count_threads, describe_machine, find_openblas
from attnkit.model.rounding import (
    LinearFit,
    derived_floor,
    fit_line,
    held_dtype,
    judge_arrays,
    last_place,
    make_rounding,
    rows_of,
)

DRAWN = np.random.default_rng(7).standard_normal((64, 96))
X = DRAWN.astype(np.float32)


def test_a_row_of_small_numbers_has_the_noise_of_the_usual_row():
    unit, deep = 2.0**-24, 3 * 2.0**-24
    floor = derived_floor(np.array([[4.0], [4.0], [0.001]]), "float32", 9)
    assert floor[:, 0].tolist() == [8 * (unit + deep) * 4] * 3
    assert derived_floor(np.array([[1.0]]), "bfloat16", 9)[0, 0] == 8 * (2.0**-8 + deep), "sums are of float32"
    assert derived_floor(np.array([[1.0]]), "float64", 9)[0, 0] == 8 * (2.0**-53 + 3 * 2.0**-53)
    deepest = derived_floor(np.array([[1.0]]), "float32", 1 << 20)[0, 0]
    assert deepest == derived_floor(np.array([[1.0]]), "float32", 4096)[0, 0]


@pytest.mark.parametrize(
    ("mine", "verdict"),
    [
        (X, "identical"),
        (X.astype(np.float64), "identical"),
        (np.nextafter(X, np.float32(9)), "rounding"),
        ((DRAWN * (1 + 2.0**-24)).astype(np.float32), "rounding"),
        (X * np.float32(1.00001), "different"),
        (X + np.float32(3e-6), "different"),
        (1.5 * X, "different"),
        (X + np.float32(0.05), "different"),
        (-X, "different"),
        (X[::-1], "different"),
        (np.where(X[3, 4] == X, np.nan, X), "different"),
        (np.where(X[3, 4] == X, np.inf, X), "different"),
    ],
)
def test_the_verdict_of_an_array(mine, verdict):
    assert judge_arrays(X, np.asarray(mine)).verdict == verdict


def test_the_figures_of_one_wrong_number():
    a = np.array([[1.0, 2.0], [4.0, 3.0]], np.float32)
    b = a.copy()
    b[1, 0] = 4.5
    judged = judge_arrays(a, b)
    assert (judged.verdict, judged.at, judged.largest, judged.beyond) == ("different", (1, 0), 0.5, 0.25)
    assert judged.ulp == 0.5 / 2.0**-21 and judged.relative == 0.5 / 4.5


def test_the_first_number_beyond_rounding_and_the_largest_of_rounding():
    a = np.ones(5, np.float32)
    b = a + np.float32([0, 2.0**-23, 0.5, 0, 0.7])
    assert judge_arrays(a, b).at == (2,)
    near = judge_arrays(a, a + np.float32([2.0**-23, 0, 0, 2.0**-22, 0]))
    assert (near.verdict, near.at, near.ulp) == ("rounding", (3,), 2.0)


def test_measured_noise_counts_in_place_of_derived_noise():
    a = np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
    b = a.copy()
    b[0, 0], b[1, 1] = 1.125, 2.125
    assert judge_arrays(a, b, np.array([[0.25], [0.25]])).verdict == "rounding"
    assert judge_arrays(a, b, np.array([[0.25], [0.0625]])).at == (1, 1)


def test_a_common_factor_is_no_rounding_though_each_number_could_be():
    judged = judge_arrays(X, X * np.float32(1.000003))
    assert judged.is_systematic and judged.beyond == 0 and judged.line.scale == pytest.approx(1.000003, abs=1e-7)
    constant = np.float32(1) + np.float32(2.0**-23)  # 1/√d rounded otherwise
    assert judge_arrays(X, X * constant).verdict == "rounding"


def test_whole_numbers_are_the_same_or_a_tie():
    a, b = np.array([3, 5, 7]), np.array([3, 6, 7])
    assert judge_arrays(a, b).verdict == "different" and judge_arrays(a, b).at == (1,)
    assert judge_arrays(a, b, ties=[np.array([3, 6, 7])]).verdict == "rounding"
    assert judge_arrays(a, np.array([4, 6, 7]), ties=[np.array([3, 6, 7])]).at == (0,)
    assert judge_arrays(a > 4, b > 4).verdict == "identical"


def test_masked_scores_and_nan_in_one_place_are_the_same():
    a = np.array([[1.0, -np.inf], [np.nan, 2.0]], np.float32)
    assert judge_arrays(a, a.copy()).verdict == "identical"
    b = np.nextafter(a, np.float32(9))
    b[0, 1] = -np.inf
    assert judge_arrays(a, b).verdict == "rounding"


def test_float32_numbers_that_were_written_as_text_are_float32():
    text = X.astype(np.float64)
    assert held_dtype(text, DRAWN) == "float32" and held_dtype(DRAWN) == "float64"
    assert held_dtype(X, X.astype(np.float16)) == "float16"
    assert judge_arrays(text, np.nextafter(X, np.float32(9)).astype(float)).verdict == "rounding"
    assert judge_arrays(DRAWN, DRAWN * (1 + 1e-12)).verdict == "different"


def test_a_line_of_few_numbers():
    assert fit_line(np.array([2.0, 2.0]), np.array([3.0, 3.0])) == LinearFit(1.0, 1.0, 0.0)
    assert fit_line(np.array([np.nan]), np.array([1.0])) == LinearFit()
    assert fit_line(np.array([0.0, 1.0, np.inf]), np.array([1.0, 3.0, np.inf])) == LinearFit(2.0, 1.0, 0.0)


def test_units_in_the_last_place():
    for number in (1.0, 1.5, 0.75, 3e-30, 123456.0):
        assert last_place(number, "float32") == np.spacing(np.float32(number))
        assert last_place(number, "float64") == np.spacing(number)


def test_roundings_go_to_either_side():
    x = np.full(1000, 1 + 2.0**-11)  # in the middle between two numbers of float16
    ends = {float(one) for one in make_rounding("float16", 1)(x)}
    assert ends == {1.0, 1 + 2.0**-10}
    assert {*make_rounding("float16", 0)(x).tolist()} == {1.0}
    assert rows_of(np.zeros(())).shape == (1, 1) and rows_of(np.zeros((0, 3))).shape == (0, 3)


def test_the_machine_states_the_loops_of_blas_and_numpy():
    described = describe_machine()
    assert described.endswith(f", NumPy {np.__version__}") and len(described) < 60
    assert (count_threads() > 0) == (find_openblas("get_num_threads") is not None)
    assert find_openblas("no_such_function") is None
