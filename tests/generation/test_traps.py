"""The traps of decoders: what an implementation easily gets wrong changes the logits by far more than rounding.

Each row changes one choice of a model's configuration as such a mistake would. The comparison with transformers in
test_decoders.py would see every one of them.
"""

from dataclasses import replace

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints.weights import WHOLE
from tests.generation.test_decoders import core, frozen, logits, opened  # noqa: F401 (a fixture)


def changes(**fields):
    return lambda config: replace(config, **fields)


def positions(**fields):
    return lambda config: replace(config, positions=replace(config.positions, **fields))


def stack(**fields):
    return lambda config: replace(config, decoder=replace(config.decoder, **fields))


def windows(change):
    return lambda config: replace(
        config, decoder=replace(config.decoder, windows=tuple(map(change, config.decoder.windows)))
    )


def experts(**fields):
    return lambda config: replace(config, experts=replace(config.experts, **fields))


def exchanged(config):
    rope, local = config.positions.local_rope, config.positions.rope
    return replace(config, positions=replace(config.positions, rope=rope, local_rope=local))


def without_scaling(config):
    rope = {"rope_type": "default", "rope_theta": config.positions.rope["rope_theta"]}
    return replace(config, positions=replace(config.positions, rope=rope))


def always_short(config):
    rope = {**config.positions.rope, "long_factor": config.positions.rope["short_factor"]}
    return replace(config, positions=replace(config.positions, rope=rope))


