"""What to type instead: hints of errors, and the answer of `help` to a word."""

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from attnkit.cli import TOOLS, find_tool, options
from attnkit.cli.operands import FILE_SUFFIX
from attnkit.cli.synonyms import look_up, squash
from attnkit.errors import closest, flag_name, suggest

# (tool, flag that it lacks) -> how to do the same
INSTEAD = {
    ("attend", "--temperature"): "--scale S multiplies the scores; a temperature T is --scale 1/(T·√K)",
    ("layernorm", "--residual"): "--add FILE normalizes x + FILE, --keep residual keeps what was normalized",
    ("run", "--file"): "the file of a pipeline is an operand: attnkit run FILE",
    ("show", "--head"): "--slice 2 is head 2 of (head, query, key), --slice :2 the first two",
    ("show", "--layer"): "--name 'decoder.0.*' shows the tensors of a layer, --list the names of all",
    ("peek", "--head"): "--slice 2 is head 2 of (head, query, key), --slice :2 the first two",
}
SHORT = {"-o": "--output", "-f": "--format"}
SHOWING = ("scan", "show", "peek", "diff")  # tools with options for looking at tensors
# (tool, option, value that it does not take) -> what to do
OTHER_VALUES = {
    ("attend", "emit", "present"): "present is two tensors, present_key and present_value",
    ("attend", "emit", "all"): "--keep all keeps every one",
    ("decode", "temperature", "0"): "without --temperature the most probable token is chosen",
    ("decode", "temperature", "0.0"): "without --temperature the most probable token is chosen",
}
# option -> the value that switches it off
OFF = {
    **dict.fromkeys(("clip", "dropout", "eps", "softcap", "smoothing", "valid", "warmup", "weight-decay"), "0"),
    **dict.fromkeys(("scale", "temperature"), "1"),
    "activation": "identity",
    "window": "-1,-1",
}
# options without a default that switch something on, beside flags and those of OFF
SWITCHES = {
    *("beam", "chunk", "grad", "layer-decay", "min-p", "no-repeat-ngram", "patience", "prefix", "qk-norm"),
    *("repetition-penalty", "top-k", "top-p", "unfreeze-every"),
}
VECTORS = "attnkit embed TEXT --dim 8"
PIPELINE_IN_QUOTES = "a pipeline is one word, in quotes: attnkit run 'A | B'"
NUMBER = r"-?\d*\.?\d+(e-?\d+)?"
NUMBERS = re.compile(rf"\[*{NUMBER}([],\s[]+{NUMBER})*\]*")
LONG = 100  # characters of a text or a name that is too long for a hint
STATES = "attnkit encode TEXT --model DIR --keep '*.self.weights'"
# tool -> the stages that make its input of a text
OF_TEXT = {
    **dict.fromkeys(("posenc", "mask", "attend", "layernorm", "ffn", "linear", "conv", "rnn", "show", "peek"), VECTORS),
    **dict.fromkeys(("heads", "rollout", "explore"), STATES),
    "near": "attnkit encode TEXT --model DIR --pool mean",
    "lens": "attnkit encode TEXT --model DIR --keep '*'",
    "loss": "attnkit decode TEXT --model DIR --emit logits",
    "score": "echo TEXT",
}


def hint_at_tool(name: str) -> str:
    """A hint for a tool that does not exist; "" if nothing is like it.

    >>> hint_at_tool("perplexity"), hint_at_tool("atend"), hint_at_tool("xyz")
    ('; did you mean attnkit score FILE --model DIR?', '; did you mean attend?', '')
    """
    if name.startswith("--"):
        return hint_at_option("", name)
    if os.path.exists(name):
        return f"; did you mean attnkit show {shlex.quote(name)}?"
    if " " in name and len(name) < LONG:
        return f"; for a text: attnkit embed {shlex.quote(name)} --dim 8"
    base = name.rpartition(".")[2]  # of nn.Linear, F.layer_norm
    near = closest(squash(base), [*TOOLS, "help", "completion"], least=1)
    known = [near] if near else look_up("tools", base)
    if known:
        return f"; did you mean attnkit {known[0]}?"
    near = closest(name.lower(), [*TOOLS, "help", "completion"])
    return f"; did you mean {near}?" if near else hint_at_option("", f"--{name}")


