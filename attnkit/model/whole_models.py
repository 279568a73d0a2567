"""The lazy names of attnkit.model: whole models, generation, tiled attention."""

# ruff: noqa: I001 (in the order of a forward pass, not of the alphabet)
from attnkit.model.config import (
    Config,
    ConnectorConfig,
    PatchConfig,
    PositionConfig,
    SpecialTokens,
    StackConfig,
    Step,
    layer_steps,
    parse_layer_name,
)
from attnkit.model.kernels.tiled_attention import tiled_attention, merge_partial_attention
from attnkit.model.kernels.weight_stats import weight_rows, weight_stats, weight_topk
from attnkit.model.passes.output_head import head_logits, pool_by_probe, pool_first
from attnkit.model.kv_cache import KVCache
from attnkit.model.formulas.recurrent_cells import State
from attnkit.model.recurrent_config import RecurrentConfig
from attnkit.model.formulas.pooling import POOLINGS, dense, first_token, l2_normalize, mean_pool
from attnkit.model.context import Context, Model, Pictures
from attnkit.model.formulas.experts import ExpertConfig, Experts, mix_experts
from attnkit.model.layers.attention import read_attention_options
from attnkit.model.passes.pictures import connect_states, read_pictures
from attnkit.model.passes.transformer import can_pack, decoder_layer, encoder_layer, run, run_packed
from attnkit.model.layers.embeddings import embed_tokens, apply_positions
from attnkit.model.layers.networks import layer_experts, normalize
from attnkit.model.formulas.positions import token_positions
from attnkit.model.formulas.loss import (
    LossOptions,
    cross_entropy,
    cross_entropy_backward,
    loss_and_gradient,
    negative_log_likelihood,
    target_probabilities,
)
from attnkit.model.passes.incremental_decoder import CachedDecoder, cacheable
from attnkit.model.passes.beams import LENGTH_PENALTIES, BeamsInfo, beam_search
from attnkit.model.passes.generation import (
    GeneratedText,
    NextTokenModel,
    SamplingConfig,
    StepInfo,
    generate,
    score_tokens,
)
