"""What keys of config.json change in transformers, in families that have no use for them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_key_effects.py [FAMILY...]

key_effects.json has for each family of decoders.json and state_spaces.json, and some others, the keys by which
something changes, and what:

pass    the logits of a whole pass
cache   a text that is continued with a cache, and no whole pass
error   the class accepts the value, and the model does not run

and under "tried" the value of each key. Keys of HARMLESS are tried by another value than that of the class: the
opposite, the next number, or true. A value that the class refuses changes nothing. All models have random weights.
"""

import contextlib
import json
import sys
from typing import Any

import torch
from drawn_tables import HERE, read_table, with_floats
from transformers import AutoConfig, AutoModelForCausalLM

from attnkit.checkpoints.harmless_keys import KNOWN

SIZES = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
         "num_key_value_heads": 1, "vocab_size": 67}  # fmt: skip
SMALL = {
    "gpt2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 67}, "llama": SIZES, "qwen2": SIZES,
    "mistral": SIZES | {"sliding_window": None},
    "openai-gpt": {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 67},
}  # fmt: skip
SHARED = {  # keys of the code that families share, with a value that could change something
    "sliding_window": 4, "attention_chunk_size": 4, "kv_sharing_modes": ["own", "reuse"], "number_of_conv_states": 2,
    "mlp_layer_types": ["sparse", "sparse"], "experts_implementation": "eager", "tie_last_hidden_states": False,
    "token_classification_bias": False, "unpadded_vocab_size": 33, "is_causal": False,
}  # fmt: skip


def families() -> dict[str, dict[str, Any]]:
    tables = {**read_table("decoders"), **read_table("state_spaces")}
    found = {one["config"]["model_type"]: one["config"] for one in tables.values()}
    return found | {family: {"model_type": family, **sizes} for family, sizes in SMALL.items()}


def build(raw: dict[str, Any]) -> torch.nn.Module:
    values = {key: value for key, value in with_floats(raw).items() if key not in ("model_type", "dtype")}
    config = AutoConfig.for_model(raw["model_type"], **values)
    torch.manual_seed(0)
    options = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_config(config, **options).eval()
    generator = torch.Generator().manual_seed(1)
    for weights in model.parameters():
        weights.data = torch.randn(weights.shape, generator=generator) * 0.3
    return model


def compute(raw: dict[str, Any], continues: bool) -> tuple[torch.Tensor, ...] | None:
    """The logits of a text, and its continuation with a cache; None if the class refuses the configuration."""
    try:
        model = build(raw)
    except Exception:  # whatever kind of refusal it is
        return None
    ids = torch.randint(3, 60, (1, 14), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits
        if not continues:
            return (logits,)
        plain = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}
        return logits, torch.stack(model.generate(ids, output_logits=True, **plain).logits)


def name_effect(raw: dict[str, Any], before: tuple[torch.Tensor, ...], key: str, value: Any) -> str:
    continues = key in SHARED
    try:
        after = compute(raw | {key: value}, continues)
    except Exception:
        return "error"
    if after is None:
        return ""
    same = [
        one.shape == other.shape and torch.allclose(one, other, atol=1e-5)
        for one, other in zip(before, after, strict=False)
    ]  # a text that is continued is the second, if any
    return "pass" if not same[0] else "" if all(same) else "cache"


def another(value: Any) -> Any:
    """Another value than that of a class, of its kind; true where that is null."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value / 2 + 0.25 if isinstance(value, float) else True


def main() -> None:
    found: dict[str, Any] = json.loads((HERE / "key_effects.json").read_text()) if sys.argv[1:] else {}
    found["tried"] = SHARED | dict.fromkeys(sorted(KNOWN - {"return_dict"}), "another")
    for family, raw in sorted(families().items()):
        if sys.argv[1:] and family not in sys.argv[1:]:
            continue
        before = compute(raw, continues=True)
        usual = AutoConfig.for_model(family).to_dict()
        effects = {}
        for key in sorted(found["tried"]):
            now = raw.get(key, usual.get(key))
            if effect := name_effect(raw, before, key, SHARED.get(key, another(now))):
                effects[key] = effect
        found[family] = effects
        print(family, effects, flush=True)
    (HERE / "key_effects.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
