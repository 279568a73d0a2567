"""Folders of text encoders with heads: a folder of tests/references/models with the tensors of family_heads.npz."""

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

REFERENCES = Path(__file__).parent.parent / "references"


@cache
def frozen():
    """Return what family_heads.json holds: for each name its base, its config.json's changes, and results."""
    return json.loads((REFERENCES / "family_heads.json").read_text())


@cache
def arrays():
    """Return the members of family_heads.npz, whose names begin with that of the model."""
    with np.load(REFERENCES / "family_heads.npz") as members:
        return {name: members[name] for name in members.files}


def build_folder(folder, base, prefix, config, head):
    """Write a folder: that of `base` with other values in config.json, and for its own head the tensors `head`."""
    folder.parent.mkdir(exist_ok=True)
    shutil.copytree(REFERENCES / "models" / base, folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | config, indent=2))
    stored = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor for name, tensor in stored.items() if name.startswith(prefix)} | head,
        folder / "model.safetensors",
        {"format": "pt"},
    )
    return folder


def head_folder(folder, name):
    """Write the folder of a frozen model."""
    one, start = frozen()[name], f"{name}:head:"
    head = {key.removeprefix(start): array for key, array in arrays().items() if key.startswith(start)}
    return build_folder(folder, one["base"], one["prefix"], one["config"], head)
