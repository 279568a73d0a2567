"""The families of new models: configurations, drawn parameters, special tokens."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import sqrt
from typing import Any, NamedTuple, cast

from attnkit.checkpoints import read_json_object
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import UsageError, flag_name
from attnkit.model.config import Config
from attnkit.model.recurrent_cells import CELLS
from attnkit.model.recurrent_config import RecurrentConfig, RecurrentStack
from attnkit.training.recipe import Recipe

CHOICES = ("cell", "attention", "input_feeding", "bidirectional")  # of a recurrent encoder-decoder
SIDES = ("size", "patch")  # of a model of images


class FamilyTokens(NamedTuple):
    """The special tokens of a family, as its published tokenizers have them.

    tokens     in the order of their ids, from 0
    names      key of tokenizer_config.json -> token
    before, after  tokens around every text
    sentinels  the tokens that replace spans, the first with the largest id
    """

    tokens: tuple[str, ...]
    names: Mapping[str, str]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    sentinels: tuple[str, ...] = ()


class Parameter(NamedTuple):
    """What decides how a parameter is drawn: its part of a stack, name, shape, stack."""

    part: str
    name: str
    shape: tuple[int, ...]
    stack: str = ""


Values = dict[str, Any]
Distribution = tuple[str, float]  # how elements are drawn: normal or uniform around 0, with a scale


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
    family = recipe.family
    if family not in FAMILIES:
        raise UsageError(f"family {family!r} (expected one of {', '.join(FAMILIES)})")
    recipe = replace(recipe, layers=FAMILIES[family].layers if recipe.layers is None else recipe.layers)
    for name in ("layers", "heads", "dim"):
        if getattr(recipe, name) < 1:
            raise UsageError(f"{name} {getattr(recipe, name)} (expected 1 or more)")
    if FAMILIES[family].has_heads and recipe.dim % recipe.heads:
        raise UsageError(f"dim {recipe.dim} is not divisible by heads {recipe.heads}")
    if family == "vit":
        if recipe.size % recipe.patch:
            raise UsageError(f"size {recipe.size} is not divisible by patch {recipe.patch}")
        return FAMILIES[family].config(recipe, positions, special)
    if family == "llama" and recipe.dim // recipe.heads % 2:
        raise UsageError(f"dim {recipe.dim} over heads {recipe.heads} is odd, and rotary positions need pairs")
    if family in ("marian", "transformer") and recipe.dim % 2:
        raise UsageError(f"dim {recipe.dim} is odd, and sinusoidal positions need pairs")
    tokens = {f"{name}_token_id": special[name] for name in ("bos", "eos", "pad") if name in special}
    return {**FAMILIES[family].config(recipe, positions, special), "vocab_size": vocabulary, **tokens}


def stated_sizes(path: str) -> Values:
    """The family, sizes and choices of a config.json, by the names of train's options.

    FileError if it cannot be read, DataError if it is malformed.
    """
    raw = read_json_object(path)
    config = published_tensors(raw, path).config
    stack = config.stack(config.stacks[-1])
    sizes: Values = dict.fromkeys(("heads", *CHOICES, *SIDES))
    sizes |= {"family": raw["model_type"], "layers": stack.layers, "dim": config.width, "hidden": stack.hidden}
    if not isinstance(stack, RecurrentStack) or not isinstance(config, RecurrentConfig):
        sides = {"size": config.patches.height, "patch": config.patches.patch_height} if config.patches else {}
        return sizes | {"heads": stack.heads} | sides
    has_encoder = config.encoder is not None and config.recurrent_stack("encoder").is_bidirectional
    choices = (stack.cell, config.decoding.score, config.decoding.input_feeding, has_encoder)
    return sizes | {"dim": stack.embedding, "hidden": stack.widths[0]} | dict(zip(CHOICES, choices, strict=True))


def _gpt2(recipe: Recipe, positions: int, special: Mapping[str, int]) -> Values:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5,
        "n_embd": recipe.dim,
        "n_head": recipe.heads,
        "n_inner": recipe.hidden,
        "n_layer": recipe.layers,
        "n_positions": positions,
        **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), recipe.dropout),
    }


def _llama(recipe: Recipe, positions: int, special: Mapping[str, int]) -> Values:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "head_dim": recipe.dim // recipe.heads,
        "hidden_act": "silu",
        "hidden_size": recipe.dim,
        "initializer_range": 0.02,
        "intermediate_size": recipe.hidden or -(-recipe.dim * 8 // 3 // 32) * 32,
        "max_position_embeddings": positions,
        "mlp_bias": False,
        "num_attention_heads": recipe.heads,
        "num_hidden_layers": recipe.layers,
        "num_key_value_heads": recipe.heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }


def _bert(recipe: Recipe, positions: int, special: Mapping[str, int]) -> Values:
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "attention_probs_dropout_prob": recipe.dropout,
        "hidden_act": "gelu",
        "hidden_dropout_prob": recipe.dropout,
        "hidden_size": recipe.dim,
        "initializer_range": 0.02,
        "intermediate_size": recipe.hidden or 4 * recipe.dim,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": positions,
        "num_attention_heads": recipe.heads,
        "num_hidden_layers": recipe.layers,
        "type_vocab_size": 2,
    }


def _marian(recipe: Recipe, positions: int, special: Mapping[str, int]) -> Values:
    stacks: Values = {}
    for name in ("encoder", "decoder"):
        stacks |= {
            f"{name}_attention_heads": recipe.heads,
            f"{name}_ffn_dim": recipe.hidden or 4 * recipe.dim,
            f"{name}_layers": recipe.layers,
        }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "activation_function": "swish",
        "bad_words_ids": [[special["pad"]]],
        "d_model": recipe.dim,
        "decoder_start_token_id": special["pad"],
        "dropout": recipe.dropout,
        "forced_eos_token_id": special["eos"],
        "is_encoder_decoder": True,
        "max_position_embeddings": positions,
        "num_hidden_layers": recipe.layers,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "static_position_embeddings": True,
        "tie_word_embeddings": True,
        **stacks,
    }


def _t5(recipe: Recipe, positions: int, special: Mapping[str, int]) -> Values:
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "d_ff": recipe.hidden or 4 * recipe.dim,
        "d_kv": recipe.dim // recipe.heads,
        "d_model": recipe.dim,
        "decoder_start_token_id": special["pad"],
        "dropout_rate": recipe.dropout,
        "feed_forward_proj": "relu",
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-6,
        "n_positions": positions,
        "num_decoder_layers": recipe.layers,
        "num_heads": recipe.heads,
        "num_layers": recipe.layers,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "tie_word_embeddings": True,
    }


def _transformer(recipe: Recipe, positions: int, special: Mapping[str, int]) -> Values:
    return {
        "model_type": "transformer",
        "activation": "relu",
        "d_model": recipe.dim,
        "decoder_start_token_id": special["pad"],
        "dim_feedforward": recipe.hidden or 4 * recipe.dim,
        "dropout": recipe.dropout,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": positions,
        "nhead": recipe.heads,
        "norm_first": False,
        "num_decoder_layers": recipe.layers,
        "num_encoder_layers": recipe.layers,
    }


def _seq2seq(recipe: Recipe, positions: int, special: Mapping[str, int]) -> Values:
    attention, is_fed, hidden = recipe.attention, recipe.input_feeding, recipe.hidden or recipe.dim
    if is_fed and attention == "none":
        raise UsageError("hands on what attention found, and --attention is none", "--input-feeding")
    if recipe.bidirectional and attention == "dot":
        problem = "dot compares states of one width, and those of two directions are wider; try general"
        raise UsageError(problem, "--attention")
    readout: Values = {} if attention == "none" else {"readout": "tanh", "readout_size": recipe.dim}
    return {
        "model_type": "seq2seq",
        "attention": attention,
        "attention_query": "previous" if attention == "additive" and not is_fed else "current",
        "bidirectional": recipe.bidirectional,
        "bridge": "tanh" if recipe.bidirectional else "identity",
        "cell": recipe.cell,
        "decoder_layers": recipe.layers,
        "decoder_start_token_id": special["pad"],
        "embedding_size": recipe.dim,
        "encoder_layers": recipe.layers,
        "hidden_size": hidden,
        "input_feeding": is_fed,
        "is_encoder_decoder": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": bool(readout) or hidden == recipe.dim,
        **readout,
    }


def _lstm(recipe: Recipe, positions: int, special: Mapping[str, int]) -> Values:
    return {
        "model_type": "lstm",
        "embedding_size": recipe.dim,
        "hidden_size": recipe.hidden or recipe.dim,
        "num_layers": recipe.layers,
        "tie_word_embeddings": True,
    }


def _vit(recipe: Recipe, positions: int, special: Mapping[str, int]) -> Values:
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "attention_probs_dropout_prob": recipe.dropout,
        "hidden_act": "gelu",
        "hidden_dropout_prob": recipe.dropout,
        "hidden_size": recipe.dim,
        "image_size": recipe.size,
        "initializer_range": 0.02,
        "intermediate_size": recipe.hidden or 4 * recipe.dim,
        "layer_norm_eps": 1e-12,
        "num_attention_heads": recipe.heads,
        "num_channels": 3,
        "num_hidden_layers": recipe.layers,
        "patch_size": recipe.patch,
        "qkv_bias": True,
    }


def _draw_normal(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw from N(0, initializer_range), 0.02 by default, as in transformers."""
    return "normal", float(raw.get("initializer_range") or 0.02)


