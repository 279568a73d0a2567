"""Sentencepiece models of encoders and mBART, as library tokenizers."""

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from attnkit.errors import DataError
from attnkit.libraries import call_library, import_library
from attnkit.tokenizers.files import TokenizerFolder, check_charsmap, check_pieces, find_special_tokens
from attnkit.tokenizers.huggingface import complete_tokenizer
from attnkit.tokenizers.languages import MBART, MBART_50
from attnkit.tokenizers.tokens import Tokenizer

UNIGRAM, CONTROL, USER_DEFINED = 1, 3, 4  # the algorithm; the types of pieces
PIECES, TRAINER, NORMALIZER = 1, 2, 3  # fields of a model
LONGEST_VARINT = 63  # bits, but for the last seven
NEEDS = "; such a folder needs a tokenizer.json"
BERT_TEMPLATE = "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
ROBERTA_TEMPLATE = "<s> $A </s>", "<s> $A </s> </s> $B </s>"


class Piece(NamedTuple):
    """A piece of text, its log-probability and its type."""

    text: str
    score: float
    kind: int


class SentencePieceModel(NamedTuple):
    """A file's pieces by id, its unknown piece, algorithm and normalizer."""

    pieces: list[Piece]
    unknown: int
    algorithm: int
    charsmap: bytes


class PieceRules(NamedTuple):
    """How the tokenizer of a family differs from the model in its file.

    mask         the token for masked words, and whether it takes the space before it
    template     the tokens around a text, and around a pair
    special      tokens that are never split
    normalizers  (library, folder, that of the file) -> what is done to text, in this order
    before       pieces in front of those of the file, whose first ones, `dropped`, are left out
    after        pieces behind them, before the mask
    splits_numbers   whether a piece never ends with a digit and a comma
    may_split_marks  whether split_by_punct makes each punctuation mark a word
    """

    file: str
    mask: tuple[str, bool]
    template: tuple[str, str]
    special: Sequence[str]
    normalizers: Callable[[Any, TokenizerFolder, list[Any]], list[Any]]
    before: Sequence[tuple[str, float]] = ()
    dropped: Sequence[str] = ()
    after: Sequence[str] = ()
    splits_numbers: bool = False
    may_split_marks: bool = False


def load_unigram(folder: TokenizerFolder) -> Tokenizer:
    """Load a text encoder's sentencepiece model as transformers converts it.

    DataError for a family of which no rules are known here, for a model of another algorithm than unigram, and for one
    without the tokens of its family.
    """
    stated = folder.tokenizer_class
    family = RULES.get(stated, RULES.get(folder.usual_class))
    if family is None or family.file not in folder.names:
        files = ", ".join(sorted(folder.names & FILES))
        name = f"class {stated}" if stated in RULES else folder.family[:40] or "a known family"
        raise DataError(f"{files} is not that of a tokenizer of {name}{NEEDS}", folder.path)
    path = folder.file_path(family.file)
    library = import_library("tokenizers", "text", path)
    stored = read_sentencepiece(folder.read_bytes(family.file), path)
    if stored.algorithm != UNIGRAM:
        raise DataError(f"a sentencepiece model of algorithm {stored.algorithm}, not unigram (1){NEEDS}", path)
    if stored.charsmap:
        check_charsmap(stored.charsmap, path)
    check_pieces((piece.text for piece in stored.pieces), path)
    vocabulary, unknown = list_pieces(stored, family, path)
    with call_library("not a sentencepiece model of this family", path):
        tokenizer = library.Tokenizer(library.models.Unigram(vocabulary, unknown))
        charsmap = [library.normalizers.Precompiled(stored.charsmap)] if stored.charsmap else []
        tokenizer.normalizer = library.normalizers.Sequence(family.normalizers(library, folder, charsmap))
        spaces = library.pre_tokenizers.Metaspace()
        splits_marks = family.may_split_marks and folder.get_bool("split_by_punct", False)
        marks = [library.pre_tokenizers.Punctuation()] if splits_marks else []
        tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([*marks, spaces])
        tokenizer.decoder = library.decoders.Metaspace()
        add_tokens(tokenizer, library, stored, family, bool(folder.get_bool("do_lower_case", False)))
        single, pair = family.template
        ends = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(single.replace(":0", "").split()[::2])]
        tokenizer.post_processor = library.processors.TemplateProcessing(single=single, pair=pair, special_tokens=ends)
    special = find_special_tokens(folder.settings, tokenizer.token_to_id)
    return complete_tokenizer(tokenizer, folder, path, special)


