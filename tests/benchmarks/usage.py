"""The words of the command line of a benchmark."""

import sys
from collections.abc import Collection


def read_words(document: str, jobs: Collection[str] = (), takes_numbers: bool = False) -> list[str]:
    """Return the words: jobs, and numbers where it takes them; for --help print the document, for others a line."""
    words = sys.argv[1:]
    if {"-h", "--help"} & {*words}:
        print(document.strip())
        raise SystemExit
    for word in words:
        if word not in jobs and not (takes_numbers and word.isdigit()):
            expected = [*jobs, *["numbers"] * takes_numbers]
            print(f"{word!r} (expected {', '.join(expected)}); --help says more", file=sys.stderr)
            raise SystemExit(2)
    return words
