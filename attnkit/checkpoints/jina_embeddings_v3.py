"""Jina Embeddings v3: XLM-RoBERTa with rotary positions, without its adapters."""

from attnkit.checkpoints import nomic_bert
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import map_head
from attnkit.checkpoints.nomic_bert import LAYER, UsualValues, map_embeddings, name_gguf, read_rotary
from attnkit.checkpoints.roberta import HEAD, HEADS, map_words
from attnkit.checkpoints.weights import Layers, Weights, map_fused, map_linear, norm
from attnkit.model.config import Config

PREFIXES = ("roberta.",)
VARIANT_OF = nomic_bert
RENAMED_MODULES = nomic_bert.RENAMED_MODULES[:-1]  # all but that of fc2
SPLIT_MODULES = {"mixer.Wqkv": nomic_bert.QKV}
USUAL = UsualValues(20000.0, 8194, types=1, activation="gelu", eps=1e-5)
TOKENIZER = "XLMRobertaTokenizer"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    return read_rotary(raw, stored, f"{HEAD}.dense.weight", HEADS, USUAL, head_activation="gelu")


def map_layers(raw: ConfigReader) -> Layers:
    qkv = f"{LAYER}.mixer.Wqkv"
    return {
        **map_embeddings("emb_ln"),
        "encoder.{n}.self": map_fused("qkv", f"{qkv}.weight", f"{qkv}.bias")
        | map_linear(f"{LAYER}.mixer", wo="out_proj"),
        "encoder.{n}.norm1": norm(f"{LAYER}.norm1"),
        "encoder.{n}.ffn": map_linear(f"{LAYER}.mlp", w1="fc1", w2="fc2"),
        "encoder.{n}.norm2": norm(f"{LAYER}.norm2"),
        "pooler": map_linear(w="pooler.dense"),
        **map_words(raw),
        **map_head(raw, HEADS),
    }


GGUF = nomic_bert.GGUF | {
    "names": name_gguf({
        "attn_qkv": "mixer.Wqkv", "attn_output": "mixer.out_proj", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2",
    }),
}  # fmt: skip
