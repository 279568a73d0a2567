"""A model by pieces: the pipeline that show prints is bit for bit the model run whole."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit import layers, model, pipelines, tensors
from attnkit.checkpoints import open_checkpoint
from attnkit.recipes import recipe
from attnkit.tensors.record import Record

MODELS = Path(__file__).parent / "references" / "models"
NAMES = ("bert", "bert-mlm", "gpt2", "gpt2-scaled", "openai-gpt", "llama", "llama3", "llama-dynamic", "mistral",
         "qwen2", "t5", "t5-gated", "marian", "marian-native", "vit", "transformer", "transformer-prenorm")  # fmt: skip


@cache
def frozen(name):
    with np.load(MODELS / f"{name}.npz") as members:
        return dict(members)


@cache
def checkpoint(name):
    return open_checkpoint(str(MODELS / name))


def ran(text):
    """The record that a pipeline makes, in this process."""
    [record] = pipelines.chained(pipelines.stages(text)).items
    return record


def traced(name, stack, inputs, memory=None):
    """Every intermediate of a stack run whole, and its result."""
    kept = {}
    context = model.Context(memory=memory, visit=lambda name: lambda array: kept.setdefault(name, array))
    core = layers.of(checkpoint(name))
    return kept, model.run(core, model.program(core.config, stack), inputs, context)


def given(name, stack):
    """Ids, an image or x for a stack of a model."""
    about = frozen(name)
    if "pixels" in about:
        return about["pixels"][0]
    if name.startswith("transformer"):
        return about["x" if stack == "encoder" else "tgt"].astype(np.float32)
    config = checkpoint(name).config
    key = "ids" if stack == config.stacks[0] else "decoder_ids" if "decoder_ids" in about else "start.decoder_ids"
    return np.where(about[key][0] < 0, config.special.start or 0, about[key][0])


def pieces(name, part, path, folder):
    """The pipeline of a part, which reads its input from a file."""
    text = recipe(checkpoint(name).config, str(MODELS / name), part)
    text = text.replace("memory.npz", f"{folder}/memory.npz")
    if "attnkit embed" in text:
        return text.replace('"TEXT"', f"--ids {path}").replace("IMAGE", path).replace("\\\n", "")
    tool, flags = text.replace("\\\n", "").split(" --", 1)
    return f"{tool} {path} --{flags}"


@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_every_model_is_its_pipeline(name, tmp_path):
    config, memory, path = checkpoint(name).config, None, str(tmp_path / "input.npz")
    for stack in config.stacks:
        inputs = given(name, stack)
        kept, last = traced(name, stack, inputs, memory)
        tensors.save(Record({"x": inputs}), path)
        np.testing.assert_array_equal(ran(pieces(name, stack, path, tmp_path))["x"], last)
        before = inputs
        for step in model.program(config, stack):
            if model.place_of(step.layer)[1] is not None:
                break
            before = kept[step.layer]
        for number in range(config.stack(stack).layers):
            end = model.layer_steps(config, stack, number)[-1]
            tensors.save(Record({"x": before}), path)
            before = kept[f"{end.layer}.residual" if end.residual else end.layer]
            np.testing.assert_array_equal(ran(pieces(name, f"{stack}.{number}", path, tmp_path))["x"], before)
        memory = last
        tensors.save(Record({"x": last}), str(tmp_path / "memory.npz"))


def test_the_printed_line_runs_in_a_shell_and_gives_the_bytes_of_encode(tmp_path):
    (tmp_path / "model").symlink_to(MODELS / "bert-mlm")
    attnkit_ = [sys.executable, "-m", "attnkit"]
    line = subprocess.run(
        [*attnkit_, "show", "model", "--pipeline", "encoder"], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    line = line.replace("attnkit ", f"{sys.executable} -m attnkit ").replace("TEXT", "the cat sat").rstrip()
    made = subprocess.run(
        ["bash", "-c", f"{line} -f npz --only x,ids"], cwd=tmp_path, capture_output=True, check=True
    ).stdout
    whole = attnkit.encode("the cat sat", model=str(MODELS / "bert-mlm"))
    [record] = tensors.read(tensors.Source.of(made))
    for key in ("x", "ids"):
        np.testing.assert_array_equal(record[key], whole[key])
    assert record.labels == whole.labels


@pytest.mark.filterwarnings("ignore:.*rows of weights are zeros")  # those of the padding on the left
@pytest.mark.parametrize("side", ["batch", "left"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "openai-gpt", "bert-mlm", "t5"])
def test_padded_batches_by_pieces(name, side, tmp_path):
    about = frozen(name)
    if f"{side}_ids" not in about:
        pytest.skip("an encoder is padded on the right")
    path, stack = str(tmp_path / "batch.npz"), checkpoint(name).config.stacks[0]
    mask = about[f"{side}_mask"][:, None].astype(bool)
    record = Record({"x": about[f"{side}_ids"], "ids": about[f"{side}_ids"], "mask": mask})
    whole = attnkit.encode(record, model=str(MODELS / name))
    ids = Record({"x": about[f"{side}_ids"]})
    x = attnkit.embed(model=str(MODELS / name), ids=ids["x"]).put(
        {"mask": mask}, {"mask": ("batch", "all queries", "key")}
    )
    tensors.save(x, path)
    text = recipe(checkpoint(name).config, str(MODELS / name), stack).replace("\\\n", "")
    _, rest = text.split("|", 1)
    tool, flags = rest.split(" --", 1)
    np.testing.assert_array_equal(ran(f"{tool} {path} --{flags}")["x"], whole["x"])
