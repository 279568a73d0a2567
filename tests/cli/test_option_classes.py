"""Classes of options: a parameter of a tool whose fields are its options, from the command line and from Python."""

from typing import Annotated, NamedTuple

import numpy as np
import pytest
import typer

from attnkit.cli import TOOLS, find_tool
from attnkit.cli.calls import tool
from attnkit.cli.catalog import describe_option
from attnkit.cli.constraints import Constraints
from attnkit.cli.parser import parse, write_page
from attnkit.cli.signature import describe_tool, write_stub
from attnkit.cli.tool import PythonForm
from attnkit.errors import UsageError
from attnkit.model.formulas.sampling import Sampling
from attnkit.options import ABOVE_0, OptionsOf, spread_options
from attnkit.records import Record


class Wave(NamedTuple):
    """A wave that is added."""

    period: Annotated[int | None, typer.Option(min=2, help="positions of a wave")] = None
    phase_: Annotated[float, typer.Option(help="where it begins")] = 0.5


class Look(NamedTuple):
    """How the result looks."""

    framed: Annotated[bool, typer.Option(help="draw a frame")] = False
    border: Annotated[int | None, typer.Option(min=1, help="columns of the frame")] = None


Sampled = Annotated[
    Sampling,
    OptionsOf(
        temperature=typer.Option(click_type=ABOVE_0, help="divide by T", metavar="T"),
        top_k=typer.Option(min=1, help="keep the K largest"),
        top_p=typer.Option(help="keep a share"),
        min_p=typer.Option(help="keep a share of the largest"),
        seed=typer.Option(min=0, help="seed of the draw"),
        sampling_order=typer.Option(help="which comes first"),
    ),
]


@tool(
    sections={"Wave": "wave", "Draw": "first sampling", "Figures": "look"},
    rules=Constraints(exclusive=[("period", "top_k")], requires=[("phase", "period"), ("border", "framed")]),
    extra={"look": Look},
    python=PythonForm(options=("framed",)),
)
def shift(
    record: Record,
    *,
    first: Annotated[int, typer.Option(help="the first position")] = 0,
    wave: Wave,
    sampling: Sampled,
    last: Annotated[int | None, typer.Option(help="the last position")] = None,
) -> Record:
    """Shift a record."""
    RECEIVED.append((first, wave, sampling, last))
    return record.with_tensors({"x": record["x"] + (wave.period or 0)})


RECEIVED = []
SHIFT, X = shift.tool, np.zeros((2, 3))
OWN = ["first", "period", "phase_", "temperature", "top_k", "top_p", "min_p", "seed", "sampling_order", "last"]


@pytest.fixture(autouse=True)
def _no_calls():
    RECEIVED.clear()


def run_line(*arguments):
    """The result of a command line, and what the function received."""
    stage = parse(SHIFT, [*arguments])
    return stage.apply(Record({}).with_tensors({"x": X})), RECEIVED[-1]


def test_the_fields_are_options_in_the_place_of_their_class():
    assert [*SHIFT.defaults] == [*SHIFT.flags] == OWN
    assert [*SHIFT.options][: len(OWN) + 2] == [*OWN, "framed", "border"]
    assert SHIFT.defaults["phase_"] == 0.5 and SHIFT.options["phase_"].opts == ["--phase"]


def test_a_command_line_hands_down_one_instance():
    result, received = run_line("--period", "4", "--temperature", "2", "--seed", "0")
    assert received == (0, Wave(4, 0.5), Sampling(temperature=2.0, seed=0), None)
    assert type(received[1]) is Wave and type(received[2]) is Sampling and result["x"][0, 0] == 4.0


def test_a_call_from_python_hands_down_one_instance():
    shift(X, period=4, phase=1, top_p=0.5)
    shift(X)
    assert [(0, Wave(4, 1.0), Sampling(top_p=0.5), None), (0, Wave(), Sampling(), None)] == RECEIVED
    with pytest.raises(UsageError, match=r"^period: expected a whole number of at least 2, got 1$"):
        shift(X, period=1)
    with pytest.raises(UsageError, match=r"^shift takes no 'wave'"):
        shift(X, wave=Wave())


