"""attnkit scan: what layers, heads and positions contribute to a logit."""

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
import typer

from attnkit import display, model
from attnkit.cli import options, text_input, views
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage
from attnkit.cli.tool import TEXT
from attnkit.errors import DataError, UsageError, counted, suggest, with_article
from attnkit.inputs import layers, text_inputs
from attnkit.interpret.edits import HEADS, OF_TOKENS
from attnkit.interpret.lens import find_word
from attnkit.interpret.tracer import intermediate_axes
from attnkit.records import Array, Labels, Record, Tensor, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


COLUMN = 8  # characters of a column of a table, at least


def map_view(record: Record, stage: Stage, style: display.Style = display.DEFAULT_STYLE) -> display.TensorView:
    """The view of the map; its colours are even about 0.

    Words, positions or heads are its rows and layers its columns, unless layers are more of the two and do not fit.
    """
    view = views.tensor_view(record, "x", style)
    last, layers = view.array.ndim - 1, len(view.array)
    is_tall = last == 1 and layers > view.array.shape[1] and layers > style.width // COLUMN
    order = [0, 1] if is_tall else [*range(1, last + 1), 0] if last else [0]
    return replace(
        view,
        title=f"effect on {score_name(stage)}" if stage.parameters["ablate"] else f"restored of {score_name(stage)}",
        array=view.array.transpose(order),
        axes=[view.axes[at] for at in order],
        labels=[view.labels[at] for at in order],
        is_signed=True,
    )


def score_name(stage: Stage) -> str:
    score, minus = stage.parameters["score"], stage.parameters["minus"]
    return f"the logit of {score!r}" + (f" − {minus!r}" if minus else "")


