"""Tiny models of images and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6 pillow==12.3.0
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_vision.py [NAME...]

writes vision.json, each model's config.json, the shapes of its tensors as transformers saves them, and its
preprocessor_config.json, and vision.npz, what it computes in eager attention. The weights are those of
tests/drawing.py, which draws them by name, so no file holds them. Members of the .npz begin with the name of the model:

    processed      (1, C, H, W) what the PIL-backed processor makes of models/vit.png, in float32
    pixels         (1, C, H, W) a random image of the size of the model, wide.pixels of another grid
    hidden.N       (1, T, D) states in float64: 0 = embeddings, N = after layer N
    weights.0      (1, H, T, T) attention weights of the first layer
    normed, logits, wide.normed, wide.logits   after the last norm, and of the head, in float64 (.f64), float32 (.f32)

Of a model with towers there are, instead of logits and states of one:

    ids, ids.mask      (3, T) texts with end tokens, padded on the right
    text.*, vision.*   hidden.N and normed of each tower, in float64; vision.normed is after its last norm
    text.vectors, vision.vectors   (3, E), (1, E) before they are divided by their lengths, (.f64) and (.f32)
    logits             (1, 3) of the image and the texts

SigLIP pads its texts to the length of all, and masks nothing. Of it there are besides:

    wide.vectors, masked.vectors   of wide.pixels with resized positions, and of the texts with ids.mask, in float64

tests/transcripts/inputs/clip is a folder with a tokenizer besides; clip_labels.json has the ids of texts, and the
logits of models/vit.png. inputs/siglip and siglip_labels.json are the same of SigLIP, whose texts are padded.

In the float64 model every part is computed in float64: see make_decoders.py.
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.numpy
import torch
import transformers
from make_decoders import in_double, write_weights
from make_models import LINES, sentence_pieces
from PIL import Image
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

HERE = pathlib.Path(__file__).parent
DINO = {
    "hidden_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "mlp_ratio": 3,
    "image_size": 21,
    "patch_size": 7,
    "id2label": {"0": "circle", "1": "square", "2": "cross"},
    "label2id": {"circle": 0, "square": 1, "cross": 2},
}
SMALL = {"size": {"shortest_edge": 25}, "crop_size": {"height": 21, "width": 21}}
TEXT = {
    "vocab_size": 61,
    "hidden_size": 18,
    "intermediate_size": 31,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 13,
    "bos_token_id": 59,
    "eos_token_id": 60,
    "pad_token_id": 60,
}
VISION = {
    "hidden_size": 20,
    "intermediate_size": 29,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "image_size": 21,
    "patch_size": 7,
}
CLIP = {"text_config": TEXT, "vision_config": VISION, "projection_dim": 11}
SIGLIP_TEXT = {"projection_size": 20, "pad_token_id": 1}  # the rest as CLIP
SIGLIP = {"text_config": TEXT | SIGLIP_TEXT, "vision_config": VISION}
SIGLIP_CLASSES = {
    "vision_config": VISION | {"layer_norm_eps": 1e-5},
    "id2label": {"0": "circle", "1": "square", "2": "cross"},
    "label2id": {"circle": 0, "square": 1, "cross": 2},
    "problem_type": "multi_label_classification",
}
DINO3 = {
    "hidden_size": 24,
    "intermediate_size": 31,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": 21,
    "patch_size": 7,
}


class FloatProcessor:
    """What DINOv3ViTImageProcessor computes with torchvision: pixels are resized as floats, with antialias."""

    def __init__(self, **settings) -> None:
        mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
        self.settings = {"image_processor_type": "DINOv3ViTImageProcessorFast", "do_resize": True, "resample": 2,
                         "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "image_mean": mean,
                         "image_std": std} | settings  # fmt: skip

    def __call__(self, image: Image.Image, return_tensors: str) -> dict[str, np.ndarray]:
        pixels = torch.tensor(np.asarray(image.convert("RGB"))).permute(2, 0, 1)[None].float() / 255
        size, kinds = self.settings["size"], {2: "bilinear", 3: "bicubic"}
        options = {"mode": kinds[self.settings["resample"]], "antialias": True, "align_corners": False}
        resized = torch.nn.functional.interpolate(pixels, (size["height"], size["width"]), **options)
        mean, std = (torch.tensor(self.settings[key])[:, None, None] for key in ("image_mean", "image_std"))
        return {"pixel_values": ((resized - mean) / std).numpy()}

    def save_pretrained(self, folder: pathlib.Path) -> None:
        (folder / "preprocessor_config.json").write_text(json.dumps(self.settings))


MODELS = {  # class of the model, configuration, class of the processor, its settings
    "dinov2": ("Dinov2ForImageClassification", "dinov2", DINO, BitImageProcessorPil, SMALL),
    "dinov2-swiglu": (
        "Dinov2ForImageClassification",
        "dinov2",
        DINO | {"use_swiglu_ffn": True, "qkv_bias": False, "layer_norm_eps": 1e-5},
        BitImageProcessorPil,
        {"size": {"height": 35, "width": 28}, "do_center_crop": False, "image_mean": [0.4, 0.5, 0.6]},
    ),
    "dinov2-registers": (
        "Dinov2WithRegistersForImageClassification",
        "dinov2_with_registers",
        DINO | {"num_register_tokens": 3},
        BitImageProcessorPil,
        {"size": {"shortest_edge": 21}, "crop_size": {"height": 28, "width": 14}, "resample": 2},
    ),
    "dinov3": (
        "DINOv3ViTModel",
        "dinov3_vit",
        DINO3 | {"num_register_tokens": 4},
        FloatProcessor,
        {"size": {"height": 21, "width": 28}},
    ),
    "dinov3-gated": (
        "DINOv3ViTModel",
        "dinov3_vit",
        DINO3
        | {"use_gated_mlp": True, "hidden_act": "silu", "key_bias": True, "mlp_bias": False, "query_bias": False}
        | {"rope_theta": 50.0, "layer_norm_eps": 1e-4},
        FloatProcessor,
        {"size": {"height": 14, "width": 21}, "resample": 3},
    ),
    "clip": ("CLIPModel", "clip", CLIP, CLIPImageProcessorPil, SMALL),
    "clip-old": (
        "CLIPModel",
        "clip",
        CLIP | {"text_config": TEXT | {"eos_token_id": 2, "pad_token_id": 1, "hidden_act": "gelu"}},
        CLIPImageProcessorPil,
        SMALL,
    ),
    "siglip": ("SiglipModel", "siglip", SIGLIP, SiglipImageProcessorPil, {"size": {"height": 21, "width": 21}}),
    "siglip-wide": (
        "SiglipModel",
        "siglip",
        {
            "text_config": TEXT | SIGLIP_TEXT | {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "vocab_size": 67},
            "vision_config": VISION | {"image_size": 23, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-4},
        },
        SiglipImageProcessorPil,
        {"size": {"height": 28, "width": 21}, "resample": 2, "image_mean": [0.4, 0.5, 0.6]},
    ),
    "siglip-classifier": (
        "SiglipForImageClassification",
        "siglip",
        SIGLIP_CLASSES,
        SiglipImageProcessorPil,
        {"size": {"height": 21, "width": 21}},
    ),
}


def save(kind: str, family: str, values: dict, folder: pathlib.Path) -> tuple[dict, dict]:
    """Save a model with drawn weights; its configuration and the shapes of its tensors."""
    config = transformers.AutoConfig.for_model(family, **values)
    getattr(transformers, kind)(config).save_pretrained(folder)
    path = folder / "model.safetensors"
    shapes = {key: list(tensor.shape) for key, tensor in sorted(safetensors.numpy.load_file(path).items())}
    write_weights(folder, family, shapes, np.float32)
    written = json.loads((folder / "config.json").read_text())
    return {key: value for key, value in written.items() if key != "transformers_version"}, shapes


def compute(folder: pathlib.Path, kind: str, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    precision = getattr(torch, "float64" if dtype == "f64" else "float32")
    model = getattr(transformers, kind).from_pretrained(folder, attn_implementation="eager", dtype=precision).eval()
    if "ids" in given:
        return compute_towers(model, given, dtype)
    found, is_siglip = {}, hasattr(model, "vision_model")
    body = model.vision_model if is_siglip else getattr(model, model.base_model_prefix)
    if not hasattr(model, "classifier"):
        body = model
    with torch.no_grad():
        for place in ("", "wide."):
            pixels = torch.tensor(given[f"{place}pixels"], dtype=precision)
            options = {"interpolate_pos_encoding": True} if is_siglip and place else {}
            output = model(pixels, **options, output_hidden_states=True, output_attentions=True)
            if body is not model:
                found[f"{place}logits.{dtype}"] = output.logits.numpy()
            found[f"{place}normed.{dtype}"] = body(pixels, **options).last_hidden_state.numpy()
            if dtype == "f64" and not place:
                found |= {f"hidden.{at}": state.numpy() for at, state in enumerate(output.hidden_states)}
                found["weights.0"] = output.attentions[0].numpy()
    return found


def compute_towers(model, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    is_clip = hasattr(model, "text_projection")
    ids, mask = torch.tensor(given["ids"]), torch.tensor(given["ids.mask"])
    options = {"attention_mask": mask} if is_clip else {}
    pixels = torch.tensor(given["pixels"], dtype=model.dtype)
    with torch.no_grad():
        text = model.text_model(ids, **options, output_hidden_states=True)
        vision = model.vision_model(pixels, output_hidden_states=True)
        found = {
            f"text.vectors.{dtype}": model.get_text_features(ids, **options).pooler_output.numpy(),
            f"vision.vectors.{dtype}": model.get_image_features(pixels).pooler_output.numpy(),
            f"logits.{dtype}": model(ids, pixels, **options).logits_per_image.numpy(),
        }
        if dtype == "f64":
            for name, output in (("text", text), ("vision", vision)):
                found |= {f"{name}.hidden.{at}": one.numpy() for at, one in enumerate(output.hidden_states)}
            found["text.normed"] = text.last_hidden_state.numpy()
            last = vision.last_hidden_state
            found["vision.normed"] = (model.vision_model.post_layernorm(last) if is_clip else last).numpy()
        if dtype == "f64" and not is_clip:
            wide = torch.tensor(given["wide.pixels"], dtype=model.dtype)
            images = model.get_image_features(wide, interpolate_pos_encoding=True)
            masked = model.get_text_features(ids, attention_mask=mask)
            found |= {"wide.vectors": images.pooler_output.numpy(), "masked.vectors": masked.pooler_output.numpy()}
    return found


def write_texts(values: dict, family: str) -> dict[str, np.ndarray]:
    """Three texts with a begin and an end token; what pads them is an end token too, or 1."""
    rng, text = np.random.default_rng(7), values["text_config"]
    length = text["max_position_embeddings"] if family == "siglip" else 9
    ids = np.full((3, length), text["pad_token_id"])
    mask = np.zeros((3, length), np.int64)
    for row, count in enumerate((9, 4, 6)):
        ids[row, :count] = [59, *rng.integers(3, 58, count - 2), 60]
        mask[row, :count] = 1
    return {"ids": ids, "ids.mask": mask}


TEXTS = ["a cat", "a red dog", "the river"]


def write_clip() -> None:
    """A whole folder with its tokenizer, and the logits of models/vit.png and TEXTS."""
    folder = HERE.parent / "transcripts" / "inputs" / "clip"
    letters = "abcdefghijklmnopqrstuvwxyz"
    merges = [("c", "a"), ("ca", "t</w>"), ("d", "o"), ("do", "g</w>"), ("r", "e"), ("t", "h"), ("th", "e</w>")]
    words = [*letters, *(f"{letter}</w>" for letter in letters), *(a + b for a, b in merges)]
    vocab = {word: at for at, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
    tokenizer = transformers.CLIPTokenizer(vocab=vocab, merges=merges)
    special = {"bos_token_id": len(vocab) - 2, "eos_token_id": len(vocab) - 1, "pad_token_id": len(vocab) - 1}
    text = TEXT | special | {"vocab_size": len(vocab), "max_position_embeddings": 20}
    config, shapes = save("CLIPModel", "clip", CLIP | {"text_config": text}, folder)
    write_weights(folder, "clip", shapes, np.float32)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    process = CLIPImageProcessorPil(**SMALL)
    process.save_pretrained(folder)
    with Image.open(HERE / "models" / "vit.png") as image:
        pixels = torch.tensor(process(image, return_tensors="np")["pixel_values"])
    rows = [tokenizer(one)["input_ids"] for one in TEXTS]
    model = transformers.CLIPModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = [model(torch.tensor([row]), pixels).logits_per_image[0, 0].item() for row in rows]
    (HERE / "clip_labels.json").write_text(json.dumps({"texts": TEXTS, "ids": rows, "logits": logits}, indent=1) + "\n")


SPOKEN = [*TEXTS, "A Cat!", "the  river, (red) dog.", "", "  ", "it's </s> a dog", "a\u2581cat \u2581",
          "caf\u00e9 <unk> cat?", "</s>", "the dog</s>",
          "a cat and a red dog and the river and a cat and a red dog and the river"]  # fmt: skip


def write_siglip() -> None:
    """A whole folder with its spiece.model, the ids of SPOKEN, and the logits of models/vit.png and TEXTS.

    Texts are padded to the length of all, and cut to it, as the pipeline for labels without training does.
    """
    folder, size = HERE.parent / "transcripts" / "inputs" / "siglip", 61
    options = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1, "normalization_rule_name": "identity"}
    sentence_pieces(folder / "spiece.model", [line.lower() for line in LINES], size, "unigram", **options)
    special = {"eos_token_id": 1, "pad_token_id": 1}
    values = SIGLIP | {"text_config": TEXT | SIGLIP_TEXT | special | {"vocab_size": size}}
    config, shapes = save("SiglipModel", "siglip", values, folder)
    write_weights(folder, "siglip", shapes, np.float32)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    stated = {"tokenizer_class": "SiglipTokenizer", "model_input_names": ["input_ids"], "model_max_length": 13}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated, indent=2) + "\n")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    process = SiglipImageProcessorPil(size={"height": 21, "width": 21})
    process.save_pretrained(folder)
    with Image.open(HERE / "models" / "vit.png") as image:
        pixels = torch.tensor(process(image, return_tensors="np")["pixel_values"])
    padded = tokenizer(TEXTS, padding="max_length", max_length=13, truncation=True, return_tensors="pt")
    assert [*padded] == ["input_ids"]
    model = transformers.SiglipModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(**padded, pixel_values=pixels).logits_per_image[0]
    frozen = {
        "texts": TEXTS,
        "ids": padded["input_ids"].tolist(),
        "logits": logits.tolist(),
        "probabilities": torch.sigmoid(logits).tolist(),
        "tokens": {text: tokenizer(text)["input_ids"] for text in SPOKEN},
        "cut": tokenizer(SPOKEN[-1], max_length=13, truncation=True)["input_ids"],
        "words": {text: tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) for text in SPOKEN},
    }
    (HERE / "siglip_labels.json").write_text(json.dumps(frozen, indent=1) + "\n")


def main(names: list[str]) -> None:
    path, arrays_path = HERE / "vision.json", HERE / "vision.npz"
    table = json.loads(path.read_text()) if path.exists() else {}
    arrays = dict(np.load(arrays_path)) if arrays_path.exists() else {}
    for name in names or MODELS:
        kind, family, values, processor, settings = MODELS[name]
        arrays = {key: one for key, one in arrays.items() if not key.startswith(f"{name}/")}
        rng = np.random.default_rng(len(name))
        cut = values.get("vision_config", values)
        side, patch = cut["image_size"], cut["patch_size"]
        given = {
            "pixels": rng.standard_normal((1, 3, side, side), np.float32),
            "wide.pixels": rng.standard_normal((1, 3, 2 * patch, 5 * patch), np.float32),
        }
        given |= write_texts(values, family) if "text_config" in values else {}
        process = processor(**settings)
        with Image.open(HERE / "models" / "vit.png") as image:
            given["processed"] = process(image, return_tensors="np")["pixel_values"].astype(np.float32)
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            config, shapes = save(kind, family, values, folder)
            found = compute(folder, kind, given, "f32")
            write_weights(folder, family, shapes, np.float64)
            with in_double():
                found |= compute(folder, kind, given, "f64")
            process.save_pretrained(folder)
            settings = json.loads((folder / "preprocessor_config.json").read_text())
        table[name] = {"config": config, "shapes": shapes, "preprocessor": settings}
        arrays |= {f"{name}/{key}": one for key, one in (given | found).items()}
        print(name, sorted(found))
    path.write_text(json.dumps({name: table[name] for name in MODELS if name in table}, indent=1) + "\n")
    np.savez_compressed(arrays_path, **arrays)


if __name__ == "__main__":
    write_clip()
    write_siglip()
    main(sys.argv[1:])