def _draw_gpt2(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Divide deviations of projections to the residual by sqrt(2 layers) (GPT-2, 2.3)."""
    layers = config.stack("decoder").layers
    factor = 1 / sqrt(2 * layers) if parameter.name in ("wo", "w2") else 1.0
    return "normal", _draw_normal(config, raw, parameter)[1] * factor


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


def _draw_lstm(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw embeddings uniformly within 0.1 (AWD-LSTM, section 5)."""
    is_table = parameter.name in ("table", "w") and not (parameter.part == "head" and config.classes)
    return ("uniform", 0.1) if is_table else _draw_recurrent(config, raw, parameter)


def _draw_t5(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw from normal distributions in place of a scale of scores (mesh_tensorflow)."""
    stack = config.stack("encoder")
    deviations = {
        "wq": (config.width * stack.head_dim) ** -0.5,
        "wo": (stack.heads * stack.head_dim) ** -0.5,
        "w2": stack.hidden**-0.5,
    }
    is_embedding = parameter.part in ("embed", "head") and parameter.name in ("table", "w")
    scale = 1.0 if is_embedding else deviations.get(parameter.name, config.width**-0.5)
    return "normal", float(raw.get("initializer_factor") or 1.0) * scale


class NewFamily(NamedTuple):
    """A family of which new models are made.

    learns     what it learns from: causal, masked, spans or pairs (corpus.py), or images
    layers     of a model for which none are given
    has_heads  whether its attention has heads; the layers of the others are recurrent
    """

    config: Callable[[Recipe, int, Mapping[str, int]], Values]
    draw: Callable[[Config, Mapping[str, Any], Parameter], Distribution]
    tokens: FamilyTokens
    learns: str
    layers: int = 4
    has_heads: bool = True


END = "<|endoftext|>"
TEXT = FamilyTokens((END, "<unk>"), {"bos": END, "eos": END, "unk": "<unk>"})
TRANSLATION = FamilyTokens(("</s>", "<unk>", "<pad>"), {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}, after=("</s>",))
LLAMA = FamilyTokens(("<unk>", "<s>", "</s>"), {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}, before=("<s>",))
BERT = FamilyTokens(
    ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    ("[CLS]",),
    ("[SEP]",),
)
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(100))
T5 = FamilyTokens(
    ("<pad>", "</s>", "<unk>"),
    {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
    after=("</s>",),
    sentinels=SENTINELS,
)
FAMILIES = {
    "gpt2": NewFamily(_gpt2, _draw_gpt2, TEXT, "causal"),
    "llama": NewFamily(_llama, _draw_normal, LLAMA, "causal"),
    "marian": NewFamily(_marian, _draw_xavier, TRANSLATION, "pairs"),
    "transformer": NewFamily(_transformer, _draw_xavier, TRANSLATION, "pairs"),
    "bert": NewFamily(_bert, _draw_normal, BERT, "masked"),
    "t5": NewFamily(_t5, _draw_t5, T5, "spans"),
    "seq2seq": NewFamily(_seq2seq, _draw_recurrent, TRANSLATION, "pairs", layers=1, has_heads=False),
    "lstm": NewFamily(_lstm, _draw_lstm, TEXT, "causal", layers=3, has_heads=False),
    "vit": NewFamily(_vit, _draw_normal, FamilyTokens((), {}), "images"),
}
RECURRENT = tuple(name for name, family in FAMILIES.items() if not family.has_heads)
OF_IMAGES = tuple(name for name, family in FAMILIES.items() if family.learns == "images")
OF_TEXTS = tuple(name for name in FAMILIES if name not in OF_IMAGES)
# options that some families alone have
OWN_OPTIONS: dict[str, tuple[str, ...]] = {
    "heads": tuple(family for family in FAMILIES if family not in RECURRENT),
    "weight_drop": RECURRENT,
}
OWN_OPTIONS |= dict.fromkeys(CHOICES, ("seq2seq",)) | dict.fromkeys(SIDES, OF_IMAGES)
OWN_OPTIONS |= dict.fromkeys(("tokens", "block", "pairs"), OF_TEXTS)


def check_family_options(family: str, names: Collection[str]) -> None:
    """Raise UsageError for an option, by its name, that a family does not have.

    >>> check_family_options("seq2seq", ["cell", "dim"])
    """
    for name in names:
        if family not in OWN_OPTIONS.get(name, (family,)):
            raise UsageError(f"the family {family} has none (it is of {', '.join(OWN_OPTIONS[name])})", flag_name(name))
