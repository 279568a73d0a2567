"""attnkit without what only Linux has: the constants and calls are taken away in a process of its own."""

import errno
import json
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from attnkit import tuning
from attnkit.formats import Sink, Source, memory, open_source, read, streams
from attnkit.interpret.comparison import compare_tensors, subtract_integers
from attnkit.records import Record
from tests.places import ROOT

STORY = ROOT / "samples" / "data" / "story"

# what macOS has no name for; os.sysconf knows the sizes of pages and no number of them, ctypes finds no mallopt
ELSEWHERE = """
import builtins, ctypes, errno, fcntl, mmap, os, select, signal, sys

def without(module, *names):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)

without(fcntl, "F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_NOTIFY", "F_ADD_SEALS", "F_OFD_SETLK")
without(mmap, *(name for name in dir(mmap) if name.startswith("MADV_")), "MAP_POPULATE")
without(os, "O_TMPFILE", "O_PATH", "O_DIRECT", "O_NOATIME", "SCHED_BATCH", "sched_getaffinity", "sched_setaffinity",
        "posix_fadvise", "posix_fallocate", "memfd_create", "pipe2", "splice", "copy_file_range", "eventfd",
        "getrandom", "getxattr", "setxattr", "listxattr", "pidfd_open", "fdatasync", "preadv2", "unshare", "setns")
without(select, "epoll", "EPOLLIN")
without(signal, "SIGPWR", "SIGSTKFLT", "SIGRTMIN", "SIGRTMAX", "SIGPOLL", "sigtimedwait", "sigwaitinfo",
        "pidfd_send_signal")
sys.platform = "darwin"

def refusing(call):
    def checked(path, *arguments, **options):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return call(path, *arguments, **options)
    return checked

def at_most(call, most):
    def checked(descriptor, buffers):
        if sum(len(one) for one in buffers) > most:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return call(descriptor, buffers)
    return checked

def sysconf(name, known=os.sysconf):
    if name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"):
        raise ValueError("unrecognized configuration name")
    return known(name)

class CDLL(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("mallopt", "malloc_trim", "prctl"):
            raise AttributeError(name)
        return super().__getattr__(name)

builtins.open, os.open, os.stat = map(refusing, (builtins.open, os.open, os.stat))
os.readv, os.sysconf, ctypes.CDLL = at_most(os.readv, (1 << 31) - 1), sysconf, CDLL

sys.argv[0] = "attnkit"
from attnkit.__main__ import main
main()
"""


@pytest.fixture
def attnkit(tmp_path):
    """Runs bash lines in which `attnkit` is the command without Linux; its standard output."""
    script = tmp_path / "elsewhere.py"
    script.write_text(ELSEWHERE)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "attnkit"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    command.chmod(0o755)
    env = os.environ | {"PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def run(line):
        done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], cwd=tmp_path, env=env, capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout

    return run


def test_stages_of_a_pipe(attnkit):
    line = (
        "attnkit {} 'The cat sat' --dim 8 | attnkit {} | attnkit {} --causal | attnkit {} --heads 2 --only x -f npy -q"
    )
    made = attnkit(line.format("embed", "posenc", "mask", "attend"))
    [record] = read(Source.of(made))
    here = f'"{sys.executable}" -m attnkit'
    same = line.replace("attnkit", here).format("embed", "posenc", "mask", "attend")
    assert made == subprocess.run(["bash", "-c", same], cwd=ROOT, capture_output=True, check=True).stdout
    assert record["x"].shape == (3, 8)