def hint_at_option(tool: str, flag: str) -> str:
    """A hint for a flag that a tool lacks, or "".

    What this tool calls it comes first, then the tools that have a flag of this name, what others call it, and a
    flag of almost the same letters.

    >>> hint_at_option("attend", "--num_heads"), hint_at_option("attend", "--hedas")
    ('; did you mean --heads?', '; did you mean --heads?')
    >>> hint_at_option("layernorm", "--window"), hint_at_option("attend", "--vocab")
    ('; --window is an option of mask, attend, mel, score and cost', '; --vocab is an option of embed and decode')
    """
    if (tool, flag) in INSTEAD:
        return f"; {INSTEAD[tool, flag]}"
    owners, known = list_owners(), look_up("options", flag)
    name = flag.lstrip("-").replace("_", "-")
    if name.startswith("no-") and tool in owners.get(f"--{name[3:]}", []):
        return hint_at_absence(list_flags(find_tool(tool))[f"--{name[3:]}"], name[3:])
    own = ["help", *(one.removeprefix("--") for one, tools in owners.items() if tool in tools)]
    here = [spell_out(one, tool) for one in known if suits(one, tool, owners)]
    if hint := hint_at_own(name, own, here):
        return hint
    if f"--{name}" in owners:
        return f"; {PIPELINE_IN_QUOTES}" if tool == "run" else describe_owners(f"--{name}", owners[f"--{name}"], tool)
    if known and len(name) > 1:
        return hint_elsewhere(known, owners, tool)
    near = closest(name, own if tool else ["help", "version"])
    return f"; did you mean --{near}?" if near else ""


def hint_at_own(name: str, own: list[str], here: list[str]) -> str:
    """A hint at the tool's own option that was probably meant.

    >>> hint_at_own("head", ["heads"], []), hint_at_own("hedas", ["heads"], [])
    ('; did you mean --heads?', '')
    """
    if name in own or here:
        return f"; did you mean {f'--{name}' if name in own else here[0]}?"
    longer = closest(name, own, least=1)
    return f"; did you mean --{longer}?" if longer else ""


def hint_at_absence(option: options.Option, name: str) -> str:
    """Hint at --no-NAME: how NAME is switched off, or that it has no such form.

    It is off without its option, or has a default that a value replaces, or none.

    >>> flags = list_flags(find_tool("attend"))
    >>> hint_at_absence(flags["--causal"], "causal"), hint_at_absence(flags["--scale"], "scale")
    ('; it is off without --causal', '; the default of --scale is 1/√d_k, and --scale 1 switches it off')
    >>> hint_at_absence(flags["--params"], "params")
    '; --params has no default'
    """
    stated = re.search(r"\[default: ([^\];]*)", option.help)
    default = stated[1] if stated else "" if option.default in (None, ()) else str(option.default).removesuffix(".0")
    if not default and not option.is_flag and name not in {*OFF, *SWITCHES}:
        return f"; --{name} has no default"
    if option.is_flag or default in ("", OFF.get(name)):
        return f"; it is off without --{name}"
    off = f", and --{name} {OFF[name]} switches it off" if name in OFF else ""
    return f"; the default of --{name} is {default}{off}"


def hint_elsewhere(known: list[str], owners: dict[str, list[str]], tool: str) -> str:
    """A hint at what to type for a name from elsewhere that is of no use to this tool."""
    first = min(known, key=lambda one: (not one.startswith("--"), one.split()[0] in TOOLS))
    flag, *_ = first.split()
    if flag in owners:
        return describe_owners(flag, owners[flag], tool)
    return f"; did you mean {spell_out(first)}?" if flag in TOOLS else f"; {first.replace('TOOL', tool)}"


@cache
def list_owners() -> dict[str, list[str]]:
    """The tools that have each flag, in the order of the tools."""
    owners: dict[str, list[str]] = {}
    for name in TOOLS:
        for flag in list_flags(find_tool(name)):
            owners.setdefault(flag, []).append(name)
    return owners


def list_flags(tool: Any) -> dict[str, options.Option]:
    """All options of a tool by their flags."""
    return {flag_name(name): option for name, option in tool.options.items()}


def suits(known: str, tool: str, owners: dict[str, list[str]]) -> bool:
    """Decide whether what to type is for this tool, by its name or its flag."""
    first = known.split()[0]
    if first in TOOLS:
        return first == tool
    return tool in owners.get(SHORT.get(first, first), [])


