"""Dumps under the names of other tools, compared by the command line with the models that they are of."""

import numpy as np
import pytest

from attnkit import checkpoints, model
from attnkit.debugger.names import locate_sites
from attnkit.model.graph.nodes import Inputs
from attnkit.model.passes.model_graph import model_graph
from tests import process
from tests.debugger.test_names import EXPORTED, HOOKS, NAMES, NODES
from tests.places import folder


def compute_dump(name, names, tmp_path, change=lambda site, array: array):
    """The arrays of a model under other names, as an npz beside its ids."""
    checkpoint = checkpoints.open_checkpoint(folder(name))
    ids = np.random.default_rng(5).integers(5, 60, (1, 9))
    graph = model_graph(model.Model(checkpoint.config, checkpoint.params), Inputs(ids=ids))
    sites = {"ids": ids}
    for site in graph.nodes:
        graph.evaluate(site, dict(sites), memo=sites)
    fused, dump = {}, {}
    for site, source in locate_sites(names, checkpoint).sources.items():
        array = change(site, sites[site])
        if array.dtype.kind == "f":
            array = array.astype(np.float32)
        fused.setdefault(source.name, []).append(array)
    for each in names:
        if each in fused:
            array = np.concatenate(fused[each], axis=-1)
            dump[each] = array[0] if len(array) == 1 else array  # without a batch axis
    np.savez(tmp_path / "mine.npz", **dump)
    np.save(tmp_path / "ids.npy", ids)
    return ["diff", "--model", folder(name), "--ids", str(tmp_path / "ids.npy"), str(tmp_path / "mine.npz")], dump


def diff(command):
    code, out, err = process.run(*command, env={"NO_COLOR": "1"})
    assert not err
    return code, out.decode()


@pytest.mark.parametrize("name", ["gpt2", "llama", "modernbert", "openai-gpt"])
def test_names_of_modules(name, tmp_path):
    command, _ = compute_dump(name, list(NAMES[name]), tmp_path)
    code, out = diff(command)
    assert code == 0, out
    assert "the same within the noise of float32" in out
    shown = process.run(*command, "-f", "html").out.decode()
    assert "<h2>stages</h2>" in shown and "the same within the noise of float32" in shown and "<table>" not in shown


@pytest.mark.parametrize("names", [HOOKS, NODES, EXPORTED], ids=["hooks", "nodes", "exported"])
def test_names_of_other_tools(names, tmp_path):
    names = ["Qcur-0", *names] if names is NODES else [*names]
    command, dump = compute_dump("llama", names, tmp_path)
    code, out = diff(command)
    assert code == 0, out
    assert f"stages: {len(dump)} of 50" in out


def interleave(x, heads):
    return x.reshape(*x.shape[:-1], heads, 2, -1).swapaxes(-1, -2).reshape(x.shape)


def test_another_order_of_columns_is_a_finding(tmp_path):
    names = [name for name in NAMES["llama"] if name.endswith(".output")]
    heads = {"q_projected": 4, "k_projected": 2}

    def change(site, array):
        part = site.rpartition(".")[2]
        return interleave(array, heads[part]) if part in heads else array

    code, out = diff(compute_dump("llama", names, tmp_path, change)[0])
    assert code == 0
    assert "decoder.1.self.k_projected: columns interleaved in each head (in halves in the reference)" in out


def test_names_that_say_nothing_are_paired_by_value(tmp_path):
    command, dump = compute_dump("gpt2", list(NAMES["gpt2"]), tmp_path)
    np.savez(tmp_path / "mine.npz", **{f"tensor{at}": array for at, array in enumerate(dump.values())})
    code, out = diff([*command, "--match"])
    assert code == 0, out
    assert "is taken for decoder.1.self.k_projected by its values (100 % sure)" in out
    assert "the same within the noise of float32" in out
