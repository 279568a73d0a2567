"""`show` on the folder of a model: what it holds, one tensor of it, the pipeline that equals a part of it."""

import json
import re

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.checkpoint import fact_of
from attnkit.checkpoints.weights import open_weights
from attnkit.cli import pipeline
from attnkit.display import Style
from attnkit.interpret import model_sheet, model_summary
from attnkit.model import Config, SpecialTokens, StackConfig
from attnkit.model.config import layer_steps
from attnkit.model.parameters import tool_of
from attnkit.records import Record
from tests.drawing import draw_tensors, drawn_models
from tests.places import MODELS
from tests.process import bash, run
from tests.registry import FOLDERS, open_model, place_of

ENV = {"NO_COLOR": "1", "COLUMNS": "80"}
SAID = {
    "bert": ["family model_type bert", "after residuals (post-norm)", "1e-12", "segments type_vocab_size 2 kinds"],
    "gpt2": ["layers n_layer 2", "width n_embd 16", "head width – 4", "hidden width n_inner (default) 64", "end 299"],
    "gpt2-scaled": ["in 3 files", "divided by the number of the layer"],
    "llama": ["heads num_attention_heads 4", "key/value heads num_key_value_heads 2", "norm – RMS", "gate – gated"],
    "llama3": ["scaling rope_type llama3, factor 8", "longest text max_position_embeddings 512"],
    "llama-linear": ["dtype – bfloat16", "scaling rope_type linear, factor"],
    "mistral": ["windows sliding_window a window of 5 keys"],
    "qwen2": ["in layer", "biases – q k v"],
    "marian-half": ["dtype – float16", "embedding factor scale_embedding 4", "never 92", "stacks – encoder, decoder"],
    "marian-native": ["in model.npz", "layers enc-depth 2"],
    "t5": ["score scale – 1", "logit factor scale_decoder_outputs (default) 0.25", "relative_attention_num_buckets 32"],
    "vit": ["image image_size 3 channels of 32 × 32", "patches patch_size 8 × 8", "classes id2label cat, dog, river,"],
    "modernbert": ["norm eps norm_eps", "window theta local_rope_theta 10000", "layer, without biases"],
    "seq2seq-luong": ["attention attention general", "head tie_word_embeddings"],
}


def show(*arguments, check=0, **more):
    code, out, err = run("show", *arguments, env=ENV, **more)
    assert code == check, err
    return err if check else out.decode()


def shell(script, folder, **more):
    code, out, err = bash(f"set -e; {script}", env=ENV, cwd=folder)
    assert code == 0, err
    return out


@pytest.mark.no_blas
@pytest.mark.parametrize("name", FOLDERS)
def test_the_overview(name):
    checkpoint = open_checkpoint(str(MODELS / name))
    seen = model_summary.draw_model(checkpoint, Style())
    assert max(map(len, seen.splitlines())) <= 80 and len(seen.splitlines()) < 140
    for said in [f"{checkpoint.parameter_count:,}", *SAID.get(name, [])]:
        assert said in " ".join(seen.split()) or said in seen
    for layer in checkpoint.layers():
        stack, number, part = model.parse_layer_name(layer)
        first = (
            1
            if part == "norm1"
            and number is not None
            and not getattr(checkpoint.config.stack(stack), "first_norm", True)
            else 0
        )
        assert part in seen
        is_alone = f".{number}.{part}" in seen  # unlike the layers beside it
        assert number is None or is_alone or f".{first}…{last_layer(checkpoint, layer)}.{part}" in seen


def last_layer(checkpoint, layer):
    return checkpoint.config.stack(model.parse_layer_name(layer)[0]).layers - 1


