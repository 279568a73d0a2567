"""Right implementations in every convention pass, and slips that are put into them are named, and no other."""

import json

import pytest

from tests.checking.slipped import RIGHT, judge, load, outcome_of, slipped
from tests.places import REFERENCES, ROOT

SAMPLED = (
    7  # of the slips of NumPy, every one of so many is judged here; tests/benchmarks/check_confusion.py judges all
)
WHOLE = ("multihead-rope", "block", "gpt-block", "encoder-layer", "decoder-layer", "lm")


def named(right):
    return f"{right.library}-{right.stage}-{right.name}"


def of(library):
    return [right for right in RIGHT if right.library == library]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("right", of("numpy"), ids=named)
def test_a_right_implementation_in_numpy_passes(right, dtype):
    if dtype == "float64" and right.name == "attention_numbers":
        pytest.skip("it takes the root in float32")
    findings = judge(right, load(right), dtype)
    assert findings.is_right, [(row.name, row.largest, row.words) for row in findings.failing]


def test_right_implementations_in_torch_pass():
    pytest.importorskip("torch")
    small = [right for right in of("torch") if right.stage not in WHOLE]
    for dtype in ("float32", "bfloat16"):
        assert [named(right) for right in small if not judge(right, load(right), dtype).is_right] == []


def test_slips_in_numpy_are_named():
    slips = [one for right in of("numpy") if right.stage not in WHOLE for one in slipped(right)][::SAMPLED]
    for one in slips:
        outcome = outcome_of(one.sentence, judge(one.right, load(one.right, one.source)))
        assert outcome in ("named", "one of several", "no effect"), (one.right, one.sentence, outcome)


def test_the_page_has_the_figures():
    counts = json.loads((REFERENCES / "check_slips.json").read_text(encoding="utf-8"))
    page = (ROOT / "attnkit" / "help" / "checking.md").read_text(encoding="utf-8")
    for dtype, by_stage in counts.items():
        total = {}
        for outcomes in (one for by_library in by_stage.values() for one in by_library.values()):
            for outcome, number in outcomes.items():
                total[outcome] = total.get(outcome, 0) + number
        seen = sum(number for outcome, number in total.items() if outcome != "no effect")
        columns = [seen, *(total.get(one, 0) for one in ("named", "one of several", "undecidable", "unknown", "wrong"))]
        assert f"| {dtype} | {' | '.join(map(str, columns))} |" in page
        assert total.get("wrong", 0) == 0
        if dtype == "float32":
            assert total["named"] + total["one of several"] >= 0.97 * seen
