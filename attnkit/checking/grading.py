"""Reports for graders: JUnit's XML, and the JSON of Gradescope."""

import json
from collections.abc import Sequence
from xml.etree import ElementTree

from attnkit.checking.report import Checked, CheckReport, describe_row, reason_lines
from attnkit.checking.verdict import MISSING

VISIBILITIES = ("visible", "hidden", "after_due_date", "after_published")


def write_junit(report: CheckReport) -> str:
    """A test suite for each stage, with a test for each property.

    The sentence on the slip is the message of the first that fails.
    """
    suites = ElementTree.Element("testsuites", name="attnkit check")
    for part in report.parts:
        rows = part.findings.rows if part.findings else ()
        counts = {status: sum(row.status == status for row in rows) for status in ("FAIL", "skip", "note")}
        suite = ElementTree.SubElement(
            suites,
            "testsuite",
            name=part.stage,
            tests=str(max(len(rows), 1)),
            failures=str(counts["FAIL"]),
            errors=str(int(part.findings is None)),
            skipped=str(counts["skip"] + counts["note"]),
        )
        if part.findings is None:
            case = ElementTree.SubElement(suite, "testcase", classname=part.stage, name="call")
            ElementTree.SubElement(case, "error", message=part.problem)
        reasons = reason_lines(part, report.hides)
        for row in rows:
            case = ElementTree.SubElement(suite, "testcase", classname=part.stage, name=row.name)
            if row.status == "FAIL":
                message = "; ".join([describe_row(row), *reasons])
                ElementTree.SubElement(case, "failure", message=clean(message))
                reasons = []
            elif row.status != "ok":
                ElementTree.SubElement(case, "skipped", message=clean(describe_row(row)))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode")


def clean(text: str) -> str:
    """A text without the control characters that XML refuses.

    >>> clean("a\\x00b")
    'a?b'
    """
    return "".join(one if one.isprintable() else "?" for one in text)


def write_gradescope(report: CheckReport, visibility: str = "visible") -> str:
    """results.json of Gradescope: a test for each stage, scored by its share.

    Source: the specification of Gradescope's autograders.
    """
    tests = [
        {
            "name": part.stage,
            "score": round(part.share * part.points, 2),
            "max_score": part.points,
            "status": "passed" if part.status == "ok" else "failed",
            "output": "\n".join(describe_part(part, report.hides)),
            "visibility": visibility,
        }
        for part in report.parts
    ]
    score = round(sum(part.share * part.points for part in report.parts), 2)
    return json.dumps({"score": score, "tests": tests}, ensure_ascii=False, indent=1)


def describe_part(part: Checked, hides: bool) -> Sequence[str]:
    """The lines of a stage: its properties, and why not all are right."""
    if part.status == "skip":
        return [MISSING]
    rows = part.findings.rows if part.findings else ()
    lines = [f"{row.status:4}  {row.name}  {describe_row(row)}".rstrip() for row in rows]
    return [*lines, part.count(), *reason_lines(part, hides)]
