"""What a folder holds, and every way in which it may be bad."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit.checkpoints import Checkpoint, as_float, checkpoint, open_checkpoint
from attnkit.checkpoints.marian_native import parse_options
from attnkit.errors import AttnkitError, DataError, FileError
from attnkit.formats import Record, encode
from attnkit.formats.dtypes import dtype_of
from tests.faults.bad_pytorch import BAD, FOLDER, archive, tensor

GPT2 = {"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 8, "vocab_size": 6}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 548105171\n"
PYTORCH = FOLDER / "shards"
INDEX = "model.safetensors.index.json"
MODELS = FOLDER.parent / "models"
BIG = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}


def gpt2_shapes(config):
    width = config["n_embd"]
    shapes = {"wte.weight": (config["vocab_size"], width), "wpe.weight": (config["n_positions"], width)}
    for number in range(config["n_layer"]):
        at = f"h.{number}"
        for name, out in {"attn.c_attn": 3 * width, "attn.c_proj": width, "mlp.c_fc": 4 * width}.items():
            shapes |= {f"{at}.{name}.weight": (width, out), f"{at}.{name}.bias": (out,)}
        shapes |= {f"{at}.mlp.c_proj.weight": (4 * width, width), f"{at}.mlp.c_proj.bias": (width,)}
        shapes |= {f"{at}.{name}": (width,) for name in ("ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias")}
    return shapes | {"ln_f.weight": (width,), "ln_f.bias": (width,)}


@pytest.fixture
def tensors():
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in gpt2_shapes(GPT2).items()}


def write(folder, tensors, config=GPT2):
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if tensors is not None:
        safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    return str(folder)


def fault(folder) -> AttnkitError:
    with pytest.raises(AttnkitError) as caught:
        open_checkpoint(str(folder))
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_model(tmp_path, tensors):
    model = open_checkpoint(write(tmp_path, tensors))
    assert isinstance(model, Checkpoint) and model.raw == GPT2 and model.folder == str(tmp_path)
    assert model.tensors()["wte.weight"] == ("float32", (6, 4))
    assert model.parameter_count == sum(array.size for array in tensors.values())
    assert np.array_equal(model.tensor("h.0.ln_1.bias"), tensors["h.0.ln_1.bias"])
    assert np.array_equal(model.tensor("h.0.ln_1.bias"), tensors["h.0.ln_1.bias"])
    digests = {path: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in model.digests()}
    assert digests == model.digests() and len(digests) == 2


def test_parameters_are_views_of_the_file_and_made_once(tmp_path, tensors):
    model = open_checkpoint(write(tmp_path, tensors))
    parameters = model.params["decoder.0.self"]
    assert parameters is model.params["decoder.0.self"]
    assert not parameters["wq"].flags.owndata and not parameters["wq"].flags.writeable
    assert np.shares_memory(model.params["head"]["w"], model.params["decoder.embed"]["table"])


def test_a_name_that_is_not_there_has_neighbours(tmp_path, tensors):
    model = open_checkpoint(write(tmp_path, tensors))
    with pytest.raises(DataError, match=r"no tensor 'h\.0\.ln_1\.wait' \(near: h\.0\.ln_1\.weight"):
        model.tensor("h.0.ln_1.wait")
    with pytest.raises(DataError, match=r"near: decoder\.0\.norm1\.gamma, decoder\.0\.norm1\.beta\)"):
        model.tensor("decoder.0.norm1")
    with pytest.raises(DataError, match=r"no tensor 'zzzzzz'$"):
        model.tensor("zzzzzz")


def test_the_parameters_of_gpt2_small_are_counted_without_reading_them(tmp_path):
    entries, at = {}, 0
    for name, shape in gpt2_shapes(BIG).items():
        size = 4 * int(np.prod(shape))
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries).encode()
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)  # a file with a hole: no byte of it is on the disk
    model = open_checkpoint(write(tmp_path, None, BIG))
    assert model.parameter_count == 124_439_808


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_floats(dtype, tmp_path, tensors):
    stored = {name: array.astype(dtype_of(dtype)) for name, array in tensors.items()}
    write(tmp_path, None)
    (tmp_path / "model.safetensors").write_bytes(b"".join(encode(Record(stored), "safetensors")))
    model = open_checkpoint(str(tmp_path))
    wide = np.float64 if dtype == "float64" else np.float32
    expected = stored["h.0.attn.c_attn.weight"].astype(wide)[:, 4:8]
    weight = model.params["decoder.0.self"]["wk"]
    assert weight.dtype == wide and np.array_equal(weight, expected)
    assert np.shares_memory(model.params["head"]["w"], model.params["decoder.embed"]["table"])


def test_every_bfloat16_widens_exactly():
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = as_float(every.view(dtype_of("bfloat16")))
    assert np.array_equal(wide.view(np.uint32), every.astype(np.uint32) << 16)


def test_every_float16_widens_exactly():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    expected, wide = every.astype(np.float32), as_float(np.stack([every, every[::-1]]))
    assert np.array_equal(wide[0].view(np.uint32), expected.view(np.uint32))
    finite = np.isfinite(expected)
    blocks = as_float(np.repeat(every[finite], 3))
    assert blocks.view(np.uint32).tolist() == np.repeat(expected[finite], 3).view(np.uint32).tolist()


def test_no_folder(tmp_path, tensors):
    assert isinstance(fault(tmp_path / "missing"), FileError)
    assert fault(tmp_path / "missing").problem.startswith("no such folder; a model is a local folder as published")
    write(tmp_path, tensors)
    assert fault(tmp_path / "config.json").problem == f"not a folder; did you mean {tmp_path}?"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("", "line 1 column 1"),
        ({"model_type": "blip"}, "model_type 'blip' is not known (expected albert, bamba, bart, bert, "),
        ({"model_type": "../gpt2"}, "model_type '../gpt2' is not known"),
        (GPT2 | {"n_embd": None}, "n_embd is missing (expected a whole number)"),
        (GPT2 | {"n_embd": True}, "n_embd is 'True' (expected a whole number"),
        (GPT2 | {"n_embd": 0}, "n_embd is '0' (expected a whole number"),
        (GPT2 | {"layer_norm_epsilon": "small"}, "layer_norm_epsilon is 'small' (expected a number"),
        (GPT2 | {"activation_function": "mish"}, "activation_function 'mish' is not supported (use relu, "),
        (GPT2 | {"scale_attn_weights": 1}, "scale_attn_weights is '1' (expected true or false)"),
        (GPT2 | {"eos_token_id": "</s>"}, "eos_token_id is '</s>' (expected an id or a list of ids)"),
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention is not supported"),
        (GPT2 | {"decoder_start_token_id": 6}, "decoder_start_token_id 6 is outside the vocabulary of 6"),
    ],
)
def test_bad_configurations(config, problem, tmp_path, tensors):
    write(tmp_path, tensors, config)
    error = fault(tmp_path)
    assert isinstance(error, DataError) and error.name == str(tmp_path / "config.json")
    assert error.problem.startswith(problem)


@pytest.mark.parametrize(
    ("model", "settings", "problem"),
    [
        (
            "bert",
            {"position_embedding_type": "relative_key"},
            "position_embedding_type 'relative_key' is not supported",
        ),
        ("bert", {"is_decoder": True}, "is_decoder is not supported"),
        ("llama", {"num_key_value_heads": 3}, "num_attention_heads 4 is not divisible by num_key_value_heads 3"),
        ("llama", {"rope_scaling": {"type": "magic"}, "rope_parameters": None}, "rope_type 'magic' is not supported"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types is not a list of 2"),
        ("vit", {"image_size": [1, 2, 3]}, "image_size is '[1, 2, 3]' (expected a whole number or two)"),
        ("vit", {"patch_size": 64}, "image_size 32x32 is smaller than patch_size 64x64"),
        ("vit", {"id2label": {"0": "a", "2": "b"}}, "id2label does not name the classes 0 to 1"),
        ("t5", {"feed_forward_proj": "gated-mish"}, "feed_forward_proj 'gated-mish' is not supported"),
        ("marian", {"bad_words_ids": [3]}, "bad_words_ids is '[3]' (expected a list of lists of ids)"),
    ],
)
def test_bad_choices_of_other_families(model, settings, problem, tmp_path):
    source = Path(__file__).parent.parent / "references" / "models" / model
    (tmp_path / "config.json").write_text(json.dumps(json.loads((source / "config.json").read_text()) | settings))
    (tmp_path / "model.safetensors").symlink_to(source / "model.safetensors")
    assert fault(tmp_path).problem.startswith(problem)


def test_no_weights(tmp_path):
    write(tmp_path, None)
    error = fault(tmp_path)
    assert isinstance(error, FileError)
    assert error.problem == "no weights (looked for model.safetensors, pytorch_model.bin, and their .index.json)"


def test_weights_of_pytorch(tmp_path, tensors):
    """Shards that torch.save wrote; safetensors are preferred to them, and to a single file."""
    for file in PYTORCH.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    expected = dict(np.load(PYTORCH.parent / "weights.npz"))
    model = open_checkpoint(str(tmp_path))
    assert {*model.tensors()} == {*expected}
    assert all(np.array_equal(model.tensor(name), array) for name, array in expected.items())
    assert len(model.digests()) == 4  # the configuration, the index and two shards
    (tmp_path / "pytorch_model.bin").write_bytes(archive({"w": tensor()}))
    assert fault(tmp_path).problem.startswith("no tensor 'wte.weight'")
    assert np.array_equal(open_checkpoint(write(tmp_path, tensors)).tensor("wte.weight"), tensors["wte.weight"])


def test_weights_of_pytorch_may_be_bad(tmp_path):
    """One line, with the file and what is wrong with it."""
    write(tmp_path, None)
    for content, *parts in (BAD["a whole module"], BAD["a number"], BAD["cut"], BAD["os.system, protocol 2"]):
        (tmp_path / "pytorch_model.bin").write_bytes(content)
        error = fault(tmp_path)
        assert error.name == str(tmp_path / "pytorch_model.bin") and all(part in error.problem for part in parts)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: data[:6], "truncated header: expected 8 bytes, got 6"),
        (lambda data: data[:100], "truncated header"),
        (lambda data: data[:-1], "truncated: the tensors need"),
        (lambda data: data + b"\0", "too long: the tensors need"),
        (lambda data: data.replace(b'"F32"', b'"F8X"', 1), "tensor "),
        (lambda data: data.replace(b'"h.0.ln_1.bias"', b'"h.0.ln_2.bias"', 1), "bad safetensors header: duplicate key"),
        (lambda data: data.replace(b"{", b"[", 1), "bad safetensors header: it does not begin with {"),
    ],
)
def test_bad_weights(change, problem, tmp_path, tensors):
    write(tmp_path, tensors)
    path = tmp_path / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))
    error = fault(tmp_path)
    assert isinstance(error, DataError) and error.name == str(path) and error.problem.startswith(problem)


def test_weights_that_are_no_file(tmp_path):
    write(tmp_path, None)
    (tmp_path / "model.safetensors").mkdir()
    assert isinstance(fault(tmp_path), FileError)


def test_a_missing_tensor_is_named_with_its_layer(tmp_path, tensors):
    del tensors["h.0.mlp.c_fc.bias"]
    error = fault(write(tmp_path, tensors))
    assert error.problem == "no tensor 'h.0.mlp.c_fc.bias' (b1 of decoder.0.ffn)"
    assert error.name == str(tmp_path / "model.safetensors")


def test_a_wrong_shape_is_named_with_both(tmp_path, tensors):
    tensors["h.0.attn.c_attn.weight"] = np.zeros((4, 8), np.float32)
    problem = "tensor 'h.0.attn.c_attn.weight' (wq of decoder.0.self) has shape (4, 8) (expected (4, 12))"
    assert fault(write(tmp_path, tensors)).problem == problem


def test_a_tensor_that_is_no_float(tmp_path, tensors):
    tensors["ln_f.bias"] = np.zeros(4, np.int64)
    assert fault(write(tmp_path, tensors)).problem.endswith("has dtype int64 (expected a float)")


def sharded(folder, tensors, weight_map=None):
    write(folder, None)
    names = list(tensors)
    for number, part in enumerate((names[:5], names[5:])):
        safetensors.numpy.save_file({name: tensors[name] for name in part}, folder / f"part-{number}.safetensors")
    places = {name: f"part-{int(name not in names[:5])}.safetensors" for name in names}
    index = {"metadata": {"total_size": 1}, "weight_map": places | (weight_map or {})}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return str(folder)


def test_shards(tmp_path, tensors):
    model = open_checkpoint(sharded(tmp_path, tensors))
    assert list(model.tensors()) == list(tensors)
    assert np.array_equal(model.params["decoder.norm"]["gamma"], tensors["ln_f.weight"])


@pytest.mark.parametrize(
    ("place", "kind", "problem"),
    [
        (
            "part-9.safetensors",
            FileError,
            f"no such file, which {INDEX} names for tensor 'wte.weight'",
        ),
        ("part-1.safetensors", DataError, f"no tensor 'wte.weight', which {INDEX} says is here"),
        ("../part-0.safetensors", DataError, "tensor 'wte.weight': '../part-0.safetensors' is not the name of a file"),
        (7, DataError, "tensor 'wte.weight': '7' is not the name of a file"),
    ],
)
def test_bad_shards(place, kind, problem, tmp_path, tensors):
    error = fault(sharded(tmp_path, tensors, {"wte.weight": place}))
    assert isinstance(error, kind) and error.problem == problem


def test_an_index_without_a_map(tmp_path):
    write(tmp_path, None)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert fault(tmp_path).problem == "weight_map is missing or empty"


def native(folder, yml="type: transformer\n", **tensors):
    np.savez(folder / "model.npz", **{"special:model.yml": np.frombuffer(yml.encode() + b"\0", np.uint8)}, **tensors)
    return folder


@pytest.mark.parametrize(
    ("yml", "problem"),
    [
        ("type: transformer", "dim-emb is missing (expected a whole number)"),
        ("type: s2s", "type 's2s' is not supported (expected 'transformer')"),
        ("transformer-preprocess: n", "transformer-preprocess 'n' is not supported (expected '')"),
        ("transformer-postprocess: da", "transformer-postprocess 'da' is not supported (expected 'dan')"),
        ("dim-emb: 8\ndim-vocabs: [3]", "dim-vocabs is not a list of two whole numbers"),
        ("a: 1\nb", "special:model.yml: line 2: neither `key: value` nor an item of a list"),
        ("a: 1\na: 2", "special:model.yml: line 2: key 'a' occurs twice"),
        ("a: 1\n  - 2", "special:model.yml: line 2: neither `key"),
    ],
)
def test_bad_options_of_marian(yml, problem, tmp_path):
    error = fault(native(tmp_path, yml))
    assert error.problem == problem or (problem.endswith("`key") and error.problem.startswith(problem))
    assert error.name == str(tmp_path / "model.npz")


def test_an_npz_of_something_else(tmp_path):
    np.savez(tmp_path / "model.npz", x=np.ones(2))
    assert "not a model of Marian" in fault(tmp_path).problem
    (tmp_path / "model.npz").write_text(POINTER)
    assert "Git LFS pointer" in fault(tmp_path).problem


def test_the_options_of_marian():
    text = '# by\nname: "a b"\nlist: [1, 2]\nempty:\n  []\nitems:\n  - x\n  - 2\nrate: 0.5\nsmall: 1e-09\nend: v1.9 c'
    assert parse_options(text, "") == {
        "name": "a b", "list": [1, 2], "empty": [], "items": ["x", 2], "rate": 0.5, "small": 1e-9, "end": "v1.9 c",
    }  # fmt: skip


READ = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
)


@pytest.mark.parametrize("file", READ)
def test_a_fifo_in_the_folder_of_a_model_is_refused_and_not_waited_for(file, tmp_path):
    shutil.copytree(MODELS / "gpt2", tmp_path / "m")
    (tmp_path / "m" / file).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "m" / file)
    with pytest.raises(FileError, match=rf"{file}: not a regular file"):
        attnkit.decode("a cat", model=str(tmp_path / "m"), max_tokens=1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_numbers_of_large_arrays_are_widened_exactly(dtype, monkeypatch):
    monkeypatch.setattr(checkpoint, "BLOCK", 8)
    array = np.array([1.5, -2.0, 6e-8, -6e-5, 0.1, -3e4, np.inf, -np.inf, np.nan, 0.0, -0.0] * 3).astype(dtype)
    found = as_float(array.reshape(3, -1))
    assert found.dtype == (np.float64 if dtype is np.float64 else np.float32) and found.shape == (3, 11)
    assert np.array_equal(found.ravel(), array.astype(found.dtype), equal_nan=True)
    assert np.array_equal(np.signbit(found.ravel()), np.signbit(array.astype(found.dtype)))
