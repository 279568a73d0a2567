"""From arguments to exit code: the single place where errors become a line."""

import contextlib
import errno
import gc
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from attnkit import __version__
from attnkit.cli import TOOLS
from attnkit.errors import (
    AttnkitError,
    AttnkitNote,
    AttnkitWarning,
    FileError,
    UsageError,
    escaped,
    is_lack_of_memory,
    shortened,
    suggest,
)

if TYPE_CHECKING:
    from attnkit.cli.stage import Stage
    from attnkit.help import Chapter, PageSection

FIRST_STEPS = 'attnkit embed "The cat sat" --dim 8 | attnkit posenc | attnkit mask --causal | attnkit attend --heads 2'
LEAST_ADDRESSES = 104 << 20  # bytes that NumPy takes with one thread of OpenBLAS, which without them ends the process


def main(arguments: list[str]) -> int:
    """Run one command line; return its exit code (the README lists them)."""
    place = "attnkit"
    try:
        if instruction := os.environ.get("_ATTNKIT_COMPLETE"):
            from attnkit.cli.completion import complete_line

            complete_line(instruction)
            return 0
        if not arguments or arguments[0] in ("-h", "--help", "-V", "--version"):
            text = f"attnkit {__version__}\n" if {"-V", "--version"} & {*arguments} else overview()
            os.write(1, text.encode())
            return 0
        if arguments[0] == "completion":
            place = "attnkit completion"
            from attnkit.cli.completion import completion_script

            os.write(1, completion_script(arguments[1:]).encode())
            return 0
        if arguments[0] == "help":
            place = "attnkit help"
            return show_help(arguments[1:])
        if arguments[0] in TOOLS:
            place = f"attnkit {arguments[0]}"
            if arguments[1:] in (["-h"], ["--help"]) and (page := find_page(arguments[0])):
                return write_text(page)
        if lacks_addresses():
            os.write(2, f"{place}: not enough memory to load NumPy\n".encode())
            return 3
        import numpy  # noqa: F401 - after Typer its import maps and unmaps one arena 1,500 times: 12 ms

        from attnkit.cli import parser

        chosen = parser.choose_tool(arguments[0])
        replace_unknown_signs()
        stage = parser.parse(chosen, arguments[1:])
        if not gc.isenabled():  # by a process of its own: the modules are in use until its end
            gc.freeze()
            gc.enable()
        if stage is None:  # Typer has written its help to standard output
            return write_text("")
        from attnkit.cli import output

        with reports_of(stage):
            return output.write(stage) if stage.extra.get("coordinator") is None else output.write_joined(stage)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of a Rust library is not an Exception
        return report_error(error, place)


def find_page(tool: str) -> str:
    """The page of a tool, without importing it; "" on a narrow terminal."""
    import shutil

    from attnkit import help as pages

    return pages.read_tool(tool) if shutil.get_terminal_size().columns >= pages.TOOL_WIDTH else ""


def lacks_addresses() -> bool:
    """Whether the process may map too little (ulimit -v) to load NumPy."""
    import resource

    return 0 <= resource.getrlimit(resource.RLIMIT_AS)[0] < LEAST_ADDRESSES


