"""Values of every option of every tool, drawn from its type and bounds, and hostile ones.

A case begins as a command of tests/transcripts, whose stage before it has given it an input. Some of its words are
then replaced, removed or added.
"""

import functools
import random
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from attnkit.cli import TOOLS, find_tool
from attnkit.formats import Record, encode
from attnkit.records import Tensor
from tests import process
from tests.fuzz.runner import Door, check_command
from tests.transcripts import FOLDER, LINKS, Case, builtin, cases, in_process, stages

PAGES = ("attnkit", "engines", "exercise", "explore", "faults", "help", "sample", "train")  # that have no cases here
# fmt: off
NUMBERS = [
    "0", "-0", "1", "-1", "2", "3", "5", "7", "63", "65", "0.5", "-0.5", "1e-3", "1e-30", "1e-320", "1e30", "1e308",
    "1e309", "-1e308", "nan", "inf", "-inf", "1e", "", " 1", "01", "1_0", "٣", "0x10", "1.0", "700", "1000000000000",
    "1" * 30, "999999999999999999", "9223372036854775808", "-9223372036854775809", "True",
]
TEXTS = [
    "", " ", "x", "mask", "é", "\x1b[2J", "a" * 300, "0", "-1", "1,2", "1,0", "-1,0", "9,9", "1,2,3", ",", "a,b", "0:1",
    ":", "::", "5:2", ":99", "x[0]", "x[0,1:2]", "[", "x[99]", "0,The", "all", "topk:2", "topk:0", "rows:0", "rows:99",
    "stats", "full", "mean", "cls", "q,k,v", "*", "*.weights", "[a-", "x=2", "0,0", "input-x-gradient", "integrated:1",
    "gnmt:0.6", "average:1", "float16", "none", "{", "word", "\\N", "%s", "same", "0/2",
]
FILES = ["", *"""
    - : :x :mask x: missing.npz data . models/marian models/gpt2 models/gpt2/config.json words models/llama
    models/t5 models/bert-mlm models/vit models/gpt2:decoder.0.self models/gpt2: chars inputs/record.json
    inputs/record.json:x inputs/record.json:nothing inputs/half.safetensors :ids inputs/cut.wav inputs/nan.json
    inputs/mask.json inputs/ids.json inputs/q.npy inputs/batch.npy inputs/attention.npz inputs/ffn.npz
    inputs/norm.npz inputs/lines.txt inputs/positions.json /dev/null data/triangle.png data/vocab.txt
    models/vit.jpeg inputs/clip models/gpt2.npz
""".split()]  # noqa: SIM905 - names of files
TARGETS = [
    "-", "o.npz", "o.json", "o.npy", "o.safetensors", "o.csv", "o.html", "o.svg", "o.md", "o.txt", "no/o.npz", "data",
]
# fmt: on
WRITTEN = ("output", "save", "trace", "cache_out", "report", "record", "copy")  # whose values name what is written
ENDLESS = ("max_tokens", "generate", "repeat", "measure", "port", "address", "processes", "engine", "mesh", "threads")


class Seed(NamedTuple):
    """A stage of a command of a case, which is run after those before it."""

    case: Case
    command: int
    stage: int


class Drawn(NamedTuple):
    """A command line, and what goes into it: the result of the stage before it, or one of INPUTS."""

    seed: Seed
    words: tuple[str, ...]
    stdin: int | None

    def __repr__(self) -> str:
        given = f"INPUTS[{self.stdin}]" if self.stdin is not None else "what comes before"
        return f"{self.seed.case.page.stem}, {self.seed.case.name}: {given} | attnkit {shlex.join(self.words)}"


