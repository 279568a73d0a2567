"""Keys of config.json that a family does not read: refused, or passed.

A key that asks for a computation is refused with its name, but for the values at which it asks for nothing. These are
the keys that the code of transformers reads for a family and attnkit does not (tests/references/make_keys.py), and some
that other programs read. Any other key passes, as in transformers: with a note, unless it is known to change nothing.
"""

import json
import warnings
from typing import Any, NamedTuple

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.errors import AttnkitNote, closest, suggest

HARMLESS = {  # what keys are about -> keys that pass without a note
    "what wrote the file, and for whom": (
        "_name_or_path architectures auto_map author license name_or_path tokenizer_class transformers_version "
        "unsloth_fixed unsloth_version version transformers.js_config is_llama_config _commit_hash finetuning_task "
        "language model_name name save_step custom_pipelines"
    ),
    "dtypes and ways to compute the same": (
        "torch_dtype dtype use_bfloat16 torchscript use_cache cache_implementation chunk_size_feed_forward "
        "output_past gradient_checkpointing pretraining_tp slow_but_exact reorder_and_upcast_attn "
        "attention_softmax_in_fp32 masked_softmax_fusion bias_dropout_fusion skip_bias_add offset_alibi "
        "attn_implementation _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled "
        "deterministic_flash_attn reference_compile xla_device finetuned use_parallel_embedding experts_implementation "
        "_experts_implementation fusion_config number_of_conv_states"
    ),
    "what transformers gives back": (
        "return_dict output_attentions output_hidden_states output_router_logits output_scores return_dict_in_generate "
        "tie_last_hidden_states"
    ),
    "training: dropout, initial weights, losses": (
        "activation_dropout attention_dropout attention_dropout_prob attention_probs_dropout_prob attn_pdrop "
        "classif_dropout classifier_dropout classifier_dropout_prob decoder_layerdrop dropout dropout_rate embd_pdrop "
        "embed_dropout embedding_dropout encoder_layerdrop ffn_dropout hidden_dropout hidden_dropout_prob layerdrop "
        "mlp_dropout pooler_dropout qa_dropout resid_dropout resid_pdrop seq_classif_dropout stable_embedding_dropout "
        "summary_first_dropout summary_last_dropout init_std initializer_cutoff_factor initializer_factor "
        "initializer_range aux_loss_alpha seq_aux router_aux_loss_coef router_jitter_noise tf_legacy_loss "
        "sparse_prediction sparse_pred_ignore_index repad_logits_with_grad predict_special_tokens encoder_stride "
        "transformer-depth-scaling"
    ),
    "heads that attnkit does not run, or that are not in the file": (
        "id2label label2id problem_type num_labels _num_labels sentence_transformers "
        "sbert_ce_default_activation_function summary_activation summary_proj_to_labels summary_type summary_use_proj "
        "pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type "
        "directionality cls_dropout output_hidden_size return_class_token "
        "token_classification_bias"
    ),
    "layers that predict further tokens, and how experts are spread": (
        "num_nextn_predict_layers num_mtp_layers ep_size chain_hidden_post_norm mtp_hidden_states_first "
        "mtp_layer_types mtp_mlp_layer_types mtp_per_layer_config"
    ),
    "generation, which has options of its own, and special tokens that no stage adds by their id": (
        "do_sample early_stopping length_penalty max_length min_length max_new_tokens no_repeat_ngram_size num_beams "
        "num_return_sequences repetition_penalty temperature top_k top_p typical_p diversity_penalty num_beam_groups "
        "encoder_no_repeat_ngram_size exponential_decay_length_penalty prefix task_specific_params "
        "remove_invalid_values bos_token_id cls_token_id decoder_start_token_id eos_token_id eos_token_ids "
        "forced_bos_token_id forced_eos_token_id "
        "mask_token_id pad_token_id sep_token_id unk_token_id"
    ),
    "what other keys or the tensors state again": (
        "_sliding_window_pattern is_encoder_decoder extra_pos_embeddings ff_factor model_max_length "
        "max_sequence_length seq_length sinusoidal_pos_embds tie_weights_ rotary down_scale_factor conv_act "
        "conv_groups static_position_embeddings use_embedding_sharing use_gated_activation use_parallel_block"
    ),
    "the architectures of Marian beside its Transformer": (
        "bert-train-type-embeddings bert-type-vocab-size dec-cell dec-cell-base-depth dec-cell-high-depth dim-rnn "
        "enc-cell enc-cell-depth enc-type layer-normalization transformer-aan-activation transformer-aan-depth "
        "transformer-aan-nogate transformer-dim-aan transformer-guided-alignment-layer ulr-dim-emb "
        "ulr-trainable-transformation"
    ),
}
KNOWN = set(" ".join(HARMLESS.values()).split())
MOST = 5  # keys that a note names
NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})


class Computation(NamedTuple):
    """What a key of config.json asks for.

    name      of the computation
    neutral   the values that do not ask for it, beside null
    families  whose code reads the key; none: any
    """

    name: str
    neutral: tuple[Any, ...] = NOTHING
    families: tuple[str, ...] = ()