def view_scan(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    view = map_view(record, stage, style)
    texts = [name for name in ("clean", "corrupted") if name in record]
    scores = ", ".join(f"{name} {record[name]:.{style.precision}f}" for name in texts)
    is_table = not stage.extra.get("heatmap")
    return display.ResultView(
        [
            *[display.Only("terminal", view)] * is_table,
            display.Only("figure", display.Map(view)) if is_table else display.Map(view),
            display.Only("terminal", display.Note(f"{score_name(stage)}: {scores}")),
        ]
    )


@tool(
    sections={
        "Model and score": "model_ audio against against_audio score minus language source_language target_language",
        "Sweep": "patch positions heads ablate mean",
        "Views": "heatmap",
        "Figures": "numbers no_numbers range cmap",
        "Results": "dtype",
    },
    rules=Constraints(
        exclusive=[
            ("patch", "ablate"),
            ("ablate", "heads"),
            *(("ablate", name) for name in ("against", "against_audio")),
            *(("audio", name) for name in ("against", "source_language", "target_language")),
            ("numbers", "no_numbers"),
        ],
        requires=[
            *((name, "patch") for name in ("against", "against_audio", "heads")),
            *((name, "audio") for name in ("against_audio", "language")),
            ("mean", "ablate"),
        ],
        one_of=[("model",), ("score",), ("patch", "ablate")],
    ),
    operand=TEXT,
    reader=text_input.read_texts,
    needs_no_input=text_input.replaces_text,
    view=view_scan,
    view_options=lambda stage: ("heatmap",),
    extra={"heatmap": Annotated[bool, typer.Option(help="draw a heat map instead of a table")], **views.LOOK_FLAGS},
)
def scan(
    source: Sequence[str] | str | Record | None,
    *,
    model_: options.Model = None,
    against: Annotated[
        str | None,
        typer.Option(help="corrupted text with as many tokens as TEXT, which is patched with states of TEXT"),
    ] = None,
    audio: options.Audio = None,
    against_audio: Annotated[
        Record | None, options.file("audio", "corrupted sound, which is patched with states of --audio")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help="the word whose logit is the score, a single token: the next one, which begins with its space"
        ),
    ] = None,
    minus: Annotated[str | None, typer.Option(help="subtract the logit of this word")] = None,
    language: Annotated[
        str | None, typer.Option(metavar="NAME", help="language of --audio, as en [default: the most probable one]")
    ] = None,
    source_language: options.SourceLanguage = None,
    target_language: options.TargetLanguage = None,
    patch: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN", help="patch these intermediates, by a name or shell pattern: 'decoder.*.self.residual'"
        ),
    ] = None,
    positions: Annotated[bool, typer.Option(help="patch or ablate each position by itself")] = False,
    heads: Annotated[bool, typer.Option(help="patch each head by itself: layer × head")] = False,
    ablate: Annotated[
        Literal["heads"] | None,
        typer.Option(help="heads: set each head of self-attention to 0 by itself: layer × head"),
    ] = None,
    mean: options.Mean = None,
    dtype: Annotated[
        Literal["float32", "float64"] | None, typer.Option(help="compute in this dtype [default: float32]")
    ] = None,
) -> Record:
    """Find where a model stores what decides the next word, by patches or ablations.

    scan patches each layer in turn, with --positions and --heads each position or head of it: it runs the corrupted
    text of --against with that one intermediate replaced by the one of TEXT, the clean text (activation patching). x is
    how much of the difference of the scores it restores, (patched − corrupted) / (clean − corrupted): 0 as for the
    corrupted text, 1 as for the clean one. The score is the logit of --score, less the logit of --minus, after the last
    token, in place of the mask token of a model that has one, or as the first word that an encoder-decoder model, whose
    encoder is patched, makes of the text. `patched`, `clean` and `corrupted` are the scores. For Whisper --audio is the
    clean sound and --against-audio the corrupted one; the score is that of the first word of the transcript.

    --ablate heads sets each head of TEXT to 0, or to its mean over the tokens of --mean FILE: x is how much the score
    changes, ablated − clean; `ablated` and `clean` are the scores.

    A run equals one of decode with --patch, but what a patch does not touch is not computed again: neither earlier
    layers nor, in a causal model, earlier positions.

    \b
    Example:
      attnkit scan --model DIR "A cat." --against "A dog." --score " cat" --patch '*.self.residual' --positions
    """

    if isinstance(source, Record):
        raise UsageError("takes text, got a record", "TEXT")
    texts = [source] if isinstance(source, str) else [*(source or [])]
    if audio is None and len(texts) != 1:
        raise UsageError(f"{len(texts)} texts (expected 1; --against is the other)", "TEXT")
    if audio is not None and texts:
        raise UsageError("replaces text: cannot be combined with TEXT", "--audio")
    clean = ScannedInput(texts[0]) if audio is None else ScannedInput(audio=audio)
    corrupted = ScannedInput(against, against_audio)
    if patch is not None and corrupted == ScannedInput():
        raise UsageError(f"needs {'--against TEXT' if audio is None else '--against-audio FILE'}", "--patch")
    spoken = {"language": language, "source_language": source_language, "target_language": target_language}
    question = ScanOptions(corrupted, score or "", minus, patch, heads, positions, mean, dtype, **spoken)
    return scan_model(model_, clean, question)


MOST_TOKENS = 8192  # tokens of all rows of a batch, which bounds its memory


class SweepBase(NamedTuple):
    """What a run of a text computes: each array has an axis of one row.

    inputs   of each step, and after the last one its result
    saved    what each step finds saved for its residual
    names    of the intermediates of each step, in order: the last one is its result
    states   the intermediates that match a pattern, by name
    cache    the keys and values of all tokens; None if they cannot be used again
    last     the last states of recurrent layers
    """

    inputs: list[Array]
    saved: list[Array]
    names: list[list[str]]
    states: dict[str, Array]
    cache: model.KVCache | None
    last: Mapping[str, model.State]


