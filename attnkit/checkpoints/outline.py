"""What config.json alone says of a model without weights, or of another family."""

import os
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from attnkit.checkpoints.checkpoint import CONFIG, FAMILIES, Checkpoint, fact_of, open_checkpoint
from attnkit.checkpoints.config_reader import read_json_object
from attnkit.checkpoints.harmless_keys import KNOWN
from attnkit.checkpoints.publishing import assemble_checkpoint, published_tensors
from attnkit.errors import AttnkitError, DataError, with_article
from attnkit.formats.dtypes import dtype_of
from attnkit.formats.streams import exists

TEXT = ("text_config", "language_config", "llm_config")  # the part of a model of texts and pictures that is read
QUANTIZED = "quantization_config"
SIZES = ("layers", "width", "heads", "key/value heads", "head width", "hidden width", "vocabulary", "longest text",
         "theta", "norm eps", "experts", "chosen experts", "expert width", "shared width")  # fmt: skip
NEEDED = ("layers", "width", "heads", "vocabulary")
DENSE, SPARSE, SHARED = "llama", "qwen3_moe", "qwen2_moe"  # the families that others are counted as
SHARED_COUNT = "shared_experts"  # the end of keys that count experts, each of the width of the others
DTYPES = ("torch_dtype", "dtype")
MIXING = ("mixers", "state", "state taps", "windows", "latent width")  # facts that a stand-in does not have
FEW = 3  # families that a meaning is usual in, but of a size


class Outline(NamedTuple):
    """A model as its config.json alone states it.

    mark     in a few words, how it differs from a model that is opened: no weights; and `problem`: the whole reason
    model    with zeros for weights; None without the sizes that it needs
    facts    of another family, by the usual meaning of the keys: fact -> key and value
    unread   of another family, the keys that have no usual meaning
    """

    folder: str
    mark: str
    problem: str
    model: Checkpoint | None
    facts: Mapping[str, tuple[str, Any]] = {}
    unread: tuple[str, ...] = ()

    @property
    def left_out(self) -> list[str]:
        """The keys that do not count where the model is counted as another."""
        return [*(key for fact, (key, _) in self.facts.items() if fact in MIXING), *self.unread]


def open_outline(folder: str) -> Checkpoint | Outline:
    """Open a model, or the outline of one that does not open.

    The error of the model is raised if there is no configuration, and if it does not fit the weights.
    """
    try:
        return open_checkpoint(folder)
    except AttnkitError as error:
        path = os.path.join(folder, CONFIG)
        if not os.path.isdir(folder) or not exists(path):
            raise
        raw = read_json_object(path)
        if raw.get("model_type") not in FAMILIES:
            return read_outline(folder, raw)
        if raw.get(QUANTIZED):
            plain = {key: value for key, value in raw.items() if key != QUANTIZED}
            problem = f"{QUANTIZED} is left out: the model is counted as it was before"
            return Outline(folder, "not quantized", problem, without_weights(folder, plain))
        if isinstance(error, DataError):  # its configuration or its weights are wrong
            raise
        return Outline(
            folder, "no weights", "there are no weights: sizes are those of config.json", without_weights(folder, raw)
        )


def without_weights(folder: str, raw: Mapping[str, Any]) -> Checkpoint:
    """The model of a configuration, with zeros that take no memory for weights."""
    path = os.path.join(folder, CONFIG)
    shapes = published_tensors(raw, path).shapes
    name = next((str(raw[key]) for key in DTYPES if raw.get(key)), "")
    zero = np.zeros((), dtype_of(name if name in ("float16", "bfloat16", "float64") else "float32"))
    checkpoint = assemble_checkpoint(raw, {key: np.broadcast_to(zero, shape) for key, shape in shapes.items()}, path)
    checkpoint.folder = folder
    return checkpoint


