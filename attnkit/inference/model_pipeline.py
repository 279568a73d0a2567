"""A model, or a part of it, written as a shell pipeline of tools that gives the same bytes."""

import shlex
from collections.abc import Sequence

from attnkit import model
from attnkit.errors import UsageError, suggest
from attnkit.model import Config, Step

HEAD = Step("decode", "head")
MEMORY = "memory.npz"
RESIDUALS = {"input": ["--residual"], "saved": ["--add", ":residual"], "concat": ["--concat"]}
INPUTS = {"encoder": "source.npz", "decoder": "target.npz"}  # of a model that has no embeddings


def shell_pipeline(config: Config, folder: str, name: str, is_pooled: bool = False) -> str:
    """Return the shell pipeline of a layer, a sub-layer, a stack, the head, or all.

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
    return join_stages([stage_line(config, folder, step) for step in known[name]])


def pipeline_parts(config: Config) -> dict[str, list[Step]]:
    """Return the steps of every part that has a pipeline, by its name."""
    parts: dict[str, list[Step]] = {}
    for stack in config.stacks:
        steps = model.layer_plan(config, stack)
        parts[stack] = steps
        numbers = dict.fromkeys(model.parse_layer_name(step.layer)[1] for step in steps)
        parts |= {
            f"{stack}.{n}": [step for step in steps if model.parse_layer_name(step.layer)[1] == n] for n in numbers
        }
        parts |= {step.layer: [step] for step in steps}
    return parts | ({"head": [HEAD]} if config.head else {})


def stack_pipeline(config: Config, folder: str, stack: str, is_pooled: bool) -> str:
    """Return the pipeline of a stack from its input to its memory, its logits, or the vector of the text."""
    steps, ends_here = model.layer_plan(config, stack), stack == config.stacks[-1]
    if is_pooled and stack == config.stacks[0]:
        stages = [stage_line(config, folder, step) for step in steps if step.layer != f"{stack}.norm"]
        words = ["attnkit", "encode", "--model", folder, "--layers", f"{config.stack(stack).layers}:"]
        stages.append(shlex.join(words))
    else:
        stages = [stage_line(config, folder, step) for step in [*steps, *[HEAD] * (ends_here and config.head)]]
    if steps and steps[0].op != "embed":
        stages[0] += f" {INPUTS[stack]}"
    if stack != config.stacks[-1]:
        stages[-1] += f" -o {MEMORY}"
    return join_stages(stages)


def stage_line(config: Config, folder: str, step: Step) -> str:
    """Return one stage as a command line.

    >>> config = Config("gpt2", 2, decoder=model.StackConfig(1, 1, 4, 1, 2))
    >>> stage_line(config, "my model", Step("layernorm", "decoder.norm"))
    "attnkit layernorm --model 'my model' --layer decoder.norm"
    """
    stack = model.parse_layer_name(step.layer)[0]
    words = ["attnkit", step.op, "--model", folder]
    if step.op not in ("embed", "posenc") or stack != config.stacks[0]:
        words += ["--layer", step.layer]
    words += ["--memory", MEMORY] if needs_memory(config, step) else []
    words += RESIDUALS.get(step.adds_residual, [])
    words += ["--keep", "residual"] if step.saves_residual else []
    operand = "" if step.op != "embed" else " --image IMAGE" if config.patches else ' "TEXT"'
    return shlex.join(words) + operand


def needs_memory(config: Config, step: Step) -> bool:
    """Return whether a step reads the memory: cross-attention, and a recurrent layer that begins with its states.

    >>> needs_memory(Config("t5", 2), Step("attend", "decoder.0.cross"))
    True
    """
    stack, number, part = model.parse_layer_name(step.layer)
    if not isinstance(config, model.RecurrentConfig):
        return part == "cross"
    begins = config.encoder is not None and config.decoding.bridge != "none"
    return part == "cross" or (stack == "decoder" and part == "rnn" and (number is None or begins))


def join_stages(stages: Sequence[str]) -> str:
    """Return stages as one pipeline, a line each."""
    return " \\\n  | ".join(stages)
