"""What encode computes from, and how its result becomes one vector."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import typer

from attnkit import model, options
from attnkit.checkpoints.matryoshka import says_matryoshka
from attnkit.checkpoints.sentence_modules import (
    Dense,
    LayerNorm,
    Module,
    Normalize,
    Pooling,
    SentenceModules,
    check_widths,
    load_sentence_modules,
)
from attnkit.errors import DataError, UsageError, counted, with_article
from attnkit.inputs import late_interaction, layers, padding, patches, text_inputs
from attnkit.model.formulas.pooling import find_marked_tokens
from attnkit.model.hooks import Hook, apply_hook, no_hook
from attnkit.records import Array, Record, Tensor
from attnkit.tokenizers import Tokenizer

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


FORMULAS = {
    "cls": "first token",
    "mean": "mean of the tokens",
    "max": "largest of the tokens",
    "mean-sqrt": "sum of the tokens / √ their number",
    "weighted-mean": "mean of the tokens, weighted by position",
    "last": "last token",
    "probe": "what the probe attends to, and the network after it",
}

POOLS = ("none", "cls", "mean", "max", "mean-sqrt", "weighted-mean", "last", "pooler", "folder")
HEAD_STEPS = ("head.dense", "head.norm", "logits")  # of the head of a model of one stack, computed only if kept


class EncodingInputs(NamedTuple):
    """The model of encode, and what it reads beside texts or a record."""

    model_: options.Model = None
    ids: options.Ids = None
    pair: options.Pair = None
    image: options.Image = None
    audio: options.Audio = None
    source_language: options.SourceLanguage = None
    tokenizer: Annotated[
        Tokenizer | None,
        options.file(
            "tokenizer", "tokenizer, instead of the model's own: words, chars, or a tokenizer.json", "words|chars|FILE"
        ),
    ] = None
    batch: options.Batch = False


class VectorOptions(NamedTuple):
    """The layers that encode runs, and how their states become a vector."""

    layers_: Annotated[
        str,
        typer.Option(
            parser=options.parse_span,
            metavar="A:B",
            help="run only layers A to B - 1; if A is not 0, the record's x is the input of layer A",
        ),
    ] = ""
    pool: Annotated[
        str | None,
        options.choice(
            POOLS,
            "one vector for each text: cls (first token), mean, max, mean-sqrt or weighted-mean (of all tokens), last "
            "(token), pooler (of the model), or folder: as its modules.json states, or a vector of CLIP or SigLIP "
            "[default: folder where there is one]",
        ),
    ] = None
    prompt: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="put this prompt of the folder before each text [default: the folder's]"),
    ] = None
    task: Annotated[
        Literal["query", "document"] | None,
        typer.Option(
            help="what the texts are: query puts the folder's prompt of that name before each, document the prompt "
            "document, passage or corpus [default: the folder's prompt]"
        ),
    ] = None
    dim: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="keep the first N numbers of each vector, after all modules and before --normalize; for models "
            "that were trained so (Matryoshka) [default: truncate_dim of the folder, else all]",
        ),
    ] = None
    force: Annotated[bool, typer.Option(help="cut with --dim also what the folder does not say may be cut")] = False
    normalize: Annotated[bool, typer.Option(help="scale the pooled vectors to length 1 (L2 norm)")] = False


class Encoding(NamedTuple):
    """What encode computes.

    stack     the encoder, or the decoder of a decoder-only model
    steps     of its layers, of which `is_whole` says whether they include the last one
    inputs    of the first step: ids (..., T), x (..., T, D), or an image
    base      the record of the ids with their labels and mask, or the one that was read
    pool      how one vector is made of each text: a value of --pool
    modules   what the files of sentence-transformers in the folder state
    prompt_length  how many of the first tokens are of a prompt
    dim       how many numbers of a vector are kept; 0: all
    """

    core: model.Model
    stack: str
    steps: list[model.Step]
    is_whole: bool
    inputs: Array
    base: Record
    pool: str = "none"
    modules: SentenceModules = SentenceModules()
    prompt_length: int = 0
    dim: int = 0


class Plan(NamedTuple):
    """What encode computes with for any input: steps from layer `first` on."""

    core: model.Model
    stack: str
    steps: list[model.Step]
    first: int
    is_whole: bool


def plan_encoding(checkpoint: "Checkpoint", layers_: str) -> Plan:
    core = layers.complete_model(checkpoint)
    stack = core.config.stacks[0]
    count = core.config.stack(stack).layers
    first, last = parse_layers(layers_, count)
    return Plan(core, stack, select_steps(core.config, stack, first, last), first, last == count)


def prepare_encoding(source: Any, given: EncodingInputs, vectors: VectorOptions, plan: Plan | None = None) -> Encoding:
    """Prepare what encode computes from texts or a record.

    plan  the steps to run; None: made of the model and its layers

    UsageError for an input that the model or its first layer does not accept.
    """
    core, stack, steps, first, is_whole = plan or plan_encoding(given.model_, vectors.layers_)
    layers.check_pair(core.config, given.pair, source)
    modules = sentence_modules(given.model_)
    if vectors.pool == "folder" and not modules.is_pooled:
        raise UsageError("folder: the model has no modules.json with a Pooling", "--pool")
    pool = vectors.pool or ("folder" if modules.is_pooled and is_whole else "none")
    opening, tokenizer, length = find_prompt(vectors, modules, pool), given.tokenizer, 0
    if modules.late and pool == "folder" and not isinstance(source, Record) and given.ids is None:
        check_late(first, source, vectors, given)
        text = opening + (source if isinstance(source, str) else "".join(source))
        inputs, base = late_interaction.read_marked_text(given.model_, modules, vectors.task or "", text, tokenizer)
        return Encoding(core, stack, steps, is_whole, inputs, base, pool, modules)
    dim = find_dim(given.model_, vectors, modules, pool)
    if given.source_language and (isinstance(source, Record) or given.ids is not None):
        raise UsageError("needs TEXT: the tokens of a record are made already", "--source-language")
    if isinstance(source, Record):
        inputs, base = read_inputs(given.model_, stack, first, source, tokenizer)
    else:
        if first or not has_embeddings(core.config, stack):
            subject = (
                "--layers from A > 0"
                if has_embeddings(core.config, stack)
                else f"{with_article(core.config.family)} model"
            )
            raise UsageError(f"{subject} needs x from a record")
        read = text_inputs.ModelInput(source, given.pair, given.ids, given.image, tokenizer, given.batch)
        read = read._replace(audio=given.audio, language=given.source_language)
        if pool == "folder" and source is not None:
            texts = [opening + text for text in ([source] if isinstance(source, str) else source)]
            read = read._replace(texts=[text.lower() for text in texts] if modules.is_lower else texts)
        read = read._replace(most=modules.max_length) if pool == "folder" else read
        inputs, base = text_inputs.model_inputs(given.model_, stack, read)
        length = count_prompt(opening, modules, tokenizer, given.model_)
    if not inputs.ndim:
        raise DataError.about("ids", "(): a single number (expected (T) or (B, T))")
    return Encoding(core, stack, steps, is_whole, inputs, base, pool, modules, length, dim)


def make_context(encoded: Encoding, **fields: Any) -> model.Context:
    """Build the context of a run.

    Where all texts are padded to one length, padding has positions too.
    """
    is_late = encoded.modules.late is not None and "counts" in encoded.base
    positions = {"positions": None} if encoded.core.config.text_length or is_late else {}
    return layers.context_from(encoded.base, **positions, **fields)


def sentence_modules(checkpoint: "Checkpoint") -> SentenceModules:
    """Read what the files of sentence-transformers in a folder state."""
    config = checkpoint.config
    if config.vector_width:  # its last layers are of the model itself
        pool = config.vector_pooling if config.vector_pooling in ("cls", "probe") else "last"
        layer = checkpoint.params["vector"]
        projection = {} if config.has_probe else {2: Dense(layer["w"], layer.get("b"), "identity")}
        longest = None if config.patches else config.positions.longest
        return SentenceModules({1: Pooling((pool,), with_prompt=True), **projection}, max_length=longest)
    modules: SentenceModules = checkpoint.load_companion("modules", load_sentence_modules)
    if modules.is_pooled:
        check_widths(modules.modules, checkpoint.config.width, modules.files[0])
    return modules


def is_late(checkpoint: "Checkpoint", vectors: VectorOptions) -> bool:
    """Whether a vector is made of each token, by a late-interaction model."""
    asked = vectors.pool in (None, "folder") and not vectors.layers_
    return asked and sentence_modules(checkpoint).late is not None


def check_late(first: int, source: Any, vectors: VectorOptions, given: EncodingInputs) -> None:
    """Raise UsageError for what a model of late interaction does not read."""
    if first:
        raise UsageError("--layers from A > 0 needs x from a record")
    if vectors.task is None:
        raise UsageError("needs query or document, which a model of late interaction tells apart", "--task")
    if vectors.dim is not None:
        raise UsageError("the model has a vector for each token, and none of the text", "--dim")
    if source is None or given.pair:
        raise UsageError("a model of late interaction takes one TEXT at a time, which it marks and fills up")


def find_prompt(vectors: VectorOptions, modules: SentenceModules, pool: str) -> str:
    """The prompt before each text: a named one, that of a task, or the folder's."""
    name = vectors.prompt
    if pool != "folder":
        if name or vectors.task:
            needs = "needs a model whose folder has prompts, and no other --pool"
            raise UsageError(needs, "--prompt" if name else "--task")
        return ""
    if name and name not in modules.prompts:
        known = ", ".join(modules.prompts)
        raise UsageError(
            f"the folder has no prompt {name!r} ({f'it has {known}' if known else 'nor others'})", "--prompt"
        )
    return modules.named_prompt(name, vectors.task)


