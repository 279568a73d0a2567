"""Incremental decoding: the text that each generated token adds."""

import re
from collections.abc import Callable, Sequence

# an incomplete character, or a space that the next token may remove (` 've` becomes `'ve`)
UNSETTLED = re.compile(r"(?:\ufffd| n?'?| '[vr ])$")


def decode_incrementally(decode: Callable[[Sequence[int]], str]) -> Callable[[int | None], str]:
    """Return a function from the next id to the text that is now final; called with None it returns the rest.

    Each step decodes only the ids since the last final text and, for the space between the two, those before it.

    >>> step = decode_incrementally(lambda ids: " ".join(["a", "cat"][id] for id in ids))
    >>> [step(0), step(1), step(None)]
    ['a', ' cat', '']
    """
    window: list[int] = []
    done = 0  # ids of the window whose text has been returned

    def step(token: int | None) -> str:
        nonlocal window, done
        if token is not None:
            window.append(token)
        text = decode(window)
        if token is not None and UNSETTLED.search(text):
            return ""
        new = text[len(decode(window[:done])) :]
        if new:
            window = window[done:]
            done = len(window)
        return new

    return step
