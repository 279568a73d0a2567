"""Write tales of one plot and many heroes, places and things, some oftener than others, one a line:

    python tales.py --tales 3

Every tale ends with <|endoftext|>, from which a model learns to end its own. The same seed gives the same tales.
"""

import argparse
import random

HEROES = ["little fox", "old robot", "young girl", "grey cat", "small bear"]
HOMES = ["in a quiet forest", "by the sea", "under a high hill", "in a tall tower", "near the river"]
HABITS = [
    "looked at the stars",
    "walked along the path",
    "counted the clouds",
    "sang an old song",
    "waited for the rain",
]
THINGS = ["golden key", "silver bell", "paper boat", "broken lamp", "red kite"]
FINDS = ["under a stone", "in the grass", "behind a door", "between two trees", "at the end of the road"]
OWNERS = ["moon", "wind", "baker", "owl", "queen"]
GIFTS = ["a warm loaf of bread", "a new name", "a map of the world", "a window to the sky", "a very long story"]


def choose(rng: random.Random, words: list[str]) -> str:
    """Return one of the words, an earlier one oftener: with weights 1/2, 1/3, 1/4 and so on."""
    weights = [1 / (2 + place) for place in range(len(words))]
    rest = rng.random() * sum(weights)
    for word, weight in zip(words, weights, strict=True):
        rest -= weight
        if rest < 0:
            return word
    return words[-1]


def tale(rng: random.Random) -> str:
    """Return a tale whose hero, thing and owner come back in it."""
    hero, thing, owner = (choose(rng, words) for words in (HEROES, THINGS, OWNERS))
    name = hero.split()[-1]
    return (
        f"Once upon a time there was {'an' if hero[0] == 'o' else 'a'} {hero} who lived {choose(rng, HOMES)}. "
        f"Every evening the {name} {choose(rng, HABITS)}. "
        f"One day the {name} found a {thing} {choose(rng, FINDS)}. "
        f'"Who has lost a {thing}?" asked the {name}. '
        f'"It is mine," said the {owner}. '
        f"So the {name} gave the {thing} to the {owner}, and the {owner} gave the {name} {choose(rng, GIFTS)}. "
        f"From that day on the {name} and the {owner} were friends."
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write tales of one plot, one a line.")
    parser.add_argument("--tales", type=int, default=5000, help="how many [default: 5000]")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers [default: 0]")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    for _ in range(options.tales):
        print(f"{tale(rng)}<|endoftext|>")
