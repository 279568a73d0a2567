"""The site of each name of a dump: frozen names of transformers, and names as the sources of other tools write them."""

import json
import re

import numpy as np
import pytest

from attnkit import checkpoints
from attnkit.debugger.names import TensorSource, locate_sites, read_map
from attnkit.errors import DataError
from tests.drawing import write_model
from tests.places import REFERENCES, ROOT
from tests.registry import open_model

NAMES = json.loads((REFERENCES / "names.json").read_text())
# sites that no module reads or returns: attention computes them in one function
WITHIN = re.compile(r"\.(q|k|v|scores|scaled|capped|masked|heads)$")
UNSTATED = ("albert-groups", "waves/layer")  # whose groups of layers, or order of norms, only the configuration states
LIKE_OTHERS = ("camembert", "xlm-roberta", "mistral", "qwen2", "eurobert", "mbart")  # of roberta, llama, m2m_100


@pytest.mark.parametrize("family", ["clip", "siglip"])
@pytest.mark.parametrize("tower", ["text", "vision"])
def test_names_of_the_other_tower_are_no_stages(family, tower):
    """The towers have modules of the same names; the images of these models have a layer more."""
    checkpoint = checkpoints.open_checkpoint(f"{ROOT}/tests/transcripts/inputs/{family}:{tower}")
    names = {one: [f"{one}_model.encoder.layers.{at}.layer_norm1.output" for at in range(count)]
             for one, count in (("text", 2), ("vision", 3))}  # fmt: skip
    for order in (("text", "vision"), ("vision", "text")):
        located = locate_sites([name for one in order for name in names[one]], checkpoint)
        found = {site: source.name for site, source in located.sources.items()}
        assert found == {f"encoder.{at}.norm1": name for at, name in enumerate(names[tower])}
        assert [*located.unknown] == names[{"text": "vision", "vision": "text"}[tower]]


def spell(source):
    """A source as names.json writes it, with its columns in the smallest numbers."""
    if source.columns is None:
        return ""
    first, end, count = source.columns
    part = end - first
    return f"[{first // part}:{end // part}:{count // part}]"


@pytest.mark.parametrize("name", NAMES)
def test_every_source_holds_the_numbers_of_its_site(name):
    frozen = NAMES[name]
    located = locate_sites(list(frozen), open_model(name))
    assert located.scheme == "Hugging Face"
    for site, source in located.sources.items():
        assert site + spell(source) in frozen[source.name], source


@pytest.mark.parametrize("name", NAMES)
def test_every_site_that_some_tensor_holds_has_a_source(name):
    frozen = NAMES[name]
    sources = locate_sites(list(frozen), open_model(name)).sources
    held = {re.sub(r"\[.*", "", site) for sites in frozen.values() for site in sites}
    twins = {re.sub(r"\[.*", "", site) for source in sources.values() for site in frozen[source.name]}
    assert {site for site in held - twins if not WITHIN.search(site)} == set()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (*UNSTATED, *LIKE_OTHERS)])
def test_the_family_is_found_from_the_names(name):
    frozen = NAMES[name]
    checkpoint = open_model(name)
    known, found = locate_sites(list(frozen), checkpoint), locate_sites(list(frozen))
    assert found.sources.keys() <= {*known.sources, "encoder.positions", "head.pooled"}
    for site, source in found.sources.items():
        if site in known.sources:
            assert source.name == known.sources[site].name
    assert len(found.sources) > 0.9 * len(known.sources)


@pytest.mark.parametrize("name", ["gpt2", "bert-mlm", "t5", "llama"])
def test_prefixes_and_suffixes_are_free(name):
    frozen, checkpoint = NAMES[name], open_model(name)
    outputs = [one for one in frozen if one.endswith(".output") and "output." not in one]
    as_given = locate_sites(outputs, checkpoint).sources
    for change in (
        lambda one: one.removesuffix(".output"),
        lambda one: re.sub(r"^(transformer|model|bert)\.", "", one),
        lambda one: f"Wrapper.inner.{one}",
        lambda one: one + ".0",
    ):
        changed = locate_sites([change(one) for one in outputs], checkpoint).sources
        assert {site: source.name for site, source in changed.items()} == {
            site: change(source.name) for site, source in as_given.items()
        }


