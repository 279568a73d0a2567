"""Initial parameters: the distributions of each family, and the same numbers from the same seed."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import UsageError
from attnkit.training.families import FAMILIES, new_config
from attnkit.training.initial_model import initial_tensors
from attnkit.training.parameter_groups import match_parameters, tensor_groups, tensors_of
from attnkit.training.recipe import Recipe

pytestmark = pytest.mark.no_blas
RECIPE = Recipe(layers=2, heads=4, dim=64, dropout=0.1)
SPECIAL = {"pad": 0, "eos": 1, "bos": 2}
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES)

# a part of a published name -> the deviation of the tensor
DEVIATIONS = {
    "gpt2": {"wte": 0.02, "wpe": 0.02, "c_attn": 0.02, "attn.c_proj": 0.01, "c_fc": 0.02, "mlp.c_proj": 0.01},
    "llama": {"embed_tokens": 0.02, "q_proj": 0.02, "o_proj": 0.02, "down_proj": 0.02, "lm_head": 0.02},
    "bert": {"word_embeddings": 0.02, "query": 0.02, "output.dense": 0.02, "cls.predictions.transform.dense": 0.02},
    "t5": {
        "shared": 1.0,
        "relative_attention_bias": 64**-0.5,
        "SelfAttention.q": (64 * 16) ** -0.5,
        "SelfAttention.k": 64**-0.5,
        "EncDecAttention.v": 64**-0.5,
        "SelfAttention.o": 64**-0.5,
        "wi": 64**-0.5,
        "DenseReluDense.wo": 256**-0.5,
    },
    "marian": {"shared": 64**-0.5, "q_proj": sqrt(2 / 128), "fc1": sqrt(2 / 320), "fc2": sqrt(2 / 320)},
    "transformer": {"embed": 64**-0.5, "in_proj": sqrt(2 / 256), "out_proj": sqrt(2 / 128), "linear1": sqrt(2 / 320)},
}


def config_of(family):
    return new_config(replace(RECIPE, family=family), 128, 300, SPECIAL)


@EACH_FAMILY
def test_tensors_are_those_of_the_configuration(family):
    tensors = initial_tensors(config_of(family))
    assert {name: array.shape for name, array in tensors.items()} == published_tensors(config_of(family)).shapes
    assert {array.dtype.name for array in tensors.values()} == {"float32"}


@pytest.mark.parametrize(
    ("family", "part", "deviation"), [(name, *item) for name, row in DEVIATIONS.items() for item in row.items()]
)
def test_deviations_are_those_of_the_family(family, part, deviation):
    tensors = initial_tensors(config_of(family), seed=5)
    matching = [array for name, array in tensors.items() if part in name and array.ndim > 1 and "Norm" not in name]
    assert matching
    for array in matching:
        assert array.std() == pytest.approx(deviation, rel=0.15)
        assert abs(array.mean()) < deviation / 4


def test_a_state_begins_to_forget_slowly():
    raw = new_config(Recipe(family="qwen3_5_text", layers=2, heads=64, dim=128), 128, 300, SPECIAL)
    tensors = initial_tensors(raw)
    layer = "model.layers.1.linear_attn"
    rates, bias = np.exp(tensors[f"{layer}.A_log"]), tensors[f"{layer}.dt_bias"]
    steps = np.log1p(np.exp(bias))
    assert 1 <= rates.min() < 2 and 12 < rates.max() <= 16  # as Mamba-2 draws them
    assert 0.0009 < steps.min() < 0.002 and 0.06 < steps.max() < 0.1


@EACH_FAMILY
def test_norms_are_one_and_biases_zero(family):
    tensors, table = initial_tensors(config_of(family)), published_tensors(config_of(family))
    for name, array in tensors.items():
        layer, _, parameter = table.parameters[name][0].rpartition(".")
        if parameter.startswith("gamma"):  # those of queries and keys too, to some of which 1 is added
            assert (array + table.specs[layer][parameter].offset == 1).all()
        elif parameter == "beta" or parameter.startswith("b"):
            assert (array == 0).all()
        else:
            assert (array != 0).mean() > 0.9


def test_the_row_of_the_padding_token_is_zero():
    table = initial_tensors(config_of("marian"))["model.shared.weight"]
    assert (table[0] == 0).all() and (table[1:] != 0).all()


def test_xavier_bounds():
    weight = initial_tensors(config_of("marian"))["model.encoder.layers.0.fc1.weight"]
    bound = sqrt(6 / (64 + 256))
    assert 0.99 * bound < abs(weight).max() <= bound


@EACH_FAMILY
def test_the_seed_decides(family):
    first, again, other = (initial_tensors(config_of(family), seed) for seed in (1, 1, 2))
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
        assert array.std() == 0 or (array != other[name]).any()


def test_a_tensor_does_not_depend_on_the_others():
    deep = new_config(replace(RECIPE, layers=8), 128, 300, SPECIAL)
    name = "transformer.h.1.attn.c_attn.weight"
    np.testing.assert_array_equal(initial_tensors(config_of("gpt2"))[name], initial_tensors(deep)[name])


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gpt3", {}, "family 'gpt3' .expected one of gpt2, llama"),
        ("gpt2", {"heads": 5}, "dim 64 is not divisible by heads 5"),
        ("gpt2", {"layers": 0}, "layers 0 .expected 1 or more"),
        ("llama", {"dim": 60}, "dim 60 over heads 4 is odd"),
        ("marian", {"dim": 63, "heads": 3}, "dim 63 is odd"),
    ],
)
def test_sizes_that_do_not_fit(family, changes, message):
    with pytest.raises(UsageError, match=message):
        new_config(replace(RECIPE, family=family, **changes), 128, 300, SPECIAL)


def test_a_seed_out_of_range():
    with pytest.raises(UsageError, match="seed -1 outside"):
        initial_tensors(config_of("gpt2"), -1)


def test_tensors_of_layers_below_learn_slower_and_norms_do_not_decay():
    published = published_tensors(config_of("t5"))
    groups = tensor_groups(published, 0.5)
    assert groups.keys() == published.shapes.keys()
    rates = [groups[name].rate for name in ("shared.weight", "encoder.block.0.layer.0.SelfAttention.q.weight",
                                            "decoder.block.1.layer.2.DenseReluDense.wi.weight",
                                            "decoder.final_layer_norm.weight")]  # fmt: skip
    assert rates == [0.125, 0.25, 0.5, 1.0]
    decaying = {name for name, group in groups.items() if group.has_weight_decay}
    assert all(name.endswith(".weight") for name in decaying)
    rest = published.shapes.keys() - decaying
    assert {name.split(".")[-2] for name in rest} == {"layer_norm", "final_layer_norm", "relative_attention_bias"}


def test_a_bias_of_two_axes_does_not_decay():
    assert not tensor_groups(published_tensors(config_of("marian")))["final_logits_bias"].has_weight_decay


def test_tensors_of_parameters():
    published = published_tensors(config_of("llama"))
    names = match_parameters(published.names, ["decoder.embed", "decoder.0.self.w[qk]"])
    layer = "model.layers.0.self_attn"
    assert tensors_of(published, names) == {
        "model.embed_tokens.weight",
        f"{layer}.q_proj.weight",
        f"{layer}.k_proj.weight",
    }
