"""Summarize a checkpoint folder: configuration, stored tensors, layers."""

import fnmatch
import re
import shlex
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

from attnkit import display, model
from attnkit.checkpoints.config_reader import read_preprocessor
from attnkit.display import Style
from attnkit.errors import DataError, UsageError, counted, suggest
from attnkit.inputs.sound_inputs import VARIANCE, normalizes_samples
from attnkit.interpret.model_sheet import describe_model, runs
from attnkit.model import Config, Step
from attnkit.model.config import SoundConfig
from attnkit.model.parameters import parameter_axes, tool_of
from attnkit.records import Record, Tensor, is_pattern

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint


What = TypeVar("What", bound=Hashable)
NUMBER = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]*)(?![0-9])")

UNFOLDED = ("channel", "patch row", "patch column")  # as published weights of patches are


def checkpoint_record(checkpoint: "Checkpoint", part_name: str = "", names: Sequence[str] = ()) -> Record:
    """Map the stored tensors of a folder, of a part of it, or of these names."""
    if part_name:
        return model_part(checkpoint, part_name)
    if names:
        return read_tensors(checkpoint, names)
    axes_of = published_axes(checkpoint)
    return Record({name: Tensor(checkpoint.tensor(name), axes_of.get(name)) for name in checkpoint.tensors()})


def read_tensors(checkpoint: "Checkpoint", patterns: Sequence[str]) -> Record:
    """Read tensors by shell patterns of published names, or of names of parameters.

    DataError for a pattern that fits none.
    """
    specs, stored = checkpoint.params.specs, checkpoint.tensors()
    parameters = [f"{layer}.{parameter}" for layer, many in specs.items() for parameter in many]
    names: list[str] = []
    for pattern in patterns:
        if not is_pattern(pattern) or checkpoint.params.weights.has(pattern):
            names.append(pattern)
        elif found := fnmatch.filter(stored, pattern) or fnmatch.filter(parameters, pattern):
            names += found
        else:
            near = suggest(pattern, [*parameters, *stored])
            raise DataError(f"no tensor matches {pattern!r}{near}", checkpoint.folder)
    return reduce(Record.merge, (read_tensor(checkpoint, name) for name in names))


def read_tensor(checkpoint: "Checkpoint", name: str) -> Record:
    """Read a stored tensor by its published name, or a parameter by its name here.

    DataError lists the names that come near.
    """
    weights = checkpoint.params.weights
    stored = weights.find([name, *(name.removeprefix(prefix) for prefix in weights.prefixes)])
    array = checkpoint.tensor(stored or name)
    axes = published_axes(checkpoint).get(stored) if stored else name_axes(checkpoint.config, *name.rsplit(".", 1))
    return Record({name: Tensor(array, axes or None)})


def model_part(checkpoint: "Checkpoint", name: str) -> Record:
    """Read a tensor, or the parameters of layers whose names start so.

    DataError lists the names that come near.
    """
    params = checkpoint.params
    if is_pattern(name):
        return read_tensors(checkpoint, [name])
    chosen = [name] if name in params else [layer for layer in params if layer.startswith(f"{name}.")]
    if not chosen or params.weights.has(name):
        return read_tensor(checkpoint, name)
    tensors = {}
    for layer in chosen:
        for parameter, array in params.convert(layer).items():
            short = f"{layer}.{parameter}".removeprefix(f"{name}.")
            tensors[short] = Tensor(array, name_axes(checkpoint.config, layer, parameter))
    if not tensors:
        raise DataError(f"{name} has no parameters", checkpoint.folder)
    return Record(tensors)


def name_axes(config: Config, layer: str, name: str) -> tuple[str, ...]:
    """The axis names of a parameter.

    >>> name_axes(Config("bert", 2), "encoder.0.self", "wq"), name_axes(Config("bert", 2), "head", "w")
    (('model', 'heads'), ('model', 'vocab'))
    """
    part = model.parse_layer_name(layer)[2]
    axes = parameter_axes(part, name)
    return tuple("class" if axis == "vocab" else axis for axis in axes) if part == "head" and config.classes else axes


