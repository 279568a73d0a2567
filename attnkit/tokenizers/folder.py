"""The tokenizer of a published folder, by the files it has."""

from collections.abc import Callable
from dataclasses import replace

from attnkit.errors import DataError
from attnkit.tokenizers.files import Folder
from attnkit.tokenizers.library import byte_pairs, from_settings, wordpiece
from attnkit.tokenizers.pieces import byte_fallback, sentinels, spaced, translation, vocabulary_file
from attnkit.tokenizers.tokens import Tokenizer

# files -> how they are read, the first whose files are all there
KINDS: dict[tuple[str, ...], Callable[[Folder], Tokenizer]] = {
    ("tokenizer.json",): from_settings,
    ("vocab.txt",): wordpiece,
    ("vocab.json", "merges.txt"): byte_pairs,
    ("source.spm",): translation,
    ("spiece.model",): sentinels,
    ("tokenizer.model",): byte_fallback,
}


def from_folder(path: str, side: str = "source") -> Tokenizer:
    """The tokenizer of a folder with tokenizer.json, vocab.txt, vocab.json and merges.txt, a sentencepiece model ….

    side  "source" or "target" of a translation: what `encode` takes and `decode` gives

    DataError where the folder has none of these files, or where one is not what its name says.
    """
    folder = Folder(path, side)
    kinds = (read for files, read in KINDS.items() if folder.names.issuperset(files))
    read = next(kinds, spaced if vocabulary_file(folder) is not None else None)
    if read is not None:
        return replace(read(folder), files=tuple(folder.files))
    looked = ", ".join(" with ".join(files) for files in KINDS)
    raise DataError(f"no tokenizer in the folder (looked for {looked}, vocab.json, vocab.yml)", path)
