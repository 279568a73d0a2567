"""LLaVA: a decoder that reads the patches of CLIP's tower of pictures.

A network maps each of them.
"""

from dataclasses import replace
from typing import Any

from attnkit.checkpoints import clip_vision_model, llama, mistral, qwen2
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.picture_towers import PictureTokens, Tower, find_part, read_decoder, with_connector
from attnkit.checkpoints.weights import Layers, Weights, map_linear
from attnkit.model.config import Config, ConnectorConfig
from attnkit.model.formulas.activations import PUBLISHED

VARIANT_OF = llama
HAS_OWN_MODULES = False  # but those of its decoder
NAMES = {  # the beginnings of the names of the tensors of each part
    "text": ("language_model.", "model.language_model.", "lm_head."),
    "vision": ("vision_tower.", "model.vision_tower.", "multi_modal_projector.", "model.multi_modal_projector."),
}
NUMBERS = ()
PART_PREFIXES = {
    "text": ("language_model.model.", "model.language_model.", "language_model."),
    "vision": (
        "vision_tower.vision_model.", "vision_tower.", "model.vision_tower.vision_model.", "model.vision_tower.",
        "model.",
    ),
}  # fmt: skip
PREFIXES = PART_PREFIXES["text"]
LLAMA: dict[str, Any] = {  # what files may leave out
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
CLIP = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
TEXTS = {"llama": llama, "mistral": mistral, "qwen2": qwen2}
VISIONS = {"clip_vision_model": clip_vision_model}
OF_IMAGES = ("image_seq_length", "image_grid_pinpoints", "ignore_index", "vocab_size")  # which change nothing here
GROUPINGS = {"default": "patches", "full": "all"}  # vision_feature_select_strategy -> of ConnectorConfig


def find_towers(raw: ConfigReader, stored: Weights) -> dict[str, Any]:
    text = find_part(raw, "text_config", TEXTS, "llama")
    find_part(raw, "vision_config", VISIONS, "clip_vision_model")
    is_biased = raw.get_bool("multimodal_projector_bias", True)
    connector = ConnectorConfig(
        read_tower(raw, "text").get_int("hidden_size"),
        raw.get_choice("vision_feature_select_strategy", GROUPINGS, "default"),
        ("ffn",),
        activation=raw.get_choice("projector_hidden_act", PUBLISHED, "gelu"),
    )
    projector = map_linear("multi_modal_projector", w1="linear_1", w2="linear_2", biased=is_biased)
    vision = with_connector(clip_vision_model, PART_PREFIXES["vision"], connector, {"connector.ffn": projector})
    read_whole, state = vision.read_config, raw.values.get("vision_feature_layer", -2)

    def read_lower(tower: ConfigReader, stored: Weights) -> Config:
        """The tower up to the layer whose states the decoder reads."""
        return _cut_layers(raw, read_whole(tower, stored), state)

    return {
        "text": Tower(text, PART_PREFIXES["text"], text.read_config, text.map_layers),
        "vision": vision._replace(read_config=read_lower),
    }


def _cut_layers(raw: ConfigReader, config: Config, state: object) -> Config:
    """The layers that compute a state, counted from the embeddings, or from the end.

    DataError for several states, or for one that no layer computes.
    """
    stack = config.stack("encoder")
    count = state + (stack.layers + 1) * (state < 0) if type(state) is int else 0
    if not 1 <= count <= stack.layers:
        expected = f"use a number from 1 to {stack.layers}, or from -{stack.layers} to -1"
        raise raw.error(f"vision_feature_layer {str(state)[:40]} is not supported by family llava ({expected})")
    return replace(config, encoder=replace(stack, layers=count, final_norm=False), vector_width=0, vector_pooling="")


def read_tower(raw: ConfigReader, tower: str) -> ConfigReader:
    """The configuration of a tower."""
    if tower == "text":
        defaults = LLAMA if raw.get_object("text_config").get_str("model_type", "llama") == "llama" else {}
        return read_decoder(raw, defaults)
    vision = raw.get_object("vision_config")
    vision.ignore("vocab_size", "projection_dim", "vision_use_head")  # of the whole CLIP
    return vision.replaced({**CLIP, **vision.values.plain})


def read_tokens(raw: ConfigReader) -> PictureTokens:
    """What stands for a picture in a text."""
    raw.ignore(*OF_IMAGES)
    id = raw.get_int("image_token_id", raw.get_int("image_token_index", 32000))
    return PictureTokens(id, id, "rows")


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("vision_config", "vision_feature_layer", "vision_feature_select_strategy", "multimodal_projector_bias")
    raw.ignore("projector_hidden_act", "image_token_index", *OF_IMAGES)
    return llama.read_config(read_tower(raw, "text"), stored)


def map_layers(raw: ConfigReader) -> Layers:
    return llama.map_layers(read_tower(raw, "text"))
