"""Write small texts of one grammar: reviews of meals, with their labels or without.

    python samples/data/reviews.py COUNT [SEED] [labels]

A review describes a dish by one of forty words, half of them kind. Without labels most reviews go on, and say what the
guest did: that of a kind word comes back, that of an unkind one does not. With labels a line is the label, a tab and
the description alone, and so a few lines name a few of the words.
"""

import random
import sys

DISHES = ("soup", "bread", "salad", "fish", "stew", "pie", "rice", "cake")
KIND = (
    "tasty",
    "delicious",
    "fresh",
    "lovely",
    "superb",
    "splendid",
    "rich",
    "tender",
    "crisp",
    "fragrant",
    "perfect",
    "excellent",
    "juicy",
    "warm",
    "creamy",
    "wonderful",
    "pleasant",
    "smooth",
    "hearty",
    "light",
)
UNKIND = (
    "bland",
    "stale",
    "awful",
    "burnt",
    "soggy",
    "greasy",
    "bitter",
    "sour",
    "dry",
    "tough",
    "cold",
    "rotten",
    "salty",
    "dull",
    "watery",
    "horrible",
    "lumpy",
    "raw",
    "oily",
    "mouldy",
)
ENDS = {
    True: ("come back", "smile", "thank the cook", "ask for more", "leave a good tip"),
    False: ("stay away", "frown", "call the waiter", "send it back", "want the money again"),
}
OPENINGS = ("the {} is {}", "we find the {} {}")


def describe(rng: random.Random, is_kind: bool) -> str:
    """Return the description of a dish."""
    return rng.choice(OPENINGS).format(rng.choice(DISHES), rng.choice(KIND if is_kind else UNKIND))


def main(count: int, seed: int = 0, kind: str = "") -> None:
    """Print so many reviews."""
    rng = random.Random(seed)
    for _ in range(count):
        is_kind = rng.random() < 0.5
        text = describe(rng, is_kind)
        if kind == "labels":
            print(f"{'kind' if is_kind else 'unkind'}\t{text}")
        else:
            print(f"{text} , {rng.choice(ENDS[is_kind])}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:4])