def find_dim(checkpoint: "Checkpoint", vectors: VectorOptions, modules: SentenceModules, pool: str) -> int:
    """How many numbers of each vector are kept; 0: all.

    UsageError for a cut that nothing in the folder allows, unless it is forced.
    """
    if vectors.dim is None:
        return modules.dim if pool == "folder" else 0
    if pool == "none":
        raise UsageError("needs vectors of whole texts: --pool", "--dim")
    width = check_widths(modules.modules, checkpoint.config.width, "") if pool == "folder" else checkpoint.config.width
    if vectors.dim > width:
        raise UsageError(f"{vectors.dim}: the vectors have {counted(width, 'number')}", "--dim")
    if not vectors.force and not modules.dim and not says_matryoshka(checkpoint.place, checkpoint.raw):
        problem = "nothing in the folder says that the model was trained for shorter vectors (Matryoshka)"
        raise UsageError(f"{vectors.dim}: {problem}; --force cuts them all the same", "--dim")
    return vectors.dim


def count_prompt(prompt: str, modules: SentenceModules, tokenizer: Tokenizer | None, checkpoint: "Checkpoint") -> int:
    """How many tokens of a prompt are left out of the vector.

    Those before the special token at its end. A prompt is cut as a text is, so that one of the maximum length leaves
    that token.
    """
    if not prompt or all(not isinstance(one, Pooling) or one.with_prompt for one in modules.modules.values()):
        return 0
    tokenizer = tokenizer or text_inputs.tokenizer_of(checkpoint)
    prompt = prompt.lower() if modules.is_lower else prompt
    ids = text_inputs.encode_texts(prompt, tokenizer, None)[0].ids or []
    is_ended = ids[-1:] != [] and ids[-1] in tokenizer.special.values()
    return min(len(ids), modules.max_length or len(ids)) - is_ended


