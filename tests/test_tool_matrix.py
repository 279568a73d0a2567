"""Every cell of the table of tools and kinds of models in `attnkit help models` is what the tool does."""

import numpy as np
import pytest

from tests.tool_matrix import KINDS, NOTHING, REFUSED, TOOLS, cells, read_table, run_cell, write_table

NOT_COMPUTED = {**cells(NOTHING), **cells(REFUSED)}


def test_the_page_has_the_table():
    assert read_table() == write_table(), "python -m tests.tool_matrix writes it"


def test_each_cell_has_one_reason_at_most():
    named = [(tool, kind) for table in (NOTHING, REFUSED) for tools in table.values() for tool in tools
             for kind in tools[tool].split(", ")]  # fmt: skip
    assert len(named) == len({*named}) and {*named} <= {(tool, kind) for tool in TOOLS for kind in KINDS}


@pytest.mark.parametrize("tool", TOOLS)
def test_every_cell_of_a_tool(tool, tmp_path, monkeypatch):
    if "jax" in tool:
        jax = pytest.importorskip("jax")
        from attnkit.backends.jax.engine import JaxEngine

        def trace(engine, model, dtype, layers, key, compute, arguments):
            """Return zeros of the shapes that a program has, which is not compiled; tests/backends has its numbers."""
            placed = engine.placed(model, dtype)
            program = lambda arrays, *rest: compute(placed.assemble(arrays, layers), *rest)  # noqa: E731
            shapes = jax.eval_shape(program, placed.arrays(layers), *arguments)
            return jax.tree.map(lambda one: np.zeros(one.shape, one.dtype), shapes)

        monkeypatch.setattr(JaxEngine, "call", trace)
    for kind, examples in KINDS.items():
        for number, example in enumerate(examples):
            folder = tmp_path / f"{kind}-{number}"
            folder.mkdir()
            done = run_cell(tool, example, folder)
            if done is None:
                continue
            cell = f"{tool}, {kind}: {done.err}"
            if (tool, kind) not in NOT_COMPUTED:
                assert done.code == 0, cell
                continue
            assert done.code, f"{cell}works: delete its reason in tests/tool_matrix.py, and write the table anew"
            assert done.code in (2, 3) and done.err.count("\n") == 1, cell
