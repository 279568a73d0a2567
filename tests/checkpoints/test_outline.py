"""What config.json alone says: of models without weights, of quantized ones, and of families that are not known."""

import json

import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.outline import Outline, open_outline, usual_meanings
from attnkit.errors import AttnkitNote, DataError, FileError
from tests import process
from tests.drawing import drawn_models
from tests.places import MODELS, REFERENCES

PUBLISHED = json.loads((REFERENCES / "published.json").read_text())
DENSE = {"n_layer": 3, "n_embd": 8, "n_head": 2, "d_ff": 16, "vocab_size": 10}  # the keys of several families


def write(folder, **values):
    (folder / "config.json").write_text(json.dumps(values))
    return str(folder)


def test_a_model_without_weights_costs_what_it_costs_with_them(tmp_path):
    config = json.loads((MODELS / "qwen2" / "config.json").read_text())
    with pytest.warns(AttnkitNote, match="there are no weights: sizes are those of config.json"):
        alone = attnkit.cost(write(tmp_path, **config), tokens=7)
    whole = attnkit.cost(str(MODELS / "qwen2"), tokens=7)
    assert {name: alone[name].tolist() for name in alone} == {name: whole[name].tolist() for name in whole}
    assert alone.labels["model"] == [f"{tmp_path.name} (no weights)"]
    outline = open_outline(str(tmp_path))
    assert outline.model.parameter_count == open_checkpoint(str(MODELS / "qwen2")).parameter_count


def test_the_zeros_of_a_large_model_take_no_memory(tmp_path):
    outline = open_outline(write(tmp_path, **PUBLISHED["meta-llama/Llama-3.1-70B-Instruct"]["config"]))
    assert outline.mark == "no weights" and outline.model.parameter_count == 70_553_706_496
    assert outline.model.tensors()["model.embed_tokens.weight"] == ("bfloat16", (128256, 8192))


def test_a_quantized_model_is_counted_as_it_was_before(tmp_path):
    config = drawn_models()["qwen3"]["config"]
    plain = open_outline(write(tmp_path, **config))
    packed = open_outline(write(tmp_path, **config, quantization_config={"quant_method": "fp8"}))
    assert (packed.mark, plain.mark) == ("not quantized", "no weights")
    assert packed.model.parameter_count == plain.model.parameter_count
    assert packed.problem == "quantization_config is left out: the model is counted as it was before"


def test_another_family_is_counted_as_a_llama_of_the_same_sizes(tmp_path):
    """Embeddings 80, head 80; a layer: q and o 64 each, k and v 64 each, network 3·128, norms 2·8; the last norm 8."""
    outline = open_outline(write(tmp_path, model_type="newest", **DENSE, gates=True, torch_dtype="bfloat16"))
    assert isinstance(outline, Outline) and outline.mark == "as llama" and outline.unread == ("gates",)
    assert outline.problem == "model_type 'newest' is not known; counted as a llama of the same sizes"
    assert outline.model.parameter_count == 80 + 80 + 3 * (4 * 64 + 3 * 128 + 16) + 8
    assert outline.facts["hidden width"] == ("d_ff", 16) and outline.facts["width"] == ("n_embd", 8)
    tied = open_outline(write(tmp_path, model_type="newest", **DENSE, tie_word_embeddings=True))
    assert tied.model.parameter_count == outline.model.parameter_count - 80


