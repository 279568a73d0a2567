"""The number of parameters that transformers 5.23.0 has for published configurations, frozen.

    python -m tests.references.make_published

published.json holds the config.json of published models, written by hand. This adds to each the number of parameters of
its class, made without memory and with few layers (tests/checkpoints/test_published.py). Left out are models that
attnkit refuses, classes without a head, and families whose parameters transformers counts otherwise: positions of
Marian, heads of T5, masked patches and frames, towers, corrections of routers that are buffers.
"""

import json
import math
import os

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch
import transformers

from tests.checkpoints.test_published import LACKING, made_small
from tests.places import REFERENCES

PATH = REFERENCES / "published.json"
HEADS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "Classification", "ForQuestionAnswering", "ForPreTraining")
OTHERS = ("bart", "clip", "dinov2", "gemma3", "hubert", "idefics3", "lfm2_moe", "llava", "marian", "mbart", "mt5",
          "siglip", "smolvlm", "t5", "wav2vec2")  # fmt: skip


def count_parameters(raw: dict) -> int:
    """The number of parameters of the class that `architectures` names."""
    plain = json.loads(json.dumps(raw), object_hook=lambda one: float("inf") if "__float__" in one else one)
    configuration = transformers.AutoConfig.for_model(**plain)
    with torch.device("meta"):
        model = getattr(transformers, raw["architectures"][0])(configuration)
    return sum(math.prod(parameter.shape) for parameter in model.parameters())


def main() -> None:
    table = json.loads(PATH.read_text())
    for name, entry in table.items():
        entry.pop("parameters", None)
        raw = made_small(entry["config"])
        named = raw.get("architectures", [""])[0]
        if name not in LACKING and raw["model_type"] not in OTHERS and named.endswith(HEADS):
            entry["parameters"] = count_parameters(raw)
    lines = (f"{json.dumps(name)}: {json.dumps(entry, sort_keys=True)}" for name, entry in sorted(table.items()))
    PATH.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