def inputs() -> list[bytes]:
    """Records of several dtypes and shapes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 4))
    three = {"token": ["The", "cat", "sat"]}
    batch = Tensor(rng.normal(size=(2, 3, 4)), ("batch", "token", "model"))
    records = [
        Record({"x": Tensor(x, ("token", "model"))}, three),
        Record({"x": x.astype(np.float16)}),
        Record({"x": x.astype(ml_dtypes.bfloat16)}),
        Record({"x": (x * 10).astype(np.int8)}),
        Record({"x": x > 0}),
        Record({"x": np.zeros((0, 4))}),
        Record({"x": np.zeros((3, 0))}),
        Record({"x": np.array(1.5)}),
        Record({"x": rng.normal(size=(2, 2, 3, 4))}),
        Record({"x": batch, "mask": np.array([[True, True, False]] * 2), "ids": np.array([[1, 2, 0]] * 2)}),
        Record({"x": np.array([[np.nan, 1], [np.inf, -np.inf]])}),
        Record({"x": np.array([[1e308, -1e308], [1e-320, 0]])}),
        Record({"x": np.array([[65504, 1e-8]], np.float16)}),
        Record({"ids": np.array([[1, 2], [3, 999999]]), "logits": np.zeros((2, 5))}),
        Record({"x": batch, "lengths": np.array([3, -1]), "memory": x, "weights": rng.random((2, 3, 3))}),
    ]
    found = [b"".join(encode(record, "npz")) for record in records]
    return [*found, b"".join(found[:3]), b"[[1,2],[3,4]]", b"", b"The cat sat\n", b"1,2\n3,4\n", b'{"tensors":{}}']


INPUTS = inputs()


@functools.cache
def find_seeds() -> list[Seed]:
    """The stages of attnkit in the commands of the transcripts, without engines and training."""
    found = []
    for page in sorted(FOLDER.glob("*.md")):
        for case in cases(page) if page.stem not in PAGES else ():
            for number, (command, _) in enumerate(case.commands()):
                parts = stages(command)[0]
                found += [
                    Seed(case, number, at)
                    for at, part in enumerate(parts)
                    if part[0] == "attnkit" and part[1] in TOOLS and "engine" not in command
                    if part[1] not in PAGES
                ]
    return found


def draw_value(rng: random.Random, option: Any) -> str:
    """A value of an option: of its type more often, else of any."""
    kind = option.type
    bounds = [getattr(kind, side, None) for side in ("min", "max")]
    edges = [f"{bound + step:g}" for bound in bounds if bound is not None for step in (-1, 0, 1)]
    if option.name in WRITTEN:
        return rng.choice(TARGETS)
    if option.choices and rng.random() < 0.7:
        return ",".join(rng.sample([*map(str, option.choices)], min(len(option.choices), rng.choice([1, 1, 2]))))
    if option.load and rng.random() < 0.9:
        return rng.choice(FILES)
    if kind.name.startswith(("int", "float")):
        return rng.choice(["1", "2", "3", "4"] if rng.random() < 0.5 else [*NUMBERS, *edges])
    return rng.choice([*TEXTS, *NUMBERS, *FILES[:12]])


def is_drawn(option: Any) -> bool:
    return option.name not in ENDLESS and option.name != "help"


def draw_words(rng: random.Random, words: Sequence[str]) -> list[str]:
    """A command line with one change."""
    tool = find_tool(words[0])
    drawn = {flag: option for option in tool.options.values() if is_drawn(option) for flag in option.opts}
    at = [number for number, word in enumerate(words) if word in drawn and not drawn[word].is_flag]
    written = {number + 1 for number in at if drawn[words[number]].name in WRITTEN}
    operands = [at for at, word in enumerate(words[1:], 1) if not word.startswith("-") and at not in written]
    changed = [*words]
    match rng.randrange(8):
        case 0 if len(words) > 1:
            del changed[rng.randrange(1, len(words))]
        case 1 | 2 if at and at[-1] + 1 < len(words):
            number = rng.choice(at)
            changed[number + 1] = draw_value(rng, drawn[words[number]])
        case 3 if operands:
            changed[rng.choice(operands)] = rng.choice([*FILES, *TEXTS, "[[1,2]]"])
        case _:
            flag = rng.choice([*drawn])
            changed += [flag] if drawn[flag].is_flag else [f"{flag}={draw_value(rng, drawn[flag])}"]
    return changed


def draw(rng: random.Random) -> Drawn:
    seed = rng.choice(find_seeds())
    words = stages(seed.case.commands()[seed.command][0])[0][seed.stage][1:]
    for _ in range(rng.choice([1, 1, 2, 3])):
        words = draw_words(rng, words)
    return Drawn(seed, tuple(words), rng.randrange(len(INPUTS)) if rng.random() < 0.3 else None)


class Place:
    """The folders of the cases, whose commands are run when one is needed for the first time.

    They link to a copy of the files of the transcripts, which a case may damage.
    """

    def __init__(self, scratch: str) -> None:
        self.scratch = Path(scratch, "cases")
        for name, target in LINKS.items():
            shutil.copytree(target, self.scratch / "shared" / name)
        self.folders: dict[tuple[Path, str], Path] = {}
        self.done: dict[tuple[Path, str], int] = {}
        self.results: dict[tuple[Path, str, int, int], bytes] = {}

    def folder(self, seed: Seed) -> Path:
        """The folder of a case, in which the commands before one have been run."""
        key = seed.case.page, seed.case.name
        if key not in self.folders:
            folder = self.folders[key] = self.scratch / str(len(self.folders))
            folder.mkdir(parents=True)
            for name in LINKS:
                (folder / name).symlink_to(self.scratch / "shared" / name)
        for command, _ in seed.case.commands()[self.done.get(key, 0) : seed.command]:
            in_process(command, self.folders[key])
        self.done[key] = max(self.done.get(key, 0), seed.command)
        return self.folders[key]

    def stdin(self, seed: Seed) -> bytes:
        """What comes out of the stage before."""
        key = seed.case.page, seed.case.name, seed.command, seed.stage
        if key not in self.results:
            folder = self.folder(seed)
            parts, source, _ = stages(seed.case.commands()[seed.command][0])
            given = (folder / source).read_bytes() if source else b""
            for part in parts[: seed.stage]:
                if part[0] == "attnkit":
                    given = process.run(*part[1:], stdin=given, cwd=folder).out
                else:
                    given = builtin(part, folder, None)
            self.results[key] = given
        return self.results[key]

    def check(self, drawn: Drawn) -> bool:
        stdin = self.stdin(drawn.seed) if drawn.stdin is None else INPUTS[drawn.stdin]
        return check_command(*drawn.words, stdin=stdin, folder=str(self.folder(drawn.seed)))


def doors(scratch: str) -> dict[str, Door]:
    return {"options": Door(draw, Place(scratch).check, 8)}
