"""The folder of a model: what is written opens again, as a whole or not at all."""

import json
import os

import numpy as np
import pytest
from safetensors import safe_open

from attnkit.checkpoints import open_checkpoint
from attnkit.errors import DataError, FileError
from attnkit.formats.dtypes import dtype_of
from attnkit.training.families import FAMILIES, new_config
from attnkit.training.folder import model_files, write_folder
from attnkit.training.initial_model import initial_tensors
from attnkit.training.recipe import Recipe


def new_config_of(family):
    recipe = Recipe(family, layers=1, heads=2, dim=8, dropout=0.1)
    return new_config(recipe, 16, 20, {"pad": 0, "eos": 1, "bos": 2})


def files_of(family, seed=0):
    raw = new_config_of(family)
    tensors = initial_tensors(raw, seed)
    return model_files(raw, tensors), tensors


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_opens_with_the_tensors_that_were_written(family, tmp_path):
    files, tensors = files_of(family)
    write_folder(str(tmp_path / "new" / "model"), files)
    checkpoint = open_checkpoint(str(tmp_path / "new" / "model"))
    assert checkpoint.config.family == family
    assert sorted(checkpoint.tensors()) == sorted(tensors)
    assert checkpoint.params.unused() == []
    for name, array in tensors.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), array)


def test_the_safetensors_library_reads_it_and_its_format(tmp_path):
    files, tensors = files_of("gpt2")
    write_folder(str(tmp_path), files)
    with safe_open(tmp_path / "model.safetensors", "numpy") as stored:
        assert stored.metadata()["format"] == "pt"
        for name, array in tensors.items():
            np.testing.assert_array_equal(stored.get_tensor(name), array)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "float32"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_model_is_stored_in_another_dtype(dtype, tmp_path):
    _, tensors = files_of("gpt2")
    write_folder(str(tmp_path), model_files(new_config_of("gpt2"), tensors, dtype))
    checkpoint = open_checkpoint(str(tmp_path))
    assert checkpoint.raw["torch_dtype"] == dtype
    for name, array in tensors.items():
        assert checkpoint.tensor(name).dtype.name == dtype
        np.testing.assert_array_equal(checkpoint.tensor(name), array.astype(dtype_of(dtype)))


def test_a_number_beyond_a_dtype_is_an_error():
    _, tensors = files_of("gpt2")
    tensors["transformer.wte.weight"][0, 0] = 70000
    with pytest.raises(DataError, match=r"'transformer.wte.weight' exceeds the range of float16; --dtype float32"):
        model_files(new_config_of("gpt2"), tensors, "float16")


def test_equal_models_are_equal_bytes(tmp_path):
    for name in ("a", "b"):
        write_folder(str(tmp_path / name), files_of("t5")[0])
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_failure_leaves_all_old_files(tmp_path):
    write_folder(str(tmp_path), files_of("gpt2", seed=1)[0])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "z.json").mkdir()
    with pytest.raises(FileError, match=r"cannot write .*z.json"):
        write_folder(str(tmp_path), {**files_of("gpt2", seed=2)[0], "z.json": [b"{}"]})
    os.rmdir(tmp_path / "z.json")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_in_place_of_the_folder(tmp_path):
    (tmp_path / "model").write_text("")
    with pytest.raises(FileError, match="model: cannot make this folder: "):
        write_folder(str(tmp_path / "model"), files_of("gpt2")[0])
