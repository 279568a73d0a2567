"""Golden cases: tests/golden/TOOL/CASE/ has a command line, and what it writes.

cmd    lines as a user types them: stages joined by |, `< FILE` before the first and `> FILE` after the last;
       the stages are attnkit's tools, echo, printf (with escapes alone) and cat. A line that fails is the last.
out    what all lines write to standard output; tensors, pictures and long texts in short
err    what they write to standard error, where that is something
code   the exit code, where it is not 0

A case runs in a folder of its own with links to samples/data (data), the reference models (models) and
tests/golden/inputs (inputs). `ATTNKIT_GOLDEN=update pytest tests/test_golden.py` writes what the cases give now,
to be reviewed as a diff. Numbers are compared with a tolerance, relative to the largest of their tensor or column,
so that another processor may round otherwise; `ATTNKIT_GOLDEN=exact` compares everything, and the SHA-256 of what is
given in short.
"""

import codecs
import hashlib
import html
import io
import itertools
import json
import os
import re
import shlex
import zipfile
from pathlib import Path

import numpy as np
import pytest

import attnkit
from tests import process
from tests.rounding import difference

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
LINKS = {
    "data": TESTS.parent / "samples" / "data",
    "models": TESTS / "references" / "models",
    "inputs": GOLDEN / "inputs",
}
CASES = sorted(path.parent for path in GOLDEN.glob("*/*/cmd"))
MODE = os.environ.get("ATTNKIT_GOLDEN", "")
LONG_JSON, LONG_TEXT = 4_000, 12_000  # bytes of a text that is given in full
OWN = ("ATTNKIT_", "COLUMNS", "FORCE_COLOR", "NO_COLOR", "PYTHON", "TERM", "LC_", "LANG")
SETTINGS = {"COLUMNS": "100", "NO_COLOR": "1"}


def environment():
    """The environment of a case: no settings of a user's own."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OWN)} | SETTINGS | process.SETTINGS


@pytest.fixture
def folder(tmp_path):
    """An empty folder with links to the inputs, and beside it one for what passes between stages."""
    (tmp_path / "work").mkdir()
    for name, target in LINKS.items():
        (tmp_path / "work" / name).symlink_to(target)
    return tmp_path / "work"


# Running a case


def words(line):
    """The words of a line, with None for a |.

    >>> words("echo '[[1|2]]' | attnkit show > a.txt")
    ['echo', '[[1|2]]', None, 'attnkit', 'show', '>', 'a.txt']
    """
    return [None if word == "|" else word for word in shlex.split(line)]


def stages(line):
    """The stages of a line, the file its first reads and the file its last writes (None where it has none)."""
    parts = [list(part) for is_bar, part in itertools.groupby(words(line), lambda word: word is None) if not is_bar]
    files = {"<": None, ">": None}
    for part in parts:
        for sign in files:
            if sign in part:
                at = part.index(sign)
                files[sign] = part[at + 1]
                del part[at : at + 2]
    return parts, files["<"], files[">"]


def builtin(stage, folder, stdin):
    """What echo, printf or cat writes."""
    name, *given = stage
    if name == "echo":
        return (" ".join(given) + "\n").encode()
    if name == "printf":
        return codecs.escape_decode(given[0].encode())[0]
    assert name == "cat", f"no {name} in a golden case"
    return b"".join((folder / path).read_bytes() for path in given) if given else stdin.read_bytes()


def run_line(line, folder, number):
    """(exit code, standard output, standard error) of one line; the code is that of the last stage that fails."""
    parts, source, target = stages(line)
    between = folder.parent
    stdin, errors, code = folder / source if source else Path(os.devnull), between / f"{number}.err", 0
    errors.touch()
    for at, stage in enumerate(parts):
        stdout = between / f"{number}.{at}"
        if stage[0] == "attnkit":
            with stdin.open("rb") as given, stdout.open("wb") as out, errors.open("ab") as err:
                code = process.call(stage[1:], folder, environment(), given, out, err) or code
        else:
            stdout.write_bytes(builtin(stage, folder, stdin))
        stdin = stdout
    out = stdin.read_bytes()
    if target:
        (folder / target).write_bytes(out)
    return code, b"" if target else out, errors.read_bytes()


def run_case(case, folder):
    """What a case writes: {"out", "err", "code"} as texts, "" for what its folder does not hold."""
    out, err, code = "", "", 0
    for number, line in enumerate((case / "cmd").read_text(encoding="utf-8").splitlines()):
        if not line or line.startswith("#"):
            continue
        code, stdout, stderr = run_line(line, folder, number)
        out += rendered(stdout, folder)
        err += normalized(stderr.decode("utf-8", "backslashreplace"), folder)
        if code:
            break
    return {"out": out, "err": err, "code": f"{code}\n" if code else ""}


# Results in short


def normalized(text, folder):
    """Text without what changes from run to run or from version to version."""
    text = text.replace(f"{folder}/", "").replace(str(folder), ".")
    text = re.sub(r"\b[0-9a-f]{64}\b", "<sha256>", text)
    text = re.sub(r"\b[0-9a-f]{12}…", "<sha256>…", text)
    return re.sub(rf"(attnkit |version\W+){re.escape(attnkit.__version__)}", r"\1<version>", text)


def rendered(data, folder):
    """Bytes as text: tensors, pictures and what is long in short, with the SHA-256 of all."""
    brief = None
    if data.startswith(b"\x93NUMPY"):
        brief = [described("npy", {"x": array}, {}) for array in npy_arrays(data)]
    elif data.startswith(b"PK\x03\x04"):
        brief = [described("npz", *npz_arrays(data))]
    elif data[8:9] == b"{" and len(data) > 16 and int.from_bytes(data[:8], "little") < len(data):
        brief = [described("safetensors", *safetensors_arrays(data))]
    elif data.startswith((b'{"tensors"', b'{"axes"')) and len(data) > LONG_JSON:
        brief = [described("json", *one) for one in json_records(data)]
    elif data.lstrip().startswith((b"<svg", b"<!DOCTYPE", b"<?xml", b"<html")):
        brief = [visible(data.decode())]
    elif len(data) > LONG_TEXT:
        brief = [data.decode()[: LONG_TEXT // 3], "\n…\n"]
    if brief is None:
        return normalized(data.decode("utf-8", "backslashreplace"), folder)
    return normalized("".join(brief), folder) + f"sha256 {hashlib.sha256(data).hexdigest()} of {len(data)} bytes\n"


def npy_arrays(data):
    """The arrays of a stream of NPY."""
    stream = io.BytesIO(data)
    while stream.tell() < len(data):
        yield np.load(stream, allow_pickle=False)


def npz_arrays(data):
    """The arrays of an NPZ, and what its member meta.json says."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(members.pop("meta.json", b"{}"))
    return {name.removesuffix(".npy"): next(npy_arrays(content)) for name, content in members.items()}, about