def test_a_trace_of_attnkit_has_the_names_of_sites():
    names = ["ids", "decoder.embed", "decoder.0.self.weights", "decoder.0.self.weights.entropy", "logits"]
    located = locate_sites(names, open_model("gpt2"))
    assert located.scheme == "attnkit"
    assert {site: source.name for site, source in located.sources.items()} == {
        name: name for name in names if "entropy" not in name
    }
    assert located.unknown == {"decoder.0.self.weights.entropy": "no site by this name"}


# of vLLM's hooks, in its order: https://github.com/vllm-project/vllm/blob/main/vllm/model_executor/models/llama.py
SERVED = {
    "model.embed_tokens/outputs_0_cuda_0": "decoder.embed.words",
    "model.layers.0.input_layernorm/outputs_0_cuda_0": "decoder.0.norm1",
    "model.layers.0.self_attn.rotary_emb/outputs_0_cuda_0": "decoder.0.self.q",
    "model.layers.0.self_attn.rotary_emb/outputs_1_cuda_0": "decoder.0.self.k",
    "model.layers.0.self_attn.attn/outputs_0_cuda_0": "decoder.0.self.joined",
    "model.layers.0.self_attn.o_proj/outputs_0_cuda_0": "decoder.0.self.output",
    "model.layers.0.post_attention_layernorm/outputs_0_cuda_0": "decoder.0.norm2",
    "model.layers.0.post_attention_layernorm/outputs_1_cuda_0": "decoder.0.self.residual",
    "model.layers.0.mlp.act_fn/outputs_0_cuda_0": "decoder.0.ffn.gated",
    "model.layers.0.mlp.down_proj/outputs_0_cuda_0": "decoder.0.ffn.output",
    "model.layers.1.input_layernorm/outputs_1_cuda_0": "decoder.0.ffn.residual",
    "model.norm/outputs_0_cuda_0": "decoder.norm",
    "model.norm/outputs_1_cuda_0": "decoder.1.ffn.residual",
    "logits_processor/outputs_0_cuda_0": "logits",
}
FUSED = {
    "model.layers.0.self_attn.qkv_proj": {
        "decoder.0.self.q_projected": (0, 4, 8),
        "decoder.0.self.k_projected": (4, 6, 8),
        "decoder.0.self.v_projected": (6, 8, 8),
    },
    "model.layers.0.mlp.gate_up_proj": {"decoder.0.ffn.hidden": (0, 1, 2), "decoder.0.ffn.linear": (1, 2, 2)},
}


def test_dumps_of_vllm():
    names = [f"step_0/{name}" for name in SERVED] + [f"step_0/{name}/outputs_0_cuda_0" for name in FUSED]
    sources = locate_sites(names, open_model("llama")).sources
    assert {source.name: site for site, source in sources.items() if source.columns is None} == {
        f"step_0/{name}": site for name, site in SERVED.items()
    }
    fused = {site: columns for parts in FUSED.values() for site, columns in parts.items()}
    assert {site: source.columns for site, source in sources.items() if source.columns} == fused


def test_dumps_of_sglang_have_lists_in_place_of_suffixes():
    names = ["model.forward_batch_info.input_ids", "model.embed_tokens", "model.layers.1.input_layernorm.0",
             "model.layers.1.input_layernorm.1", "model.layers.0.self_attn.qkv_proj", "lm_head"]  # fmt: skip
    sources = locate_sites(names, open_model("llama")).sources
    assert list(sources) == ["ids", "decoder.embed.words", "decoder.0.self.q_projected", "decoder.0.self.k_projected",
                             "decoder.0.self.v_projected", "decoder.0.ffn.residual", "decoder.1.norm1",
                             "logits"]  # fmt: skip


def test_fused_groups_of_unknown_sizes_are_not_guessed():
    names = ["model.layers.0.self_attn.qkv_proj", "model.layers.0.self_attn.o_proj", "model.layers.0.mlp.down_proj"]
    located = locate_sites(names)
    assert list(located.sources) == ["decoder.0.self.output", "decoder.0.ffn.output"]
    assert list(located.unknown) == ["model.layers.0.self_attn.qkv_proj"]


