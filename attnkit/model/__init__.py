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
from attnkit.model.precision import Array, output_dtype, working
from attnkit.model.embedding import check_ids, embed, one_hot, random_table, scale_embedding
from attnkit.model.positions import (
    LAYOUTS,
    add_positions,
    alibi,
    alibi_slopes,
    learned,
    sinusoidal,
    t5_bias,
    t5_buckets,
)
from attnkit.model.rotary import ROPE_TYPES, rope_frequencies, rotary_angles, rotate
from attnkit.model.patches import interpolated, normalised, patches
from attnkit.model.linear import add, linear, random_weight
from attnkit.model.masks import (
    additive,
    boolean,
    causal,
    causal_offset,
    chunked,
    lengths_of,
    padding,
    prefix,
    segments,
    window,
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
from attnkit.model.visits import Visit, nobody, view
from attnkit.model.decoding import (
    candidates,
    greedy,
    log_probabilities,
    logits,
    min_p,
    probabilities,
    repetition_penalty,
    sample,
    tempered,
    top_k,
    top_p,
)

if TYPE_CHECKING:
    from attnkit.model.config import (
        Config,
        Patches,
        Positions,
        Special,
        Stack,
        Step,
        layer_steps,
        parameter_shape,
        place_of,
        program,
    )
    from attnkit.model.blockwise import blockwise_attention, merge
    from attnkit.model.inspection import weight_rows, weight_stats, weight_topk
    from attnkit.model.cache import Cache
    from attnkit.model.stacks import (
        Context,
        Model,
        attention_options,
        decoder_layer,
        embedded,
        encoder_layer,
        first_token,
        head_logits,
        mean_over,
        normalized,
        pooled,
        positioned,
        run,
        token_positions,
        unit,
    )
    from attnkit.model.stepping import CachedDecoder, cacheable
    from attnkit.model.generation import (
        LENGTH_PENALTIES,
        BeamsInfo,
        Generated,
        Predictor,
        Settings,
        StepInfo,
        beam_search,
        generate,
        score,
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
    "alibi",
    "alibi_slopes",
    "learned",
    "sinusoidal",
    "t5_bias",
    "t5_buckets",
    "ROPE_TYPES",
    "rope_frequencies",
    "rotary_angles",
    "rotate",
    "interpolated",
    "normalised",
    "patches",
    "add",
    "linear",
    "random_weight",
    "additive",
    "boolean",
    "causal",
    "causal_offset",
    "chunked",
    "lengths_of",
    "padding",
    "prefix",
    "segments",
    "window",
    "Normalized",
    "batch_norm",
    "layer_norm",
    "rms_norm",
    "SCORES",
    "attention",
    "merge_heads",
    "multi_head_attention",
    "softmax",
    "split_heads",
    "blockwise_attention",
    "merge",
    "weight_rows",
    "weight_stats",
    "weight_topk",
    "ACTIVATIONS",
    "feed_forward",
    "Config",
    "Patches",
    "Positions",
    "Special",
    "Stack",
    "Step",
    "layer_steps",
    "parameter_shape",
    "place_of",
    "program",
    "Visit",
    "nobody",
    "view",
    "Cache",
    "CachedDecoder",
    "Context",
    "Model",
    "attention_options",
    "cacheable",
    "decoder_layer",
    "embedded",
    "encoder_layer",
    "first_token",
    "head_logits",
    "mean_over",
    "normalized",
    "pooled",
    "positioned",
    "run",
    "token_positions",
    "unit",
    "candidates",
    "greedy",
    "log_probabilities",
    "logits",
    "min_p",
    "probabilities",
    "repetition_penalty",
    "sample",
    "tempered",
    "top_k",
    "top_p",
    "LENGTH_PENALTIES",
    "BeamsInfo",
    "Generated",
    "Predictor",
    "Settings",
    "StepInfo",
    "beam_search",
    "generate",
    "score",
]

# imported when they are first asked for: what a single stage of a pipe does not need would cost it milliseconds
LATER = {
    "config": (
        "Config",
        "Patches",
        "Positions",
        "Special",
        "Stack",
        "Step",
        "layer_steps",
        "parameter_shape",
        "place_of",
        "program",
    ),
    "cache": ("Cache",),
    "stacks": (
        "Context",
        "Model",
        "attention_options",
        "decoder_layer",
        "embedded",
        "encoder_layer",
        "first_token",
        "head_logits",
        "mean_over",
        "normalized",
        "pooled",
        "positioned",
        "run",
        "token_positions",
        "unit",
    ),
    "stepping": ("CachedDecoder", "cacheable"),
    "generation": (
        "LENGTH_PENALTIES",
        "BeamsInfo",
        "Generated",
        "Predictor",
        "Settings",
        "StepInfo",
        "beam_search",
        "generate",
        "score",
    ),
    "blockwise": ("blockwise_attention", "merge"),
    "inspection": ("weight_rows", "weight_stats", "weight_topk"),
}


def __getattr__(name: str) -> Any:
    """The names of LATER: whole models, text token by token, and attention over blocks."""
    for module, names in LATER.items():
        if name in names:
            return getattr(importlib.import_module(f"attnkit.model.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
