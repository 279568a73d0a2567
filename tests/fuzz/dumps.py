"""Dumps and answers: `diff` of what another program wrote, with and without --why, and `exercise --answer`.

A dump is that of a small model under names of one of the schemes, some of its tensors with another shape, dtype, value
or name, or its bytes damaged.
"""

import functools
import io
import json
import os
import random
import shutil
from collections.abc import Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from attnkit.checkpoints import open_checkpoint
from attnkit.help.exercises import read_exercises
from attnkit.inputs import layers
from attnkit.model.graph.nodes import Inputs
from attnkit.model.passes.model_graph import model_graph
from attnkit.records import Array
from tests.debugger.test_names import HOOKS, NODES
from tests.fuzz import files
from tests.fuzz.runner import INTEGERS, Door, check_command
from tests.places import REFERENCES, folder

MODELS = ("gpt2", "llama", "bert", "t5", "marian", "modernbert", "deberta-v2", "vit", "lstm", "seq2seq")
SMALL = ("gpt2", "bert")
DUMPS = REFERENCES / "dumps"
READ = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "decoder_input_ids", "decoder_attention_mask")
NAMES = (*READ, "pixel_values", "ids", "logits", "x", "", "é", "a.b", "output", "h.0#1.output", *HOOKS, *NODES)
ALL_IDS: tuple[Any, ...] = ({"data": [[5, 9, 17]]}, {"data": [[True]]}, {"data": ["a"]}, {"data": []}, 5)
DTYPES: tuple[Any, ...] = ("bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64", "complex64")
DTYPES += ("U3", ml_dtypes.bfloat16)
NUMBERS = (0.0, -1.0, 1e-30, 1e30, 1e300, np.inf, -np.inf, np.nan, *INTEGERS[:18])


class Case(NamedTuple):
    """The options of a comparison, and the files of its operands by name."""

    options: tuple[str, ...]
    files: dict[str, bytes]


@functools.cache
def whole_dump(family: str) -> Mapping[str, Array]:
    """All stages of a model, and what it reads."""
    core = layers.complete_model(open_checkpoint(folder(family)))
    ids, target = np.array([[5, 9, 17, 30], [8, 41, 6, 1]]), np.array([[4, 7, 2], [3, 9, 1]])
    mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
    if core.config.patches:
        image = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
        graph, arrays = model_graph(core, Inputs(image=image)), {"pixel_values": image}
    else:
        ids, target = (one % core.config.stack(core.config.stacks[0]).vocab for one in (ids, target))
        graph = model_graph(core, Inputs(ids=ids, target=target, mask=mask.astype(bool)))
        arrays = {"input_ids": ids, "attention_mask": mask}
        arrays |= {"decoder_input_ids": target} if core.config.encoder else {}
    memo: dict[str, Array] = {}
    for site in graph.nodes:
        graph.evaluate(site, graph.roots, precision="float32", memo=memo)
    return arrays | {site: memo[site].astype(np.float32) for site in graph.nodes}


def draw_tensors(rng: random.Random, family: str, all_of_it: bool = False) -> dict[str, Array]:
    """A few stages of a model, or all, some of them damaged."""
    whole = whole_dump(family)
    read = [name for name in whole if name in NAMES]
    stages = [name for name in whole if name not in read]
    start, count = rng.randrange(len(stages)), rng.choice([1, 2, 3, 8])
    names = [*read, *stages[start : start + count], *rng.sample(stages, rng.randrange(3))]
    dump = {name: whole[name] for name in (whole if all_of_it else names)}
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        name = rng.choice([*[*dump][: len(read)], *dump])
        array = dump.pop(name, None)
        if array is None:
            break
        kind = rng.randrange(8)
        if kind == 0:
            name = rng.choice([*NAMES, *whole])
        elif kind < 7:
            array = edit_array(rng, array)
        if kind < 7:
            dump[name] = array
        if not dump:
            break
    return dump or {"x": np.zeros(0)}


