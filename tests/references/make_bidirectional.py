"""What transformers makes of decoders whose config.json has `is_causal: false`, frozen.

    pip install torch==2.13.0 transformers==5.23.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 PYTHONPATH=. python tests/references/make_bidirectional.py

reads the models of decoders.json (see drawn_tables.py) and some folders of models, and writes bidirectional.npz, all in
float64. Members begin with the name of the model:

    ids          (1, 17) those of decoders.npz, or of the folder's own vocabulary
    eager, sdpa  (2, V) logits of the first and the last token, in both kinds of attention where the class has them;
                 eager is absent where the key changes nothing
    batch.ids, batch.mask   (2, 9), the first text padded on the left, the second on the right
    batch.eager  (2, V) logits of the first token of each text
    changes      (2, 2) of some families with the sizes of SMALL: how far the last states move with `is_causal` true and
                 null, in eager attention and in sdpa
    greedy       (2, 17 + 8) of qwen3: the texts that transformers writes with a cache and without one, which differ
"""

import json
import pathlib
import tempfile

import numpy as np
import safetensors.numpy
import torch
from drawn_tables import HERE, in_double, load, read_table
from transformers import AutoConfig, AutoModel

from tests.drawing import write_model

FOLDERS = ("gpt2", "llama", "mistral", "openai-gpt", "qwen2")


def write(name: str, folder: pathlib.Path, **changes: object) -> None:
    """The folder of a model, with keys of config.json changed."""
    if name not in FOLDERS:
        write_model(name, folder, np.float64, **changes)
        return
    source = HERE / "models" / name
    tensors = safetensors.numpy.load_file(source / "model.safetensors")
    wide = {key: one.astype(np.float64) for key, one in tensors.items()}
    safetensors.numpy.save_file(wide, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(json.loads((source / "config.json").read_text()) | changes))


def compute(folder: pathlib.Path, attention: str, ids: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray | None:
    """The logits of all tokens; None if the class does not have this kind of attention."""
    try:
        model = load(folder, "f64", attn_implementation=attention, experts_implementation="eager")
    except ValueError:
        return None
    real = None if mask is None else torch.tensor(mask)
    with torch.no_grad():
        return model(torch.tensor(ids), attention_mask=real, use_cache=False).logits.numpy()


def freeze(name: str, vocab: int) -> dict[str, np.ndarray]:
    """What a model reads, and what transformers makes of it."""
    rng, found = np.random.default_rng(5), {}
    found["ids"], found["batch.ids"] = rng.integers(3, vocab, (1, 17)), rng.integers(3, vocab, (2, 9))
    found["batch.mask"] = np.ones((2, 9), np.int64)
    found["batch.mask"][0, :4] = found["batch.mask"][1, 7:] = 0
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        write(name, folder)
        causal = compute(folder, "eager", found["ids"])
        write(name, folder, is_causal=False)
        for attention in ("eager", "sdpa"):
            logits = compute(folder, attention, found["ids"])
            if logits is not None and not (attention == "eager" and np.allclose(logits, causal, atol=1e-12)):
                found[attention] = logits[0, [0, -1]]
        batch = compute(folder, "eager", found["batch.ids"], found["batch.mask"])
        found["batch.eager"] = np.stack([batch[0, 4], batch[1, 0]])
        if name == "qwen3":
            plain = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None}
            ids, model = torch.tensor(found["ids"]), load(folder, "f64")
            found["greedy"] = np.concatenate([model.generate(ids, use_cache=one, **plain) for one in (True, False)])
    return found


SIZES = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 20}
PAIR = {f"{side}_{key}": size for side in ("encoder", "decoder")
        for key, size in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 12))}  # fmt: skip
SMALL = {
    "bert": SIZES, "llama": SIZES, "clip_text_model": SIZES | {"eos_token_id": 19},
    "vit": SIZES | {"image_size": 8, "patch_size": 4}, "bart": PAIR | {"d_model": 8, "vocab_size": 20},
    "t5": {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2, "vocab_size": 20},
}  # fmt: skip


def run_small(family: str, attention: str, **changes: object) -> torch.Tensor:
    """The last states of a small model with random weights."""
    config = AutoConfig.for_model(family, **SMALL[family], **changes)
    torch.manual_seed(0)
    model = AutoModel.from_config(config, attn_implementation=attention).eval()
    ids, image = torch.tensor([[4, 5, 7, 8, 9, 19]]), torch.randn(1, 3, 8, 8)
    given = {"pixel_values": image} if model.main_input_name == "pixel_values" else {"input_ids": ids}
    given |= {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(**given).last_hidden_state


def measure_changes(family: str) -> np.ndarray:
    rows = []
    for attention in ("eager", "sdpa"):
        before = run_small(family, attention)
        rows.append([(run_small(family, attention, is_causal=one) - before).abs().max().item() for one in (True, None)])
    return np.array(rows)


def main() -> None:
    arrays = {f"{family}/changes": measure_changes(family) for family in SMALL}
    with in_double():
        for name in (*read_table("decoders"), *FOLDERS):
            config = (HERE / "models" / name / "config.json") if name in FOLDERS else None
            vocab = json.loads(config.read_text())["vocab_size"] if config else 67
            arrays |= {f"{name}/{key}": one for key, one in freeze(name, vocab).items()}
            print(name, [key for key in arrays if key.startswith(f"{name}/")], flush=True)
    np.savez_compressed(HERE / "bidirectional.npz", **arrays)


if __name__ == "__main__":
    main()
