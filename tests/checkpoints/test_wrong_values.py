"""Replace every value in the files of a model's folder by a wrong one: a result or an AttnkitError, soon.

    python tests/checkpoints/test_wrong_values.py [FOLDER...]   every case of all folders, or of those named
    pytest tests/checkpoints/test_wrong_values.py               a sample of them, chosen by SWEEP_SEED

The cases run in a process of their own, since a library may end it; the next process continues after that case.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

TESTS = Path(__file__).parent.parent
MODELS = TESTS / "references" / "models"
FOLDERS = sorted(path for path in MODELS.iterdir() if path.is_dir())
FOLDERS += [TESTS.parent / "samples" / "data" / name for name in ("story", "fr-en")]
INPUTS = TESTS / "transcripts" / "inputs"
FOLDERS += [INPUTS / name for name in ("nllb", "clip", "whisper", "wav2vec2")]
SOUND = str(INPUTS / "tone.wav")
NATIVE, OPTIONS = "model.npz", "special:model.yml"

SAMPLE = 100  # cases of the suite
SLOW, SECONDS, BYTES = 2.0, 60.0, 1 << 30  # what a case of the sweep may take, any before it is stopped, and of memory
SIBLINGS = 6  # members of a large list or object that are tried: the first, the last, and some between

INFINITE, ENDLESS = '"infinite"', '"endless"'  # placeholders of numbers that json.dumps cannot write
WRONG: dict[str, Any] = {
    "null": None, "true": True, "false": False, "zero": 0, "one": 1, "minus": -1, "half": 0.5, "two": 2,
    "thousands": 60_000, "millions": 16_000_000, "billion": 10**9, "2^31": 2**31, "2^63": 2**63, "2^64": 2**64,
    "10^30": 10**30, "1e308": 1e308, "-1e308": -1e308, "tiny": 1e-320,
    "empty": "", "word": "x", "digits": "7", "control": "\x00\x1b\n", "long": "a" * 5000,
    "list": [], "of_one": [1], "of_three": [0, -1, 10**12], "of_words": ["a", "b"], "nested": [[[1]], [], [None]],
    "object": {}, "of_content": {"content": "x", "id": -1, "special": 3},
    "surrogate": "\udc80 lone", "infinite": "infinite", "endless": "endless",
}  # fmt: skip
LEFT_OUT = "left out"


class Case(NamedTuple):
    """One value of one file, and the value put in its place."""

    folder: Path
    file: str
    place: tuple[Any, ...]
    wrong: str

    def __str__(self) -> str:
        return f"{self.folder.name}/{self.file} {'.'.join(map(str, self.place))[:60]} = {self.wrong}"


class TooSlow(BaseException):
    """A case took longer than it may."""


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a document are, itself among them; of large lists and objects some."""
    yield at
    inner = list(value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ())
    if len(inner) > 40:
        step = (len(inner) - 1) / (SIBLINGS - 1)
        inner = [inner[round(number * step)] for number in range(SIBLINGS)]
    for key, member in inner:
        yield from places(member, (*at, key))


def replaced(value: Any, at: tuple[Any, ...], wrong: Any) -> Any:
    """A document with another value in a place, or without that place."""
    if not at:
        return wrong
    copy = dict(value) if isinstance(value, dict) else list(value)
    if wrong is LEFT_OUT and len(at) == 1:
        del copy[at[0]]
    else:
        copy[at[0]] = replaced(copy[at[0]], at[1:], wrong)
    return copy


def parsed(folder: Path, file: str) -> Any:
    """The document in a file: JSON; of YAML its lines, each a name and a value."""
    if file == NATIVE:
        with np.load(folder / file) as stored:
            return lines_of(stored[OPTIONS].tobytes().rstrip(b"\0").decode())
    text = (folder / file).read_text()
    return lines_of(text) if file.endswith(".yml") else json.loads(text)


def lines_of(text: str) -> list[Any]:
    return [list(line.partition(": ")[::2]) if ": " in line else line for line in text.splitlines()]


