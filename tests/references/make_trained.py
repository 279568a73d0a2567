"""Folders that `attnkit train` writes, and what transformers makes of them: python tests/references/make_trained.py

Made with torch 2.13.0 and transformers 5.23.0. RUNS has the text and the flags of each tiny model. trained/NAME has
what transformers reads of its folder; trained.npz has, for a text of each, NAME.ids by AutoTokenizer (with NAME.text
and, for an encoder-decoder, NAME.decoder_ids, the start token and the ids of NAME.target), and NAME.logits by the
model that AutoConfig's architecture names, float32. transformers has no model_type transformer: tokens alone.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent

TALE = (
    "the cat sat on the mat, and the dog sat on the log; a cat and a dog sat.\n"
    "what did the dog say to the cat? nothing, but the moon was bright.\n"
)
PAIRS = "".join(f"{a} {b} dort\t{c} {d} sleeps\n" for a, c in (("un", "a"), ("le", "the"))
                for b, d in (("chat", "cat"), ("chien", "dog"), ("loup", "wolf"), ("lion", "lion")))  # fmt: skip
SMALL = [
    "--layers",
    "1",
    "--heads",
    "2",
    "--dim",
    "8",
    "--batch",
    "4",
    "--steps",
    "40",
    "--lr",
    "0.01",
    "--warmup",
    "4",
]
RUNS = {
    "gpt2": (TALE * 8, ["--family", "gpt2", "--block", "16", "--tokens", "bpe:290"]),
    "llama": (TALE * 8, ["--family", "llama", "--block", "16", "--tokens", "unigram:36"]),
    "bert": (TALE * 8, ["--family", "bert", "--block", "40", "--tokens", "chars"]),
    "t5": (TALE * 8, ["--family", "t5", "--block", "16", "--tokens", "unigram:36"]),
    "marian": (PAIRS, ["--family", "marian", "--valid", "0", "--tokens", "chars"]),
    "transformer": (PAIRS, ["--family", "transformer", "--valid", "0", "--tokens", "chars"]),
}
TEXTS = {"marian": ("le chien dort", "the dog sleeps"), "transformer": ("un loup dort", "a wolf sleeps")}
DEFAULT = ("the moon and the  dog,\nwhat did", "the cat")
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def train(name: str, folder: Path) -> Path:
    """Write the folder of a model with the `attnkit` of the PATH; return its path."""
    text, flags = RUNS[name]
    (folder / f"{name}.txt").write_text(text)
    command = ["attnkit", "train", f"{name}.txt", "-o", name, *SMALL, *flags]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / name


def outputs(name: str, folder: Path) -> dict[str, np.ndarray]:
    """Return what transformers makes of a folder."""
    import torch
    import transformers

    text, target = TEXTS.get(name, DEFAULT)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, return_tensors="pt").input_ids
    arrays = {"text": np.array(text), "target": np.array(target), "ids": ids[0].numpy()}
    if name == "transformer":
        return arrays
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder, attn_implementation="eager")
    model.eval()
    more = {}
    if config.is_encoder_decoder:
        start = torch.tensor([[config.decoder_start_token_id]])
        more["decoder_input_ids"] = torch.cat([start, tokenizer(text_target=target, return_tensors="pt").input_ids], 1)
        arrays["decoder_ids"] = more["decoder_input_ids"][0].numpy()
    with torch.no_grad():
        arrays["logits"] = model(input_ids=ids, **more).logits[0].numpy()
    return arrays


def main() -> None:
    frozen, kept = {}, HERE / "trained"
    shutil.rmtree(kept, ignore_errors=True)
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            made = train(name, Path(folder))
            (kept / name).mkdir(parents=True)
            for file in FILES:
                shutil.copy(made / file, kept / name / file)
        frozen |= {f"{name}.{key}": array for key, array in outputs(name, kept / name).items()}
    np.savez_compressed(HERE / "trained.npz", **frozen)
    print(json.dumps({path.name: sum(one.stat().st_size for one in path.iterdir()) for path in kept.iterdir()}))


if __name__ == "__main__":
    main()
