"""The heads of text encoders that give labels, and the names of the labels."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights, map_linear, norm
from attnkit.errors import AttnkitWarning, counted

DEFAULT_CLASSES = ("LABEL_0", "LABEL_1")  # of a classifier whose configuration names none


def read_classes(raw: ConfigReader) -> tuple[str, ...]:
    """The labels of a classifier in the order of its logits, or () if unnamed."""
    names = raw.get_dict("id2label") or {}
    if sorted(names) != sorted(str(number) for number in range(len(names))):
        raise raw.error(f"id2label does not name the classes 0 to {len(names) - 1}")
    return tuple(str(names[str(number)]) for number in range(len(names)))


def label_values(labels: Sequence[str]) -> dict[str, Any]:
    """The values of config.json that make a model a classifier with these labels.

    >>> label_values(["bad", "good"])["id2label"]
    {'0': 'bad', '1': 'good'}
    """
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "problem_type": "single_label_classification",
    }


SUFFIXES = {"sequence": "ForSequenceClassification", "token": "ForTokenClassification",
            "question": "ForQuestionAnswering"}  # fmt: skip
ENDS = ("start", "end")  # the logits of a head that answers questions
FUNCTIONS = {  # problem_type -> the function of the logits
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
    "regression": "none",
}
TORCH_FUNCTIONS = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}  # of a cross-encoder


class Head(NamedTuple):
    """The published names of a head.

    output      the linear layer that gives the logits
    pooler      the layer that reads the first token through tanh, "" for none
    dense       the layer before the output, with `activation` [the model's], "" for none
    norm        the norm after `dense`, "" for none
    pooling     what a head of whole texts reads without a pooler: a value of `Config.pooling`
    """

    output: str
    pooler: str = ""
    dense: str = ""
    activation: str = ""
    norm: str = ""
    pooling: str = "first"


Heads = Mapping[str, Head]  # sequence, token and question -> its names


def usual_heads(sequence: Head) -> Heads:
    """The heads of a family whose token and question heads have the usual names."""
    return {"sequence": sequence, "token": Head("classifier"), "question": Head("qa_outputs")}


def find_task(raw: ConfigReader) -> str:
    """The head that `architectures` names: sequence, token or question, or "".

    >>> find_task(ConfigReader({"architectures": ["BertForTokenClassification"]}, "config.json"))
    'token'
    """
    return next((task for task, suffix in SUFFIXES.items() if raw.has_architecture(suffix)), "")


def read_head(raw: ConfigReader, stored: Weights, heads: Heads) -> dict[str, Any]:
    """The fields of Config for the head that `architectures` names, or {}.

    A head that the folder lacks is no head. DataError if labels are missing, or are not as many as the logits.
    """
    task = find_task(raw)
    if not task:
        return {}
    names = heads[task]
    stored_name = stored.find([f"{names.output}.weight"])
    if stored_name is None:
        return {"head": False, "transform": False}
    _, shape = stored.entries.get(stored_name, ("", ()))
    rows = shape[0] if len(shape) == 2 else None
    fields: dict[str, Any] = {
        "head": True,
        "task": task,
        "classes": ENDS if task == "question" else read_label_names(raw, rows),
        "transform": bool(names.dense),
        "head_activation": names.activation,
        "head_norm": bool(names.norm),
        "head_width": 0,
    }
    if task == "sequence":
        fields["pooling"] = "pooler" if names.pooler else names.pooling
        fields["label_function"] = read_function(raw, len(fields["classes"]))
    elif task == "question":
        fields["label_function"] = "none"
    return fields | ({"pooler": True} if names.pooler else {})


def map_head(raw: ConfigReader, heads: Heads) -> Layers:
    """Map the layers of the head that `architectures` names, if any."""
    task = find_task(raw)
    if not task:
        return {}
    names = heads[task]
    layers = {"head": map_linear(w=names.output)}
    layers |= {"pooler": map_linear(w=names.pooler)} if names.pooler else {}
    layers |= {"head.dense": map_linear(w=names.dense)} if names.dense else {}
    return layers | ({"head.norm": norm(names.norm)} if names.norm else {})


def read_label_names(raw: ConfigReader, rows: int | None = None) -> tuple[str, ...]:
    """The names of the classes by number, LABEL_0 and LABEL_1 by default.

    rows  how many there are in the weights; None: unknown

    DataError if numbers are left out, or where there are more or fewer labels than rows.

    >>> read_label_names(ConfigReader({"id2label": {"0": "NO", "1": "YES"}}, "config.json"))
    ('NO', 'YES')
    """
    names = read_classes(raw) or DEFAULT_CLASSES
    count = raw.get_int("num_labels", len(names))
    if rows not in (None, len(names)) or count != len(names):
        named = f"id2label names {counted(len(names), 'label')}"
        labels = named if raw.has("id2label") else "id2label is missing, so 2 labels"
        other = f"num_labels is {count}" if rows in (None, len(names)) else f"the classifier has {counted(rows, 'row')}"
        raise raw.error(f"{labels}, and {other}")
    return names


def read_function(raw: ConfigReader, count: int) -> str:
    """The function from logits to probabilities: softmax, sigmoid or none.

    A cross-encoder states its function; else `problem_type` does, and a single label has a sigmoid.

    >>> read_function(ConfigReader({"problem_type": "regression"}, ""), 1), read_function(ConfigReader({}, ""), 1)
    ('none', 'sigmoid')
    """
    if stated := read_stated_function(raw):
        return stated
    function = raw.get_choice("problem_type", FUNCTIONS, "single_label_classification")
    return "sigmoid" if function == "softmax" and count == 1 else function


def read_stated_function(raw: ConfigReader) -> str:
    """The function that config.json states as sentence-transformers does, or "".

    The key of today comes before the old one.
    """
    old, new = "sbert_ce_default_activation_function", raw.get_dict("sentence_transformers").get("activation_fn")
    key = "sentence_transformers.activation_fn" if new else old
    return torch_function(raw, key, new or raw.values.get(old))


def torch_function(raw: ConfigReader, key: str, value: Any) -> str:
    """The function of torch that a key names, or "" without one.

    Code that is not of torch is not run, as in sentence-transformers: a warning says so. DataError for a function of
    torch that is not known.

    >>> torch_function(ConfigReader({}, ""), "activation_fn", "torch.nn.modules.linear.Identity")
    'none'
    """
    if value is None:
        return ""
    if not str(value).startswith("torch."):
        problem = f"{key} {str(value)[:60]!r} is code of its author, which is not run; the default is used"
        warnings.warn(f"{raw.name}: {problem}", AttnkitWarning, stacklevel=2)
        return ""
    name = str(value).rpartition(".")[2]
    if name not in TORCH_FUNCTIONS:
        raise raw.error(f"{key} {str(value)[:40]!r} is not supported (use {', '.join(TORCH_FUNCTIONS)} of torch)")
    return TORCH_FUNCTIONS[name]


def read_image_labels(raw: ConfigReader) -> dict[str, Any]:
    """The fields of Config for the labels of a classifier of images.

    DataError for regression.

    >>> read_image_labels(ConfigReader({"problem_type": "multi_label_classification"}, "config.json"))
    {'classes': ('LABEL_0', 'LABEL_1'), 'label_function': 'sigmoid'}
    """
    classes = read_classes(raw) or DEFAULT_CLASSES
    function = read_function(raw, len(classes))
    if function == "none":
        raise raw.error("problem_type regression is not supported for images")
    return {"classes": classes, "label_function": function}