@pytest.mark.no_blas
@pytest.mark.parametrize("look", [Style(20), Style(40, unicode=False), Style(200, color=True)])
def test_the_overview_fits_every_terminal(look):
    for name in FOLDERS:
        seen = re.sub(r"\x1b\[[0-9;]*m", "", model_summary.draw_model(open_checkpoint(str(MODELS / name)), look))
        assert max(map(len, seen.splitlines())) <= look.width
        assert look.unicode or seen.isascii()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "suffix"),
    [("gpt2", "npz"), ("gpt2-scaled", "safetensors"), ("marian-half", "npz"), ("marian-native", "safetensors")],
)
def test_a_folder_as_one_file(name, suffix, tmp_path):
    show(MODELS / name, "-o", tmp_path / f"all.{suffix}")
    stored = open_weights(str(MODELS / name)) if name != "marian-native" else None
    again = json.loads(show(tmp_path / f"all.{suffix}", "-f", "json"))
    assert again["history"][-1]["files"]
    if stored:
        assert list(again["tensors"]) == list(stored.entries)
        for tensor, (dtype, shape) in stored.entries.items():
            found = again["tensors"][tensor]
            assert (found["dtype"], tuple(found["shape"])) == (dtype, shape)
            np.testing.assert_array_equal(np.array(found["data"], dtype), stored.tensor(tensor))
    replayed = run("history", tmp_path / f"all.{suffix}", "--replay")
    assert b"identical bit for bit" in replayed.out, replayed.err


@pytest.mark.slow
def test_one_tensor_by_either_name():
    folder, stored = MODELS / "bert", "encoder.layer.1.attention.self.query.weight"
    prefixed, bare, ours = (
        json.loads(show(f"{folder}:{name}", "-f", "json"))["tensors"]
        for name in (f"bert.{stored}", stored, "encoder.1.self.wq")
    )
    assert [*prefixed] == [f"bert.{stored}"] and [*ours] == ["encoder.1.self.wq"]
    assert prefixed[f"bert.{stored}"] == bare[stored] | {"axes": ["heads", "model"]}
    assert ours["encoder.1.self.wq"]["axes"] == ["model", "heads"]
    assert np.array_equal(np.transpose(bare[stored]["data"]), ours["encoder.1.self.wq"]["data"])
    assert "vocab 3" in show(f"{folder}:bert.embeddings.word_embeddings.weight", "--slice", "2:5")
    both = show(folder, "--name", f"{stored},encoder.1.self.bq", "--list")
    assert stored.split(".")[-2] in both and "encoder.1.self.bq" in both
    assert "█" in show(folder, "--name", stored, "--heatmap")


@pytest.mark.parametrize("name", FOLDERS)
def test_every_stored_tensor_has_an_axis_name_for_each_axis(name):
    checkpoint = open_checkpoint(str(MODELS / name))
    model_summary.checkpoint_record(checkpoint).check()
    for layer in checkpoint.layers():
        if checkpoint.params[layer]:
            part = model_summary.model_part(checkpoint, layer).check()
            assert {key: array.shape for key, array in part.arrays().items()} == {
                key: checkpoint.config.parameter_shape(layer, key) for key in checkpoint.params[layer]
            }


@pytest.mark.slow
def test_a_layer_is_what_params_takes(tmp_path):
    folder = MODELS / "gpt2"
    show(f"{folder}:decoder.1.self", "-o", tmp_path / "self.npz")
    given = "attnkit embed 'a b' --dim 16 | attnkit attend --causal"
    one = shell(f"{given} --heads 4 --params self.npz -f npz --only x | attnkit show -f npy", tmp_path)
    other = shell(f"{given} --model {folder} --layer decoder.1.self -f npz --only x | attnkit show -f npy", tmp_path)
    assert one == other
    layer = json.loads(show(f"{folder}:decoder.1", "-f", "json"))["tensors"]
    assert {"self.wq", "norm1.gamma", "ffn.w1"} < set(layer)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a:b").write_text("[1, 2]")
    (tmp_path / "-").mkdir()
    assert "1" in show("a:b", cwd=tmp_path)
    assert "3" in show("-", cwd=tmp_path, stdin=b"[3]")
    assert "4" in shell("attnkit show <(echo '[4]')", tmp_path).decode()


