"""The families of new models: configurations, drawn parameters, special tokens."""

from collections.abc import Callable, Collection, Mapping
from math import sqrt
from typing import Any, NamedTuple, cast

from attnkit.checkpoints import read_json_object
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import UsageError, flag_name
from attnkit.model.config import Config
from attnkit.model.recurrent_cells import CELLS
from attnkit.model.recurrent_config import RecurrentConfig, RecurrentStack


class RecurrentChoices(NamedTuple):
    """The parts of a recurrent encoder-decoder: cells, attention, directions."""

    cell: str = "gru"
    attention: str = "additive"
    input_feeding: bool = False
    bidirectional: bool = False


class ModelSizes(NamedTuple):
    """The sizes of a new model.

    positions  the longest text
    hidden     width of the feed-forward network [4 times the width; gated: 8/3 of it, a multiple of 32]; of recurrent
               layers the width of their states [the width]
    decoding   of a seq2seq
    """

    layers: int = 4
    heads: int = 4
    width: int = 128
    positions: int = 256
    hidden: int | None = None
    dropout: float = 0.1
    decoding: RecurrentChoices = RecurrentChoices()


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


class Distribution(NamedTuple):
    """How elements are drawn: normal or uniform around 0 with a scale, or all equal."""

    kind: str
    scale: float


class Parameter(NamedTuple):
    """What decides how a parameter is drawn: its part of a stack, name, shape, stack."""

    part: str
    name: str
    shape: tuple[int, ...]
    stack: str = ""


Values = dict[str, Any]


def new_config(family: str, sizes: ModelSizes, vocabulary: int, special: Mapping[str, int]) -> Values:
    """The values of config.json of a model of a family, as published.

    vocabulary  number of tokens
    special     the ids of its special tokens by name: bos, eos, pad

    UsageError for an unknown family, and for sizes that do not divide.

    >>> config = new_config("gpt2", ModelSizes(layers=2), 100, {"eos": 99})
    >>> config["n_layer"], config["n_embd"], config["eos_token_id"]
    (2, 128, 99)
    """
    if family not in FAMILIES:
        raise UsageError(f"family {family!r} (expected one of {', '.join(FAMILIES)})")
    for name, size in (("layers", sizes.layers), ("heads", sizes.heads), ("dim", sizes.width)):
        if size < 1:
            raise UsageError(f"{name} {size} (expected 1 or more)")
    if FAMILIES[family].has_heads and sizes.width % sizes.heads:
        raise UsageError(f"dim {sizes.width} is not divisible by heads {sizes.heads}")
    if family == "llama" and sizes.width // sizes.heads % 2:
        raise UsageError(f"dim {sizes.width} over heads {sizes.heads} is odd, and rotary positions need pairs")
    if family in ("marian", "transformer") and sizes.width % 2:
        raise UsageError(f"dim {sizes.width} is odd, and sinusoidal positions need pairs")
    tokens = {f"{name}_token_id": special[name] for name in ("bos", "eos", "pad") if name in special}
    return {**FAMILIES[family].config(sizes, special), "vocab_size": vocabulary, **tokens}


def stated_sizes(path: str) -> Values:
    """The family, sizes and choices of a config.json, by the names of train's options.

    FileError if it cannot be read, DataError if it is malformed.
    """
    raw = read_json_object(path)
    config = published_tensors(raw, path).config
    stack = config.stack(config.stacks[-1])
    sizes: Values = dict.fromkeys(("heads", *RecurrentChoices._fields))
    sizes |= {"family": raw["model_type"], "layers": stack.layers, "dim": config.width, "hidden": stack.hidden}
    if not isinstance(stack, RecurrentStack) or not isinstance(config, RecurrentConfig):
        return sizes | {"heads": stack.heads}
    has_encoder = config.encoder is not None and config.recurrent_stack("encoder").is_bidirectional
    choices = RecurrentChoices(stack.cell, config.decoding.score, config.decoding.input_feeding, has_encoder)
    return sizes | {"dim": stack.embedding, "hidden": stack.widths[0]} | choices._asdict()


