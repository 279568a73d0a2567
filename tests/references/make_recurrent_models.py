"""Tiny recurrent models and what an implementation in PyTorch makes of them, frozen in recurrent_models.npz.

    pip install torch==2.13.0 numpy==2.4.6 safetensors==0.8.0
    python tests/references/make_recurrent_models.py

Each case of CASES is a config.json and random weights in float64. Its members, after the name of the case and a slash:

    config                     config.json
    weights/NAME               a stored tensor
    ids, lengths               (3, S) source ids, padded on the right with 0, and their numbers
    target                     (3, T) what the decoder reads, from its start token on
    memory                     (3, S, M), 0 at padding
    states.N                   (3, T, H) the hidden state of layer N after each token
    alignments                 (3, T, S), of a decoder that attends
    logits                     (3, T, V)
    greedy.R                   the new tokens after row R, the end token included
    beams.R, scores.R          the texts of 3 beams, -1 after their ends, with the mean log-probability of their tokens

The case `lstm` is a language model of three torch.nn.LSTM with the names of AWD-LSTM: ids (1, 7), its states and
logits, and greedy.0, the tokens after the first three ids. The folders models/seq2seq (bahdanau), models/lstm and
models/seq2seq-luong hold those cases as they are published, the first two with words for their ids.

Encoders are torch.nn.RNN, GRU and LSTM with packed sequences, decoders their cells; the GRU whose reset gate precedes
the product is written out below, as in Cho et al. 2014. The beam search is written here from the rules in the
docstring of attnkit.model.passes.beams.beam_search. The same bytes come out of every run.
"""

import itertools
import json
import pathlib
import zipfile
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import nn

HERE = pathlib.Path(__file__).parent
START, END, LIMIT = 1, 2, 9
COMMON = {"vocab_size": 9, "decoder_vocab_size": 11, "embedding_size": 4, "hidden_size": 5,
          "decoder_start_token_id": START, "eos_token_id": END, "pad_token_id": 0}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "bahdanau": {"cell": "gru-reset-before", "bidirectional": True, "attention": "additive", "attention_size": 6,
                 "bridge": "tanh", "readout_size": 7},
    "bahdanau-state": {"cell": "gru", "bidirectional": True, "attention": "additive", "bridge": "tanh",
                       "decoder_hidden_size": 6, "readout": "none", "encoder_layers": 2, "decoder_layers": 2},
    "luong": {"cell": "lstm", "encoder_layers": 2, "decoder_layers": 2, "attention": "general", "input_feeding": True},
    "luong-dot": {"cell": "lstm", "attention": "dot", "readout_size": 4, "tie_word_embeddings": True},
    "luong-additive": {"cell": "gru", "bidirectional": True, "bridge": "tanh", "attention": "additive",
                       "attention_query": "current", "decoder_layers": 1, "input_feeding": True},
    "general-before": {"cell": "tanh", "attention": "general", "attention_query": "previous", "bridge": "identity"},
    "general": {"cell": "gru", "attention": "general", "bidirectional": True, "bridge": "tanh"},
    "cho": {"cell": "gru-reset-before"},
    "sutskever": {"cell": "lstm", "encoder_layers": 2, "decoder_layers": 2, "decoder_vocab_size": 9,
                  "share_encoder_decoder_embeddings": True},
    "unlike": {"encoder_cell": "relu", "decoder_cell": "lstm", "bridge": "none", "attention": "dot",
               "encoder_layers": 2},
    "tanh-bridge-lstm": {"cell": "lstm", "bidirectional": True, "bridge": "tanh", "readout": "tanh"},
}  # fmt: skip
MODULES = {"tanh": nn.RNN, "relu": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM, "gru-reset-before": nn.GRU}
GATES = {"tanh": 1, "relu": 1, "gru": 3, "gru-reset-before": 3, "lstm": 4}


