# ruff: noqa: E501 - a case of a table is a line
"""Files, pipes and signals: what was there stays whole, what is delivered is complete, and nothing is left behind."""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import pty
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from unittest import mock

import pytest

from attnkit.errors import FileError
from attnkit.formats import atomic, mapped
from tests import process

pytestmark = pytest.mark.slow

STORY = pathlib.Path(__file__).parents[2] / "samples" / "data" / "story"
DOCUMENT = b"[[1,2],[3,4]]"


class Run(NamedTuple):
    """How a process ended."""

    code: int
    out: bytes
    err: str


def unprivileged(call, *arguments):
    """Call a function in a thread that has no right to override file modes, so that they hold for root too."""

    def give_up():
        if hasattr(library := ctypes.CDLL(None), "capset"):
            version, held = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
            library.capget(version, held)
            for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
                library.prctl(24, capability)  # PR_CAPBSET_DROP: of what a program of root gets when it starts
                for kind in (0, 1):  # effective, permitted
                    held[kind] &= ~(1 << capability)
            assert library.capset(version, held) == 0

    with ThreadPoolExecutor(1, initializer=give_up) as threads:
        return threads.submit(call, *arguments).result()


@pytest.fixture
def folder(attnkit):
    """The test's folder with what can be wrong with a name in it."""
    folder = attnkit.folder
    (folder / "loop").symlink_to("loop")
    (folder / "directory").mkdir()
    (folder / "locked").mkdir(mode=0o555)
    attnkit.file("secret", DOCUMENT)
    (folder / "secret").chmod(0)
    attnkit.file("readonly.json", b"old")
    (folder / "readonly.json").chmod(0o444)
    os.mkfifo(folder / "fifo")
    yield folder
    (folder / "locked").chmod(0o755)


