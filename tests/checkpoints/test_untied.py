"""Output heads with weights of their own, against transformers after a few steps of training (make_untied.py)."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.publishing import published_tensors
from tests.places import REFERENCES
from tests.process import run

FROZEN = np.load(REFERENCES / "untied.npz")
FOLDERS = sorted((REFERENCES / "untied").iterdir())
NAMES = [folder.name for folder in FOLDERS]
# stored tensors that no computation of the model reads
DEAD = {
    "albert": ["predictions.bias"],
    "bert": ["cls.predictions.bias"],
    "camembert": ["lm_head.bias"],
    "deberta-plain": ["cls.predictions.bias"],
    "deberta-v2": ["cls.predictions.bias"],
    "marian": ["model.shared.weight"],
    "mpnet": ["lm_head.bias"],
    "roberta": ["lm_head.bias"],
    "xlm-roberta": ["lm_head.bias"],
}


def logits(folder, ids):
    """The logits of rows of ids (B, T), or of their reverse where the ids are those of a source."""
    config = open_checkpoint(str(folder)).config
    if not config.decoder:
        states = attnkit.encode(model=str(folder), ids=ids, dtype="float64")
        return attnkit.decode(states, model=str(folder), emit="logits", dtype="float64")["x"]
    rows = []
    for row in ids:
        source = attnkit.encode(model=str(folder), ids=row, dtype="float64") if config.encoder else None
        text = row[::-1] if config.encoder else row
        settings = {"ids": text, "max_tokens": 0, "emit": "logits", "dtype": "float64"}
        rows.append(attnkit.decode(source, model=str(folder), **settings)["x"])
    return np.stack(rows)


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_what_the_model_does_not_read_is_listed(folder, tmp_path):
    dead = DEAD.get(folder.name, [])
    assert open_checkpoint(str(folder)).params.unused() == dead
    shown = run("show", str(folder), cwd=tmp_path).out.decode()
    assert [name for name in dead if name not in shown] == []


def test_a_dead_tensor_changes_no_logit(tmp_path):
    """The file without it, and with other numbers in it, gives the same bits."""
    from safetensors.numpy import save_file

    source = REFERENCES / "untied" / "bert"
    usual = logits(source, FROZEN["ids"])
    tensors = load_file(source / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    for change in (np.full_like, None):
        name = "cls.predictions.bias"
        kept = {one: array for one, array in tensors.items() if one != name}
        save_file(kept if change is None else kept | {name: change(tensors[name], 7)}, tmp_path / "model.safetensors")
        np.testing.assert_array_equal(logits(tmp_path, FROZEN["ids"]), usual)


def test_an_older_file_has_one_bias_under_either_name(tmp_path):
    from safetensors.numpy import save_file

    source = REFERENCES / "untied" / "roberta"
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    one = {name: array for name, array in tensors.items() if name != "lm_head.decoder.bias"}
    save_file(one | {"lm_head.bias": tensors["lm_head.decoder.bias"]}, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(logits(tmp_path, FROZEN["ids"]), logits(source, FROZEN["ids"]))


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_fine_tuning_trains_the_bias_that_is_read(name, tmp_path):
    """A step from the folder changes the bias of the decoder, which the new folder has under its published name."""
    source = REFERENCES / "untied" / name
    raw = json.loads((source / "config.json").read_text())
    from attnkit.checkpoints.publishing import published_tensors

    table = published_tensors(raw)
    [(bias,)] = [published for parameter, published in table.names.items() if parameter == "head.b"]
    assert bias.endswith("decoder.bias") and bias in load_file(source / "model.safetensors")


@pytest.mark.parametrize(("legacy", "head"), [(True, "cls.predictions.transform"), (False, "lm_predictions.lm_head")])
@pytest.mark.parametrize("is_tied", [True, False])
def test_a_deberta_is_published_with_the_head_that_its_configuration_names(legacy, head, is_tied):
    sizes = {"hidden_size": 4, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    raw = {"model_type": "deberta-v2", "vocab_size": 9, "max_position_embeddings": 8, **sizes}
    table = published_tensors({**raw, "legacy": legacy, "tie_word_embeddings": is_tied})
    assert table.names["head.dense.w"] == (f"{head}.dense.weight",)
    assert table.names["head.norm.gamma"] == (f"{head}.LayerNorm.weight",)
    has_own_table = legacy and not is_tied  # the newer head of transformers always has the table of words
    words = "cls.predictions.decoder.weight" if has_own_table else "deberta.embeddings.word_embeddings.weight"
    assert table.names["head.w"] == (words,)
    assert table.names["head.b"][0].startswith(head.removesuffix(".transform"))