# nodes that torch.onnx.export(dynamo=False) writes for a Llama of transformers, without those between
EXPORTED = {
    "/model/embed_tokens/Gather_output_0": "decoder.embed.words",
    "/model/layers.0/input_layernorm/Mul_1_output_0": "decoder.0.norm1",
    "/model/layers.0/self_attn/q_proj/MatMul_output_0": "decoder.0.self.q_projected",
    "/model/layers.0/self_attn/Add_output_0": "decoder.0.self.q",
    "/model/layers.0/self_attn/Add_1_output_0": "decoder.0.self.k",
    "/model/layers.0/self_attn/MatMul_output_0": "decoder.0.self.scores",
    "/model/layers.0/self_attn/Mul_6_output_0": "decoder.0.self.scaled",
    "/model/layers.0/self_attn/Add_2_output_0": "decoder.0.self.masked",
    "/model/layers.0/self_attn/Softmax_output_0": "decoder.0.self.weights",
    "/model/layers.0/self_attn/MatMul_1_output_0": "decoder.0.self.heads",
    "/model/layers.0/self_attn/o_proj/MatMul_output_0": "decoder.0.self.output",
    "/model/layers.0/Add_output_0": "decoder.0.self.residual",
    "/model/layers.0/mlp/gate_proj/MatMul_output_0": "decoder.0.ffn.hidden",
    "/model/layers.0/mlp/act_fn/Mul_output_0": "decoder.0.ffn.activated",
    "/model/layers.0/mlp/Mul_output_0": "decoder.0.ffn.gated",
    "/model/layers.0/Add_1_output_0": "decoder.0.ffn.residual",
    "logits": "logits",
}
BETWEEN = {
    "/model/layers.0/input_layernorm/Pow_output_0": "/model/layers.0/input_layernorm/Mul_1_output_0",
    "/model/layers.0/self_attn/Mul_output_0": "/model/layers.0/self_attn/Add_output_0",
    "/model/layers.0/self_attn/Transpose_4_output_0": "/model/layers.0/self_attn/o_proj/MatMul_output_0",
    "/model/layers.0/mlp/act_fn/Sigmoid_output_0": "/model/layers.0/mlp/act_fn/Mul_output_0",
    "/lm_head/Transpose_output_0": "logits",
}


def test_nodes_of_an_exported_graph():
    names = [*EXPORTED]
    for node, following in BETWEEN.items():
        names.insert(names.index(following), node)
    for checkpoint in (open_model("llama"), None):
        located = locate_sites(names, checkpoint)
        assert {source.name: site for site, source in located.sources.items()} == EXPORTED
        assert located.unknown == dict.fromkeys(sorted(BETWEEN, key=names.index), "a node between sites")


# https://github.com/TransformerLensOrg/TransformerLens/tree/main/transformer_lens/components
HOOKS = {
    "hook_embed": "decoder.embed.words",
    "blocks.0.hook_resid_pre": "decoder.embed",
    "blocks.0.attn.hook_q": "decoder.0.self.q_projected",
    "blocks.0.attn.hook_k": "decoder.0.self.k_projected",
    "blocks.0.attn.hook_v": "decoder.0.self.v_projected",
    "blocks.0.attn.hook_rot_q": "decoder.0.self.q",
    "blocks.0.attn.hook_rot_k": "decoder.0.self.k",
    "blocks.0.attn.hook_attn_scores": "decoder.0.self.masked",
    "blocks.0.attn.hook_pattern": "decoder.0.self.weights",
    "blocks.0.attn.hook_z": "decoder.0.self.heads",
    "blocks.0.hook_attn_out": "decoder.0.self.output",
    "blocks.0.hook_resid_mid": "decoder.0.self.residual",
    "blocks.0.mlp.hook_pre": "decoder.0.ffn.hidden",
    "blocks.0.mlp.hook_pre_linear": "decoder.0.ffn.linear",
    "blocks.0.mlp.hook_post": "decoder.0.ffn.gated",
    "blocks.0.hook_mlp_out": "decoder.0.ffn.output",
    "blocks.0.hook_resid_post": "decoder.0.ffn.residual",
    "blocks.1.ln1.hook_out": "decoder.1.norm1",
    "blocks.1.attn.q.hook_out": "decoder.1.self.q_projected",
    "blocks.1.mlp.in.hook_out": "decoder.1.ffn.linear",
    "blocks.1.hook_out": "decoder.1.ffn.residual",
    "ln_final.hook_out": "decoder.norm",
    "unembed.hook_out": "logits",
}