@pytest.mark.parametrize(
    ("line", "values", "problem"),
    [
        (["--period", "2", "--top-k", "1"], {"period": 2, "top_k": 1}, "--period: cannot be combined with --top-k"),
        (["--phase", "1"], {"phase": 1}, "--phase: needs --period N"),
    ],
)
def test_constraints_hold_across_classes(line, values, problem):
    for call in (lambda: parse(SHIFT, line), lambda: shift(X, **values)):
        with pytest.raises(UsageError, match=f"^{problem}$"):
            call()
    assert parse(SHIFT, ["--phase", "0.5"]).parameters["phase_"] == 0.5  # the default of its class needs nothing


def test_the_history_has_the_options_that_differ_from_the_defaults_of_their_class():
    result, _ = run_line("--phase", "0.5", "--period", "3", "--seed", "0", "--framed")
    assert [entry["command"] for entry in result.history] == ["attnkit shift --period 3 --seed 0"]


def test_the_stub_has_the_fields_as_keywords():
    stub = write_stub({"shift": describe_tool(shift)})
    assert stub[stub.index("def shift") :].split("\n")[:14] == [
        "def shift(",
        "    record: TensorLike,",
        "    /,",
        "    *,",
        "    first: int = 0,",
        "    period: int | None = None,",
        "    phase: float = 0.5,",
        "    temperature: float | None = None,",
        "    top_k: int | None = None,",
        "    top_p: float | None = None,",
        "    min_p: float | None = None,",
        "    seed: int | None = None,",
        "    sampling_order: str | None = None,",
        "    last: int | None = None,",
    ]
    assert "    framed: bool = False," in stub and "border" not in stub


def test_the_name_of_a_class_is_a_section_of_all_its_fields():
    page = write_page(SHIFT)
    sections = dict(part.split(":\n", 1) for part in page.split("\n\n") if ":\n" in part)
    flags = {
        title: [line.split()[0] for line in text.splitlines() if line.startswith("  --")]
        for title, text in sections.items()
    }
    assert flags["Wave"] == ["--period", "--phase"] and flags["Figures"] == ["--framed", "--border"]
    assert flags["Draw"] == ["--first", "--temperature", "--top-k", "--top-p", "--min-p", "--seed", "--sampling-order"]
    described = describe_option(SHIFT, "period", SHIFT.titles["period"])
    assert described["section"] == "Wave" and (described["type"], described["minimum"]) == ("integer", 2)


def test_a_stage_collects_a_class_of_options_that_only_views_use():
    stage = parse(SHIFT, ["--framed", "--border", "2", "--period", "5"])
    assert stage.collect(Look) == Look(True, 2) and stage.collect(Wave) == Wave(5)
    assert parse(SHIFT, []).collect(Look) == Look(False, None)


@pytest.mark.parametrize("name", TOOLS)
def test_no_tool_has_an_option_twice(name):
    declared = find_tool(name)
    names = [*declared.parameters, *declared.extra]
    flat = [one for each in names for one in declared.fields.get(each, [each])]
    assert len(flat) == len({*flat}) and {*declared.titles} <= {*declared.options}


class Sea(NamedTuple):
    """A class with the options of other classes between its own."""

    depth: Annotated[int, typer.Option(help="below the first wave")] = 9
    wave: Wave = Wave()
    sampling: Sampled = Sampling()
    salt: Annotated[bool, typer.Option(help="it is salt water")] = False


@tool(sections={"Sea": "depth wave salt", "Draw": "sampling"})
def sail(record: Record, *, sea: Sea) -> Record:
    """Keep a record."""
    RECEIVED.append(sea)
    return record


def test_a_class_among_the_fields_of_a_class_stands_for_its_options():
    names = ["depth", "period", "phase_", "temperature", "top_k", "top_p", "min_p", "seed", "sampling_order", "salt"]
    assert [*sail.tool.flags] == names and sail.tool.titles["phase_"] == "Sea" and sail.tool.titles["seed"] == "Draw"
    sail(X, period=4, seed=2, salt=True)
    assert [Sea(9, Wave(4), Sampling(seed=2), True)] == RECEIVED and type(RECEIVED[0].wave) is Wave
    assert dict(zip(names, [9, 4, 0.5, *[None] * 4, 2, None, True], strict=True)) == spread_options(Sea, RECEIVED[0])
