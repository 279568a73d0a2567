"""The families of new models: configurations, drawn parameters, special tokens."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import sqrt
from typing import Any, NamedTuple, cast

from attnkit.checkpoints import read_json_object
from attnkit.checkpoints.checkpoint import fact_of, find_family
from attnkit.checkpoints.config_reader import Fields, first_keys, keys_of
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import UsageError, flag_name
from attnkit.model.config import Config
from attnkit.model.formulas.recurrent_cells import CELLS
from attnkit.model.recurrent_config import RecurrentStack, as_recurrent
from attnkit.training.recipe import Recipe

FAMILIES = ("gpt2", "llama", "lfm2", "qwen3_5_text", "marian", "transformer", "bert", "t5", "seq2seq", "lstm", "vit")
TEXT_OPTIONS = ("tokens", "block", "pairs")
USUAL_OPTIONS = ("heads", *TEXT_OPTIONS)
CHOICES = ("cell", "attention", "input_feeding", "bidirectional")  # of a recurrent encoder-decoder
SIDES = ("size", "patch")  # of a model of images
DEPTH = 4  # layers of a new model
OWN_OPTIONS = (*USUAL_OPTIONS, "weight_drop", *CHOICES, *SIDES)  # which some families do not have


class FamilyTokens(NamedTuple):
    """The special tokens of a family, as its published tokenizers have them.

    tokens     in the order of their ids, from 0
    names      key of tokenizer_config.json -> token
    before, after  tokens around every text
    sentinels  the tokens that replace spans, the first with the largest id
    """

    tokens: tuple[str, ...]
    names: Mapping[str, str]
    before: tuple[str, ...]
    after: tuple[str, ...]
    sentinels: tuple[str, ...]


def family_tokens(name: str) -> FamilyTokens:
    """The special tokens of a family.

    >>> family_tokens("llama").tokens, family_tokens("llama").before
    (('<unk>', '<s>', '</s>'), ('<s>',))
    """
    family = find_family(name)
    names, template = fact_of(family, "TOKENS"), fact_of(family, "TEMPLATE")
    before, _, after = template.partition("$A")
    sentinels = fact_of(family, "SENTINELS", ())
    return FamilyTokens(
        tuple(dict.fromkeys(names.values())), names, tuple(before.split()), tuple(after.split()), sentinels
    )


class Parameter(NamedTuple):
    """What decides how a parameter is drawn: its part of a stack, name, shape, stack."""

    part: str
    name: str
    shape: tuple[int, ...]
    stack: str = ""


Values = dict[str, Any]
Distribution = tuple[str, float] | tuple[str, float, float]  # normal or uniform, a scale, and the middle if not 0


def new_config(recipe: Recipe, positions: int, vocabulary: int, special: Mapping[str, int]) -> Values:
    """The values of config.json of a recipe's new model, as published.

    positions   length of the longest text
    vocabulary  number of tokens
    special     the ids of its special tokens by name: bos, eos, pad

    UsageError for an unknown family, and for sizes that do not divide.

    >>> config = new_config(Recipe(layers=2), 256, 100, {"eos": 99})
    >>> config["n_layer"], config["n_embd"], config["eos_token_id"]
    (2, 128, 99)
    """
    name = recipe.family
    if name not in FAMILIES:
        raise UsageError(f"family {name!r} (expected one of {', '.join(FAMILIES)})")
    family = find_family(name)
    recipe = replace(recipe, layers=fact_of(family, "DEPTH", DEPTH) if recipe.layers is None else recipe.layers)
    for size in ("layers", "heads", "dim"):
        if getattr(recipe, size) < 1:
            raise UsageError(f"{size} {getattr(recipe, size)} (expected 1 or more)")
    _check_divisions(name, recipe)
    values = _new_sizes(fact_of(family, "FIELDS"), recipe, positions) | fact_of(family, "new_values")(recipe, special)
    last, first = fact_of(family, "LAST_KEYS", ()), {"model_type": name}
    if "architectures" in values:
        first = {"architectures": values.pop("architectures"), **first}
    order = sorted(values, key=lambda key: (last.index(key) + 1 if key in last else 0, key))
    tokens = {f"{name}_token_id": special[name] for name in ("bos", "eos", "pad") if name in special}
    words = {} if learns(name, "images") else {"vocab_size": vocabulary, **tokens}
    return {**first, **{key: values[key] for key in order}, **words}


def _check_divisions(name: str, recipe: Recipe) -> None:
    """Raise UsageError for sizes of a new model that do not divide."""
    positions = fact_of(name, "POSITIONS", "")
    if has_option(name, "heads") and recipe.dim % recipe.heads:
        raise UsageError(f"dim {recipe.dim} is not divisible by heads {recipe.heads}")
    if has_option(name, "patch") and recipe.size % recipe.patch:
        raise UsageError(f"size {recipe.size} is not divisible by patch {recipe.patch}")
    if positions == "rotary" and recipe.dim // recipe.heads % 2:
        raise UsageError(f"dim {recipe.dim} over heads {recipe.heads} is odd, and rotary positions need pairs")
    if positions == "sinusoidal" and recipe.dim % 2:
        raise UsageError(f"dim {recipe.dim} is odd, and sinusoidal positions need pairs")


def _new_sizes(fields: Fields, recipe: Recipe, positions: int) -> Values:
    """The sizes of a new model by key, the first of several.

    All rates of dropout are set.
    """
    sizes = {
        "layers": recipe.layers,
        "width": recipe.dim,
        "embedding width": recipe.dim,
        "heads": recipe.heads,
        "key/value heads": recipe.heads,
        "hidden width": recipe.hidden or 4 * recipe.dim,
        "longest text": positions,
        "image": recipe.size,
        "patches": recipe.patch,
        "dropout": recipe.dropout,
    }
    return {
        key: size
        for fact, size in sizes.items()
        for key in (keys_of(fields, fact) if fact == "dropout" else first_keys(fields, fact))
    }


def stated_sizes(path: str) -> Values:
    """The family, sizes and choices of a config.json, by the names of train's options.

    FileError if it cannot be read, DataError if it is malformed.
    """
    raw = read_json_object(path)
    config = published_tensors(raw, path).config
    stack = config.stack(config.stacks[-1])
    sizes: Values = dict.fromkeys(("heads", *CHOICES, *SIDES))
    sizes |= {"family": raw["model_type"], "layers": stack.layers, "dim": config.width, "hidden": stack.hidden}
    if not config.is_recurrent:
        sides = {"size": config.patches.height, "patch": config.patches.patch_height} if config.patches else {}
        return sizes | {"heads": stack.heads} | sides
    recurrent = as_recurrent(config)
    last, first = (recurrent.recurrent_stack(name) for name in (config.stacks[-1], config.stacks[0]))
    decoding, is_bidirectional = recurrent.decoding, config.encoder is not None and first.is_bidirectional
    choices = (last.cell, decoding.score, decoding.input_feeding, is_bidirectional)
    return sizes | {"dim": last.embedding, "hidden": last.widths[0]} | dict(zip(CHOICES, choices, strict=True))


def _draw_normal(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw from N(0, initializer_range), 0.02 by default, as in transformers."""
    return "normal", float(raw.get("initializer_range") or 0.02)