def edit_array(rng: random.Random, array: Array) -> Array:
    """An array of another shape or dtype, or with other numbers."""
    if array.dtype.kind in "cU":
        return array
    match rng.randrange(9):
        case 0:
            with np.errstate(all="ignore"):
                return array.astype(rng.choice(DTYPES)) if array.dtype.kind in "biuf" else array
        case 1:
            return array.swapaxes(rng.randrange(array.ndim), rng.randrange(array.ndim)) if array.ndim else array
        case 2:
            return array.ravel()[: rng.choice([0, 1, array.size])]
        case 3:
            axis = rng.randrange(max(array.ndim, 1))
            return array[(slice(None),) * axis + (slice(rng.choice([0, 1, -1])),)] if array.ndim else array
        case 4:
            return np.expand_dims(array, rng.randrange(array.ndim + 1)).repeat(rng.choice([0, 1, 2, 3]), axis=0)
        case 5:
            return np.array(rng.choice(NUMBERS))
        case 6:
            sizes = [rng.choice([0, 1, 2, 3, 4, 8, 16, *array.shape]) for _ in range(rng.randrange(7))]
            return np.resize(array, sizes) if np.prod([*filter(None, sizes)]) < 100_000 else array
        case 7:
            return np.full_like(array, rng.choice([0, 1, -1, 100])) if array.dtype.kind in "if" else array
        case _:
            changed, number = array.astype(np.float64), rng.choice(NUMBERS)
            changed.reshape(-1)[rng.randrange(max(array.size, 1)) :][: rng.choice([1, 3, array.size])] = float(number)
            with np.errstate(all="ignore"):
                return changed.astype(array.dtype if array.dtype.kind in "iuf" else np.float64)


def packed(dump: Mapping[str, Array]) -> bytes:
    """The bytes of an NPZ, its tensors of bfloat16 as JAX and attnkit write them."""
    target = io.BytesIO()
    names = [name.replace("/", "_") for name in dump]
    np.savez(target, **{name: array for name, array in zip(names, dump.values(), strict=True) if name != "file"})
    return target.getvalue()


def as_npy(array: Array) -> bytes:
    target = io.BytesIO()
    np.save(target, array)
    return target.getvalue()


def draw_options(rng: random.Random, family: str, why: bool) -> list[str]:
    options = ["--model", folder(family)] + ["--why"] * why
    options += rng.choice([[], [], ["--match"], ["--all"], ["-f", "json"], ["--ids", "ids.npy"], ["--map", "map.txt"]])
    return options


def draw_npz(rng: random.Random) -> Case:
    """A dump of a model in one file."""
    family, why = rng.choice(MODELS), rng.random() < 0.5
    dump = draw_tensors(rng, family, why and family not in SMALL)  # each slip computes what the dump lacks
    data = packed(dump)
    for _ in range(rng.choice([0, 0, 0, 1])):
        data = files.mutate_npz(rng, data)
    pairs = [f"{rng.choice([*dump, 'y'])} {rng.choice([*whole_dump(family), 'z'])}" for _ in range(rng.randrange(4))]
    others = {"ids.npy": as_npy(edit_array(rng, np.array([[5, 9, 17]]))), "map.txt": "\n".join(pairs).encode()}
    before = [packed(draw_tensors(rng, family))] if rng.random() < 0.1 else []
    names = {f"{at}.npz": one for at, one in enumerate([*before, data])}
    return Case((*draw_options(rng, family, why), *names), others | names)


def draw_json(rng: random.Random) -> Case:
    """A dump as a record in JSON."""
    family = rng.choice(MODELS[:4])
    tensors = {}
    for name, array in draw_tensors(rng, family).items():
        with np.errstate(all="ignore"):
            numbers = array.astype(np.float32) if array.dtype.kind in "bf" and array.size < 200 else np.zeros(2)
        data = numbers.tolist() if np.isfinite(numbers).all() else ["NaN", 1]
        tensors[name] = rng.choice([{"data": data, "dtype": "float32"}, {"data": data}, data])
    if rng.random() < 0.7:
        tensors["input_ids"] = rng.choice(ALL_IDS)
    data = json.dumps({"tensors": tensors}).encode()
    data = files.mutate_json(rng, data) if rng.random() < 0.6 else data
    return Case((*draw_options(rng, family, False)[:2], "mine.json"), {"mine.json": data})


def draw_tree(rng: random.Random) -> Case:
    """A tree of module calls of transformers."""
    folder_of_tree = rng.choice(["debugger", "debugger_files"])
    data = files.mutate_json(rng, tree_of(folder_of_tree))
    options = ["--model", folder("gpt2"), "--ids", "ids.npy", "--match"]  # which reads all tensors
    return Case((*options, "tree.json"), {"tree.json": data, "ids.npy": as_npy(np.array([[5, 9, 17, 30, 8]]))})


