"""Text as it is generated: what each new token adds."""

import re
from collections.abc import Callable, Sequence

# a character whose last bytes are to come, and a space that the next token may take away (` 've` becomes `'ve`)
UNSETTLED = re.compile(r"(?:\ufffd| n?'?| '[vr ])$")


def decode_incrementally(decode: Callable[[Sequence[int]], str]) -> Callable[[int | None], str]:
    """A function that takes ids one by one and gives the text that has become certain; None gives what it holds back.

    Only the ids since the last certain text are decoded, after those of the text before it, which say whether
    a space belongs between the two.

    >>> spell = decode_incrementally(lambda ids: " ".join(["a", "cat"][at] for at in ids))
    >>> [spell(0), spell(1), spell(None)]
    ['a', ' cat', '']
    """
    window: list[int] = []
    known = 0  # ids of the window whose text has been given

    def step(token: int | None) -> str:
        nonlocal window, known
        if token is not None:
            window.append(token)
        text = decode(window)
        if token is not None and UNSETTLED.search(text):
            return ""
        new = text[len(decode(window[:known])) :]
        if new:
            window = window[known:]
            known = len(window)
        return new

    return step