def list_pieces(stored: SentencePieceModel, family: PieceRules, name: str) -> tuple[list[tuple[str, float]], int]:
    """The pieces of a family with their scores, by id, and the id of unknown text.

    DataError if the first pieces are others than those that the family leaves out, or special ones are missing.
    """
    texts = [piece.text for piece in stored.pieces]
    if texts[: len(family.dropped)] != [*family.dropped]:
        raise DataError(f"the first pieces are not {', '.join(family.dropped)}{NEEDS}", name)
    own = [(text, score - 100 * (family.splits_numbers and ends_in_number(text))) for text, score, _ in stored.pieces]
    vocabulary = [*family.before, *own[len(family.dropped) :]]
    vocabulary += [(token, 0.0) for token in (*family.after, family.mask[0])] if family.before else []
    known = {text for text, _ in vocabulary}
    for token in family.special:
        if token not in known:
            raise DataError(f"the model of {len(texts)} pieces has no {token}{NEEDS}", name)
    unknown = [text for text, _ in vocabulary].index("<unk>") if family.before else stored.unknown
    return vocabulary, unknown


def ends_in_number(piece: str) -> bool:
    """Whether a piece ends with a digit and a comma: ALBERT splits these.

    >>> ends_in_number("▁2,"), ends_in_number(",")
    (True, False)
    """
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def add_tokens(tokenizer: Any, library: Any, stored: SentencePieceModel, family: PieceRules, is_lower: bool) -> None:
    """Add the tokens that are never split: the family's and the file's own."""
    mask, takes_space = family.mask
    known = {piece.text: piece.kind for piece in stored.pieces if piece.text != mask}
    tokens = [library.AddedToken(mask, lstrip=takes_space, normalized=False)]
    # the unknown token of DeBERTa alone is found in text that is normalized; in lower case it would be another
    tokens += [library.AddedToken(one, normalized=one == "[UNK]" and not is_lower) for one in family.special]
    tokens += [library.AddedToken(text, normalized=False) for text, kind in known.items() if kind == CONTROL]
    tokenizer.add_special_tokens(tokens)
    more = [library.AddedToken(text, normalized=False) for text, kind in known.items() if kind == USER_DEFINED]
    tokenizer.add_tokens(more)


def albert_normalizers(library: Any, folder: TokenizerFolder, charsmap: list[Any]) -> list[Any]:
    """ALBERT's normalizers: quotes, accents and case, then the file's rules."""
    kinds = library.normalizers
    steps = [kinds.Replace("``", '"'), kinds.Replace("''", '"')]
    steps += [] if folder.get_bool("keep_accents", False) else [kinds.NFKD(), kinds.StripAccents()]
    steps += [kinds.Lowercase()] if folder.get_bool("do_lower_case", True) else []
    return [*steps, *charsmap, single_spaces(library, " ")]


def deberta_normalizers(library: Any, folder: TokenizerFolder, charsmap: list[Any]) -> list[Any]:
    """DeBERTa's normalizers: case, outer spaces, then the file's rules."""
    lower = [library.normalizers.Lowercase()] if folder.get_bool("do_lower_case", False) else []
    return [*lower, library.normalizers.Strip(), *charsmap, single_spaces(library, " ")]


def roberta_normalizers(library: Any, folder: TokenizerFolder, charsmap: list[Any]) -> list[Any]:
    """The normalizers of XLM-RoBERTa and CamemBERT: the file's rules, then spaces."""
    return [*charsmap, library.normalizers.Strip(left=False, right=True), single_spaces(library, "▁")]