def spell_out(known: str, tool: str = "") -> str:
    """What to type: the flag alone for its own tool, otherwise the command.

    >>> spell_out("posenc --kind rotary", "posenc"), spell_out("posenc --kind rotary"), spell_out("--dim")
    ('--kind rotary', 'attnkit posenc --kind rotary', '--dim')
    """
    first, _, rest = known.partition(" ")
    if first not in TOOLS:
        return known
    return rest if first == tool and rest.startswith("--") else f"attnkit {known}"


def describe_owners(flag: str, tools: list[str], tool: str) -> str:
    """A hint at the tools that have a flag.

    >>> describe_owners("--heatmap", ["show", "peek"], "attend")
    '; to see it so: attnkit attend … | attnkit show --heatmap'
    """
    if tool and {"show"} <= {*tools} <= {*SHOWING} and "check_finite" in find_tool(tool).options:
        return f"; to see it so: attnkit {tool} … | attnkit show {flag}"
    *most, last = tools
    return f"; {flag} is an option of {', '.join(most)}{' and ' * bool(most)}{last}"


def hint_at_value(tool: str, option: str, value: str) -> str:
    """Suggest what to do instead of passing a value that an option refuses.

    >>> hint_at_value("run", "format", "layer.attnkit")
    '; the file of a pipeline is an operand: attnkit run layer.attnkit'
    """
    if (tool, option) == ("run", "format") and {".", "/"} & {*value}:
        return f"; the file of a pipeline is an operand: attnkit run {shlex.quote(value)}"
    return f"; {OTHER_VALUES[tool, option, value]}" if (tool, option, value) in OTHER_VALUES else ""


def hint_at_keyword(name: str, known: Iterable[str]) -> str:
    """A hint for a keyword that a tool lacks in Python.

    >>> hint_at_keyword("num_heads", ["heads", "seed"]), hint_at_keyword("rms", ["kind"])
    ('; did you mean heads?', "; did you mean kind='rms'?")
    """
    spellings = {flag_name(one): one for one in known}
    for one in look_up("options", name):
        words = one.split()
        flag = next((word for word in words[:2] if word.startswith("--")), "")
        if flag in spellings:
            value = one.partition(f"{flag} ")[2]
            return f"; did you mean {spellings[flag].rstrip('_')}{f'={value!r}' if value else ''}?"
    near = closest(name, known)
    return f"; did you mean {near}?" if near else ""


def explain_word(word: str) -> str:
    """Explain an option, or what options and tools are called elsewhere.

    >>> print(explain_word("nucleus"), end="")
    --top-p P: sample from the fewest tokens whose probabilities sum to P or more (decode)
    >>> print(explain_word("perplexity"), end="")
    attnkit score FILE --model DIR: perplexity of a text; BLEU and chrF of translations
    """
    tool, *words = word.replace(".", " ").split()
    if tool in TOOLS and words:
        return "".join(f"{line}\n" for line in explain_flag(flag_name("-".join(words).strip("-")), tool))
    lines = [f"attnkit {one}{describe_command(one)}" for one in look_up("tools", word)]
    name = flag_name(word.strip("-"))
    lines += explain_flag(name) if name in list_owners() else []
    for one in look_up("options", word):
        first, _, rest = one.partition(" ")
        tool = first if first in TOOLS else ""
        flag, _, value = (rest if tool else one).partition(" ")
        if f"attnkit {one}" not in "".join(lines):
            lines += explain_flag(SHORT.get(flag, flag), tool, value) if flag.startswith("-") else [one] * (not tool)
    return "".join(f"{line}\n" for line in dict.fromkeys(lines))


def describe_command(line: str) -> str:
    """What the tool of a command is for, after a colon; "" if it is no tool.

    >>> describe_command("ffn"), describe_command("completion")
    (': the position-wise feed-forward network', '')
    """
    tool = line.split()[0]
    return f": {TOOLS[tool]}" if tool in TOOLS else ""


def explain_flag(flag: str, only: str = "", value: str = "") -> list[str]:
    """Explain a flag by its help, once for the tools that share it.

    only  the tool that is meant; "" for all that have it; value: what is given to it
    """
    tools = {name: list_flags(find_tool(name)) for name in ([only] if only else TOOLS)}
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, flags in tools.items():
        if flag in flags:
            kinds.setdefault((value or flags[flag].metavar, flags[flag].help), []).append(name)
    is_shared = flag in map(flag_name, options.COMMON) and len(next(iter(kinds.values()), [])) > 10
    return [
        f"{flag} {metavar}".rstrip() + f": {help} ({'all tools' if is_shared else ', '.join(names)})"
        for (metavar, help), names in kinds.items()
    ]


