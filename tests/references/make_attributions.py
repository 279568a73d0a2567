"""Attributions by autograd, frozen: attributions.npz, which tests/interpret/test_attributions.py compares with.

    pip install torch==2.13.0 transformers==5.23.0
    python tests/references/make_attributions.py

The models of transformers compute in float64 from `inputs_embeds`. input-x-gradient is embedding · gradient, integrated
gradients the mean of the gradients at POINTS points between zeros and the embeddings (as LayerIntegratedGradients of
captum with method "riemann_middle"), both summed over the width. The output is the sum of log p of the scored tokens;
of the classifier it is −log p of a class, and its embeddings include those of the segment.
"""

import pathlib

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

HERE = pathlib.Path(__file__).parent
POINTS = 16
SCORED = {  # all ids, and the first one that is scored: "The cat| sat on the mat", "The cat| sat on"
    "gpt2": ([277, 264, 266, 270, 266, 282, 259, 288, 266], 3),
    "llama": ([1, 281, 259, 267, 269, 273, 269, 270, 290], 5),
}
TRANSLATED = {  # "je suis": "I am a student", "the cat": "sat on"
    "marian": ([68, 29, 16, 68, 48, 52, 24, 48, 0], [68, 7, 69, 34, 69, 68, 50, 52, 15, 51, 0]),
    "t5": ([6, 3, 21, 12, 1], [3, 5, 12, 24, 1]),
}
CLASSIFIED = [2, 50, 51, 52, 3]  # "the cat sat"
CLASS = 1
Embeddings = dict[str, torch.Tensor]


def attribute(embeddings: Embeddings, output, frozen: dict[str, np.ndarray], name: str) -> None:
    """Freeze both attributions of each of the embeddings (T, D), the output and that of zeros."""

    def run(share: float) -> tuple[float, Embeddings]:
        leaves = {key: (share * one).detach().requires_grad_() for key, one in embeddings.items()}
        result = output(leaves)
        return result.item(), dict(zip(leaves, torch.autograd.grad(result, list(leaves.values())), strict=True))

    whole, gradients = run(1.0)
    frozen[f"{name}.output"], frozen[f"{name}.baseline"] = np.array(whole), np.array(run(0.0)[0])
    totals = {key: torch.zeros_like(one) for key, one in embeddings.items()}
    for point in range(POINTS):
        for key, one in run((point + 0.5) / POINTS)[1].items():
            totals[key] += one
    for key, one in embeddings.items():
        frozen[f"{name}.input-x-gradient.{key}"] = (one * gradients[key]).sum(-1).detach().numpy()
        frozen[f"{name}.integrated.{key}"] = (one * totals[key] / POINTS).sum(-1).detach().numpy()


def log_probability(logits: torch.Tensor, ids: torch.Tensor, first: int) -> torch.Tensor:
    """Return the sum of log p of the tokens from the index `first` on: logits (T, N), ids (T)."""
    return logits.log_softmax(-1)[first - 1 : len(ids) - 1].gather(1, ids[first:, None]).sum()


def load(name: str, kind):
    return kind.from_pretrained(HERE / "models" / name, attn_implementation="eager").double().eval()


def main() -> None:
    frozen: dict[str, np.ndarray] = {"points": np.array(POINTS)}
    for name, (words, first) in SCORED.items():
        model, ids = load(name, AutoModelForCausalLM), torch.tensor(words)
        attribute(
            {"x": model.get_input_embeddings()(ids)},
            lambda one, model=model, ids=ids, first=first: log_probability(
                model(inputs_embeds=one["x"][None]).logits[0], ids, first
            ),
            frozen,
            name,
        )
    for name, (source, target) in TRANSLATED.items():
        model = load(name, AutoModelForSeq2SeqLM)
        words = torch.tensor([model.config.decoder_start_token_id, *target])
        encoder, decoder = model.get_encoder(), model.get_decoder()
        scale = getattr(encoder, "embed_scale", 1.0)  # the decoder of Marian scales its own
        inputs = {
            "source": encoder.embed_tokens(torch.tensor(source)) * scale,
            "x": decoder.embed_tokens(words),
        }

        def output(one: Embeddings, model=model, words=words) -> torch.Tensor:
            result = model(inputs_embeds=one["source"][None], decoder_inputs_embeds=one["x"][None])
            return log_probability(result.logits[0], words, 1)

        attribute(inputs, output, frozen, name)
    model = load("bert-sequence", AutoModelForSequenceClassification)
    segment = model.bert.embeddings.token_type_embeddings.weight[0]
    attribute(
        {"x": model.get_input_embeddings()(torch.tensor(CLASSIFIED)) + segment},
        lambda one: -model(inputs_embeds=(one["x"] - segment)[None]).logits[0].log_softmax(-1)[CLASS],
        frozen,
        "bert-sequence",
    )
    np.savez(HERE / "attributions.npz", **frozen)
    for key, one in frozen.items():
        print(key, one.shape, one.reshape(-1)[:3])


if __name__ == "__main__":
    main()
