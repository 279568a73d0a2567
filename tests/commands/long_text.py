"""A text of sixty words with its weights, for tests of attention over parts of its keys."""

import numpy as np

from attnkit.records import Record, Tensor
from tests import process

RNG = np.random.default_rng(5)
HEADS, TOKENS, WIDTH = 4, 60, 32
X = RNG.standard_normal((TOKENS, WIDTH))
WORDS = [f"w{i}" for i in range(TOKENS)]
PARAMS = {f"w{letter}": RNG.standard_normal((WIDTH, WIDTH)) / 6 for letter in "qkvo"} | {"bo": RNG.random(WIDTH)}


def text() -> Record:
    return Record({"x": Tensor(X, ("token", "model"))}, {"token": WORDS})


def bash(line: str, cwd) -> process.Run:
    return process.bash(line, cwd=cwd)
