"""Write French sentences of a small grammar, each with its English: lines of French, tab, English:

    python french_english.py --pairs 5
    python french_english.py --pairs 20000 --words 2:45 --seed 1 > pairs.tsv

The present tense, people and things with their adjectives (`le petit chat noir`, the small black cat), lists, relative
clauses and clauses in a row, up to any length. The French decides the English, but that --varied says one
verb in three as `he is singing` instead of `he sings`. One sentence in ten is left out, and so are those with
KEPT in them; --held-out writes these alone, to try a model on sentences it has never seen. The same options give the
same lines.
"""

import argparse
import random
import re
import zlib
from typing import Any, NamedTuple

# je, tu, il, nous, vous, ils; the English verb, with its -s and its -ing (none: it is not used that way)
VERBS = [
    ("mange manges mange mangeons mangez mangent", "eat", "eats", "eating"),
    ("lis lis lit lisons lisez lisent", "read", "reads", "reading"),
    ("vois vois voit voyons voyez voient", "see", "sees", ""),
    ("aime aimes aime aimons aimez aiment", "love", "loves", ""),
    ("cherche cherches cherche cherchons cherchez cherchent", "look for", "looks for", "looking for"),
    ("porte portes porte portons portez portent", "carry", "carries", "carrying"),
]
ALONE = [
    ("dors dors dort dormons dormez dorment", "sleep", "sleeps", "sleeping"),
    ("chante chantes chante chantons chantez chantent", "sing", "sings", "singing"),
    ("cours cours court courons courez courent", "run", "runs", "running"),
]
BEING = ("suis es est sommes êtes sont", "am are is are are are")
HAVING = ("ai as a avons avez ont", "have have has have have have")
ANIMALS = [("chat", "cat", False), ("chien", "dog", False), ("oiseau", "bird", False)]  # the last: whether feminine
PEOPLE = [
    *ANIMALS,
    ("fille", "girl", True),
    ("garçon", "boy", False),
    ("sœur", "sister", True),
    ("étudiant", "student", False),
    ("voisine", "neighbour", True),
]
THINGS = [
    ("pomme", "apple", True),
    ("livre", "book", False),
    ("maison", "house", True),
    ("voiture", "car", True),
    ("lettre", "letter", True),
    ("gâteau", "cake", False),
    ("fleur", "flower", True),
    ("chapeau", "hat", False),
]
BEFORE = [("petit", "petite", "small"), ("grand", "grande", "big"), ("joli", "jolie", "pretty")]  # the noun
AFTER = [
    ("noir", "noire", "black"),
    ("blanc", "blanche", "white"),
    ("rouge", "rouge", "red"),
    ("vert", "verte", "green"),
]
STATES = [("fatigué", "tired"), ("content", "happy"), ("prêt", "ready"), ("malade", "ill"), ("âgé", "old")]
TRADES = [("étudiant", "étudiante", "student"), ("avocat", "avocate", "lawyer"), ("médecin", "médecin", "doctor")]
PLACES = [
    ("dans le jardin", "in the garden"),
    ("à la maison", "at home"),
    ("sous la pluie", "in the rain"),
    ("à l'école", "at school"),
]
TIMES = [("aujourd'hui", "today"), ("ce soir", "tonight"), ("le dimanche", "on Sundays")]
LINKS = [
    ("et", "and"),
    ("mais", "but"),
    ("donc", "so"),
    ("parce que", "because"),
    ("quand", "when"),
    ("pendant que", "while"),
]
KEPT = ("je suis étudiant", "le petit chat noir dort dans le jardin", "elle porte un chapeau rouge")


class Phrase(NamedTuple):
    """A phrase in both languages; of one that may be a subject also its person, 0 for je to 5 for ils, and gender."""

    french: str
    english: str
    person: int = 2
    feminine: bool = False

    @property
    def many(self) -> bool:
        return self.person > 2


PRONOUNS = [
    Phrase("je", "I", 0),
    Phrase("je", "I", 0, True),
    Phrase("tu", "you", 1),
    Phrase("il", "he", 2),
    Phrase("elle", "she", 2, True),
    Phrase("nous", "we", 3),
    Phrase("vous", "you", 4),
    Phrase("ils", "they", 5),
    Phrase("elles", "they", 5, True),
]


