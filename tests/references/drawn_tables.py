"""Tables of tiny models whose weights tests/drawing.py draws by name, and what transformers makes of them.

KIND.json has for each model its config.json as transformers saves it, the shapes of its tensors, and what else the
script of the kind adds. A new model is a row {"config": …} with its architectures and the keys that differ from the
defaults of transformers, which the script completes.
"""

import contextlib
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import safetensors.numpy
import torch
import transformers

from tests.drawing import draw_tensors

HERE = pathlib.Path(__file__).parent
Arrays = dict[str, np.ndarray]


@contextlib.contextmanager
def in_double() -> Iterator[None]:
    """Compute every part in float64, those too that transformers casts to float32."""
    before = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = before
        torch.set_default_dtype(before[0])


def read_table(kind: str) -> dict[str, dict[str, Any]]:
    return json.loads((HERE / f"{kind}.json").read_text())


def with_floats(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with numbers in place of {"__float__": "Infinity"}, which from_dict does not read."""

    def read(one: dict[str, Any]) -> Any:
        return float(one["__float__"]) if "__float__" in one else one

    return json.loads(json.dumps(config), object_hook=read)


def load(folder: pathlib.Path, dtype: str, **options: Any) -> torch.nn.Module:
    """The model of a folder, in eager attention and in float64 (f64) or float32 (f32)."""
    config = json.loads((folder / "config.json").read_text())
    precision = torch.float64 if dtype == "f64" else torch.float32
    options = {"attn_implementation": "eager"} | options
    return getattr(transformers, config["architectures"][0]).from_pretrained(folder, dtype=precision, **options).eval()


def save(config: dict[str, Any], folder: pathlib.Path, family: str = "") -> tuple[dict[str, Any], dict[str, list[int]]]:
    """Save a model with weights drawn as those of a family [its own]; its config and the shapes of its tensors."""
    kind = getattr(transformers, config["architectures"][0])
    kind(kind.config_class.from_dict(with_floats(config))).save_pretrained(folder)
    path = folder / "model.safetensors"
    shapes = {key: list(tensor.shape) for key, tensor in sorted(safetensors.numpy.load_file(path).items())}
    write_weights(folder, family or config["model_type"], shapes, np.float32)
    written = json.loads((folder / "config.json").read_text())
    return {key: value for key, value in written.items() if key != "transformers_version"}, shapes


def write_weights(folder: pathlib.Path, family: str, shapes: dict[str, list[int]], dtype: type) -> None:
    tensors = {key: np.asarray(one, dtype) for key, one in draw_tensors(family, shapes).items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def freeze(
    kind: str,
    read: Callable[[str, dict[str, Any]], Arrays],
    compute: Callable[[pathlib.Path, Arrays, str], Arrays],
    add: Callable[[pathlib.Path, Arrays, str], dict[str, Any]] = lambda folder, given, name: {},
    family: str = "",
    names: Sequence[str] = (),
    shared: Arrays | None = None,
) -> None:
    """Write KIND.json and KIND.npz for some models [all]: what they read, and what they compute of it.

    read (name, row) -> inputs; compute (folder, inputs, "f64" or "f32") -> outputs; add -> what else a row has;
    shared: arrays of all models
    """
    table, path = read_table(kind), HERE / f"{kind}.npz"
    arrays = (dict(np.load(path)) if path.exists() else {}) | (shared or {})
    for name in names or table:
        row = table[name]
        arrays = {key: one for key, one in arrays.items() if not key.startswith(f"{name}/")}
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            row["config"], row["shapes"] = save(row["config"], folder, family)
            given = read(name, row)
            found = compute(folder, given, "f32")
            write_weights(folder, family or row["config"]["model_type"], row["shapes"], np.float64)
            with in_double():
                found |= compute(folder, given, "f64")
                row |= add(folder, given, name)
        arrays |= {f"{name}/{key}": one for key, one in (given | found).items()}
        print(name, sorted(found))
    (HERE / f"{kind}.json").write_text(json.dumps(table, indent=1) + "\n")
    np.savez_compressed(path, **arrays)
