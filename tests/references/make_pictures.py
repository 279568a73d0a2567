"""Tiny models of pictures and texts, and what transformers makes of a chat about a picture, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6 pillow==12.3.0
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_pictures.py [NAME...]

completes pictures.json, each model's config.json, the shapes of its tensors, its preprocessor_config.json, its chat
template, and the prompt, the ids and the answer of a chat (see drawn_tables.py); it writes pictures/tokenizer.json, of
the letters and the tokens of pictures, the folder tests/transcripts/inputs/smolvlm, and pictures.npz. Members begin
with the name of the model:

    pixels       (N, C, H, W) what the PIL-backed processor makes of models/vit.png, in float32, tile by tile
    rows         (N, T, D) what the tower and its connector make of them, in float64
    embedded     (T, D) what the first layer of the text reads, in float64
    weights.N    (H, Q, T) attention weights of layer N: of the last tokens, or of all where there are few
    logits       (Q, V) of these tokens, in float64 (.f64) and float32 (.f32)

In the float64 model every part is computed in float64: see drawn_tables.py.
"""

import json
import pathlib
import sys

import numpy as np
import tokenizers
import torch
import transformers
from drawn_tables import HERE, freeze, load, read_table
from PIL import Image
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tests.drawing import write_model

IMAGES = {
    "CLIPImageProcessor": CLIPImageProcessorPil,
    "Gemma3ImageProcessor": Gemma3ImageProcessorPil,
    "Idefics3ImageProcessor": Idefics3ImageProcessorPil,
    "SmolVLMImageProcessor": SmolVLMImageProcessorPil,
}
SPECIAL = [
    "<pad>", "<s>", "</s>", "<boi>", "<eoi>", "<image>", "<fake_token_around_image>", "<global-img>", "<end>",
    *(f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3)),
]  # fmt: skip
TEXT = "What is this?"
NEW = 6  # tokens of an answer
MANY, LAST = 38, 4  # tokens of a chat, of which only the last are frozen


def write_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """The printable letters of ASCII, a space and an end of line, each a token, and special tokens."""
    letters = [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
    vocab = {word: at for at, word in enumerate([*SPECIAL, *letters])}
    one = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    one.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    one.decoder = tokenizers.decoders.ByteLevel()
    one.add_special_tokens(SPECIAL)
    one.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    (HERE / "pictures").mkdir(exist_ok=True)
    one.save(str(HERE / "pictures" / "tokenizer.json"))
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "image_token": "<image>"}
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=one, **names)
    whole.boi_token, whole.eoi_token = "<boi>", "<eoi>"
    whole.boi_token_id, whole.eoi_token_id, whole.image_token, whole.image_token_id = 3, 4, "<image>", 5
    return whole


TOKENIZER = write_tokenizer()


def read_processor(row: dict):
    """The processor of pictures and texts of a model."""
    settings, config = row["preprocessor"], row["config"]
    images = IMAGES[settings["image_processor_type"]](**settings)
    kind, cut = config["model_type"], config["vision_config"]
    side = cut["image_size"] // cut["patch_size"]
    options = {"chat_template": row["template"]}
    if kind == "llava":
        options |= {"patch_size": cut["patch_size"], "vision_feature_select_strategy": "default"}
        options |= {"num_additional_image_tokens": 1}
        return transformers.LlavaProcessor(images, TOKENIZER, **options)
    if kind == "gemma3":
        return transformers.Gemma3Processor(
            images, TOKENIZER, image_seq_length=config["mm_tokens_per_image"], **options
        )
    length = side * side // config["scale_factor"] ** 2
    return transformers.Idefics3Processor(images, TOKENIZER, image_seq_len=length, **options)


def chat(row: dict) -> tuple[str, dict[str, np.ndarray]]:
    """The prompt of a chat about models/vit.png, and what the processor makes of both."""
    processor = read_processor(row)
    content = [{"type": "image"}, {"type": "text", "text": TEXT}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    special = {} if not text.startswith("<s>") else {"add_special_tokens": False}
    with Image.open(HERE / "models" / "vit.png") as image:
        return text, dict(processor(images=[image], text=text, return_tensors="np", **special))


def inputs(name: str, row: dict) -> dict[str, np.ndarray]:
    row["prompt"], made = chat(row)
    row["ids"] = made["input_ids"][0].tolist()
    pixels = made["pixel_values"]
    return {"pixels": (pixels[0] if pixels.ndim == 5 else pixels).astype(np.float32)}


def model_inputs(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    config = json.loads((folder / "config.json").read_text())
    row = next(one for one in read_rows() if one["config"] == {k: v for k, v in config.items() if k != VERSION})
    ids, pixels = torch.tensor([row["ids"]]), torch.tensor(given["pixels"], dtype=dtype)
    if config["model_type"] in ("idefics3", "smolvlm"):
        return {"input_ids": ids, "pixel_values": pixels[None]}
    is_gemma = config["model_type"] == "gemma3"
    return {"input_ids": ids, "pixel_values": pixels} | ({"token_type_ids": (ids == 5).long()} if is_gemma else {})


VERSION, ROWS = "transformers_version", []


def read_rows() -> list[dict]:
    return ROWS


def compute(folder: pathlib.Path, given: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    model = load(folder, dtype)
    read = model_inputs(folder, given, model.dtype)
    with torch.no_grad():
        output = model(**read, output_hidden_states=True, output_attentions=True)
        tokens = read["input_ids"].shape[1]
        last = tokens if tokens < MANY else LAST
        found = {f"logits.{dtype}": output.logits[0, -last:].numpy()}
        if dtype == "f64":
            pixels = read["pixel_values"]
            rows = model.model.get_image_features(pixels).pooler_output
            rows = torch.cat([*rows]) if isinstance(rows, list | tuple) else rows
            found["rows"] = rows.reshape(len(given["pixels"]), -1, rows.shape[-1]).numpy()
            found["embedded"] = output.hidden_states[0][0].numpy()
            found |= {f"weights.{at}": one[0, :, -last:].numpy() for at, one in enumerate(output.attentions)}
    return found


def add(folder: pathlib.Path, given: dict[str, np.ndarray], name: str) -> dict:
    """The ids of an answer, greedy, with a cache."""
    model = load(folder, "f64")
    read = model_inputs(folder, given, model.dtype)
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False}
    made = model.generate(**read, attention_mask=torch.ones_like(read["input_ids"]), **options)
    return {"answer": made[0, read["input_ids"].shape[1] :].tolist()}


def remember(name: str, row: dict) -> dict[str, np.ndarray]:
    ROWS.append(row)
    return inputs(name, row)


if __name__ == "__main__":
    folder = HERE.parent / "transcripts" / "inputs" / "smolvlm"
    folder.mkdir(exist_ok=True)
    assert read_table("pictures")
    freeze("pictures", remember, compute, add, names=sys.argv[1:])
    write_model("smolvlm", folder, kind="pictures")