QUANTIZED, PARTLY = Computation("quantized weights"), Computation("a rotation of a part of each head", (1,))
NEVER = Computation("tokens that are never generated")
COMPUTATIONS = {
    "adapter_attn_dim": Computation("adapters of each language"),
    "add_adapter": Computation("an adapter after the encoder"),
    "add_cross_attention": Computation("cross-attention", (False,)),
    "attn_logit_softcapping": Computation("a soft cap of the scores", families=("gemma3", "gemma3_text")),
    "begin_suppress_tokens": NEVER,
    "compression_config": QUANTIZED,
    "conv_kernel_size": Computation("a convolution beside the first layer"),
    "dual_chunk_attention_config": Computation("dual chunk attention"),
    "forced_decoder_ids": Computation("tokens that a text begins with"),
    "is_decoder": Computation("a decoder without an encoder", (False,), ("t5",)),
    "kv_sharing_modes": Computation("keys and values that layers share"),
    "partial_rotary_factor": PARTLY,
    "per_layer_config": Computation("layers of other sizes"),
    "position_embedding_type": Computation("another kind of positions", ("absolute",)),
    "quantization": QUANTIZED,
    "quantization_config": QUANTIZED,
    "rope_scaling": Computation("a rotation beside that of rope_parameters"),
    "rotary_pct": PARTLY,
    "suppress_tokens": NEVER,
}
OTHER_NAMES = {  # of sizes, as transformers calls them in every family -> names in the files of some
    "head_dim": ("d_kv",),
    "hidden_size": ("d_model", "dim", "n_embd"),
    "max_position_embeddings": ("n_positions",),
    "n_embed": ("hidden_size",),
    "num_attention_heads": ("encoder_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "num_hidden_layers": ("encoder_layers", "n_layer", "n_layers", "num_layers"),
    "num_key_value_heads": ("encoder_attention_heads",),
    "num_local_experts": ("n_routed_experts",),
}
CACHED = {  # keys that the cache of transformers reads in every decoder -> the kind of layers that it reads them for
    "sliding_window": "sliding_attention",
    "attention_chunk_size": "chunked_attention",
}
OWN_FORMATS = ("lstm", "marian-native", "seq2seq", "transformer")  # which transformers does not read


def refuse_unread(raw: ConfigReader, family: str) -> None:
    """Raise DataError for a key that was not read and asks for a computation.

    >>> raw = ConfigReader({"hidden_size": 8, "use_cache": True, "add_cross_attention": True}, "config.json")
    >>> raw.get_int("hidden_size")
    8
    >>> refuse_unread(raw, "gpt2")
    Traceback (most recent call last):
    attnkit.errors.DataError: config.json: add_cross_attention true is not supported by family gpt2: cross-attention
    """
    for path, value in raw.values.unread():
        asked = find_computation(raw, path, family)
        if asked and not _is_among(value, (*asked.neutral, None)):
            raise raw.error(f"{path[:60]} {_draw(value)} is not supported by family {family}: {asked.name}")
    if family in OWN_FORMATS:
        for path in _list_unknown(raw, family):
            hint = suggest(path, _list_absent(raw), 0.8) or "; delete the key if it changes no number"
            raise raw.error(f"{path[:60]} is not supported by family {family}{hint}")


def note_unread(raw: ConfigReader, family: str, by: str = "", has_cache: bool = False) -> None:
    """Note the keys that were not read, unless they are known to change nothing.

    by         what does not read them, by default the family
    has_cache  whether transformers keeps a cache for the model: it forgets keys beyond a window that no layer has
    """
    unknown, found = [], _list_unknown(raw, family)
    kinds = raw.values.plain.get("layer_types") or CACHED.values()
    for path in [path for path in found if has_cache and CACHED.get(path) in kinds]:
        found.remove(path)
        named = f"no layer of family {family} reads {path}; the cache of transformers does, and forgets older keys"
        warnings.warn(f"{raw.name}: {named}", AttnkitNote, stacklevel=2)
    for path in found:
        near = closest(path, _list_absent(raw), 0.8)
        unknown.append(path[:60] + (f" (did you mean {near}?)" if near else ""))
    if unknown:
        more = f" and {len(unknown) - MOST} more" if len(unknown) > MOST else ""
        named = f"{by or f'family {family}'} ignores {', '.join(unknown[:MOST])}{more}, as transformers does"
        warnings.warn(f"{raw.name}: {named}", AttnkitNote, stacklevel=2)


def _list_unknown(raw: ConfigReader, family: str) -> list[str]:
    """The unread keys whose effect is unknown and whose value means something."""
    unread = [path for path, value in raw.values.unread() if not _is_among(value, NOTHING)]
    return [path for path in unread if not ({path, _last(path)} & KNOWN or find_computation(raw, path, family))]


def _list_absent(raw: ConfigReader) -> list[str]:
    """The keys that were read and are not in the file."""
    return [read for read in raw.values.reads if read not in raw.values.plain]


def find_computation(raw: ConfigReader, path: str, family: str) -> Computation | None:
    """The computation that a key may ask for in a family, None if there is none.

    >>> raw = ConfigReader({"n_embd": 8}, "config.json")
    >>> find_computation(raw, "is_decoder", "t5").name, find_computation(raw, "is_decoder", "gpt2")
    ('a decoder without an encoder', None)
    >>> find_computation(raw, "hidden_size", "gpt2")
    Computation(name='n_embd is 8', neutral=(8,), families=())
    """
    key = _last(path)
    asked = COMPUTATIONS.get(key)
    if asked and (not asked.families or family in asked.families):
        return asked
    for name in OTHER_NAMES.get(key, ()):
        if (stated := raw.values.plain.get(name)) is not None:
            return Computation(f"{name} is {_draw(stated)}", (stated,))
    return None


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def _is_among(value: object, values: tuple[Any, ...]) -> bool:
    return any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in values)


def _draw(value: object) -> str:
    """A value as JSON, cut off; of quantized weights the method."""
    method = value.get("quant_method") if isinstance(value, dict) else None
    return json.dumps(method or value)[:40]
