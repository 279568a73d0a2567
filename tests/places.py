"""Where the inputs of the tests are: the models and arrays of references, the models and data of samples."""

import functools
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
REFERENCES = ROOT / "tests" / "references"
MODELS = REFERENCES / "models"
DATA = ROOT / "samples" / "data"
STORY, FRENCH = str(DATA / "story"), str(DATA / "fr-en")


def folder(name):
    """The folder of a reference model."""
    return str(MODELS / name)


@functools.cache
def arrays(file):
    """The arrays of tests/references/FILE.npz by name."""
    with np.load(REFERENCES / f"{file}.npz") as members:
        return dict(members)


def frozen(name):
    """The inputs and outputs of a reference model."""
    return arrays(f"models/{name}")