def stages(name, part):
    checkpoint = open_checkpoint(str(MODELS / name))
    return (
        model_summary.shell_pipeline(checkpoint.config, "DIR", part)
        .replace("attnkit ", "")
        .replace(" \\\n", "")
        .split("  | ")
    )


def test_the_pipelines_of_parts():
    assert stages("bert", "encoder.1.self") == ["attend --model DIR --layer encoder.1.self --residual"]
    assert stages("bert", "encoder.positions") == ["posenc --model DIR"]
    assert stages("gpt2", "head") == ["decode --model DIR --layer head"]
    assert stages("gpt2", "decoder.0") == [
        "layernorm --model DIR --layer decoder.0.norm1 --keep residual",
        "attend --model DIR --layer decoder.0.self --add :residual",
        "layernorm --model DIR --layer decoder.0.norm2 --keep residual",
        "ffn --model DIR --layer decoder.0.ffn --add :residual",
    ]
    assert stages("vit", "encoder.embed") == ["embed --model DIR --image IMAGE"]
    assert stages("llama", "all")[0] == 'embed --model DIR "TEXT"'
    assert stages("llama", "all")[-1] == "decode --model DIR --layer head"


def test_all_of_an_encoder_and_a_decoder_is_two_pipelines():
    checkpoint = open_checkpoint(str(MODELS / "marian-half"))
    encoder, decoder = re.split(r"(?<!\\)\n", model_summary.shell_pipeline(checkpoint.config, "my model", "all"))
    assert encoder.endswith("--layer encoder.1.norm2 -o memory.npz")
    assert decoder.startswith("attnkit embed --model 'my model' --layer decoder.embed \"TEXT\" \\\n")
    assert "attend --model 'my model' --layer decoder.1.cross --memory memory.npz --residual" in decoder
    assert decoder.endswith("decode --model 'my model' --layer head")
    checkpoint = open_checkpoint(str(MODELS / "transformer"))
    encoder, decoder = re.split(r"(?<!\\)\n", model_summary.shell_pipeline(checkpoint.config, "DIR", "all"))
    assert "--residual source.npz \\\n" in encoder and "--residual target.npz \\\n" in decoder


def test_alike_names_need_numbers_that_follow_each_other():
    names = ["h.0.w", "h.2.w", "h.10.w", "h.1.w", "h.01.w", "wi_0", "wi_1", "w"]
    found = [(name, count) for name, _, count in model_summary.alike(dict.fromkeys(names, (2,)))]
    assert found == [("h.0…2.w", 3), ("h.10.w", 1), ("h.01.w", 1), ("wi_0…1", 2), ("w", 1)]


def test_windows_of_some_layers():
    config = Config(
        "qwen2",
        4,
        decoder=StackConfig(4, 1, 4, 1, 2, causal=True, windows=(-1, 5, 5, -1)),
        special=SpecialTokens(banned=(1, 2)),
    )
    assert model_sheet.stack_facts(config)["windows"] == "a window of 5 keys before the query in layers 1…2"
    assert model_sheet.tokens_text(config.special) == "never 1 2"


@pytest.mark.slow
def test_the_title_of_a_slice_says_what_was_cut(tmp_path):
    file = tmp_path / "cube.npz"
    np.savez(file, weights=np.arange(24.0).reshape(2, 3, 4))
    for part, title in (("1,2,:", "weights[1,2,:]"), ("1, 0:2", "weights[1,0:2]")):
        for look in ([], ["--heatmap"]):
            assert show(f"{file}:weights", "--slice", part, *look).startswith(f"{title} (")
    seen = run("peek", "--name", "weights", "--slice", "0", file, env=ENV)
    assert seen.err.startswith("weights[0] (")
    show(f"{file}:weights", "--slice", "1", "-o", tmp_path / "one.npz")
    assert np.load(tmp_path / "one.npz")["weights"].shape == (3, 4)


