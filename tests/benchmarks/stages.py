"""What a stage costs, beside plain peers in the same run: python tests/benchmarks/stages.py

Each figure is the median of several runs of whole processes, taken in turn. Peak memory is that of the largest
process as the kernel accounts it.
"""

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from attnkit import formats
from attnkit.formats import Record, Source

ENV = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
SIX = "embed 'The cat sat on the mat' --dim 8 | posenc | mask --causal | attend --heads 2 | layernorm | decode"
MB = 1 << 20


def wall(line: str) -> float:
    """Seconds from the start of a line of bash to its end."""
    start = time.perf_counter()
    subprocess.run(["bash", "-c", line], check=True, stdout=subprocess.DEVNULL, env=ENV)
    return time.perf_counter() - start


def medians(lines: dict[str, str], runs: int) -> dict[str, float]:
    """The median of each line, all of them in turn."""
    taken: dict[str, list[float]] = {name: [] for name in lines}
    for run in range(runs + 1):
        for name, line in lines.items():
            seconds = wall(line)
            if run:  # the first is a warm-up
                taken[name].append(seconds)
    return {name: statistics.median(values) for name, values in taken.items()}


def peak(line: str) -> float:
    """Peak memory in MB of the largest process of a line of bash."""
    code = "import resource, subprocess, sys; subprocess.run(['bash', '-c', sys.argv[1]], check=True); "
    code += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    return (
        int(subprocess.run([sys.executable, "-c", code, line], check=True, capture_output=True, env=ENV).stdout) / 1024
    )


def best(work, runs: int = 7) -> float:
    """The median time of some work inside this process."""
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def start_up(folder: Path) -> None:
    (folder / "tiny.json").write_text("[[1, 2], [3, 4]]")
    found = medians(
        {
            "import numpy": f"exec {shlex.quote(sys.executable)} -c 'import numpy'",
            "one stage": f"exec attnkit layernorm {folder}/tiny.json",
            "six tools with run": f"exec attnkit run {shlex.quote(SIX)}",
        },
        runs=21,
    )
    for name, seconds in found.items():
        print(f"{name:32} {seconds * 1000:8.0f} ms")
    print(f"{'stage / import numpy':32} {found['one stage'] / found['import numpy']:8.2f}   (at most 1.5)")
    print(f"{'six tools / one stage':32} {found['six tools with run'] / found['one stage']:8.2f}   (at most 1.5)")


def large_npy(folder: Path) -> None:
    rng, big = np.random.default_rng(0), folder / "big.npy"
    np.save(big, rng.standard_normal((65536, 1024), dtype=np.float32))
    stages = {"peek": "peek -q", "show": "show --only x -f npy", "layernorm": "layernorm", "posenc": "posenc"}
    lines = {"cat": f"cat {big} | cat > /dev/null", "start-up": f"attnkit layernorm {folder}/tiny.json"}
    lines |= {name: f"cat {big} | attnkit {stage} | cat > /dev/null" for name, stage in stages.items()}
    found = medians(lines, runs=5)
    allowed = 2 * found["cat"] + found["start-up"]
    print(f"\n256 MB of NPY from pipe to pipe: cat {found['cat'] * 1000:.0f} ms")
    print(f"at most twice that and one start-up: {allowed * 1000:.0f} ms; at most 612 MB")
    for name, stage in stages.items():
        memory = peak(f"cat {big} | attnkit {stage} | cat > /dev/null")
        print(f"{stage:32} {found[name] * 1000:8.0f} ms, {found[name] / allowed:.2f} of it; peak {memory:.0f} MB")


def small_records(folder: Path) -> None:
    """A stream of small records with their history: 8 x 64 floats as JSON lines."""
    count, words = 3000, " ".join(f"word{number}" for number in range(8))
    (folder / "lines.txt").write_text(f"{words}\n" * count)
    wall(f"attnkit embed --lines --dim 64 < {folder}/lines.txt | attnkit posenc -o {folder}/in.json")
    lines = {stage: f"attnkit {stage} < {folder}/in.json" for stage in ("layernorm", "softmax", "attend --heads 2")}
    print(f"\n{count} records of 8 x 64 floats with their history, read and written as JSON")
    for stage, seconds in medians(lines, runs=5).items():
        print(f"{stage:32} {seconds / count * 1000:8.2f} ms a record (at most 0.5)")


def json_text() -> None:
    x = np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.float32)
    record = Record({"x": x})
    text = b"".join(bytes(part) for part in formats.encode(record, "json"))
    ours = best(lambda: formats.encode(record, "json")), best(lambda: list(formats.read(Source.of(text))))
    plain = json.dumps(x.tolist())
    theirs = best(lambda: json.dumps(x.tolist()), 3), best(lambda: np.array(json.loads(plain), np.float32), 3)
    (back,) = formats.read(Source.of(text))
    assert back["x"].tobytes() == x.tobytes()
    print("\nJSON of 1024 x 1024 float32, in one process")
    for what, us, them in zip(("write", "read"), ours, theirs, strict=True):
        print(f"{what:32} {us * 1000:8.0f} ms, the standard library {them * 1000:6.0f} ms: {us / them:.2f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        start_up(Path(name))
        large_npy(Path(name))
        small_records(Path(name))
    json_text()