def test_hooks_of_transformer_lens():
    others = ["blocks.0.ln1.hook_scale", "blocks.0.ln1.hook_normalized", "blocks.0.attn.hook_result"]
    for checkpoint in (open_model("llama"), None):
        located = locate_sites([*HOOKS, *others], checkpoint)
        assert located.scheme == "TransformerLens"
        assert {source.name: site for site, source in located.sources.items()} == HOOKS
        assert located.unknown == {
            "blocks.0.ln1.hook_scale": "the standard deviation in a norm",
            "blocks.0.ln1.hook_normalized": "a norm before its weight and bias",
            "blocks.0.attn.hook_result": "the output of each head by itself",
        }


def test_hooks_of_an_encoder_of_transformer_lens():
    hooks = {
        "embed.hook_embed": "encoder.embed.words",
        "embed.hook_pos_embed": "encoder.positions.rows",
        "embed.hook_token_type_embed": "encoder.embed.types",
        "hook_full_embed": "encoder.embed_norm",
        "blocks.1.hook_resid_pre": "encoder.0.norm2",
        "blocks.1.hook_resid_mid": "encoder.1.self.residual",
        "blocks.1.mlp.hook_post": "encoder.1.ffn.activated",
        "blocks.1.hook_normalized_resid_post": "encoder.1.norm2",
    }
    sources = locate_sites(list(hooks), open_model("bert-mlm")).sources
    assert {source.name: site for site, source in sources.items()} == hooks


# https://github.com/ggml-org/llama.cpp/blob/master/src/llama-graph.cpp and src/models/llama.cpp
NODES = {
    "inp_embd": "decoder.embed.words",
    "attn_norm-0": "decoder.0.norm1",
    "Qcur-0#1": "decoder.0.self.q_projected",
    "Qcur-0#2": "decoder.0.self.q",
    "Kcur-0": "decoder.0.self.k_projected",
    "Kcur-0#1": "decoder.0.self.k",
    "Vcur-0": "decoder.0.self.v_projected",
    "kq-0": "decoder.0.self.scores",
    "kq_soft_max-0": "decoder.0.self.weights",
    "kqv-0": "decoder.0.self.heads",
    "kqv_out-0": "decoder.0.self.joined",
    "attn_out-0": "decoder.0.self.output",
    "ffn_inp-0": "decoder.0.self.residual",
    "ffn_norm-0": "decoder.0.norm2",
    "ffn_gate-0": "decoder.0.ffn.hidden",
    "ffn_up-0": "decoder.0.ffn.linear",
    "ffn_swiglu-0": "decoder.0.ffn.gated",
    "ffn_out-0": "decoder.0.ffn.output",
    "l_out-0": "decoder.0.ffn.residual",
    "l_out-1": "decoder.1.ffn.residual",
    "result_norm": "decoder.norm",
    "result_output": "logits",
}


def test_nodes_of_llama_cpp():
    for checkpoint in (open_model("llama"), None):
        located = locate_sites([*NODES, "Qcur-0", "norm-0"], checkpoint)
        assert located.scheme == "llama.cpp"
    names = [*NODES]
    names.insert(2, "Qcur-0")
    for checkpoint in (open_model("llama"), None):
        located = locate_sites([*names, "norm-0"], checkpoint)
        assert {source.name: site for site, source in located.sources.items()} == NODES
        assert located.unknown == {"Qcur-0": "written again later", "norm-0": "no site by this name"}


def test_nodes_of_llama_cpp_with_fused_and_biased_projections():
    names = {
        "wqkv_b-0": "decoder.0.self.q_projected",
        "pos_embd": "decoder.positions.rows",
        "inpL": "decoder.positions",
        "ffn_up_b-0": "decoder.0.ffn.hidden",
        "ffn_gelu-0": "decoder.0.ffn.activated",
    }
    located = locate_sites([*names, "wqkv-0", "ffn_up-0"], open_model("gpt2"))
    assert {source.name: site for site, source in located.sources.items() if site[-10:] not in ("_projected",)} == {
        name: site for name, site in names.items() if name != "wqkv_b-0"
    }
    assert located.sources["decoder.0.self.k_projected"] == TensorSource("wqkv_b-0", (4, 8, 12))
    assert set(located.unknown) == {"wqkv-0", "ffn_up-0"}


