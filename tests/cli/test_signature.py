"""The tools as functions of Python: their signatures, help and the stub that type checkers read."""

import inspect
import pydoc
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit.cli import find_tool
from attnkit.cli.signature import write_stub
from attnkit.errors import UsageError, flag_name

CALLS = runpy.run_path(str(Path(__file__).parent / "typed_calls.py"))
PACKAGE = Path(attnkit.__file__).parent


def test_the_stub_declares_every_tool_as_it_is():
    functions = {name: getattr(attnkit, name) for name in attnkit.TOOLS}
    assert (PACKAGE / "__init__.pyi").read_text() == write_stub(functions)


@pytest.mark.parametrize("name", attnkit.TOOLS)
def test_a_tool_is_a_function_with_the_names_and_defaults_of_its_flags(name):
    function, tool = getattr(attnkit, name), find_tool(name)
    assert inspect.isfunction(function) and function.__name__ == name
    inputs = len(tool.python.inputs) or 1
    parameters = dict(list(inspect.signature(function).parameters.items())[inputs:])
    flags = [flag_name(parameter) for parameter in parameters]
    assert flags == [*map(flag_name, tool.python_options)]
    for flag, default in tool.defaults.items():
        assert parameters.get(flag, parameters.get(flag.rstrip("_"))).default is default
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters.values())


def test_help_shows_types_defaults_and_choices():
    assert {name for name in attnkit.TOOLS if "(*" in str(inspect.signature(getattr(attnkit, name)))} == set()
    page = pydoc.plain(pydoc.render_doc(attnkit.attend))
    assert "heads: int = 1" in page and "model: Checkpoint | Path | None = None" in page
    assert 'align: Literal["top-left", "bottom-right"] | None = None' in page and "-> Record" in page
    assert "Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V" in page and "\b" not in page


@pytest.mark.parametrize("name", attnkit.TOOLS)
def test_the_docstring_describes_every_parameter(name):
    function = getattr(attnkit, name)
    _, has_list, text = inspect.getdoc(function).partition("\n\nParameters:\n")
    listed = [line.split()[0] for line in text.partition("\n\n")[0].splitlines() if line[2] != " "]
    parameters = inspect.signature(function).parameters.values()
    assert listed == [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    assert inspect.getdoc(getattr(attnkit, name)).count("\nParameters:\n") == bool(has_list)  # asked for a second time
    assert "Parameters:" not in find_tool(name).function.__doc__  # which the command line shows


def test_the_docstring_has_the_text_of_the_flag_and_ends_with_the_example():
    text = inspect.getdoc(attnkit.attend)
    flags = find_tool("attend").flags
    for name in ("heads", "kv_heads"):
        assert f"\n  {name:<13}  {flags[name].help}"[:60] in text
    assert text.rstrip().split("\n")[-2] == "Example:"


def test_calls_that_a_type_checker_accepts_run(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(2, 3))
    assert list(CALLS["attend_in_a_pipeline"]()) == ["x", "weights"]
    shapes = [record["x"].shape for record in CALLS["pass_files_arrays_and_records"](str(tmp_path / "x.npy"))]
    assert shapes == [(2, 3)] * 5
    assert CALLS["record_what_a_program_computes"](tmp_path / "mine.npz")[1] == 2
    assert CALLS["show_compare_and_run"]() == (False, "#!/bin/sh", (2, 3))


def test_a_call_from_python_imports_no_rich():
    code = "import sys, attnkit; attnkit.attend([[1.0, 2.0]]); print('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize("name", attnkit.TOOLS)
def test_an_input_passed_by_keyword_is_refused_by_name(name):
    tool = find_tool(name)
    inputs = tuple(tool.python.inputs) or (tool.input_name,)
    for keyword in ("item", tool.input_name, *inputs):
        with pytest.raises(
            UsageError, match=rf"^{name} takes its input by position: {name}\({', '.join(inputs)}, …\)$"
        ):
            getattr(attnkit, name)(**{keyword: np.ones((2, 2))})


def test_the_input_is_not_a_keyword_where_it_is_passed_by_position_too():
    with pytest.raises(UsageError, match="takes its input by position"):
        attnkit.attend(np.ones((2, 2)), item=np.ones((2, 2)))
