"""Gradients of the models of make_recurrent_models.py by torch.autograd, frozen in recurrent_gradients.npz.

    pip install torch==2.13.0 numpy==2.4.6 safetensors==0.8.0
    python tests/references/make_recurrent_gradients.py

For each case of recurrent_models.npz, after its name and a slash: `slope`, random, of the shape of its logits, and
under the name of every stored tensor the gradient of the sum of slope · logits over the padded batch. Encoders are run
row by row and token by token with the cells of make_recurrent_models.py, so that each text ends where it does; the
language model is torch.nn.LSTM. The case `classifier` is that model with a head over the last hidden state, the maximum
and the mean of each text (Howard and Ruder 2018), and has its config, weights/NAME, ids, lengths and logits here too;
the folder models/lstm-classifier holds it with the words of models/lstm. The same bytes come out of every run.
"""

import json
import pathlib
import zipfile
from typing import Any

import make_recurrent_models as models
import numpy as np
import torch
from torch import nn

HERE = pathlib.Path(__file__).parent


class Model(models.Model):
    """A model whose encoder keeps the graph of its weights."""

    def encode(self, ids: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, list[tuple[torch.Tensor, ...]]]:
        """Return the memory (B, S, M) and the last states of each layer."""
        texts = [self.encode_text(row[:length]) for row, length in zip(ids, lengths.tolist(), strict=True)]
        memory = nn.utils.rnn.pad_sequence([text for text, _ in texts], batch_first=True)
        states = [
            tuple(torch.stack(parts) for parts in zip(*(last[layer] for _, last in texts), strict=True))
            for layer in range(self.c["encoder_layers"])
        ]
        return memory, states

    def encode_text(self, ids: torch.Tensor) -> tuple[torch.Tensor, list[tuple[torch.Tensor, ...]]]:
        """Return the memory (S, M) of one text, and the last states (M,) of each layer."""
        c, x, last = self.c, self.tables["encoder"][ids], []
        suffixes = ("", "_reverse")[: 2 if c["bidirectional"] else 1]
        zeros = (torch.zeros(1, c["hidden_size"], dtype=torch.float64),) * (2 if c["encoder_cell"] == "lstm" else 1)
        for layer in range(c["encoder_layers"]):
            outputs, ends = [], []
            for suffix in suffixes:
                state, steps = zeros, {}
                for t in reversed(range(len(ids))) if suffix else range(len(ids)):
                    name = f"encoder.rnn.{{}}_l{layer}{suffix}"
                    state = models.step(c["encoder_cell"], x[t][None], state, self.w, name)
                    steps[t] = state[0][0]
                outputs.append(torch.stack([steps[t] for t in range(len(ids))]))
                ends.append(state)
            x = torch.cat(outputs, -1)
            last.append(tuple(torch.cat([end[0] for end in parts]) for parts in zip(*ends, strict=True)))
        return x, last


def hidden_states(config: dict[str, Any], weights: dict[str, torch.Tensor], ids: torch.Tensor) -> torch.Tensor:
    """Return the last hidden states of the language model."""
    x = weights["encoder.weight"][ids]
    for number in range(config["num_layers"]):
        own = {name.split(".")[2]: one for name, one in weights.items() if name.startswith(f"rnns.{number}.")}
        layer = nn.LSTM(x.shape[-1], own["weight_hh_l0"].shape[1], batch_first=True, dtype=torch.float64)
        x, _ = torch.func.functional_call(layer, own, (x,))
    return x


def classify(config: dict[str, Any], weights: dict[str, torch.Tensor], ids: torch.Tensor, lengths: Any) -> torch.Tensor:
    """Return the logits of texts, row by row."""
    rows = []
    for row, length in zip(ids, lengths, strict=True):
        x = hidden_states(config, weights, row[None, :length])[0]
        pooled = torch.cat([x[-1], x.max(dim=0).values, x.mean(dim=0)])
        rows.append(pooled @ weights["classifier.weight"].T + weights["classifier.bias"])
    return torch.stack(rows)


def make_classifier(arrays: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return the members of the case `classifier`, and write its folder."""
    labels = {"id2label": {"0": "bad", "1": "fair", "2": "good"}, "label2id": {"bad": 0, "fair": 1, "good": 2}}
    config = json.loads(str(arrays["config"])) | labels
    stored = {name: one for name, one in arrays.items() if name.startswith("weights/") and "decoder.bias" not in name}
    stored |= {"weights/classifier.weight": rng.standard_normal((3, 12)), "weights/classifier.bias": rng.random(3)}
    ids = rng.integers(3, 9, (3, 6))
    found = {"config": np.array(json.dumps(config)), **stored, "ids": ids, "lengths": np.array([6, 2, 4])}
    tokenizer = models.tokenizer(models.SOURCE, False)
    models.write_folder("lstm-classifier", found, {"tokenizer.json": tokenizer})
    return found


def logits_of(config: dict[str, Any], weights: dict[str, torch.Tensor], arrays: dict[str, Any]) -> torch.Tensor:
    """Return the logits of the padded batch of a case."""
    if "id2label" in config:
        return classify(config, weights, torch.tensor(arrays["ids"]), arrays["lengths"])
    if config["model_type"] == "lstm":
        x = hidden_states(config, weights, torch.tensor(arrays["ids"]))
        return x @ weights["encoder.weight"].T + weights["decoder.bias"]
    model, lengths = Model(models.fill(config), weights), torch.tensor(arrays["lengths"])
    ids, target = torch.tensor(arrays["ids"]), torch.tensor(arrays["target"])
    memory, last = model.encode(ids, lengths)
    carry, real = model.first(last, len(ids)), torch.arange(ids.shape[1]) < lengths[:, None]
    steps = []
    for t in range(target.shape[1]):
        logits, carry, _ = model.token(target[:, t], carry, memory, real)
        steps.append(logits)
    return torch.stack(steps, 1)


def main() -> None:
    """Write the file, whose members have a fixed time."""
    torch.set_num_threads(1)
    stored = np.load(HERE / "recurrent_models.npz")
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(HERE / "recurrent_gradients.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        names = list(dict.fromkeys(name.partition("/")[0] for name in stored))
        cases = {
            case: {name.removeprefix(f"{case}/"): stored[name] for name in stored if name.startswith(f"{case}/")}
            for case in names
        }
        cases["classifier"] = make_classifier(cases["lstm"], np.random.default_rng(1))
        for case, arrays in cases.items():
            weights = {
                name.removeprefix("weights/"): torch.tensor(array, requires_grad=True)
                for name, array in arrays.items()
                if name.startswith("weights/")
            }
            logits = logits_of(json.loads(str(arrays["config"])), weights, arrays)
            if "logits" in arrays:
                np.testing.assert_allclose(logits.detach().numpy(), arrays["logits"], rtol=0, atol=1e-12)
            slope = rng.standard_normal(logits.shape)
            (logits * torch.tensor(slope)).sum().backward()
            results = {"slope": slope} | {name: one.grad.numpy() for name, one in weights.items()}
            results |= {} if case in names else arrays | {"logits": logits.detach().numpy()}
            for name, array in results.items():
                with archive.open(zipfile.ZipInfo(f"{case}/{name}.npy", (1980, 1, 1, 0, 0, 0)), "w") as member:
                    np.lib.format.write_array(member, array)


if __name__ == "__main__":
    main()
