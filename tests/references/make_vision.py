"""Tiny models of images and what transformers makes of them, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6 pillow==12.3.0
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_vision.py [NAME...]

completes vision.json, each model's config.json, the shapes of its tensors, and its preprocessor_config.json (see
drawn_tables.py), and writes vision.npz, what it computes in eager attention. Members begin with the name of the model:

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

In the float64 model every part is computed in float64: see drawn_tables.py.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers
from drawn_tables import HERE, freeze, load, read_table, save
from make_models import LINES, sentence_pieces
from PIL import Image
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil


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


PROCESSORS = {
    "BitImageProcessor": BitImageProcessorPil,
    "CLIPImageProcessor": CLIPImageProcessorPil,
    "SiglipImageProcessor": SiglipImageProcessorPil,
    "DINOv3ViTImageProcessorFast": FloatProcessor,
}


def read_processor(settings: dict):
    return PROCESSORS[settings["image_processor_type"]](**settings)


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    model = load(folder, dtype)
    if "ids" in given:
        return compute_towers(model, given, dtype)
    found, is_siglip = {}, hasattr(model, "vision_model")
    body = model.vision_model if is_siglip else getattr(model, model.base_model_prefix)
    if not hasattr(model, "classifier"):
        body = model
    with torch.no_grad():
        for place in ("", "wide."):
            pixels = torch.tensor(given[f"{place}pixels"], dtype=model.dtype)
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


def write_texts(config: dict) -> dict[str, np.ndarray]:
    """Three texts with a begin and an end token; what pads them is an end token too, or 1."""
    rng, text = np.random.default_rng(7), config["text_config"]
    length = text["max_position_embeddings"] if config["model_type"] == "siglip" else 9
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
    clip = read_table("vision")["clip"]
    text = clip["config"]["text_config"] | special | {"vocab_size": len(vocab), "max_position_embeddings": 20}
    config, _ = save(clip["config"] | {"text_config": text}, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"))
    process = read_processor(clip["preprocessor"])
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
    siglip = read_table("vision")["siglip"]
    text = siglip["config"]["text_config"] | special | {"vocab_size": size}
    config, _ = save(siglip["config"] | {"text_config": text}, folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    stated = {"tokenizer_class": "SiglipTokenizer", "model_input_names": ["input_ids"], "model_max_length": 13}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated, indent=2) + "\n")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    process = read_processor(siglip["preprocessor"])
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


def inputs(name: str, row: dict) -> dict[str, np.ndarray]:
    """Images, what the processor makes of a picture, and texts of a model with two towers."""
    rng, config = np.random.default_rng(len(name)), row["config"]
    cut = config.get("vision_config", config)
    side, patch = cut["image_size"], cut["patch_size"]
    given = {
        "pixels": rng.standard_normal((1, 3, side, side), np.float32),
        "wide.pixels": rng.standard_normal((1, 3, 2 * patch, 5 * patch), np.float32),
    }
    given |= write_texts(config) if config["architectures"][0] in ("CLIPModel", "SiglipModel") else {}
    with Image.open(HERE / "models" / "vit.png") as image:
        pixels = read_processor(row["preprocessor"])(image, return_tensors="np")["pixel_values"]
    return given | {"processed": pixels.astype(np.float32)}


if __name__ == "__main__":
    write_clip()
    write_siglip()
    freeze("vision", inputs, compute, names=sys.argv[1:])
