"""Unnamed tensors paired with sites by size and value."""

import numpy as np
import pytest

from attnkit import checkpoints, model
from attnkit.debugger.matching import pair_tensors
from attnkit.model.graph.nodes import Inputs
from attnkit.model.passes.model_graph import model_graph
from tests.places import folder


def compute_sites(name, tokens=9):
    checkpoint = checkpoints.open_checkpoint(folder(name))
    ids = np.random.default_rng(5).integers(5, 60, (1, tokens))
    graph = model_graph(model.Model(checkpoint.config, checkpoint.params), Inputs(ids=ids))
    sites = {"ids": ids}
    for site in graph.nodes:
        graph.evaluate(site, dict(sites), memo=sites)
    del sites["ids"]
    return sites


class Lazy(dict):
    """Arrays of which one at a time is asked for."""

    def __init__(self, arrays):
        super().__init__(arrays)
        self.reads = []

    def __getitem__(self, name):
        self.reads.append(name)
        return super().__getitem__(name)


def shuffled(sites, change=lambda x: x):
    """The numbers of sites under other names, in another order."""
    rng = np.random.default_rng(1)
    order = rng.permutation(list(sites))
    return {f"tensor_{at}": change(sites[site]) for at, site in enumerate(order)}, dict(enumerate(order))


def as_bfloat16(x):
    return (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("change", [lambda x: x.astype(np.float32), as_bfloat16], ids=["float32", "bfloat16"])
def test_tensors_of_all_layers_are_paired_by_value(name, change):
    sites = compute_sites(name)
    mine, order = shuffled(sites, change)
    matches = pair_tensors(mine, sites, mine)
    assert len(matches) > 0.9 * len(sites)
    assert {match.sureness for match in matches} == {1.0}
    assert len({match.name for match in matches}) == len(matches)
    for match in matches:
        other = sites[order[int(match.name[7:])]]
        np.testing.assert_allclose(np.sort(other, axis=None), np.sort(sites[match.site], axis=None))  # or its twin


def test_layouts_differ():
    sites = {site: array for site, array in compute_sites("llama").items() if array.ndim == 4 and "masked" not in site}
    mine, _ = shuffled(sites, lambda x: x.swapaxes(1, 2)[0].astype(np.float32))
    matches = pair_tensors(mine, sites, mine)
    assert len(matches) > 0.7 * len(sites)
    assert all(match.distance < 1e-6 and match.done for match in matches)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_queries_keys_and_values_of_one_tensor(name):
    sites = {site: array for site, array in compute_sites(name).items() if site.endswith("_projected")}
    sites |= {
        "decoder.norm": np.random.default_rng(0).standard_normal((1, 9, sites["decoder.0.self.q_projected"].shape[-1]))
    }
    mine = {"norm": sites["decoder.norm"][0]}
    for layer in (1, 0):
        parts = [sites[f"decoder.{layer}.self.{letter}_projected"] for letter in "qkv"]
        mine[f"fused {layer}"] = np.concatenate(parts, axis=-1)[0].astype(np.float32)
    matches = pair_tensors(mine, sites, mine)
    assert [match.site for match in matches] == list(sites)
    for match in matches[:-1]:
        first, end, count = match.columns
        width = mine[match.name].shape[-1] // count
        assert match.name == f"fused {match.site[8]}"
        np.testing.assert_allclose(mine[match.name][:, first * width : end * width], sites[match.site][0], rtol=1e-6)


def test_a_fused_tensor_is_as_far_as_the_farthest_of_its_parts():
    """Of queries, keys and values one is wrong by half: closer than another tensor, and not sure."""
    rng = np.random.default_rng(0)
    sites = {f"decoder.0.self.{letter}_projected": rng.standard_normal((1, 5, 4)) for letter in "qkv"}
    parts = [*sites.values()]
    fused = np.concatenate([parts[0], 1.5 * parts[1], parts[2]], axis=-1)[0]
    matches = pair_tensors({"fused": fused, "norm": rng.standard_normal(7)}, sites, ["fused", "norm"])
    assert {(match.name, match.columns) for match in matches} == {("fused", (at, at + 1, 3)) for at in range(3)}
    assert [match.distance for match in matches] == pytest.approx([0.5] * 3)
    assert [match.sureness for match in matches] == pytest.approx([0.5] * 3)


def test_a_tensor_is_taken_for_the_site_of_its_own_layout():
    heads = np.random.default_rng(0).standard_normal((1, 2, 5, 3))
    sites = {"decoder.0.self.heads": heads, "decoder.0.self.joined": heads.swapaxes(1, 2).reshape(1, 5, 6)}
    mine = {"joined": sites["decoder.0.self.joined"] * (1 + 1e-8)}
    assert [match.site for match in pair_tensors(mine, sites, mine)] == ["decoder.0.self.joined"]


def test_a_tensor_that_differs_is_paired_with_less_sureness():
    rng = np.random.default_rng(0)
    sites = {f"decoder.{number}.norm1": rng.standard_normal((1, 7, 16)) for number in range(12)}
    mine = {f"x{number}": array + 0.3 * rng.standard_normal(array.shape) for number, array in enumerate(sites.values())}
    matches = pair_tensors(mine, sites, mine)
    assert [(match.name, match.site) for match in matches] == list(zip(mine, sites, strict=True))
    assert all(0.6 < match.sureness < 1 for match in matches)


def test_tensors_of_nothing_are_not_paired():
    rng = np.random.default_rng(0)
    sites = {"decoder.0.norm1": rng.standard_normal((1, 7, 16))}
    mine = {
        "noise": rng.standard_normal((1, 7, 16)),
        "zeros": np.zeros((1, 7, 16)),
        "long": np.ones(7),
        "none": np.ones(0),
    }
    assert pair_tensors(mine, sites, mine) == []


def test_arrays_are_read_one_at_a_time():
    sites, mine = Lazy(compute_sites("gpt2")), Lazy(compute_sites("gpt2"))
    pair_tensors(mine, sites, mine)
    assert sites.reads == list(sites)
    assert mine.reads[: len(mine)] == list(mine)
    assert len(mine.reads) < 6 * len(mine)
