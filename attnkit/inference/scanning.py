"""What scan computes: how much a patch of each layer, head and position restores of a score, or an ablation changes."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from attnkit import model
from attnkit.errors import DataError, UsageError, counted
from attnkit.inference import layers, text_inputs
from attnkit.inference.edits import HEADS
from attnkit.inference.lens import find_word
from attnkit.inference.sweeps import Scored, SweepBase, list_patches, match_names, run_text, sweep
from attnkit.record import Array, Labels, Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

RESTORED = "(patched − corrupted) / (clean − corrupted)"


class ScanOptions(NamedTuple):
    """What scan computes.

    against   the corrupted text
    score     the word whose logit is the score; minus: the word whose logit is subtracted
    patch     the shell pattern of the intermediates to patch
    means     LAYER.heads -> (H, K): what ablated heads are set to, in place of 0
    """

    against: str | None
    score: str
    minus: str | None
    patch: str | None
    by_head: bool
    by_position: bool
    means: Mapping[str, Array] | None
    dtype: str | None


class TokenizedText(NamedTuple):
    """The ids of a text, (T,), and its tokens."""

    ids: Array
    tokens: list[str]


def scan_model(checkpoint: "Checkpoint", text: str, options: ScanOptions) -> Record:
    """Return the map of a sweep over layers, and heads or positions, of patches or of ablated heads.

    UsageError for a model or words that have no score, and for a pattern that fits nothing; DataError for texts of
    different lengths, or of one score.
    """
    check_model(checkpoint.config)
    clean = tokenize_text(checkpoint, text)
    scored = make_score(checkpoint, clean, options)
    if options.patch is None or options.against is None:
        return scan_heads(scored, clean, options)
    corrupted = tokenize_text(checkpoint, options.against)
    if len(clean.ids) != len(corrupted.ids):
        sizes = f"{counted(len(corrupted.ids), 'token')}, but the text has {len(clean.ids)}"
        raise DataError(f"{sizes}; both must have the same number", "--against")
    if (
        not scored.is_causal
        and scored.target is None
        and find_place(checkpoint, corrupted, "--against") != scored.place
    ):
        raise DataError("its mask token has another position than that of the text", "--against")
    return scan_patches(scored, clean, corrupted, options)


def scan_patches(scored: Scored, clean: TokenizedText, corrupted: TokenizedText, options: ScanOptions) -> Record:
    """Return how much of the difference of two texts each patch of the corrupted one by the clean one restores."""
    pattern = options.patch or ""
    source, base = (run_text(scored, text.ids, [pattern]) for text in (clean, corrupted))
    names = match_names(base, pattern)
    scores = {"clean": scored.score(source.inputs[-1]), "corrupted": scored.score(base.inputs[-1])}
    difference = scores["clean"] - scores["corrupted"]
    if not np.all(np.abs(difference) > 0):
        raise DataError(
            f"both texts have the score {scores['clean'][0]:g}, so there is nothing to restore", "--against"
        )
    patches, shape = list_patches(scored, base, names, options.by_head, options.by_position)
    patched = sweep(scored, base, patches, source.states).reshape(shape)
    axes, labels = map_labels(options, name_layers(names, pattern), join_tokens(clean.tokens, corrupted.tokens))
    tensors = {
        "x": Tensor((patched - scores["corrupted"]) / difference, axes, labels, RESTORED),
        "patched": Tensor(patched, axes),
    }
    return Record(tensors | {name: Tensor(score[0], ()) for name, score in scores.items()})


def scan_heads(scored: Scored, text: TokenizedText, options: ScanOptions) -> Record:
    """Return how much the score of a text changes with each head of attention set to 0, or to its mean."""
    pattern = f"{scored.core.config.stacks[0]}.*.self{HEADS}"
    base = run_text(scored, text.ids, [pattern])
    names = match_names(base, pattern)
    patches, shape = list_patches(scored, base, names, True, options.by_position)
    score = scored.score(base.inputs[-1])
    ablated = sweep(scored, base, patches, ablated_values(base, names, options.means)).reshape(shape)
    axes, labels = map_labels(options._replace(by_head=True), name_layers(names, pattern), text.tokens)
    tensors = {
        "x": Tensor(ablated - score, axes, labels, "ablated − clean"),
        "ablated": Tensor(ablated, axes),
        "clean": Tensor(score[0], ()),
    }
    return Record(tensors)


def ablated_values(base: SweepBase, names: Sequence[str], means: Mapping[str, Array] | None) -> dict[str, Array]:
    """Return what the heads of each layer are set to: 0, or their means; an error for means that do not fit."""
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
    """Raise UsageError for a model without the logit of a word at one position."""
    if isinstance(config, model.RecurrentConfig):
        raise UsageError(f"this {config.family} model is recurrent (expected a Transformer)", "--model")
    if not config.head or config.classes or config.task or not all(config.stack(name).vocab for name in config.stacks):
        raise UsageError(f"this {config.family} model has no head that gives words", "--model")


def tokenize_text(checkpoint: "Checkpoint", text: str) -> TokenizedText:
    """Return the ids and tokens of a text."""
    stack = checkpoint.config.stacks[0]
    inputs = text_inputs.read_known_texts(checkpoint, stack, text_inputs.ModelInput(text))
    if not inputs.ids.size:
        raise DataError("an empty text has no score", "TEXT")
    return TokenizedText(inputs.ids, [str(token) for token in inputs.tokens or []])


def make_score(checkpoint: "Checkpoint", read: TokenizedText, options: ScanOptions) -> Scored:
    """Return the model with its score: of the next token, of the mask token, or of the first one of a translation."""
    core, config = layers.complete_model(checkpoint), checkpoint.config
    scored = Scored(core, model.layer_plan(config, config.stacks[0]), {}, 0, options.dtype)
    target = find_start(checkpoint) if len(config.stacks) > 1 else None
    place = len(read.ids) - 1 if scored.is_causal or target is not None else find_place(checkpoint, read, "TEXT")
    flags = [("--score", options.score), ("--minus", options.minus)]
    words = [find_word(checkpoint, word, flag) for flag, word in flags if word is not None]
    if len({*words}) < len(words):
        raise UsageError(f"{options.minus!r} is the word of --score", "--minus")
    head = {layer: core.params[layer] for layer in ("head.dense", "head.norm", "head") if layer in core.params}
    head["head"] = {name: np.ascontiguousarray(one[..., words]) for name, one in head["head"].items()}
    return scored._replace(head=head, place=place, target=target)


def find_start(checkpoint: "Checkpoint") -> int:
    """Return the id that begins the target of an encoder-decoder model; DataError where there is none."""
    special = checkpoint.config.special
    start = special.bos if special.start is None else special.start
    if start is None:
        raise DataError("the model has no decoder_start_token_id", checkpoint.folder)
    return start


def find_place(checkpoint: "Checkpoint", text: TokenizedText, name: str) -> int:
    """Return the position of the mask token of a text; DataError with its name where it has not one."""
    mask = text_inputs.tokenizer_of(checkpoint).special.get("mask")
    places = [at for at, id in enumerate(text.ids) if id == mask]
    if len(places) != 1:
        raise DataError(
            f"{len(places)} mask tokens in {' '.join(text.tokens)[:60]!r} (expected 1, whose word is scored)", name
        )
    return places[0]


def map_labels(options: ScanOptions, names: list[str], tokens: list[str]) -> tuple[tuple[str, ...], dict[str, Labels]]:
    """Return the axes of the map, and the labels of its layers and positions."""
    axes = ("layer", *["head"] * options.by_head, *["token"] * options.by_position)
    labels: dict[str, Labels] = {"layer": names}
    return axes, labels | ({"token": tokens} if options.by_position else {})


def name_layers(names: Sequence[str], pattern: str) -> list[str]:
    """Return the part of each name that matches the only star of a pattern, else the names.

    >>> name_layers(["decoder.0.self.heads", "decoder.1.self.heads"], "decoder.*.self.heads")
    ['0', '1']
    """
    before, _, after = pattern.partition("*")
    if pattern.count("*") != 1 or "[" in pattern or "?" in pattern:
        return [*names]
    return [name.removeprefix(before).removesuffix(after) for name in names]


def join_tokens(clean: Sequence[str], corrupted: Sequence[str]) -> list[str]:
    """Return the tokens of two texts, both where they differ.

    >>> join_tokens(["The", "cat"], ["The", "dog"])
    ['The', 'cat|dog']
    """
    return [one if one == other else f"{one}|{other}" for one, other in zip(clean, corrupted, strict=True)]