def test_weights_of_llama_cpp_name_their_outputs():
    names = {
        "token_embd": "decoder.embed.words",
        "blk.1.attn_q": "decoder.1.self.q_projected",
        "blk.1.attn_output": "decoder.1.self.output",
        "blk.1.ffn_down.output": "decoder.1.ffn.output",
        "output_norm": "decoder.norm",
        "output": "logits",
    }
    sources = locate_sites(list(names), open_model("llama")).sources
    assert {source.name: site for site, source in sources.items()} == names


def test_names_that_fit_nothing_are_listed():
    located = locate_sites(["loss", "step"])
    assert (located.scheme, located.sources) == ("", {})
    assert list(located.unknown) == ["loss", "step"]


MINE, SITES = ["q0", "h.0.attn", "x"], ["decoder.0.self.q", "decoder.0.self.output", "decoder.norm"]


def test_a_map_counts_more_than_the_tables(tmp_path):
    path = tmp_path / "map.txt"
    path.write_text("# mine  site\nq0\tdecoder.0.self.q\n\nh.0.attn, decoder.norm\n a b ,  decoder.0.self.output\n")
    chosen = read_map(str(path), [*MINE, "a b"], SITES)
    assert chosen.pop("a b") == "decoder.0.self.output"
    assert chosen == {"q0": "decoder.0.self.q", "h.0.attn": "decoder.norm"}
    sources = locate_sites([*MINE, "h.0.attn.c_proj"], open_model("gpt2"), chosen).sources
    assert {site: source.name for site, source in sources.items()} == {
        "decoder.0.self.q": "q0",
        "decoder.0.self.output": "h.0.attn.c_proj",
        "decoder.norm": "h.0.attn",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("q0 decoder.0.self.q more", "line 1: 3 columns (expected 2: a name of the dump, and a site)"),
        ("\nh.0.atn decoder.norm", "line 2: the dump has no tensor 'h.0.atn'; did you mean h.0.attn?"),
        ("q0 decoder.0.self.k", "line 1: the model has no site 'decoder.0.self.k'; did you mean decoder.0.self.q?"),
        ("q0 decoder.norm\nx decoder.norm", "line 2: site 'decoder.norm' was given before"),
        ("q0 decoder.norm\nq0 decoder.0.self.q", "line 2: tensor 'q0' was given before"),
    ],
)
def test_errors_of_a_map_name_the_line(tmp_path, text, problem):
    path = tmp_path / "map.txt"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        read_map(str(path), MINE, SITES)
    assert error.value.problem == problem


def test_no_name_is_an_error():
    rng = np.random.default_rng(7)
    real = [name for frozen in NAMES.values() for name in frozen] + [*HOOKS, *NODES, *EXPORTED, *SERVED]
    pieces = sorted(
        {piece for name in real for piece in re.split(r"(\W)", name)} | {"99", "7" * 5000, "٣", "é", " ", ""}
    )
    names = ["".join(rng.choice(pieces, rng.integers(1, 12))) for _ in range(300)]
    names += [name.replace("0", "77") for name in rng.choice(real, 100)] + [
        "",
        ".",
        "#1",
        "/output",
        "Qcur-99",
        "inputs",
    ]
    unique = list(dict.fromkeys(names))
    for model in ("gpt2", "albert-groups", "marian", "vit", None):
        given = unique if model else unique[::9]  # which are compared with the names of every family
        located = locate_sites(given, open_model(model) if model else None)
        assert {source.name for source in located.sources.values()} | {*located.unknown} <= {*given}