def safetensors_arrays(data):
    """The arrays of a safetensors file, and what its metadata say."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    about = json.loads(header.pop("__metadata__", {}).get("attnkit", "{}"))
    dtypes = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<V2", "BOOL": "?"}
    arrays = {}
    for name, one in header.items():
        dtype = np.dtype(dtypes.get(one["dtype"]) or f"<{one['dtype'][0].lower()}{int(one['dtype'][1:]) // 8}")
        first, last = one["data_offsets"]
        arrays[name] = np.frombuffer(data[start + first : start + last], dtype).reshape(one["shape"])
    return arrays, about


def json_records(data):
    """The records of a stream of JSON: arrays, and what stands beside them."""
    text, decoder, at = data.decode(), json.JSONDecoder(), 0
    while at < len(text):
        record, at = decoder.raw_decode(text, at)
        at += len(text[at:]) - len(text[at:].lstrip())
        arrays, axes = {}, {}
        for name, one in record["tensors"].items():
            dtype = "float32" if one["dtype"] == "bfloat16" else one["dtype"]
            arrays[name] = np.array(flat(one["data"]), dtype).reshape(one["shape"])
            axes[name] = one.get("axes", [])
        yield arrays, record | {"axes": axes}


def flat(value):
    """The numbers in nested lists; NaN and infinity are words there."""
    if isinstance(value, list):
        return [number for one in value for number in flat(one)]
    return [float(value) if isinstance(value, str) else value]


def described(form, arrays, about):
    """A record in short: a line for each tensor, its labels, its history."""
    axes = about.get("axes", {})
    lines = [f"{form} record"]
    lines += [f"  {name} {figures(array, axes.get(name, []))}" for name, array in arrays.items()]
    for axis, labels in about.get("labels", {}).items():
        lines.append(f"  labels of {axis}: {len(labels)}: {json.dumps(labels[:8], ensure_ascii=False)}")
    for entry in about.get("history", []):
        files = "".join(f"; reads {name}" for name in entry.get("files", {}))
        beside = f"; beside {entry['beside']}" if entry.get("beside") else ""
        lines.append(f"  history: {entry['command']}{files}{beside}")
    return "\n".join(lines) + "\n"


def figures(array, axes):
    """A tensor in short: dtype, shape, axes, the first numbers, and sums in which every number and place counts.

    dot is the sum of x[i] · cos(i), over that of |x[i]|: the same to 5 places on every processor.
    """
    dtype = "bfloat16" if array.dtype == np.dtype("V2") else str(array.dtype)
    place = f"{dtype} {array.shape} [{', '.join(axes)}]"
    if array.dtype.kind not in "fiubV":
        return f"{place} {array.tolist()}"
    if array.dtype == np.dtype("V2"):
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    numbers = array.astype(np.float64).ravel()
    finite = np.where(np.isfinite(numbers), numbers, 0)
    total = np.abs(finite).sum()
    dot = float(finite @ np.cos(np.arange(finite.size)) / total) if total else 0.0
    counts = {"nan": np.isnan(numbers).sum(), "inf": np.isinf(numbers).sum()}
    odd = [f"{name} {count}" for name, count in counts.items() if count]
    first = " ".join(f"{number:.6g}" for number in numbers[:3])
    most = np.abs(finite).max(initial=0)
    return " ".join([place, f"abs-sum {total:.6g} abs-max {most:.6g} dot {dot:.5f}", *odd, f"first {first}"])


def visible(markup):
    """The text of a picture or a page, a line for each piece."""
    text = re.sub(r"<(style|script|defs)\b.*?</\1>", "", markup, flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]*>", "\n", text)).replace("\xa0", " ")
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    pieces = [line for line, _ in itertools.groupby(lines)]
    kind = "svg" if "<svg" in markup else "html"
    return f"{kind} with the text\n" + "".join(f"  {line}\n" for line in pieces[:150]) + "  …\n" * (len(pieces) > 150)


# Comparing


def update(case, found):
    """Write what a case gives into its folder."""
    for name, text in found.items():
        if text or name == "out":
            (case / name).write_text(text, encoding="utf-8")
        else:
            (case / name).unlink(missing_ok=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}/{case.name}")
def test_a_golden_case(case, folder):
    found = run_case(case, folder)
    if MODE == "update":
        update(case, found)
    expected = {name: (case / name).read_text(encoding="utf-8") if (case / name).exists() else "" for name in found}
    problems = "".join(difference(expected[name], found[name], name, MODE == "exact") for name in found)
    if problems:
        pytest.fail(f"{(case / 'cmd').read_text(encoding='utf-8')}\n{problems}", pytrace=False)


# What the cases cover


def printed(folder, *argv):
    """What a command line writes to standard output."""
    done = process.run(*argv, cwd=folder, env=SETTINGS)
    assert (done.code, done.err) == (0, "")
    return done.out.decode()


def tools(folder):
    """The names of the tools, as attnkit lists them."""
    listed = printed(folder).split("\n\n")[2]
    return re.findall(r"^  (\w+) {2,}", listed, re.MULTILINE)


def flags(folder, tool):
    """Long flags of a tool, by every way to write them."""
    found, options = {}, printed(folder, tool, "--help").partition("\nOptions:\n")[2]
    for short, long in re.findall(r"^  (?:(-\w), )?(--[\w-]+)", options, re.MULTILINE):
        found |= {long: long} | ({short: long} if short else {})
    return found


def used():
    """{(tool, flag)} of all cases that give a result; of diff also where it finds a difference."""
    found = set()
    for case in CASES:
        if (case / "code").exists() and case.parent.name != "diff":
            continue
        for line in (case / "cmd").read_text(encoding="utf-8").splitlines():
            for stage in stages(line)[0] if line else []:
                if stage[0] == "attnkit" and len(stage) > 1:
                    found |= {(stage[1], word.split("=")[0]) for word in stage[2:]}
    return found


def test_every_tool_and_every_flag_is_in_a_golden_case(folder):
    found = used()
    names = tools(folder)
    assert len(names) >= 14
    missing = []
    for tool in names:
        spellings = flags(folder, tool)
        seen = {spellings.get(flag) for name, flag in found if name == tool}
        missing += [f"{tool} {flag}" for flag in sorted(set(spellings.values()) - seen)]
    assert not missing, ", ".join(missing)


def test_the_folders_are_the_tools_and_hold_no_paths(folder):
    assert {case.parent.name for case in CASES} == {*tools(folder), "attnkit", "help"}
    for case in CASES:
        for path in case.iterdir():
            assert path.name in ("cmd", "out", "err", "code"), path
            assert not re.search(r"/(tmp|home|work|root)/", path.read_text(encoding="utf-8")), path