@pytest.mark.slow
def test_a_trace_remembers_what_was_masked(tmp_path):
    shell(f"attnkit encode --model {MODELS / 'gpt2'} 'the cat sat' --trace run.npz > /dev/null", tmp_path)
    for last in ("weights", "masked"):
        seen = show(tmp_path / f"run.npz:decoder.0.self.{last}", "--slice", "0")
        assert seen.endswith("· masked\n") and re.search(r"^\S+ +-?\d\.\d{4}( +·)+$", seen, re.MULTILINE)
        assert "0.0000" not in seen and "-inf" not in seen
        assert "· masked" in show(tmp_path / f"run.npz:decoder.0.self.{last}", "--heatmap")
    assert "masked" not in show(tmp_path / "run.npz:decoder.0.self.scores", "--slice", "0")


def widened(name, folder, settings, added):
    """The folder of a model again with other settings, and with a bias beside the weights whose names end so."""
    if not added:
        return open_checkpoint(str(MODELS / name))
    config = json.loads((MODELS / name / "config.json").read_text()) | settings
    stored = safetensors.numpy.load_file(MODELS / name / "model.safetensors")
    rng = np.random.default_rng(0)
    for weight in [key for key in stored if key.endswith(added)]:
        bias = rng.standard_normal(len(stored[weight])).astype(np.float32)
        stored[weight.replace(".weight", ".bias")] = bias
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.numpy.save_file(stored, folder / "model.safetensors")
    return open_checkpoint(str(folder))


FFN, ATTENTION = ("gate_proj.weight", "up_proj.weight", "down_proj.weight"), tuple(f"{x}_proj.weight" for x in "qkvo")
OPTIONS = {
    "llama, biases of the network": ("llama", {"mlp_bias": True}, FFN),
    "llama, biases of attention": ("llama", {"attention_bias": True}, ATTENTION),
    "llama, both": ("llama", {"mlp_bias": True, "attention_bias": True}, FFN + ATTENTION),
    **{name: (name, {}, ()) for name in FOLDERS},
}


@pytest.mark.no_blas
@pytest.mark.parametrize("name, settings, added", OPTIONS.values(), ids=OPTIONS)
def test_every_layer_and_its_pipeline_of_every_option(name, settings, added, tmp_path):
    checkpoint = widened(name, tmp_path, settings, added)
    assert model_summary.draw_model(checkpoint, Style()) and list(model_summary.checkpoint_record(checkpoint))
    for layer in checkpoint.layers():
        parameters = checkpoint.params[layer]
        if parameters:
            shown = model_summary.model_part(checkpoint, layer)
            assert all(len(shown.tensors[key].axes) == array.ndim for key, array in parameters.items())
    for part in ("all", *model_summary.pipeline_parts(checkpoint.config)):
        assert model_summary.shell_pipeline(checkpoint.config, "DIR", part)


def test_the_biases_of_a_gated_network_in_its_pipeline(tmp_path):
    checkpoint = widened("llama", tmp_path, {"mlp_bias": True, "attention_bias": True}, FFN + ATTENTION)
    whole = attnkit.encode(Record({"ids": np.array([3, 4, 5])}), model=str(tmp_path))
    text = model_summary.shell_pipeline(checkpoint.config, str(tmp_path), "decoder").replace("\\\n", "")
    ids = np.array([3, 4, 5])
    np.save(tmp_path / "ids.npy", ids)
    [record] = pipeline.chain_stages(pipeline.parse_stages(text.replace('"TEXT"', f"--ids {tmp_path}/ids.npy"))).items
    np.testing.assert_array_equal(record["x"], whole["x"])
    plain = attnkit.encode(Record({"ids": ids}), model=str(MODELS / "llama"))
    assert not np.array_equal(whole["x"], plain["x"])


