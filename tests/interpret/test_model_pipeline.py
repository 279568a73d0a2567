"""A model by pieces: the pipeline that show prints is bit for bit the model run whole."""

import itertools
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit import formats, model
from attnkit.checkpoints import open_checkpoint
from attnkit.cli import pipeline
from attnkit.inputs import layers
from attnkit.interpret.model_summary import shell_pipeline
from attnkit.records import Record, Tensor
from tests import process
from tests.drawing import drawn_models, write_model
from tests.places import MODELS, arrays, frozen

NAMES = ("bert-mlm", "gpt2", "gpt2-scaled", "openai-gpt", "llama", "llama-dynamic", "mistral", "qwen2", "t5",
         "t5-gated", "marian", "vit", "transformer", "transformer-prenorm", "roberta", "distilbert", "albert-groups",
         "electra", "mpnet", "modernbert", "deberta-v3", "deberta-v2")  # fmt: skip
SIDES = [(name, ("right", "left")[at % 2]) for at, name in enumerate(NAMES) if name != "vit"]  # of the padding


@cache
def checkpoint(name):
    return open_checkpoint(str(MODELS / name))


def ran(text):
    """The record that a pipeline makes, in this process."""
    [record] = pipeline.chain_stages(pipeline.parse_stages(text)).items
    return record


def traced(name, stack, inputs, memory=None):
    """Every intermediate of a stack run whole, and its result."""
    kept = {}
    context = model.Context(memory=memory, hook=lambda name: lambda array: kept.setdefault(name, array))
    core = layers.core_model(checkpoint(name))
    return kept, model.run(core, core.config.plan(stack), inputs, context)


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
    text = shell_pipeline(checkpoint(name).config, str(MODELS / name), part)
    text = text.replace("memory.npz", f"{folder}/memory.npz")
    if "attnkit embed" in text:
        return text.replace('"TEXT"', f"--ids {path}").replace("IMAGE", path).replace("\\\n", "")
    tool, flags = text.replace("\\\n", "").split(" --", 1)
    return f"{tool} {path} --{flags}"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_part_of_every_model_is_its_pipeline(name, tmp_path):
    config, memory, path = checkpoint(name).config, None, str(tmp_path / "input.npz")
    for stack in config.stacks:
        inputs = given(name, stack)
        kept, last = traced(name, stack, inputs, memory)
        formats.save(Record({"x": inputs}), path)
        np.testing.assert_array_equal(ran(pieces(name, stack, path, tmp_path))["x"], last)
        before = inputs
        for step in config.plan(stack):
            if model.parse_layer_name(step.layer)[1] is not None:
                break
            before = kept[step.layer]
        for number in range(config.stack(stack).layers):
            end = model.layer_steps(config, stack, number)[-1]
            formats.save(Record({"x": before}), path)
            before = kept[f"{end.layer}.residual" if end.adds_residual else end.layer]
            np.testing.assert_array_equal(ran(pieces(name, f"{stack}.{number}", path, tmp_path))["x"], before)
        memory = last
        formats.save(Record({"x": last}), str(tmp_path / "memory.npz"))


@pytest.mark.parametrize("name", drawn_models())
def test_every_drawn_model_is_its_pipeline(name, tmp_path):
    """The bits of the whole from its ids to its logits."""
    opened = open_checkpoint(str(write_model(name, tmp_path)))
    config, core, path = opened.config, layers.core_model(opened), str(tmp_path / "input.npz")
    ids = arrays("decoders")[f"{name}/ids"][0]
    whole = model.head_logits(core, model.run(core, config.plan("decoder"), ids, model.Context()))
    formats.save(Record({"x": ids}), path)
    line = shell_pipeline(config, str(tmp_path), "all").replace("\\\n", "").replace('"TEXT"', f"--ids {path}")
    top = ran(line.replace("attnkit decode", "attnkit decode --top 1 --emit logits"))
    np.testing.assert_array_equal(top["x"], whole)


@pytest.mark.slow
def test_the_printed_line_runs_in_a_shell_and_gives_the_bytes_of_encode(tmp_path):
    (tmp_path / "model").symlink_to(MODELS / "bert-mlm")
    line = process.run("show", "model", "--pipeline", "encoder", cwd=tmp_path).out.decode()
    line = line.replace("TEXT", "the cat sat").rstrip()
    code, made, err = process.bash(f"{line} -f npz --only x,ids", cwd=tmp_path)
    assert code == 0, err
    whole = attnkit.encode("the cat sat", model=str(MODELS / "bert-mlm"))
    [record] = formats.read(formats.Source.of(made))
    for key in ("x", "ids"):
        np.testing.assert_array_equal(record[key], whole[key])
    assert record.labels == whole.labels


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*rows of the weights are all zeros")  # those of the padding on the left
@pytest.mark.parametrize(
    ("name", "side"),
    [*itertools.product(["gpt2", "llama", "openai-gpt"], ["batch", "left"]), ("bert-mlm", "batch"), ("t5", "batch")],
)
def test_padded_batches_by_pieces(name, side, tmp_path):
    about = frozen(name)
    path, stack = str(tmp_path / "batch.npz"), checkpoint(name).config.stacks[0]
    mask = about[f"{side}_mask"][:, None].astype(bool)
    record = Record({"x": about[f"{side}_ids"], "ids": about[f"{side}_ids"], "mask": mask})
    whole = attnkit.encode(record, model=str(MODELS / name))
    ids = masked_record(about[f"{side}_ids"], mask)
    formats.save(attnkit.embed(model=str(MODELS / name), ids=ids), path)
    text = shell_pipeline(checkpoint(name).config, str(MODELS / name), stack).replace("\\\n", "")
    _, rest = text.split("|", 1)
    tool, flags = rest.split(" --", 1)
    np.testing.assert_array_equal(ran(f"{tool} {path} --{flags}")["x"], whole["x"])


