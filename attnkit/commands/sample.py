"""attnkit sample: the samples of attnkit, short scripts of one idea each."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from attnkit import display
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.options import OF_TENSORS
from attnkit.cli.output import list_text
from attnkit.cli.text_input import name_reader
from attnkit.errors import DataError, FileError, UsageError, suggest
from attnkit.help.samples import list_samples, sample_scripts, samples_folder

PROGRAMS = ("bash", "jq")  # what the scripts start besides attnkit and python3
USED = re.compile(r"\bdata/[\w.-]*\w|\b\w+\.attnkit\b")  # the files beside a script that it names


@tool(
    operand="[NAME]",
    reader=name_reader("sample", ("script",)),
    rules=Constraints(exclusive=[("copy", "script")]),
    needs_no_input=lambda parameters: True,
    gives=lambda stage: "text" if stage.operands or stage.parameters["copy"] else "report",
    without=OF_TENSORS,
)
def sample(
    name: str,
    *,
    script: Annotated[bool, typer.Option(help="print the script instead of running it")] = False,
    copy: Annotated[bool, typer.Option(help="copy the script and its data to the current folder")] = False,
) -> str:
    """Run a sample, a short script of one idea; without a name, list the samples.

    NAME is the name of a sample, its number, or the part of its name that no other sample has. A sample leaves no
    files. Samples need bash, and some of them jq. Without a name, --copy makes the folder samples, with the data and
    the models that the pages of attnkit help read. The list is a table on a terminal, and on a pipe a line for each
    sample: name, chapter and idea, separated by tabs; -f json writes it as JSON.

    \b
    Example:
      attnkit sample the-cat-sat
    """
    if not name and copy:
        return copy_all(Path())
    if not name:
        rows = list_samples()
        lines = [(row["chapter"], row["name"], row["idea"]) for row in rows]
        table = display.TextTable(("chapter", "sample", "idea"), lines)
        return list_text("samples", rows, table)
    path = find_sample(name)
    if copy:
        return copy_sample(path, Path())
    return path.read_text(encoding="utf-8").removesuffix("\n") if script else run_sample(path)


def find_sample(name: str) -> Path:
    scripts = {path.stem: path for path in sample_scripts()}
    stem = name.removesuffix(".sh")
    named = [one for one in scripts if stem in (one, one[3:], one[:2], one[:2].lstrip("0"))]
    named = named or [one for one in scripts if stem and stem in one]
    if len(named) > 1:
        raise UsageError(f"{name!r} is in the names of {len(named)} samples: {', '.join(named)}")
    if not named:
        meant = suggest(name, [*scripts, *(one[3:] for one in scripts)])
        raise UsageError(f"no sample {name!r}{meant or '; attnkit sample lists them'}")
    return scripts[named[0]]


def run_sample(path: Path) -> str:
    """Run a script with this attnkit first on the PATH; return what it prints.

    UsageError if a program that it needs is missing; DataError if it fails.
    """
    for program in PROGRAMS:
        if re.search(rf"\b{program}\b", path.read_text(encoding="utf-8")) and not shutil.which(program):
            raise UsageError(f"needs {program}, which is not installed", path.stem)
    search = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    done = subprocess.run(
        ["bash", str(path)],
        env=os.environ | {"PATH": search},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    if done.returncode:
        raise DataError(f"it ended with exit code {done.returncode}", path.stem)
    return done.stdout.removesuffix("\n")


def copy_all(target: Path) -> str:
    """Copy all samples with their data to a new folder `samples` in a folder."""
    sample_scripts()
    if (target / "samples").exists():
        raise FileError("it exists already; nothing was copied", "samples")
    try:
        shutil.copytree(samples_folder(), target / "samples")
    except OSError as error:
        raise FileError(error.strerror or str(error), str(error.filename or target)) from None
    return "samples"


def copy_sample(path: Path, target: Path) -> str:
    """Copy a script, and the files beside it that it names, to a folder."""
    used = sorted(set(USED.findall(path.read_text(encoding="utf-8"))))
    names = [path.name, *(name for name in used if (path.parent / name).exists())]
    for name in names:
        if (target / name).exists():
            raise FileError("it exists already; nothing was copied", name)
    try:
        for name in names:
            source, copied = path.parent / name, target / name
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, copied) if source.is_dir() else shutil.copy(source, copied)
    except OSError as error:
        raise FileError(error.strerror or str(error), str(error.filename or target)) from None
    return "\n".join(names)
