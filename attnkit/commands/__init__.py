"""The tools, one file each: functions of a record, with flags as parameters."""

import importlib
from typing import TYPE_CHECKING

from attnkit.errors import UsageError

if TYPE_CHECKING:
    from attnkit.cli.tool import Tool

TOOLS = {
    "embed": "text or token ids to vectors",
    "posenc": "positions: sinusoidal, learned, rotary, ALiBi, T5",
    "mask": "which keys a query may attend to: causal, padding, windows, segments",
    "attend": "scaled dot-product and multi-head attention",
    "softmax": "scores to weights that add up to 1",
    "merge": "merge attention over parts of the keys",
    "layernorm": "layer, RMS and batch normalization",
    "ffn": "the position-wise feed-forward network",
    "linear": "a linear layer, x W + b",
    "conv": "convolution over one or two dimensions",
    "mel": "the log-mel spectrogram of a sound",
    "rnn": "recurrent layers: RNN, GRU, LSTM",
    "encode": "text to the hidden states of a published model",
    "decode": "hidden states to logits, probabilities and words",
    "loss": "the cross-entropy of logits and targets",
    "score": "perplexity of a text; BLEU and chrF of translations",
    "near": "the nearest of many vectors: sentences or words by meaning",
    "rollout": "the attention of all layers of a trace, multiplied",
    "lens": "the words in the state of each layer; what each part adds to a logit",
    "scan": "what each layer, head and position adds to the logit of a word",
    "heads": "what each attention head attends to, and what its weights say",
    "train": "train a model from a text file or a folder of images",
    "cost": "what a model costs, stage by stage: FLOPs, bytes, parameters, cache",
    "engines": "what computes: NumPy, JAX, their devices and memory",
    "show": "a tensor, record or file as tables and heat maps",
    "explore": "a page that explores a trace: heads, text, stages, differences",
    "peek": "show the records in the middle of a pipe",
    "diff": "compare two tensors or records",
    "run": "a whole pipeline in one process",
    "grad": "the gradients of a pipeline",
    "history": "print the commands that made a record; run them again",
    "exercise": "an exercise of the lecture, and the check of your answer",
    "sample": "short scripts of one idea each: list, run and copy them",
}


def find_tool(name: str) -> "Tool":
    """Import the tool of that name and no other."""
    if name not in TOOLS:
        kind = "option" if name.startswith("-") else "tool"
        from attnkit.cli import hints

        raise UsageError(f"no {kind} {name!r}{hints.hint_at_tool(name) or '; attnkit --help lists the tools'}")
    tool: Tool = getattr(importlib.import_module(f"{__name__}.{name}"), name).tool
    return tool
