"""Shell completion by Typer for bash, zsh and fish."""

import os
from collections.abc import Sequence
from typing import Any

import typer

from attnkit import help as pages
from attnkit.cli import TOOLS, find_tool, parser
from attnkit.errors import UsageError, suggest

typer_completion: Any = typer.completion
SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_ATTNKIT_COMPLETE"  # which the scripts set: complete_bash and so on
INSTALL = """# bash: add to ~/.bashrc       eval "$(attnkit completion bash)"
# zsh:  add to ~/.zshrc        eval "$(attnkit completion zsh)"
# fish: run once               attnkit completion fish > ~/.config/fish/completions/attnkit.fish
"""


class Tools(typer.core.TyperGroup):
    """All tools as one command of Typer, each imported when it is completed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """List the tools, `help` and `completion`."""
        return [*TOOLS, "help", "completion"]

    def get_command(self, ctx: Any, name: str) -> Any:
        """Import the command of a tool; None for another name."""
        if name in ("help", "completion"):
            words = typer.core.TyperArgument(param_decls=["words"], nargs=-1, autocompletion=complete_page)
            return typer.core.TyperCommand(name, params=[words])
        return parser.Command(find_tool(name)) if name in TOOLS else None

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Complete the name of a tool, without importing any."""
        options = [] if not incomplete.startswith("-") else ["--help", "--version"]
        names = [name for name in [*self.list_commands(ctx), *options] if name.startswith(incomplete)]
        return [typer_completion.shell_completion.CompletionItem(name) for name in names]


def complete_page(context: typer.Context, args: Sequence[str], incomplete: str) -> list[str]:
    """Complete what follows `help`, `help lecture` or `completion`."""
    words = (context.info_name, *(context.params.get("words") or ()))
    return {
        ("completion",): list(SHELLS),
        ("help",): [*TOOLS, *pages.list_topics(), "skill"],
        ("help", "lecture"): [chapter.name for chapter in pages.list_chapters()],
    }.get(words, [])


def complete_line(instruction: str) -> None:
    """Print the words that complete the command line in Typer's variables."""
    typer_completion.completion_init()
    shells: Any = typer_completion.shell_completion
    bash: Any = shells.get_completion_class("bash")

    class Bash(bash):  # type: ignore[misc]
        """Completion for bash, which begins a word after each : and =."""

        def get_completion_args(self) -> tuple[list[str], str]:
            """Join the words that bash has separated at : and =."""
            words = [""]
            for word in os.environ["COMP_WORDS"].split("\n")[1 : int(os.environ["COMP_CWORD"]) + 1]:
                if word[:1] in (":", "=") or (words[-1][-1:] in (":", "=") and word):
                    words[-1] += word
                else:
                    words.append(word)
            self.typed = words.pop().strip("'\"")
            return [word.strip("'\"") for word in words[1:]], self.typed

        def format_completion(self, item: Any) -> str:
            """Cut what bash holds for words before the one that is completed."""
            return str(item.value)[max(self.typed.rfind(":"), self.typed.partition("=")[0].find("=")) + 1 :]

    shells.add_completion_class(Bash, "bash")
    typer_completion.shell_complete(Tools(name="attnkit"), {}, "attnkit", VARIABLE, instruction)


def completion_script(arguments: Sequence[str]) -> str:
    """Typer's script of completion for SHELL; without SHELL, how to install it."""
    if not arguments or arguments[0] in ("-h", "--help"):
        return INSTALL
    shell, *more = arguments
    if shell not in SHELLS or more:
        raise UsageError(f"expected one of: {', '.join(SHELLS)}, got {shell!r}{suggest(shell, SHELLS)}")
    script: str = typer_completion.get_completion_script(prog_name="attnkit", complete_var=VARIABLE, shell=shell)
    return f"{script}\n"