def published_axes(checkpoint: "Checkpoint") -> dict[str, tuple[str, ...]]:
    axes_of: dict[str, tuple[str, ...]] = {}
    for layer, names in checkpoint.params.specs.items():
        for name, entry in names.items():
            axes = name_axes(checkpoint.config, layer, name)
            axes = axes if entry.share.is_whole else (*axes[:-1], "q k v" if name[1:] in ("q", "k", "v") else "gates")
            axes = axes[::-1] if entry.transposed else axes
            axes = (*axes[:-1], *UNFOLDED) if entry.patch_shape else axes
            stored = checkpoint.params.weights.find(entry.names)
            if stored:
                axes_of.setdefault(stored, (*(f"axis{i}" for i in range(entry.leading_ones)), *axes))
    return axes_of


def draw_model(checkpoint: "Checkpoint", style: Style) -> str:
    """Render the model, its stored tensors and its layers, equal ones in one row."""
    heading = display.draw_blocks(describe_model(checkpoint).blocks(style), style)
    return "\n\n".join([heading, tensor_rows(checkpoint, style, fold=True), layer_rows(checkpoint, style)])


def layer_rows(checkpoint: "Checkpoint", style: Style) -> str:
    """Render the layers: the tool that computes each, and its parameters."""
    named = {layer: (tool_of(layer), list_parameters(checkpoint, layer)) for layer in checkpoint.layers()}
    cells = [[layer, tool, parts] for layer, (tool, parts), _ in alike(named)]
    last = f"{len(named)} names; attnkit TOOL --model DIR --layer LAYER; show DIR --pipeline LAYER"
    return display.format_table(display.TextTable(["layer", "tool", "parameters"], cells, footer=last), style)


def tensor_rows(checkpoint: "Checkpoint", style: Style, fold: bool) -> str:
    """Render the stored tensors: published name, count, shape, unusual dtype."""
    stored = checkpoint.tensors()
    usual = Counter(dtype for dtype, _ in stored.values()).most_common(1)
    rows = alike(stored) if fold else ((name, value, 1) for name, value in stored.items())
    cells = [
        [name, f"{count} × " * (count > 1) + shape_text(shape) + f" {dtype}" * (dtype != usual[0][0])]
        for name, (dtype, shape), count in rows
    ]
    idle = len(checkpoint.params.unread.names)
    last = counted(len(stored), "tensor") + f", {idle} not used" * bool(idle) + "; --list: one per line" * fold
    return display.format_table(display.TextTable(["tensor", "shape"], cells, footer=last), style)


