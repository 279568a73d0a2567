"""attnkit embed: text or token ids to vectors."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from attnkit import model, tokenizers
from attnkit.cli import options, text_input
from attnkit.cli.tool import tool
from attnkit.errors import DataError
from attnkit.inference import layers, text_inputs
from attnkit.record import Array, Record
from attnkit.tokenizers import Tokenizer

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


@tool(
    one_of=[("model", "dim", "one_hot", "table")],
    exclusive=[("model", "dim", "one_hot", "table"), ("model", "scale"), ("model", "vocab"), ("lines", "batch")],
    requires=[("layer", "model"), ("pair", "model"), ("image", "model")],
    operand="[TEXT]...",
    feed=text_input.read_texts,
    alone=lambda given: given["ids"] is not None or given["image"] is not None,
    extra={"lines": options.switch("a stream: one record for each line")},
    adds=lambda given: False,
    explicit=lambda given: {"seed": given["seed"]} if given["dim"] is not None else {},
)
def embed(
    given: Sequence[str] | str | None,
    *,
    dim: Annotated[int | None, options.integer("width of random vectors, one for each word", 1, "D")] = None,
    seed: Annotated[int, options.integer("seed of the random vectors", 0)] = 0,
    one_hot: Annotated[bool, options.switch("x is 1 at the token's id and 0 elsewhere")] = False,
    table: Annotated[Record | None, options.tensor("embedding matrix, vocab × model")] = None,
    model_: Annotated[Any, options.MODEL] = None,
    layer: Annotated[str | None, options.LAYER] = None,
    tokenizer: Annotated[
        Tokenizer | None,
        options.Flag(
            "how text is cut: words, chars, or by a tokenizer.json [default: words, or the model's own]",
            "words|chars|FILE",
            str,
            "tokenizer",
        ),
    ] = None,
    vocab: Annotated[
        list[str] | None,
        options.Flag("vocabulary: one word a line, or JSON {word: id}", "FILE", str, "words"),
    ] = None,
    ids: Annotated[Record | None, options.ids("token ids, (T) or (B, T), in place of text")] = None,
    pair: Annotated[str | None, options.text("a second text after TEXT, for models of pairs")] = None,
    image: Annotated[Array | None, options.IMAGE] = None,
    batch: Annotated[bool, options.switch("one padded batch of the texts, or of the lines of standard input")] = False,
    scale: Annotated[bool, options.switch("multiply by √D, as the 2017 paper does")] = False,
) -> Record:
    """Text or token ids to vectors: x is the rows of a table at the ids.

    One of --dim, --one-hot, --table and --model says what the vectors are. TEXT comes from the command line or from
    standard input. Words are runs of letters and digits, and single punctuation marks, after Unicode NFC;
    without --vocab the vocabulary is the words of the text in the order they appear. A random vector depends
    on the seed and the word alone, so that a word has the same vector in every text; that of the padding
    token is zero. The record carries the table along, and decode ties its output to it. Several texts make
    one padded batch with its mask. A blank text has no tokens, and x is (0, D). With --model the text is cut by the
    model's tokenizer and the table stays in its folder; `--layer decoder.embed` of a translator puts TEXT behind
    the token that its decoder starts with, as decode --score does, and takes --ids as they are.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit posenc | attnkit attend --heads 2
    """
    if model_ is not None:
        return of_model(model_, layer, given, tokenizer, ids, pair, image, batch)
    matrix = None if table is None else table["x"]
    if matrix is not None and matrix.ndim != 2:
        raise DataError(f"shape {matrix.shape} is not vocab × model", "--table")
    known = vocab or text_inputs.table_words(table)
    if ids is not None:
        found = text_inputs.ids_to_inputs(ids, known, 0 if matrix is None else len(matrix))
    else:
        found = text_inputs.tokenize(
            given, tokenizer or tokenizers.BUILTIN_TOKENIZERS["words"], known, own=matrix is None, batch=batch
        )
    if dim is not None:
        matrix = random_vectors(found.vocabulary, dim, seed)
    x = model.one_hot(found.ids, found.size) if matrix is None else model.embed(found.ids, matrix)
    axes = ("batch", "token")[2 - found.ids.ndim :]
    record = Record({}).put(
        {"x": model.scale_embedding(x) if scale else x},
        axes={"x": (*axes, "vocab" if one_hot else "model")},
        formulas={"x": ("√D · " if scale else "") + ("one-hot(ids)" if one_hot else "table[ids]")},
    )
    record = record.joined(found.record()).put(
        {}, labels={"vocab": found.vocabulary} if len(found.vocabulary) == found.size else {}
    )
    return record if matrix is None else record.put({"table": matrix}, {"table": ("vocab", "model")})


def of_model(
    checkpoint: "Checkpoint",
    layer: str | None,
    given: Sequence[str] | str | None,
    tokenizer: Tokenizer | None,
    ids: Record | None,
    pair: str | None,
    image: Array | None,
    batch: bool,
) -> Record:
    """The vectors that a model gives to a text, to ids, or to the patches of an image."""
    layer = layers.find_layer(checkpoint, layer, "embed")
    layers.check_pair(checkpoint.config, pair, given)
    stack = model.parse_layer_name(layer)[0]
    inputs, base = text_inputs.model_inputs(checkpoint, stack, given, tokenizer, ids, pair, image, batch)
    context = layers.context_from(base)
    x = model.embed_tokens(layers.core_model(checkpoint), layer, inputs, context)
    made = {"x": x} | ({"grid": np.array(context.grid)} if context.grid else {})
    axes = ("batch", "token", "model")[3 - x.ndim :]
    said = "patches W + b" if checkpoint.config.patches else "table[ids]"
    return Record({}).put(made, {"x": axes}, formulas={"x": said}).joined(base)


def random_vectors(vocabulary: list[str], dim: int, seed: int) -> Array:
    """A random table of the vocabulary; its padding token is zero."""
    table = model.random_table(vocabulary, dim, seed)
    pad = tokenizers.find_padding(vocabulary)
    if pad is not None:
        table[vocabulary.index(pad)] = 0
    return table