def parse_layers(text: str, count: int) -> tuple[int, int]:
    """Parse A:B to the first layer and the one after the last.

    >>> parse_layers("", 6), parse_layers("2:", 6), parse_layers(":3", 6)
    ((0, 6), (2, 6), (0, 3))
    """
    start, _, end = text.partition(":")
    first, last = int(start or 0), int(end) if end else count
    if not first <= last <= count:
        raise UsageError(f"{text}: the model has layers 0:{count}", "--layers")
    return first, last


def select_steps(config: model.Config, stack: str, first: int, last: int) -> list[model.Step]:
    """The steps of some layers, with the embeddings before and the norm after all."""
    count, steps = config.stack(stack).layers, []
    for step in config.plan(stack):
        number = model.parse_layer_name(step.layer)[1]
        at = (-1 if step.layer != f"{stack}.norm" else count) if number is None else number
        if first <= at < last or (at < 0 and first == 0) or (at == last == count):
            steps.append(step)
    return steps


def has_embeddings(config: model.Config, stack: str) -> bool:
    return bool(config.stack(stack).vocab or config.patches or config.sound)


def read_inputs(
    checkpoint: "Checkpoint", stack: str, first: int, record: Record, tokenizer: Tokenizer | None
) -> tuple[Array, Record]:
    """Read the ids or x of the first step, and the record with its mask as (B, T, S)."""
    config = checkpoint.config
    if first or config.patches or config.sound or not has_embeddings(config, stack):
        record = padding.with_padding_mask(record)
        x, width = record["x"], config.input_width(stack, first)
        is_image = config.patches and not first
        if config.sound and not first:
            if config.sound.spectrogram is None and 0 < x.ndim < 3:
                return x.astype(model.output_dtype(x), copy=False), record
            width = config.sound.spectrogram.mels if config.sound.spectrogram else width
        if x.ndim < 2 or not (is_image or (x.ndim < 4 and x.shape[-1] == width)):
            raise DataError(f"x {x.shape}: expected (T, {width}) or (B, T, {width})")
        if config.patches and is_image:
            record = record.merge(patches.describe_image(config.patches, x.shape, None))
        return x.astype(model.output_dtype(x), copy=False), record
    record = layers.ids_from_x(record)
    if "ids" not in record:
        raise DataError("the record has no ids (--layers A:B with A > 0 takes its x)")
    record = padding.read_padding_tokens(record, config)
    text_inputs.check_vocabulary(record, checkpoint, "source", tokenizer)
    text_inputs.warn_ignored_input(record, checkpoint, "ids", "--layers A:B continues from x")
    return model.check_ids(record["ids"], config.stack(stack).vocab), record