def written(folder: Path, file: str, document: Any) -> bytes:
    """The bytes of such a document."""
    if not file.endswith((".yml", ".npz")):
        text = json.dumps(document).replace(INFINITE, "1e999").replace(ENDLESS, "9" * 5000)
        return text.encode("utf-8", "surrogatepass")
    rows = document if isinstance(document, list) else [document]
    text = "\n".join(": ".join(map(scalar, row)) if isinstance(row, list) else scalar(row) for row in rows)
    if file.endswith(".yml"):
        return text.encode("utf-8", "surrogatepass")
    with np.load(folder / file) as stored:
        arrays = {**stored, OPTIONS: np.frombuffer(text.encode("utf-8", "replace") + b"\0", np.int8)}
    with tempfile.TemporaryFile() as buffer:
        np.savez(buffer, **arrays)
        buffer.seek(0)
        return buffer.read()


def scalar(value: Any) -> str:
    """Return a value as YAML; a string stays as it is."""
    return value if isinstance(value, str) else json.dumps(value)


# values of YAML alone
EXTRA = ('"\\xZZ"', '"\\UFFFFFFFF"', '"\\ud800"', "'", '"', "[", "]", "- - 1", "9" * 5000, "1" * 20, "-", "٣", "1e999")


def cases(folders: list[Path]) -> list[Case]:
    """Every case of some folders."""
    every = []
    for folder in folders:
        for file in sorted(path.name for path in folder.iterdir()):
            if not file.endswith((".json", ".yml")) and file != NATIVE:
                continue
            wrong = [*WRONG, LEFT_OUT, *(EXTRA if "json" not in file else ())]
            at = places(parsed(folder, file))
            every += [Case(folder, file, place, name) for place in at for name in wrong if place or name != LEFT_OUT]
    return every


def chosen(folders: list[Path], seed: int | None) -> list[Case]:
    """Every case, or with a seed a sample of as many for each file, in the order of the files."""
    every = cases(folders)
    if seed is None:
        return every
    rng = random.Random(seed)
    files: dict[tuple[Path, str], list[Case]] = {}
    for case in every:
        files.setdefault((case.folder, case.file), []).append(case)
    each = -(-SAMPLE // len(files))
    return [case for of_file in files.values() for case in rng.sample(of_file, min(each, len(of_file)))]


def used(folder: str, family: str, has_text: bool) -> None:
    """Opens a folder, shows it and runs it for a few tokens."""
    import attnkit
    from attnkit import display
    from attnkit.checkpoints import open_checkpoint
    from attnkit.formats import Record
    from attnkit.interpret import model_summary

    checkpoint = open_checkpoint(folder)
    model_summary.draw_model(checkpoint, display.Style())
    config = checkpoint.config
    if family == "vit" or family.startswith("dino"):
        attnkit.encode(None, model=folder, image=str(MODELS / "vit.png"))
    elif family == "clip":
        attnkit.encode(["a cat", "a dog"], model=folder)
        attnkit.decode(None, model=folder, image=str(MODELS / "vit.png"), labels="a cat,a dog")
    elif family in ("whisper", "wav2vec2"):
        attnkit.encode(None, model=folder, audio=SOUND)
        attnkit.decode(None, model=folder, audio=SOUND, **({"max_tokens": 2} if family == "whisper" else {}))
    elif family in ("transformer", "transformer-prenorm"):
        attnkit.encode(Record({"x": np.ones((2, config.width), np.float32)}), model=folder)
    elif config.classes or config.decoder is None:
        attnkit.encode(model_input(has_text, ["the cat", "<s> a"]), model=folder)
    elif config.encoder is not None:
        memory = attnkit.encode(model_input(has_text, ["le chat"]), model=folder)
        attnkit.decode(memory, model=folder, max_tokens=2)
        attnkit.decode(memory, model=folder, max_tokens=2, beam=2)
        if has_text:
            attnkit.decode(memory, model=folder, score="a cat")
    else:
        attnkit.decode(model_input(has_text, ["The cat"]), model=folder, max_tokens=2)
        attnkit.decode(model_input(has_text, ["The cat"]), model=folder, max_tokens=2, beam=2)
        if has_text:
            attnkit.decode("The", model=folder, score="a cat")


def model_input(has_text: bool, texts: list[str]) -> Any:
    """Return texts where the folder has a tokenizer, else a record of ids."""
    from attnkit.formats import Record

    return texts if has_text else Record({"ids": np.array([3, 4])})


def outcome(case: Case, folder: Path, has_text: bool) -> str:
    """Return "" for a result, the line of an AttnkitError, "!" and a description for anything else."""
    from attnkit.errors import AttnkitError, DataError, FileError, UsageError

    def late(*signal: Any) -> None:
        raise TooSlow

    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        used(str(folder), case.folder.name, has_text)
        return ""
    except AttnkitError as error:
        mine = isinstance(error, DataError | UsageError | FileError)
        short = len(str(error)) < 600 and "\n" not in str(error)
        return f"{'' if mine and short else '!'}{type(error).__name__} {str(error)[:300]!r}"
    except BaseException as error:  # any other exception is a fault
        import traceback

        frame = next(f for f in reversed(traceback.extract_tb(error.__traceback__)) if "attnkit/" in f.filename)
        where = f"{frame.filename.rpartition('attnkit/')[2]}:{frame.lineno}"
        return f"!{type(error).__name__} {str(error)[:100]} at {where}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def work(folders: list[Path], seed: int | None, start: int) -> None:
    """Run the cases from number `start` on, and write the outcome of each on a line."""

    for library in ("sentencepiece", "tokenizers", "PIL.Image"):
        with contextlib.suppress(ImportError):
            __import__(library)
    warnings.simplefilter("ignore")
    if sys.platform == "linux":
        now = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (now + BYTES, now + BYTES))
    answers = os.dup(1)
    noise = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
    for number in (1, 2):
        os.dup2(noise.fileno(), number)
    with tempfile.TemporaryDirectory() as scratch:
        before, has_text = None, False
        for at, case in enumerate(chosen(folders, seed)[start:], start):
            copy = Path(scratch, case.folder.name)
            if case.folder != before:
                before = case.folder
                shutil.copytree(case.folder, copy)
                has_text = tokenized(copy)
                rewritten(copy)
                used(str(copy), case.folder.name, has_text)
            whole = (copy / case.file).read_bytes()
            wrong = WRONG.get(case.wrong, LEFT_OUT if case.wrong == LEFT_OUT else case.wrong)
            document = replaced(parsed(copy, case.file), case.place, wrong)
            (copy / case.file).write_bytes(written(copy, case.file, document))
            began = time.process_time()
            result = outcome(case, copy, has_text)
            took = time.process_time() - began
            (copy / case.file).write_bytes(whole)
            if os.fstat(noise.fileno()).st_size:
                result = f"!noise on standard error, and {result}"
                noise.truncate(0)
                noise.seek(0)
            os.write(answers, (json.dumps([at, result, took]) + "\n").encode())