class Writer:
    """Writes sentences; `varied`: verbs in two ways."""

    def __init__(self, seed: int, varied: bool) -> None:
        self._rng, self._varied = random.Random(seed), varied

    def sentence(self, least: int, most: int) -> tuple[str, str]:
        """Return a French sentence of so many words, and its English."""
        while True:
            length = least + int(self._rng.random() * (most - least + 1))
            pair = self.clause(length)
            while (missing := length - len(pair.french.split())) > 0:
                link, clause = self._pick(LINKS), self.clause(missing)
                pair = joined(pair, Phrase(*link), clause)
            french = elided(pair.french)
            if least <= len(french.split()) <= most:
                return french, pair.english

    def clause(self, length: int) -> Phrase:
        """Return a subject and what it does, with lists and relative clauses where there are words for them."""
        subject = self._pick(PRONOUNS) if self._happens(0.5) else self.people(length)
        pair = joined(subject, self.predicate(subject, length - len(subject.french.split())))
        for adverbs, chance in ((PLACES, 0.25), (TIMES, 0.15)):
            if self._happens(chance):
                pair = joined(pair, Phrase(*self._pick(adverbs)))
        return pair

    def people(self, length: int) -> Phrase:
        """Return one or more people, of whom a relative clause may say more."""
        if length > 14 and self._happens(0.2):
            members = [self.noun(PEOPLE, self._happens(0.3)) for _ in range(2 + self._happens(0.5))]
            return listed(members)
        noun = self.noun(PEOPLE, self._happens(0.3))
        if length > 12 and self._happens(0.25):
            relative = joined(noun, Phrase("qui", "who"), self.predicate(noun, 0))
            return relative._replace(person=noun.person, feminine=noun.feminine)
        return noun

    def things(self, length: int) -> Phrase:
        """Return one or more things, of which a relative clause may say more."""
        if length > 8 and self._happens(0.2):
            return listed([self.noun(THINGS, self._happens(0.25)) for _ in range(2 + self._happens(0.5))])
        noun = self.noun(THINGS, self._happens(0.25))
        if length > 8 and self._happens(0.25):
            subject = self._pick(PRONOUNS) if self._happens(0.5) else self.noun(PEOPLE, self._happens(0.3))
            return joined(noun, Phrase("que", "that"), subject, self.verb(VERBS, subject))
        return noun

    def noun(self, nouns: list[tuple[str, str, bool]], many: bool) -> Phrase:
        """Return a noun with its article and perhaps adjectives, before and after it."""
        noun = self._pick(nouns)
        french, english, feminine = noun
        before = [self._pick(BEFORE)] if self._happens(0.25) else []
        after = [self._pick(AFTER)] if noun in ANIMALS + THINGS and self._happens(0.4) else []
        words = [one[feminine] for one in before] + [french] + [one[feminine] for one in after]
        meanings = [one[2] for one in before + after] + [f"{english}s" if many else english]
        if self._happens(0.6):
            articles, the = (["les"] if many else ["la" if feminine else "le"]), ["the"]
        else:
            articles = ["des"] if many else ["une" if feminine else "un"]
            the = [] if many else ["an" if meanings[0][0] in "aeiou" else "a"]
        words = [f"{word}x" if many and word.endswith("eau") else f"{word}s" if many else word for word in words]
        return Phrase(" ".join(articles + words), " ".join(the + meanings), 5 if many else 2, feminine)

    def predicate(self, subject: Phrase, length: int) -> Phrase:
        """Return what a subject is, has or does."""
        person, kind = subject.person, self._rng.random()
        being, having = (Phrase(*(forms.split()[person] for forms in verb)) for verb in (BEING, HAVING))
        if kind < 0.15:
            state, meaning = self._pick(STATES)
            ending = "e" * (subject.feminine and not state.endswith("e")) + "s" * subject.many
            return joined(being, Phrase(state + ending, meaning))
        if kind < 0.3:
            trade = self._pick(TRADES)
            meaning = f"{trade[2]}s" if subject.many else f"a {trade[2]}"
            return joined(being, Phrase(trade[subject.feminine] + "s" * subject.many, meaning))
        if kind < 0.45:
            return joined(having, self.things(length))
        if kind < 0.75:
            return joined(self.verb(VERBS, subject), self.things(length))
        return self.verb(ALONE, subject)

    def verb(self, verbs: list[tuple[str, str, str, str]], subject: Phrase) -> Phrase:
        """Return the form of a verb that a subject needs."""
        forms, plain, third, going = self._pick(verbs)
        french = forms.split()[subject.person]
        if self._varied and going and self._happens(0.3):
            return Phrase(french, f"{BEING[1].split()[subject.person]} {going}")
        return Phrase(french, third if subject.person == 2 else plain)

    def _pick(self, items: Any) -> Any:
        return items[int(self._rng.random() * len(items))]

    def _happens(self, chance: float) -> bool:
        return self._rng.random() < chance


def joined(*phrases: Phrase) -> Phrase:
    """Return phrases one after another."""
    return Phrase(" ".join(one.french for one in phrases), " ".join(one.english for one in phrases))


def listed(members: list[Phrase]) -> Phrase:
    """Return a list: a, b et c."""
    first, last = members[:-1], members[-1]
    french = f"{', '.join(one.french for one in first)} et {last.french}"
    english = f"{', '.join(one.english for one in first)} and {last.english}"
    return Phrase(french, english, 5, all(one.feminine for one in members))


def elided(french: str) -> str:
    """Return l'étudiant for le étudiant, j'ai for je ai, qu'il for que il."""
    return re.sub(r"\b(l|j|qu)[ea] (?=[aeiouâêéœ])", r"\1'", french)


def is_held_out(french: str) -> bool:
    return any(kept in french for kept in KEPT) or zlib.crc32(french.encode()) % 10 == 0


def read_range(text: str) -> tuple[int, int]:
    """Return the least and the most words of `2:12`."""
    least, most = map(int, text.split(":"))
    if not 0 < least <= most or most < 2:
        raise ValueError(text)
    return least, most


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write French sentences with their English: French, tab, English.")
    parser.add_argument("--pairs", type=int, default=1000, help="how many [default: 1000]")
    parser.add_argument("--words", type=read_range, default=(2, 12), help="of a French sentence [default: 2:12]")
    parser.add_argument("--varied", action="store_true", help="say some verbs as `he is singing`")
    parser.add_argument("--held-out", action="store_true", help="only the sentences that are else left out")
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers [default: 0]")
    options = parser.parse_args()
    writer, written = Writer(options.seed, options.varied), 0
    while written < options.pairs:
        french, english = writer.sentence(*options.words)
        if is_held_out(french) == options.held_out:
            print(f"{french}\t{english}")
            written += 1