def single_spaces(library: Any, space: str) -> Any:
    """The normalizer that makes several spaces one."""
    return library.normalizers.Replace(library.Regex(" {2,}"), space)


ROBERTA_FILE, ROBERTA_MASK = "sentencepiece.bpe.model", ("<mask>", True)
FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")
XLM_ROBERTA = PieceRules(
    ROBERTA_FILE,
    ROBERTA_MASK,
    ROBERTA_TEMPLATE,
    FAIRSEQ,
    roberta_normalizers,
    before=[(token, 0.0) for token in FAIRSEQ],
    dropped=("<unk>", "<s>", "</s>"),
)
RULES = {  # by class of transformers
    "AlbertTokenizer": PieceRules(
        "spiece.model",
        ("[MASK]", True),
        BERT_TEMPLATE,
        ("<pad>", "<unk>", "[CLS]", "[SEP]"),
        albert_normalizers,
        splits_numbers=True,
    ),
    "DebertaV2Tokenizer": PieceRules(
        "spm.model",
        ("[MASK]", False),
        BERT_TEMPLATE,
        ("[PAD]", "[CLS]", "[SEP]", "[UNK]"),
        deberta_normalizers,
        may_split_marks=True,
    ),
    "XLMRobertaTokenizer": XLM_ROBERTA,
    "MBartTokenizer": XLM_ROBERTA._replace(special=(*FAIRSEQ, *MBART), after=MBART),
    "MBart50Tokenizer": XLM_ROBERTA._replace(special=(*FAIRSEQ, *MBART_50), after=MBART_50),
    "CamembertTokenizer": PieceRules(
        ROBERTA_FILE,
        ROBERTA_MASK,
        ROBERTA_TEMPLATE,
        ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"),
        roberta_normalizers,
        before=[("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)],
        dropped=("<unk>",),
    ),
}
FILES = {family.file for family in RULES.values()}


def read_sentencepiece(data: bytes, name: str) -> SentencePieceModel:
    """Read a sentencepiece model, a Protocol Buffers message.

    Source: sentencepiece_model.proto.
    """
    pieces: list[Piece] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for number, value in read_fields(data):
            if number == PIECES:
                fields = dict(read_fields(value))
                score = struct.unpack("<f", fields.get(2, bytes(4)))[0]
                pieces.append(Piece(fields[1].decode("utf-8"), score, fields.get(3, 1)))
            elif number in (TRAINER, NORMALIZER):  # of a field that is there twice, the last one counts
                (trainer if number == TRAINER else normalizer).update(read_fields(value))
    except (ValueError, LookupError, TypeError, AttributeError, struct.error):
        raise DataError("not a sentencepiece model", name) from None
    if not pieces or not all(math.isfinite(piece.score) for piece in pieces):
        raise DataError("not a sentencepiece model: no pieces, or a score that is not finite", name)
    return SentencePieceModel(pieces, trainer.get(40, 0), trainer.get(3, UNIGRAM), normalizer.get(2, b""))


def read_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The number and the value of each field of a message: a whole number, or bytes.

    ValueError or LookupError where it ends early or is malformed.

    >>> [*read_fields(bytes([0x08, 0x96, 0x01, 0x12, 2, 104, 105]))]
    [(1, 150), (2, b'hi')]
    """
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        wire, value = key & 7, b""
        if wire == 0:
            number, at = read_varint(data, at)
            yield key >> 3, number
            continue
        size, at = read_varint(data, at) if wire == 2 else (SIZES[wire], at)
        value, at = data[at : at + size], at + size
        if at > len(data):
            raise ValueError("a field ends early")
        yield key >> 3, value


SIZES = {1: 8, 5: 4}  # of numbers of fixed width, in bytes


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A whole number of seven bits a byte, the lowest first, and where it ends.

    >>> read_varint(bytes([0x96, 0x01]), 0)
    (150, 2)
    """
    value = shift = 0
    while True:
        byte = data[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
        shift += 7
        if shift > LONGEST_VARINT:
            raise ValueError("a number of too many bits")
