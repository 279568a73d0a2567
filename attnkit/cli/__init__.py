"""The command line of all tools, whose table is here, and the pipe between them.

What a tool is:
tool               a typed function of a record, with what command line, pipe and Python need of it
options            options as Typer builds them and converts their values; those of all tools
constraints        the tables of options that exclude or require each other

What calls one:
main               the entry point: choose a tool, run it, report an error in one line, return the exit code
parser             a command line, parsed and explained by Typer from the options of its tool
calls              a tool as a function of Python: the decorator `@tool`, and a call with its keywords
stage              one call of a tool: its operands, its stream of records, their history, its side outputs
pipeline           several stages in one process
replay             the history of a record run again, to compare and to measure its noise

What it reads:
operands           the files that options and arguments name, by a table of what they hold; values of Python instead
text_input         the readers of tools that take text

What is shown of its result:
output_format      the format of the output, by option, suffix, input and terminal
output             the writers of results: files, standard output, terminals
views              tables, heat maps, statistics and lists of the tensors of a record
figures            a result as a picture
notebook           a result in a console or a notebook of Python; plot

What helps:
causes             the file, option or layer that an error or a NaN comes from
hints              what to type instead
help_files         pages of help as files: HTML, notebooks, Markdown
synonyms           what other libraries call the options, tools and values
completion         what completes a command line in bash, zsh and fish, by Typer
catalog            the tools described to programs
signature          the tools described to Python and type checkers
"""

import importlib
from typing import TYPE_CHECKING

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
    "recall": "linear attention: a state in place of a cache",
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
    "check": "verify an implementation of a stage, and name its slip",
    "golden": "named computations against stored numbers: rounding or change",
    "run": "a whole pipeline in one process",
    "grad": "the gradients of a pipeline",
    "history": "print the commands that made a record; run them again",
    "exercise": "an exercise of the lecture, and the check of your answer; sheets and marks of a class",
    "sample": "short scripts of one idea each: list, run and copy them",
}


def find_tool(name: str) -> "Tool":
    """Import the tool of that name and no other."""
    tool: Tool = getattr(importlib.import_module(f"attnkit.commands.{name}"), name).tool
    return tool
