"""What layers, heads and positions contribute to a logit: patches, or ablations."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import DataError, UsageError, counted, with_article
from attnkit.inputs import layers, text_inputs
from attnkit.interpret.edits import HEADS
from attnkit.interpret.lens import find_word
from attnkit.interpret.sweeps import Scored, SweepBase, list_patches, match_names, run_text, sweep
from attnkit.options import Translation
from attnkit.records import Array, Labels, Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


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
    begin     the memory (S, D) of a sound -> the ids before the first word of its transcript
    """

    against: ScannedInput
    score: str
    minus: str | None
    patch: str | None
    by_head: bool
    by_position: bool
    means: Mapping[str, Array] | None
    dtype: str | None
    languages: Translation = Translation()
    begin: Callable[[Array], Sequence[int]] = lambda memory: ()


class ReadInput(NamedTuple):
    """What the first step reads: ids (T,) with tokens, or a spectrogram (F, M)."""

    array: Array
    tokens: list[str]


def scan_model(checkpoint: "Checkpoint", source: ScannedInput, options: ScanOptions) -> Record:
    """Map a sweep of patches or ablated heads over layers, heads and positions.

    UsageError for a model or words that have no score, and for a pattern that fits nothing; DataError for texts of
    different lengths, or of one score.
    """
    check_scanned(checkpoint.config)
    clean = read_scanned(checkpoint, source, options.languages.source_language)
    scored = make_score(checkpoint, clean, options)
    if options.patch is None:
        return scan_heads(scored, clean, options)
    corrupted = read_scanned(checkpoint, options.against, options.languages.source_language)
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


def check_scanned(config: "model.Config") -> None:
    readers = [config.stack(name).vocab for name in (config.stacks[1:] if config.sound else config.stacks)]
    if not (config.head and readers and all(readers)) or config.classes or config.task:
        raise UsageError(f"this {config.family} model has no head that gives words", "--model")


def read_scanned(checkpoint: "Checkpoint", source: ScannedInput, language: str | None) -> ReadInput:
    read = text_inputs.ModelInput(source.text, audio=source.audio, language=language)
    array, record = text_inputs.model_inputs(checkpoint, checkpoint.config.stacks[0], read)
    if not array.size:
        raise DataError("an empty text has no score", "TEXT")
    return ReadInput(array, [str(token) for token in record.labels.get("token", [])])


def make_score(checkpoint: "Checkpoint", read: ReadInput, options: ScanOptions) -> Scored:
    """Find the score of a model: at the next token, the mask, or a target."""
    core, config = layers.complete_model(checkpoint), checkpoint.config
    scored = Scored(core, config.plan(config.stacks[0]), {}, 0, options.dtype)
    if options.languages.target_language and len(config.stacks) == 1:
        raise UsageError(f"{with_article(config.family)} model translates no text", "--target-language")
    target = None
    if config.sound:
        target = tuple(options.begin(run_text(scored, read.array, []).inputs[-1][0]))
    elif len(config.stacks) > 1:
        target = find_start(checkpoint, options.languages.target_language)
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