def test_experts_and_the_part_for_texts(tmp_path):
    """A router of 4 rows and 4 experts of 3 matrices in a layer; key-value heads; the part replaces the whole."""
    text = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6}
    text |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 5, "vocab_size": 10, "mixers": "dm"}
    outline = open_outline(write(tmp_path, model_type="newest", text_config=text, vocab_size=3, vision_config={"a": 1}))
    assert outline.mark == "as qwen3_moe" and outline.facts["layers"] == ("text_config.num_hidden_layers", 2)
    assert outline.unread == ("vision_config", "text_config.mixers")
    layer = 8 * 12 + 2 * 8 * 6 + 12 * 8 + 2 * 6 + 4 * 8 + 4 * 3 * 8 * 5 + 2 * 8
    assert outline.model.parameter_count == 2 * 80 + 2 * layer + 8
    text |= {"n_shared_experts": 2}  # of 5 each, beside the 4: one network of 10, whose gate has a row
    shared = open_outline(write(tmp_path, model_type="newest", **text))
    assert shared.mark == "as qwen2_moe" and shared.facts["shared width"] == ("n_shared_experts", 10)
    heads = 8 * 12 + 2 * 8 * 6 + 12 * 8 + 24 + 4 * 8 + 4 * 3 * 8 * 5 + 2 * 8  # qwen2_moe has biases of q, k and v
    assert shared.model.parameter_count == 2 * 80 + 2 * (heads + 3 * 8 * 10 + 8) + 8
    text |= {"n_shared_experts": 0}
    assert open_outline(write(tmp_path, model_type="newest", **text)).mark == "as qwen3_moe"
    mixed = {**DENSE, "num_local_experts": 4, "num_experts_per_tok": 1}  # whose experts are as wide as its networks
    assert open_outline(write(tmp_path, model_type="newest", **mixed)).facts["hidden width"] == ("d_ff", 16)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (
            {"model_type": "newest", "n_layer": 3},
            "model_type 'newest' is not known, and config.json does not state all",
        ),
        (
            {"model_type": "newest", **DENSE, "n_head": 3},
            "model_type 'newest' is not known, and hidden_size 8 is not di",
        ),
        ({"n_layer": 3}, "model_type '' is not known, and config.json does not state all sizes"),
        ({"model_type": "gpt2", "n_embd": "x"}, r"config.json: n_embd is 'x' \(expected a whole number"),
    ],
)
def test_configurations_that_do_not_suffice(values, problem, tmp_path):
    with pytest.raises(DataError, match=problem):
        attnkit.cost(write(tmp_path, **values))


def test_a_folder_without_a_configuration(tmp_path):
    with pytest.raises(FileError, match=r"no config\.json in this folder"):
        open_outline(str(tmp_path))


def test_a_model_whose_weights_do_not_fit_is_refused_as_before(tmp_path):
    for path in (MODELS / "qwen2").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    write(tmp_path, **config | {"vocab_size": 61})
    with pytest.raises(DataError, match="has shape"):
        open_outline(str(tmp_path))


def test_every_size_has_a_usual_key():
    meanings = usual_meanings()
    sizes = {"layers", "width", "heads", "key/value heads", "head width", "hidden width", "vocabulary", "experts"}
    assert sizes <= {*meanings.values()}
    assert meanings.get("layer_types") == "mixers"  # and not the layers that do not rotate, as in two families


def test_mixers_of_another_family_are_shown_and_left_out_of_its_cost(tmp_path):
    outline = open_outline(write(tmp_path, model_type="newest", **DENSE, layer_types=["delta"] * 3, gates=True))
    assert outline.facts["mixers"] == ("layer_types", ["delta"] * 3) and outline.left_out == ["layer_types", "gates"]


def test_facts_of_what_is_not_opened_are_marked(tmp_path):
    write(tmp_path, model_type="newest", **DENSE, gates=True)
    done = process.run("show", ".", "--facts", "-f", "table", cwd=tmp_path, env={"COLUMNS": "200"})
    lines = done.out.decode().splitlines()
    assert [line.split() for line in lines[3:5]] == [["family", "model_type", "newest"], ["layers", "n_layer", "3"]]
    assert lines[-2].split() == ["parameters", "–", "about", "2,136,", "as", "llama"]
    assert lines[-1] == (
        "model_type 'newest' is not known; counted as a llama of the same sizes; the keys have their usual meaning; "
        "not read: gates"
    )
    record = json.loads(process.run("show", ".", "--facts", "-f", "json", cwd=tmp_path).out)
    assert record["labels"]["key"][1] == "n_layer"
    cost = process.run("cost", ".", "-f", "table", cwd=tmp_path, env={"COLUMNS": "200"})
    assert "(as llama): weights" in cost.out.decode().splitlines()[-1]
    assert "note: .: model_type 'newest' is not known; counted as a llama of the same sizes, without gates" in cost.err
