"""A workflow of GitHub run here: the steps of its job one by one, an action of the repository with its inputs.

    python -m tests.actions FOLDER WORKFLOW.yml

FOLDER is a repository, so that `actions/checkout` does nothing. The actions of attnkit are those of this clone. The
summary of the job is written to FOLDER/summary.md.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.places import ROOT

CHECKOUT = "actions/checkout"
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c")  # as `shell: bash` runs a step


def load(text):
    """YAML of block mappings, lists, scalars and literal texts, which workflows are written in.

    >>> load("a:\\n  - b: 1\\n    c: |\\n      x\\n       y\\n  - 'd'\\ne: [f, g]\\n")
    {'a': [{'b': '1', 'c': 'x\\n y\\n'}, 'd'], 'e': ['f', 'g']}
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    value, rest = block(lines, 0)
    assert not rest, rest
    return value


def block(lines, indent):
    """The value of the lines that are indented at least so far, and the lines after it."""
    found = None
    while lines and depth(lines[0]) >= indent:
        line, lines = lines[0], lines[1:]
        at = depth(line)
        if line.lstrip().startswith("- "):
            found = [] if found is None else found
            inner = " " * (at + 2) + line.lstrip()[2:]
            is_mapping = re.match(r"[\w-]+:( |$)", inner.lstrip())
            value, lines = block([inner, *lines], at + 2) if is_mapping else (scalar(inner.strip()), lines)
            found.append(value)
            continue
        found = {} if found is None else found
        name, _, text = line.strip().partition(":")
        if text.strip() == "|":
            inner = lines[: end_of(lines, at + 1)]
            found[name] = "".join(f"{one[depth(inner[0]) :]}\n" for one in inner)
            lines = lines[len(inner) :]
        elif text.strip():
            found[name] = scalar(text.strip())
        else:
            is_list = lines and lines[0].lstrip().startswith("- ")
            found[name], lines = block(lines, at + (0 if is_list and depth(lines[0]) == at else 1))
    return found, lines


def end_of(lines, indent):
    return next((at for at, line in enumerate(lines) if depth(line) < indent), len(lines))


def depth(line):
    return len(line) - len(line.lstrip(" "))


def scalar(text):
    if text.startswith("[") and text.endswith("]"):
        return [scalar(one.strip()) for one in text[1:-1].split(",")]
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


def expand(text, inputs):
    """A text with the inputs of an action in place of its expressions."""
    return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: inputs[found[1]], text)


def is_wanted(step, inputs):
    """Whether the condition of a step holds, which compares an input with a text."""
    found = re.fullmatch(r"inputs\.(\w+) != '(.*)'", step.get("if", "inputs.any != ''"))
    return inputs.get(found[1], "any") != found[2]


def run_step(step, folder, inputs, environment):
    """Run a step; return its exit code and what it prints."""
    if step.get("uses", "").partition("@")[0] == CHECKOUT or not is_wanted(step, inputs):
        return 0, ""
    if "uses" in step:
        path = ROOT / step["uses"].partition("@")[0].removeprefix("attnkit/attnkit/")
        action = load((path / "action.yml").read_text(encoding="utf-8"))
        assert action["runs"]["using"] == "composite"
        given = {name: one.get("default", "") for name, one in action["inputs"].items()} | step.get("with", {})
        return run_steps(action["runs"]["steps"], folder, given, environment | {"GITHUB_ACTION_PATH": str(path)})
    own = {name: expand(text, inputs) for name, text in step.get("env", {}).items()}
    done = subprocess.run(
        [*BASH, expand(step["run"], inputs)],
        cwd=folder,
        env=environment | own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def run_steps(steps, folder, inputs, environment):
    """Run steps up to the first that fails."""
    printed = []
    for step in steps:
        code, text = run_step(step, folder, inputs, environment)
        printed.append(text)
        if code:
            return code, "".join(printed)
    return 0, "".join(printed)


def run_workflow(text, folder, environment):
    """Run the only job of a workflow in a folder; return its exit code, what it prints, and its summary."""
    [job] = load(text)["jobs"].values()
    summary = folder / "summary.md"
    summary.write_text("")
    settings = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    code, printed = run_steps(job["steps"], folder, {}, environment | settings)
    return code, printed, summary.read_text(encoding="utf-8")


if __name__ == "__main__":
    folder, workflow = map(Path, sys.argv[1:])
    code, printed, summary = run_workflow(workflow.read_text(encoding="utf-8"), folder, dict(os.environ))
    print(printed, summary, sep="\n")
    sys.exit(code)
