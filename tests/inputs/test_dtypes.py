"""The dtype that is requested of a model is the dtype of its result, whatever that of the file is."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import attnkit
from attnkit.errors import DataError, UsageError
from attnkit.records import Record
from tests.places import MODELS

FOLDERS = sorted(path.parent.name for path in MODELS.glob("*/config.json"))
FAMILIES = ["albert", "bert", "deberta-v2", "deberta-v3", "electra", "gpt2", "llama", "modernbert", "roberta", "t5"]
IDS = np.array([4, 1, 3, 5])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stored", ["float16", "float32", "float64"])
def test_the_result_has_the_dtype_that_is_requested(family, stored, tmp_path):
    folder = tmp_path / family
    shutil.copytree(MODELS / family, folder)
    for file in folder.glob("*.safetensors"):
        arrays = load_file(file)
        save_file({name: one.astype(stored) if one.dtype.kind == "f" else one for name, one in arrays.items()}, file)
    exact = attnkit.encode(model=str(folder), ids=IDS, dtype="float64")["x"]
    for dtype in ("float32", "float64"):
        x = attnkit.encode(model=str(folder), ids=IDS, dtype=dtype)["x"]
        assert x.dtype == dtype
        np.testing.assert_allclose(x, exact, rtol=0, atol=2e-5 * np.abs(exact).max())


def decoded(folder, ids, dtype, **limit):
    """What decode makes of a record of ids: its x, or the message of its error.

    limit  of the tokens that are generated, whose rounding grows from one to the next
    """
    try:
        return attnkit.decode(Record({"ids": ids}), model=str(MODELS / folder), dtype=dtype, **limit)["x"], ""
    except (DataError, UsageError) as error:
        if limit and "needs a model that generates text" in str(error):
            return decoded(folder, ids, dtype)
        return None, str(error)


@pytest.mark.parametrize("ids", [IDS, IDS[None]], ids=["text", "batch"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_record_of_ids_is_decoded_alike_in_every_dtype(folder, ids):
    usual, problem = decoded(folder, ids, None, max_tokens=16)
    for dtype in ("float32", "float64"):
        x, refusal = decoded(folder, ids, dtype, max_tokens=16)
        assert refusal == problem
        if usual is not None and x.dtype.kind == "f":
            assert x.dtype == dtype
            np.testing.assert_allclose(x, usual, rtol=0, atol=2e-5 * np.abs(usual[np.isfinite(usual)]).max())
