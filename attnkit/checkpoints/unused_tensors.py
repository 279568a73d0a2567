"""Stored tensors that a model does not use: single tensors, and whole layers beyond its configuration."""

import re
from collections.abc import Iterable, Set

BUFFER = re.compile(  # tensors of some files that are not parameters
    r"(^|\.)attn\.(masked_)?bias$|position_ids$|rotary_emb\.inv_freq$|embed_positions\.weights?$|^special:"
)
NUMBER = re.compile(r"(?<![0-9])[0-9]+(?![0-9])")


def find_unused(stored: Iterable[str], used: Set[str]) -> list[str]:
    """Return the stored names that are not used, buffers excepted.

    >>> find_unused(["wte.weight", "h.0.attn.bias", "score.weight"], {"wte.weight"})
    ['score.weight']
    """
    return [name for name in stored if name not in used and not BUFFER.search(name)]


def find_unused_layers(stored: Iterable[str], used: Set[str]) -> list[str]:
    """Return the prefixes of unused layers: those whose tensors have the names of a used layer but for its number.

    >>> find_unused_layers(["h.0.ln_1.weight", "h.1.ln_1.weight", "score.weight"], {"h.0.ln_1.weight"})
    ['h.1']
    """
    patterns, prefixes = set(map(name_pattern, used)), set(map(layer_prefix, used))
    unused = dict.fromkeys(layer_prefix(name) for name in find_unused(stored, used) if name_pattern(name) in patterns)
    return [prefix for prefix in unused if prefix not in prefixes]


def layer_prefix(name: str) -> str:
    """Return a published name up to the number of its layer, "" where it has none.

    >>> layer_prefix("h.12.ln_1.weight"), layer_prefix("wte.weight")
    ('h.12', '')
    """
    number = NUMBER.search(name)
    return name[: number.end()] if number else ""


def name_pattern(name: str) -> str:
    """Return a published name with `#` for the number of its layer.

    >>> name_pattern("h.12.ln_1.weight")
    'h.#.ln_1.weight'
    """
    return NUMBER.sub("#", name, count=1)