@pytest.mark.slow
def test_a_file_is_replaced_and_read_from_every_place(attnkit, tmp_path):
    (tmp_path / "x.npz").write_bytes(b"old")
    attnkit("echo '[[2,4],[6,9]]' > x.json; attnkit layernorm x.json -o x.npz && attnkit layernorm x.npz -o x.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "elsewhere.py", "x.json", "x.npz"]
    expected = attnkit("attnkit attend x.npz -f npy -q")
    for line in ("attnkit attend < x.npz -f npy -q", "cat x.npz | attnkit attend -f npy -q",
                 "attnkit attend <(cat x.npz) -f npy -q", "attnkit attend x.npz -f npy -q -o /dev/stdout",
                 "attnkit run 'attend x.npz -f npy -q'"):  # fmt: skip
        assert attnkit(line) == expected


@pytest.mark.slow
def test_a_model(attnkit):
    text = "Once upon a time"
    flags = f"decode --model {STORY} '{text}' --max-tokens 70 --emit text"  # long: the file's memory is let go
    here = f'"{sys.executable}" -m attnkit {flags}'
    expected = subprocess.run(["bash", "-c", here], cwd=ROOT, capture_output=True, check=True).stdout
    assert attnkit(f"attnkit {flags}") == expected
    shown = json.loads(attnkit(f"attnkit encode --model {STORY} '{text}' -f json"))
    assert shown["labels"]["token"][0] == "Once"


def test_attention_in_blocks_on_all_cores(attnkit):
    line = "attnkit posenc --size 700 --dim 16 | attnkit attend --causal --heads 4 --weights stats"
    assert json.loads(attnkit(line))["tensors"]["weights.entropy"]["shape"] == [4, 700]


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("AuthenticAMD", "fma avx512f avx512dq avx512cd avx512bw avx512vl", "SkylakeX"),
        ("AuthenticAMD", "fma avx512f avx512dq avx512cd avx512bw", ""),
        ("AuthenticAMD", "fma avx2", ""),
        ("GenuineIntel", "fma avx512f avx512dq avx512cd avx512bw avx512vl", ""),
    ],
)
def test_blas_computes_with_avx512_where_it_would_not_choose_so(vendor, flags, expected, tmp_path):
    first = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: 26\nflags\t\t: {flags}\n\n"
    path = tmp_path / "cpuinfo"
    path.write_text(first + "processor\t: 1\nvendor_id\t: AuthenticAMD\n" * 400)
    assert tuning.faster_loops(str(path)) == expected


def test_a_system_without_cpuinfo_leaves_the_choice_to_blas(tmp_path):
    assert tuning.faster_loops(str(tmp_path / "none")) == ""


def test_the_loops_that_a_user_names_are_kept(monkeypatch):
    monkeypatch.setattr(tuning, "faster_loops", lambda: "SkylakeX")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    tuning.tune_blas()
    assert os.environ["OPENBLAS_CORETYPE"] == "Prescott"
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    tuning.tune_blas()
    assert os.environ["OPENBLAS_CORETYPE"] == "SkylakeX"


@pytest.mark.parametrize(
    "problem", [ValueError("unrecognized configuration name"), OSError(22, "Invalid argument"), -1]
)
def test_memory_of_unknown_size_is_no_limit(problem, monkeypatch):
    def sysconf(name, known=os.sysconf):
        if name != "SC_PHYS_PAGES":
            return known(name)
        if isinstance(problem, Exception):
            raise problem
        return problem

    monkeypatch.setattr(os, "sysconf", sysconf)
    assert memory.physical_memory() == sys.maxsize


def test_no_call_reads_more_than_the_system_allows(tmp_path, monkeypatch):
    path, asked = tmp_path / "x.bin", []
    path.write_bytes(bytes(range(100)))

    def readv(descriptor, buffers, known=os.readv):
        asked.append(sum(map(len, buffers)))
        return known(descriptor, buffers)

    monkeypatch.setattr(streams, "READ_LIMIT", 30)
    monkeypatch.setattr(os, "readv", readv)
    with open_source(str(path)) as source:
        target = np.empty(100, np.uint8)
        assert source.readinto(target.data) == 100
    assert target.tolist() == list(range(100)) and max(asked) <= 30


