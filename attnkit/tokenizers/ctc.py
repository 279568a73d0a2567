"""Frame labels of a sound to text: connectionist temporal classification.

Graves et al. 2006.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from attnkit.errors import UsageError
from attnkit.tokenizers.files import TokenizerFolder, find_special_tokens, token_content, tokens_by_id
from attnkit.tokenizers.tokens import Tokenizer, Tokens


class Spelling(NamedTuple):
    """How labels become text.

    blank      the label of frames without one; delimiter: the one between words, which becomes `space`
    is_lower   whether the text is lowercased
    """

    blank: str = "<pad>"
    delimiter: str = "|"
    space: str = " "
    is_lower: bool = False


def load_ctc(folder: TokenizerFolder) -> Tokenizer:
    """Load vocab.json with the spelling that tokenizer_config.json states."""
    vocabulary = folder.read_vocabulary("vocab.json")
    added = {token.content: id for id, token in folder.added_tokens.items()}
    vocabulary = added | vocabulary
    words = tokens_by_id(vocabulary)
    stated = {
        name: content
        for name, key in (
            ("blank", "pad_token"),
            ("delimiter", "word_delimiter_token"),
            ("space", "replace_word_delimiter_char"),
        )
        if (content := token_content(folder.settings.get(key))) is not None
    }
    spelling = Spelling(**stated, is_lower=bool(folder.get_bool("do_lower_case", False)))
    return Tokenizer(
        refuse_text,
        list_vocabulary=lambda: words,
        decode=lambda ids, with_special=False: join_labels(
            [words[id] if id < len(words) else "" for id in ids], spelling
        ),
        special=find_special_tokens(folder.settings, vocabulary.get),
    )


def refuse_text(text: str, *args: object, **options: object) -> Tokens:
    """Raise UsageError: labels of frames are no tokens of a text."""
    raise UsageError("the labels of the frames of a sound are no tokens of a text")


def join_labels(labels: Sequence[str], spelling: Spelling) -> str:
    """The text of frame labels: a run of one label is one, the blank is none.

    >>> join_labels(["<pad>", "A", "A", "<pad>", "A", "|", "|", "B"], Spelling())
    'AA B'
    """
    runs = [label for label, _ in itertools.groupby(labels) if label != spelling.blank]
    text = "".join(spelling.space if label == spelling.delimiter else label for label in runs).strip()
    return text.lower() if spelling.is_lower else text