class Scored(NamedTuple):
    """A model, the steps of its first stack, and what its score is.

    head    the parameters of its head, of the scored words alone
    place   the position whose logits are the score
    dtype   to compute in
    target  the ids that begin the target of an encoder-decoder model; the logits after them are the score's
    """

    core: model.Model
    steps: list[model.Step]
    head: Mapping[str, Mapping[str, Array]]
    place: int
    dtype: str | None = None
    target: tuple[int, ...] | None = None

    @property
    def is_causal(self) -> bool:
        config = self.core.config
        return config.stack(config.stacks[0]).causal or (config.carries_states and config.encoder is None)

    @property
    def is_cached(self) -> bool:
        """Whether tokens before a patched one keep their keys and values."""
        return self.is_causal and model.cacheable(self.core.config) and not self.core.config.carries_states

    def score(self, x: Array, last: Mapping[str, model.State], start: int = 0) -> Array:
        """Score hidden states from a position on, (B, T, D) -> (B,).

        last  the last states of recurrent layers, of each text
        """
        rows = (
            self.decode(x, last)[:, -1] if self.target is not None else np.ascontiguousarray(x[:, self.place - start])
        )
        words = model.head_logits(model.Model(self.core.config, self.head), rows)
        score: Array = words[:, 0] - words[:, 1] if words.shape[1] > 1 else words[:, 0]
        return score

    def decode(self, memory: Array, last: Mapping[str, model.State]) -> Array:
        """Decode the tokens that begin the target: memory (B, S, D) -> (B, T, D)."""
        ids = np.tile(self.target or (), (len(memory), 1))
        context = layers.new_context(memory=memory, dtype=self.dtype, source_states=[*last.values()] or None)
        return model.run(self.core, self.core.config.plan("decoder"), ids, context)


class Patch(NamedTuple):
    """One patch: of an intermediate of a step, whole, or of one head or position.

    start  the first position that the patch may change
    """

    step: int
    name: str
    start: int
    head: int | None
    position: int | None


class PrefixCache(model.KVCache):
    """Keys and values of the first tokens of a text, for every row of a batch."""

    def __init__(self, cache: model.KVCache, length: int) -> None:
        super().__init__()
        self._prefix = {layer: (k[..., :length, :], v[..., :length, :]) for layer, (k, v) in cache}
        self._size = length

    @property
    def length(self) -> int:
        """The number of tokens before the batch."""
        return self._size

    def append(self, layer: str, k: Array, v: Array) -> tuple[Array, Array, int]:
        """Join the keys and values of the prefix and of the batch; store nothing."""
        pair = zip(self._prefix[layer], (k, v), strict=True)
        keys, values = (
            np.concatenate([np.broadcast_to(one, (len(new), *one.shape[1:])), new], axis=-2) for one, new in pair
        )
        return keys, values, self._size


def run_text(scored: Scored, array: Array, patterns: Sequence[str]) -> SweepBase:
    """Run a model on one input; keep the intermediates that match patterns."""
    record = SweepBase([], [], [], {}, model.KVCache() if scored.is_cached else None, {})

    def save(name: str, array: Array) -> Array:
        record.states[name] = array[0]
        return array

    def hook(name: str) -> Callable[[Array], Array] | None:
        record.names[-1].append(name)
        is_wanted = any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        return partial(save, name) if is_wanted else None

    context = layers.new_context(cache=record.cache, hook=hook, dtype=scored.dtype)
    x = saved = array[None]
    for step in scored.steps:
        record.inputs.append(x)
        record.saved.append(saved)
        record.names.append([])
        y = model.run(scored.core, [step], x, context, saved=saved)
        x, saved = y, x if step.changes_saved else saved
    return record._replace(inputs=[*record.inputs, x], saved=[*record.saved, saved], last=context.final_states)