def _draw_xavier(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw within sqrt(6/(in + out)) (Glorot, Bengio 2010), embeddings from N(0, 1/D)."""
    if parameter.name == "table":
        return "normal", config.width**-0.5
    return "uniform", sqrt(6 / sum(parameter.shape[-2:]))


def _draw_recurrent(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw recurrent layers within 1/sqrt(H) (torch.nn.LSTM), others as xavier."""
    if parameter.part != "rnn":
        return _draw_xavier(config, raw, parameter)
    blocks = CELLS[cast(RecurrentStack, config.stack(parameter.stack)).cell].blocks
    return "uniform", (parameter.shape[0] // blocks) ** -0.5


DISTRIBUTIONS = {"normal": _draw_normal, "xavier": _draw_xavier, "recurrent": _draw_recurrent}


def draw_parameter(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """The distribution of a new model's parameter, by its family."""
    family = find_family(config.family)
    usual = DISTRIBUTIONS[fact_of(family, "DISTRIBUTION", "normal")](config, raw, parameter)
    draw = fact_of(family, "draw_initial")
    return draw(config, raw, parameter.part, parameter.name, usual) if draw else usual


def learns(family: str, kind: str) -> bool:
    """Whether a family learns from data of a kind.

    causal, masked, spans, pairs or labels of texts, or images

    >>> learns("lstm", "labels"), learns("vit", "causal")
    (True, False)
    """
    return kind in fact_of(family, "LEARNS", ())


def can_choose_pairs(family: str) -> bool:
    """Whether a family learns from pairs on request, else from other texts."""
    return "pairs" in fact_of(family, "LEARNS", ())[1:]


def has_option(family: str, name: str) -> bool:
    """Whether an option of a new model is one of a family, or of all."""
    options = fact_of(family, "OPTIONS", USUAL_OPTIONS) if family in FAMILIES else ()
    return name not in OWN_OPTIONS or name in options


def check_family_options(family: str, names: Collection[str]) -> None:
    """Raise UsageError for an option, by its name, that a family does not have.

    >>> check_family_options("seq2seq", ["cell", "dim"])
    """
    for name in names:
        if not has_option(family, name):
            others = ", ".join(one for one in FAMILIES if has_option(one, name))
            raise UsageError(f"{family} does not have this option (families that do: {others})", flag_name(name))