# facts of models


def facts_of(name):
    return {fact.name: fact for fact in model_sheet.model_facts(open_checkpoint(str(MODELS / name)))}


def test_a_fact_names_its_key_and_whether_the_file_has_it():
    facts = facts_of("llama")
    assert facts["key/value heads"] == ("key/value heads", "2", "num_key_value_heads", True, "")
    assert facts["norm eps"] == ("norm eps", "1e-05", "rms_norm_eps", True, "")
    assert facts["norm"].source == "–" and facts["gate"].value == "gated"
    assert facts_of("gpt2")["hidden width"].source == "n_inner (default)"
    assert facts_of("llama3")["theta"] == ("theta", "500000", "rope_scaling.rope_theta", True, "")


@pytest.mark.parametrize("name", FOLDERS)
def test_every_key_that_a_family_reads_is_that_of_a_fact(name):
    checkpoint = open_checkpoint(str(MODELS / name))
    keys = {key.rpartition(".")[2] for key in checkpoint.keys}
    fields = fact_of(checkpoint.config.family, "FIELDS")
    named = {key for words in fields.values() for key in words.split()}
    known = {"architectures", "num_labels", "is_decoder", "is_encoder_decoder", "add_cross_attention"}
    assert {key for key in keys - named - known if not key.endswith(("_token_id", "_ids")) and "-" not in key} <= OTHERS


OTHERS = {  # keys without a fact of their own: of fields of another fact, of names of tensors, and refused values
    "rope_parameters", "rope_scaling", "factor", "original_max_position_embeddings", "low_freq_factor",
    "high_freq_factor", "full_attention", "sliding_attention", "classifier_activation", "classifier_bias",
    "decoder_bias", "sentence_transformers", "sbert_ce_default_activation_function", "pooler_act", "pooler_output_size",
    "conv_kernel_size", "legacy", "norm_rel_ebd", "pooler_hidden_act", "position_biased_input", "share_att_key",
    "inner_group_num", "num_hidden_groups", "n_ctx", "share_encoder_decoder_embeddings", "global_attn_every_n_layers",
    "cell", "encoder_cell", "decoder_cell", "attention_query", "attention_size", "bidirectional", "input_feeding",
    "readout_size", "decoder_embedding_size", "decoder_hidden_size", "max_window_layers", "use_sliding_window",
    "layer_types", "num_layers", "type",
}  # fmt: skip