TRAPS = [  # model, what goes wrong, and the change that does so
    ("qwen3", "no norm of queries and keys", changes(qk_norm="")),
    ("qwen3-window", "the window counts keys before the query only", windows(lambda size: size + (size >= 0))),
    ("qwen3-window", "windows in the first layers", lambda config: replace(
        config, decoder=replace(config.decoder, windows=config.decoder.windows[::-1]))),
    ("gemma", "embeddings are not scaled", changes(embed_scale=1.0)),
    ("gemma", "gelu is the one by the error function", changes(activation="gelu")),
    ("gemma2", "the scale is that of the width of heads", changes(scale=None)),
    ("gemma2", "no cap of the scores", changes(softcap=0.0)),
    ("gemma2", "no cap of the logits", changes(logit_softcap=0.0)),
    ("gemma2", "windows in the other layers", lambda config: replace(
        config, decoder=replace(config.decoder, windows=config.decoder.windows[1:] + config.decoder.windows[:1]))),
    ("gemma3", "the rotations of local and global layers exchanged", exchanged),
    ("gemma3", "one rotation for all layers", positions(local_rope={})),
    ("gemma3", "positions of global layers are not scaled", without_scaling),
    ("gemma3", "no norm of queries and keys", changes(qk_norm="")),
    ("olmo", "queries, keys and values are not clipped", changes(clip=0.0)),
    ("olmo", "RMS norms", changes(norm="rms")),
    ("olmo2", "a norm for each head", changes(qk_norm="heads")),
    ("olmo3", "scaled positions in layers with a window, too", positions(local_rope={})),
    ("smollm3", "every layer rotates", positions(unrotated=())),
    ("smollm3", "a one of no_rope_layers means a layer that does not rotate", positions(unrotated=(0, 2))),
    ("granite", "the score factor replaced by one over the root of the width", changes(scale=None)),
    ("granite", "no factor on residual branches", changes(residual_scale=1.0)),
    ("granite", "logits times the factor that divides them", lambda config: replace(
        config, logit_scale=1 / config.logit_scale)),
    ("granite", "embeddings are not scaled", changes(embed_scale=1.0)),
    ("phi", "the whole head is rotated", positions(rotary_dim=0)),
    ("phi", "serial sub-layers", changes(parallel=False)),
    ("phi3-long", "the factors of short texts for long ones", always_short),
    ("cohere", "halves are rotated", positions(interleaved=False)),
    ("cohere", "serial sub-layers", changes(parallel=False)),
    ("cohere", "no factor on the logits", changes(logit_scale=1.0)),
    ("cohere2", "every layer rotates", positions(unrotated=())),
    ("cohere2", "no windows", stack(windows=())),
    ("stablelm", "the whole head is rotated", positions(rotary_dim=0)),
    ("stablelm-parallel", "one norm of queries for all heads as one vector", changes(qk_norm="projection")),
    ("gpt_neox", "the feed-forward network reads the sum", changes(parallel=False)),
    ("gpt_neox", "pairs of neighbours are rotated", positions(interleaved=True)),
    ("gpt_neox-serial", "the feed-forward network reads what attention reads", changes(parallel=True)),
    ("gpt_neo", "scores are scaled", changes(scale=None)),
    ("gpt_neo", "no windows", stack(windows=())),
    ("gptj", "halves are rotated", positions(interleaved=False)),
    ("falcon-7b", "serial sub-layers", changes(parallel=False)),
    ("falcon-rw", "ALiBi is neither rounded nor scaled", positions(rounds_bias=False)),
    ("bloom", "no ALiBi", positions(relative="")),
    ("bloom", "ALiBi is scaled as the scores are", positions(rounds_bias=True)),
    ("bloom", "no norm of the embeddings", changes(embed_norm=False)),
    ("opt", "positions begin at row 0", positions(first=0)),
    ("opt-350m", "the norms before sub-layers", changes(norm_first=True)),
    ("mixtral", "gates are not divided by their sum", experts(renormalizes=False)),
    ("qwen3_moe", "gates are not divided by their sum", experts(renormalizes=False)),
    ("qwen2_moe", "gates are divided by their sum", experts(renormalizes=True)),
    ("olmoe", "the softmax of the chosen experts alone", experts(score="chosen")),
    ("olmoe", "queries, keys and values are not clipped", changes(clip=0.0)),
    ("gpt_oss", "the softmax of all experts", experts(score="softmax")),
    ("gpt_oss", "gates are not bounded", changes(ffn_limit=0.0)),
    ("gpt_oss", "SiLU", changes(activation="silu")),
    ("deepseek_v2", "the growth of the context does not change the scale", changes(scale=None)),
    ("deepseek_v2", "experts of all groups", experts(groups=1)),
    ("deepseek_v2", "no factor on the gates", experts(scale=1.0)),
    ("deepseek_v3", "the score of a group is its best one", experts(group_best=1)),
    ("deepseek_v3", "the softmax of the experts", experts(score="softmax")),
    ("deepseek_v3", "halves are rotated", positions(interleaved=False)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mistake", "change"), TRAPS, ids=[f"{name}: {mistake}" for name, mistake, _ in TRAPS])
def test_a_mistake_changes_the_logits(opened, name, mistake, change):  # noqa: F811
    checkpoint, differences = opened(name), []
    wrong = model.Model(change(checkpoint.config), checkpoint.params)
    for text in ("", "long."):
        exact = frozen(name, f"{text}logits.f64")
        x = model.run(wrong, wrong.config.plan("decoder"), frozen(name, f"{text}ids"), model.Context(dtype="float64"))
        differences.append(np.abs(model.head_logits(wrong, x)[:, -4:] - exact).max() / np.abs(exact).max())
    assert max(differences) > 1e-4, differences


@pytest.mark.parametrize(("name", "layer", "parameter"), [
    ("gpt_neox", "decoder.1.self", "wq"),
    ("bloom", "decoder.1.self", "wv"),
    ("falcon-40b", "decoder.1.self", "wk"),
    ("gpt_oss", "decoder.1.expert.2", "w1"),
])  # fmt: skip
def test_fused_parts_are_not_one_after_another(opened, name, layer, parameter):  # noqa: F811
    """Parts of each head, group or column: cut one after another, they are other numbers."""
    params = opened(name).params
    spec, shape = params.specs[layer][parameter], params.config.parameter_shape(layer, parameter)
    tensor = params.weights.tensor(params.weights.find(spec.names))
    flat = spec._replace(share=spec.share._replace(groups=1))
    assert spec.share.groups > 1 and spec.share != WHOLE
    assert np.array_equal(spec.to_parameter(tensor, shape), params[layer][parameter])
    assert not np.array_equal(flat.to_parameter(tensor, shape), params[layer][parameter])


def test_the_weight_of_a_norm_of_gemma_is_one_more_than_stored(opened):  # noqa: F811
    checkpoint = opened("gemma2")
    stored = checkpoint.params.weights.tensor("model.layers.0.post_feedforward_layernorm.weight")
    np.testing.assert_array_equal(checkpoint.params["decoder.0.output_norm2"]["gamma"], stored + 1)
    whole = logits(checkpoint, frozen("gemma2", "ids"))[:, -4:]
    lowered = {layer: {**checkpoint.params[layer]} for layer in checkpoint.params}
    for layer, parameters in lowered.items():
        if "gamma" in parameters and layer.startswith("decoder"):
            parameters["gamma"] = parameters["gamma"] - 1
    x = model.run(
        core(checkpoint)._replace(params=lowered),
        checkpoint.config.plan("decoder"),
        frozen("gemma2", "ids"),
        model.Context(dtype="float64"),
    )
    assert np.abs(model.head_logits(core(checkpoint), x)[:, -4:] - whole).max() > 1e-2
