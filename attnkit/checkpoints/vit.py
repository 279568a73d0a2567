"""ViT: a pre-norm encoder of the patches of an image, a token of its own before them, classes read off that one."""

from attnkit.checkpoints.config_reader import ACTIVATIONS, ConfigReader
from attnkit.checkpoints.mapping import Layers, TensorSpec, linear, norm
from attnkit.checkpoints.weights import Weights
from attnkit.model.config import Config, PatchConfig, PositionConfig, StackConfig

PREFIXES = ("vit.",)


def config(raw: ConfigReader, stored: Weights) -> Config:
    """The choices of a configuration; whether there is a pooler and a head, the stored names say."""
    width, heads = raw.whole("hidden_size"), raw.whole("num_attention_heads")
    (height, across), (patch_height, patch_width) = raw.pair("image_size"), raw.pair("patch_size")
    if height < patch_height or across < patch_width:
        raise raw.wrong(f"image_size {height}x{across} is smaller than patch_size {patch_height}x{patch_width}")
    pooler = stored.has("pooler.dense.weight")
    if pooler and (raw.whole("pooler_output_size", width), raw.text("pooler_act", "tanh")) != (width, "tanh"):
        raise raw.wrong(f"a pooler other than tanh of size {width} is not supported")
    return Config(
        "vit",
        width,
        encoder=StackConfig(
            layers=raw.whole("num_hidden_layers"),
            heads=heads,
            hidden=raw.whole("intermediate_size"),
            kv_heads=heads,
            head_dim=raw.head_dim("hidden_size", "num_attention_heads"),
            final_norm=True,
        ),
        eps=raw.number("layer_norm_eps", 1e-12),
        norm_first=True,
        activation=raw.choice("hidden_act", ACTIVATIONS, "gelu"),
        positions=PositionConfig("learned", size=(height // patch_height) * (across // patch_width) + 1),
        patches=PatchConfig(height, across, patch_height, patch_width, raw.whole("num_channels", 3)),
        pooler=pooler,
        head=stored.has("classifier.weight"),
        classes=_classes(raw),
    )


def layers(raw: ConfigReader, config: Config) -> Layers:
    """Where the parameters of each layer lie."""
    at, patches = "encoder.layer.{n}", "embeddings.patch_embeddings.projection"
    biased = raw.flag("qkv_bias", True)
    sizes = (raw.whole("num_channels", 3), *raw.pair("patch_size"))
    return {
        "encoder.embed": {
            "w": TensorSpec((f"{patches}.weight",), turned=True, unfolded=sizes),
            "b": TensorSpec((f"{patches}.bias",)),
            "cls": TensorSpec(("embeddings.cls_token",), lead=2),
        },
        "encoder.positions": {"table": TensorSpec(("embeddings.position_embeddings",), lead=1)},
        "encoder.{n}.norm1": norm(f"{at}.layernorm_before"),
        "encoder.{n}.self": linear("q", f"{at}.attention.attention.query", biased)
        | linear("k", f"{at}.attention.attention.key", biased)
        | linear("v", f"{at}.attention.attention.value", biased)
        | linear("o", f"{at}.attention.output.dense"),
        "encoder.{n}.norm2": norm(f"{at}.layernorm_after"),
        "encoder.{n}.ffn": linear("1", f"{at}.intermediate.dense") | linear("2", f"{at}.output.dense"),
        "encoder.norm": norm("layernorm"),
        "pooler": linear("", "pooler.dense"),
        "head": linear("", "classifier"),
    }


def _classes(raw: ConfigReader) -> tuple[str, ...]:
    """What the classes are called, two nameless ones where nothing is said."""
    names = raw.mapping("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    if sorted(names) != sorted(str(number) for number in range(len(names))):
        raise raw.wrong(f"id2label does not name the classes 0 to {len(names) - 1}")
    return tuple(str(names[str(number)]) for number in range(len(names)))
