"""Write lines that ask what was last told, a line for each task of recall:

    python recall.py PAIRS LINES SEED    as 1-4 12000 1, or 3 100 2

A line tells PAIRS keys with their values (one number, or from the first to the second), then the same keys with new
values, and asks after the question mark for each key twice. The new value is right. The same seed gives the same lines.

    . e 3 b 7 b 2 e 5 ? e 5 b 2 b 2 e 5
"""

import random
import sys

KEYS, VALUES = "abcdefgh", "01234567"


def tell(rng: random.Random, pairs: int) -> str:
    """Return a line of a task: what is told twice, and what is asked for twice."""
    keys, now, told, asked = rng.sample(KEYS, pairs), {}, [], []
    for _ in range(2):
        rng.shuffle(keys)
        for key in keys:
            now[key] = rng.choice(VALUES)
            told += [key, now[key]]
    for _ in range(2):
        rng.shuffle(keys)
        asked += [word for key in keys for word in (key, now[key])]
    return " ".join([".", *told, "?", *asked])


if __name__ == "__main__":
    least, _, most = sys.argv[1].partition("-")
    rng = random.Random(int(sys.argv[3]))
    for _ in range(int(sys.argv[2])):
        print(tell(rng, rng.randint(int(least), int(most or least))))
