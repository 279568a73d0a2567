"""GPT-Neo: GPT-2 with unscaled scores, and windows in every other layer."""

from dataclasses import replace

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Weights, embedding_table, map_linear, norm, tied_head
from attnkit.model.config import Config, PositionConfig
from attnkit.model.formulas.activations import PUBLISHED

PREFIXES = ("transformer.",)
FIELDS = USUAL | {
    "layers": "num_layers", "heads": "num_heads", "norm eps": "layer_norm_epsilon", "activation": "activation_function",
    "windows": "window_size",
}  # fmt: skip
IS_CAUSAL = "ignored"  # each layer has a mask of its own
KINDS = ("global", "local")
LAYER, WORDS = "h.{n}", "wte.weight"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    width = raw.get_int("hidden_size")
    raw.ignore("attention_layers")  # attention_types layer by layer
    stack = raw.get_stack(FIELDS, hidden=4 * width, causal=True, final_norm=True)
    window, kinds = raw.get_int("window_size", 256), _read_kinds(raw, stack.layers)
    windows = tuple(window - 1 if kind == "local" else -1 for kind in kinds)
    return Config(
        "gpt_neo",
        width,
        decoder=replace(stack, windows=windows),
        eps=raw.get_float("layer_norm_epsilon", 1e-5),
        norm_first=True,
        activation=raw.get_choice("activation_function", PUBLISHED, "gelu_new"),
        positions=PositionConfig("learned", size=raw.get_int("max_position_embeddings", 2048)),
        scale=1.0,
        special=raw.get_special_tokens(),
    )


def map_layers(raw: ConfigReader) -> Layers:
    is_tied = raw.get_bool("tie_word_embeddings", True)
    attention = f"{LAYER}.attn.attention"
    return {
        "decoder.embed": embedding_table(WORDS),
        "decoder.positions": embedding_table("wpe.weight"),
        "decoder.{n}.norm1": norm(f"{LAYER}.ln_1"),
        "decoder.{n}.self": map_linear(attention, wq="q_proj", wk="k_proj", wv="v_proj", biased=False)
        | map_linear(attention, wo="out_proj"),
        "decoder.{n}.norm2": norm(f"{LAYER}.ln_2"),
        "decoder.{n}.ffn": map_linear(f"{LAYER}.mlp", w1="c_fc", w2="c_proj"),
        "decoder.norm": norm("ln_f"),
        "head": tied_head("lm_head.weight", to=WORDS * is_tied),
    }


def _read_kinds(raw: ConfigReader, layers: int) -> list[str]:
    """The kind of attention of each layer, from pairs of kinds and their repeats."""
    pairs = raw.values.get("attention_types") or [[[KINDS[number % 2]], 1] for number in range(layers)]
    kinds: list[str] = []
    for pair in pairs if isinstance(pairs, list) else [pairs]:
        is_pair = isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], list)
        if not is_pair or type(pair[1]) is not int or not all(kind in KINDS for kind in pair[0]):
            raise raw.error("attention_types is not a list of pairs: kinds (global, local), and how often they repeat")
        kinds += pair[0] * min(pair[1], layers + 1)
    if len(kinds) != layers:
        raise raw.error(f"attention_types are the kinds of {len(kinds)} layers, and num_layers is {layers}")
    return kinds
