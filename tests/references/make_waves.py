"""Tiny wav2vec 2.0 and HuBERT models and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_waves.py

writes tests/transcripts/inputs/wav2vec2, a folder with a vocabulary; waves.json, each model's config.json and the
shapes of its tensors as transformers saves them; frame_labels.json, texts that Wav2Vec2CTCTokenizer makes of labels,
and its files; and waves.npz, what the models compute in eager attention. The weights are those of tests/drawing.py,
which draws them by name, so no file holds them. Members of the .npz begin with the name of the model, but the first:

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
import safetensors.numpy
import torch
import transformers
from make_decoders import write_weights

from tests.sound_files import make_syllables

HERE = pathlib.Path(__file__).parent
LABELS = ["<pad>", "<s>", "</s>", "<unk>", "|", *"ETAOINSHRDLUMWCFGYPBVK'XJQZ"]
SMALL = {
    "vocab_size": len(LABELS),
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 36,
    "conv_dim": [8, 10, 8, 12, 8, 8, 14],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
MODELS = {
    "group": SMALL,
    "layer": SMALL
    | {
        "feat_extract_norm": "layer",
        "do_stable_layer_norm": True,
        "conv_bias": True,
        "num_conv_pos_embeddings": 9,
        "feat_extract_activation": "gelu_new",
        "hidden_act": "relu",
        "layer_norm_eps": 1e-3,
    },
    "hubert": SMALL | {"model_type": "hubert"},
    "short": SMALL | {"conv_dim": [6, 8], "conv_kernel": [12, 5], "conv_stride": [40, 3], "do_stable_layer_norm": True},
}
TEXTS = [
    [0, 5, 5, 0, 5, 4, 4, 6, 0, 0, 4],
    [4, 7, 7, 7, 4, 0, 4, 3, 8, 2, 0],
    [0, 0, 0],
]


def save(values: dict, folder: pathlib.Path) -> tuple[dict, dict]:
    """Save a model with drawn weights; its configuration and the shapes of its tensors."""
    config = transformers.AutoConfig.for_model(**{"model_type": "wav2vec2"} | values)
    transformers.AutoModelForCTC.from_config(config).save_pretrained(folder)
    path = folder / "model.safetensors"
    shapes = {key: list(tensor.shape) for key, tensor in sorted(safetensors.numpy.load_file(path).items())}
    write_weights(folder, "wav2vec2", shapes, np.float32)
    config = json.loads((folder / "config.json").read_text())
    return {key: one for key, one in config.items() if key != "transformers_version"}, shapes


def compute(folder: pathlib.Path, values: np.ndarray, dtype: str) -> dict[str, np.ndarray]:
    """What a model computes of prepared samples."""
    precision = torch.float64 if dtype == "f64" else torch.float32
    load = transformers.AutoModelForCTC.from_pretrained
    model = load(folder, attn_implementation="eager", dtype=precision).eval()
    given = torch.tensor(values, dtype=precision)[None]
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
    for name, options in MODELS.items():
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            _, shapes = save(options, folder)
            write_weights(folder, "wav2vec2", shapes, np.float64)
            load = transformers.AutoModelForCTC.from_pretrained
            model = load(folder, attn_implementation="eager", dtype=torch.float64).eval()
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


def main() -> None:
    models, arrays = {}, {}
    samples = np.round(make_syllables(0.4, 7) * 32767).astype(np.int16)
    extractor = transformers.Wav2Vec2FeatureExtractor()
    values = extractor(samples / np.float32(32768), sampling_rate=16000, return_tensors="np")["input_values"][0]
    for name, options in MODELS.items():
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            config, shapes = save(options, folder)
            found = compute(folder, values, "f32")
            write_weights(folder, "wav2vec2", shapes, np.float64)
            found |= compute(folder, values, "f64")
            models[name] = {"config": config, "shapes": shapes, "preprocessor": extractor.to_dict()}
        arrays |= {f"{name}/{key}": one for key, one in found.items()}
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        tokenizer = write_tokenizer(folder)
        texts = [{"ids": ids, "text": tokenizer.decode(ids)} for ids in TEXTS]
        print(texts)
        names = ("vocab.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
        files = {name: json.loads((folder / name).read_text()) for name in names if (folder / name).exists()}
    (HERE / "waves.json").write_text(json.dumps(models, indent=1) + "\n")
    (HERE / "frame_labels.json").write_text(json.dumps({"files": files, "texts": texts}, indent=1) + "\n")
    np.savez_compressed(HERE / "waves.npz", samples=samples, values=values, **arrays)


def write_example() -> None:
    """A whole folder."""
    folder = HERE.parent / "transcripts" / "inputs" / "wav2vec2"
    folder.mkdir(exist_ok=True)
    config, _ = save(SMALL, folder)
    write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    settings = transformers.Wav2Vec2FeatureExtractor().to_dict()
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=1) + "\n")


if __name__ == "__main__":
    main()
    write_gradients()
    write_example()
