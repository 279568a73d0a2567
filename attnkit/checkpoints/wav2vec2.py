"""wav2vec 2.0 and HuBERT: convolutions of samples, an encoder, labels by CTC.

A further convolution gives positions.
"""

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Specs, TensorSpec, Weights, map_linear, norm
from attnkit.model.config import POSITION_CONVOLUTION, Config, ConvolutionLayer, SoundConfig
from attnkit.model.formulas.activations import PUBLISHED
from attnkit.model.formulas.convolution import Convolution
from attnkit.model.parameters import MOST_CONVOLUTIONS

PREFIXES = ("wav2vec2.", "hubert.")
FIELDS = USUAL | {
    "vocabulary": "", "frame labels": "vocab_size", "convolutions": "conv_kernel",
    "convolution norm": "feat_extract_norm", "position convolution": "num_conv_pos_embeddings",
}  # fmt: skip
TOKENIZER = "Wav2Vec2CTCTokenizer"
RENAMED_MODULES = ((r"\.parametrizations\.weight\.original1$", ".weight"), (r"\.weight_v$", ".weight"))
SMALLEST = {"conv_dim": [2] * 7, "conv_kernel": [2] * 7, "conv_stride": [2] * 7, "num_conv_pos_embedding_groups": 1,
            "num_conv_pos_embeddings": 2}  # fmt: skip
FORMS = ({"feat_extract_norm": "layer", "conv_bias": True}, {"do_stable_layer_norm": True})
TRAINING_KEYS = (  # of masks, of quantization and its loss, and of heads that no text comes from
    "apply_spec_augment mask_channel mask_time mask_feature num_codevector contrastive num_negatives codevector "
    "proj_codevector diversity ctc_ feat_proj_dropout feat_quantizer_dropout final_dropout feat_extract_dropout "
    "use_weighted_layer_sum classifier_proj_size tdnn_ xvector_ output_hidden_size adapter_kernel_size adapter_stride "
    "num_adapter_layers do_normalize"
)
NORMS = {"group": "channel", "layer": "layer"}
LAYER = "encoder.layers.{n}"


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore(*(key for key in raw.values.plain if key.startswith(tuple(TRAINING_KEYS.split()))))
    raw.ignore("tie_word_embeddings", "num_feat_extract_layers")  # there are no words; conv_dim has so many
    if raw.get_bool("conv_pos_batch_norm", False) or not raw.get_bool("feat_proj_layer_norm", True):
        raise raw.error("conv_pos_batch_norm true and feat_proj_layer_norm false are not supported")
    width, labels, has_head = raw.get_int("hidden_size"), raw.get_int("vocab_size", 32), stored.has("lm_head.weight")
    is_pre_norm = raw.get_bool("do_stable_layer_norm", False)
    convolutions = read_convolutions(raw)
    return Config(
        raw.get_str("model_type"),
        width,
        encoder=raw.get_stack(FIELDS, final_norm=is_pre_norm),
        eps=raw.get_float("layer_norm_eps", 1e-5),
        norm_first=is_pre_norm,
        activation=raw.get_choice("hidden_act", PUBLISHED, "gelu"),
        embed_width=[*convolutions.values()][-2].filters,
        projects_first=True,
        embed_norm=not is_pre_norm,
        sound=SoundConfig(None, 0, convolutions),
        head=has_head,
        frame_labels=labels * has_head,
        special=raw.get_special_tokens(pad=0, bos=1, eos=(2,)),
    )


