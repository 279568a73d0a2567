"""Models whose weights are drawn by the names of their tensors, so that no file has to hold them."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import safetensors.numpy

REFERENCES = Path(__file__).parent / "references"
SUMS = ("gemma", "qwen3_next", "qwen3_5")  # whose norms multiply by 1 + weight
PLAIN_NORM = "linear_attn.norm.weight"  # but not this one
RAMP = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 500.0}
# variants of drawn models: the model, and keys of its config.json
VARIANTS = {
    "deepseek_v3-both": ("deepseek_v3", {"is_causal": False}),
    "gpt_oss-both": ("gpt_oss", {"is_causal": False}),
    "granite-large": ("granite", {"embedding_multiplier": 3000.0}),
    "phi3-partial": (
        "phi3-long",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}},
    ),
    "qwen3-both": ("qwen3-window", {"is_causal": False}),
    "qwen3-factor": ("qwen3", {"rope_parameters": RAMP | {"attention_factor": 1.3}}),
    "qwen3-ramp": ("qwen3", {"rope_parameters": RAMP | {"truncate": False}}),
    "qwen3-yarn": ("qwen3", {"rope_parameters": RAMP}),
}


def draw_tensor(name: str, shape: Sequence[int], center: float) -> np.ndarray:
    """Draw a tensor in float32: weights from N(0, 1/columns), norms around a center, others around 0."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    values = np.asarray(rng.standard_normal(tuple(shape)))
    if len(shape) > 1:
        return (values * shape[-1] ** -0.5).astype(np.float32)
    if name.endswith("A_log"):  # rates of a state by which some heads forget soon, and others late
        return np.asarray(values - 2, np.float32)
    is_norm = "norm" in name or "ln_" in name
    center = 1.0 if name.endswith(PLAIN_NORM) else center
    shifted = values * 0.2 + (center if is_norm and name.endswith("weight") else 0.0)
    return np.asarray(shifted, np.float32)


def draw_tensors(family: str, shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Draw all tensors of a model, by their published names."""
    center = 0.0 if family.startswith(SUMS) else 1.0
    return {name: draw_tensor(name, shape, center) for name, shape in shapes.items()}


def drawn_models(kind: str = "decoders") -> dict[str, dict]:
    """The configurations, and the shapes of the tensors, of all drawn models of a kind: decoders, vision or sounds."""
    return json.loads((REFERENCES / f"{kind}.json").read_text())


def write_model(name: str, folder: Path, dtype: type = np.float32, kind: str = "decoders", **changes) -> Path:
    """Write the folder of a model, with keys of config.json changed; `...` removes one."""
    model = drawn_models(kind)[name]
    config = {key: value for key, value in (model["config"] | changes).items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = draw_tensors(config["model_type"], model["shapes"])
    arrays = {key: np.asarray(one, dtype) for key, one in tensors.items()}
    safetensors.numpy.save_file(arrays, folder / "model.safetensors")
    if "generation" in model:
        (folder / "generation_config.json").write_text(json.dumps(model["generation"]))
    if "template" in model:
        names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": model["template"], **names}))
        (folder / "tokenizer.json").write_text((REFERENCES / kind / "tokenizer.json").read_text())
    if "preprocessor" in model:
        (folder / "preprocessor_config.json").write_text(json.dumps(model["preprocessor"]))
    return folder


def write_variant(name: str, folder: Path) -> Path:
    """Write the folder of a variant of a drawn decoder."""
    origin, changes = VARIANTS[name]
    return write_model(origin, folder, **changes)


def keep_folders(make_folder: Callable[[str], Path], kind: str, files: Mapping[str, object] | None = None) -> Callable:
    """A function (name, dtype=float64) that writes the folder of a model of a kind once for each dtype.

    make_folder  of a temporary folder of a name; files: content of JSON files that each folder has besides
    """
    known = {}

    def write(name, dtype=np.float64):
        if (name, dtype) not in known:
            place = write_model(name, make_folder(name), dtype, kind)
            for file, content in (files or {}).items():
                (place / file).write_text(json.dumps(content))
            known[name, dtype] = str(place)
        return known[name, dtype]

    return write


def assert_near(actual: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Assert a shape, and a difference of at most so much of the largest number."""
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()
