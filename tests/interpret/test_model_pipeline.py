"""The law of pipelines: the one that show prints for a model is bit for bit the model run whole, text or batch."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit import formats, model
from attnkit.checkpoints import open_checkpoint
from attnkit.cli import operands, pipeline
from attnkit.inputs import layers
from attnkit.interpret.model_summary import shell_pipeline
from attnkit.records import Record, Tensor
from tests import process
from tests.places import MODELS
from tests.registry import COPIES, REGISTRY, load_core, make_batch, place_of

NAMES = ("bert-mlm", "gpt2", "gpt2-scaled", "openai-gpt", "llama", "llama-dynamic", "mistral", "qwen2", "t5",
         "t5-gated", "marian", "vit", "transformer", "transformer-prenorm", "roberta", "distilbert", "albert-groups",
         "electra", "mpnet", "modernbert", "deberta-v3", "deberta-v2")  # fmt: skip
SIDES = [(name, ("right", "left")[at % 2]) for at, name in enumerate(NAMES) if name != "vit"]  # of the padding


@cache
def checkpoint(name):
    return open_checkpoint(str(MODELS / name))


@pytest.fixture(autouse=True)
def open_each_model_once(monkeypatch):
    """All stages of a pipeline read one checkpoint, which takes a third of the time of one for each."""
    monkeypatch.setattr(operands, "load_model", cache(operands.load_model))


def ran(text):
    """The record that a pipeline makes, in this process."""
    [record] = pipeline.chain_stages(pipeline.parse_stages(text)).items
    return record


def printed(config, place, part, path, memory_path):
    """The pipeline of a part, which reads its input from a file."""
    text = shell_pipeline(config, place, part).replace("\\\n", "").replace("memory.npz", memory_path)
    text = text.replace("shifted.npz", path)
    if "attnkit embed" in text:
        return text.replace('"TEXT"', f"--ids {path}").replace("IMAGE", path)
    tool, flags = text.split(" --", 1)
    return f"{tool} {path} --{flags}"


def left_by(step):
    return f"{step.layer}.residual" if step.adds_residual else step.layer


@pytest.mark.filterwarnings("ignore:the result is -inf")  # for words that Marian never writes
@pytest.mark.parametrize("name", [name for name in REGISTRY if not name.startswith(COPIES)])
def test_the_printed_pipeline_has_the_bits_of_the_model(name, tmp_path):
    """That of each stack, of the last layer of some, and of the last stack with the head."""
    core, place, known = load_core(name), place_of(name), {}
    config, path, memory = core.config, str(tmp_path / "input.npz"), str(tmp_path / "memory.npz")
    batch = make_batch(config).alone(0)
    for stack in config.stacks:
        x, kept, steps = batch.first(stack, config)[0], {}, config.plan(stack)
        hook = model.no_hook if config.is_recurrent else lambda name: lambda array: kept.setdefault(name, array)  # noqa: B023
        context = model.Context(hook=hook, **known)
        last = model.run(core, steps, x, context)
        if name in NAMES:
            own = model.layer_steps(config, stack, config.stack(stack).layers - 1)
            at = steps.index(own[0])
            formats.save(Record({"x": kept[left_by(steps[at - 1])] if at else x}), path)
            made = ran(printed(config, place, f"{stack}.{config.stack(stack).layers - 1}", path, memory))
            np.testing.assert_array_equal(made["x"], kept[left_by(own[-1])])
        formats.save(Record({"x": x}), path)
        made = ran(printed(config, place, stack, path, memory))
        np.testing.assert_array_equal(made["x"], last)
        known = {"memory": last, "source_states": context.last_states()}
        if stack != config.stacks[-1]:
            formats.save(made, memory)
    if config.head:
        head = shell_pipeline(config, place, "all").rpartition("| attnkit decode")[2]
        made = ran(f"{printed(config, place, stack, path, memory)} | attnkit decode --emit logits {head}")
        np.testing.assert_array_equal(made["x"], model.head_logits(core, last))


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
