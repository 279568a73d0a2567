"""Make tests/references/recurrent_slips/: what torch computes of recurrent models, as it is and with one slip each.

    PYTHONPATH=. python tests/references/make_recurrent_slips.py [CASE …]

The models are cases of recurrent_models.npz in float32, as modules of torch: torch.nn.LSTM, GRU and RNN over packed
sequences, and a decoder that calls its modules once for each token if it attends inside its recurrence. A case is
MODEL-SLIP; its dump is what attnkit.record writes of every module, and the alignments. The same bytes come out of
every run. Made with torch 2.13.0.
"""

import itertools
import json
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from make_recurrent_models import fill
from torch import nn

import attnkit

HERE = pathlib.Path(__file__).parent
FOLDER = HERE / "recurrent_slips"
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "tanh": nn.RNN}


class LanguageModel(nn.Module):
    """LSTMs of one layer each, with the names of AWD-LSTM."""

    def __init__(self, c: dict[str, Any], slip: str) -> None:
        super().__init__()
        self.slip = slip
        widths = [c["embedding_size"], *[c["hidden_size"]] * (c["num_layers"] - 1), c["embedding_size"]]
        self.encoder = nn.Embedding(c["vocab_size"], widths[0])
        self.rnns = nn.ModuleList(Layer(one, other, slip) for one, other in itertools.pairwise(widths))
        self.decoder = nn.Linear(widths[-1], c["vocab_size"])

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.encoder(input_ids)
        for layer in self.rnns:
            x, _ = layer(x)
        return self.decoder(x)


class Layer(nn.LSTM):
    """An LSTM that goes wrong from token to token, or from text to text."""

    def __init__(self, width: int, hidden: int, slip: str) -> None:
        super().__init__(width, hidden, batch_first=True)
        self.slip = slip

    def forward(self, x: torch.Tensor) -> Any:
        if self.slip == "not-carried":
            outputs = [super(Layer, self).forward(x[:, t : t + 1]) for t in range(x.shape[1])]
            return torch.cat([one for one, _ in outputs], 1), outputs[-1][1]
        if self.slip == "not-reset":
            state, rows = None, []
            for row in x:
                out, state = super().forward(row[None], state)
                rows.append(out)
            return torch.cat(rows), state
        if self.slip == "cell-for-hidden":
            states, state = [], None
            for t in range(x.shape[1]):
                _, state = super().forward(x[:, t : t + 1], state)
                states.append(state[1].swapaxes(0, 1))
            return torch.cat(states, 1), state
        return super().forward(x)


class Side(nn.Module):
    """What an encoder, a decoder or attention holds."""


