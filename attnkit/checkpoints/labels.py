"""The labels of a classifier in config.json: id2label and label2id, as transformers writes them."""

from collections.abc import Sequence
from typing import Any

from attnkit.checkpoints.config_reader import ConfigReader

DEFAULT_CLASSES = ("LABEL_0", "LABEL_1")  # of a classifier whose configuration names none


def read_classes(raw: ConfigReader) -> tuple[str, ...]:
    """Return the labels of a classifier in the order of their logits; none where the configuration names none."""
    names = raw.get_dict("id2label") or {}
    if sorted(names) != sorted(str(number) for number in range(len(names))):
        raise raw.error(f"id2label does not name the classes 0 to {len(names) - 1}")
    return tuple(str(names[str(number)]) for number in range(len(names)))


def label_values(labels: Sequence[str]) -> dict[str, Any]:
    """Return the values of config.json that make a model a classifier of texts with these labels.

    >>> label_values(["bad", "good"])["id2label"]
    {'0': 'bad', '1': 'good'}
    """
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "problem_type": "single_label_classification",
    }