def usual_meanings() -> dict[str, str]:
    """The facts that keys of config.json state in most families.

    >>> usual_meanings()["n_embd"], usual_meanings()["num_key_value_heads"]
    ('width', 'key/value heads')
    """
    counts: dict[str, Counter[str]] = {}
    for family in FAMILIES:
        for fact, keys in fact_of(family, "FIELDS").items():
            for key in keys.split():
                counts.setdefault(key, Counter())["width" if fact == "vector width" else fact] += 1
    found = {key: count.most_common(1)[0] for key, count in counts.items()}
    return {key: fact for key, (fact, count) in found.items() if count >= FEW or fact in SIZES}


def read_outline(folder: str, raw: Mapping[str, Any]) -> Outline:
    """The outline of another family, by the usual meaning of its keys.

    Those of its part for texts replace those of the whole.
    """
    meanings, facts, unread = usual_meanings(), dict[str, tuple[str, Any]](), list[str]()
    part = next((name for name in TEXT if isinstance(raw.get(name), dict)), "")
    inner: Mapping[str, Any] = raw.get(part) or {}
    for prefix, values in (("", raw), (f"{part}.", inner)):
        for key, value in values.items():
            if key in meanings and not isinstance(value, dict) and value is not None:
                facts[meanings[key]] = (prefix + key, value)
            elif value is not None and key not in (*KNOWN, *DTYPES, part, "architectures"):
                unread.append(prefix + key)
    facts = measure_shared(facts)
    problem = f"model_type {str(raw.get('model_type', ''))[:40]!r} is not known"
    family, mapped = choose_stand_in(facts, {**raw, **inner})
    if not family:
        return Outline(folder, "", f"{problem}, and config.json does not state all sizes", None, facts, tuple(unread))
    try:
        model = without_weights(folder, mapped)
    except DataError as error:
        return Outline(folder, "", f"{problem}, and {error.problem}", None, facts, tuple(unread))
    problem += f"; counted as {with_article(family)} of the same sizes"
    return Outline(folder, f"as {family}", problem, model, facts, tuple(unread))


def measure_shared(facts: Mapping[str, tuple[str, Any]]) -> dict[str, tuple[str, Any]]:
    """The facts, with the width of shared experts where a key counts these.

    >>> facts = {"expert width": ("moe_intermediate_size", 128), "shared width": ("n_shared_experts", 2)}
    >>> measure_shared(facts)["shared width"], [*measure_shared({"shared width": ("n_shared_experts", 0)})]
    (('n_shared_experts', 256), [])
    """
    key, count = facts.get("shared width", ("", None))
    if not key.endswith(SHARED_COUNT):
        return dict(facts)
    _, width = facts.get("expert width") or facts.get("hidden width") or ("", None)
    others = {fact: stated for fact, stated in facts.items() if fact != "shared width"}
    if type(count) is not int or type(width) is not int or count < 1:
        return others
    return others | {"shared width": (key, count * width)}


def choose_stand_in(facts: Mapping[str, tuple[str, Any]], raw: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """A known family of the same sizes, and its config.json; "" if a size is missing.

    >>> facts = {"layers": ("n", 2), "width": ("d", 8), "heads": ("h", 2), "vocabulary": ("v", 9)}
    >>> choose_stand_in(facts | {"hidden width": ("f", 32)}, {})[1]["intermediate_size"], choose_stand_in(facts, {})
    (32, ('', {}))
    """
    sizes = {fact: value for fact, (_, value) in facts.items() if fact in SIZES and type(value) in (int, float)}
    if "experts" in sizes:  # experts may have a width of their own, and all layers may have experts
        for one, other in (("expert width", "hidden width"), ("hidden width", "expert width")):
            sizes |= {one: sizes[other]} if one not in sizes and other in sizes else {}
    if not {*NEEDED, "hidden width"} <= {*sizes}:
        return "", {}
    family = DENSE if "experts" not in sizes else SHARED if "shared width" in sizes else SPARSE
    fields = fact_of(family, "FIELDS")
    values: dict[str, Any] = {fields[fact].split()[0]: value for fact, value in sizes.items() if fields.get(fact)}
    values |= {key: raw[key] for key in (*DTYPES, "tie_word_embeddings") if isinstance(raw.get(key), str | bool)}
    return family, values | {"model_type": family, "architectures": ["ForCausalLM"]}
