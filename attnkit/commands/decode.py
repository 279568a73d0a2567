"""attnkit decode: hidden states to logits, probabilities and words; with a whole model, words after words."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any

import numpy as np

from attnkit import display, model, tokenizers
from attnkit.cli import options, text_input, views
from attnkit.cli.stage import Stage, cast_x
from attnkit.cli.tool import tool
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.inference import detokenizer, layers
from attnkit.inference import options as generation
from attnkit.inference.head import apply_head, run_decoder_stack
from attnkit.inference.options import (
    GENERATION_FLAGS,
    HOOK_FLAGS,
    INPUT_FLAGS,
    SAMPLING_FLAGS,
    GenerationOptions,
    refuse_flags,
)
from attnkit.inference.prompts import generates_text
from attnkit.inference.text_generation import run_decode
from attnkit.record import Array, Labels, Record, row_labels, shared_labels
from attnkit.tokenizers import Tokenizer


def shown(record: Record, call: Stage, look: display.Style) -> str:
    """A text as text; of hidden states the most probable words at every position, one table a batch row."""
    checkpoint = call.loaded.get("model_")
    if checkpoint is not None and generates_text(checkpoint.config, call.parameters["layer"]):
        return render_generation(record, call, look)
    if call.parameters["emit"] or record.axes_of("x")[-1:] != ("vocab",):
        return views.render_tensor(record, "x", look)
    x = record["x"]
    probs = x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]) if x.ndim > 1 else x[None, None]
    ids, shares = model.candidates(probs, call.extra.get("top") or 5)
    words = shared_labels(record.labels.get("vocab")) or None
    tokens = record.labels_of("x", x.ndim - 2) if x.ndim > 1 else None
    title, corner = ("next word", "position") if checkpoint is None else called(checkpoint.config)
    drawn = []
    for row in range(len(probs)):
        here = row_labels(tokens, row) or [str(at) for at in range(probs.shape[1])]
        real = [at for at, token in enumerate(here) if token not in tokenizers.PADDING]
        drawn.append(
            display.candidates_table(
                [here[at] for at in real], ids[row][real], shares[row][real], words, look,
                title=f"batch {row}" if len(probs) > 1 else title, formula=record.formulas["x"], corner=corner,
            )
        )  # fmt: skip
    return "\n\n".join(drawn)


def render_generation(record: Record, call: Stage, look: display.Style) -> str:
    """What a terminal shows of a text: the words, the beginning dim; of scores a table and their sum."""
    found = shared_labels(record.labels.get("text"))
    if call.parameters["emit"] not in (None, "text") or not (found or "rank" in record):
        return views.render_tables(record, call, look)
    if "rank" in record:
        count = len(record["x"]) if record["x"].ndim == 2 else 1
        return "\n\n".join(render_scores(record, row, look) for row in range(count))
    shown = []
    scores = record["scores"].tolist() if "scores" in record and len(found) > 1 else []
    prompts = shared_labels(record.labels.get("prompt")) or [""] * len(found)
    for at, (text, prompt) in enumerate(zip(found, prompts, strict=True)):
        rest = text[len(prompt) :] if text.startswith(prompt) else text
        line = display.dim_then_bold(prompt if text.startswith(prompt) else "", rest, look)
        shown.append(f"{scores[at]:.{look.precision}f}  {line}" if scores else line)
    return "\n".join(shown)


def render_scores(record: Record, row: int, look: display.Style) -> str:
    """The scores of one text as a table, and what they come to."""
    at = row if record["x"].ndim == 2 else ...
    names = record.labels.get("token") or [str(word) for word in record["ids"][at]]
    tokens = [str(name) for name in (names[row] if names and isinstance(names[0], list) else names)]
    real = [place for place, name in enumerate(tokens) if name not in tokenizers.PADDING or record["rank"][at][place]]
    x, ids, rank = (record[name][at][real].tolist() for name in ("x", "ids", "rank"))
    return display.scores_table([tokens[place] for place in real], ids, x, rank, look)


def lone(record: Record, call: Stage) -> bool:
    """Whether what is shown is one text and nothing beside it."""
    checkpoint = call.loaded.get("model_")
    speaks = checkpoint is not None and generates_text(checkpoint.config, call.parameters["layer"])
    as_text = call.parameters["emit"] in (None, "text") and "rank" not in record
    return speaks and as_text and len(shared_labels(record.labels.get("text"))) == 1


def check_length_penalty(text: str) -> str:
    """A length penalty as it was written, once it is known to be one."""
    name, colon, exponent = text.partition(":")
    number = options.number("").parse
    if name not in model.LENGTH_PENALTIES or not colon or number is None:
        raise ValueError("gnmt:A or average:A")
    number(exponent)
    return text


def called(config: model.Config) -> tuple[str, str]:
    """What the head of a model tells, and of what."""
    if config.classes:
        return "class", "image"
    return ("next word" if config.decoder else "word at each position"), "position"


NEEDS_MODEL = (*INPUT_FLAGS, *GENERATION_FLAGS, *HOOK_FLAGS, "tokenizer", "layer")
EXCLUSIVE = [("model", "params", "table"), ("lines", "batch"), ("beam", "emit=logits|probs"), *generation.EXCLUSIVE]
REQUIRES = [*((flag, "model") for flag in NEEDS_MODEL), *generation.REQUIRES]


@tool(
    exclusive=EXCLUSIVE,
    requires=REQUIRES,
    operand="[INPUT | TEXT...]",
    feed=text_input.read_prompts,
    view=shown,
    plain=lone,
    alone=text_input.needs_no_input,
    extra={
        "top": options.integer("candidates in the table, or at each of the --steps [default: 5]", 1),
        "lines": options.switch("a stream: one record for each line of text"),
    },
    explicit=lambda given: {"seed": given["seed"] or 0} if sampling(given) else {},
    prints=lambda given: given["emit"] == "text",
    adds=lambda given: given["best"] is not None,
)
def decode(
    record: Sequence[str] | Record | None,
    *,
    model_: Annotated[Any, options.MODEL] = None,
    layer: Annotated[
        str | None,
        options.text("head: just the last step, hidden states to words", "NAME"),
    ] = None,
    ids: Annotated[
        Record | None,
        options.ids("token ids, (T) or (B, T), in place of text; what the target of a translation begins with"),
    ] = None,
    image: Annotated[Array | None, options.IMAGE] = None,
    memory: Annotated[
        Any,
        options.Flag(
            "what the decoder of a translation looks at: a file from encode, or :memory", "FILE", str, "memory"
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        options.integer(
            "tokens at most, the last of them an end where the model forces one (not with --cache-out); "
            "0: score the prompt [default: 40; of an encoder-decoder model 256]",
            0,
        ),
    ] = None,
    score: Annotated[str | None, options.text("the log-probability of each token of TEXT, after the prompt")] = None,
    beam: Annotated[int | None, options.integer("search with N texts at once", 1)] = None,
    best: Annotated[int | None, options.integer("the N best texts of the search, best first", 1)] = None,
    length_penalty: Annotated[
        str | None,
        options.Flag(
            "sum of log-probabilities over ((5 + length) / 6)^A, or over length^A [default: average:1]",
            "gnmt:A|average:A",
            check_length_penalty,
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        options.number(
            "logits of tokens that were there before: divided by P, multiplied where negative", 0, metavar="P"
        ),
    ] = None,
    stop: Annotated[
        tuple[str, ...], replace(options.text("end before TEXT; may come several times"), several=True)
    ] = (),
    steps: Annotated[bool, options.switch("show every choice and what it was made among, on standard error")] = False,
    batch: Annotated[bool, options.switch("one batch of the texts, or of the lines of standard input")] = False,
    cache_in: Annotated[
        Mapping[str, Array] | None, options.tensors("go on from the keys and values of --cache-out")
    ] = None,
    cache_out: Annotated[str | None, options.text("write the keys and values of all tokens to FILE", "FILE")] = None,
    tokenizer: Annotated[
        Tokenizer | None,
        options.Flag("in place of the model's own: a tokenizer.json", "FILE", str, "tokenizer"),
    ] = None,
    trace: Annotated[str | None, options.TRACE] = None,
    trace_only: Annotated[tuple[str, ...], options.TRACE_ONLY] = (),
    patch: Annotated[dict[str, Array] | None, options.PATCH] = None,
    ablate: Annotated[tuple[str, ...], options.ABLATE] = (),
    table: Annotated[
        Record | None, options.tensor("tied embedding, vocab × model [default: the record's table]")
    ] = None,
    params: Annotated[Mapping[str, Array] | None, options.tensors("output matrix of its own: w (D, N), b")] = None,
    vocab: Annotated[
        list[str] | None, options.Flag("the words, one a line, or JSON {word: id}", "FILE", str, "words")
    ] = None,
    temperature: Annotated[
        float | None, options.number("τ: probabilities are softmax(logits / τ)", above=0, metavar="T")
    ] = None,
    top_k: Annotated[int | None, options.integer("choose among the K most probable", 1, "K")] = None,
    top_p: Annotated[
        float | None,
        options.number("choose among the fewest that reach probability P", above=0, most=1, metavar="P"),
    ] = None,
    min_p: Annotated[
        float | None,
        options.number("choose among those at least P times as probable as the best", least=0, most=1, metavar="P"),
    ] = None,
    seed: Annotated[
        int | None,
        options.integer(
            "seed of the choice; with --model every text of a batch draws the numbers it would alone [default: 0]", 0
        ),
    ] = None,
    emit: Annotated[
        str | None,
        options.choice("text: just the words; ids, logits, probs: make that x", ("text", "ids", "logits", "probs")),
    ] = None,
    dtype: Annotated[
        str | None, options.choice("convert x to this dtype first; with --model, compute in it", options.DTYPES)
    ] = None,
) -> Record | str:
    """Hidden states to logits, probabilities and words; with --model, text from a whole model.

    logits = x Wᵀ with the embedding table as W, unless --params brings its own matrix; probabilities =
    softmax(logits / τ). The record gets `logits`, `next` (the id chosen at each position), and the
    probabilities as x. The most probable word is chosen, the first of equals; any of --temperature, --top-k,
    --top-p, --min-p and --seed draws one instead.

    With --model, INPUT is TEXT, lines on standard input, --ids, or a record with ids; for a translation it is
    the source, or a record that encode has made of it. The text goes on until the model ends it, --stop is
    reached, or --max-tokens. x is the log-probability of each new token, `ids` are the tokens, `mask` tells them
    from padding where the rows of a batch differ in length; --emit text prints the whole text, of a translation
    the target. The ids that a target begins with stand behind its start token. --cache-in needs no TEXT; what
    TEXT there is comes behind what the cache holds. Of a model without a decoder, decode is its head: of TEXT,
    --ids, --image, or hidden states in a record; --emit text is then TEXT with a word in place of each [MASK],
    or the class of the image. A decoder without words maps the x of INPUT, which looks at --memory FILE or at
    the record's own.

    \b
    Examples:
      attnkit embed "The cat sat" --dim 8 | attnkit attend | attnkit decode --top 3
      attnkit decode --model DIR "Once upon a time" --max-tokens 40 --top-p 0.9
      attnkit encode --model DIR "je suis étudiant" | attnkit decode --model DIR --beam 4
      attnkit decode --model DIR "the [MASK] sat"
    """
    given = dict(locals())  # before any other name is bound
    if model_ is not None:
        asked = asked_of(given)
        if generates_text(model_.config, layer):
            return run_decode(record, asked)
    if model_ is None or layer is not None or model_.config.decoder is not None:
        record = states_in(record)
        if model_ is not None and layer is None:
            return run_decoder_stack(record, asked)
    if model_ is not None:
        refuse_flags(given, GENERATION_FLAGS, "a model that generates text, not its head alone")
        if layer is not None:
            layers.find_layer(model_, layer, "decode")
        if isinstance(record, Record):
            refuse_flags(given, INPUT_FLAGS, "text, not hidden states")
            record = record if dtype is None else cast_x(record, dtype)
        record, logits, words, join = apply_head(record, asked)
        formula = "head(x)"
    else:
        record, join = states_in(record), None
        record = record if dtype is None else cast_x(record, dtype)
        weight, bias, words, formula = output_matrix(record, table, params)
        logits = model.logits(record["x"], weight, bias)
    words = vocab or words
    if words and len(words) != logits.shape[-1]:
        raise DataError(
            f"{len(words)} words for {logits.shape[-1]} logits",
            "--vocab" if vocab else "labels of axis 'vocab'",
        )
    tau = temperature or 1.0
    scaled = logits
    for _, change in model.sampling_filters(tau, top_k, top_p, min_p):
        scaled = change(scaled)
    probs = model.probabilities(scaled)
    drawn = sampling({"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed})
    made = {"logits": logits, "probs": probs}
    if emit not in made:  # nothing is chosen where only the numbers are asked for, finite or not
        made["ids"] = model.sample(scaled, np.random.default_rng(seed or 0)) if drawn else model.greedy(scaled)
    if emit == "text":
        join = None if vocab else join
        before, is_guess = record.tensors.get("ids"), None
        if join and not model_.config.decoder and before is not None and before.shape == made["ids"].shape:
            is_guess = detokenizer.is_mask_token(before, words)
            made["ids"] = detokenizer.fill_masks(before, made["ids"], words)
        tokens = record.labels_of("x", -2) if record["x"].ndim > 1 else None
        return detokenizer.join_rows(made["ids"], words, tokens, join, is_guess)
    axes = record.axes_of("x")[: logits.ndim - 1]
    named = {"logits": (*axes, "vocab"), "probs": (*axes, "vocab"), "ids": axes}
    said = {
        "logits": formula,
        "probs": "softmax(logits" + (f" / {tau:g})" if tau != 1 else ")") + kept_words(top_k, top_p, min_p),
        "ids": "drawn" if drawn else "argmax(logits)",
    }
    labels: dict[str, Labels] = {"vocab": words} if words else {}
    main = emit or "probs"
    rest = {} if emit else {"logits": "logits", "next": "ids"}
    result = model.output_dtype(record["x"])
    for kind in {main, *rest.values()} & {"logits", "probs"}:
        made[kind] = stored(made[kind], result, "" if kind == main else kind)
    return record.put(
        {"x": made[main]} | {name: made[kind] for name, kind in rest.items()},
        {"x": named[main]} | {name: named[kind] for name, kind in rest.items()},
        labels,
        {"x": said[main] + (f", logits = {formula}" if main == "probs" else "")},
    )


def stored(numbers: Array, dtype: np.dtype[Any], name: str = "") -> Array:
    """Numbers in the dtype of the result; a warning, of the tensor of that name, where one is beyond its range."""
    with np.errstate(over="ignore"):
        rounded = numbers.astype(dtype, copy=False)
    if name and rounded is not numbers and (lost := np.isinf(rounded) & np.isfinite(numbers)).any():
        at = "".join(f"[{i}]" for i in np.argwhere(lost)[0])
        said = f"{name} are beyond the range of {dtype} at {at}, and written as infinity; --dtype float32 has room"
        warnings.warn(said, AttnkitWarning, stacklevel=2)
    return rounded


def states_in(given: Sequence[str] | Record | None) -> Record:
    """The record of hidden states that is due; UsageError for anything else."""
    if isinstance(given, Record):
        return given
    raise UsageError("hidden states are due, in a record, and this is text" if given else "no record to decode")


def asked_of(given: Mapping[str, Any]) -> GenerationOptions:
    """The flags as what is asked of a model; UsageError for one that goes with none."""
    if given["vocab"] is not None and generates_text(given["model_"].config, given["layer"]):
        raise UsageError("--model and --vocab: one or the other, where the model writes text")
    if given["image"] is not None and not given["model_"].config.patches:
        raise UsageError(f"a {given['model_'].config.family} model takes no image", "--image")
    if given["dtype"] not in (None, "float32", "float64"):
        raise UsageError(f"{given['dtype']}: a model computes in float32 or float64", "--dtype")
    return GenerationOptions(**{field.name: given[field.name] for field in fields(GenerationOptions)})


def kept_words(top_k: int | None, top_p: float | None, min_p: float | None) -> str:
    """How the probabilities say which words the filters have kept.

    >>> kept_words(2, None, 0.1)
    ' over the words of top-k 2, min-p 0.1'
    """
    filters = [f"{name} {value:g}" for name, value in (("top-k", top_k), ("top-p", top_p), ("min-p", min_p)) if value]
    return f" over the words of {', '.join(filters)}" if filters else ""


def sampling(given: Mapping[str, Any]) -> bool:
    """Whether a word is drawn, not the most probable one taken."""
    return any(given[name] is not None for name in SAMPLING_FLAGS)


def output_matrix(
    record: Record, table: Record | None, params: Mapping[str, Array] | None
) -> tuple[Array, Array | None, list[str], str]:
    """The output matrix (D, N), its bias, the words of its columns, and its formula."""
    words = shared_labels(record.labels.get("vocab"))
    if params is not None:
        if "w" not in params or set(params) - {"w", "b"}:
            raise DataError(
                f"it has {', '.join(params) or 'nothing'} (expected w, and b if there is a bias)", "--params"
            )
        return params["w"], params.get("b"), words, "x W + b" if "b" in params else "x W"
    if table is not None:
        words = (shared_labels(table.labels_of("x", 0)) if table["x"].ndim == 2 else []) or words
        matrix = table["x"]
    elif "table" in record:
        matrix = record["table"]
    else:
        raise UsageError("which output matrix? the record carries no table: --table FILE or --params FILE")
    if matrix.ndim != 2:
        raise DataError(f"shape {matrix.shape} is not vocab × model", "--table")
    return matrix.T, None, words if len(words) == len(matrix) else [], "x tableᵀ"
