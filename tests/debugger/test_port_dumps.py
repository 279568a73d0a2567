"""Dumps that other programs wrote (tests/references/make_port_dumps.py), compared with the models that they are of."""

import json
import shutil

import pytest

from attnkit.checkpoints import open_checkpoint
from attnkit.debugger.compare import Request, compare_with_model
from attnkit.debugger.dumps import open_dump
from tests.gguf_models import convert
from tests.places import REFERENCES, folder

PORTS = REFERENCES / "dumps" / "ports"
NEWER = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}


def judge(name, model):
    return compare_with_model(open_checkpoint(model), open_dump(str(PORTS / f"{name}.npz")), Request(why=True))


def causes(report):
    """The slips that are named, of all stages that differ."""
    assert all(row.verdict == "named" for row in report.rows if row.differs), repr(report)
    return {cause.name.partition(" are rounded")[2] or cause.name for row in report.rows for cause in row.causes}


# name of the dump -> how many stages of its model it has
CLEAN = {
    "mlx-llama": 27, "mlx-llama-bfloat16": 27,
    "transformer_lens-llama": 38, "transformer_lens-gpt2": 33, "transformer_lens-bert-mlm": 31,
    "transformer_lens-t5": 77, "transformer_lens-gpt2-processed": 12, "nnsight-gpt2": 24,
    "onnx-llama-torchscript": 43, "onnx-llama-dynamo": 43, "onnx-llama-basic": 43, "onnx-llama-extended": 33,
    "onnx-bert-mlm-torchscript": 40, "onnx-bert-mlm-dynamo": 39, "onnx-bert-mlm-basic": 38,
    "onnx-bert-mlm-extended": 28,
    "jax-gpt2-jit": 30, "jax-gpt2-vmap": 30,
    "hooks-albert": 5, "hidden_states-gpt2": 3, "left_padding-llama": 34, "bfloat16-llama": 34,
}  # fmt: skip


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_dump_is_the_same(name):
    model = next(one for one in ("bert-mlm", "llama", "gpt2", "albert", "t5") if f"-{one}" in name)
    report = judge(name, folder(model))
    assert report.same, repr(report)
    assert len(report.rows) == CLEAN[name]


# model -> how many stages, and the slips that are named
OF_LLAMA_CPP = {"llama": 39, "gpt2": 33, "phi3": 67, "mixtral": 71, "gemma2": 67}


@pytest.mark.parametrize("model", OF_LLAMA_CPP)
def test_a_clean_dump_of_llama_cpp_is_the_same(model, tmp_path):
    (tmp_path / "m.gguf").write_bytes(convert(model))
    report = judge(f"llama_cpp-{model}", str(tmp_path / "m.gguf"))
    assert report.same, repr(report)
    assert len(report.rows) == OF_LLAMA_CPP[model]


def test_keys_and_values_that_llama_cpp_keeps_in_float16_are_named():
    report = judge("llama_cpp-llama-f16", folder("llama"))
    assert {row.site.rpartition(".")[2] for row in report.rows if row.differs} == {"scores", "heads"}
    assert causes(report) == {" to float16"}


def test_processed_weights_of_transformer_lens_are_said():
    report = judge("transformer_lens-gpt2-processed", folder("gpt2"))
    assert report.facts.notes[0].startswith(
        "TransformerLens has processed the weights (norms folded, weights centered)"
    )
    assert not judge("transformer_lens-gpt2", folder("gpt2")).facts.notes


def test_a_window_that_mlx_ignores_is_named():
    report = judge("mlx-mistral-window", folder("mistral"))
    assert [row.site for row in report.rows if row.differs] == ["decoder.0.self.output", "decoder.1.self.output"]
    wide = "the window is 10 keys before a query instead of 5 (twice as wide)"  # which holds the whole text
    assert causes(report) == {"the window is missing", wide}


def test_a_theta_that_mlx_loses_is_named(tmp_path):
    shutil.copytree(folder("llama"), tmp_path / "llama")
    config = json.loads((tmp_path / "llama" / "config.json").read_text())
    del config["rope_theta"]
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config | NEWER))
    report = judge("mlx-llama-theta", str(tmp_path / "llama"))
    assert {row.site.rpartition(".")[2] for row in report.rows if row.differs} == {"q", "k"}
    assert causes(report) == {"rope_theta is 10000 instead of 500000"}