def token_order(base: Record, tokens: tuple[int, ...]) -> tuple[Array, Array | None]:
    """The order that puts the tokens of each text before its padding.

    tokens  their shape (..., T) -> which of them are no padding (..., T), in that order, and the order
    """
    stated = padding.find_real_tokens(base, tokens)
    real = np.ones(tokens, bool) if stated is None else stated
    if len(tokens) < 2:
        return real, None
    order = np.argsort(~real, axis=-1, kind="stable")
    return np.take_along_axis(real, order, axis=-1), order


def pooled_tokens(base: Record, x: Array) -> tuple[Array, Array, Array | None]:
    """Put the tokens of each text before its padding, which may be on either side.

    x (B, T, D) -> x in the new order, which of its tokens are no padding (B, T), and the order (B, T)
    """
    real, order = token_order(base, x.shape[:-1])
    return x if order is None else np.take_along_axis(x, order[..., None], axis=-2), real, order


def text_spans(base: Record) -> list[slice]:
    """Locate the tokens of each text of a batch, from the first to the last.

    >>> mask = np.array([[[True, True, True]], [[False, True, True]]])
    >>> text_spans(Record({"ids": np.zeros((2, 3), int), "mask": mask}))
    [slice(0, 3, None), slice(1, 3, None)]
    """
    shape = padding.token_shape(base)
    if len(shape) != 2:
        return []
    real = padding.find_real_tokens(base, shape)
    places = [np.flatnonzero(row) for row in (np.ones(shape, bool) if real is None else real)]
    return [slice(int(one[0]), int(one[-1]) + 1) if one.size else slice(0, 0) for one in places]