def fill(config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with every default written out."""
    cell = config.get("cell", "lstm")
    score = config.get("attention", "none")
    query = "previous" if score == "additive" else "current"
    full = {"encoder_cell": cell, "decoder_cell": cell, "bidirectional": False, "encoder_layers": 1,
            "decoder_layers": 1, "attention": "none", "attention_query": query, "input_feeding": False,
            "readout": "none" if score == "none" else "tanh", "bridge": "identity",
            "decoder_hidden_size": config["hidden_size"]} | config  # fmt: skip
    size = full["decoder_hidden_size"]
    return {"attention_size": size, "readout_size": size} | full


def make_weights(c: dict[str, Any], generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return random weights under the names of the stored tensors."""
    embedding, width, inner, states = c["embedding_size"], c["hidden_size"], c["decoder_hidden_size"], c["readout_size"]
    directions = 2 if c["bidirectional"] else 1
    memory = width * directions
    attends, before = c["attention"] != "none", c["attention_query"] == "previous" and c["attention"] != "none"
    shapes: dict[str, tuple[int, ...]] = {"encoder.embedding.weight": (c["vocab_size"], embedding)}
    if not c.get("share_encoder_decoder_embeddings"):
        shapes["decoder.embedding.weight"] = (c["decoder_vocab_size"], embedding)
    for layer in range(c["encoder_layers"]):
        for suffix in ("", "_reverse")[:directions]:
            shapes |= cell_shapes(
                "encoder", c["encoder_cell"], memory if layer else embedding, width, f"{layer}{suffix}"
            )
    first = embedding + (memory if before else 0) + (states if c["input_feeding"] else 0)
    for layer in range(c["decoder_layers"]):
        shapes |= cell_shapes("decoder", c["decoder_cell"], inner if layer else first, inner, str(layer))
        for name in ("bridge", "bridge_cell")[: 2 if c["decoder_cell"] == "lstm" else 1]:
            if c["bridge"] == "tanh":
                shapes |= {f"{name}.{layer}.weight": (inner, memory), f"{name}.{layer}.bias": (inner,)}
    if c["attention"] == "general":
        shapes["attention.weight"] = (inner, memory)
    if c["attention"] == "additive":
        size = c["attention_size"]
        shapes |= {"attention.query.weight": (size, inner), "attention.key.weight": (size, memory),
                   "attention.score.weight": (1, size)}  # fmt: skip
    has_readout = c["readout"] != "none"
    if has_readout:
        wide = inner + (memory if attends else 0) + (embedding if before else 0)
        shapes |= {"decoder.readout.weight": (states, wide), "decoder.readout.bias": (states,)}
    if not c.get("tie_word_embeddings"):
        shapes["head.weight"] = (c["decoder_vocab_size"], states if has_readout else inner)
    shapes["head.bias"] = (c["decoder_vocab_size"],)
    scales = {"embedding": 2.0, "head.bias": 0.1}  # large and small, so that texts vary
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        * next((scale for part, scale in scales.items() if part in name), 1.0)
        for name, shape in shapes.items()
    }


