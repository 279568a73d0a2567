"""Read a sound again at other temperatures where its text is no good."""

import math
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from attnkit.errors import AttnkitNote
from attnkit.generation.options import USUAL_LOGPROB, USUAL_RATIO, DecodeOptions, Search
from attnkit.model import GeneratedText
from attnkit.model.formulas.sampling import Sampling


class SoundText(Protocol):
    """The texts of a sound, best first, and the mean log-probability of one."""

    @property
    def sequences(self) -> list[GeneratedText]: ...
    @property
    def logprob(self) -> float | None: ...


AnyText = TypeVar("AnyText", bound=SoundText)


def compression_ratio(ids: Sequence[int], words: int) -> float:
    """How many times shorter tokens become by zlib: large where they repeat.

    words  of the vocabulary, by which a token is stored in ⌊log₂(words) / 8⌋ + 1 bytes, the lowest first

    >>> compression_ratio([7] * 100, 51865) > 10, compression_ratio([1, 2, 3, 4], 51865) < 1
    (True, True)
    """
    size = int(math.log2(words) / 8) + 1
    stored = b"".join(int(one).to_bytes(size, "little") for one in ids)
    return len(stored) / len(zlib.compress(stored))


def find_flaw(text: SoundText, options: DecodeOptions) -> str:
    """Why the text of a sound is to be read again, or ""."""
    best, speech = text.sequences[0], options.speech
    ratio = compression_ratio(best.ids, options.config.stack("decoder").vocab) if best.ids else 0.0
    most, least = speech.compression_ratio_threshold, speech.logprob_threshold
    if ratio > (USUAL_RATIO if most is None else most):
        return f"its compression ratio is {ratio:.2f}"
    logprob = best.score if text.logprob is None else text.logprob
    if logprob < (USUAL_LOGPROB if least is None else least):
        return f"its mean log-probability is {logprob:.2f}"
    return ""


def read_at(temperature: float, options: DecodeOptions) -> DecodeOptions:
    """The options of one reading: 0 chooses the best token or beam, others sample."""
    if not temperature:
        return options._replace(sampling=Sampling())
    sampling = options.sampling._replace(temperature=temperature)
    return options._replace(sampling=sampling, search=Search())


def read_with_fallback(read: Callable[[DecodeOptions], AnyText], options: DecodeOptions, where: str) -> AnyText:
    """Read a sound at the first temperature whose text has no flaw, or at the last.

    A note says what is read again.

    read   the text of the sound with the options of one reading
    where  what is read, in notes
    """
    temperatures = options.speech.temperatures
    for temperature, following in zip(temperatures, (*temperatures[1:], None), strict=True):
        chosen = read_at(temperature, options)
        text = read(chosen)
        flaw = find_flaw(text, chosen)
        if following is None or not flaw:
            break
        note = f"the text of {where} at temperature {temperature:g} is read again at {following:g}: {flaw}"
        warnings.warn(note, AttnkitNote, stacklevel=2)
    return text
