"""Perplexities, frozen: perplexities.json, which tests/commands/test_score.py compares with.

    pip install torch==2.13.0 transformers==5.23.0 sentencepiece protobuf
    python tests/references/make_perplexities.py

`windows` is the loop of the page "Perplexity of fixed-length models" of transformers over samples/data/lighthouse.txt;
`loss` is the mean over all tokens of the same logits. Of a model whose tokenizer puts a start token before the text,
every window begins with it, in place of its first token; `usual` is the perplexity of the loop as it is on that page,
where only the first window has one. `pairs` is exp of the loss of transformers over all targets of
PAIRS, one pair at a time. The models compute in float64, the losses of transformers are rounded to float32.
"""

import json
import math
import pathlib
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

HERE = pathlib.Path(__file__).parent
TEXT = HERE.parent.parent / "samples/data/lighthouse.txt"
WINDOWS = {
    "gpt2": [(64, 64), (64, 48), (64, 32), (64, 7), (40, 16)],
    "llama": [(64, 64), (64, 32), (32, 24), (100, 33)],
}
PAIRS = [
    ("je suis étudiant", "I am a student"),
    ("le chat dort", "the cat sleeps"),
    ("un petit chat noir dort dans la grande maison", "a small black cat sleeps in the big house"),
]


def windows(name: str, size: int, stride: int) -> dict[str, float]:
    """Run the documented loop with a start token before every window, and as it is."""
    tokenizer, model = load(name, AutoModelForCausalLM)
    ids = tokenizer(TEXT.read_text(encoding="utf-8"), return_tensors="pt").input_ids
    first = int(ids[0, 0])
    if first != tokenizer.bos_token_id:
        return run_windows(model, ids, size, stride)
    usual = run_windows(model, ids, size, stride)["perplexity"]
    return run_windows(model, ids, size, stride, first) | {"usual": usual, "bos": first}


def run_windows(
    model: torch.nn.Module, ids: torch.Tensor, size: int, stride: int, start: int | None = None
) -> dict[str, float]:
    """Run the loop, and beside it the sum over all tokens."""
    count, total, tokens, done = ids.size(1), 0.0, 0, 0
    exact, predicted = 0.0, 0
    for begin in range(0, count, stride):
        end = min(begin + size, count)
        added = end - done
        part, targets = ids[:, begin:end].clone(), ids[:, begin:end].clone()
        targets[:, :-added] = -100
        if start is not None:
            part[:, 0] = start
        with torch.no_grad():
            result = model(part, labels=targets)
        weight = int((targets != -100).sum()) - 1
        if weight:
            total += result.loss.item() * weight
            tokens += weight
        shifted = targets[0, 1:]
        chosen = shifted != -100
        exact -= result.logits[0, :-1].log_softmax(-1)[chosen].gather(1, shifted[chosen][:, None]).sum().item()
        predicted += int(chosen.sum())
        done = end
        if end == count:
            break
    return {"perplexity": math.exp(total / tokens), "loss": exact / predicted, "tokens": predicted, "ids": count}


def pairs(name: str) -> dict[str, float]:
    """Return the perplexity of the targets of PAIRS."""
    tokenizer, model = load(name, AutoModelForSeq2SeqLM)
    total, tokens = 0.0, 0
    for source, target in PAIRS:
        labels = tokenizer(text_target=target, return_tensors="pt").input_ids
        with torch.no_grad():
            result = model(**tokenizer(source, return_tensors="pt"), labels=labels)
        total += result.loss.item() * labels.size(1)
        tokens += labels.size(1)
    return {"perplexity": math.exp(total / tokens), "loss": total / tokens, "tokens": tokens}


def load(name: str, kind: type) -> tuple:
    """Return the tokenizer and the model of a folder under models."""
    folder = HERE / "models" / name
    return AutoTokenizer.from_pretrained(folder), kind.from_pretrained(folder, dtype=torch.float64).eval()


def main() -> None:
    result = {
        "versions": {"torch": torch.__version__.partition("+")[0], "transformers": transformers.__version__},
        "pairs": PAIRS,
        "windows": [
            {"model": name, "window": size, "stride": stride, **windows(name, size, stride)}
            for name, sizes in WINDOWS.items()
            for size, stride in sizes
        ],
        "targets": [{"model": name, **pairs(name)} for name in ("marian", "t5")],
    }
    (HERE / "perplexities.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
