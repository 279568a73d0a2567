"""What a training step of a recurrent model costs, beside PyTorch: tests/benchmarks/training_recurrent.py [CASE…]

gru          encoder-decoder of one GRU each, without attention, width 128; batches of 12 pairs of 20 tokens
additive     the same with additive attention, as Bahdanau et al. 2015; additive-32: 32 pairs of 40 tokens
bi-luong     two LSTMs, encoder of both directions, general attention, input feeding; 24 pairs of 30 tokens
lm           language model of three LSTMs, width 256; batches of 12 texts of 64 tokens

Without case: all. Forward and backward pass; the loss is the mean cross-entropy of the next of 500 tokens, and weights,
tokens and padding are the same. PyTorch runs its own modules where it has them (nn.GRU, nn.LSTM; a decoder with
attention is a loop over their cells, as eager code is written), and the gradients of the table are compared. The
columns are those of training_attention.py, which has the other switches.
"""

import sys
from dataclasses import replace
from typing import Any

import numpy as np
from training_attention import Work, figures, print_titles  # first: it sets the threads of OpenBLAS

import torch  # isort: skip
from torch import nn
from torch.nn import functional

from attnkit.checkpoints.publishing import assemble_checkpoint
from attnkit.model import Model
from attnkit.model.formulas.loss import IGNORE_INDEX, LossOptions, loss_and_gradient
from attnkit.model.passes.model_gradients import StackInputs, model_backward, run_model
from attnkit.training.families import new_config
from attnkit.training.initial_model import initial_tensors
from attnkit.training.recipe import Recipe

WORDS = 500
GRU, LSTM = Recipe("seq2seq", layers=1, dropout=0.1), Recipe("lstm", layers=3, dim=256, dropout=0.1)
LUONG = {"layers": 2, "cell": "lstm", "attention": "general", "input_feeding": True, "bidirectional": True}
CASES: dict[str, tuple[Recipe, int, int]] = {
    "gru": (replace(GRU, attention="none"), 12, 20),
    "additive": (GRU, 12, 20),
    "additive-32": (GRU, 32, 40),
    "bi-luong": (replace(GRU, **LUONG), 24, 30),  # type: ignore[arg-type]
    "lm": (LSTM, 12, 64),
}


