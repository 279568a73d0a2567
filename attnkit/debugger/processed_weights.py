"""Dumps of TransformerLens with processed weights: norms folded, others centered."""

from collections.abc import Mapping

import numpy as np

from attnkit.debugger.dumps import Dump
from attnkit.debugger.names import TensorSource
from attnkit.model.graph.graph import Graph
from attnkit.records import Array

# the last parts of the sites that processed weights leave as they are
UNCHANGED = ("q_projected", "k_projected", "q", "k", "masked", "weights", "hidden", "linear", "activated", "gated")
NOTE = (
    "TransformerLens has processed the weights (norms folded, weights centered): only stages that do not depend on that"
    " are compared; enable_compatibility_mode(no_processing=True) keeps the weights"
)
TABLES = {"words": "table", "logits": "w"}
CENTERED = 1e-3  # the mean of a centered row, relative to its largest number


def is_processed(mine: Dump, sources: Mapping[str, TensorSource], graph: Graph) -> bool:
    """Whether norms lack the model's weight, or embeddings or logits the mean."""
    for site, source in sources.items():
        node = graph.nodes.get(site)
        params = graph.core.params.get(node.layer, {}) if node else {}
        before = source.name.removesuffix("hook_out") + "hook_normalized"
        if node and node.kind == "norm" and before in mine and np.array_equal(mine[before], mine[source.name]):
            return not np.all(params.get("gamma", 1.0) == 1)
        table = TABLES.get(node.kind, "") if node else ""
        if table in params and _is_centered(mine[source.name]) and not _is_centered(params[table]):
            return True
    return False


def _is_centered(array: Array) -> bool:
    rows = np.asarray(array, np.float64)
    return bool(np.abs(rows.mean(axis=-1)).max(initial=0) <= CENTERED * np.abs(rows).max(initial=0))


def keep_unchanged(sources: Mapping[str, TensorSource]) -> dict[str, TensorSource]:
    """The sources of the sites that processed weights leave as they are."""
    return {site: source for site, source in sources.items() if site.rpartition(".")[2] in UNCHANGED}