def replace_unknown_signs() -> None:
    """Replace characters that the encoding of standard output lacks."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


@contextlib.contextmanager
def reports_of(stage: "Stage") -> Iterator[None]:
    """Write warnings, notes and progress of a `with` block to standard error."""
    from attnkit.callbacks import Callbacks, ignore, use_callbacks
    from attnkit.cli import output
    from attnkit.cli.stage import running, running_stage
    from attnkit.libraries import silence_libraries

    is_quiet = bool(stage.common.get("quiet"))

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        at_work = running_stage() or stage
        if not at_work.common.get("quiet"):
            word = "note" if issubclass(category, AttnkitNote) else output.colored("warning", output.YELLOW)
            output.write_stderr(f"attnkit {at_work.tool.name}: {word}: {shortened(escaped(str(message)))}\n")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not is_quiet:
            warnings.simplefilter("always", AttnkitWarning)  # each record and stage has its own
            warnings.simplefilter("always", AttnkitNote)
        warnings.showwarning = show
        has_progress = os.isatty(output.STDERR) and is_cursor_movable() and not is_quiet
        report = output.PROGRESS.report if has_progress else ignore
        callbacks = Callbacks(report, output.show_remark, output.show_check, on_report=output.show_report)
        with running(stage), silence_libraries(), use_callbacks(callbacks):
            yield


def show_help(names: list[str]) -> int:
    """Print the options of a tool, a page, a chapter, or a list.

    -o FILE writes a page or a chapter to a file.
    """
    from attnkit import help as pages

    names, output = take_output(names)
    if output is not None and output != "-":
        from attnkit.cli.help_files import write_help_file

        return write_help_file(names, output)
    name = " ".join(names)
    if not name or name in ("-h", "--help", "help"):
        return main(["--help"])
    if "--json" in names:
        return print_tools([one for one in names if one != "--json"])
    if name == "skill":
        return write_text(pages.read_skill())
    if name.startswith("lecture "):
        return show_chapter(name.removeprefix("lecture "))
    chapter = pages.find_chapter(name)
    more = f"\nIn the lecture: attnkit help lecture {chapter.name} ({chapter.title})\n" if chapter else ""
    if name in (*TOOLS, "completion"):
        return main([name, "--help"]) or write_text(more)
    if name in pages.list_topics():
        return write_page(pages.read_page(name) + more)
    return explain_word(name, chapter)


def take_output(names: list[str]) -> tuple[list[str], str | None]:
    """Take the file of -o from the words after `help`.

    None without one. The flag alone is a word itself.

    >>> take_output(["lecture", "-o", "a.html"]), take_output(["masks", "--output=a.ipynb"]), take_output(["-o"])
    ((['lecture'], 'a.html'), (['masks'], 'a.ipynb'), (['-o'], None))
    """
    words, path = list[str](), None
    rest = iter(names if len(names) > 1 else [])
    for word in rest:
        if word in ("-o", "--output"):
            path = next(rest, None)
            if path is None:
                raise UsageError("expected FILE.html, FILE.ipynb or FILE.md", word)
        elif word.startswith("--output="):
            path = word.removeprefix("--output=")
        else:
            words.append(word)
    return (words, path) if len(names) > 1 else (names, None)


def print_tools(names: Sequence[str]) -> int:
    """Print tools, all if none are named, as JSON for programs."""
    import json

    from attnkit.cli.catalog import describe_tools

    return write_text(json.dumps(describe_tools(names or [*TOOLS]), ensure_ascii=False, indent=1) + "\n")


def show_chapter(word: str) -> int:
    """Print a chapter of the lecture by number, name or idea."""
    from attnkit import help as pages

    if chapter := pages.find_chapter(word):
        return write_chapter(chapter)
    section = pages.find_section(word)
    if section and section.page.startswith("lecture "):
        return write_section(section)
    meant = suggest(word, [name for one in pages.list_chapters() for name in (one.name, *one.words)])
    raise UsageError(f"no chapter {word!r}{meant or '; attnkit help lecture lists them'}")


def write_chapter(chapter: "Chapter") -> int:
    """Print a chapter with its exercises and samples."""
    from attnkit.help.practice import list_practice

    return write_page(chapter.read() + list_practice(chapter.name))


def write_section(section: "PageSection") -> int:
    """Print a section below the title of its page."""
    kind = "chapter" if section.page.startswith("lecture ") else "page"
    return write_page(
        f"# {section.title}\n\n## {section.heading}\n\n{section.text}\n\n"
        f"The whole {kind}: `attnkit help {section.page}`\n"
    )


def explain_word(word: str, chapter: "Chapter | None") -> int:
    """Print the chapter or section of a word, and the options it stands for.

    Else print the sections with most words of a phrase.
    """
    from attnkit import help as pages
    from attnkit.cli import hints

    explained = hints.explain_word(word)
    below = f"\n{explained}" if explained else ""
    if chapter:
        return write_chapter(chapter) or write_text(below)
    if not word.startswith("-") and (section := pages.find_indexed(word)):
        return write_section(section) or write_text(below)
    return write_text(explained) if explained else find_phrase(word)


def find_phrase(phrase: str) -> int:
    """Print the section of a phrase, or list those with most of its words."""
    from attnkit import help as pages

    first, *others = phrase.split()
    is_of_tool = first in TOOLS and len(others) < 2 and not pages.find_section(" ".join(others))
    if not is_of_tool and (section := pages.find_section(phrase)):
        return write_section(section)
    words = [name for one in pages.list_chapters() for name in (one.name, *one.words)]
    meant = suggest(phrase, [*TOOLS, *pages.list_topics(), *words])
    sections = [] if is_of_tool or (meant and not others) else pages.rank_sections(phrase)
    if not sections:
        raise UsageError(f"no tool or topic {phrase!r}{meant or '; attnkit help lists both'}")
    lines = [f"- `attnkit help {one.page}`: {one.heading}\n" for one in sections]
    return write_page(f"The sections with most words of {phrase!r}:\n\n{''.join(lines)}")


def write_page(page: str) -> int:
    """Write a page to standard output: laid out on a terminal, in Markdown elsewhere."""
    if os.isatty(1):
        from attnkit import display
        from attnkit import help as pages

        look = display.detect_style(True, os.environ, "utf-8")
        page = pages.render_page(page, look.width, bold=look.color)
        if page.count("\n") >= os.get_terminal_size(1).lines and (pager := find_pager()):
            return show_in_pager(page, pager)
    return write_text(page)


def is_cursor_movable() -> bool:
    """Decide by TERM whether a terminal takes escape sequences.

    It does not where TERM is dumb, empty or unset.
    """
    return os.environ.get("TERM", "") not in ("", "dumb")


def find_pager() -> list[str]:
    """The command that shows a long page: that of PAGER, else less.

    [] for none, as on a dumb terminal.
    """
    import shlex
    import shutil

    stated = os.environ.get("PAGER")
    words = shlex.split(stated) if stated is not None else ["less", "-FRX"]
    is_usable = is_cursor_movable() and os.isatty(0) and words and shutil.which(words[0])
    return words if is_usable else []


def show_in_pager(page: str, command: Sequence[str]) -> int:
    """Show a page screen by screen. A pager that ends early is no error."""
    import subprocess

    subprocess.run(command, input=page, text=True, encoding="utf-8", check=False)
    return 0


def write_text(text: str) -> int:
    """Write a text to standard output; return the exit code 0."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    replace_unknown_signs()
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def report_truncation() -> int:
    """Report a truncated mapped file. Returns its exit code, 0 for none."""
    from attnkit.cli.stage import running_stage
    from attnkit.formats import atomic, mapped

    atomic.remove_temporaries()
    name = mapped.truncated_file()
    stage = running_stage()  # None in a worker thread
    names = [stage.tool.name] if stage else [name for name in sys.argv[1:2] if name in TOOLS]
    place = " ".join(["attnkit", *names])
    return report_error(FileError("cut short while it was read", name), place) if name else 0