class Translator(nn.Module):
    """An encoder and a decoder, with attention inside the recurrence, after it, or without."""

    def __init__(self, c: dict[str, Any], slip: str) -> None:
        super().__init__()
        self.c, self.slip = c, slip
        hidden, embedding, inner = c["hidden_size"], c["embedding_size"], c["decoder_hidden_size"]
        memory, attends = hidden * (1 + c["bidirectional"]), c["attention"] != "none"
        self.asks_before = attends and c["attention_query"] == "previous"
        self.encoder, self.decoder = Side(), Side()
        self.encoder.embedding = nn.Embedding(c["vocab_size"], embedding)
        options = {"batch_first": True, "bidirectional": c["bidirectional"]}
        self.encoder.rnn = KINDS[c["encoder_cell"]](embedding, hidden, c["encoder_layers"], **options)
        self.decoder.embedding = nn.Embedding(c["decoder_vocab_size"], embedding)
        entry = embedding + memory * self.asks_before + c["readout_size"] * c["input_feeding"]
        self.decoder.rnn = KINDS[c["decoder_cell"]](entry, inner, c["decoder_layers"], batch_first=True)
        if c["bridge"] == "tanh":
            self.bridge = nn.ModuleList(nn.Linear(memory, inner) for _ in range(c["decoder_layers"]))
        if c["attention"] == "general":
            self.attention = nn.Linear(memory, inner, bias=False)
        if c["attention"] == "additive":
            self.attention = Side()
            self.attention.query = nn.Linear(inner, c["attention_size"], bias=False)
            self.attention.key = nn.Linear(memory, c["attention_size"], bias=False)
            self.attention.score = nn.Linear(c["attention_size"], 1, bias=False)
        if c["readout"] != "none":
            wide = inner + memory * attends + embedding * self.asks_before
            self.decoder.readout = nn.Linear(wide, c["readout_size"])
        self.head = nn.Linear(c["readout_size"] if c["readout"] != "none" else inner, c["decoder_vocab_size"])

    def encode(self, source: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the memory, and the last states (L, B, M), of an LSTM two of them."""
        x, c = self.encoder.embedding(source), self.c
        if self.slip == "padding-read":
            memory, last = self.encoder.rnn(x)
        else:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            out, last = self.encoder.rnn(packed)
            memory, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=source.shape[1])
        parts = last if isinstance(last, tuple) else (last,)
        split = [part.reshape(c["encoder_layers"], -1, *part.shape[1:]).unbind(1) for part in parts]
        return memory, [torch.cat(directions, -1) for directions in split]

    def first_state(self, last: list[torch.Tensor]) -> Any:
        """Return what the decoder begins with."""
        if self.slip == "no-bridge":
            shape = (self.c["decoder_layers"], last[0].shape[1], self.c["decoder_hidden_size"])
            last = [torch.zeros(shape) for _ in last]
        elif self.c["bridge"] == "tanh":
            activation = nn.Identity() if self.slip == "bridge-without-tanh" else torch.tanh
            pairs = [zip(self.bridge, part, strict=True) for part in last]
            last = [torch.stack([activation(bridge(state)) for bridge, state in pair]) for pair in pairs]
        if self.slip == "hidden-and-cell-exchanged":
            last = last[::-1]
        return tuple(last) if self.c["decoder_cell"] == "lstm" else last[0]

    def attend(self, query: torch.Tensor, memory: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Return the context of queries (B, H) or (B, T, H)."""
        score = self.c["attention"]
        if score == "additive":
            sums = self.attention.query(query)[:, None] + self.attention.key(memory)
            scores = self.attention.score(sums if self.slip == "score-without-tanh" else torch.tanh(sums))[..., 0]
        else:
            keys = self.attention(memory) if score == "general" else memory
            scores = query @ keys.swapaxes(1, 2) if query.ndim == 3 else (keys @ query[..., None])[..., 0]
        if self.slip == "scaled-scores":
            scores = scores / query.shape[-1] ** 0.5
        if self.slip != "memory-not-masked":
            scores = scores.masked_fill(~(real[:, None] if query.ndim == 3 else real), -torch.inf)
        weights = torch.softmax(scores, -1)
        attnkit.tap("decoder.cross.weights", weights)
        return weights @ memory if query.ndim == 3 else (weights[:, None] @ memory)[:, 0]

    def read_out(self, *parts: torch.Tensor) -> torch.Tensor:
        sums = self.decoder.readout(torch.cat(parts, -1))
        return sums if self.slip == "readout-without-tanh" else torch.tanh(sums)

    def forward(self, source: torch.Tensor, lengths: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        c, real = self.c, torch.arange(source.shape[1]) < lengths[:, None]
        memory, last = self.encode(source, lengths)
        state, x = self.first_state(last), self.decoder.embedding(target)
        if not (self.asks_before or c["input_feeding"]):
            out, _ = self.decoder.rnn(x, state)
            parts = [self.attend(out, memory, real), out] if c["attention"] != "none" else [out]
            return self.head(self.read_out(*parts) if c["readout"] != "none" else out)
        fed, logits = torch.zeros(len(source), c["readout_size"]), []
        for token in x.unbind(1):
            before = (state[0] if isinstance(state, tuple) else state)[-1]
            if self.asks_before:
                context = self.attend(before, memory, real)
                parts = [context, token] if self.slip == "context-first" else [token, context]
                out, state = self.decoder.rnn(torch.cat(parts, -1)[:, None], state)
                y = self.read_out(before, token, context) if c["readout"] != "none" else out[:, 0]
            else:
                zeros = torch.zeros_like(fed)
                entry = torch.cat([token, zeros if self.slip == "no-input-feeding" else fed], -1)
                out, state = self.decoder.rnn(entry[:, None], state)
                asked = before if self.slip == "asked-before" else out[:, 0]
                y = fed = self.read_out(self.attend(asked, memory, real), out[:, 0])
            logits.append(self.head(y))
        return torch.stack(logits, 1)


def order_blocks(*order: int) -> Callable[[str, torch.Tensor], torch.Tensor]:
    """Read the blocks of the weights of all recurrent layers in another order."""
    return lambda name, array: torch.cat([array.chunk(len(order))[at] for at in order]) if is_cell(name) else array


def add_bias(times: float, name: str = "bias_hh") -> Callable[[str, torch.Tensor], torch.Tensor]:
    return lambda one, array: times * array if name in one else array


def add_to_forget(name: str, array: torch.Tensor) -> torch.Tensor:
    if "bias_ih" not in name:
        return array
    return torch.cat([part + (at == 1) for at, part in enumerate(array.chunk(4))])


def is_cell(name: str) -> bool:
    return "weight_ih" in name or "weight_hh" in name or "bias_ih" in name or "bias_hh" in name


# slips of the weights: those of the other names are made in the modules above
CHANGES: dict[str, Callable[[str, torch.Tensor], torch.Tensor]] = {
    "gates-i-f-o-g": order_blocks(0, 1, 3, 2),
    "gates-of-ONNX": order_blocks(0, 2, 3, 1),
    "gates-z-r-n": order_blocks(1, 0, 2),
    "no-bias-of-the-state": add_bias(0),
    "bias-of-the-state-twice": add_bias(2),
    "forget-bias-1": add_to_forget,
}
CASES = [
    *(f"lstm-{slip}" for slip in (
        "clean", "gates-i-f-o-g", "gates-of-ONNX", "no-bias-of-the-state", "bias-of-the-state-twice", "forget-bias-1",
        "not-carried", "not-reset", "cell-for-hidden",
    )),
    *(f"bahdanau-state-{slip}" for slip in (
        "clean", "gates-z-r-n", "padding-read", "bridge-without-tanh", "no-bridge", "score-without-tanh",
        "scaled-scores", "memory-not-masked", "context-first",
    )),
    *(f"luong-{slip}" for slip in (
        "clean", "hidden-and-cell-exchanged", "no-bridge", "no-input-feeding", "asked-before", "scaled-scores",
        "readout-without-tanh", "gates-i-f-o-g",
    )),
    *(f"luong-dot-{slip}" for slip in ("clean", "scaled-scores", "memory-not-masked")),
    *(f"general-{slip}" for slip in ("clean", "bridge-without-tanh", "gates-z-r-n")),
    *(f"general-before-{slip}" for slip in ("clean", "no-bridge", "context-first")),
]  # fmt: skip


def make(case: str) -> None:
    """Record what torch computes of a case."""
    archive = np.load(HERE / "recurrent_models.npz")
    models = {name.partition("/")[0] for name in archive}
    name = max((one for one in models if case.startswith(f"{one}-")), key=len)
    slip, arrays = case.removeprefix(f"{name}-"), {one: archive[one] for one in archive if one.startswith(f"{name}/")}
    arrays = {one.removeprefix(f"{name}/"): array for one, array in arrays.items()}
    config, change = json.loads(str(arrays["config"])), CHANGES.get(slip, lambda _, array: array)
    weights = {one.removeprefix("weights/"): torch.tensor(array).float() for one, array in arrays.items()
               if one.startswith("weights/")}  # fmt: skip
    if name == "lstm":
        module, inputs = LanguageModel(config, slip), [np.concatenate([arrays["ids"], arrays["ids"][:, ::-1]])]
        weights["decoder.weight"] = weights["encoder.weight"]
    else:
        module, inputs = Translator(fill(config), slip), [arrays["ids"], arrays["lengths"], arrays["target"]]
        if config.get("tie_word_embeddings"):
            weights["head.weight"] = weights["decoder.embedding.weight"]
    module.load_state_dict({one: change(one, array) for one, array in weights.items()})
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "dump.npz"
        with torch.no_grad(), attnkit.record(str(path), module):
            module(*(torch.tensor(np.ascontiguousarray(one)) for one in inputs))
        dump = {one: array for one, array in np.load(path).items() if not one.endswith(".json")}
    if name != "lstm":
        dump["lengths"] = arrays["lengths"]
    np.savez_compressed(FOLDER / f"{case}.npz", **dump)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for one in sys.argv[1:] or CASES:
        make(one)
