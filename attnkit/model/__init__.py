"""The Transformer as pure functions on arrays, in the order of a forward pass.

B  batch                     N  vocabulary
T  queries                   D  model width
S  keys                      K  width of a query or key head
H  query heads               V  width of a value head
G  key and value heads       R  rotated width
P  past keys                 F  hidden width of the feed-forward network

Masks are boolean, True = may attend. Results have the dtype of the input where it is a float; float16 and
bfloat16 compute in float32, whole numbers in float64. Inputs are never written to.
"""

import importlib
from typing import TYPE_CHECKING, Any

# ruff: noqa: I001, RUF022 (in the order of a forward pass, not of the alphabet)
from attnkit.model.dtypes import Array, output_dtype, working
from attnkit.model.embedding import check_ids, embed, one_hot, random_table, scale_embedding
from attnkit.model.positions import (
    LAYOUTS,
    add_positions,
    alibi_bias,
    alibi_slopes,
    learned_positions,
    sinusoidal_positions,
    t5_bias,
    t5_buckets,
)
from attnkit.model.rotary import ROPE_TYPES, rope_frequencies, rotary_angles, rotate
from attnkit.model.patch_embedding import interpolate_positions, normalize_pixels, extract_patches
from attnkit.model.linear import add, linear, random_weight
from attnkit.model.masks import (
    to_additive,
    to_boolean,
    causal_mask,
    causal_offset,
    chunk_mask,
    mask_lengths,
    padding_mask,
    prefix_mask,
    segment_mask,
    window_mask,
)
from attnkit.model.norms import Normalized, batch_norm, layer_norm, rms_norm
from attnkit.model.scores import SCORES, softmax
from attnkit.model.attention import (
    attention,
    merge_heads,
    multi_head_attention,
    split_heads,
)
from attnkit.model.feedforward import ACTIVATIONS, feed_forward
from attnkit.model.options import AttentionOptions, MultiHeadOptions
from attnkit.model.hooks import Hook, no_hook, parse_weight_summary
from attnkit.model.sampling import (
    candidates,
    greedy,
    log_probabilities,
    logits,
    min_p,
    probabilities,
    repetition_penalty,
    sample,
    apply_temperature,
    top_k,
    top_p,
)

if TYPE_CHECKING:
    from attnkit.model.config import (
        Config,
        PatchConfig,
        PositionConfig,
        SpecialTokens,
        StackConfig,
        Step,
        layer_steps,
        parameter_shape,
        parse_layer_name,
        layer_plan,
    )
    from attnkit.model.kernels.tiled_attention import tiled_attention, merge
    from attnkit.model.kernels.weight_stats import weight_rows, weight_stats, weight_topk
    from attnkit.model.kv_cache import KVCache
    from attnkit.model.transformer import (
        Context,
        Model,
        attention_options,
        decoder_layer,
        embed_tokens,
        encoder_layer,
        first_token,
        head_logits,
        mean_pool,
        normalize,
        pool_first,
        apply_positions,
        run,
        token_positions,
        l2_normalize,
    )
    from attnkit.model.kernels.incremental_decoder import CachedDecoder, cacheable
    from attnkit.model.generation import (
        LENGTH_PENALTIES,
        BeamsInfo,
        GeneratedText,
        NextTokenModel,
        SamplingConfig,
        StepInfo,
        beam_search,
        generate,
        score_tokens,
    )

__all__ = [
    "Array",
    "output_dtype",
    "working",
    "check_ids",
    "embed",
    "one_hot",
    "random_table",
    "scale_embedding",
    "LAYOUTS",
    "add_positions",
    "alibi_bias",
    "alibi_slopes",
    "learned_positions",
    "sinusoidal_positions",
    "t5_bias",
    "t5_buckets",
    "ROPE_TYPES",
    "rope_frequencies",
    "rotary_angles",
    "rotate",
    "interpolate_positions",
    "normalize_pixels",
    "extract_patches",
    "add",
    "linear",
    "random_weight",
    "to_additive",
    "to_boolean",
    "causal_mask",
    "causal_offset",
    "chunk_mask",
    "mask_lengths",
    "padding_mask",
    "prefix_mask",
    "segment_mask",
    "window_mask",
    "Normalized",
    "batch_norm",
    "layer_norm",
    "rms_norm",
    "SCORES",
    "AttentionOptions",
    "MultiHeadOptions",
    "attention",
    "merge_heads",
    "multi_head_attention",
    "softmax",
    "split_heads",
    "tiled_attention",
    "merge",
    "weight_rows",
    "weight_stats",
    "weight_topk",
    "ACTIVATIONS",
    "feed_forward",
    "Config",
    "PatchConfig",
    "PositionConfig",
    "SpecialTokens",
    "StackConfig",
    "Step",
    "layer_steps",
    "parameter_shape",
    "parse_layer_name",
    "layer_plan",
    "Hook",
    "no_hook",
    "parse_weight_summary",
    "KVCache",
    "CachedDecoder",
    "Context",
    "Model",
    "attention_options",
    "cacheable",
    "decoder_layer",
    "embed_tokens",
    "encoder_layer",
    "first_token",
    "head_logits",
    "mean_pool",
    "normalize",
    "pool_first",
    "apply_positions",
    "run",
    "token_positions",
    "l2_normalize",
    "candidates",
    "greedy",
    "log_probabilities",
    "logits",
    "min_p",
    "probabilities",
    "repetition_penalty",
    "sample",
    "apply_temperature",
    "top_k",
    "top_p",
    "LENGTH_PENALTIES",
    "BeamsInfo",
    "GeneratedText",
    "NextTokenModel",
    "SamplingConfig",
    "StepInfo",
    "beam_search",
    "generate",
    "score_tokens",
]

# imported when they are first asked for: what a single stage of a pipe does not need would cost it milliseconds
LATER = {
    "config": (
        "Config",
        "PatchConfig",
        "PositionConfig",
        "SpecialTokens",
        "StackConfig",
        "Step",
        "layer_steps",
        "parameter_shape",
        "parse_layer_name",
        "layer_plan",
    ),
    "kv_cache": ("KVCache",),
    "transformer": (
        "Context",
        "Model",
        "attention_options",
        "decoder_layer",
        "embed_tokens",
        "encoder_layer",
        "first_token",
        "head_logits",
        "mean_pool",
        "normalize",
        "pool_first",
        "apply_positions",
        "run",
        "token_positions",
        "l2_normalize",
    ),
    "kernels.incremental_decoder": ("CachedDecoder", "cacheable"),
    "generation": (
        "LENGTH_PENALTIES",
        "BeamsInfo",
        "GeneratedText",
        "NextTokenModel",
        "SamplingConfig",
        "StepInfo",
        "beam_search",
        "generate",
        "score_tokens",
    ),
    "kernels.tiled_attention": ("tiled_attention", "merge"),
    "kernels.weight_stats": ("weight_rows", "weight_stats", "weight_topk"),
}


def __getattr__(name: str) -> Any:
    """The names of LATER: whole models, text token by token, and attention over blocks."""
    for module, names in LATER.items():
        if name in names:
            return getattr(importlib.import_module(f"attnkit.model.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