def _gpt2(sizes: ModelSizes, special: Mapping[str, int]) -> Values:
    dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), sizes.dropout)
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-5,
        "n_embd": sizes.width,
        "n_head": sizes.heads,
        "n_inner": sizes.hidden,
        "n_layer": sizes.layers,
        "n_positions": sizes.positions,
        **dropout,
    }


def _llama(sizes: ModelSizes, special: Mapping[str, int]) -> Values:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "head_dim": sizes.width // sizes.heads,
        "hidden_act": "silu",
        "hidden_size": sizes.width,
        "initializer_range": 0.02,
        "intermediate_size": sizes.hidden or -(-sizes.width * 8 // 3 // 32) * 32,
        "max_position_embeddings": sizes.positions,
        "mlp_bias": False,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }


def _bert(sizes: ModelSizes, special: Mapping[str, int]) -> Values:
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "attention_probs_dropout_prob": sizes.dropout,
        "hidden_act": "gelu",
        "hidden_dropout_prob": sizes.dropout,
        "hidden_size": sizes.width,
        "initializer_range": 0.02,
        "intermediate_size": sizes.hidden or 4 * sizes.width,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": sizes.positions,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "type_vocab_size": 2,
    }


def _marian(sizes: ModelSizes, special: Mapping[str, int]) -> Values:
    stacks: Values = {}
    for name in ("encoder", "decoder"):
        stacks |= {
            f"{name}_attention_heads": sizes.heads,
            f"{name}_ffn_dim": sizes.hidden or 4 * sizes.width,
            f"{name}_layers": sizes.layers,
        }
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "activation_function": "swish",
        "bad_words_ids": [[special["pad"]]],
        "d_model": sizes.width,
        "decoder_start_token_id": special["pad"],
        "dropout": sizes.dropout,
        "forced_eos_token_id": special["eos"],
        "is_encoder_decoder": True,
        "max_position_embeddings": sizes.positions,
        "num_hidden_layers": sizes.layers,
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "static_position_embeddings": True,
        "tie_word_embeddings": True,
        **stacks,
    }


def _t5(sizes: ModelSizes, special: Mapping[str, int]) -> Values:
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "d_ff": sizes.hidden or 4 * sizes.width,
        "d_kv": sizes.width // sizes.heads,
        "d_model": sizes.width,
        "decoder_start_token_id": special["pad"],
        "dropout_rate": sizes.dropout,
        "feed_forward_proj": "relu",
        "initializer_factor": 1.0,
        "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-6,
        "n_positions": sizes.positions,
        "num_decoder_layers": sizes.layers,
        "num_heads": sizes.heads,
        "num_layers": sizes.layers,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "tie_word_embeddings": True,
    }


def _transformer(sizes: ModelSizes, special: Mapping[str, int]) -> Values:
    return {
        "model_type": "transformer",
        "activation": "relu",
        "d_model": sizes.width,
        "decoder_start_token_id": special["pad"],
        "dim_feedforward": sizes.hidden or 4 * sizes.width,
        "dropout": sizes.dropout,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": sizes.positions,
        "nhead": sizes.heads,
        "norm_first": False,
        "num_decoder_layers": sizes.layers,
        "num_encoder_layers": sizes.layers,
    }


def _seq2seq(sizes: ModelSizes, special: Mapping[str, int]) -> Values:
    cell, attention, input_feeding, bidirectional = sizes.decoding
    hidden = sizes.hidden or sizes.width
    if input_feeding and attention == "none":
        raise UsageError("hands on what attention found, and --attention is none", "--input-feeding")
    if bidirectional and attention == "dot":
        problem = "dot compares states of one width, and those of two directions are wider; try general"
        raise UsageError(problem, "--attention")
    readout: Values = {} if attention == "none" else {"readout": "tanh", "readout_size": sizes.width}
    return {
        "model_type": "seq2seq",
        "attention": attention,
        "attention_query": "previous" if attention == "additive" and not input_feeding else "current",
        "bidirectional": bidirectional,
        "bridge": "tanh" if bidirectional else "identity",
        "cell": cell,
        "decoder_layers": sizes.layers,
        "decoder_start_token_id": special["pad"],
        "embedding_size": sizes.width,
        "encoder_layers": sizes.layers,
        "hidden_size": hidden,
        "input_feeding": input_feeding,
        "is_encoder_decoder": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": bool(readout) or hidden == sizes.width,
        **readout,
    }