def overview() -> str:
    """The text that `attnkit` without arguments prints."""
    from attnkit import help as pages

    width = max(map(len, TOOLS)) + 1
    rows = "".join(f"  {name:<{width}} {summary}\n" for name, summary in TOOLS.items())
    topics = "".join(f"  {name:<13} {title}\n" for name, title in pages.list_topics().items())
    return f"""Usage: attnkit TOOL [INPUT] [OPTIONS]

The Transformer as Unix tools.

{rows}
{topics}
  attnkit help TOOL         its options and an example
  attnkit help TOPIC        a page of documentation
  attnkit help lecture      a course in chapters; help lecture 5 or help lecture scale is one of them
  attnkit help TOPIC -o FILE.html  a page, a chapter or the whole lecture as HTML; .ipynb: as a notebook
  attnkit help WORD         an idea: softmax, residual, dot product; an option, or what others call it: top_k, d_model
  attnkit help --json       tools, options, constraints and exit codes for programs; help TOOL --json is one tool
  attnkit help skill        how to use attnkit, for a coding agent: a SKILL.md
  attnkit completion SHELL  completion of tools, options and tensor names for bash, zsh or fish
  attnkit --version

Example:
  {FIRST_STEPS}
"""


def report_error(error: BaseException, place: str) -> int:
    """Write one line about an error to standard error; return its exit code."""
    if os.environ.get("ATTNKIT_DEBUG", "0") not in ("", "0"):
        import traceback

        traceback.print_exc()
    code, line = describe_error(error)
    try:
        from attnkit.cli import output
    except ImportError as other:  # it needs NumPy too
        if not is_lack_of_memory(other):
            raise
        os.write(2, f"{place}: {line}\n".encode())
        return code

    where = output.colored(getattr(error, "place", "") or place, output.RED)
    output.write_stderr(f"{where}: {shortened(escaped(line))}\n")
    return code


def describe_error(error: BaseException) -> tuple[int, str]:
    """The exit code of an error, and its message."""
    if isinstance(error, AttnkitError):
        return error.exit_code, str(error)
    if isinstance(error, OSError):
        name = "<stdout>: write error" if error.filename is None else os.fsdecode(error.filename)
        return 4, f"{name}: {error.strerror}"
    if isinstance(error, ImportError) and is_lack_of_memory(error):
        return 3, f"not enough memory to load {'NumPy' if 'numpy' in str(error) else 'a library'}"
    if isinstance(error, MemoryError):
        return 3, f"not enough memory{': ' if str(error) else ''}{error}"
    return 70, f"a bug in attnkit: {type(error).__name__}: {error} (ATTNKIT_DEBUG=1 shows where)"
