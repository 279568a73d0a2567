"""The names that other libraries and Unix give our options, tools and values.

Each table maps what to type here to the names for it elsewhere, whose hyphens, underscores and capitals do not count.
What to type for an option is the option, with a value where the name implies one; a tool before it, where the name
has this meaning for that tool alone; or a sentence. An error and `attnkit help` import these tables, nothing else does.
"""

import functools
from collections.abc import Mapping

OPTIONS: Mapping[str, str] = {
    # sizes
    "embed --only ids": "return_ids return_input_ids ids_only",
    "--dim": "d_model hidden_size n_embd n_embed embedding_dim embed_dim emb_dim embedding_size model_dim emb_size "
    "dimension dimensions features num_features",
    "--hidden": "d_ff dim_feedforward ffn_dim ff_dim intermediate_size hidden_dim hidden_size n_inner d_inner "
    "feedforward_dim hidden_units",
    "--heads": "n_head n_heads nhead nheads num_heads num_attention_heads n_attention_heads attention_heads",
    "--kv-heads": "num_key_value_heads n_kv_heads n_kv_head num_kv_heads num_query_groups enable_gqa gqa",
    "--kv-heads 1": "multi_query mqa",
    "--layers": "n_layer n_layers num_layers num_hidden_layers depth n_blocks num_blocks encoder_layers",
    "mask --size": "seq_len sequence_length seqlen length n_positions max_len block_size n_ctx shape tokens",
    "posenc --size": "seq_len sequence_length seqlen length n_positions max_len block_size n_ctx shape "
    "max_position_embeddings max_seq_len context_length",
    "cost --tokens": "seq_len sequence_length seqlen context_length n_ctx max_seq_len",
    "cost --generate": "max_new_tokens n_predict gen_len n_tokens num_tokens",
    "train --block": "block_size context_length context_size seq_len sequence_length n_ctx n_positions max_seq_len "
    "max_seq_length max_length max_position_embeddings bptt",
    # masks
    "mask --padding": "key_padding_mask padding_mask pad_mask src_key_padding_mask",
    "--lengths": "key_padding_mask src_key_padding_mask memory_key_padding_mask seq_lens seq_lengths "
    "sequence_lengths cu_seqlens valid_lens valid_len lens",
    "--mask": "attention_mask attn_mask src_mask tgt_mask memory_mask",
    "--causal": "is_causal causal_mask autoregressive unidirectional tril triu lower_triangular is_decoder "
    "look_ahead look_ahead_mask subsequent_mask decoder_only",
    "--window": "sliding_window window_size attention_window local_attention local_window",
    "--segments": "token_type_ids segment_ids document_ids doc_ids",
    "--pad-id": "pad_token_id padding_idx pad_idx pad_index pad_token",
    "--as additive": "additive float_mask",
    "--fill": "fill_value mask_value masked_fill",
    # attention
    "attend --query": "q queries query_states",
    "attend --key": "k keys key_states",
    "attend --value": "v values value_states",
    "attend --keep weights": "need_weights output_attentions return_attention return_attention_weights "
    "return_attention_scores return_weights output_weights attn_weights attention_weights attentions with_weights",
    "attend --keep scores": "attn_scores attention_scores output_scores",
    "--bias": "attn_bias attention_bias position_bias relative_position_bias",
    "--scale": "scaling softmax_scale scale_factor scale_attn_weights",
    "--softcap": "logit_softcap attn_logit_softcapping logit_cap soft_cap attn_softcap",
    "--memory": "encoder_hidden_states encoder_output encoder_outputs enc_out cross cross_attention context",
    "--past-key": "past_key_values past_kv layer_past k_cache key_cache",
    "--past-value": "v_cache value_cache",
    "--cache-in": "past_key_values past_kv past cache kv_cache",
    "--cache-out": "use_cache save_cache return_cache",
    "--trace FILE": "output_hidden_states output_attentions return_hidden_states all_hidden_states hooks activations "
    "save_activations run_with_cache capture",
    "--residual": "skip skip_connection residual_connection add_residual shortcut",
    # images
    "train --size": "image_size img_size input_size resolution",
    "train --patch": "patch_size",
    "train --family vit": "imagefolder image_folder data_dir train_dir vit image_classification",
    # convolution
    "conv --filters": "out_channels n_filters num_filters",
    "conv --size": "kernel_size kernel_shape kernel ksize",
    "conv --stride": "strides",
    "conv --padding": "pads auto_pad",
    "conv --padding same": "same_upper",
    "conv --padding same-lower": "same_lower",
    "conv --padding causal": "causal causal_conv1d left_padding",
    "conv --state-in": "conv_state initial_states cache",
    "conv --state-out": "return_final_states final_states_out",
    "conv --dilation": "dilations dilation_rate",
    "conv --groups": "group n_groups num_groups",
    "conv --channels": "nchw nhwc channels_first channels_last data_format",
    # positions
    "posenc --kind": "type method mode pe position_embedding_type positional_encoding pos_type encoding",
    "posenc --kind rotary": "rope rotary use_rope rotary_emb",
    "posenc --kind alibi": "alibi use_alibi",
    "posenc --kind learned": "learned wpe trainable learnable",
    "posenc --kind sinusoidal": "sinusoidal sin_cos sincos fixed absolute",
    "--base": "theta rope_theta rotary_base rope_base freq_base",
    "--rotary-dim": "rotary_ndims rotary_pct partial_rotary_factor rope_dim rotary_emb_dim",
    "--max-distance": "relative_attention_max_distance max_relative_distance",
    # norms
    "layernorm --kind": "type method mode norm_type norm",
    "layernorm --kind rms": "rms rmsnorm rms_norm",
    "layernorm --kind batch": "batch batchnorm batch_norm",
    "layernorm --gamma": "weight scale gain elementwise_affine",
    "layernorm --beta": "bias shift",
    "softmax --axis": "dim",
    "layernorm --axis": "dim normalized_shape begin_norm_axis",
    "--eps": "epsilon layer_norm_eps layer_norm_epsilon rms_norm_eps norm_eps variance_epsilon",
    # feed-forward and recurrent layers
    "--activation": "act act_fn hidden_act activation_function nonlinearity hidden_activation act_layer",
    "--activation gelu": "gelu",
    "--activation relu": "relu",
    "--activation silu": "silu swish",
    "--activation silu --gated": "swiglu",
    "--activation gelu --gated": "geglu",
    "--gated": "glu gate use_glu is_gated_act",
    "--cell lstm": "lstm",
    "--cell gru": "gru",
    "rnn --cell": "type mode rnn_type kind",
    "--bidirectional": "bidir birnn is_bidirectional",
    "rnn --state-in": "h0 hx initial_state init_hidden",
    "rnn --state-out": "hn final_state return_state",
    "recall --rule": "update update_rule mode kernel",
    "recall --feature": "feature_map phi kernel_function qk_activation qk_norm use_qk_l2norm_in_kernel",
    "recall --chunk": "chunk_size block_size chunk_len",
    "recall --decay": "g alpha gamma forget_gate gate",
    "recall --beta": "learning_rate write_strength step dt",
    "recall --key-heads": "num_key_heads num_k_heads n_groups ngroups",
    "recall --state-in": "initial_state recurrent_state ssm_state h0",
    "recall --state-out": "final_state output_final_state",
    # weights and models
    "--params": "state_dict parameters weights weight weights_file w",
    "train --from": "model init_from pretrained from_pretrained base_model checkpoint model_name_or_path finetune",
    "--model": "model_name model_path model_dir model_id model_name_or_path pretrained_model_name_or_path pretrained "
    "from_pretrained checkpoint ckpt ckpt_path repo repo_id out_dir hf",
    "--engine jax": "device cuda gpu use_gpu use_cuda tpu accelerator jit xla compile",
    "--mesh": "device_map tensor_parallel tensor_parallel_size data_parallel num_gpus n_gpu tp dp",
    "--compute bfloat16": "autocast amp mixed_precision bf16_autocast",
    # text
    "train --tokens": "tokenizer tokenizer_name tokenizer_file tokenizer_path vocab_type",
    "--tokenizer": "tokenizer_name tokenizer_file tokenizer_path tokenizer_name_or_path bpe",
    "--vocab": "vocab_file vocabulary vocab_path",
    "--ids": "input_ids token_ids decoder_input_ids inputs_ids",
    "--pair": "text_pair second_text sentence2",
    "encode --batch": "padding pad",
    "--batch": "batch_size batched bs minibatch per_device_train_batch_size train_batch_size micro_batch_size",
    "--lines": "per_line line_by_line by_line each_line",
    "--one-hot": "one_hot_encoding onehot",
    "--pool": "pooling pooling_mode pooling_strategy pool_type",
    "--pool mean": "mean_pooling mean_pool average_pooling avg_pool",
    "--pool cls": "cls_pooling cls_token",
    "--normalize": "l2_normalize normalize_embeddings norm",
    # generation
    "decode TEXT --model DIR": "prompt start text prefix inputs input_text",
    "encode < FILE": "file input_file filename path data",
    "decode < FILE": "file input_file filename path data prompt_file",
    "embed < FILE": "file input_file filename path data",
    "encode TEXT --model DIR": "text inputs input_text sentence sentences",
    "embed TEXT": "text inputs input_text sentence sentences words",
    "--temperature 1": "do_sample sample sampling stochastic",
    "--temperature": "temp tau",
    "--max-tokens": "max_new_tokens max_length max_len n_tokens num_tokens n_predict max_gen_len gen_len "
    "max_completion_tokens tokens_to_generate max_target_length max_output_tokens max_steps",
    "decode --chat": "apply_chat_template chat_mode conversation instruct chatml",
    "decode --system": "system_prompt system_message sys_prompt",
    "decode --messages": "history turns dialog dialogue",
    "decode --date": "date_string today strftime_now current_date",
    "decode --variable": "chat_template_kwargs template_kwargs enable_thinking reasoning_effort jinja_args",
    "decode --template": "chat_template chat_template_file jinja",
    "decode --top-k": "k topk",
    "encode --simulate": "half precision fp16 bf16 fp8 e4m3 float8 overflow saturate accumulate quantize low_precision",
    "show --hooks": "forward_hook register_forward_hook cb_eval eval_callback dump recorder script",
    "diff --hash": "checksum sha256 digest fingerprint bitwise bit_exact",
    "decode --top-p": "p nucleus nucleus_p",
    "decode --sampling-order": "samplers sampler_order sampler_priority temperature_last",
    "--beam": "num_beams n_beams beam_size beam_width beam_search",
    "--best": "num_return_sequences n_best nbest num_samples",
    "--repetition-penalty": "repeat_penalty frequency_penalty presence_penalty rep_pen",
    "--no-repeat-ngram": "no_repeat_ngram_size ngram_blocking block_ngram_repeat",
    "--min-tokens": "min_new_tokens min_length min_len",
    "--source-language": "src_lang source_lang from_language",
    "--target-language": "tgt_lang target_lang forced_bos_token_id to_language",
    "--stop": "stop_token stop_tokens stop_sequence stop_sequences stop_strings eos eos_token end_token",
    "--score": "log_likelihood echo",
    "decode --steps": "logprobs log_probs top_logprobs output_scores return_dict_in_generate",
    "decode --emit logits": "logits output_logits return_logits",
    "decode --emit probs": "probs probabilities",
    "--seed": "random_state random_seed manual_seed generator rng prng_key",
    # training
    "--lr": "learning_rate eta step_size alpha",
    "--steps": "max_iters max_steps iterations iters n_steps num_steps num_iterations n_iter num_training_steps "
    "total_steps max_train_steps",
    "--epochs": "num_train_epochs num_epochs n_epochs max_epochs epoch",
    "--weight-decay": "wd l2 decay",
    "--optimizer": "optim opt optimiser",
    "--schedule": "lr_scheduler lr_scheduler_type scheduler lr_schedule decay_lr",
    "--warmup": "warmup_steps warmup_iters num_warmup_steps warmup_ratio n_warmup",
    "--clip": "grad_clip gradient_clip max_grad_norm clip_grad clip_grad_norm gradient_clip_val",
    "--dropout": "dropout_p dropout_rate p_drop attn_dropout attention_dropout resid_pdrop embd_pdrop attn_pdrop "
    "hidden_dropout_prob drop",
    "--accumulate": "gradient_accumulation_steps grad_accum grad_accumulation accum accumulate_grad_batches",
    "--smoothing": "label_smoothing label_smoothing_factor",
    "--valid": "eval_file eval_data val_file val_data validation validation_file validation_data dev test_file",
    "--every": "log_interval eval_interval logging_steps eval_steps save_steps save_every log_every eval_every",
    "--patience": "early_stopping early_stopping_patience",
    "--family": "arch architecture model_type type kind",
    "--resume": "resume_from_checkpoint continue_training continue",
    "--minutes": "max_time time_limit",
    "--momentum": "beta1 betas",
    # losses
    "scan --score": "target answer completion label",
    "--target": "labels label targets gold tgt ground_truth",
    "--ignore": "ignore_index ignore_id",
    "loss --weights": "class_weights class_weight weight",
    "--references": "refs ref reference target targets",
    "--grad-only": "wrt inputs",
    # looking at tensors
    "near --top": "k n topk top_k n_neighbors num_results limit count",
    "--top": "top_n topn n_best limit",
    "--metric": "distance distance_metric similarity_fn similarity_function",
    "near --index": "db database corpus embeddings vectors keys",
    "--slice": "index indices rows row cols head select tail narrow",
    "--name": "key tensor var variable array dataset field",
    "--only": "keys names tensors fields select columns keep_only",
    "--numbers": "annot annotate fmt",
    "--heatmap": "heat_map imshow matshow map",
    "--curves": "lines line_plot curve",
    "--over": "overlay image background attention_map attn_map heatmap_overlay blend superimpose",
    "--stats": "describe statistics summary stat mean minmax",
    "--list": "ls info shapes shape tree headers",
    "--cmap": "colormap color_map colour_map palette",
    "--range": "vmin vmax clim",
    "--theme dark": "dark dark_mode",
    "-o FILE.svg": "plot figure savefig svg draw visualize",
    "-o FILE.png": "png image_file",
    "-o FILE": "out out_file output_file output_path save save_to save_path outfile export output_dir out_dir dest",
    "-f json": "json to_json jsonl",
    "-f csv": "csv to_csv",
    "-f npz": "npz to_npz",
    "-f table": "table pretty human",
    "--format": "fmt output_format out_format to",
    "--precision": "digits decimals round ndigits",
    "--quiet": "silent no_warnings suppress",
    "diff --atol": "tol tolerance",
    "--tolerance": "tol",
    "--dtype": "torch_dtype type data_type",
    "--dtype float16": "half fp16 float16",
    "--dtype bfloat16": "bf16 bfloat16",
    "--dtype float32": "fp32 float32 single",
    "--dtype float64": "fp64 float64 double",
    # what is no option
    "near --index FILE": "similarity cosine cosine_similarity cos_sim nearest knn neighbors",
    "COLUMNS=70 before the command is the width of tables": "width columns max_width line_width terminal_width",
    "NO_COLOR=1 before the command leaves out colours": "no_color color colour nocolor",
    "the input is an operand or a pipe: attnkit TOOL FILE": "input file data dataset filename path in input_file "
    "infile text_file train_file data_path dataset_name",
    "attnkit --version prints it": "version",
}