def _lstm(sizes: ModelSizes, special: Mapping[str, int]) -> Values:
    return {
        "model_type": "lstm",
        "embedding_size": sizes.width,
        "hidden_size": sizes.hidden or sizes.width,
        "num_layers": sizes.layers,
        "tie_word_embeddings": True,
    }


def _draw_normal(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw from N(0, initializer_range), 0.02 by default, as in transformers."""
    return Distribution("normal", float(raw.get("initializer_range") or 0.02))


def _draw_gpt2(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Divide deviations of projections to the residual by sqrt(2 layers) (GPT-2, 2.3)."""
    layers = config.stack("decoder").layers
    factor = 1 / sqrt(2 * layers) if parameter.name in ("wo", "w2") else 1.0
    return Distribution("normal", _draw_normal(config, raw, parameter).scale * factor)


def _draw_xavier(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw within sqrt(6/(in + out)) (Glorot, Bengio 2010), embeddings from N(0, 1/D)."""
    if parameter.name == "table":
        return Distribution("normal", config.width**-0.5)
    return Distribution("uniform", sqrt(6 / sum(parameter.shape[-2:])))


def _draw_recurrent(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw recurrent layers within 1/sqrt(H) (torch.nn.LSTM), others by `_draw_xavier`."""
    if parameter.part != "rnn":
        return _draw_xavier(config, raw, parameter)
    blocks = CELLS[cast(RecurrentStack, config.stack(parameter.stack)).cell].blocks
    return Distribution("uniform", (parameter.shape[0] // blocks) ** -0.5)


def _draw_lstm(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw embeddings uniformly within 0.1 (AWD-LSTM, section 5)."""
    is_table = parameter.name in ("table", "w") and not (parameter.part == "head" and config.classes)
    return Distribution("uniform", 0.1) if is_table else _draw_recurrent(config, raw, parameter)


def _draw_t5(config: Config, raw: Mapping[str, Any], parameter: Parameter) -> Distribution:
    """Draw from normal distributions that replace the scale of scores (mesh_tensorflow)."""
    stack = config.stack("encoder")
    deviations = {
        "wq": (config.width * stack.head_dim) ** -0.5,
        "wo": (stack.heads * stack.head_dim) ** -0.5,
        "w2": stack.hidden**-0.5,
    }
    is_embedding = parameter.part in ("embed", "head") and parameter.name in ("table", "w")
    scale = 1.0 if is_embedding else deviations.get(parameter.name, config.width**-0.5)
    return Distribution("normal", float(raw.get("initializer_factor") or 1.0) * scale)


class NewFamily(NamedTuple):
    """A family of which new models are made.

    config      the values of its config.json
    draw        how each parameter is drawn
    tokens      its special tokens
    learns      what it learns from: causal, masked, spans or pairs (corpus.py)
    layers      of a model for which none are given
    has_heads   whether its attention has heads; the layers of the others are recurrent
    """

    config: Callable[[ModelSizes, Mapping[str, int]], Values]
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
}
RECURRENT = tuple(name for name, family in FAMILIES.items() if not family.has_heads)
# options that some families alone have
OWN_OPTIONS: dict[str, tuple[str, ...]] = {
    "heads": tuple(family for family in FAMILIES if family not in RECURRENT),
    "weight_drop": RECURRENT,
} | dict.fromkeys(RecurrentChoices._fields, ("seq2seq",))


def check_family_options(family: str, names: Collection[str]) -> None:
    """Raise UsageError for an option, by its name, that a family does not have.

    >>> check_family_options("seq2seq", ["cell", "dim"])
    """
    for name in names:
        if family not in OWN_OPTIONS.get(name, (family,)):
            raise UsageError(f"the family {family} has none (it is of {', '.join(OWN_OPTIONS[name])})", flag_name(name))
