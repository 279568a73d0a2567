"""Wrong values in config.json of the decoders of today: one clear error that names the key."""

import pytest

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import AttnkitError
from tests.drawing import drawn_models, write_model

WRONG = {
    "a factor that is a word": ("deepseek_v2", {"factor": "x"}, "factor"),
    "a factor that is a list": ("deepseek_v3", {"factor": [1]}, "factor"),
    "a scale that is a word": ("deepseek_v2", {"mscale_all_dim": "x"}, "mscale_all_dim"),
    "a scale that is a list": ("deepseek_v3", {"mscale_all_dim": [1]}, "mscale_all_dim"),
    "a context of one token": (
        "phi3-long",
        {"original_max_position_embeddings": 1},
        "original_max_position_embeddings",
    ),
    "a rotation wider than a head": ("gptj", {"rotary_dim": 10**9}, "rotary_dim"),
    "more groups than experts": ("deepseek_v3", {"n_group": 7}, "n_group"),
    "more experts a token than there are": ("mixtral", {"num_experts_per_tok": 99}, "num_experts_per_tok"),
    "experts without end": ("mixtral", {"num_local_experts": 10**9}, "num_local_experts"),
    "a multiplier of zero": ("granite", {"residual_multiplier": 0}, "residual_multiplier"),
    "a cap of zero": ("gemma2", {"final_logit_softcapping": 0}, "final_logit_softcapping"),
}


def changed(values, changes):
    """A configuration with keys replaced wherever they are, in an inner object too."""
    inner = {key: changed(value, changes) if isinstance(value, dict) else value for key, value in values.items()}
    return inner | {key: value for key, value in changes.items() if key in values}


@pytest.mark.parametrize(("name", "changes", "key"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_an_error_that_names_its_key(name, changes, key, tmp_path):
    config = drawn_models()[name]["config"]
    assert changed(config, changes) != config
    write_model(name, tmp_path, **changed(config, changes))
    with pytest.raises(AttnkitError, match=key):
        checkpoint = open_checkpoint(str(tmp_path))
        core = model.Model(checkpoint.config, checkpoint.params)
        model.run(core, checkpoint.config.plan("decoder"), [[1, 5, 3]], model.Context())


def test_layers_that_are_dense_beyond_the_last_are_none(tmp_path):
    write_model("deepseek_v3", tmp_path, first_k_dense_replace=10**9)
    with pytest.raises(AttnkitError, match="mlp"):  # all layers are dense, and the file has experts
        open_checkpoint(str(tmp_path))
