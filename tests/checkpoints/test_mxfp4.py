"""gpt-oss as it is published: experts in MXFP4, decoded one at a time."""

import json

import numpy as np
import pytest
import safetensors.numpy

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.mxfp4 import join_packed
from attnkit.checkpoints.publishing import published_tensors
from attnkit.checkpoints.weights import open_weights
from attnkit.errors import DataError
from tests.drawing import draw_tensors

RAW = {
    "model_type": "gpt_oss", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 11,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "num_local_experts": 3, "num_experts_per_tok": 2,
    "sliding_window": 4, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]},
}  # fmt: skip
HALVES = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]


def by_hand(blocks, scales):
    """The numbers of blocks, two of a byte: its low half first."""
    numbers = [
        HALVES[half] * 2.0 ** (int(scale) - 127)
        for block, scale in zip(blocks.reshape(-1, 16), scales.ravel(), strict=True)
        for byte in block
        for half in (int(byte) & 15, int(byte) >> 4)
    ]
    return np.array(numbers, np.float32).reshape(*scales.shape[:-1], -1)


def packed(tensors):
    """Tensors with random blocks for the experts, and what they are decoded to."""
    rng = np.random.default_rng(0)
    blocks, plain = dict(tensors), dict(tensors)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, rows, columns = tensors[name].shape
        blocks.pop(name)
        blocks[f"{name}_blocks"] = rng.integers(0, 256, (experts, columns, rows // 32, 16)).astype(np.uint8)
        blocks[f"{name}_scales"] = rng.integers(120, 126, (experts, columns, rows // 32)).astype(np.uint8)
        plain[name] = np.swapaxes(by_hand(blocks[f"{name}_blocks"], blocks[f"{name}_scales"]), 1, 2).copy()
    return blocks, plain


def write(folder, tensors, **changes):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(RAW | changes))
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return str(folder)


def test_packed_experts_are_those_that_blocks_are_by_hand(tmp_path):
    blocks, plain = packed(draw_tensors("gpt_oss", published_tensors(RAW).shapes))
    ours, theirs = open_checkpoint(write(tmp_path / "a", blocks)), open_checkpoint(write(tmp_path / "b", plain))
    experts = "model.layers.0.mlp.experts"
    up, down = (plain[f"{experts}.{name}"] for name in ("gate_up_proj", "down_proj"))
    for number in range(3):
        expert = ours.params[f"decoder.0.expert.{number}"]
        assert np.array_equal(expert["w1"], up[number, :, ::2]) and np.array_equal(expert["w3"], up[number, :, 1::2])
        assert np.array_equal(expert["w2"], down[number])
    assert ours.params.weights.kind(f"{experts}.down_proj") == "MXFP4"
    ids, logits = np.array([[1, 5, 3, 9, 2, 7]]), []
    for one in (ours, theirs):
        core = model.Model(one.config, one.params)
        logits.append(model.head_logits(core, model.run(core, one.config.plan("decoder"), ids, model.Context())))
    # the layouts of the two in memory differ, by which BLAS chooses its loops
    assert np.abs(logits[0] - logits[1]).max() <= 1e-6 * np.abs(logits[1]).max()


@pytest.mark.parametrize("kind", ["scales of other groups", "other dtype", "another way"])
def test_blocks_that_do_not_fit_are_refused(tmp_path, kind):
    blocks, _ = packed(draw_tensors("gpt_oss", published_tensors(RAW).shapes))
    name, changes = "model.layers.0.mlp.experts.down_proj", {}
    if kind == "scales of other groups":
        blocks[f"{name}_scales"] = blocks[f"{name}_scales"][..., :0]
    elif kind == "other dtype":
        blocks[f"{name}_blocks"] = blocks[f"{name}_blocks"].astype(np.int16)
    else:
        changes = {"quantization_config": {"quant_method": "fp8"}}
    with pytest.raises(DataError, match="quant_method 'fp8' is not" if changes else rf"tensor '{name}_blocks' is"):
        open_checkpoint(write(tmp_path / "a", blocks, **changes))


def test_rows_of_packed_experts_are_those_of_the_whole(tmp_path):
    blocks, plain = packed(draw_tensors("gpt_oss", published_tensors(RAW).shapes))
    weights = open_checkpoint(write(tmp_path / "a", blocks)).params.weights
    name = "model.layers.0.mlp.experts.down_proj"
    assert np.array_equal(weights.tensor(name), plain[name])
    assert np.array_equal(weights.rows(name, 1), plain[name][1])


@pytest.mark.parametrize(("shape", "is_read"), [((4, 2, 16), True), ((3, 4, 2, 16), True), ((2, 16), False)])
def test_a_packed_matrix_has_rows_and_groups(shape, is_read, tmp_path):
    tensors = {"w_blocks": np.full(shape, 0x22, np.uint8), "w_scales": np.full(shape[:-1], 127, np.uint8)}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    weights = open_weights(str(tmp_path))
    if is_read:
        found = join_packed(weights).tensor("w")
        assert found.shape == (*shape[:-3], 64, 4) and (found == 1).all()
    else:
        with pytest.raises(DataError, match=r"tensor 'w_blocks' is uint8 \(2, 16\) and its scales uint8 \(2,\)"):
            join_packed(weights)
