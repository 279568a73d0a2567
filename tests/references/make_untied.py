"""Models with an output head of their own, after training: python tests/references/make_untied.py

Made with torch 2.13.0 and transformers 5.23.0. Each model is tiny and random, has `tie_word_embeddings: false`, and
takes five steps of AdamW on random targets before it is saved, so that its head, its embeddings and every tensor that
only looks like one of them differ. untied/NAME is its folder, whose config.json is given, and untied.npz has, for the
ids in it, NAME.logits in float64 arithmetic of the saved float32 parameters; the decoder of a translator reads its
start token and the ids from the last to the first. deberta-plain has `relative_attention: false` with terms of
distances, which still count in the scale of its scores.
"""

import json
from pathlib import Path

import numpy as np
import torch
import transformers

HERE = Path(__file__).parent
IDS = [[3, 11, 7, 5, 2, 13], [9, 4, 3, 12, 6, 8]]
WORDS = 17


def target_of(model: torch.nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the decoder of a translator reads: its start token, and the ids from the last to the first."""
    if not model.config.is_encoder_decoder:
        return {}
    start = torch.full((len(ids), 1), model.config.decoder_start_token_id or 0)
    return {"decoder_input_ids": torch.cat([start, ids.flip(1)], 1)}


def read_logits(kind: type, folder: Path) -> np.ndarray:
    """The logits of a folder in float64."""
    model, ids = kind.from_pretrained(folder, attn_implementation="eager").double().eval(), torch.tensor(IDS)
    with torch.no_grad():
        return model(input_ids=ids, **target_of(model, ids)).logits.numpy()


def make(name: str, folder: Path) -> np.ndarray:
    """Write the folder of a model after its steps; return its logits as it is read again."""
    torch.manual_seed(len(name))
    stated = (folder / "config.json").read_bytes()
    config = json.loads(stated)
    kind = getattr(transformers, config["architectures"][0])
    model = kind(kind.config_class.from_dict(config))
    with torch.no_grad():  # biases start at 0, norms at 1
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    ids = torch.tensor(IDS)
    for _ in range(5):
        optimizer.zero_grad()
        logits = model(input_ids=ids, **target_of(model, ids)).logits.flatten(0, 1)
        torch.nn.functional.cross_entropy(logits, torch.randint(WORDS, (len(logits),))).backward()
        optimizer.step()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config.json").write_bytes(stated)
    return read_logits(kind, folder)


def main() -> None:
    frozen = {"ids": np.array(IDS)}
    for folder in sorted((HERE / "untied").iterdir()):
        frozen[f"{folder.name}.logits"] = make(folder.name, folder)
    np.savez(HERE / "untied.npz", **frozen)


if __name__ == "__main__":
    main()