def compute_logits(core: model.Model, base: Record, x: Array, hook: Hook) -> Array:
    """The logits of hidden states x (..., T, D) by the head of a model.

    -> (..., T, N), or (..., C) of whole texts, whose padding may be on either side
    """
    if not core.config.is_head_pooled:
        return model.head_logits(core, x, hook)
    states, real, _ = pooled_tokens(base, x)
    return model.head_logits(core, states, hook, real[..., None, :])


def pool_states(core: model.Model, x: Array, real: Array, pool: str, hook: Hook = no_hook) -> tuple[Array, str]:
    """Pool x (..., T, D) by real (..., T) to vectors (..., D), with their formula.

    UsageError for the pooler of a model that has none.
    """
    if pool in FORMULAS:
        return model.POOLINGS[pool].pool(x, real), FORMULAS[pool]
    if not core.config.pooler:
        raise UsageError("the model has no pooler", "--pool")
    return model.pool_first(core, x, hook), "tanh(first token W + b)"


def module_site(number: int, module: Module) -> str:
    """The name of the result of a module, by its number in modules.json.

    >>> module_site(1, Normalize()), module_site(2, Normalize(on_tokens=True))
    ('modules.1', 'modules.2.tokens')
    """
    on_tokens = not isinstance(module, Pooling) and module.on_tokens
    return f"modules.{number}{'.tokens' * on_tokens}"


MODULE_FORMULAS = {Dense: "dense", Normalize: "to length 1", LayerNorm: "layer normalization"}


def apply_modules(encoded: Encoding, x: Array, real: Array, hook: Hook) -> tuple[Array, str]:
    """One vector of each text as the modules of the folder make it, and its formula.

    x (..., T, D), real (..., T) -> (..., D)

    Intermediates are named by `module_site`.
    """
    vectors, formulas = x, list[str]()
    for number, module in encoded.modules.modules.items():
        if isinstance(module, Pooling):
            used = pooled_places(encoded, module, real)
            parts = [
                model.pool_by_probe(encoded.core, x, hook)
                if pool == "probe"
                else model.POOLINGS[pool].pool(vectors, used)
                for pool in module.pools
            ]
            vectors, formula = np.concatenate(parts, axis=-1), " and ".join(FORMULAS[pool] for pool in module.pools)
        else:
            vectors, formula = module.apply(vectors), MODULE_FORMULAS[type(module)]
        vectors = apply_hook(hook, module_site(number, module), vectors)
        formulas.append(formula)
    return vectors, ", ".join(formulas)


def pooled_places(encoded: Encoding, module: Pooling, real: Array) -> Array:
    """Select the real tokens (..., T) that a module pools: perhaps no prompt."""
    return real if module.with_prompt else real & (np.arange(real.shape[-1]) >= encoded.prompt_length)


def until_end(config: model.Config, base: Record, real: Array, order: Array | None) -> Array:
    """The tokens up to the one whose state is the vector of a text.

    real (..., T) -> (..., T)

    order  in which the tokens of a batch are
    """
    if config.vector_pooling == "last" and order is not None:
        last: Array = np.arange(order.shape[-1]) <= order.argmax(axis=-1)[..., None]
        return last
    if config.vector_pooling not in ("end", "largest"):
        return real
    if "ids" not in base:
        raise DataError("the record has no ids, by which the end of a text is found")
    ids = base["ids"] if order is None else np.take_along_axis(base["ids"], order, axis=-1)
    end = config.special.eos[0] if config.vector_pooling == "end" else None
    until: Array = np.arange(ids.shape[-1]) <= find_marked_tokens(ids, real, end)[..., None]
    return until


def make_result(encoded: Encoding, x: Array, normalize: bool, hook: Hook = no_hook) -> Record:
    if encoded.pool != "none":
        return make_pooled(encoded, x, normalize, hook)
    return make_states(encoded.core.config, encoded.base, x, encoded.stack, encoded.is_whole)


