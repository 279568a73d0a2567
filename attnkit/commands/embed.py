"""attnkit embed: map text or token ids to vectors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from attnkit import callbacks, formats, model, options, tokenizers
from attnkit.cli import text_input
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.tool import TEXT
from attnkit.errors import DataError, UsageError
from attnkit.inputs import layers, text_inputs
from attnkit.records import Array, Record, Tensor
from attnkit.tokenizers import Tokenizer

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


def _stated_by_model(checkpoint: "Checkpoint", flags: Mapping[str, Any]) -> dict[str, Any]:
    config = checkpoint.config
    width = config.result_width(layers.find_layer(checkpoint, flags["layer"], "embed"))
    return {"dim": width, "scale": math.isclose(config.embed_scale, math.sqrt(width))}


@tool(
    sections={
        "Text": "tokenizer vocab plain ids pair image languages batch lines",
        "Vectors": "dim seed one_hot table model_ layer scale",
        "Results": "steps",
    },
    rules=Constraints(
        exclusive=[
            ("model", "one_hot", "table"),
            ("dim", "one_hot"),
            ("model", "vocab"),
            ("lines", "batch"),
            *((one, name) for name in ("source_language", "target_language", "plain") for one in ("ids", "image")),
            ("source_language", "target_language"),
        ],
        requires=[
            *((name, "model") for name in ("layer", "pair", "image", "source_language", "target_language")),
            ("seed", "dim"),
        ],
        one_of=[("model", "dim", "one_hot", "table")],
        repeats={
            "model": ("dim scale", _stated_by_model),
            "table": ("dim", lambda table, flags: {"dim": sum(table["x"].shape[-1:])}),
        },
    ),
    operand=TEXT,
    reader=text_input.read_texts,
    needs_no_input=text_input.replaces_text,
    extra={"lines": options.Lines},
    adds=lambda stage: bool(stage.parameters["steps"]),
    record_defaults=lambda parameters: {"seed": parameters["seed"]} if parameters["dim"] is not None else {},
)
def embed(
    texts: Sequence[str] | str | None,
    *,
    dim: Annotated[
        int | None, typer.Option(min=1, metavar="D", help="random vectors of width D, one for each word")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the random vectors")] = 0,
    one_hot: Annotated[bool, typer.Option(help="one-hot vectors: 1 at the token's id, 0 elsewhere")] = False,
    table: Annotated[Record | None, options.file("tensor", "embedding table (vocab, model)")] = None,
    model_: options.Model = None,
    layer: options.Layer = None,
    tokenizer: Annotated[
        Tokenizer | None,
        options.file(
            "tokenizer",
            "split the text into words, chars, or the tokens of a tokenizer.json [default: words, or the model's own]",
            "words|chars|FILE",
        ),
    ] = None,
    vocab: Annotated[
        list[str] | None, options.file("words", "vocabulary: one word per line, or JSON {word: id}")
    ] = None,
    plain: Annotated[
        bool, typer.Option(help="take the spelling of a special token, such as <|endoftext|>, as plain text")
    ] = False,
    ids: options.Ids = None,
    pair: options.Pair = None,
    image: options.Image = None,
    languages: options.Translation,
    batch: options.Batch = False,
    scale: Annotated[bool, typer.Option(help="multiply by √D, as the 2017 paper does")] = False,
    steps: options.Steps = False,
) -> Record:
    """Map text or token ids to vectors: a row of the embedding table for each id.

    One of --dim, --one-hot, --table and --model chooses the vectors. TEXT comes from the command line or from standard
    input. It is normalized to Unicode NFC and split into words (runs of letters and digits) and single punctuation
    marks. Without --vocab, the vocabulary is the words of the text in order of appearance. A random vector depends only
    on the seed and the word, so a word has the same vector in every text; the vector of the padding token is zero. The
    record contains the table, which decode uses as its output matrix (tied weights). Several texts make one padded
    batch with its mask. A blank text has no tokens, and x has shape (0, D). With --model, the model's tokenizer splits
    the text, and the record does not contain the table. Without --model, --ids may have more axes than two. With
    `--layer decoder.embed` of an encoder-decoder model, TEXT follows the decoder start token, as in decode --score;
    --ids are used unchanged.

    \b
    Example:
      attnkit embed "The cat sat" --dim 8 | attnkit posenc | attnkit attend --heads 2
    """
    if model_ is not None:
        model_ = model_.reading(image is not None)
        language = languages.source_language or languages.target_language
        source = text_inputs.ModelInput(texts, pair, ids, image, tokenizer, batch, language=language, plain=plain)
        record = embed_with_model(model_, layer, source, "source" if languages.source_language else "target")
        return add_steps(record, None) if steps else record
    matrix = check_matrix(table)
    known = vocab or text_inputs.table_words(table)
    if ids is not None:
        inputs = text_inputs.ids_to_inputs(ids, known, 0 if matrix is None else len(matrix))
    else:
        tokenizer = tokenizer or tokenizers.BUILTIN_TOKENIZERS["words"]
        tokenizer = tokenizer.reading_plain_text() if plain else tokenizer
        inputs = text_inputs.tokenize(texts, tokenizer, known, own=matrix is None, batch=batch)
    if dim is not None:
        matrix = make_random_vectors(inputs, dim, seed)
    x = make_vectors(inputs, matrix, scale)
    labels = {"vocab": inputs.vocabulary} if len(inputs.vocabulary) == inputs.size else {}
    record = Record({}).with_tensors({"x": x}).merge(inputs.record()).with_tensors({}, labels)
    if steps:
        record = add_steps(record, make_vectors(inputs, matrix, False) if scale else None)
    return record if matrix is None else record.with_tensors({"table": Tensor(matrix, ("vocab", "model"))})


def add_steps(record: Record, rows: Tensor | None) -> Record:
    """Add the ids, and the rows of the table before x is scaled, as steps."""
    steps = {}
    if "ids" in record:
        steps["ids"] = replace(record.tensors["ids"], formula="the number of each token in the vocabulary")
    if rows is not None:
        steps |= {"rows": rows, "x": replace(record.tensors["x"], formula="√D · rows")}
    return record.with_tensors(steps)


def check_matrix(table: Record | None) -> Array | None:
    matrix = None if table is None else table["x"]
    if matrix is not None and matrix.ndim != 2:
        raise DataError(f"shape {matrix.shape} is not vocab × model", "--table")
    return matrix


def make_vectors(inputs: text_inputs.EncodedInputs, table: Array | None, scale: bool) -> Tensor:
    if table is None:
        formats.check_memory(4 * inputs.ids.size * inputs.size, f"one-hot vectors of {inputs.size} ids", "--one-hot")
    x = model.one_hot(inputs.ids, inputs.size) if table is None else model.embed(inputs.ids, table)
    axes = (*inputs.axes(), "vocab" if table is None else "model")
    formula = "one-hot(ids)" if table is None else "table[ids]"
    return Tensor(model.scale_embedding(x), axes, formula=f"√D · {formula}") if scale else Tensor(x, axes, {}, formula)


def embed_with_model(
    checkpoint: "Checkpoint", layer: str | None, source: text_inputs.ModelInput, side: str = "source"
) -> Record:
    """Embed a text, ids or the patches of an image by a layer of a model.

    side  "source" or "target", of the language of the text, if it has one
    """
    layer = layers.find_layer(checkpoint, layer, "embed")
    layers.check_pair(checkpoint.config, source.pair, source.texts)
    stack = model.parse_layer_name(layer)[0]
    if source.language and (side == "source") is not (stack == checkpoint.config.stacks[0]):
        other = "target" if side == "source" else "source"
        raise UsageError(f"{layer} embeds a {other}: --{other}-language names its language", f"--{side}-language")
    inputs, base = text_inputs.model_inputs(checkpoint, stack, source)
    context = layers.context_from(base)
    core = layers.core_model(checkpoint)
    callbacks.current().on_operands(layers.LayerOperands(core, model.Step("embed", layer), inputs, context))
    x = model.embed_tokens(core, layer, inputs, context)
    formula = "patches W + b" if checkpoint.config.patches else "table[ids]"
    tensors = {"x": Tensor(x, ("batch", "token", "model")[3 - x.ndim :], formula=formula)}
    if context.grid:
        tensors["grid"] = Tensor(np.array(context.grid))
    return Record({}).with_tensors(tensors).merge(base)


def make_random_vectors(inputs: text_inputs.EncodedInputs, dim: int, seed: int) -> Array:
    """Draw a random table (V, D) of a vocabulary; the row of padding is zero."""
    formats.check_memory(4 * (inputs.size + 2) * dim, f"a table {(inputs.size, dim)}", "--dim")
    vocabulary = inputs.vocabulary or [str(id) for id in range(inputs.size)]
    table = model.random_table(vocabulary, dim, seed)
    pad = tokenizers.find_padding(vocabulary)
    if pad is not None:
        table[vocabulary.index(pad)] = 0
    return table