TOOLS: Mapping[str, str] = {
    "embed TEXT --dim 8": "embedding embeddings vectorize embed_tokens wte lookup word2vec",
    "embed TEXT --model DIR --only ids": "tokenize tokenise tokenizer tokens tok bpe encode_ids text2ids",
    "posenc": "pe positional_encoding position positions pos_encoding pos_embed positional add_positions",
    "posenc --kind rotary": "rope rotary rotary_embedding apply_rotary_pos_emb",
    "posenc --kind alibi": "alibi",
    "posenc --kind sinusoidal": "sinusoidal sincos sin_cos",
    "posenc --kind learned": "wpe learned",
    "mask --causal": "causal causal_mask tril triu look_ahead_mask subsequent_mask",
    "mask --padding": "padding pad padding_mask",
    "attend": "attention attn self_attention sdpa scaled_dot_product_attention dot_product_attention flash_attention",
    "attend --heads H": "mha multihead multihead_attention multi_head multi_head_attention self_attn",
    "attend --heads H --kv-heads G": "gqa mqa grouped_query_attention",
    "attend --memory FILE": "cross_attention cross_attn cross",
    "attend --score additive": "bahdanau additive_attention",
    "layernorm": "norm layer_norm ln normalize norm1 norm2 add_norm",
    "layernorm --kind rms": "rmsnorm rms_norm rms",
    "layernorm --kind batch": "batchnorm batch_norm",
    "ffn": "mlp feedforward feed_forward position_wise positionwise dense_block fc relu gelu swiglu",
    "linear": "dense projection proj matmul gemm w",
    "conv": "convolution conv1d conv2d convolve cnn",
    "mel": "spectrogram log_mel melspectrogram mel_spectrogram mfcc stft audio wav sound",
    "recall": "linear_attention linear_transformer fast_weights fast_weight retention state_space ssm "
    "lightning_attention",
    "recall --rule mamba2": "mamba mamba2 ssd state_space_duality",
    "recall --rule delta": "deltanet delta_net delta_rule",
    "recall --rule gated-delta": "gated_deltanet gated_delta_net gdn gated_delta_rule kda",
    "recall --rule retnet": "retnet",
    "recall --rule decay": "gla gated_linear_attention",
    "rnn --cell lstm": "lstm bilstm",
    "rnn --cell gru": "gru",
    "rnn --cell rnn": "elman recurrent",
    "encode TEXT --model DIR": "forward features extract hidden_states feature_extraction bert encoder vit transform "
    "run_model model sentence_transformers inference infer activations run_with_cache trace",
    "decode TEXT --model DIR": "generate generation complete completion chat predict translate translation decoder "
    "gpt gpt2 lm llm prompt continue summarize classify fill_mask beam beam_search",
    "decode --model DIR --rerank QUESTION": "rerank reranker rerankers reranking cross_encoder crossencoder logitscore",
    "score --relevant FILE": "ndcg mrr recall_at_k qrels trec_eval retrieval_metrics information_retrieval_evaluator",
    "decode --table FILE": "lm_head unembed logits argmax",
    "loss --target WORDS": "cross_entropy crossentropy ce nll nll_loss criterion crossentropyloss",
    "score FILE --model DIR": "perplexity ppl evaluate eval likelihood logprob bits_per_byte",
    "score FILE --references FILES": "bleu chrf sacrebleu",
    "near --index FILE": "similarity cosine cosine_similarity search nearest knn neighbors neighbours retrieve faiss "
    "most_similar semantic_search dist distance",
    "rollout FILE": "attention_rollout attention_flow",
    "lens FILE --model DIR": "logit_lens logitlens direct_logit_attribution dla",
    "scan": "patching activation_patching patch causal_tracing ablate ablation path_patching",
    "heads FILE": "head head_view induction head_detector",
    "train FILE -o DIR": "fit finetune fine_tune pretrain trainer learn optimize training",
    "train FOLDER -o DIR --family vit": "imagefolder image_classification image_classifier",
    "engines": "devices device gpu cuda tpu jax nvidia_smi backends backend",
    "show FILE": "config cat print view display inspect less more open table dump load read pprint",
    "show FILE --list": "ls info keys tree shapes shape summary ncdump h5ls",
    "show FILE --stats": "stats describe statistics stat",
    "show FILE --heatmap": "heatmap imshow matshow",
    "show FILE --over PICTURE": "overlay attention_map superimpose",
    "show FILE --slice 0:2": "slice tail index select cut",
    "show FILE -o FILE.npz": "convert export save to_npz to_numpy to_json write transcode",
    "show FILE -o FILE.svg": "plot figure draw visualize visualise viz graph chart svg png render",
    "explore FILE -o PAGE.html": "serve server ui gui web browse browser dashboard bertviz app interactive html",
    "peek": "tee debug tap watch",
    "diff A B": "compare allclose cmp equal assert_close isclose",
    "run FILE --steps -o sheet.html": "sheet worksheet handout",
    "run 'A | B'": "pipeline pipe exec script execute sh compose",
    "grad": "backward autograd gradient gradients backprop saliency jacobian attribute captum",
    "history FILE": "log provenance replay commands lineage",
    "softmax --log": "log_softmax logsoftmax",
    "linear --activation gelu": "activate activation gelu relu silu act_fn nonlinearity",
    "softmax": "probabilities attention_weights normalize_scores",
    "merge": "combine ring_attention",
    "exercise": "exercises quiz practice homework worksheet grade grading",
    "check STAGE FILE.py": "autograder autograde autograding gradescope nbgrader otter_grader junit github_classroom "
    "verify validate unittest test_suite homework_check implementation",
    "golden FILE": "snapshot snapshots regression baseline approval bless ci continuous_integration github_actions "
    "num_regression syrupy",
    "sample": "samples example examples demo demos tutorial",
    "help lecture": "lesson lessons course courses chapter chapters curriculum syllabus",
    "--help": "tools usage man docs doc list",
    "help generation": "greedy decoding",
    "help models": "download pull install clone hub huggingface transformers from_pretrained llama mistral qwen onnx",
    "help training": "nanogpt mingpt",
    "help performance": "benchmark bench memory speed",
    "cost DIR": "flops flop_count macs profile profiler flops_counter num_params count_params parameter_count "
    "kv_cache_size estimate_memory memory_estimate roofline complexity",
    "--version": "version v",
    "completion": "completions autocomplete autocompletion",
}

