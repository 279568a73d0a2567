"""Load the tokenizer of a published folder, by the files it has."""

from collections.abc import Callable
from dataclasses import replace

from attnkit.errors import DataError
from attnkit.tokenizers.ctc import load_ctc
from attnkit.tokenizers.files import TokenizerFolder
from attnkit.tokenizers.huggingface import load_bpe, load_tokenizer_json, load_wordpiece
from attnkit.tokenizers.languages import with_languages
from attnkit.tokenizers.sentencepiece import (
    load_llama,
    load_m2m,
    load_marian,
    load_siglip,
    load_t5,
    load_whitespace,
)
from attnkit.tokenizers.tokens import Tokenizer
from attnkit.tokenizers.unigram import load_unigram

Loader = Callable[[TokenizerFolder], Tokenizer]
# class -> loader of its spiece.model; others are those of T5
SPIECE: dict[str, Loader] = {"AlbertTokenizer": load_unigram, "SiglipTokenizer": load_siglip}
# files -> loader; the first entry whose files are all in the folder counts
LOADERS: dict[tuple[str, ...], Loader] = {
    ("tokenizer.json",): load_tokenizer_json,
    ("vocab.txt",): load_wordpiece,
    ("vocab.json", "merges.txt"): load_bpe,
    ("source.spm",): load_marian,
    ("spiece.model",): lambda folder: SPIECE.get(folder.usual_class, load_t5)(folder),
    ("spm.model",): load_unigram,
    ("vocab.json", "sentencepiece.bpe.model"): load_m2m,
    ("sentencepiece.bpe.model",): load_unigram,
    ("tokenizer.model",): load_llama,
}
CTC = "Wav2Vec2CTCTokenizer"  # whose vocabulary is of the labels of frames


class NoTokenizer(DataError):
    """A folder without a tokenizer."""


def load_tokenizer(folder: TokenizerFolder) -> Tokenizer:
    """Load the tokenizer of a folder by the files that it contains.

    NoTokenizer where the folder has none of these files; DataError if one is malformed, or where a Marian has
    a vocabulary but no sentencepiece model to split text with.
    """
    vocabulary = folder.vocabulary_file  # first: files are recorded in the order they are read
    if vocabulary is not None and folder.usual_class == CTC:
        return replace(load_ctc(folder), files=tuple(folder.files))
    load = next((loader for files, loader in LOADERS.items() if folder.names.issuperset(files)), None)
    if load is None and vocabulary is not None:
        if folder.usual_class == "MarianTokenizer":
            raise DataError(f"no source.spm: {vocabulary} alone cannot split text into tokens", folder.path)
        load = load_whitespace
    if load is None:
        names = ", ".join(" with ".join(files) for files in LOADERS)
        raise NoTokenizer(f"no tokenizer in the folder (looked for {names}, vocab.json, vocab.yml)", folder.path)
    tokenizer = with_languages(load(folder), folder)
    return replace(tokenizer, files=tuple(folder.files))