def until(condition, seconds=120):
    """Wait for a condition to hold."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.002)
    return found


# I1
INPUTS = {
    "missing": "No such file or directory",
    "missing/below": "No such file or directory",
    "good.json/below": "Not a directory",
    "secret": "Permission denied",
    ".": "Is a directory",
    "loop": "Too many levels of symbolic links",
    "n" * 300: "File name too long",
    "": "No such file or directory",
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "reason"), INPUTS.items())
def test_input_that_cannot_be_opened(attnkit, refused, folder, name, reason):
    for line in (["layernorm", name], ["attend", "good.json", "--mask", name]):
        run = unprivileged(attnkit, *line)
        refused(run, 4, f"{line[0]}: {name}{': ' if name else ''}{reason}")


def test_a_name_with_nul(attnkit, main, refused):
    refused(main("layernorm", "a\0b"), 4, "layernorm: a\\x00b: ", "null byte")


# I2
@pytest.mark.parametrize("line", ["layernorm", "attend --causal", "show", "run layernorm", "embed --dim 2"])
def test_a_terminal_is_no_input(attnkit, refused, line):
    master, terminal = pty.openpty()
    try:
        run = attnkit(*line.split(), stdin=terminal)
    finally:
        os.close(master), os.close(terminal)
    refused(run, 2, line.split()[-1] + ": " if "run" in line else line.split()[0] + ": ", "terminal")


# I3, I5, I7, I8, I22: a shell line each
STREAMS = {
    "attnkit layernorm <&-": (4, "layernorm: <stdin>: not open"),
    "attnkit embed --dim 2 <&-": (4, "embed: <stdin>: not open"),
    "attnkit layernorm - <&- >&-": (4, "layernorm: <stdin>: not open"),
    "attnkit layernorm good.json >&-": (4, "layernorm: <stdout>: write error: Bad file descriptor"),
    "attnkit show good.json >&-": (4, "show: <stdout>: write error: Bad file descriptor"),
    "attnkit layernorm good.json <&- >&-": (4, "layernorm: <stdout>: write error: Bad file descriptor"),
    "attnkit --help >&-": (4, "<stdout>: write error: Bad file descriptor"),
    "attnkit --version >&-": (4, "<stdout>: write error: Bad file descriptor"),
    "attnkit attend --help >&-": (4, "attend: <stdout>: write error: Bad file descriptor"),
    "attnkit layernorm good.json >/dev/full": (4, "layernorm: <stdout>: write error: No space left on device"),
    "attnkit show good.json >/dev/full": (4, "show: <stdout>: write error: No space left on device"),
    "attnkit posenc --size 2000 --dim 2000 -f npy >/dev/full": (4, "posenc: <stdout>: write error: No space left on device"),
    "attnkit posenc --size 2 --dim 2 -f npz -o /dev/full": (4, "posenc: /dev/full: write error: No space left on device"),
    "attnkit --help >/dev/full": (4, "<stdout>: write error: No space left on device"),
    "attnkit attend --help >/dev/full": (4, "attend: <stdout>: write error: No space left on device"),
    "false | attnkit layernorm": (3, "layernorm: <stdin>: empty input (expected NPY, NPZ, JSON, safetensors or CSV) (did the command before it fail?)"),
    "attnkit layernorm </dev/null": (3, "layernorm: <stdin>: empty input (expected NPY, NPZ, JSON, safetensors or CSV)\n"),
    "false | attnkit embed --dim 2": (3, "embed: <stdin>: empty input (expected text) (did the command before it fail?)"),
    "attnkit layernorm <(false)": (3, "layernorm: /dev/fd/63: empty input (expected NPY, NPZ, JSON, safetensors or CSV) (did"),
    "attnkit attend - --mask -": (2, "attend: only one operand can be '-'"),
    "attnkit attend --mask -": (2, "attend: only one operand can be '-'"),
    "attnkit attend --query - --key - --value good.json": (2, "attend: only one operand can be '-'"),
    "attnkit diff - -": (2, "diff: only one operand can be '-'"),
    "attnkit run 'layernorm | attend --mask -' < good.json": (2, "attend: only one operand can be '-'"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("line", STREAMS)
def test_streams(attnkit, refused, line):
    code, problem = STREAMS[line]
    for unbuffered in ("", "1") if "full" in line else ("",):
        refused(attnkit.shell(line, env={"PYTHONUNBUFFERED": unbuffered}), code, problem)


def test_all_three_streams_closed(attnkit):
    assert attnkit.shell("attnkit layernorm good.json -o out.json <&- >&- 2>&-").code == 0
    assert attnkit.shell("attnkit layernorm missing <&- >&- 2>&-").code == 4
    assert (attnkit.folder / "out.json").read_bytes().startswith(b'{"tensors"')


# I6
@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "attnkit layernorm good.json",
        "attnkit show good.json",
        "attnkit attend --help",
        "attnkit posenc --size 4000 --dim 4000 -f npy",
        "attnkit posenc --size 1000 --dim 1000 -f json",
        "yes '[[1,2]]' | attnkit layernorm",
    ],
)
@pytest.mark.parametrize("reader", ["head -c1", "true"])
def test_a_reader_that_goes_away(attnkit, line, reader):
    # the reader of `true` is gone before the first byte: it reads from a FIFO that is opened only then
    gone = "sleep 0.05; " if reader == "true" else ""
    run = attnkit.shell(f"{line} | ({gone}{reader}); exit ${{PIPESTATUS[-2]}}")
    assert run.err == ""
    assert attnkit.temporaries() == []
    assert run.code == 141 or (run.code == 0 and "size" not in line and "yes" not in line)


def test_a_reader_that_has_gone(attnkit):
    reader, writer = os.pipe()
    os.close(reader)
    for line in (["layernorm", "good.json"], ["--help"], ["attend", "--help"]):
        assert attnkit(*line, stdout=writer).code == -signal.SIGPIPE
    run = attnkit("peek", "good.json", "-o", attnkit.file("old.json", b"old"), stderr=writer)
    os.close(writer)
    assert run.code == -signal.SIGPIPE
    assert (attnkit.folder / "old.json").read_bytes() == b"old"
    assert attnkit.temporaries() == []


# I10, I11
OUTPUTS = {
    "directory": "Is a directory",
    "directory/": "Is a directory",
    "new/": "Is a directory",
    "missing/out.npy": "No such file or directory",
    "good.json/out.npy": "Not a directory",
    "locked/out.npy": "Permission denied",
    "readonly.json": "Permission denied",
    "loop": "Too many levels of symbolic links",
    "n" * 300: "File name too long",
    "": "No such file or directory",
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "reason"), OUTPUTS.items())
def test_output_that_cannot_be_written(attnkit, refused, folder, name, reason):
    before = sorted(folder.rglob("*"))
    run = unprivileged(attnkit, "layernorm", "good.json", "-f", "npy", "-o", name)
    refused(run, 4, f"layernorm: cannot write {name or repr(name)}: {reason}")
    assert sorted(folder.rglob("*")) == before
    assert (folder / "readonly.json").read_bytes() == b"old"


@pytest.mark.parametrize("size", [100, 5000])
def test_a_disk_that_is_full(attnkit, refused, size):
    limits = {resource.RLIMIT_FSIZE: 1000 if size == 100 else 1 << 20}
    old = attnkit.file("old.npy", b"old")
    run = attnkit("posenc", "--size", str(size), "--dim", "100", "-o", old, limits=limits)
    refused(run, 4, "posenc: old.npy: write error: File too large")
    assert (attnkit.folder / old).read_bytes() == b"old"


def test_a_table_and_a_pipeline_that_fail_late_leave_the_old_file(attnkit, refused):
    old = attnkit.file("old.json", b"old")
    stream = b"[[1,2]]" * 50 + b"[[1,2,3,4]]"
    line = ["run", "attend --seed 1 | ffn --params p.npz", "-o", old]
    attnkit.shell("attnkit show good.json -f npz -o g.npz")
    refused(attnkit("attend", "--mask", "g.npz", "-o", old, stdin=stream), 3, "attend: ")
    refused(attnkit(*line, stdin=stream), 4, "ffn: p.npz: No such file or directory")
    assert (attnkit.folder / old).read_bytes() == b"old"


# I12
def test_mode_and_umask(attnkit):
    os.chmod(attnkit.folder / attnkit.file("old.json", b"old"), 0o604)
    (attnkit.folder / "link.json").symlink_to("old.json")
    for name in ("new.json", "old.json", "link.json"):
        assert attnkit("layernorm", "good.json", "-o", name, umask=0o027).code == 0
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in attnkit.folder.glob("*.json")}
    assert (modes["new.json"], modes["old.json"]) == (0o640, 0o604)
    assert (attnkit.folder / "link.json").is_symlink()
    assert (attnkit.folder / "old.json").read_bytes() == (attnkit.folder / "new.json").read_bytes()


def test_a_name_as_long_as_names_can_be(attnkit):
    assert attnkit("layernorm", "good.json", "-f", "json", "-o", "n" * 255).code == 0
    assert attnkit("layernorm", "n" * 255).code == 0


# I14, I15, I17: one result by every way in and out
WAYS = (
    "attnkit layernorm {in}",
    "attnkit layernorm < {in}",
    "attnkit layernorm - < {in}",
    "attnkit layernorm /dev/stdin < {in}",
    "cat {in} | attnkit layernorm",
    "cat {in} | attnkit layernorm /dev/stdin",
    "attnkit layernorm <(cat {in})",
    "attnkit layernorm /dev/fd/7 7< {in}",
    "attnkit layernorm fifo & cat {in} > fifo; wait",
    "attnkit layernorm {in} -o -",
    "attnkit layernorm {in} -o /dev/stdout",
    "attnkit layernorm {in} -o /dev/stdout | cat",
    "attnkit layernorm {in} -o /dev/fd/7 7>&1",
    "cat fifo & attnkit layernorm {in} -o fifo; wait",
    "attnkit layernorm {in} -o out{suffix}; cat out{suffix}",
    "cp {in} same{suffix}; attnkit layernorm same{suffix} -o same{suffix}; cat same{suffix}",
    "attnkit layernorm {in} -o /dev/null; attnkit layernorm {in}",
    "attnkit layernorm {in} > out; cat out",
    "printf x > out; attnkit layernorm {in} >> out; tail -c +2 out",
    "{ printf x; attnkit layernorm {in} -o /dev/stdout; } > out; tail -c +2 out",
    "attnkit run layernorm < {in}",
    "attnkit run 'layernorm {in}'",
    "attnkit peek {in} 2>/dev/null | attnkit layernorm",
)


@pytest.fixture(scope="module")
def normalized(process, tmp_path_factory):
    """Streams of two records by their suffix, and what layernorm makes of each."""
    attnkit = process(tmp_path_factory.mktemp("normalized"))
    array = attnkit("show", "good.json", "-f", "npy").out
    inputs = {".npy": array * 2, ".jsonl": DOCUMENT + b"\n" + DOCUMENT}
    return {suffix: (stream, attnkit("layernorm", stdin=stream).out) for suffix, stream in inputs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_and_out(attnkit, folder, normalized, way):
    for suffix, (stream, expected) in normalized.items():
        name = attnkit.file("in" + suffix, stream)
        line = way.replace("{in}", name).replace("{suffix}", suffix)
        run = attnkit.shell(line, env={"PYTHONUNBUFFERED": "1" if suffix == ".npy" else ""})
        assert (run.code, run.err) == (0, "")
        assert without_history(run.out) == without_history(expected) != [b""]
        assert attnkit.temporaries() == []


def without_history(out):
    """JSON lines up to their history, which names the input."""
    return [line.split(b'"history"')[0] for line in out.split(b"\n")]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_slow_writers_and_short_writes(attnkit, unbuffered):
    # three arrays byte by byte, stopped and continued meanwhile, into a pipe that is emptied late
    content = attnkit("show", "-f", "npy", stdin=DOCUMENT).out * 3
    reader, writer = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    child = attnkit.start(
        "attnkit", "show", "-f", "npy", stdin=subprocess.PIPE, stdout=writer, env={"PYTHONUNBUFFERED": unbuffered}
    )
    os.close(writer)
    for at in range(len(content)):
        os.write(child.stdin.fileno(), content[at : at + 1])
        if at % 100 == 0:
            child.send_signal(signal.SIGSTOP), child.send_signal(signal.SIGCONT)
    child.stdin.close()
    with open(reader, "rb") as out:
        assert out.read() == content
    assert child.wait() == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_large_result_through_a_slow_pipe_is_whole(attnkit, unbuffered):
    line = "attnkit posenc --size 1000 --dim 1000 -f npy"
    run = attnkit.shell(f"{line} | (sleep 0.3; cat)", env={"PYTHONUNBUFFERED": unbuffered})
    assert run == attnkit(*line.split()[1:])
    assert len(run.out) > 4_000_000


# I16
@pytest.mark.slow
def test_writers_and_readers_of_one_path(attnkit):
    whole = {attnkit("posenc", "--size", "300", "--dim", str(dim), "-f", "npy").out for dim in (200, 300)}
    path = attnkit.folder / "out.npy"
    path.write_bytes(next(iter(whole)))
    line = "for i in 1 2 3; do attnkit posenc --size 300 --dim %d -o out.npy || exit; done"
    writers = [attnkit.start("sh", "-c", line % dim) for dim in (200, 300)]
    while any(writer.poll() is None for writer in writers):
        assert path.read_bytes() in whole
    assert [writer.returncode for writer in writers] == [0, 0]
    assert path.read_bytes() in whole
    assert attnkit.temporaries() == []


# I19, I20
SIGNALS = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "HUP": signal.SIGHUP}


@contextlib.contextmanager
def held(attnkit, *more, **options):
    """A process onto an old file that has read half of its input, and waits for the rest."""
    attnkit.file("old.json", b"old")
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with attnkit.start("attnkit", "layernorm", *more, "-o", "old.json", **pipes, **options) as child:
        try:
            child.stdin.write(DOCUMENT + b"[[1,")
            child.stdin.flush()
            until(attnkit.temporaries)
            yield child
        finally:
            child.kill()


def ended(attnkit, child, number):
    """Check that a process has died of a signal, quietly and cleanly."""
    out, err = child.communicate()
    assert (child.returncode, out) == (-number, b"")
    assert err in (b"", b"\n")
    assert (attnkit.folder / "old.json").read_bytes() == b"old"


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS.values(), ids=SIGNALS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_while_reading(attnkit, number, times):
    with held(attnkit) as child:
        for _ in range(times):
            child.send_signal(number)
        ended(attnkit, child, number)
    assert attnkit.temporaries() == []


LONG = ("run", "-q", "posenc --size 1200 --dim 1000 | layernorm | attend")


@pytest.fixture(scope="module")
def whole(process, tmp_path_factory):
    """What LONG writes."""
    return process(tmp_path_factory.mktemp("whole"))(*LONG, "--format", "npy").out


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS.values(), ids=SIGNALS)
def test_a_signal_at_any_time(attnkit, whole, number):
    for seed in range(4):
        old = attnkit.folder / attnkit.file("old.npy", b"old")
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        with attnkit.start("attnkit", *LONG, "-o", "old.npy", stdin=subprocess.DEVNULL, **pipes) as child:
            until(lambda child=child: attnkit.temporaries() or child.poll() is not None)
            time.sleep(random.Random(seed).random() * 0.25)
            child.send_signal(number)
            out, err = child.communicate()
        assert out + err in (b"", b"\n")
        assert attnkit.temporaries() == []
        assert child.returncode in (-number, 0)
        assert old.read_bytes() in ([whole] if child.returncode == 0 else [b"old", whole])


@pytest.mark.parametrize("number", SIGNALS.values(), ids=SIGNALS)
def test_an_ignored_signal_stays_ignored(attnkit, number):
    with held(attnkit, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN)) as child:
        child.send_signal(number)
        assert child.communicate(b"2]]") == (b"", b"")
    assert child.returncode == 0
    assert (attnkit.folder / "old.json").read_bytes().count(b"\n") == 2


def test_what_the_tests_start_ignores_no_signal():
    """As under nohup, and in the background of a shell that has no jobs."""
    for number in SIGNALS.values():
        before = signal.signal(number, signal.SIG_IGN)
        try:
            process.default_signals()
            os.kill(os.getpid(), number)  # which is nothing
            done = process.run_command(["bash", "-c", f"kill -{int(number)} $$; echo alive"])
            assert (done.code, done.out) == (-number, b"")
        finally:
            signal.signal(number, before)


def test_an_interrupted_pipeline_is_silent(attnkit):
    child = attnkit.start(
        "bash", "-c", "yes '[[1,2]]' | attnkit layernorm | attnkit attend | attnkit posenc",
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        child.stdout.read(1)
        os.killpg(child.pid, signal.SIGINT)
        _, err = child.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    assert err == b"" and child.returncode in (-signal.SIGINT, 130)


def test_killed_without_warning(attnkit):
    with held(attnkit) as child:
        child.kill()
        ended(attnkit, child, signal.SIGKILL)
    [stale] = attnkit.temporaries()
    assert stale.startswith(".old.json.attnkit-")
    assert attnkit("layernorm", "good.json", "-o", "old.json").code == 0
    assert attnkit.temporaries() == [stale]


# S4
@pytest.mark.linux
def test_a_model_that_is_cut_short_while_it_is_read(attnkit, refused):
    shutil.copytree(STORY, attnkit.folder / "m")
    line = ["attnkit", "decode", "--model", "m", "--lines", "--max-tokens", "2", "-o", attnkit.file("old.json", b"old")]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with attnkit.start(*line, **pipes) as child:
        child.stdin.write(b"Once upon a time there was")
        child.stdin.flush()
        until(attnkit.temporaries)
        assert b"model.safetensors" in pathlib.Path(f"/proc/{child.pid}/maps").read_bytes()
        os.truncate(attnkit.folder / "m" / "model.safetensors", 4096)
        out, err = child.communicate(b" a\n")
    run = Run(child.returncode, out, err.decode())
    refused(run, 4, "decode: m/model.safetensors: cut short while it was read")
    assert (attnkit.folder / "old.json").read_bytes() == b"old"


def test_a_mapped_file_that_is_cut_short_while_it_is_written_out(tmp_path, monkeypatch):
    source, target = tmp_path / "big", tmp_path / "out"
    source.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(mapped, "_sizes", {})
    data = memoryview(mapped.map_file(str(source)))
    os.truncate(source, 4096)
    with pytest.raises(FileError, match="big: cut short while it was read"), atomic.Sink(str(target)) as sink:
        sink.write([data])
    assert os.listdir(tmp_path) == ["big"]


# I19
def test_the_signals_are_set_before_anything_is_imported():
    code = (
        "import builtins, signal, sys; imported = builtins.__import__\n"
        "def noted(name, *rest):\n"
        "    early = signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "    late = early and not name.startswith('attnkit') and name not in sys.modules\n"
        "    print(name) if late else None\n"
        "    return imported(name, *rest)\n"
        "builtins.__import__ = noted; from attnkit.__main__ import main; builtins.__import__ = imported\n"
        "assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= {"gc", "enum"}  # modules of C, and what `signal` itself needs


# I12
def test_the_temporary_of_a_private_file_is_private(attnkit):
    attnkit.file("old.json", b"old")
    (attnkit.folder / "old.json").chmod(0o600)
    opened, modes = os.open, []

    def noted(path, flags, mode=0o777, **more):
        descriptor = opened(path, flags, mode, **more)
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return descriptor

    with mock.patch("os.open", noted), atomic.Sink(str(attnkit.folder / "old.json")) as sink:
        sink.write([b"new"])
    assert modes == [0o600]
    assert stat.S_IMODE((attnkit.folder / "old.json").stat().st_mode) == 0o600


# I10
@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("old", [("a", "b", "c"), ("a",), ("c",), ()])
def test_files_are_replaced_together_or_not_at_all(tmp_path, monkeypatch, failing, links, old):
    for name in old:
        (tmp_path / name).write_text("old")
    renamed, times = os.rename, []

    def rename(source, target):
        times.append(target)
        if len(times) == failing + 1:
            raise OSError(5, "Input/output error")
        renamed(source, target)

    def no_link(source, target):
        if not os.path.exists(source):
            raise FileNotFoundError(2, "No such file or directory")
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "rename", rename)
    if not links:
        monkeypatch.setattr(os, "link", no_link)
    problem = f"{'abc'[failing]}: write error: Input/output error"
    with pytest.raises(FileError, match=problem), atomic.write_together() as opened:
        for name in "abc":
            opened(str(tmp_path / name)).write([b"new"])
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    if links:
        assert found == dict.fromkeys(old, "old")
    else:  # without second names an old file that is replaced is gone; none is lost, and none is half there
        assert set(old) <= set(found) and set(found.values()) <= {"old", "new"}
        assert {name for name in found if found[name] == "new"} <= set(old) & set("abc"[:failing])


def test_the_second_output_that_cannot_be_renamed_leaves_the_first_as_it_was(attnkit, refused):
    attnkit.file("out.json", b"old")
    line = [
        "attnkit",
        "decode",
        "--model",
        str(STORY),
        "--lines",
        "--score",
        " a",
        "--trace",
        "t.json",
        "-o",
        "out.json",
    ]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with attnkit.start(*line, **pipes) as child:
        child.stdin.write(b"Once\n")
        child.stdin.flush()
        until(lambda: len(attnkit.temporaries()) == 2)
        (attnkit.folder / "t.json").mkdir()
        out, err = child.communicate()
    refused(Run(child.returncode, out, err.decode()), 4, "decode: t.json: write error: Is a directory")
    assert (attnkit.folder / "out.json").read_bytes() == b"old"


@pytest.mark.parametrize("number", SIGNALS.values(), ids=SIGNALS)
def test_a_signal_between_two_renames_waits(tmp_path, number):
    code = (
        "import os, signal, sys; from attnkit.formats import atomic; renamed = os.rename\n"
        f"signal.signal({int(number)}, signal.SIG_DFL)\n"
        f"def rename(*names): renamed(*names); os.kill(os.getpid(), {int(number)})\n"
        "os.rename = rename\n"
        "with atomic.write_together() as opened: [opened(name).write([b'new']) for name in 'ab']"
    )
    (tmp_path / "a").write_text("old")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (-number, b"")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "new", "b": "new"}


UNREADABLE = {
    "layernorm secret:x": "secret: Permission denied",
    "attend good.json --mask secret:x": "secret: Permission denied",
    "attend good.json --mask locked/file:x": "locked/file:x: Permission denied",
    "attend good.json --mask locked/file": "locked/file: Permission denied",
    "encode a --model locked": "locked/config.json: Permission denied",
    "encode a --model locked/model": "locked/model: Permission denied",
    "encode --ids good.json --model m": "m/config.json: Permission denied",
    "encode --ids good.json --model n": "n/generation_config.json: Permission denied",
    "decode a --model n --max-tokens 1": "n/generation_config.json: Permission denied",
    "show locked/model": "locked/model: Permission denied",
    "embed a --dim 2 --vocab secret": "secret: Permission denied",
    "run ./secret": "./secret: Permission denied",
}


@pytest.mark.slow
@pytest.mark.parametrize("line", UNREADABLE)
def test_a_file_that_may_not_be_read_is_not_one_that_is_not_there(attnkit, refused, folder, line):
    (folder / "locked").chmod(0)
    for name, file in (("m", "config.json"), ("n", "generation_config.json")):
        shutil.copytree(STORY, folder / name)
        (folder / name / "generation_config.json").write_text("{}")
        (folder / name / file).chmod(0)
    tool = line.split()[0]
    refused(unprivileged(attnkit, *line.split()), 4, f"{tool}: {UNREADABLE[line]}")