def make_states(config: model.Config, base: Record, x: Array, stack: str, is_whole: bool) -> Record:
    """Build the record of hidden states x (B, T, D), also as `memory` for a decoder."""
    axes = ("batch", "token", "model")[3 - x.ndim :]
    states = Tensor(x, axes, formula=f"hidden states of the {stack}")
    record = Record({"x": states}).merge(base).with_tensors({"x": states})
    if not (is_whole and config.encoder and config.decoder):
        return record
    memory_axes = tuple("source" if axis == "token" else axis for axis in axes)
    tokens = base.labels.get("token")
    record = record.with_tensors({"memory": Tensor(x, memory_axes)}, {"source": tokens} if tokens else {})
    if "mask" in base and base["mask"].ndim == 3 and base["mask"].shape[-2] == 1:
        record = record.with_tensors({"memory_mask": Tensor(base["mask"], ("batch", "all queries", "source"))})
    return record


def apply_token_modules(encoded: Encoding, x: Array, hook: Hook) -> tuple[Array, str]:
    """The vectors of the tokens that count, and their formula: (T, D) -> (R, E).

    All tokens of a record count.
    """
    formulas = []
    for number, module in encoded.modules.modules.items():
        if not isinstance(module, Pooling):
            x = apply_hook(hook, module_site(number, module), module.apply(x))
            formulas.append(MODULE_FORMULAS[type(module)])
    x = x[encoded.base["counts"]] if "counts" in encoded.base else x
    return x, f"of each token, {', '.join(formulas)}"


def make_pooled(encoded: Encoding, x: Array, normalize: bool, hook: Hook) -> Record:
    """Pool hidden states (B, T, D) to a vector for each text, (B, D)."""
    if encoded.modules.late and encoded.pool == "folder":
        return late_interaction.make_token_vectors(encoded.base, *pool_texts(encoded, x, normalize, hook))
    return pooled_record(encoded.base, *pool_texts(encoded, x, normalize, hook))


def pooled_record(base: Record, vectors: Array, formula: str) -> Record:
    """The record of the vectors (B, D) of texts."""
    pooled = Tensor(vectors, ("batch", "model")[2 - vectors.ndim :], formula=formula)
    rest = base.select([name for name in base if name not in ("x", "mask")])
    return Record({"x": pooled}).merge(rest)


def pool_texts(encoded: Encoding, x: Array, normalize: bool, hook: Hook = no_hook) -> tuple[Array, str]:
    """Make vectors of texts from hidden states, and their formula.

    (..., T, D) -> (..., D)
    """
    base = encoded.base
    if encoded.pool == "folder" and encoded.modules.late:
        return apply_token_modules(encoded, x, hook)
    states, real, order = pooled_tokens(base, x)
    if encoded.pool == "folder":
        real = until_end(encoded.core.config, base, real, order)
        vectors, formula = apply_modules(encoded, states, real, hook)
    else:
        vectors, formula = pool_states(encoded.core, states, real, encoded.pool, hook)
    if encoded.dim:
        vectors, formula = vectors[..., : encoded.dim], f"{formula}, first {encoded.dim} numbers"
    if normalize:
        vectors, formula = model.l2_normalize(vectors), f"{formula}, to length 1"
    return vectors, formula


def split_batch(encoded: Encoding) -> list[Encoding]:
    """The texts of a padded batch, each alone and without its padding.

    None if it is not one of texts with tokens.
    """
    inputs, base, config = encoded.inputs, encoded.base, encoded.core.config
    tokens = inputs.shape if inputs.dtype.kind in "iu" else inputs.shape[:-1]
    real = padding.find_real_tokens(base, tokens) if len(tokens) == 2 and "mask" in base else None
    if real is None or not real.any(axis=-1).all() or config.text_length or base["mask"].shape[-2] != 1:
        return []
    own = {name: np.broadcast_to(base[name], tokens) for name in ("ids", "types") if name in base}
    rows = [Record({name: one[row][is_real] for name, one in own.items()}) for row, is_real in enumerate(real)]
    return [
        encoded._replace(inputs=inputs[row][is_real], base=one)
        for row, (is_real, one) in enumerate(zip(real, rows, strict=True))
    ]
