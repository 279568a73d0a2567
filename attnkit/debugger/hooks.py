"""Scripts that record what another engine computes for a model.

A script of the folder `scripts` names every tensor as its engine names modules and nodes, which `names.py` knows, so
that no map is needed. It runs in float32 without a KV cache, and reads the ids of a short text, or drawn numbers.
"""

import glob
import json
import os
import pathlib
import shlex
from string import Template
from typing import TYPE_CHECKING

from attnkit.errors import AttnkitError, UsageError, with_article

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint
    from attnkit.model.config import Config

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
ENGINES = {  # engine -> what its script reads before the file of the recording
    "torch": "MODULE:LOAD",
    "transformers": "",
    "vllm": "",
    "mlx": "",
    "jax": "MODULE:FUNCTION",
    "onnx": "MODEL.onnx",
    "llama.cpp": "",
}
RENAMED = ("mistral", "mixtral", "olmo3", "deepseek_v3")  # families that llama.cpp has as variants of others
OF_TEXT = ("vllm", "mlx", "llama.cpp")  # engines of models that continue a text
TEXT = "The quick brown fox jumps over the lazy dog."
FEW = 8  # tokens that a script reads
USAGE = "if not sys.argv[1:]:\n    sys.exit(__doc__)\n\n"  # of a script that reads a name before its file
SAMPLES = 4000  # of a sound: a quarter of a second


def write_hooks(checkpoint: "Checkpoint", engine: str) -> str:
    """Write the script that records a model in an engine; UsageError if it has none."""
    config, path = checkpoint.config, checkpoint.place
    refuse_engine(checkpoint, engine)
    reads, has_gguf = ENGINES[engine], engine == "llama.cpp" and not os.path.isfile(path)
    towers = [f"{path}:{tower}" for tower in ("text", "vision")] if checkpoint.similarity else [path]
    argument = "MODEL.gguf" if has_gguf else reads
    first = 2 if argument else 1
    ids = choose_ids(checkpoint)
    adds_twice = config.family == "falcon" and config.positions.relative == "alibi"  # the bias, in eager attention
    values = {
        "usage": USAGE if argument else "",
        "path": "sys.argv[1]" if has_gguf else json.dumps(path),
        "folder": in_docstring(path),
        "arguments": f" {argument}" if argument else "",
        "compare": "\n".join(
            f"    attnkit diff --model {in_docstring(shlex.quote(one))} MINE.npz --why" for one in towers
        ),
        "first": first,
        "after": first + 1,
        "ids": ids,
        "inputs": "\n".join(f'    "{name}": {value},' for name, value in draw_inputs(checkpoint).items()),
        "architecture": architecture_class(checkpoint),
        "attention": "sdpa" if adds_twice else "eager",
        "experts": ', experts_implementation="eager"' if config.experts else "",
        "options": ", use_cache=False" if config.decoder else "",
        "stages": "\n".join(f"    {line}" for line in stage_lines(checkpoint)) if engine == "jax" else "",
        "weights": "*.safetensors" if glob.glob("*.safetensors", root_dir=path) else "*.bin",
    }
    return Template((SCRIPTS / f"{engine}.txt").read_text(encoding="utf-8")).substitute(values).rstrip("\n")


def refuse_engine(checkpoint: "Checkpoint", engine: str) -> None:
    """Raise UsageError for a model that an engine has no script for."""
    config, path, model = checkpoint.config, checkpoint.place, f"this {checkpoint.config.family} model"
    if engine == "llama.cpp":
        from attnkit.checkpoints.gguf import ARCHITECTURES

        if config.family not in {*ARCHITECTURES.values(), *RENAMED} and not os.path.isfile(path):
            raise UsageError(f"{model} has no architecture of llama.cpp that attnkit reads", "--hooks")
    elif os.path.isfile(path):
        raise UsageError(
            f"{engine}: needs the folder that the GGUF file was made of; llama.cpp reads the file", "--hooks"
        )
    if engine in OF_TEXT and not (is_text_decoder(config) and checkpoint.raw):
        raise UsageError(f"{engine}: {model} continues no text", "--hooks")
    if engine in ("vllm", "mlx", "transformers") and not architecture_class(checkpoint):
        raise UsageError(f"{engine}: config.json names no class in architectures", "--hooks")
    if engine == "torch" and not is_text_decoder(config):
        raise UsageError(
            f"torch: {with_article(config.family)} model reads more than token ids; transformers or jax record it",
            "--hooks",
        )