def rewritten(folder: Path) -> None:
    """Write the documents of a folder as the cases do, unchanged: rewriting alone must break nothing."""
    for path in folder.iterdir():
        if path.suffix in (".json", ".yml") or path.name == NATIVE:
            path.write_bytes(written(folder, path.name, parsed(folder, path.name)))


def tokenized(folder: Path) -> bool:
    from attnkit.checkpoints.checkpoint import open_tokenizer
    from attnkit.errors import AttnkitError

    try:
        open_tokenizer(str(folder))
    except AttnkitError:
        return False
    return True


def swept(
    folders: list[Path], seed: int | None, tell: Callable[[str], None] = str, slow: float = SECONDS
) -> tuple[int, list[str], float]:
    """Return the number of cases, a line for each fault, which also goes to `tell`, and the seconds of the slowest."""
    every, at, escaped, slowest = chosen(folders, seed), 0, [], 0.0

    def escape(problem: str) -> None:
        escaped.append(f"{every[at]}: {problem}")
        tell(escaped[-1])

    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS.parent)}
    while at < len(every):
        command = [sys.executable, __file__, "--work", str(at), str(seed), *map(str, folders)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            for line in process.stdout:
                at, result, took = json.loads(line)
                slowest = max(slowest, took)
                if took > slow:
                    escape(f"took {took:.1f} s")
                if result.startswith("!"):
                    escape(result[1:])
                at += 1
        if at < len(every):
            escape(f"the process ended with {process.returncode}")
            at += 1
    return len(every), escaped, slowest


@pytest.mark.slow
def test_a_wrong_value_is_an_error_or_a_result():
    count, escaped, _ = swept(FOLDERS, int(os.environ.get("SWEEP_SEED", 0)))
    assert count >= SAMPLE and not escaped, "\n".join(escaped)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        start, seed, *names = sys.argv[2:]
        work([Path(name) for name in names], None if seed == "None" else int(seed), int(start))
    else:
        named = [Path(name) for name in sys.argv[1:]]
        count, escaped, slowest = swept(named or FOLDERS, None, partial(print, flush=True), SLOW)
        print(f"{count} cases, {len(escaped)} escaped, the slowest took {slowest:.1f} s")
        sys.exit(bool(escaped))
