"""Which parameters decay, how fast each layer learns, and which are frozen."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from attnkit.checkpoints.publishing import PublishedTensors
from attnkit.errors import UsageError, suggest
from attnkit.model.config import Config, parse_layer_name


class ParameterGroup(NamedTuple):
    """The factor on the learning rate of some parameters, and whether they decay."""

    rate: float = 1.0
    has_weight_decay: bool = True


def has_weight_decay(name: str, shape: Sequence[int]) -> bool:
    """Whether a parameter decays: biases, norms and the position bias of T5 do not."""
    return len(shape) > 1 and not name.endswith(".bias.table")


def layer_depth(name: str, config: Config) -> int:
    """The height of a parameter: 0 for embeddings, n + 1 for layer n, then one more.

    In a stack of fewer layers than the other one, layers count from the top.

    >>> from attnkit.model import StackConfig
    >>> stack = StackConfig(layers=3, heads=1, hidden=4, kv_heads=1, head_dim=2)
    >>> config = Config("gpt2", 2, decoder=stack)
    >>> [layer_depth(name, config) for name in ("decoder.embed.table", "decoder.0.self.wq", "head.b")]
    [0, 1, 4]
    """
    depth = last_depth(config) - 1
    stack, number, part = parse_layer_name(name.rpartition(".")[0])
    if number is not None:
        return depth - config.stack(stack).layers + number + 1
    return depth + 1 if not stack or part in ("norm", "cross", "readout") else 0


def last_depth(config: Config) -> int:
    """The largest `layer_depth` of a model: the norm and head above all layers."""
    return max(config.stack(name).layers for name in config.stacks) + 1


def parameter_groups(
    shapes: Mapping[str, Sequence[int]], config: Config, layer_decay: float = 1.0
) -> dict[str, ParameterGroup]:
    """The group of each parameter; `layer_decay` scales the rate from layer to layer.

    Source: discriminative fine-tuning (Howard and Ruder 2018, section 3.2), whose factor is 1/2.6.
    UsageError for a factor that is not above 0, up to 1.

    >>> from attnkit.model import StackConfig
    >>> config = Config("gpt2", 2, decoder=StackConfig(layers=1, heads=1, hidden=4, kv_heads=1, head_dim=2))
    >>> groups = parameter_groups({"decoder.embed.table": (9, 2), "head.b": (9,)}, config, 0.5)
    >>> groups["decoder.embed.table"], groups["head.b"].rate
    (ParameterGroup(rate=0.25, has_weight_decay=True), 1.0)
    """
    if not 0 < layer_decay <= 1:
        raise UsageError(f"layer decay {layer_decay:g} (expected above 0, up to 1)")
    top = last_depth(config)
    return {
        name: ParameterGroup(layer_decay ** (top - layer_depth(name, config)), has_weight_decay(name, shape))
        for name, shape in shapes.items()
    }


def tensor_groups(published: PublishedTensors, layer_decay: float = 1.0) -> dict[str, ParameterGroup]:
    """The group of each tensor by its published name, from its first parameter."""
    first = {name: parameters[0] for name, parameters in published.parameters.items()}
    shapes = {name: published.config.parameter_shape(*name.rsplit(".", 1)) for name in first.values()}
    groups = parameter_groups(shapes, published.config, layer_decay)
    return {name: groups[parameter] for name, parameter in first.items()}


def tensors_of(published: PublishedTensors, parameters: Iterable[str]) -> set[str]:
    """The published names of the tensors that hold some parameters."""
    return {name for parameter in parameters for name in published.names[parameter]}


def match_parameters(names: Iterable[str], patterns: Iterable[str]) -> set[str]:
    """The parameters whose name, or layer's name, matches a shell pattern.

    UsageError for a pattern that matches none.

    >>> sorted(match_parameters(["decoder.embed.table", "decoder.0.ffn.w1"], ["decoder.embed", "*.w1"]))
    ['decoder.0.ffn.w1', 'decoder.embed.table']
    """
    known, matched = list(names), set[str]()
    for pattern in patterns:
        hits = {name for name in known if any(fnmatch.fnmatchcase(one, pattern) for one in _levels(name))}
        if not hits:
            layers = [level for name in known for level in _levels(name)]
            raise UsageError(f"no parameter matches {pattern!r}{suggest(pattern, dict.fromkeys(layers))}")
        matched |= hits
    return matched


def _levels(name: str) -> list[str]:
    """A name and its layers: decoder.0.ffn.w1, decoder.0.ffn, decoder.0, decoder."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def unfrozen_parameters(names: Iterable[str], config: Config, step: int, every: int) -> set[str]:
    """The parameters trained in a step if one more layer joins every few steps.

    The last layer and what follows it come first, then one layer at a time, the embeddings at the end.
    Source: gradual unfreezing (Howard and Ruder 2018, section 3.3). UsageError for `every` below 1.

    >>> from attnkit.model import StackConfig
    >>> stack = StackConfig(layers=2, heads=1, hidden=4, kv_heads=1, head_dim=2)
    >>> names = ["decoder.embed.table", "decoder.0.ffn.w1", "decoder.1.ffn.w1", "head.b"]
    >>> [len(unfrozen_parameters(names, Config("gpt2", 2, decoder=stack), step, 10)) for step in (1, 10, 11, 21)]
    [2, 2, 3, 4]
    """
    if every < 1:
        raise UsageError(f"unfreeze every {every} steps (expected 1 or more)")
    lowest = last_depth(config) - 1 - (step - 1) // every
    return {name for name in names if layer_depth(name, config) >= lowest}