def architecture_class(checkpoint: "Checkpoint") -> str:
    """The class of transformers that `architectures` names; "" for none."""
    named = checkpoint.raw.get("architectures")
    first = str(named[0]) if isinstance(named, list) and named else ""
    return first if first.isidentifier() else ""


def in_docstring(text: str) -> str:
    r"""Escape a text for the docstring of a script.

    >>> in_docstring('a"b')
    'a\\"b'
    """
    return json.dumps(text)[1:-1]


def is_text_decoder(config: "Config") -> bool:
    """Whether a model is a decoder of token ids alone."""
    return config.stacks == ("decoder",) and not (config.patches or config.sound)


def choose_ids(checkpoint: "Checkpoint") -> list[int]:
    """The first ids of a short text, or some ids of a model without a tokenizer."""
    from attnkit.inputs import text_inputs

    config = checkpoint.tower("text").config
    size = config.stack(config.stacks[0]).vocab or config.stack(config.stacks[-1]).vocab
    try:
        tokens = text_inputs.tokenizer_of(checkpoint).encode(TEXT)
        ids = tokens.ids or []
    except AttnkitError:
        ids = []
    chosen = ids[:FEW] or [at for at in range(5, size) if at != config.special.pad][:FEW]
    reads_end = bool(config.classes and config.encoder and config.decoder)  # a classifier reads the state of the end
    return [*chosen[:-1], config.special.eos[0]] if reads_end else chosen


def draw_inputs(checkpoint: "Checkpoint") -> dict[str, str]:
    """The inputs of a model by the names that transformers gives them, as Python code.

    A model that answers in words about a picture reads the words alone.
    """
    config, inputs = checkpoint.tower("text").config, dict[str, str]()
    cut = checkpoint.tower("vision").config.patches if checkpoint.similarity else config.patches
    if cut:
        size = (1, cut.channels, cut.height, cut.width)
        inputs["pixel_values"] = f"drawn.standard_normal({size}, np.float32)"
    if config.sound and config.sound.spectrogram:
        frames = config.sound.samples // config.sound.spectrogram.hop
        inputs["input_features"] = f"drawn.standard_normal((1, {config.sound.spectrogram.mels}, {frames}), np.float32)"
    elif config.sound:
        inputs["input_values"] = f"drawn.standard_normal((1, {SAMPLES}), np.float32)"
    if not (config.sound or cut) or checkpoint.similarity:
        inputs = {"input_ids": "np.array([IDS])"} | inputs
    if config.encoder and config.decoder and not config.classes:  # a classifier makes its own
        inputs["decoder_input_ids"] = f"np.array([[{config.special.start or 0}, *IDS[:3]]])"
    return inputs


def stage_lines(checkpoint: "Checkpoint") -> list[str]:
    """The sites of a model in their order; of a stack those of its first layer."""
    from attnkit.debugger.modules import build_nodes

    config = checkpoint.config
    sites = [site for site in build_nodes(config, checkpoint.params.specs) if not is_later_layer(site)]
    depths = {stack: config.stack(stack).layers for stack in config.stacks}
    others = [f"and those of {stack}.1 to {stack}.{depth - 1}" for stack, depth in depths.items() if depth > 1]
    return [*sites, *others]


def is_later_layer(site: str) -> bool:
    """Whether a site is in a layer after the first of its stack.

    >>> is_later_layer("decoder.1.norm1"), is_later_layer("decoder.0.norm1"), is_later_layer("logits")
    (True, False, False)
    """
    parts = site.split(".")
    return parts[1:2] != ["0"] and parts[1:2] != [] and parts[1].isdigit()
