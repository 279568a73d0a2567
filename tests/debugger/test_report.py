"""The lines of a report of a comparison: what is compared, the first site that differs, and causes."""

import numpy as np
import pytest

from attnkit.debugger.report import (
    Facts,
    brief,
    describe_addition,
    make_verdict,
    opening_lines,
    verdict_cells,
    verdict_lines,
)
from attnkit.debugger.verdict import Cause, SiteRow

FACTS = Facts("mine.npz", names="the names of Hugging Face", found=(3, 9), dtype="bfloat16", why=True)
NAMED = SiteRow(
    "a", "numeric", 1.0, 0.5, 0.25, 0.75, 1e-3, verdict="named", causes=(Cause("one", 2e-4), Cause("two", 3e-4))
)
MORE = [SiteRow(site, "numeric", verdict="named", causes=NAMED.causes[::-1]) for site in "bc"]
SAME = SiteRow("s", largest=1e-4)


def lines(*rows, **facts):
    return verdict_lines(make_verdict(rows, Facts(**{**vars(FACTS), **facts})))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, []),
        ({"tokens": 1}, ["token ids: the same (1 token)"]),
        ({"tokens": 7, "ids": "token 2 differs"},
         ["token ids: token 2 differs; the stages are judged with those of mine.npz (7 tokens)"]),
        ({"ids": "token 2 differs"}, []),
    ],
)  # fmt: skip
def test_token_ids_come_first(facts, expected):
    report = make_verdict([], Facts(**{**vars(FACTS), **facts}))
    stages = "stages: 3 of 9 are in mine.npz, by the names of Hugging Face; bfloat16"
    assert opening_lines(report) == [*expected, stages]


def test_other_names_and_notes_follow():
    report = make_verdict([], Facts("f", "their names", found=(1, 1), unknown=("x", "y", "z"), notes=("a note",)))
    assert opening_lines(report) == [
        "stages: 1 of 1 are in f, by their names; float32",
        "not compared: 3 other names of no stage, as x, y and 1 more",
        "a note",
    ]


def test_nothing_that_differs_has_the_largest_difference():
    rows = [
        SAME,
        SiteRow("t", largest=2e-4),
        SiteRow("m", "missing", largest=9.0),
        SiteRow("r", "reordered", largest=0.0),
    ]
    assert lines(*rows) == ["rounding: the same within the noise of bfloat16 (largest difference 0.0002, t)"]
    assert lines() == ["nothing to compare"]


def test_one_cause_of_several_sites_is_said_once():
    assert lines(SAME, NAMED, *MORE) == [
        "first stage that adds a difference: a (it adds 0.75)",
        "a: becomes equal (difference 0.0002 instead of 0.75) if one or two",
        "  the same explains 2 more stages: b, c",
    ]
    assert lines(NAMED)[1:] == ["a: becomes equal (difference 0.0002 instead of 0.75) if one or two"]
    assert lines(NAMED, why=False)[1:] == ["--why looks for the cause"]


@pytest.mark.parametrize(
    ("row", "dtype", "expected"),
    [
        (SiteRow("a", "numeric", added=0.123, noise=0.056, verdict="undecidable", causes=(Cause("one", 0.1),)),
         "bfloat16",
         "a: undecidable at bfloat16 (it adds 0.12; noise is 0.06): one would explain it; record in float32"),
        (SiteRow("a", "numeric", added=0.123, noise=0.056, verdict="undecidable"), "float32",
         "a: undecidable at float32 (it adds 0.12; noise is 0.06); record in float64"),
        (SiteRow("a", "numeric", added=0.123, noise=0.056, verdict="undecidable"), "float64",
         "a: undecidable at float64 (it adds 0.12; noise is 0.06); take a longer text"),
        (SiteRow("a", "numeric", added=0.123, verdict="unknown", causes=(Cause("one", 0.011), Cause("two", 0.1))),
         "float32",
         "a: no known slip explains it (it adds 0.12); the nearest: one leaves 0.011; two leaves 0.1"),
        (SiteRow("a", "numeric", added=0.123, verdict="unknown"), "float32",
         "a: no known slip explains it (it adds 0.12); the nearest: none"),
        (SiteRow("a", "shape", note="shape (2,), expected (3,)"), "float32", "a: shape (2,), expected (3,)"),
        (SiteRow("a", "not finite", note="nan in row 1, column 2"), "float32", "a: nan in row 1, column 2"),
        (SiteRow("a", "numeric", added=0.1234), "float32", "a: it adds 0.123"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_site_that_differs(row, dtype, expected):
    assert lines(row, dtype=dtype)[1:] == [expected]
    assert lines(row)[0] == f"first stage that adds a difference: a ({describe_addition(row)})"


def test_four_sites_without_a_named_cause_have_a_sentence():
    unknown = [SiteRow(site, "numeric", added=1.0, verdict="unknown") for site in "uvwxyz"]
    for count, last in (
        (4, []),
        (5, ["1 more stage without a named cause"]),
        (6, ["2 more stages without a named cause"]),
    ):
        found = lines(*unknown[:count], NAMED)
        assert [line[0] for line in found[1:5]] == ["u", "v", "w", "x"]
        assert found[5:] == ["a: becomes equal (difference 0.0002 instead of 0.75) if one or two", *last]


def test_figures_in_few_digits():
    assert [brief(*one) for one in ((0.1234, 1e-6, 2), (1e-6, 1e-6, 2), (0.0, 1e-6, 2), (2e-6, 1e-6, 1))] == [
        "0.12", "noise", "0", "2e-06"]  # fmt: skip
    row = SiteRow("a", "numeric", largest=1.23456, cosine=0.12345678, inherited=0.0456789, added=1.2345, noise=0.0123,
                  verdict="unknown")  # fmt: skip
    report = make_verdict([SAME, row], FACTS)
    assert verdict_cells(report)[1:] == [["a", "1.235", "0.123457", "0.046", "1.2", "unknown"]]
    assert verdict_cells(report, 1)[1:] == [["a", "1", "0.123", "0.05", "1", "unknown"]]
    assert verdict_cells(report, 0)[1:] == verdict_cells(report, 1)[1:]
    report = make_verdict([SAME, row], Facts("mine.npz", shows_all=True))
    assert verdict_cells(report) == [
        ["stage", "max |a−b|", "cosine", "inherited", "added", "noise", ""],
        ["s", "0.0001", "–", "–", "–", "–", "rounding"],
        ["a", "1.235", "0.123457", "0.046", "1.2", "0.01", "unknown"],
    ]


def test_the_record_of_a_report_has_figures_and_words():
    report = make_verdict([SAME, NAMED], FACTS)
    assert not report.same and make_verdict([SAME], FACTS).same
    assert not make_verdict([SAME], Facts("f", ids="token 2 differs")).same
    for name, number in (("largest", 1.0), ("cosine", 0.5), ("inherited", 0.25), ("added", 0.75), ("noise", 1e-3)):
        assert report[name][1] == number and report[name].shape == (2,)
    assert report.labels["cause"] == ["", "one; two"] and report.labels["verdict"] == ["", "named"]
    assert report["kind"].tolist() == [False, True]
    table = report.cells()
    assert table.rows[1] == ["a", 1.0, 0.5, 0.25, 0.75, 1e-3, "numeric", "named", "one; two"]
    assert np.isnan(table.rows[0][2])