LENGTHS = ([6, 4, 1], [5, 2, 7])  # of the texts of the first stack, and of the last


def real_tokens(lengths, side):
    """A mask (B, 1, T) of texts of these lengths, padded on one side."""
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    return (mask if side == "right" else mask[:, ::-1])[:, None].copy()


def padded_batch(name, stack, side):
    """Ids, or x, of three texts of unlike lengths for a stack, and the mask of their padding."""
    config, rng = checkpoint(name).config, np.random.default_rng(0)
    mask = real_tokens(LENGTHS[stack == config.stacks[-1]], side)
    vocab = config.stack(stack).vocab
    if vocab:
        return rng.integers(0, vocab, (3, mask.shape[-1])), mask
    return rng.standard_normal((3, mask.shape[-1], config.width)).astype(np.float32), mask


def context(mask, **known):
    return model.Context(mask=mask, positions=model.token_positions(mask), **known)


def masked_record(x, mask):
    return Record({"x": x, "mask": Tensor(mask, ("batch", "all queries", "key"))})


def after_embedding(name, stack, inputs):
    """What the first step that is no embedding takes, and its pipeline without that step."""
    text = shell_pipeline(checkpoint(name).config, str(MODELS / name), stack).replace("\\\n", "")
    if inputs.dtype.kind == "f":
        return inputs, text
    core = layers.core_model(checkpoint(name))
    return model.embed_tokens(core, f"{stack}.embed", inputs, model.Context()), text.split("|", 1)[1]


def piped(text, path, memory_path):
    """The record that the printed pipeline makes of the record in a file."""
    tool, flags = text.replace("memory.npz", memory_path).split(" --", 1)
    return ran(f"{tool} {path} --{flags}")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*rows of the weights are all zeros")  # those of the padding on the left
@pytest.mark.parametrize(("name", "side"), SIDES)
def test_the_printed_pipelines_of_a_padded_batch_are_the_model_run_whole(name, side, tmp_path):
    core, known = layers.core_model(checkpoint(name)), {}
    path, memory_path = str(tmp_path / "input.npz"), str(tmp_path / "memory.npz")
    for stack in core.config.stacks:
        inputs, mask = padded_batch(name, stack, side)
        whole = model.run(core, core.config.plan(stack), inputs, context(mask, **known))
        x, text = after_embedding(name, stack, inputs)
        formats.save(masked_record(x, mask), path)
        made = piped(text, path, memory_path)
        np.testing.assert_array_equal(made["x"], whole)
        formats.save(made, memory_path)
        known = {"memory": whole, "memory_mask": mask}


def by_steps(name, stack, record, memory, offset, past):
    """The record through the tools, one after another, and the keys and values of each layer of self-attention."""
    config, present, residual = checkpoint(name).config, {}, record
    for step in config.plan(stack):
        given = {"model": str(MODELS / name), "layer": step.layer}
        before = residual if step.adds_residual == "saved" else record
        residual = record if step.saves_residual else residual
        if step.op == "posenc":
            given |= {"offset": offset}
        if step.op == "attend" and step.layer.endswith("self"):
            given |= {"keep": "present"} | past.get(step.layer, {})
        elif step.op == "attend":
            given |= {"memory": memory}
        if step.adds_residual:
            given |= {"add": before["x"]}
        if step.op != "embed":
            record = getattr(attnkit, step.op)(record, **given)
        if step.op == "attend" and step.layer.endswith("self"):
            present[step.layer] = {f"past_{part}": record[f"present_{part}"] for part in ("key", "value")}
    return record, present


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*rows of the weights are all zeros")
@pytest.mark.parametrize(("name", "side"), [one for one in SIDES if checkpoint(one[0]).config.decoder])
def test_a_padded_batch_goes_on_from_a_cache_by_pieces_as_it_does_whole(name, side):
    core, known, memory = layers.core_model(checkpoint(name)), {}, None
    if core.config.encoder:
        inputs, mask = padded_batch(name, "encoder", side)
        states = model.run(core, core.config.plan("encoder"), inputs, context(mask))
        known, memory = {"memory": states, "memory_mask": mask}, masked_record(states, mask)
    inputs, mask = padded_batch(name, "decoder", side)
    cache, past, positions = model.KVCache(), {}, model.token_positions(mask)
    for part in (slice(0, 4), slice(4, 6), slice(6, 7)):
        seen = mask[..., : part.stop]
        about = model.Context(mask=seen, positions=positions[:, part], cache=cache, **known)
        whole = model.run(core, core.config.plan("decoder"), inputs[:, part], about)
        x, _ = after_embedding(name, "decoder", inputs[:, part])
        made, past = by_steps(name, "decoder", masked_record(x, seen), memory, part.start, past)
        np.testing.assert_array_equal(made["x"], whole)


def test_a_translation_of_a_padded_batch_by_pieces_in_a_shell(tmp_path):
    folder = Path(__file__).parent.parent.parent / "samples" / "data" / "fr-en"
    (tmp_path / "model").symlink_to(folder)
    script = (
        'attnkit encode --model model "le chat noir dort" "je suis étudiant" -o memory.npz &&'
        'attnkit decode --model model --score "I am a student" --trace t.npz -o s.npz < memory.npz &&'
        "attnkit show model --pipeline decoder"
        """ | sed 's/"TEXT"/"I am a student" "I am a student"/; $ s/$/ -o piece.npz/' > pipe.sh &&"""
        "source ./pipe.sh &&"
        "attnkit diff piece.npz:x t.npz:decoder.1.norm3"
    )
    done = process.bash(script, cwd=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[2].split()[:2] == [b"x", b"0"]