def read_convolutions(raw: ConfigReader) -> dict[str, ConvolutionLayer]:
    """The convolutions of the samples, and the one of positions as the last."""
    filters = read_sizes(raw, "conv_dim", (512,) * 7)
    strides = read_sizes(raw, "conv_stride", (5, 2, 2, 2, 2, 2, 2), len(filters))
    sizes = read_sizes(raw, "conv_kernel", (10, 3, 3, 3, 3, 2, 2), len(filters))
    kind = raw.get_choice("feat_extract_norm", NORMS, "group")
    activation = raw.get_choice("feat_extract_activation", PUBLISHED, "gelu")
    layers = {}
    for number, (outputs, stride, size) in enumerate(zip(filters, strides, sizes, strict=True), start=1):
        layers[f"conv{number}"] = ConvolutionLayer(
            1 if number == 1 else filters[number - 2],
            outputs,
            size,
            Convolution((stride,)),
            activation,
            kind if number == 1 or kind == "layer" else "",
            reads_samples=number == 1,
        )
    width, groups = raw.get_int("hidden_size"), raw.get_int("num_conv_pos_embedding_groups", 16)
    if width % groups:
        raise raw.error(f"hidden_size {width} is not divisible by num_conv_pos_embedding_groups {groups}")
    places = Convolution(padding="same-lower", groups=groups)  # of an even window the last place is cut off
    size = raw.get_int("num_conv_pos_embeddings", 128)
    layers[POSITION_CONVOLUTION] = ConvolutionLayer(width, width, size, places, activation, is_scaled=True)
    return layers


def read_sizes(raw: ConfigReader, key: str, default: tuple[int, ...], count: int = 0) -> tuple[int, ...]:
    """A list of whole numbers from 1 on, of the given length if there is one."""
    sizes = raw.values.get(key) or [*default]
    if not isinstance(sizes, list) or not all(type(size) is int and 1 <= size <= 1 << 16 for size in sizes):
        raise raw.error(f"{key} is {str(sizes)[:40]!r} (expected a list of whole numbers from 1 to 65536)")
    if len(sizes) != (count or len(sizes)) or len(sizes) > MOST_CONVOLUTIONS:
        raise raw.error(f"{key} has {len(sizes)} numbers (expected {count or f'at most {MOST_CONVOLUTIONS}'})")
    return tuple(sizes)


def map_layers(raw: ConfigReader) -> Layers:
    layers: dict[str, Specs] = {}
    for part, cut in read_convolutions(raw).items():
        layers[f"encoder.{part}"] = map_positions(cut) if cut.is_scaled else map_convolution(raw, part, cut)
    layers |= {
        "encoder.feature_norm": norm("feature_projection.layer_norm"),
        "encoder.projection": map_linear(w="feature_projection.projection"),
        "encoder.{n}.self": map_linear(f"{LAYER}.attention", wq="q_proj", wk="k_proj", wv="v_proj", wo="out_proj"),
        "encoder.{n}.norm1": norm(f"{LAYER}.layer_norm"),
        "encoder.{n}.ffn": map_linear(f"{LAYER}.feed_forward", w1="intermediate_dense", w2="output_dense"),
        "encoder.{n}.norm2": norm(f"{LAYER}.final_layer_norm"),
        "head": map_linear(w="lm_head"),
    }
    is_pre_norm = raw.get_bool("do_stable_layer_norm", False)
    return layers | {"encoder.norm" if is_pre_norm else "encoder.embed_norm": norm("encoder.layer_norm")}


def map_convolution(raw: ConfigReader, part: str, cut: ConvolutionLayer) -> Specs:
    """Map a convolution of the samples and its norm."""
    place = f"feature_extractor.conv_layers.{int(part.removeprefix('conv')) - 1}"
    weight = TensorSpec((f"{place}.conv.weight",), transposed=True, patch_shape=(cut.inputs, cut.size))
    bias = {"b": TensorSpec((f"{place}.conv.bias",))} if raw.get_bool("conv_bias", False) else {}
    return {"w": weight, **bias, **(norm(f"{place}.layer_norm") if cut.norm else {})}


def map_positions(cut: ConvolutionLayer) -> Specs:
    """Map the convolution of positions: its weights, and their length at each place."""
    place = "encoder.pos_conv_embed.conv"
    names = f"{place}.parametrizations.weight.original1", f"{place}.weight_v"
    lengths = f"{place}.parametrizations.weight.original0", f"{place}.weight_g"
    return {
        "w": TensorSpec(names, transposed=True, patch_shape=(cut.inputs // cut.options.groups, cut.size)),
        "g": TensorSpec(lengths, leading_ones=2),
        "b": TensorSpec((f"{place}.bias",)),
    }