def cell_shapes(stack: str, cell: str, inputs: int, width: int, layer: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of one direction of a layer by stored name."""
    rows = GATES[cell] * width
    shapes = {"weight_ih": (rows, inputs), "weight_hh": (rows, width), "bias_ih": (rows,), "bias_hh": (rows,)}
    return {f"{stack}.rnn.{name}_l{layer}": shape for name, shape in shapes.items()}


class Model:
    """A model in PyTorch: run on one row or on a padded batch of sources."""

    def __init__(self, c: dict[str, Any], w: dict[str, torch.Tensor]) -> None:
        self.c, self.w = c, w
        self.before = c["attention_query"] == "previous"
        self.tables = {
            stack: w.get(f"{stack}.embedding.weight", w["encoder.embedding.weight"]) for stack in ("encoder", "decoder")
        }

    def cell(self, layer: int, x: torch.Tensor, state: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Return the state of a layer of the decoder after one more input."""
        return step(self.c["decoder_cell"], x, state, self.w, f"decoder.rnn.{{}}_l{layer}")

    def encode(self, ids: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, list[tuple[torch.Tensor, ...]]]:
        """Return the memory (B, S, M) and the last states of each layer."""
        c, x = self.c, self.tables["encoder"][ids]
        if c["encoder_cell"] == "gru-reset-before":
            return self.encode_by_hand(x, lengths)
        kind = {"nonlinearity": c["encoder_cell"]} if c["encoder_cell"] in ("tanh", "relu") else {}
        module = MODULES[c["encoder_cell"]](x.shape[-1], c["hidden_size"], c["encoder_layers"], batch_first=True,
                                            bidirectional=c["bidirectional"], dtype=torch.float64, **kind)  # fmt: skip
        module.load_state_dict(
            {n.removeprefix("encoder.rnn."): t for n, t in self.w.items() if n.startswith("encoder.rnn.")}
        )
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        with torch.no_grad():
            out, last = module(packed)
        memory, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=ids.shape[1])
        parts = last if isinstance(last, tuple) else (last,)
        by_layer = [part.reshape(c["encoder_layers"], -1, len(ids), c["hidden_size"]) for part in parts]
        return memory, [tuple(torch.cat(list(part[n]), -1) for part in by_layer) for n in range(c["encoder_layers"])]

    def encode_by_hand(
        self, x: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, list[tuple[torch.Tensor, ...]]]:
        """Return what `encode` does, row by row, with a cell that torch lacks; one layer."""
        memory, last = (
            torch.zeros(*x.shape[:2], self.c["hidden_size"] * (2 if self.c["bidirectional"] else 1)).double(),
            [],
        )
        for row, length in enumerate(lengths.tolist()):
            ends = []
            for at, suffix in enumerate(("", "_reverse") if self.c["bidirectional"] else ("",)):
                state = (torch.zeros(1, self.c["hidden_size"], dtype=torch.float64),)
                for t in range(length) if at == 0 else reversed(range(length)):
                    state = step("gru-reset-before", x[row, t][None], state, self.w, f"encoder.rnn.{{}}_l0{suffix}")
                    memory[row, t, at * self.c["hidden_size"] : (at + 1) * self.c["hidden_size"]] = state[0][0]
                ends.append(state[0])
            last.append(torch.cat(ends, -1))
        return memory, [(torch.cat(last),)]

    def first(self, last: list[tuple[torch.Tensor, ...]], rows: int) -> dict[str, Any]:
        """Return what the first token of the decoder finds."""
        c, states = self.c, []
        for layer in range(c["decoder_layers"]):
            count = 2 if c["decoder_cell"] == "lstm" else 1
            if c["bridge"] == "none":
                states.append((torch.zeros(rows, c["decoder_hidden_size"], dtype=torch.float64),) * count)
            elif c["bridge"] == "identity":
                states.append(last[layer])
            else:
                names = [f"{name}.{layer}" for name in ("bridge", "bridge_cell")[:count]]
                states.append(tuple(
                    torch.tanh(nn.functional.linear(part, self.w[f"{n}.weight"], self.w[f"{n}.bias"]))
                    for n, part in zip(names, last[layer], strict=True)
                ))  # fmt: skip
        return {"states": states, "fed": torch.zeros(rows, c["readout_size"], dtype=torch.float64)}

    def look(self, state: torch.Tensor, memory: torch.Tensor, real: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the context vector and the alignment of a state."""
        w, score = self.w, self.c["attention"]
        if score == "additive":
            inner = (state @ w["attention.query.weight"].T)[:, None] + memory @ w["attention.key.weight"].T
            scores = torch.tanh(inner) @ w["attention.score.weight"][0]
        else:
            query = state @ w["attention.weight"] if score == "general" else state
            scores = torch.einsum("bh,bsh->bs", query, memory)
        weights = torch.softmax(scores.masked_fill(~real, -torch.inf), -1)
        return torch.einsum("bs,bsm->bm", weights, memory), weights

    def token(self, ids: torch.Tensor, carry: dict[str, Any], memory: torch.Tensor, real: torch.Tensor) -> Any:
        """Return the logits after one more token, what the next one finds, and the alignment."""
        c, w = self.c, self.w
        x = self.tables["decoder"][ids]
        previous, attends = carry["states"][-1][0], c["attention"] != "none"
        context, weights = self.look(previous, memory, real) if attends and self.before else (None, None)
        inputs = [x, *([context] if context is not None else []), *([carry["fed"]] if c["input_feeding"] else [])]
        hidden, states = torch.cat(inputs, -1), []
        for layer, state in enumerate(carry["states"]):
            states.append(self.cell(layer, hidden, state))
            hidden = states[-1][0]
        parts = [previous, x, context] if context is not None else [hidden]
        if attends and context is None:
            context, weights = self.look(hidden, memory, real)
            parts = [context, hidden]
        out = hidden
        if c["readout"] == "tanh":
            out = torch.tanh(
                nn.functional.linear(torch.cat(parts, -1), w["decoder.readout.weight"], w["decoder.readout.bias"])
            )
        head = self.tables["decoder"] if c.get("tie_word_embeddings") else w["head.weight"]
        return out @ head.T + w["head.bias"], {"states": states, "fed": out}, weights


def step(cell: str, x: torch.Tensor, state: tuple[torch.Tensor, ...], w: dict[str, torch.Tensor], name: str) -> Any:
    """Return the state of a cell after one more input, by torch's own cells where it has them."""
    weights = [w[name.format(one)] for one in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    if cell == "lstm":
        return torch.lstm_cell(x, state, *weights)
    if cell in ("tanh", "relu"):
        return ({"tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell}[cell](x, state[0], *weights),)
    if cell == "gru":
        return (torch.gru_cell(x, state[0], *weights),)
    h = state[0]
    (wr, wz, wn), (ur, uz, un) = weights[0].chunk(3), weights[1].chunk(3)
    (br, bz, bn), (cr, cz, cn) = weights[2].chunk(3), weights[3].chunk(3)
    r, z = torch.sigmoid(x @ wr.T + br + h @ ur.T + cr), torch.sigmoid(x @ wz.T + bz + h @ uz.T + cz)
    n = torch.tanh(x @ wn.T + bn + (r * h) @ un.T + cn)
    return ((1 - z) * n + z * h,)


def greedy(model: Model, ids: torch.Tensor) -> list[int]:
    """Return the most probable token after each, up to the end token."""
    memory, last = model.encode(ids[None], torch.tensor([len(ids)]))
    carry, real, chosen = model.first(last, 1), torch.ones(1, len(ids), dtype=torch.bool), [START]
    while len(chosen) <= LIMIT and (len(chosen) == 1 or chosen[-1] != END):
        logits, carry, _ = model.token(torch.tensor(chosen[-1:]), carry, memory, real)
        chosen.append(int(logits[0].argmax()))
    return chosen[1:]


def beam_search(model: Model, ids: torch.Tensor, beams: int) -> list[tuple[list[int], float]]:
    """Return the best texts and their mean log-probabilities; every beam is run by itself."""
    memory, last = model.encode(ids[None], torch.tensor([len(ids)]))
    real = torch.ones(1, len(ids), dtype=torch.bool)
    running: list[Any] = [([], 0.0, model.first(last, 1))]
    finished: list[tuple[list[int], float]] = []
    for length in range(1, LIMIT + 1):
        candidates = []
        for at, (words, total, carry) in enumerate(running):
            logits, new, _ = model.token(torch.tensor([words[-1] if words else START]), carry, memory, real)
            logs = torch.log_softmax(logits[0], -1).tolist()
            candidates += [(total + log, -at, -word, [*words, word], new) for word, log in enumerate(logs)]
        candidates.sort(key=lambda one: one[:3], reverse=True)
        candidates = candidates[: 2 * beams]
        ends = [
            (words, total / length)
            for total, _, _, words, _ in candidates[:beams]
            if words[-1] == END or length == LIMIT
        ]
        finished = sorted([*finished, *ends], key=lambda one: -one[1])[:beams]
        running = [
            (words, total, new) for total, _, _, words, new in candidates if words[-1] != END and length < LIMIT
        ][:beams]
        if not running or (len(finished) == beams and running[0][1] / length <= finished[-1][1]):
            break
    return finished


def run_case(config: dict[str, Any], generator: torch.Generator) -> dict[str, np.ndarray]:
    """Return the members of one case."""
    c = fill(COMMON | config)
    weights = make_weights(c, generator)
    model, lengths = Model(c, weights), torch.tensor([6, 3, 5])
    ids = torch.randint(3, c["vocab_size"], (3, 6), generator=generator)
    ids[torch.arange(6) >= lengths[:, None]] = 0
    target = torch.randint(3, c["decoder_vocab_size"], (3, 5), generator=generator)
    target[:, 0] = START
    memory, last = model.encode(ids, lengths)
    carry, real = model.first(last, 3), torch.arange(6) < lengths[:, None]
    steps = []
    for t in range(5):
        logits, carry, weights_at = model.token(target[:, t], carry, memory, real)
        steps.append((logits, carry["states"], weights_at))
    found = {"ids": ids, "lengths": lengths, "target": target, "memory": memory,
             "logits": torch.stack([one[0] for one in steps], 1)}  # fmt: skip
    found |= {f"states.{n}": torch.stack([one[1][n][0] for one in steps], 1) for n in range(c["decoder_layers"])}
    if c["attention"] != "none":
        found["alignments"] = torch.stack([one[2] for one in steps], 1)
    arrays = {name: tensor.numpy() for name, tensor in found.items()}
    for row, length in enumerate(lengths.tolist()):
        arrays[f"greedy.{row}"] = np.array(greedy(model, ids[row, :length]))
        texts = beam_search(model, ids[row, :length], 3)
        longest = max(len(words) for words, _ in texts)
        arrays[f"beams.{row}"] = np.array([words + [-1] * (longest - len(words)) for words, _ in texts])
        arrays[f"scores.{row}"] = np.array([score for _, score in texts])
    stored = {f"weights/{name}": tensor.numpy() for name, tensor in weights.items()}
    return {"config": np.array(json.dumps({"model_type": "seq2seq"} | COMMON | config)), **stored, **arrays}


def varies(arrays: dict[str, np.ndarray]) -> bool:
    """Return whether texts have several words, differ, and end early in one case and not in another."""
    texts = [arrays[f"greedy.{row}"].tolist() for row in range(3)]
    ends = [text[-1] == END for text in texts]
    differ = any(arrays[f"beams.{row}"][0, : len(text)].tolist() != text for row, text in enumerate(texts))
    return any(ends) and not all(ends) and differ and max(len({*text}) for text in texts) > 3


LSTM = {"model_type": "lstm", "vocab_size": 9, "embedding_size": 4, "hidden_size": 6, "num_layers": 3,
        "bos_token_id": START, "eos_token_id": END, "pad_token_id": 0}  # fmt: skip


def run_language_model(generator: torch.Generator) -> dict[str, np.ndarray]:
    """Return the members of the case `lstm`."""
    sizes = [LSTM["embedding_size"], LSTM["hidden_size"], LSTM["hidden_size"], LSTM["embedding_size"]]
    layers = [nn.LSTM(*pair, batch_first=True, dtype=torch.float64) for pair in itertools.pairwise(sizes)]
    weights = {"encoder.weight": 2 * torch.randn(9, 4, generator=generator, dtype=torch.float64),
               "decoder.bias": torch.randn(9, generator=generator, dtype=torch.float64) / 10}  # fmt: skip
    for number, layer in enumerate(layers):
        for name, value in layer.state_dict().items():
            weights[f"rnns.{number}.{name}"] = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        layer.load_state_dict({name: weights[f"rnns.{number}.{name}"] for name in layer.state_dict()})

    def run(ids: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        x, states = weights["encoder.weight"][ids], []
        with torch.no_grad():
            for layer in layers:
                x, _ = layer(x)
                states.append(x)
        return states, x @ weights["encoder.weight"].T + weights["decoder.bias"]

    ids = torch.cat([torch.tensor([START]), torch.randint(3, 9, (6,), generator=generator)])[None]
    states, logits = run(ids)
    text = ids[:, :3]
    while text.shape[1] < 3 + LIMIT and text[0, -1] != END:
        text = torch.cat([text, run(text)[1][:, -1:].argmax(-1)], 1)
    arrays = {"ids": ids, "logits": logits, "greedy.0": text[0, 3:]}
    arrays |= {f"states.{number}": one for number, one in enumerate(states)}
    stored = {f"weights/{name}": tensor.numpy() for name, tensor in weights.items()}
    return {"config": np.array(json.dumps(LSTM)), **stored, **{name: one.numpy() for name, one in arrays.items()}}


SOURCE = ["<pad>", "<s>", "</s>", "je", "suis", "un", "chat", "noir", "petit"]
TARGET = ["<pad>", "<s>", "</s>", "I", "am", "a", "cat", "black", "small", "the", "dog"]


def tokenizer(words: list[str], has_end: bool) -> dict[str, Any]:
    """Return the tokenizer.json of words between spaces, after which comes the end token or nothing."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    end = [{"SpecialToken": {"id": "</s>", "type_id": 0}}] if has_end else []
    template = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, *end], "pair": [],
                "special_tokens": {"</s>": {"id": "</s>", "ids": [END], "tokens": ["</s>"]}}}  # fmt: skip
    return {"version": "1.0", "added_tokens": [{"id": n, "content": words[n], **flags} for n in range(3)],
            "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": template,
            "decoder": None, "model": {"type": "WordLevel", "unk_token": "<pad>",
                                       "vocab": {word: number for number, word in enumerate(words)}}}  # fmt: skip


def write_folder(name: str, arrays: dict[str, np.ndarray], tokenizers: dict[str, Any]) -> None:
    """Write a case as it is published."""
    folder = HERE / "models" / name
    folder.mkdir(exist_ok=True)
    config = json.loads(str(arrays["config"]))
    for file, value in {"config.json": config, **tokenizers}.items():
        (folder / file).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    stored = {key.removeprefix("weights/"): one for key, one in arrays.items() if key.startswith("weights/")}
    save_file(stored, folder / "model.safetensors")


def main() -> None:
    """Write the file, whose members have a fixed time, and the folders."""
    torch.set_num_threads(1)
    cases = {}
    for number, (name, config) in enumerate(CASES.items()):
        seeds = range(1000 * number, 1000 * (number + 1))
        runs = (run_case(config, torch.Generator().manual_seed(seed)) for seed in seeds)
        cases[name] = next(run for run in runs if varies(run))
    runs = (run_language_model(torch.Generator().manual_seed(seed)) for seed in range(1000))
    cases["lstm"] = next(run for run in runs if 4 < len(run["greedy.0"]) < LIMIT and len({*run["greedy.0"]}) > 2)
    words = {"tokenizer.json": tokenizer(SOURCE, True), "target_tokenizer.json": tokenizer(TARGET, False)}
    write_folder("seq2seq", cases["bahdanau"], words)
    write_folder("seq2seq-luong", cases["luong"], {})
    write_folder("lstm", cases["lstm"], {"tokenizer.json": tokenizer(SOURCE, False)})
    with zipfile.ZipFile(HERE / "recurrent_models.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, arrays in cases.items():
            for key, array in arrays.items():
                with archive.open(zipfile.ZipInfo(f"{name}/{key}.npy", (1980, 1, 1, 0, 0, 0)), "w") as member:
                    np.lib.format.write_array(member, array)


if __name__ == "__main__":
    main()
