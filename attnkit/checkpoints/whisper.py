"""Whisper: a pre-norm encoder of log-mel spectrograms, and a decoder of text.

Two convolutions come before the encoder.
"""

from dataclasses import replace

from attnkit.checkpoints import bart
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Specs, TensorSpec, Weights, embedding_table, map_linear, norm, tied_head
from attnkit.model.config import Config, ConvolutionLayer, PositionConfig, SoundConfig
from attnkit.model.formulas.activations import PUBLISHED
from attnkit.model.formulas.convolution import Convolution
from attnkit.model.formulas.spectrogram import Spectrogram

PREFIXES = ("model.",)
# keys of generation_config.json that the text of a sound begins by
LATEST_BEGIN = "max_initial_timestamp_index"
FORCED = "forced_decoder_ids"
NO_TIMESTAMPS = "no_timestamps_token_id"
GENERATION_KEYS = (
    FORCED, "lang_to_id", "task_to_id", "suppress_tokens", "begin_suppress_tokens", LATEST_BEGIN, NO_TIMESTAMPS
)  # fmt: skip
USUAL_TASK = "transcribe"
KERNEL = 3  # frames of a window of the convolutions
FIELDS = bart.FIELDS | {"encoder vocabulary": "", "sound": "max_source_positions", "mel filters": "num_mel_bins"}


def read_config(raw: ConfigReader, stored: Weights) -> Config:
    raw.ignore("num_hidden_layers", "median_filter_width", "classifier_proj_size", "use_weighted_layer_sum")
    raw.ignore(
        *(key for key in raw.values.plain if key.startswith(("mask_time", "mask_feature", "apply_spec_augment")))
    )
    if raw.get_bool("scale_embedding", False):
        raise raw.error("scale_embedding true is not supported")
    special = raw.get_special_tokens(start=50257, eos=(50256,), pad=50256)
    if special.start is None:
        raise raw.error("decoder_start_token_id is no id, but a text begins with it", "decoder_start_token_id")
    return Config(
        "whisper",
        raw.get_int("d_model"),
        encoder=raw.get_stack(FIELDS, "encoder", final_norm=True),
        decoder=raw.get_stack(FIELDS, "decoder", causal=True, cross=True, final_norm=True),
        norm_first=True,
        activation=raw.get_choice("activation_function", PUBLISHED, "gelu"),
        positions=PositionConfig("learned", size=raw.get_int("max_target_positions", 448)),
        sound=read_sound(raw),
        head=True,
        special=replace(special, banned=(*special.banned, *read_banned(raw, "suppress_tokens"))),
    )


def read_sound(raw: ConfigReader) -> SoundConfig:
    """What the encoder reads, and the tokens that a text begins with."""
    return SoundConfig(
        Spectrogram(mels=raw.get_int("num_mel_bins", 80)),
        raw.get_int("max_source_positions", 1500),
        read_convolutions(raw),
        languages={name.strip("<|>"): id for name, id in read_token_names(raw, "lang_to_id").items()},
        tasks=read_tasks(raw),
        no_timestamps=raw.get_token_id(NO_TIMESTAMPS),
        latest_begin=raw.get_int(LATEST_BEGIN, least=0) if raw.has(LATEST_BEGIN) else None,
        banned_first=read_banned(raw, "begin_suppress_tokens"),
        forced=read_forced(raw),
    )


def read_banned(raw: ConfigReader, key: str) -> tuple[int, ...]:
    """The ids of tokens that are not generated, which are in the vocabulary."""
    ids, words = raw.get_token_ids(key), raw.get_int("vocab_size")
    if beyond := [id for id in ids if id >= words]:
        raise raw.error(f"{key} has {beyond[0]} (expected ids below {words})", key)
    return ids


def read_forced(raw: ConfigReader) -> tuple[int, ...]:
    """The tokens after the start of a text, of [[1, id], [2, id], …], without nulls."""
    pairs, words = raw.values.get(FORCED) or [], raw.get_int("vocab_size")
    known = isinstance(pairs, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in pairs)
    ids = [id for _, id in pairs] if known else []
    if not known or not all(id is None or (type(id) is int and 0 <= id < words) for id in ids):
        raise raw.error(f"{FORCED} is {str(pairs)[:40]!r} (expected [[1, id], …], of ids below {words})", FORCED)
    return tuple(id for id in ids if id is not None)


def read_convolutions(raw: ConfigReader) -> dict[str, ConvolutionLayer]:
    """The two convolutions of the spectrogram; the second halves the frames."""
    width, mels = raw.get_int("d_model"), raw.get_int("num_mel_bins", 80)
    return {
        "conv1": ConvolutionLayer(mels, width, KERNEL, Convolution((1,), (1,))),
        "conv2": ConvolutionLayer(width, width, KERNEL, Convolution((2,), (1,))),
    }


def read_token_names(raw: ConfigReader, key: str) -> dict[str, int]:
    """The ids of an object of names, which are in the vocabulary."""
    ids, words = raw.get_dict(key), raw.get_int("vocab_size")
    for name, id in ids.items():
        if type(id) is not int or not 0 <= id < words:
            raise raw.error(f"{key}: {name[:40]!r} is {id!r:.40} (expected an id below {words})", key)
    return ids


def read_tasks(raw: ConfigReader) -> dict[str, int]:
    """The ids of the tasks, transcribe the usual one; none in one language."""
    tasks = read_token_names(raw, "task_to_id")
    if tasks and USUAL_TASK not in tasks:
        raise raw.error(f"task_to_id has no {USUAL_TASK}, the task of a text without --task", "task_to_id")
    return tasks


def map_attention(prefix: str) -> Specs:
    """Map attention, whose keys have no bias."""
    return map_linear(prefix, wq="q_proj", wv="v_proj", wo="out_proj") | map_linear(prefix, biased=False, wk="k_proj")


def map_layers(raw: ConfigReader) -> Layers:
    tokens = "decoder.embed_tokens.weight"
    layers: dict[str, Specs] = {
        "encoder.conv1": map_convolution("encoder.conv1", raw.get_int("num_mel_bins", 80)),
        "encoder.conv2": map_convolution("encoder.conv2", raw.get_int("d_model")),
        "encoder.positions": embedding_table("encoder.embed_positions.weight"),
        "encoder.norm": norm("encoder.layer_norm"),
        "decoder.embed": embedding_table(tokens),
        "decoder.positions": embedding_table("decoder.embed_positions.weight"),
        "decoder.norm": norm("decoder.layer_norm"),
        "head": tied_head("proj_out.weight", to=tokens * raw.get_bool("tie_word_embeddings", True)),
    }
    for stack, parts in (
        ("encoder", {"self": "self_attn"}),
        ("decoder", {"self": "self_attn", "cross": "encoder_attn"}),
    ):
        place = f"{stack}.layers.{{n}}"
        for number, (part, published) in enumerate(parts.items(), start=1):
            layers[f"{stack}.{{n}}.{part}"] = map_attention(f"{place}.{published}")
            layers[f"{stack}.{{n}}.norm{number}"] = norm(f"{place}.{published}_layer_norm")
        layers[f"{stack}.{{n}}.ffn"] = map_linear(place, w1="fc1", w2="fc2")
        layers[f"{stack}.{{n}}.norm{len(parts) + 1}"] = norm(f"{place}.final_layer_norm")
    return layers


def map_convolution(name: str, channels: int) -> Specs:
    """Map a convolution to the matrix of its windows."""
    weight = TensorSpec((f"{name}.weight",), transposed=True, patch_shape=(channels, KERNEL))
    return {"w": weight, "b": TensorSpec((f"{name}.bias",))}
