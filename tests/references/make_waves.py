"""Tiny wav2vec 2.0 and HuBERT models and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_waves.py

completes waves.json, each model's config.json and the shapes of its tensors (see drawn_tables.py), and writes
tests/transcripts/inputs/wav2vec2, a folder with a vocabulary; frame_labels.json, texts that Wav2Vec2CTCTokenizer makes
of labels, and its files; and waves.npz, what the models compute in eager attention. Members begin with the name of the
model, but the first:

    samples     (T,) a sound in int16, of all models
    values      (T,) what Wav2Vec2FeatureExtractor makes of it, in float32
    features    (F, C) after the convolutions and their norm, in float64
    hidden.N    (F, D) states in float64: 0 = before the first layer, N = after layer N
    states, logits  (F, D), (F, V) in float64 (.f64) and float32 (.f32)

and wave_gradients.npz, for each model the gradients of Σ logits × weights, in float64: weights (F, V), samples (T,),
and those of the parameters GRADIENTS by their published names.
"""

import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers
from drawn_tables import HERE, freeze, load, read_table, save, write_weights

from tests.sound_files import make_syllables

LABELS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAOINSHRDLUMWCFGYPBVK'XJQZ"]
TEXTS = [
    [0, 5, 5, 0, 5, 4, 4, 6, 0, 0, 4],
    [4, 7, 7, 7, 4, 0, 4, 3, 8, 2, 0],
    [0, 0, 0],
]


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """What a model computes of prepared samples."""
    model = load(folder, dtype)
    given = torch.tensor(prepare()[1], dtype=model.dtype)[None]
    with torch.no_grad():
        base = model.base_model(given, output_hidden_states=True)
        features = model.base_model.feature_extractor(given).transpose(1, 2)
        found = {f"states.{dtype}": base.last_hidden_state[0], f"logits.{dtype}": model(given).logits[0]}
    if dtype == "f64":
        found |= {f"hidden.{at}": state[0] for at, state in enumerate(base.hidden_states)}
        found["features"] = model.base_model.feature_projection.layer_norm(features)[0].detach()
    return {key: one.numpy() for key, one in found.items()}


GRADIENTS = (
    "feature_extractor.conv_layers.0.conv.weight", "feature_extractor.conv_layers.0.layer_norm.weight",
    "feature_extractor.conv_layers.0.layer_norm.bias", "feature_extractor.conv_layers.1.conv.weight",
    "feature_projection.layer_norm.weight", "encoder.pos_conv_embed.conv.parametrizations.weight.original0",
    "encoder.pos_conv_embed.conv.parametrizations.weight.original1", "encoder.pos_conv_embed.conv.bias",
)  # fmt: skip


def write_gradients() -> None:
    """The gradients of the samples and of some parameters of each model."""
    arrays, rng = {}, np.random.default_rng(5)
    samples = rng.standard_normal(800)
    for name, row in read_table("waves").items():
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            save(row["config"], folder, "wav2vec2")
            write_weights(folder, "wav2vec2", row["shapes"], np.float64)
            model = load(folder, "f64")
        given = torch.tensor(samples, requires_grad=True)
        logits = model(given[None]).logits[0]
        weights = rng.standard_normal(logits.shape)
        (logits * torch.tensor(weights)).sum().backward()
        known = dict(model.base_model.named_parameters())
        gradients = {key: known[key].grad for key in GRADIENTS} | {"samples": given.grad}
        arrays |= {f"{name}/{key}": one.numpy() for key, one in gradients.items()} | {f"{name}/weights": weights}
    np.savez_compressed(HERE / "wave_gradients.npz", samples=samples, **arrays)


def write_tokenizer(folder: pathlib.Path) -> transformers.Wav2Vec2CTCTokenizer:
    """Write vocab.json and tokenizer_config.json, as transformers saves them."""
    (folder / "vocab.json").write_text(json.dumps({label: at for at, label in enumerate(LABELS)}))
    tokenizer = transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    tokenizer.save_pretrained(folder)
    return tokenizer


def prepare() -> tuple[np.ndarray, np.ndarray]:
    """The samples of a sound, and what the extractor makes of them."""
    samples = np.round(make_syllables(0.4, 7) * 32767).astype(np.int16)
    extractor = transformers.Wav2Vec2FeatureExtractor()
    values = extractor(samples / np.float32(32768), sampling_rate=16000, return_tensors="np")["input_values"][0]
    return samples, values


def write_labels() -> None:
    """Texts of labels, and the files of their tokenizer."""
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        tokenizer = write_tokenizer(folder)
        texts = [{"ids": ids, "text": tokenizer.decode(ids)} for ids in TEXTS]
        print(texts)
        names = ("vocab.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
        files = {name: json.loads((folder / name).read_text()) for name in names if (folder / name).exists()}
    (HERE / "frame_labels.json").write_text(json.dumps({"files": files, "texts": texts}, indent=1) + "\n")


def write_example() -> None:
    """A whole folder."""
    folder = HERE.parent / "transcripts" / "inputs" / "wav2vec2"
    folder.mkdir(exist_ok=True)
    config, _ = save(read_table("waves")["group"]["config"], folder)
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    settings = transformers.Wav2Vec2FeatureExtractor().to_dict()
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=1) + "\n")


if __name__ == "__main__":
    samples, values = prepare()
    shared = {"samples": samples, "values": values}
    freeze("waves", lambda name, row: {}, compute, family="wav2vec2", shared=shared)
    write_labels()
    write_gradients()
    write_example()