VALUES: Mapping[str, str] = {
    "silu": "swish",
    "silu --gated": "swiglu",
    "gelu --gated": "geglu",
    "gelu-tanh": "gelu_new gelu_fast gelu_pytorch_tanh gelu_approx new_gelu",
    "rotary": "rope ro roformer",
    "rms": "rms_norm rmsnorm",
    "layer": "layer_norm layernorm ln",
    "batch": "batch_norm batchnorm bn",
    "sinusoidal": "sin sin_cos sincos absolute fixed vaswani",
    "t5": "relative bucketed",
    "learned": "trainable learnable",
    "general": "luong multiplicative bilinear",
    "lowest": "min finfo_min",
    "additive": "bahdanau mlp concat float -inf inf",
    "scaled-dot": "scaled scaled_dot_product sdpa",
    "dot": "inner_product ip dot_product",
    "euclidean": "l2",
    "mean": "avg average",
    "cls": "first cls_token",
    "weights": "attn attention attentions attn_weights attention_weights probs softmax",
    "scores": "logits qk attn_scores",
    "q": "query queries",
    "k": "key keys",
    "v": "value values",
    "float16": "half fp16 f16",
    "bfloat16": "bf16",
    "float32": "fp32 f32 float single",
    "float64": "fp64 f64 double",
    "int64": "long",
    "int32": "int",
    "bool": "boolean",
    "01": "int binary",
    "jax": "gpu cuda tpu xla",
    "numpy": "cpu np",
    "markdown": "md",
    "json": "jsonl",
    "npz": "pt pth bin pkl mat",
    "png": "jpg jpeg gif bmp",
    "svg": "eps",
    "safetensors": "st",
    "table": "text txt",
    "seq2seq": "encoder_decoder",
    "gpt2": "gpt decoder",
    "none": "null false no off",
}


def squash(name: str) -> str:
    """A name without what spellings differ in.

    >>> squash("--n_embd"), squash("nEmbd")
    ('nembd', 'nembd')
    """
    return name.lower().translate({ord(sign): None for sign in "-_ "})


@functools.cache
def invert_table(table: str) -> dict[str, list[str]]:
    """What to type by each name of a table."""
    inverse: dict[str, list[str]] = {}
    for here, names in {"options": OPTIONS, "tools": TOOLS, "values": VALUES}[table].items():
        for name in names.split():
            inverse.setdefault(squash(name), []).append(here)
    return inverse


def look_up(table: str, name: str) -> list[str]:
    """What to type for a name that is known elsewhere, in the order of the table.

    >>> look_up("options", "--d_model"), look_up("tools", "generate"), look_up("values", "swish")
    (['--dim'], ['decode TEXT --model DIR'], ['silu'])
    """
    return invert_table(table).get(squash(name), [])