def sweep(scored: Scored, base: SweepBase, patches: Sequence[Patch], values: Mapping[str, Array]) -> Array:
    """The scores of many runs of a text, each with one patch: (N,).

    base    the run of the text without patches
    values  name -> what the cells of an intermediate are patched with, in its whole shape
    """
    size, scores = base.inputs[0].shape[1], np.empty(len(patches), base.inputs[-1].dtype)
    order = sorted(range(len(patches)), key=lambda at: (patches[at].start, patches[at].step))
    for start, places in groupby(order, key=lambda at: patches[at].start):
        rows = [*places]
        most = max(MOST_TOKENS // (size - start), 1)
        for part in (rows[at : at + most] for at in range(0, len(rows), most)):
            scores[part] = run_patches(scored, base, [patches[at] for at in part], values)
    return scores


def run_patches(scored: Scored, base: SweepBase, patches: Sequence[Patch], values: Mapping[str, Array]) -> Array:
    """Score runs with patches of one start, in the order of their steps: (N,)."""
    start = patches[0].start
    cache = None if base.cache is None else PrefixCache(base.cache, start)
    context = layers.new_context(cache=cache, dtype=scored.dtype)
    x = saved = np.empty((0, 0, 0))
    last: dict[str, model.State] = {}
    for number in range(patches[0].step, len(scored.steps)):
        step = scored.steps[number]
        rows, rows_saved, context.final_states = [], [], {}
        if len(x):
            rows = [model.run(scored.core, [step], x, context, saved=saved)]
            rows_saved = [x if step.changes_saved else saved]
        for _, group in groupby((one for one in patches if one.step == number), key=lambda one: one.name):
            new = [*group]
            rows.append(apply_patches(scored, base, new, values, context))
            rows_saved.append(np.repeat(base.saved[number + 1][:, start:], len(new), axis=0))
        last = join_states(last | context.final_states, base.last, len(x), sum(map(len, rows)))
        x, saved = np.concatenate(rows), np.concatenate(rows_saved)
    return scored.score(x, last, start)


def join_states(
    states: Mapping[str, model.State], base: Mapping[str, model.State], old: int, rows: int
) -> dict[str, model.State]:
    """The last states of recurrent layers: old rows of a sweep, then new ones.

    New rows repeat the last states of the base.

    A patch changes what a layer hands on, and none of the states within it.
    """

    def join(part: Array, same: Array) -> Array:
        return np.concatenate([part[:old], np.repeat(same, rows - old, axis=0)])

    joined = {}
    for layer, one in base.items():
        hidden, cell = states.get(layer, one)
        whole = None if cell is None or one.cell is None else join(cell, one.cell)
        joined[layer] = model.State(join(hidden, one.hidden), whole)
    return joined


def apply_patches(
    scored: Scored, base: SweepBase, patches: Sequence[Patch], values: Mapping[str, Array], context: model.Context
) -> Array:
    """Run a step with patches of one of its intermediates, a row each: (N, T, D)."""
    number, name, start = patches[0].step, patches[0].name, patches[0].start

    def put(array: Array) -> Array:
        return put_values(array, patches, values[name])

    if name == base.names[number][-1]:
        return put(np.repeat(base.inputs[number + 1][:, start:], len(patches), axis=0))
    x, saved = (np.repeat(one[:, start:], len(patches), axis=0) for one in (base.inputs[number], base.saved[number]))
    hooked = replace(context, hook=lambda one: put if one == name else None)
    return model.run(scored.core, [scored.steps[number]], x, hooked, saved=saved)


def put_values(array: Array, patches: Sequence[Patch], values: Array) -> Array:
    """Put values in the cells of each row's patch of an intermediate.

    array (N, ...), of the tokens of a pass; values (...), of the whole text
    """
    changed, (head_axis, axis) = array.copy(), find_axes(patches[0].name, values.ndim)
    for row, patch in zip(changed, patches, strict=True):
        cells: list[slice | int] = [slice(None)] * values.ndim
        if patch.head is not None and head_axis is not None:
            cells[head_axis] = patch.head
        source = [*cells]
        if patch.position is not None and axis is not None:
            source[axis] = patch.position
            cells[axis] = patch.position - (values.shape[axis] - row.shape[axis])
        row[tuple(cells)] = values[tuple(source)]
    return changed


def find_axes(name: str, rank: int) -> tuple[int | None, int | None]:
    """The axes of heads and of tokens of an intermediate of one text, or None.

    >>> find_axes("decoder.0.self.weights", 3), find_axes("decoder.0.self.v", 3), find_axes("decoder.0.norm1", 2)
    ((0, 1), (0, 1), (None, 0))
    """
    axes = intermediate_axes(name, rank)
    tokens = [at for axis in (*OF_TOKENS, "key") for at, one in enumerate(axes) if one == axis]
    return (axes.index("head") if "head" in axes else None), (tokens[0] if tokens else None)


def list_patches(
    scored: Scored, base: SweepBase, names: Sequence[str], by_head: bool, by_position: bool
) -> tuple[list[Patch], tuple[int, ...]]:
    """List the patches of intermediates, heads and positions, and their shape.

    UsageError for an intermediate without heads or tokens, and for different numbers of heads.
    """
    heads, positions = (
        range(count_parts(base, names, axis)) if is_wanted else [None]
        for axis, is_wanted in enumerate((by_head, by_position))
    )
    steps = {name: number for number, names in enumerate(base.names) for name in names}
    patches = [
        Patch(steps[name], name, (position or 0) * scored.is_cached, head, position)
        for name in names
        for head in heads
        for position in positions
    ]
    return patches, (len(names), *[len(heads)] * by_head, *[len(positions)] * by_position)


def count_parts(base: SweepBase, names: Sequence[str], which: int) -> int:
    """Count the heads (0) or tokens (1) that are patched one by one."""
    kind, counts = ("heads", "tokens")[which], set[int]()
    flag = ("--heads", "--positions")[which]
    for name in names:
        shape = base.states[name].shape
        axis = find_axes(name, len(shape))[which]
        if axis is None:
            raise UsageError(f"{name} {shape} has no axis of {kind}", flag)
        counts.add(shape[axis])
    if len(counts) > 1:
        raise UsageError(f"the intermediates have {join_names([*map(str, sorted(counts))])} {kind}", flag)
    return counts.pop()


def match_names(base: SweepBase, pattern: str) -> list[str]:
    names = [*dict.fromkeys(name for names in base.names for name in names)]
    if matches := [name for name in names if name in base.states and fnmatch.fnmatchcase(name, pattern)]:
        return matches
    near = suggest(pattern, names) or f" (it has {join_names(names, 4)})"
    raise UsageError(f"{pattern!r} matches no intermediate of the run{near}", "--patch")


RESTORED = "(patched − corrupted) / (clean − corrupted)"


class ScannedInput(NamedTuple):
    """What a run reads: a text, or a sound."""

    text: str | None = None
    audio: Record | None = None


class ScanOptions(NamedTuple):
    """What scan computes.

    against   the corrupted text or sound
    score     the word whose logit is the score; minus: the word whose logit is subtracted
    patch     the shell pattern of the intermediates to patch
    means     LAYER.heads -> (H, K): what ablated heads are set to, in place of 0
    language  of a sound; None: the most probable one
    source_language, target_language   of a model that translates between several; None: as the folder states
    """

    against: ScannedInput
    score: str
    minus: str | None
    patch: str | None
    by_head: bool
    by_position: bool
    means: Mapping[str, Array] | None
    dtype: str | None
    language: str | None = None
    source_language: str | None = None
    target_language: str | None = None


class ReadInput(NamedTuple):
    """What the first step reads: ids (T,) with tokens, or a spectrogram (F, M)."""

    array: Array
    tokens: list[str]


def scan_model(checkpoint: "Checkpoint", source: ScannedInput, options: ScanOptions) -> Record:
    """Map a sweep of patches or ablated heads over layers, heads and positions.

    UsageError for a model or words that have no score, and for a pattern that fits nothing; DataError for texts of
    different lengths, or of one score.
    """
    check_model(checkpoint.config)
    clean = read_input(checkpoint, source, options.source_language)
    scored = make_score(checkpoint, clean, options)
    if options.patch is None:
        return scan_heads(scored, clean, options)
    corrupted = read_input(checkpoint, options.against, options.source_language)
    if len(clean.array) != len(corrupted.array):
        sizes = f"{counted(len(corrupted.array), 'token')}, but the text has {len(clean.array)}"
        raise DataError(f"{sizes}; both must have the same number", "--against")
    if (
        not scored.is_causal
        and scored.target is None
        and find_place(checkpoint, corrupted, "--against") != scored.place
    ):
        raise DataError("its mask token has another position than that of the text", "--against")
    return scan_patches(scored, clean, corrupted, options)


def scan_patches(scored: Scored, clean: ReadInput, corrupted: ReadInput, options: ScanOptions) -> Record:
    """How much of the difference of two texts each patch restores."""
    pattern = options.patch or ""
    source, base = (run_text(scored, text.array, [pattern]) for text in (clean, corrupted))
    names = match_names(base, pattern)
    scores = {
        "clean": scored.score(source.inputs[-1], source.last),
        "corrupted": scored.score(base.inputs[-1], base.last),
    }
    difference = scores["clean"] - scores["corrupted"]
    if not np.all(np.abs(difference) > 0):
        what, flag = ("texts", "--against") if options.against.audio is None else ("sounds", "--against-audio")
        raise DataError(f"both {what} have the score {scores['clean'][0]:g}, so there is nothing to restore", flag)
    patches, shape = list_patches(scored, base, names, options.by_head, options.by_position)
    patched = sweep(scored, base, patches, source.states).reshape(shape)
    axes, labels = map_labels(options, name_layers(names, pattern), join_candidates(clean.tokens, corrupted.tokens))
    tensors = {
        "x": Tensor((patched - scores["corrupted"]) / difference, axes, labels, RESTORED),
        "patched": Tensor(patched, axes),
    }
    return Record(tensors | {name: Tensor(score[0], ()) for name, score in scores.items()})


def scan_heads(scored: Scored, text: ReadInput, options: ScanOptions) -> Record:
    """How much the score changes with each head set to 0, or to its mean."""
    config = scored.core.config
    pattern = f"{config.stacks[0]}.*.self{HEADS}"
    if not any(layer.endswith(".self") for layer in config.attention_rules):
        raise UsageError(f"this {config.family} model has no heads of self-attention", "--ablate")
    base = run_text(scored, text.array, [pattern])
    names = match_names(base, pattern)
    patches, shape = list_patches(scored, base, names, True, options.by_position)
    score = scored.score(base.inputs[-1], base.last)
    ablated = sweep(scored, base, patches, ablated_values(base, names, options.means)).reshape(shape)
    axes, labels = map_labels(options._replace(by_head=True), name_layers(names, pattern), text.tokens)
    tensors = {
        "x": Tensor(ablated - score, axes, labels, "ablated − clean"),
        "ablated": Tensor(ablated, axes),
        "clean": Tensor(score[0], ()),
    }
    return Record(tensors)


def ablated_values(base: SweepBase, names: Sequence[str], means: Mapping[str, Array] | None) -> dict[str, Array]:
    """What the heads of each layer are set to: 0, or their means."""
    values = {}
    for name in names:
        heads = base.states[name]
        if means is not None and name not in means:
            raise UsageError(f"no {name!r}; encode --keep '*.heads' keeps the heads of all layers", "--mean")
        mean = np.zeros(()) if means is None else means[name]
        if means is not None and mean.shape != (heads.shape[0], heads.shape[2]):
            raise DataError(f"{name} {mean.shape} (expected {(heads.shape[0], heads.shape[2])})", "--mean")
        values[name] = np.broadcast_to(mean if means is None else mean[:, None], heads.shape)
    return values


def check_model(config: "model.Config") -> None:
    readers = [config.stack(name).vocab for name in (config.stacks[1:] if config.sound else config.stacks)]
    if not (config.head and readers and all(readers)) or config.classes or config.task:
        raise UsageError(f"this {config.family} model has no head that gives words", "--model")


def read_input(checkpoint: "Checkpoint", source: ScannedInput, language: str | None) -> ReadInput:
    read = text_inputs.ModelInput(source.text, audio=source.audio, language=language)
    array, record = text_inputs.model_inputs(checkpoint, checkpoint.config.stacks[0], read)
    if not array.size:
        raise DataError("an empty text has no score", "TEXT")
    return ReadInput(array, [str(token) for token in record.labels.get("token", [])])


def make_score(checkpoint: "Checkpoint", read: ReadInput, options: ScanOptions) -> Scored:
    """Find the score of a model: at the next token, the mask, or a target."""
    core, config = layers.complete_model(checkpoint), checkpoint.config
    scored = Scored(core, config.plan(config.stacks[0]), {}, 0, options.dtype)
    if options.target_language and len(config.stacks) == 1:
        raise UsageError(f"{with_article(config.family)} model translates no text", "--target-language")
    target = None
    if config.sound:
        target = begin_transcript(checkpoint, run_text(scored, read.array, []).inputs[-1][0], options)
    elif len(config.stacks) > 1:
        target = find_start(checkpoint, options.target_language)
    place = len(read.array) - 1 if scored.is_causal or target is not None else find_place(checkpoint, read, "TEXT")
    flags = [("--score", options.score), ("--minus", options.minus)]
    words = [find_word(checkpoint, word, flag) for flag, word in flags if word is not None]
    if len({*words}) < len(words):
        raise UsageError(f"{options.minus!r} is the word of --score", "--minus")
    head = {layer: core.params[layer] for layer in ("head.dense", "head.norm", "head") if layer in core.params}
    head["head"] = {name: np.ascontiguousarray(one[..., words]) for name, one in head["head"].items()}
    return scored._replace(head=head, place=place, target=target)


def find_start(checkpoint: "Checkpoint", language: str | None) -> tuple[int, ...]:
    """The ids before a target's first word: its start, and a token always first."""
    languages = text_inputs.languages_of(checkpoint)
    special = text_inputs.target_special(checkpoint.config.special, languages, language)
    start = special.bos if special.start is None else special.start
    if start is None:
        raise DataError("the model has no decoder_start_token_id", checkpoint.folder)
    return (start,) if special.forced_bos is None else (start, special.forced_bos)


def begin_transcript(checkpoint: "Checkpoint", memory: Array, options: ScanOptions) -> tuple[int, ...]:
    """The ids before the first word of the transcript of a sound, memory (S, D)."""
    from attnkit.generation.options import GenerationOptions
    from attnkit.generation.prompts import begin_transcription

    settings = GenerationOptions(checkpoint, language=options.language, dtype=options.dtype)
    return tuple(begin_transcription(settings, memory))


def find_place(checkpoint: "Checkpoint", text: ReadInput, name: str) -> int:
    mask = text_inputs.tokenizer_of(checkpoint).special.get("mask")
    places = [at for at, id in enumerate(text.array) if id == mask]
    if len(places) != 1:
        raise DataError(
            f"{len(places)} mask tokens in {' '.join(text.tokens)[:60]!r} (expected 1, whose word is scored)", name
        )
    return places[0]


def map_labels(options: ScanOptions, names: list[str], tokens: list[str]) -> tuple[tuple[str, ...], dict[str, Labels]]:
    axes = ("layer", *["head"] * options.by_head, *["token"] * options.by_position)
    labels: dict[str, Labels] = {"layer": names}
    return axes, labels | ({"token": tokens} if options.by_position and tokens else {})


def name_layers(names: Sequence[str], pattern: str) -> list[str]:
    """The part of each name that matches the only star of a pattern, else the names.

    >>> name_layers(["decoder.0.self.heads", "decoder.1.self.heads"], "decoder.*.self.heads")
    ['0', '1']
    """
    before, _, after = pattern.partition("*")
    if pattern.count("*") != 1 or "[" in pattern or "?" in pattern:
        return [*names]
    return [name.removeprefix(before).removesuffix(after) for name in names]


def join_candidates(clean: Sequence[str], corrupted: Sequence[str]) -> list[str]:
    """The tokens of two texts, both if they differ.

    >>> join_candidates(["The", "cat"], ["The", "dog"])
    ['The', 'cat|dog']
    """
    return [one if one == other else f"{one}|{other}" for one, other in zip(clean, corrupted, strict=True)]