@pytest.mark.parametrize("wide", [np.longdouble, np.float64])
@pytest.mark.parametrize(
    ("x", "y", "difference"),
    [
        (np.array([2**53]), np.array([2**53 + 1]), -1),
        (np.array([2**63 - 1]), np.array([2**63 - 3], np.uint64), 2),
        (np.array([-(2**63)]), np.array([2**63 - 1]), -(2**64)),
        (np.array([-(2**63)]), np.array([2**64 - 1], np.uint64), -(2**64) - 2**63),
        (np.array([[255]], np.uint8), np.array([[-128]], np.int8), 383),
    ],
)
def test_integers_are_subtracted_exactly_where_a_long_double_is_a_double(x, y, difference, wide, monkeypatch):
    monkeypatch.setattr(np, "longdouble", wide)
    assert subtract_integers(x, y).astype(np.float64).tolist() == np.reshape(float(difference), x.shape).tolist()
    comparison = compare_tensors(Record({"x": x}), Record({"x": y}), "x")
    assert (comparison.max_abs, comparison.differing) == (abs(float(difference)), 1)


@pytest.mark.parametrize("name", ["ä" * 100, "a" + "ä" * 100, "naïve.json", "漢" * 60, "😀" * 9, "x" * 200], ids=ascii)
def test_names_of_temporaries_are_utf8_on_a_file_system_that_takes_no_others(name, tmp_path, monkeypatch):
    made = []

    def refusing(path, flags, *mode, known=os.open):
        made.append(os.fsencode(path).decode())  # macOS refuses other names
        return known(path, flags, *mode)

    monkeypatch.setattr(os, "open", refusing)
    with Sink(str(tmp_path / name)) as sink:
        sink.write([b"whole"])
    assert [path.name for path in tmp_path.iterdir()] == [name] and len(made) == 1
    assert len(os.fsencode(Path(made[0]).name)) <= max(len(os.fsencode(name)), 32)


def test_a_file_system_without_modes_and_sync(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    path = tmp_path / "x.bin"
    path.write_bytes(b"old")
    for call in ("fchmod", "fchown", "fsync", "link"):
        monkeypatch.setattr(os, call, refuse)
    with Sink(str(path)) as sink:
        sink.write([b"new"])
    assert path.read_bytes() == b"new" and [*tmp_path.iterdir()] == [path]


def test_no_two_files_differ_by_case_or_accents_alone():
    folders = [ROOT / name for name in ("attnkit", "samples", "tests")]
    paths = [str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("*")]
    assert len({unicodedata.normalize("NFD", path).casefold() for path in paths}) == len(paths) > 300


GNU_ONLY = {
    r"\bsed +-i\b": "BSD sed takes a suffix after -i",
    r"\bgrep +-\w*P": "BSD grep has no -P",
    r"\bhead +-[nc] *-": "BSD head has no counts from the end",
    r"\b(tac|nproc|shuf|realpath|timeout|stdbuf|setsid)\b +[-\w$\"]": "not on macOS",
    r"\breadlink +-f": "not on older macOS",
    r"\bdate +(-d|--date)": "BSD date has -v",
    r"\bstat +-c": "BSD stat has -f",
    r"\bmktemp +-\w*p": "BSD mktemp has no -p",
    r"\| *cmp +[^-|&\s]+ *($|[|&;])": "BSD cmp has no default for its second file",
    r"(?<!\(\()\$\(wc ": "BSD wc pads its number: use $(($(wc …)))",
    r"\b(mapfile|readarray|coproc)\b|\bdeclare +-A|\blocal +-n|\|&|&>>": "not in bash 3.2",
    r"\$\{\w+[,^]|\{\d+\.\.\d+\.\.": "not in bash 3.2",
}


@pytest.mark.parametrize("path", [*sorted((ROOT / "samples").glob("*.sh")), ROOT / "README.md"], ids=lambda p: p.name)
def test_scripts_run_with_the_tools_and_the_bash_of_macos(path):
    text = path.read_text(encoding="utf-8")
    hits = [(hit[0], why) for wrong, why in GNU_ONLY.items() for hit in re.finditer(wrong, text, re.MULTILINE)]
    assert hits == []