@functools.cache
def tree_of(name: str) -> bytes:
    [tree] = (DUMPS / name).glob("*_FULL_TENSORS.json")
    return tree.read_bytes()


@functools.cache
def folder_seeds() -> list[dict[str, bytes]]:
    """The files of frozen folders of dumps."""
    names = ("vllm", "sglang", "sglang_passes", "debugger_files")
    places = [DUMPS / name for name in names]
    return [{str(one.relative_to(at)): one.read_bytes() for one in at.rglob("*") if one.is_file()} for at in places]


def draw_folder(rng: random.Random) -> Case:
    """A folder of dumps, with damaged files, or files under the names of others."""
    found = dict(rng.choice(folder_seeds()))
    for _ in range(rng.choice([1, 1, 2])):
        path = rng.choice([*found])
        data = found.pop(path)
        mutate = files.mutate_json if path.endswith((".json", ".txt")) else files.mutate_pytorch
        match rng.randrange(4):
            case 0:
                path = rng.choice([*STRANGE, *found])
            case 1:
                path = f"{rng.choice(['step_0', 'a', 'name=x___step=1', 'x#1'])}/{path}"
            case _:
                data = mutate(rng, data)
        if not any(other.startswith(f"{path}/") or path.startswith(f"{other}/") for other in found):
            found[path] = data
    named = {f"dump/{path}": data for path, data in found.items()}
    options = rng.choice([["--model", folder("gpt2")], ["--model", folder("llama"), "--why"], ["dump"]])
    return Case((*options, "dump"), named)


STRANGE = ("a.npy", "0_a.npy", "1-b.pt", "name=___step=.pt", "step=99999999999999999999___name=q.pt", "Pass00001.pt")
STRANGE += ("step_1/x/inputs_0_cpu.pt", "step_1/x_1/outputs_cuda_7.pt", "b.safetensors", "c.npz", "module_calls.txt")
STRANGE += ("M_debug_tree_FULL_TENSORS.json", "N_FULL_TENSORS.json", ".hidden.npy", "é.npy", "x\n.pt", "config.json")


def draw_pair(rng: random.Random) -> Case:
    """Two dumps without a model, under names that differ."""
    family = rng.choice(MODELS[:4])
    names = {f"{at}.npz": packed(draw_tensors(rng, family)) for at in range(2)}
    return Case((*names, *rng.choice([[], ["--all"], ["--map", "map.txt"]])), names | {"map.txt": b"x input_ids\n"})


ANSWERS = ("[[0.73, 0.27]]", "0.73 0.27", "[1, 2]", '{"tensors": {"x": {"data": [1, 2]}}}', "1,2\n3,4", "true", "[[]]")


def draw_answer(rng: random.Random) -> Case:
    """An answer to an exercise, as the bytes of an argument."""
    data = rng.choice(ANSWERS).encode()
    for _ in range(rng.choice([1, 1, 2])):
        data = files.mutate_json(rng, data)
    text = os.fsdecode(data.replace(b"\0", b""))
    return Case(("exercise", rng.choice(read_exercises()).number, "--answer", text[:5000]), {})


def check_case(case: Case, scratch: str) -> bool:
    """Run the comparison in a folder of its own."""
    if case.options[0] == "exercise":
        return check_command(*case.options)
    place = os.path.join(scratch, "dumps")
    shutil.rmtree(place, ignore_errors=True)
    for name, data in case.files.items():
        path = os.path.join(place, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
    return check_command("diff", *case.options, folder=place)


def doors(scratch: str) -> dict[str, Door]:
    """Dumps in a file, a record, a tree and a folder, two of them, and answers."""
    draws: dict[str, tuple[Any, int]] = {
        "npz": (draw_npz, 6),
        "json": (draw_json, 2),
        "tree": (draw_tree, 4),
        "folder": (draw_folder, 4),
        "pair": (draw_pair, 2),
    }
    check = functools.partial(check_case, scratch=scratch)
    found = {f"dumps: {name}": Door(draw, check, share) for name, (draw, share) in draws.items()}
    return found | {"answers": Door(draw_answer, check, 4)}
