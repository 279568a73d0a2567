"""Implementations that are right, and those of a definition itself with another formula for some steps."""

import itertools
import re

import numpy as np

from attnkit.checking.callees import Outcome
from attnkit.checking.verdict import make_rounding
from attnkit.model.exercises.worked_steps import work

OTHER_ROUNDING = 99  # a seed that the examiner does not use
WORDS = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?(?:[^\w\s]|_)+|\s+(?!\S)|\s+")


class Computed:
    """Computes the steps of a definition, each rounded, with changes."""

    title, library, by_place = "computed", "", ()

    def __init__(self, definition, changes=None):
        self.definition, self.changes = definition, changes or {}

    def takes(self, argument):
        return True

    def call(self, case, given, dtype):
        steps = {**self.definition.steps, **self.changes}
        *_, answer = steps
        arguments = {**dict.fromkeys(self.definition.arguments), **given}
        try:
            with np.errstate(all="ignore"):
                change = [] if self.definition.is_exact else [make_rounding(dtype, OTHER_ROUNDING)]
                return Outcome(work(steps, arguments, *change)[answer].astype(np.float32))
        except (ValueError, IndexError) as error:
            return Outcome(None, problem=str(error))

    def close(self):
        pass


def plain_ways(definition):
    """For each convention the way that hands arguments over as they are drawn."""
    return {
        name: next((way for way, one in ways.items() if not one.send), next(iter(ways)))
        for name, ways in definition.conventions.items()
    }


class AdamW:
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        self.params, self.lr, self.betas, self.eps, self.weight_decay = [*params], lr, betas, eps, weight_decay
        self.means, self.squares = ([one * 0 for one in self.params] for _ in range(2))
        self.steps = 0

    def step(self, gradients):
        self.steps += 1
        for x, g, mean, square in zip(self.params, gradients, self.means, self.squares, strict=True):
            mean += (1 - self.betas[0]) * (g - mean)
            square += (1 - self.betas[1]) * (g * g - square)
            x *= 1 - self.lr * self.weight_decay
            root = np.sqrt(square / (1 - self.betas[1] ** self.steps)) + self.eps
            x -= self.lr * mean / (1 - self.betas[0] ** self.steps) / root


class Tokenizer:
    def __init__(self, vocab, merges, special_tokens):
        self.tokens, self.special = vocab, sorted(special_tokens or [], key=len, reverse=True)
        self.ids = {token: id for id, token in vocab.items()}
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}

    def encode(self, text):
        pattern = f"({'|'.join(map(re.escape, self.special))})"
        parts = re.split(pattern, text) if self.special else [text]
        return [id for part in parts for id in self.encode_part(part)]

    def encode_part(self, part):
        if part in self.special:
            return [self.ids[part.encode()]]
        found = []
        for word in WORDS.findall(part):
            tokens = [bytes([one]) for one in word.encode()]
            while pairs := [pair for pair in itertools.pairwise(tokens) if pair in self.ranks]:
                at = [*itertools.pairwise(tokens)].index(min(pairs, key=self.ranks.get))
                tokens[at : at + 2] = [tokens[at] + tokens[at + 1]]
            found += [self.ids[one] for one in tokens]
        return found

    def encode_iterable(self, texts):
        for text in texts:
            yield from self.encode(text)

    def decode(self, ids):
        return b"".join(self.tokens[one] for one in ids).decode("utf-8", "replace")