def list_parameters(checkpoint: "Checkpoint", layer: str) -> str:
    """List the parameters of a layer by shape: `wq wk (4, 4), bq bk (4)`."""
    by_shape: dict[tuple[int, ...], list[str]] = {}
    for name in checkpoint.params.specs[layer]:
        by_shape.setdefault(checkpoint.config.parameter_shape(layer, name), []).append(name)
    return ", ".join(f"{' '.join(names)} {shape_text(shape)}" for shape, names in by_shape.items()) or "none"


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as text.

    >>> shape_text((3, 4)), shape_text((5,))
    ('(3, 4)', '(5)')
    """
    return f"({', '.join(map(str, shape))})"


def alike(named: Mapping[str, What]) -> Iterator[tuple[str, What, int]]:
    """Yield names that differ in their first number alone as one, with their count.

    >>> list(alike({"h.0.w": 4, "h.1.w": 4, "h.2.w": 5, "ln_f": 4}))
    [('h.0…1.w', 4, 2), ('h.2.w', 5, 1), ('ln_f', 4, 1)]
    """
    groups: dict[tuple[str, str, What], list[int]] = {}
    for name, value in named.items():
        match = NUMBER.search(name)
        start, end = match.span() if match else (len(name), len(name))
        groups.setdefault((name[:start], name[end:], value), []).append(int(match[0]) if match else -1)
    for (before, after, value), numbers in groups.items():
        for first, last in runs(sorted(numbers)):
            number = "" if first < 0 else str(first) if first == last else f"{first}…{last}"
            yield f"{before}{number}{after}", value, last - first + 1


OUTPUT_HEAD = Step("decode", "head")
MEMORY = "memory.npz"
SHIFTED = "shifted.npz"  # the ids of a source after the start token, without the last one: what a classifier decodes
NEXT = " \\\n  | "  # between two stages
RESIDUALS = {"input": ["--residual"], "saved": ["--add", ":residual"], "concat": ["--concat"]}
INPUTS = {"encoder": "source.npz", "decoder": "target.npz"}  # of a model that has no embeddings


def shell_pipeline(config: Config, folder: str, name: str, is_pooled: bool = False) -> str:
    """The shell pipeline of a layer, a sub-layer, a stack, the head, or all.

    is_pooled  whether the folder states how the states of all become one vector of a text

    UsageError names the parts that come near.

    >>> small = model.StackConfig(layers=1, heads=1, hidden=4, kv_heads=1, head_dim=2)
    >>> print(shell_pipeline(Config("bert", 2, encoder=small), "DIR", "encoder.0.ffn"))
    attnkit ffn --model DIR --layer encoder.0.ffn --residual
    """
    if name == "all":
        return "\n".join(stack_pipeline(config, folder, stack, is_pooled) for stack in config.stacks)
    known = pipeline_parts(config)
    if name not in known:
        some = ", ".join(["all", *config.stacks, *["head"] * config.head, f"{config.stacks[0]}.0"])
        hint = suggest(name, [*known, "all"])
        raise UsageError(f"the model has no stages {name!r} (it has {some} …){hint}", "--pipeline")
    return NEXT.join(stage_line(config, folder, step) for step in known[name])


def pipeline_parts(config: Config) -> dict[str, list[Step]]:
    """The steps of every part that has a pipeline, by its name."""
    parts: dict[str, list[Step]] = {}
    for stack in config.stacks:
        parts[stack] = steps = config.plan(stack)
        for step in steps:
            parts.setdefault(f"{stack}.{model.parse_layer_name(step.layer)[1]}", []).append(step)
        parts |= {step.layer: [step] for step in steps}
    return parts | ({"head": [OUTPUT_HEAD]} if config.head else {})


def stack_pipeline(config: Config, folder: str, stack: str, is_pooled: bool) -> str:
    """The pipeline of a stack from its input to its last result."""
    steps, ends_here = config.plan(stack), stack == config.stacks[-1]
    if is_pooled and stack == config.stacks[0]:
        stages = [stage_line(config, folder, step) for step in steps if step.layer != f"{stack}.norm"]
        stages.append(
            shlex.join(["attnkit", "encode", "--model", folder, "--layers", f"{config.stack(stack).layers}:"])
        )
    else:
        stages = [stage_line(config, folder, step) for step in [*steps, *[OUTPUT_HEAD] * (ends_here and config.head)]]
    if config.sound and stack == "encoder":
        stages = [*sound_stages(config.sound, folder), *stages]
        stages[0] += " SOUND"
    elif steps and steps[0].op != "embed":
        stages[0] += f" {INPUTS[stack]}"
    if stack != config.stacks[-1]:
        stages[-1] += f" -o {MEMORY}"
    return NEXT.join(stages)


def sound_stages(sound: SoundConfig, folder: str) -> list[str]:
    """The command lines from a sound to the model's input: none for plain samples.

    >>> from attnkit.model.formulas.spectrogram import Spectrogram
    >>> sound_stages(SoundConfig(Spectrogram(mels=128), 1500, {}), "whisper-large-v3")
    ['attnkit mel --seconds 30 --mels 128']
    """
    if sound.spectrogram:
        seconds = sound.samples / sound.spectrogram.rate
        return [f"attnkit mel --seconds {seconds:g} --mels {sound.spectrogram.mels}"]
    return [f"attnkit layernorm --eps {VARIANCE:g}"] if normalizes_samples(read_preprocessor(folder)) else []


def stage_line(config: Config, folder: str, step: Step) -> str:
    """One stage as a command line.

    >>> config = Config("gpt2", 2, decoder=model.StackConfig(1, 1, 4, 1, 2))
    >>> stage_line(config, "my model", Step("layernorm", "decoder.norm"))
    "attnkit layernorm --model 'my model' --layer decoder.norm"
    """
    stack = model.parse_layer_name(step.layer)[0]
    words = ["attnkit", tool_of(step.layer), "--model", folder]
    if step.op not in ("embed", "posenc") or stack != config.stacks[0]:
        words += ["--layer", step.layer]
    words += ["--memory", MEMORY] if config.needs_memory(step) else []
    after = ["--add-after", ":residual"] if step.op == "layernorm" and step.adds_residual else None
    words += after or RESIDUALS.get(step.adds_residual, [])
    words += ["--keep", "residual"] if step.saves_residual else []
    words += ["--branch", ":residual"] if step.reads_saved else []
    operand = "" if step.op != "embed" else " --image IMAGE" if config.patches else ' "TEXT"'
    if operand and config.classes and step.layer == "decoder.embed" and config.encoder:
        operand = f" --ids {SHIFTED}"
    return shlex.join(words) + operand