@pytest.mark.parametrize(("name", "tensor", "site", "columns"), [
    ("cohere", "lm_head.output", "", None),  # logits before their factor
    ("granite", "lm_head.output", "", None),
    ("gemma2", "lm_head.output", "", None),  # before their cap
    ("qwen3", "lm_head.output", "logits", None),
    ("cohere", "output.logits", "logits", None),
    ("falcon-7b", "transformer.h.1.self_attention.query_key_value.output", "decoder.1.self.q_projected", (0, 6, 8)),
    ("falcon-40b", "transformer.h.1.self_attention.query_key_value.output", "decoder.1.self.k_projected", (6, 8, 10)),
    ("qwen3_moe", "model.layers.1.mlp.output", "decoder.1.ffn.output", None),
    ("olmo", "model.layers.1.output", "decoder.1.ffn.residual", None),
    ("stablelm-parallel", "model.layers.1.self_attn.q_layernorm.output", "decoder.1.self.q_normed", None),
    ("deepseek_v3", "model.layers.1.self_attn.kv_a_layernorm.output", "decoder.1.self.kv_latent", None),
    ("deepseek_v3", "model.layers.1.self_attn.q_a_proj.output", "decoder.1.self.q_latent_projected", None),
    ("deepseek_v3", "model.layers.1.self_attn.q_b_proj.output", "decoder.1.self.q_projected", None),
    ("deepseek_v3", "model.layers.1.self_attn.kv_b_proj.output", "", None),  # keys and values of each head in turn
    ("deepseek_v3", "model.layers.3.mlp.gate.output.2", "decoder.3.ffn.chosen", None),
    ("deepseek_v3", "model.layers.3.mlp.experts.output", "decoder.3.ffn.experts", None),
    ("deepseek_v3", "model.layers.3.mlp.shared_experts.up_proj.output", "decoder.3.shared.linear", None),
    ("mixtral", "model.layers.1.mlp.gate.output.1", "decoder.1.ffn.gates", None),
    ("mixtral", "model.layers.1.mlp.experts.output", "decoder.1.ffn.output", None),
    ("qwen2_moe", "model.layers.0.mlp.shared_expert_gate.output", "decoder.0.ffn.shared_gate", None),
    ("qwen2_moe", "model.layers.0.mlp.shared_expert.output", "decoder.0.shared.output", None),
    ("deepseek_v3", "model.layers.1.self_attn.kv_a_proj_with_mqa.output", "decoder.1.self.k_rotary", (8, 12, 12)),
])  # fmt: skip
def test_modules_of_decoders_of_today(name, tensor, site, columns, tmp_path):
    """What modules of transformers return, read from their code."""
    located = locate_sites([tensor], checkpoints.open_checkpoint(str(write_model(name, tmp_path))))
    found = {one: source.columns for one, source in located.sources.items()}
    assert (site in found) if site else not found
    assert not site or found[site] == columns
    assert not site or columns or len(found) == 1


@pytest.mark.parametrize("family", ["phi", "cohere", "falcon-7b"])
def test_one_norm_of_both_sub_layers_is_called_once(family, tmp_path):
    """The block of a parallel model, whose only norm is that of attention and of the network."""
    checkpoint = checkpoints.open_checkpoint(str(write_model(family, tmp_path)))
    stem = "transformer.h" if family.startswith("falcon") else "model.layers"
    names = [f"{stem}.{layer}.{part}output" for layer in (0, 1) for part in ("input_layernorm.", "")]
    sources = locate_sites(names, checkpoint).sources
    for layer, (norm, block) in enumerate(zip(names[::2], names[1::2], strict=True)):
        read = {site: source.name for site, source in sources.items() if site.startswith(f"decoder.{layer}.")}
        assert read == {
            f"decoder.{layer}.norm1": norm,
            f"decoder.{layer}.norm2": norm,
            f"decoder.{layer}.ffn.residual": block,
        }


def test_hidden_states_of_mamba_2_begin_after_its_first_layer():
    found = locate_sites([f"hidden_states.{number}" for number in range(5)], open_model("mamba2")).sources
    assert [*found] == [*(f"decoder.{layer}.recall.residual" for layer in range(4)), "decoder.norm"]


def test_names_of_no_scheme():
    located = locate_sites(["x", "y"], open_model("gpt2"))
    assert (located.scheme, located.family, located.sources) == ("", "", {})
    assert {*located.unknown} == {"x", "y"}


def test_a_decoder_may_have_more_layers_than_its_encoder():
    layers = ["encoder.block.0", *(f"decoder.block.{number}" for number in range(3))]
    names = [f"{layer}.layer.0.SelfAttention.{letter}.output" for layer in layers for letter in "qkv"]
    cross = [f"decoder.block.{number}.layer.1.EncDecAttention.q.output" for number in range(3)]
    located = locate_sites([*names, *cross])
    assert located.family in ("t5", "mt5", "umt5") and located.unknown == {}
    assert located.sources["decoder.2.self.k_projected"].name == names[10]
    assert located.sources["decoder.2.cross.q_projected"].name == cross[2]
