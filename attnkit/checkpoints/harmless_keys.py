"""The keys of config.json that change no number of a model, and the refusal of all others that are not read.

A key passes with the values at which it changes nothing, with any value if it never does. Null, and an empty list,
object or string pass under every key.
"""

import json
from typing import Any

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.errors import suggest

ANY_VALUE = {  # what keys are about -> keys that pass with any value
    "what wrote the file, and for whom": (
        "_name_or_path architectures auto_map author license name_or_path tokenizer_class transformers_version "
        "unsloth_fixed unsloth_version version transformers.js_config is_llama_config _commit_hash finetuning_task "
        "language model_name"
    ),
    "dtypes and ways to compute the same": (
        "torch_dtype dtype use_bfloat16 torchscript use_cache cache_implementation chunk_size_feed_forward "
        "output_past gradient_checkpointing pretraining_tp slow_but_exact reorder_and_upcast_attn "
        "attention_softmax_in_fp32 masked_softmax_fusion bias_dropout_fusion skip_bias_add offset_alibi "
        "attn_implementation _attn_implementation _attn_implementation_autoset _flash_attn_2_enabled "
        "deterministic_flash_attn reference_compile xla_device finetuned use_parallel_embedding"
    ),
    "what transformers gives back": (
        "return_dict output_attentions output_hidden_states output_router_logits output_scores return_dict_in_generate"
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
        "directionality"
    ),
    "layers that predict further tokens, and how experts are spread": "num_nextn_predict_layers num_mtp_layers ep_size",
    "generation, which has options of its own, and special tokens that no stage adds by their id": (
        "do_sample early_stopping length_penalty max_length min_length max_new_tokens no_repeat_ngram_size num_beams "
        "num_return_sequences "
        "repetition_penalty temperature top_k top_p prefix task_specific_params remove_invalid_values bos_token_id "
        "cls_token_id decoder_start_token_id eos_token_id eos_token_ids forced_bos_token_id forced_eos_token_id "
        "mask_token_id pad_token_id sep_token_id unk_token_id"
    ),
    "what other keys or the tensors state again": (
        "_sliding_window_pattern is_encoder_decoder extra_pos_embeddings ff_factor model_max_length "
        "max_sequence_length seq_length sinusoidal_pos_embds tie_weights_"
    ),
    "the architectures of Marian beside its Transformer": (
        "bert-train-type-embeddings bert-type-vocab-size dec-cell dec-cell-base-depth dec-cell-high-depth dim-rnn "
        "enc-cell enc-cell-depth enc-type layer-normalization transformer-aan-activation transformer-aan-depth "
        "transformer-aan-nogate transformer-dim-aan transformer-guided-alignment-layer ulr-dim-emb "
        "ulr-trainable-transformation"
    ),
}
HARMLESS: dict[str, tuple[Any, ...] | None] = {  # key -> the values that pass; None: any
    **dict.fromkeys(" ".join(ANY_VALUE.values()).split()),
    "add_bias_logits": (False,),
    "add_cross_attention": (False,),
    "add_final_layer_norm": (False,),
    "apply_residual_connection_post_layernorm": (False,),
    "attention_bias": (False,),
    "diversity_penalty": (0,),
    "down_scale_factor": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "force_bos_token_to_be_generated": (False,),
    "gap_size": (0,),
    "is_decoder": (False,),
    "lm_head_bias": (False,),
    "mlp_bias": (False,),
    "n_special": (0,),
    "net_structure_type": (0,),
    "normalize_before": (False,),
    "normalize_embedding": (False,),
    "num_beam_groups": (1,),
    "num_memory_blocks": (0,),
    "partial_rotary_factor": (1,),
    "position_embedding_type": ("absolute",),
    "right-left": (False,),
    "rope_interleaved": (False,),
    "rotary": (True,),
    "rotary_pct": (1,),
    "scale_attn_weights": (True,),
    "skip": (False,),
    "skip_bias_add_qkv": (False,),
    "static_position_embeddings": (True,),
    "tie_encoder_decoder": (False,),
    "typical_p": (1,),
    "ulr": (False,),
    "use_embedding_sharing": (True,),
    "use_gated_activation": (True,),
    "use_mrope": (False,),
    "use_parallel_block": (True,),
}


def refuse_unread(raw: ConfigReader, by: str) -> None:
    """Raise DataError that names a key that was not read and may change a number.

    by  what does not support the key

    >>> raw = ConfigReader({"hidden_size": 8, "use_cache": True, "logit_scale": 0.5}, "config.json")
    >>> raw.get_int("hidden_size")
    8
    >>> refuse_unread(raw, "family llama")
    Traceback (most recent call last):
    attnkit.errors.DataError: config.json: logit_scale 0.5 is not supported by family llama; delete the key if it \
changes no number
    """
    for path, value in raw.values.unread():
        if not is_harmless(path, value):
            absent = [read for read in raw.values.reads if read not in raw.values.plain]
            hint = suggest(path, absent, 0.8) or "; delete the key if it changes no number"
            raise raw.error(f"{path[:60]} {json.dumps(value)[:40]} is not supported by {by}{hint}")


def is_harmless(path: str, value: object) -> bool:
    """Whether a key that is not read changes no number.

    >>> is_harmless("use_cache", True), is_harmless("is_decoder", False), is_harmless("is_decoder", True)
    (True, True, False)
    """
    key = path.rpartition(".")[2]
    values = HARMLESS.get(path, HARMLESS.get(key, ()))
    is_neutral = any(value == one and isinstance(value, bool) is isinstance(one, bool) for one in values or ())
    return value in (None, [], {}, "") or values is None or is_neutral
