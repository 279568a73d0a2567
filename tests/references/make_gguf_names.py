"""The names that llama.cpp gives to the tensors of the tiny models, by the tables of the package gguf, frozen.

    pip install gguf==0.19.0 numpy==2.4.6
    PYTHONPATH=. python tests/references/make_gguf_names.py

writes gguf_names.json: architecture -> {published name: name in the file}, both without .weight and .bias, `{n}` for
the number of a layer.
"""

import json
import re

import gguf

from attnkit.formats import safetensors
from tests.drawing import drawn_models
from tests.gguf_models import ARCHITECTURES, DRAWN, PREFIXES
from tests.places import MODELS, REFERENCES

decoders = {name: one for kind in DRAWN for name, one in drawn_models(kind).items()}
arch_of = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
table: dict[str, dict[str, str]] = {}
for model, architecture in ARCHITECTURES.items():
    path = MODELS / model / "model.safetensors"
    if model == "wide":
        continue
    published = decoders[model]["shapes"] if model in decoders else safetensors.map_tensors(str(path)).entries
    names = gguf.get_tensor_name_map(arch_of[architecture], 8)
    for name in published:
        bare = re.sub(r"(\.norms\.[0-9]+)?\.(weight|bias)$", "", name.removeprefix(PREFIXES.get(architecture, "")))
        bare = re.sub(r"experts\.[0-9]+\.", "experts.", bare)
        if (stored := names.get_name(bare) or names.get_name(bare.removeprefix("model."))) is not None:
            pattern = re.sub(r"\.[0-9]+\.", ".{n}.", bare, count=1)
            table.setdefault(architecture, {})[pattern] = re.sub(r"blk\.[0-9]+", "blk.{n}", stored)
(REFERENCES / "gguf_names.json").write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