def hint_at_input(stage: Any, operand: str) -> str:
    """A hint for an input that is no file."""
    flags = {*stage.tool.flags, *stage.tool.extra_names}
    if os.path.isdir(operand):
        return hint_at_model("", [operand]) if "model_" in flags else ""
    if operand.isdigit() and "size" in flags:
        return f"; did you mean --size {operand}?"
    if near := find_file(operand):
        return f"; did you mean {near}?"
    if "name" in flags and re.fullmatch(r"\w+(\.\w+)*", operand) and not FILE_SUFFIX.search(operand):
        return f"; --name {operand} shows that tensor of a record"
    return hint_at_typed_input(stage, operand) if len(operand) <= LONG else ""


def hint_at_typed_input(stage: Any, operand: str) -> str:
    """A hint for numbers or a text typed in place of a file, or ""."""
    if NUMBERS.fullmatch(operand):
        return f"; for numbers: echo {shlex.quote(operand)} | {stage.command_line(operands=())}"
    if not re.search(r"\s|^[\w'-]+[.,!?]?$", operand):
        return ""
    text, folder = shlex.quote(operand), stage.parameters.get("model_")
    model = shlex.quote(folder) if isinstance(folder, str) else "DIR"
    if stage.tool.name == "decode":
        return f"; for a text: attnkit decode {text} --model {model}"
    if stage.tool.name not in OF_TEXT:
        return ""
    before = OF_TEXT[stage.tool.name].replace("--dim 8", "--dim 8" if model == "DIR" else "--model DIR")
    before = before.replace("DIR", model).replace("TEXT", text)
    return f"; for a text: {before} | {stage.command_line(operands=())}"


def hint_at_option_file(name: str, option: options.Option) -> str:
    """A hint for the value of an option that is no file."""
    if len(name) > LONG:
        return ""
    if os.path.isdir(name):
        file = os.path.join(name, "tokenizer.json")
        return f"; did you mean {file}?" if option.load == "tokenizer" and os.path.exists(file) else ""
    if near := find_file(name):
        return f"; did you mean {near}?"
    if option.load == "tokenizer":
        return suggest(name, option.metavar.split("|")[:-1])
    if NUMBERS.fullmatch(name):
        return f"; numbers are given as a file: <(echo '{name if name.startswith('[') else f'[{name}]'}')"
    is_tensor = option.load in ("tensor", "attended", "memory", "ids")
    return f"; :{name} is that tensor of the input" if is_tensor and name.isidentifier() else ""


def find_file(operand: str) -> str:
    """The file of almost the same name, or ""."""
    folder, name = os.path.split(operand)
    try:
        files = [one.name for one in os.scandir(folder or os.curdir) if one.is_file()]
    except (OSError, ValueError):
        return ""
    stems = {os.path.splitext(one)[0]: one for one in sorted(files, reverse=True)}
    is_comparable = 1 < len(os.path.splitext(name)[0]) < LONG  # a.txt is not like b.txt
    near = stems.get(name) or (closest(name, files) if is_comparable else "")
    return os.path.join(folder, near) if near else ""


def hint_at_operands(operands: Sequence[str], parameters: Iterable[str]) -> str:
    """A hint for too many operands: query, key and value, or FILE:NAME."""
    if len(operands) == 3 and all(map(os.path.exists, operands)) and "query" in parameters:
        return f"; did you mean --query {operands[0]} --key {operands[1]} --value {operands[2]}?"
    first, second, *others = operands
    if second.lower() in ("true", "false"):
        return "; a switch takes no value"
    if (
        os.path.exists(first)
        and not others
        and not os.path.exists(second)
        and re.fullmatch(r"\w+(\.\w+)*", second)
        and not FILE_SUFFIX.search(second)
    ):
        return f"; did you mean {first}:{second}?"
    return ""


def hint_at_model(error: str, operands: Sequence[str]) -> str:
    """A hint for a missing --model: the operand that is a folder."""
    from attnkit.checkpoints.checkpoint import WHAT_A_MODEL_IS, is_model

    if folders := [one for one in operands if is_model(one)]:
        return f"; did you mean --model {shlex.quote(folders[0])}?"
    return f"; {WHAT_A_MODEL_IS}" if error == "needs --model DIR" else ""
