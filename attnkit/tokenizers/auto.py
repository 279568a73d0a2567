"""The tokenizer of a published folder, by the files it has."""

from collections.abc import Callable
from dataclasses import replace

from attnkit.errors import DataError
from attnkit.tokenizers.files import Folder
from attnkit.tokenizers.huggingface import byte_pairs, from_settings, wordpiece
from attnkit.tokenizers.sentencepiece import byte_fallback, marian_tokenizer, t5_sentinels, vocabulary_file, whitespace
from attnkit.tokenizers.tokens import Tokenizer

# files -> how they are read, the first whose files are all there
KINDS: dict[tuple[str, ...], Callable[[Folder], Tokenizer]] = {
    ("tokenizer.json",): from_settings,
    ("vocab.txt",): wordpiece,
    ("vocab.json", "merges.txt"): byte_pairs,
    ("source.spm",): marian_tokenizer,
    ("spiece.model",): t5_sentinels,
    ("tokenizer.model",): byte_fallback,
}


class NoTokenizer(DataError):
    """A folder that has no tokenizer at all."""


def load_tokenizer(path: str, side: str = "source") -> Tokenizer:
    """The tokenizer of a folder with tokenizer.json, vocab.txt, vocab.json and merges.txt, a sentencepiece model ….

    side  "source" or "target" of a translation: what `encode` takes and `decode` gives

    NoTokenizer where the folder has none of these files; DataError where one is not what its name says, or where
    the vocabulary of a Marian lies there without the pieces that its text is cut into.
    """
    folder = Folder(path, side)
    kinds = (read for files, read in KINDS.items() if folder.names.issuperset(files))
    numbers = vocabulary_file(folder)
    read = next(kinds, None if numbers is None else whitespace)
    if read is whitespace and folder.json("config.json").get("model_type") == "marian":
        raise DataError(f"no source.spm: {numbers} alone does not cut text", path)
    if read is not None:
        return replace(read(folder), files=tuple(folder.files))
    looked = ", ".join(" with ".join(files) for files in KINDS)
    raise NoTokenizer(f"no tokenizer in the folder (looked for {looked}, vocab.json, vocab.yml)", path)
