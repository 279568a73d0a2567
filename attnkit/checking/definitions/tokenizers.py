"""Byte-pair encoding: merges learned from a text, texts to ids, and ids to texts.

Texts and bytes cross as numbers: a token is a row of its bytes, filled with −1.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition
from attnkit.checking.drivers import MOST_BYTES, as_row
from attnkit.model.slips import Slip
from attnkit.tokenizers.bpe import Pair, merge_pair

# the words of GPT-2: contractions, letters, digits and others, each with one space before it, and other spaces
WORDS = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?(?:[^\w\s]|_)+|\s+(?!\S)|\s+")
END = "<|end|>"
DOUBLE_END = END + END
TEXT = (
    "low low low low low lower lower widest widest widest newest newest newest newest newest newest\n"
    f"the newest is the lowest{END}the widest of the low: it's 2024, née Zoë.  Two  spaces.{END}"
    f"a lower low, and the newest news; don't end, endings end {END} hahaha hahaha hahaha"
)


def split_special(text: str, special: Sequence[str], longest_first: bool = True) -> list[str]:
    """A text as parts, each of which is a special token or has none.

    >>> split_special("a<e><e>b", ["<e>"])
    ['a', '<e>', '<e>', 'b']
    """
    if not special:
        return [text] if text else []
    ordered = sorted(special, key=len, reverse=True) if longest_first else special
    return [part for part in re.split(f"({'|'.join(map(re.escape, ordered))})", text) if part]


def split_to_words(text: str, way: float) -> list[str]:
    """The words of a text: those of GPT-2, words without spaces, or the whole text."""
    return [WORDS.findall(text), text.split(), [text]][int(way)]


GPT2, SPACES, WHOLE = 0.0, 1.0, 2.0


def learn_merges(
    words: Mapping[tuple[bytes, ...], int], most: int, choose: Callable[[list[Pair]], Pair] = max
) -> list[Pair]:
    """Merge the most frequent pair of tokens again and again.

    choose  of equally frequent ones in the order of the text: the greater by default

    >>> learn_merges({(b"a", b"b", b"c"): 2, (b"b", b"c"): 1}, 2)
    [(b'b', b'c'), (b'a', b'bc')]
    """
    merges: list[Pair] = []
    while len(merges) < most:
        pairs: Counter[Pair] = Counter()
        for word, count in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        largest = max(pairs.values())
        ties = [pair for pair, count in pairs.items() if count == largest]  # the first seen is the first
        merges.append(choose(ties))
        words = {tuple(merge_pair(word, merges[-1])): count for word, count in words.items()}
    return merges


def as_bytes(word: str) -> tuple[bytes, ...]:
    return tuple(bytes([one]) for one in word.encode("utf-8"))


# learning

TIES: tuple[Callable[[list[Pair]], Pair], ...] = (max, min, lambda ties: ties[0])
GREATER, LESSER, FIRST = 0.0, 1.0, 2.0


def learn(
    text: str,
    size: float,
    special: Sequence[str],
    tie: float,
    removed: float,
    way: float,
    counted: float,
    more: float,
) -> list[Pair]:
    """The merges of a text for a vocabulary of some size."""
    parts = [part for part in split_special(text, special if removed else []) if part not in special or not removed]
    counts = Counter(as_bytes(word) for part in parts for word in split_to_words(part, way))
    words = counts if counted else dict.fromkeys(counts, 1)
    return learn_merges(words, int(size) - 256 - len(special) + int(more), TIES[int(tie)])


def byte_rows(tokens: Iterable[Any]) -> Any:
    return np.array([as_row(one) for one in tokens])


def sort_rows(rows: Any) -> Any:
    return np.unique(rows, axis=0)


def measure_training(given: Any, arrays: Any) -> Any:
    """The merges, or the tokens of the vocabulary in order."""
    merges, vocabulary = arrays
    return sort_rows(vocabulary) if given["part"] == "vocabulary" else merges


def find_answer(
    part: str, merges: Any, size: float, special: Sequence[str], has_special: float, has_bytes: float
) -> Any:
    """What `measure_training` makes of the right answer: rows of tokens."""
    if part != "vocabulary":
        return merges
    joined = [[one for one in (*first, *second) if one >= 0] for first, second in merges]
    tokens = [bytes(map(int, one)) for one in joined]
    return sort_rows(
        byte_rows(
            [*tokens, *([one.encode() for one in special] if has_special else [])]
            + ([bytes([one]) for one in range(256)] if has_bytes else [])
        )
    )


def describe_token(row: Any) -> str:
    """The token of a row of bytes.

    >>> describe_token(np.array([104, 105, -1]))
    "'hi'"
    """
    data = bytes(int(one) for one in row if one >= 0)
    try:
        return repr(data.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(data)


def describe_learned(answer: Any, at: tuple[int, ...]) -> str:
    """The pair of a merge, or a token of the vocabulary."""
    if answer.ndim == 2:
        return f"token {describe_token(answer[at[0]])}"
    return f"merge {at[0] + 1} {' + '.join(map(describe_token, answer[at[0]]))}"


OPTIONS = {
    "tie": lambda: GREATER,
    "removed": lambda: 1,
    "way": lambda: GPT2,
    "counted": lambda: 1,
    "more": lambda: 0,
    "has_special": lambda: 1,
    "has_bytes": lambda: 1,
}


def training_case(name: str, part: str, size: int, special: Sequence[str] = (END,), text: str = TEXT) -> Case:
    return Case(name, lead=(), given={"text": text, "size": size, "special": list(special), "part": part})


TRAIN = Definition(
    "byte-pair encoding, learned: the merges and the vocabulary of a text",
    {
        "text": Argument("", "text corpus data train_text string"),
        "path": Argument("", "path input_path file file_path corpus_path filename input_file"),
        "size": Argument("", "size vocab_size n_vocab vocabulary_size", role="number"),
        "special": Argument("", "special special_tokens specials"),
        "part": Argument("", ""),
    },
    {
        **OPTIONS,
        "merges": lambda text, size, special, tie, removed, way, counted, more: byte_rows(
            token for pair in learn(text, size, special, tie, removed, way, counted, more) for token in pair
        ).reshape(-1, 2, MOST_BYTES),
        "answer": lambda part, merges, size, special, has_special, has_bytes: find_answer(
            part, merges, size, special, has_special, has_bytes
        ),
    },
    {},
    (
        training_case("merges", "merges", 256 + 1 + 12),
        training_case("more merges", "merges", 256 + 1 + 40),
        training_case("no special token", "merges", 256 + 12, (), TEXT.replace(END, " ")),
        training_case("equally frequent pairs", "merges", 256 + 1 + 9, (END,), f"ab{END}ba{END}cd{END}dc éa aé"),
        training_case("vocabulary", "vocabulary", 256 + 1 + 12),
        training_case("two special tokens", "vocabulary", 256 + 2 + 12, (END, "<|pad|>")),
    ),
    "M L",
    (
        Slip(
            "of equally frequent pairs the lesser one is merged, not the greater",
            {"tie": lambda: LESSER},
            "max(pairs, key=lambda pair: (count, pair))",
        ),
        Slip(
            "of equally frequent pairs the first one in the text is merged, not the greater",
            {"tie": lambda: FIRST},
            "max(pairs, key=lambda pair: (count, pair))",
        ),
        Slip(
            "special tokens are not removed from the text: their bytes are merged",
            {"removed": lambda: 0},
            "split the text at them first",
        ),
        Slip(
            "words are split at spaces, which are dropped", {"way": lambda: SPACES}, "a space belongs to the next word"
        ),
        Slip("the text is not split to words: merges cross them", {"way": lambda: WHOLE}),
        Slip("each different word counts once, not as often as it occurs", {"counted": lambda: 0}),
        Slip(
            "there is one merge too many: the special tokens are not counted in the size",
            {"more": lambda special: len(special)},
        ),
        Slip("there is one merge too few", {"more": lambda: -1}),
        Slip("the vocabulary lacks the special tokens", {"has_special": lambda: 0}),
        Slip("the vocabulary lacks the 256 bytes", {"has_bytes": lambda: 0}),
    ),
    functions="train_bpe run_train_bpe train_tokenizer bpe_train BasicTokenizer train",
    drive="train",
    expects="a function (input_path or text, vocab_size, special_tokens) that returns the vocabulary, id to bytes, and "
    "the merges, pairs of bytes; or a class with train(text, vocab_size)",
    measure=measure_training,
    is_exact=True,
    place=describe_learned,
)

# texts to ids, and back

SPECIAL = (END, DOUBLE_END)
ACROSS = (b"t", b" ")  # which no word has
LEARNED = [ACROSS, *learn(TEXT, 256 + 40, [END], GREATER, 1, GPT2, 1, 1)]
VOCABULARY = [
    *(bytes([one]) for one in range(256)),
    *(one + other for one, other in LEARNED),
    *(one.encode() for one in SPECIAL),
]


def encode_word(word: str, merges: Sequence[Pair], way: float) -> list[bytes]:
    """The tokens of a word: by the rank of the merges, or by the longest that fits."""
    tokens = [*as_bytes(word)]
    if way == LONGEST:
        return take_longest(word.encode(), {*(one + other for one, other in merges)})
    if way == ONCE:
        for pair in merges:
            at = next((at for at in range(len(tokens) - 1) if (tokens[at], tokens[at + 1]) == pair), None)
            tokens = tokens if at is None else [*tokens[:at], b"".join(tokens[at : at + 2]), *tokens[at + 2 :]]
        return tokens
    for pair in merges if way == RANKS else merges[::-1]:
        tokens = merge_pair(tokens, pair)
    return tokens


RANKS, LONGEST, ONCE, REVERSED = 0.0, 1.0, 2.0, 3.0


def take_longest(data: bytes, tokens: set[bytes]) -> list[bytes]:
    """Cut the longest token from the front again and again."""
    found = []
    while data:
        length = next((size for size in range(len(data), 1, -1) if data[:size] in tokens), 1)
        found.append(data[:length])
        data = data[length:]
    return found


def ids_of_text(
    text: str,
    vocabulary: Sequence[str],
    merges: Any,
    special: Sequence[str],
    kept: float,
    first: float,
    way: float,
    by: float,
) -> Any:
    """The ids of a text."""
    ids = {token.encode("latin-1"): id for id, token in reversed([*enumerate(vocabulary)])}
    pairs = [(one.encode("latin-1"), other.encode("latin-1")) for one, other in merges]
    known = special if kept else []
    tokens: list[bytes] = []
    for part in split_special(text, known, bool(first)):
        words = [] if part in known else split_to_words(part, way)
        tokens += [part.encode()] if part in known else [one for word in words for one in encode_word(word, pairs, by)]
    return np.array([ids[one] for one in tokens], int)


def decode_ids(ids: Any, vocabulary: Sequence[str], whole: float) -> Any:
    """The bytes of the text of ids; those of each token by itself where `whole` is 0."""
    tokens = [vocabulary[int(one)].encode("latin-1") for one in ids]
    texts = [b"".join(tokens)] if whole else tokens
    return np.frombuffer("".join(one.decode("utf-8", "replace") for one in texts).encode(), np.uint8)


def encoding_case(name: str, text: str, special: Sequence[str] = SPECIAL[:1], task: str = "encode") -> Case:
    return Case(name, lead=(), given={**of_bpe(special), "task": task, "text": text})


def decoding_case(name: str, ids: Sequence[int], special: Sequence[str] = SPECIAL[:1]) -> Case:
    given = {**of_bpe(special), "task": "decode", "ids": lambda given, generator: np.array(ids)}
    return Case(name, lead=(), given=given)


def of_bpe(special: Sequence[str]) -> dict[str, Any]:
    """What a tokenizer is made of."""
    return {
        "vocabulary": [one.decode("latin-1") for one in VOCABULARY],
        "merges": [[one.decode("latin-1"), other.decode("latin-1")] for one, other in LEARNED],
        "special": list(special),
    }


def ids_of(text: str, special: Sequence[str] = SPECIAL[:1]) -> list[int]:
    given = of_bpe(special)
    ids = ids_of_text(text, given["vocabulary"], given["merges"], given["special"], 1, 1, GPT2, RANKS)
    return [int(one) for one in ids]


ACCENTS = "née Zoë, naïve 数 🙂 the newest"
PLAIN = "the lowest of the newest news: it's widest, and lower than 1024!"
MARKED = f"the newest{END}{END} low{END}"
BPE = Definition(
    "byte-pair encoding, applied: texts to ids, and ids to texts",
    {
        "vocabulary": Argument("", "vocabulary vocab encoder id_to_bytes"),
        "merges": Argument("", "merges bpe_merges bpe_ranks"),
        "special": Argument("", "special special_tokens specials"),
        "task": Argument("", ""),
        "text": Argument("", ""),
        "ids": Argument("", ""),
    },
    {
        "kept": lambda: 1,
        "first": lambda: 1,
        "way": lambda: GPT2,
        "by": lambda: RANKS,
        "whole": lambda: 1,
        "answer": lambda task, text, ids, vocabulary, merges, special, kept, first, way, by, whole: (
            decode_ids(ids, vocabulary, whole)
            if task == "decode"
            else ids_of_text(text, vocabulary, merges, special, kept, first, way, by)
        ),
    },
    {},
    (
        encoding_case("plain", PLAIN),
        encoding_case("no text", ""),
        encoding_case("spaces", "the  low \n\n newest   "),
        encoding_case("repeated pairs", "hahahaha lowlow hahaha"),
        encoding_case("letters of several bytes", ACCENTS),
        encoding_case("special tokens", MARKED),
        encoding_case("overlapping special tokens", MARKED, SPECIAL),
        encoding_case("no special token is known", MARKED, ()),
        encoding_case("lines one by one", "the low\nnewest\nhahaha low", task="stream"),
        decoding_case("back to the text", ids_of(PLAIN)),
        decoding_case("back to letters of several bytes", ids_of(ACCENTS)),
        decoding_case("back to special tokens", ids_of(MARKED, SPECIAL), SPECIAL),
        decoding_case("bytes that are no text", [0xFF, ord("a"), 0xC3]),
    ),
    "N",
    (
        Slip("special tokens are encoded as text", {"kept": lambda: 0}, "split the text at them first"),
        Slip(
            "of overlapping special tokens the shorter is taken",
            {"first": lambda: 0},
            "sort them by length, the longest first",
        ),
        Slip(
            "the longest token that fits is taken, not the merges in their order",
            {"by": lambda: LONGEST},
            "merge the pair of the lowest rank first",
        ),
        Slip("each merge is applied once, not to all its occurrences", {"by": lambda: ONCE}),
        Slip("the merges are applied from the last to the first", {"by": lambda: REVERSED}),
        Slip(
            "words are split at spaces, which are dropped", {"way": lambda: SPACES}, "a space belongs to the next word"
        ),
        Slip("the text is not split to words: merges cross them", {"way": lambda: WHOLE}),
        Slip(
            "each token is decoded by itself, so that letters of several bytes are lost",
            {"whole": lambda: 0},
            "join the bytes, then decode them",
        ),
    ),
    functions="Tokenizer get_tokenizer BPETokenizer BPE bpe_tokenizer RegexTokenizer make_tokenizer",
    drive="tokenize",
    expects="a class or a function (vocab, merges, special_tokens) whose result has encode(text) and decode(ids); "
    "encode_iterable(texts) too",
    is_exact=True,
)

DEFINITIONS = {"train-bpe": TRAIN, "bpe": BPE}
