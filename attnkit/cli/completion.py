"""Shell completion: the scripts for bash, zsh and fish, and the words that complete a command line."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from attnkit import commands
from attnkit.errors import AttnkitError, UsageError, flag_name, suggest

if TYPE_CHECKING:
    from attnkit.cli.options import Option

SHELLS = ("bash", "zsh", "fish")
PLAIN = re.compile(r"[\w./-]+")  # names that a shell takes as they are: no other is offered
SCRIPTS = {
    "bash": r"""_attnkit() {
    local IFS=$'\n'
    COMPREPLY=($(attnkit completion bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o bashdefault -o default -F _attnkit attnkit
""",
    "zsh": r"""#compdef attnkit
_attnkit() {
    local -a words
    words=("${(@f)$(attnkit completion zsh "$LBUFFER" 2>/dev/null)}")
    [[ -n $words ]] && compadd -- $words || _files
}
compdef _attnkit attnkit
""",
    "fish": r"""complete -c attnkit -a '(attnkit completion fish (commandline -cp) 2>/dev/null)'
""",
}
INSTALL = """# bash: add to ~/.bashrc       eval "$(attnkit completion bash)"
# zsh:  add to ~/.zshrc        eval "$(attnkit completion zsh)"
# fish: run once               attnkit completion fish > ~/.config/fish/completions/attnkit.fish
"""


def run_completion(arguments: Sequence[str]) -> str:
    """Return the script for SHELL, or the words that complete LINE there; without SHELL how to install it."""
    if not arguments or arguments[0] in ("-h", "--help"):
        return INSTALL
    shell, *line = arguments
    if shell not in SHELLS or len(line) > 1:
        raise UsageError(f"expected one of: {', '.join(SHELLS)}, got {shell!r}{suggest(shell, SHELLS)}")
    if not line:
        return SCRIPTS[shell]
    try:
        words = complete(line[0])
    except AttnkitError:  # a file that cannot be read has no names to offer
        return ""
    if shell == "bash":  # where a word begins after each : and =
        typed = split_line(line[0])[1]
        start = max(typed.rfind(":"), typed.rfind("=")) + 1
        words = [word[start:] for word in words]
    return "".join(f"{word}\n" for word in words)


def complete(line: str) -> list[str]:
    """Return the words that the last word of a command line may become; [] where file names are expected.

    >>> complete("attnkit pos"), complete("attnkit attend --kv")
    (['posenc'], ['--kv-heads'])
    >>> complete("attnkit attend --keep q,we"), complete("attnkit attend --kv_h")
    (['q,weights'], ['--kv-heads'])
    """
    words, typed = split_line(line)
    words = words[1:]
    if not words:
        return matches([*commands.TOOLS, "help", "completion", "--help", "--version"], typed)
    if words[0] in ("help", "completion"):
        return matches(complete_subcommand(words), typed)
    return complete_tool(words, typed) if words[0] in commands.TOOLS else []


def split_line(line: str) -> tuple[list[str], str]:
    """Split a command line up to the cursor into its complete words and the word that is typed, without quotes.

    Only the last command of a pipeline counts.

    >>> split_line("attnkit embed 'a b' | attnkit attend --ke")
    (['attnkit', 'attend'], '--ke')
    """
    words: list[str] = []
    typed, quote = "", ""
    for character in line:
        if quote:
            typed, quote = (typed, "") if character == quote else (typed + character, quote)
        elif character in "'\"":
            quote = character
        elif character in "|;&(":
            words, typed = [], ""
        elif character.isspace():
            words, typed = ([*words, typed] if typed else words), ""
        else:
            typed += character
    return words, typed


def matches(candidates: Iterable[str], typed: str) -> list[str]:
    """Return the candidates that begin with what is typed."""
    return [candidate for candidate in candidates if candidate.startswith(typed)]


def complete_subcommand(words: Sequence[str]) -> list[str]:
    """Return what may follow `help`: tools and topics, `help lecture`: chapters, or `completion`: shells."""
    if words == ["completion"]:
        return list(SHELLS)
    from attnkit import help as pages

    if words == ["help", "lecture"]:
        return [chapter.name for chapter in pages.list_chapters()]
    return [*commands.TOOLS, *pages.list_topics()] if words == ["help"] else []


def complete_tool(words: Sequence[str], typed: str) -> list[str]:
    """Return the flags of a tool, the values of the flag before the cursor, or the tensors of FILE: or DIR:."""
    from attnkit.cli.parser import collect_flags

    tool, *rest = words
    options = {flag_name(name): option for name, option in collect_flags(commands.find_tool(tool)).items()}
    spellings = options | {option.short: option for option in options.values() if option.short}
    flag, equals, value = typed.partition("=")
    if equals and flag in spellings:
        return [f"{flag}={word}" for word in complete_value(flag, spellings[flag], value, rest)]
    if rest and rest[-1] in spellings and spellings[rest[-1]].metavar:
        return complete_value(rest[-1], spellings[rest[-1]], typed, rest)
    if typed.startswith("-"):
        return matches([*options, "--help"], typed.replace("_", "-"))
    return complete_tensor(typed)


def complete_value(flag: str, option: "Option", typed: str, words: Sequence[str]) -> list[str]:
    """Return the values of an option: its choices, comma-separated names, layers of --model, or tensors of FILE:."""
    if option.choices and not option.is_list:
        return matches(option.choices, typed)
    if option.choices:
        before, comma, last = typed.rpartition(",")
        return [f"{before}{comma}{name}" for name in matches(option.choices, last)]
    if flag in ("--layer", "--ablate") and "--model" in words[:-1]:
        return matches(layers_of(words[words.index("--model") + 1], flag), typed)
    if flag in ("--name", "--only"):
        return complete_names(typed, words)
    return complete_tensor(typed)


def complete_names(typed: str, words: Sequence[str]) -> list[str]:
    """Return comma-separated names of the tensors of the first operand that is a file."""
    files = [word for word in words if not word.startswith("-") and os.path.isfile(word)]
    before, comma, last = typed.rpartition(",")
    return [f"{before}{comma}{name}" for name in matches(tensor_names(files[0]), last)] if files else []


def complete_tensor(typed: str) -> list[str]:
    """Return FILE:NAME, or DIR:NAME of a model, for each tensor of a file that is typed up to its colon."""
    path, colon, name = typed.partition(":")
    if not (colon and os.path.exists(path)):
        return []
    return [f"{path}:{one}" for one in matches(tensor_names(path), name)]


def tensor_names(path: str) -> list[str]:
    """Return the names of the tensors of a file, or the layers and their parameters of a model's folder."""
    if os.path.isdir(path):
        from attnkit.checkpoints import open_checkpoint

        specs: Mapping[str, Mapping[str, object]] = open_checkpoint(path).params.specs  # names of attnkit alone
        return [*specs, *(f"{layer}.{key}" for layer, keys in specs.items() for key in keys)]
    from attnkit import formats

    return [name for name in formats.load(path) if PLAIN.fullmatch(name)]


def layers_of(folder: str, flag: str) -> list[str]:
    """Return the layers of a model; for --ablate those with heads."""
    from attnkit.checkpoints import open_checkpoint

    names = open_checkpoint(folder).layers()
    return [name for name in names if flag != "--ablate" or name.rpartition(".")[2] in ("self", "cross")]