DRAWN = {
    name: one
    for kind in ("decoders", "shortconv", "recall", "state_spaces")
    for name, one in drawn_models(kind).items()
}
ARCHITECTURE = {
    "gemma2": {
        "score cap": ("1.5", "attn_logit_softcapping"), "logit cap": ("2", "final_logit_softcapping"),
        "norm places": ("before sub-layers, of their results, at the end", "–"), "score scale": ("0.377964",
        "query_pre_attn_scalar"), "windows": ("a window of 4 keys before the query in layers 0, 2", "sliding_window"),
    },
    "gemma3": {"window theta": ("100", "rope_theta"), "scaling": ("linear, factor 4", "rope_type"),
               "query-key norm": ("by head", "–")},
    "granite": {"embedding factor": ("3", "embedding_multiplier"), "residual factor": ("0.4", "residual_multiplier"),
                "score scale": ("0.3", "attention_multiplier"), "logit factor": ("2", "logits_scaling")},
    "olmo": {"norm": ("layer, without parameters", "–"), "q k v bound": ("0.7", "clip_qkv")},
    "olmo2": {"norm places": ("of results of sub-layers, at the end", "–"), "query-key norm": ("by projection", "–")},
    "smollm3": {"unrotated layers": ("1, 3", "no_rope_layers")},
    "gptj": {"rotated features": ("4 of 8", "rotary_dim"), "positions": ("rotary, neighbouring features", "–"),
             "sub-layers": ("parallel: both read the same input", "–"), "head": ("weights of its own, biased",
             "tie_word_embeddings")},
    "falcon-rw": {"positions": ("ALiBi, rounded to bfloat16", "alibi"), "biases": ("q k v o, network", "bias")},
    "mixtral": {"experts": ("5, 2 for each token", "num_local_experts"), "router": ("softmax over all, divided by "
                "their sum", "–")},
    "gpt_oss": {"sinks": ("a logit of each head", "–"), "router": ("softmax over the chosen", "–"),
                "gate bound": ("0.6", "swiglu_limit")},
    "qwen3_next": {"mixers": ("state in layers 0, 2…3, attention in layer 1", "layer_types"),
                   "state": ("4 heads of 6 × 5, 2 heads of queries and keys", "linear_num_value_heads"),
                   "state taps": ("4 tokens of a convolution", "linear_conv_kernel_dim"), "state rule": ("gated-delta",
                   "–"), "head gates": ("a sigmoid of each number", "–"), "rotated features": ("6 of 24",
                   "partial_rotary_factor")},
    "mamba2-limit": {"mixers": ("state in layers 0…2", "–"), "step limits": ("0.6 to 1.1", "time_step_limit"),
                     "state norm": ("RMS of 2 groups, after the gate", "–"), "positions": ("none", "–"),
                     "state": ("6 heads of 5 × 7, 2 heads of queries and keys", "n_groups")},
    "granitemoehybrid": {"mixers": ("state in layers 0, 2…3, attention in layer 1", "layer_types"),
                         "positions": ("none", "position_embedding_type"), "shared width": ("29",
                         "shared_intermediate_size"), "logit factor": ("2", "logits_scaling")},
    "falcon_h1-norm": {"mixers": ("state beside attention in layers 0…2", "–"), "key factor": ("1.4",
                       "key_multiplier"), "gate factor": ("1.3", "mlp_multipliers"), "state norm": (
                       "RMS of 2 groups, before the gate", "mamba_rms_norm"), "state factors": (
                       "gates 0.8, values 1.5, keys 1.25, queries 0.75, steps 1.1", "ssm_multipliers"),
                       "sub-layer factors": ("network 0.6 out, attention 1.2 in, attention 0.7 out, state 0.9 in, "
                       "state 0.65 out", "attention_in_multiplier")},
    "bamba": {"mixers": ("state in layers 0, 2, attention in layers 1, 3", "attn_layer_indices"),
              "rotated features": ("4 of 8", "partial_rotary_factor")},
    "lfm2": {"mixers": ("short convolution in layers 0, 2…3, attention in layers 1, 4", "layer_types"),
             "taps": ("3 tokens of a short convolution", "conv_L_cache"), "hidden width": ("36", "intermediate_size"),
             "query-key norm": ("by head", "–"), "theta": ("1000", "rope_theta")},
}  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURE)
def test_the_facts_of_decoders(name, tmp_path):
    raw = DRAWN[name]["config"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    safetensors.numpy.save_file(draw_tensors(raw["model_type"], DRAWN[name]["shapes"]), tmp_path / "model.safetensors")
    facts = {fact.name: (fact.value, fact.source) for fact in model_sheet.model_facts(open_checkpoint(str(tmp_path)))}
    assert {fact: facts.get(fact) for fact in ARCHITECTURE[name]} == ARCHITECTURE[name]


@pytest.mark.no_blas
@pytest.mark.parametrize("name", DRAWN)
def test_every_layer_of_a_drawn_model_has_a_row_and_a_tool(name):
    code, out, err = run("show", place_of(name))
    assert (code, err) == (0, "")
    checkpoint, shown = open_model(name), out.decode()
    for layer in ("decoder.embed", *(step.layer for step in layer_steps(checkpoint.config, "decoder", 1))):
        part = layer.rpartition(".")[2]
        assert any(part in line and tool_of(layer) in line for line in shown.splitlines()), layer