class Peer(nn.Module):
    """The same model in PyTorch, from its published tensors."""

    def __init__(self, raw: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.raw = raw
        self.weights = nn.ParameterDict(
            {name.replace(".", "|"): nn.Parameter(torch.from_numpy(array.copy())) for name, array in tensors.items()}
        )
        if raw["model_type"] == "seq2seq":
            self.encoder = self.layers("encoder.rnn.", raw["embedding_size"], raw["bidirectional"])
            if raw["attention"] == "none":
                self.decoder = self.layers("decoder.rnn.", raw["embedding_size"], False)
        else:
            count = raw["num_layers"]
            self.stack = nn.ModuleList(
                nn.LSTM(raw["embedding_size"], raw["hidden_size"], batch_first=True) for _ in range(count)
            )
            for number, one in enumerate(self.stack):
                one.load_state_dict({key: self[f"rnns.{number}.{key}"].data.clone() for key in one.state_dict()})

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.weights[name.replace(".", "|")]

    def layers(self, prefix: str, width: int, both: bool) -> nn.Module:
        """The layers of a stack, with its weights."""
        kind = {"gru": nn.GRU, "lstm": nn.LSTM}[self.raw["cell"]]
        module = kind(width, self.raw["hidden_size"], self.raw["encoder_layers"], batch_first=True, bidirectional=both)
        module.load_state_dict({key: self[prefix + key].data.clone() for key in module.state_dict()})
        return module

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        if self.raw["model_type"] == "lstm":
            x = self["encoder.weight"][ids]
            for layer in self.stack:
                x, _ = layer(x)
            return x @ self["encoder.weight"].T + self["decoder.bias"]
        table = self["encoder.embedding.weight"]
        packed = nn.utils.rnn.pack_padded_sequence(table[source], lengths, batch_first=True, enforce_sorted=False)
        out, last = self.encoder(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=source.shape[1])
        if self.raw["attention"] == "none":
            hidden, _ = self.decoder(table[ids], last)
        else:
            real = torch.arange(source.shape[1]) < lengths[:, None]
            hidden = self.decode(table[ids], memory, real, last if isinstance(last, tuple) else (last,))
        return hidden @ table.T + self["head.bias"]

    def decode(self, x: torch.Tensor, memory: torch.Tensor, real: torch.Tensor, last: Any) -> torch.Tensor:
        """What the head reads, token by token."""
        raw, count = self.raw, self.raw["decoder_layers"]
        parts = [part.unflatten(0, (count, -1)).transpose(1, 2).flatten(2) for part in last]
        if raw["bridge"] == "tanh":
            names = ("bridge", "bridge_cell")
            parts = [
                torch.stack(
                    [
                        torch.tanh(functional.linear(part[n], self[f"{name}.{n}.weight"], self[f"{name}.{n}.bias"]))
                        for n in range(count)
                    ]
                )
                for name, part in zip(names, parts, strict=False)
            ]
        states, outputs = [tuple(part[n] for part in parts) for n in range(count)], []
        is_additive = raw["attention"] == "additive"
        keys = memory @ self["attention.key.weight"].T if is_additive else memory
        fed = torch.zeros(len(x), raw["readout_size"])
        for t in range(x.shape[1]):
            if raw["input_feeding"]:
                states = self.advance(torch.cat([x[:, t], fed], -1), states)
                context = self.look(states[-1][0], keys, memory, real)
                fed = self.readout([context, states[-1][0]])
                outputs.append(fed)
            else:
                before = states[-1][0]
                context = self.look(before, keys, memory, real)
                states = self.advance(torch.cat([x[:, t], context], -1), states)
                outputs.append(torch.cat([before, x[:, t], context], -1))
        hidden = torch.stack(outputs, 1)
        return hidden if raw["input_feeding"] else self.readout([hidden])

    def readout(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return torch.tanh(
            functional.linear(torch.cat(parts, -1), self["decoder.readout.weight"], self["decoder.readout.bias"])
        )

    def advance(self, x: torch.Tensor, states: list[Any]) -> list[Any]:
        """The states of the layers after one more token."""
        new = []
        for number, state in enumerate(states):
            weights = [self[f"decoder.rnn.{key}_l{number}"] for key in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            is_lstm = self.raw["cell"] == "lstm"
            new.append(torch.lstm_cell(x, state, *weights) if is_lstm else (torch.gru_cell(x, state[0], *weights),))
            x = new[-1][0]
        return new

    def look(self, state: torch.Tensor, keys: torch.Tensor, memory: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """The context vector of a state."""
        if self.raw["attention"] == "additive":
            inner = torch.tanh((state @ self["attention.query.weight"].T)[:, None] + keys)
            scores = inner @ self["attention.score.weight"][0]
        else:
            scores = (keys @ (state @ self["attention.weight"])[..., None])[..., 0]
        weights = torch.softmax(scores.masked_fill(~real, -torch.inf), -1)
        return (weights[:, None] @ memory)[:, 0]


def works_of(recipe: Recipe, batch: int, tokens: int) -> tuple[Work, Work]:
    """Forward and backward pass by attnkit and by PyTorch; both return the gradient of the table."""
    raw = new_config(recipe, 256, WORDS, {"eos": 0, "pad": 2})
    tensors = initial_tensors(raw)
    checkpoint = assemble_checkpoint(raw, tensors)
    model, rng = Model(checkpoint.config, checkpoint.params), np.random.default_rng(1)
    ids, targets, source = rng.integers(3, WORDS, (3, batch, tokens))
    lengths = rng.integers(tokens // 2, tokens + 1, batch)
    lengths[0] = tokens
    real = np.arange(tokens) < lengths[:, None]
    inputs = {"encoder": StackInputs(source, real[:, None])} if recipe.family == "seq2seq" else {}
    peer, table = Peer(raw, tensors), "encoder.embed" if recipe.family == "seq2seq" else "decoder.embed"
    stored = "encoder.embedding.weight" if recipe.family == "seq2seq" else "encoder.weight"

    def ours() -> list[np.ndarray]:
        logits, recorded = run_model(model, inputs | {"decoder": StackInputs(ids)})
        _, slope = loss_and_gradient(logits, np.where(real, targets, IGNORE_INDEX), LossOptions(), in_place=True)
        return [model_backward(model, recorded, slope).params[table]["table"]]

    arguments = [torch.from_numpy(array) for array in (source, lengths, ids, np.where(real, targets, IGNORE_INDEX))]

    def theirs() -> list[np.ndarray]:
        peer.zero_grad()
        functional.cross_entropy(peer(*arguments[:3]).flatten(0, 1), arguments[3].flatten()).backward()
        return [peer[stored].grad.numpy()]

    return ours, theirs


def main(names: list[str]) -> None:
    print_titles(12)
    for name in names or CASES:
        print(f"{name:12}{figures(works_of(*CASES[name]), 15)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
