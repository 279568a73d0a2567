"""Notes about eight towns, questions about their countries, and which note answers which question.

    python3 samples/data/towns.py FOLDER

writes FOLDER/notes.txt and FOLDER/questions.txt, one in a line, and FOLDER/answers.tsv: the number of each question,
and of the note that answers it, counted from 0.
"""

import sys
from pathlib import Path

TOWNS = {
    "Bergen": "Norway",
    "Lyon": "France",
    "Porto": "Portugal",
    "Kraków": "Poland",
    "Ghent": "Belgium",
    "Trieste": "Italy",
    "Split": "Croatia",
    "Cork": "Ireland",
}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
KINDS = (  # a note, and a question in other words
    ("The train to {town} leaves at {hour}:42 from platform {number}.", "When can I go to {country} by rail?"),
    ("The museum of glass in {town} is closed on {day}s.", "Which day is no good for an exhibition in {country}?"),
    ("Farmers sell fruit and cheese in {town} on {day} mornings.", "Where is a market with food in {country}?"),
    ("The swimming pool of {town} costs {number} euros for an adult.", "What do I pay to have a bath in {country}?"),
    ("A storm has closed the road from {town} to the coast.", "Why can I not drive to the sea of {country}?"),
    ("The library of {town} lends novels for {number} weeks.", "How long may I keep a book in {country}?"),
)


def main(folder: Path) -> None:
    notes, questions = [], []
    for kind, (note, question) in enumerate(KINDS):
        for at, (town, country) in enumerate(TOWNS.items()):
            numbers = {"hour": 6 + (5 * at + kind) % 14, "number": 2 + (3 * at + kind) % 7, "day": DAYS[at % len(DAYS)]}
            notes.append(note.format(town=town, **numbers))
            questions.append(question.format(country=country))
    answers = [f"{number}\t{number}" for number in range(len(questions))]
    for name, lines in (("notes.txt", notes), ("questions.txt", questions), ("answers.tsv", answers)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


main(Path(sys.argv[1]))
