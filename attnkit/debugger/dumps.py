"""Dumps: the tensors that a program has written, each read when it is needed.

The names of modules are those of a recording of attnkit: `PATH.input.0`, `PATH.output`, and `PATH#1.output` for the
second call of a module.

files    NPZ, NPY, safetensors and JSON, and PyTorch files, of which only the tensors are read
folders  of NPY, NPZ, safetensors or PyTorch files; those of intermediate logging in vLLM, and of the dumper and
         the forward hooks of SGLang, as these programs name them
trees    the JSON of transformers' model_addition_debugger_context (module_tree.py)
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from attnkit.debugger.module_tree import TREE, TREE_START, DumpEntry, read_tree
from attnkit.errors import AttnkitError, DataError, FileError, system_reason
from attnkit.formats import npy, npz, open_source, pytorch, read, regular_files_only, release_pages, safetensors
from attnkit.formats.dtypes import name_of
from attnkit.formats.mapped import Mapped
from attnkit.formats.streams import name_errors
from attnkit.records import Array, Record, join_names

ORDERED = ("npz", "json", "pytorch", "npy")  # formats whose order is that in which the program wrote
READERS: dict[str, Callable[[str], Mapped]] = {
    "npz": partial(npz.map_tensors, bfloat16=True),
    "npy": partial(npy.map_tensors, bfloat16=True),
    "safetensors": safetensors.map_tensors,
    "pytorch": partial(pytorch.map_tensors, skips_others=True),
}
SUFFIXES = {".npz": "npz", ".npy": "npy", ".safetensors": "safetensors"}
SUFFIXES |= dict.fromkeys((".pt", ".pth", ".bin"), "pytorch")
MOST_FILES, DEEPEST = 100_000, 64
CALLS = "module_calls.txt"  # in a step of vLLM: the modules in the order of their calls
LONE = ("x", "value", "data")  # names of the only tensor of a file, which say nothing
PLAIN_TAGS = {"name", "step", "forward_pass_id", "rank", "dump_index", "recompute_status", "layer_id"}
DEVICE = r"(?:cpu|cuda|hip|xpu|hpu|npu|mps|tpu|xla)(?:_\d+)?"
LOGGED = re.compile(rf"(input|output)s?(?P<parts>(?:_\d+)*)(?P<key>(?:_\w+?)?)_(?P<device>{DEVICE})")
HALF = re.compile(r"(?:(?P<path>.*)\.)?(?P<half>(?:input|output)(?:\..*)?)")


class Dump(Mapping[str, Array]):
    """The tensors of a dump by name; one is in memory at a time.

    name        the file or folder
    is_ordered  whether the order is that in which they were computed
    left_out    what was found and is not among the tensors -> why

    >>> import numpy as np, os, tempfile
    >>> file = os.path.join(tempfile.mkdtemp(), "mine.npz")
    >>> np.savez(file, a=np.eye(2), b=np.zeros(3, np.float32))
    >>> dump = open_dump(file)
    >>> [*dump], dump.shape("a"), dump.dtype("b"), dump["b"]
    (['a', 'b'], (2, 2), 'float32', array([0., 0., 0.], dtype=float32))
    """

    def __init__(
        self, name: str, entries: Mapping[str, DumpEntry], is_ordered: bool, left_out: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.is_ordered, self.left_out = name, is_ordered, dict(left_out or {})
        self._entries = dict(entries)
        self._last: Array | None = None
        if not entries:
            reason = next((f"; {one}: {why}" for one, why in self.left_out.items()), "")
            raise DataError(f"no tensors in this dump{reason}", name)

    def __getitem__(self, name: str) -> Array:
        entry = self._entries[name]
        if self._last is not None:
            release_pages(self._last)
        self._last = entry.read()
        return self._last

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, which is not read."""
        return self._entries[name].shape

    def dtype(self, name: str) -> str:
        """The name of the dtype of a tensor, which is not read."""
        return self._entries[name].dtype

    def digits(self, name: str) -> int:
        """How many significant digits of its numbers the dump has; 0 for all."""
        return self._entries[name].digits


def open_dump(path: str) -> Dump:
    """Open a file or a folder of tensors, and read their names, dtypes and shapes.

    DataError for a dump that is damaged, has no tensors, or two of one name; FileError for one that cannot be opened.
    Nothing in it is executed.
    """
    if os.path.isdir(path):
        return _open_folder(path)
    with open_source(path) as source, name_errors(path):
        if TREE_START.match(source.peek(200)):
            return _open_tree(path, bytes(source.read_all()))
        stream = read(source, lone_is_x=False)
        if stream.source not in READERS:
            records = list(stream)
            if len(records) != 1:
                raise DataError(f"{len(records)} records (expected 1)")
            arrays = records[0].arrays()
            return Dump(path, {name: array_entry(one) for name, one in arrays.items()}, stream.source in ORDERED)
        mapped = READERS[stream.source](path)
    entries = {name: DumpEntry(*size, partial(mapped.tensor, name)) for name, size in mapped.entries.items()}
    return Dump(path, entries, stream.source in ORDERED)


def record_dump(record: Record) -> Dump:
    """The tensors of a record that is in memory, as a dump."""
    return Dump("the record", {name: array_entry(array) for name, array in record.arrays().items()}, True)


def differ_in_names(a: str, b: str) -> bool:
    """Whether two files of many tensors name the same sites in different ways."""
    try:
        left, right = ([*open_dump(path)] for path in (a, b))
    except AttnkitError:  # which the reader of records names
        return False
    shared = sum(name in right for name in left)
    if shared == min(len(left), len(right)):
        return False
    from attnkit.debugger.names import locate_sites

    return len(locate_sites(left).sources.keys() & locate_sites(right).sources.keys()) > shared


def array_entry(array: Array) -> DumpEntry:
    """The entry of an array that is in memory."""
    return DumpEntry(name_of(array.dtype), array.shape, lambda: array)


def _open_tree(path: str, text: bytes) -> Dump:
    entries, left_out = read_tree(path, text)
    return Dump(path, entries, True, left_out)


class _File(NamedTuple):
    """A file of a folder, as its name says.

    run    the folder of the run, "" if it is not stated
    step   the step of the run, -1 if it is not stated
    place  the device or rank that computed it, "" if it is not stated
    order  when it was written, None if it is not stated
    name   the tensor in it, "" for a file that names its tensors itself
    """

    path: str
    run: str
    step: int
    place: str
    order: int | None
    name: str


@regular_files_only()
def _open_folder(folder: str) -> Dump:
    trees = [file for file in _list_folder(folder) if TREE.search(file)]
    if trees:
        if len(trees) > 1:
            raise DataError(f"{len(trees)} trees of modules; name one of the files, such as {trees[0]}", folder)
        path = os.path.join(folder, trees[0])
        with open_source(path) as source:
            return _open_tree(path, bytes(source.read_all()))
    files, calls = _find_files(folder)
    runs = sorted({file.run for file in files if file.step >= 0})
    if len(runs) > 1:
        raise DataError(f"{len(runs)} runs; name one of the folders {join_names(runs)}", folder)
    files, left_out = _choose_step(files)
    files = _in_order(files, calls)
    is_ordered = all(file.order is not None for file in files)
    entries: dict[str, DumpEntry] = {}
    sources: dict[str, _File] = {}
    counts: Counter[str] = Counter()
    for file in files:
        found = _read_file(os.path.join(folder, file.path), file.name, len(files) == 1)
        if not found:
            left_out[file.path] = "no tensor in it"
        for name, entry in found.items():
            first = sources.get(name)
            if first and first.place != file.place:
                left_out[f"{name} of {file.place}"] = f"{name} of {first.place} is read"
                continue
            if first and not is_ordered:
                raise DataError(f"two tensors {name[:100]!r}: in {first.path} and in {file.path}", folder)
            entries[_of_call(name, counts[name])] = entry
            counts[name] += 1
            sources.setdefault(name, file)
    return Dump(folder, entries, is_ordered, left_out)


def _list_folder(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise FileError(system_reason(error), folder) from error


def _find_files(folder: str) -> tuple[list[_File], dict[str, list[str]]]:
    """The files of tensors below a folder, and the calls of modules.

    These are listed in a file of the folder of a step, whose path is their key.
    """
    paths: list[str] = []
    calls: dict[str, list[str]] = {}
    count = 0

    def refuse(error: OSError) -> None:
        raise FileError(system_reason(error), str(error.filename)) from error

    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        inside = os.path.relpath(parent, folder)
        for file in sorted(files):
            if os.path.splitext(file)[1] in SUFFIXES and not file.startswith("."):
                paths.append(os.path.normpath(os.path.join(inside, file)))
            elif file == CALLS:
                with open_source(os.path.join(parent, file)) as source:
                    calls[os.path.normpath(inside)] = source.read_all().decode("utf-8", "replace").splitlines()
        count += len(files) + len(folders)
        if count > MOST_FILES or inside.count(os.sep) > DEEPEST:
            raise DataError(f"more than {MOST_FILES:,} files, or folders nested more than {DEEPEST} deep", folder)
    if not paths:
        raise DataError(f"no tensors in this folder (expected files {', '.join(SUFFIXES)})", folder)
    stems = [os.path.basename(path) for path in paths]
    numbered = all(re.match(r"\d+[_-]\D", stem) for stem in stems)
    modules = {os.path.dirname(path) for path in paths}
    return [_describe_file(path, numbered, modules) for path in paths], calls


def _describe_file(path: str, is_numbered: bool, folders: set[str]) -> _File:
    parent, stem = os.path.split(os.path.splitext(path)[0])
    parts = parent.split(os.sep) if parent else []
    step = next((int(match[1]) for one in parts if (match := re.fullmatch(r"step_(\d{1,9})", one))), -1)
    start = max((at + 1 for at, one in enumerate(parts) if re.fullmatch(r"step_\d+", one)), default=0)
    run, parts = os.sep.join(parts[: max(start - 1, 0)]), parts[start:]
    if "___" in stem and "name=" in stem:
        return _describe_dumped(path, parent, stem)
    if match := re.fullmatch(r"Pass(\d{1,9})", stem):
        return _File(path, os.path.dirname(parent), int(match[1]), os.path.basename(parent), int(match[1]), "")
    if parts and (match := LOGGED.fullmatch(stem)):
        module, number = _split_call(parent, folders)
        keys = [*filter(None, match["parts"].split("_")), *filter(None, [match["key"][1:]])]
        name = ".".join([os.path.basename(module), match[1], *keys])
        return _File(path, run, step, match["device"], None, _of_call(name, number))
    if is_numbered and (match := re.match(r"(\d{1,18})[_-]", stem)):
        return _File(path, run, step, "", int(match[1]), ".".join([*parts, stem[match.end() :]]))
    return _File(path, run, step, "", None, ".".join([*parts, stem]))


def _describe_dumped(path: str, parent: str, stem: str) -> _File:
    """A file of the dumper of SGLang.

    stem  as step=0___rank=0___dump_index=1___name=q___layer_id=3
    """
    tags = dict(part.partition("=")[::2] for part in stem.split("___"))
    name = tags.get("name", "")
    if name.startswith("non_intrusive__"):  # by hooks: the path of a module and its input or output
        name = re.sub(r"(^|\.)inputs(?=\.)", r"\1input", name.removeprefix("non_intrusive__"))
    elif "layer_id" in tags:
        name = f"layers.{tags['layer_id']}.{name}"
    others = {
        tag: value for tag, value in tags.items() if tag not in PLAIN_TAGS and not tag.endswith(("_rank", "_size"))
    }
    name += "".join(f".{tag}={value}" for tag, value in others.items())
    step, order = (_number(tags.get(one, "")) for one in ("step", "dump_index"))
    if step is None:
        step = _number(tags.get("forward_pass_id", ""))
    return _File(path, parent, -1 if step is None else step, f"rank {tags.get('rank', '0')}", order, name)


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,18}", text) else None


def _split_call(module: str, folders: set[str]) -> tuple[str, int]:
    """The folder of a module and the number of its call.

    vLLM puts the second call of `norm` into `norm_1`.
    """
    match = re.fullmatch(r"(.+)_(\d{1,9})", module)
    return (match[1], int(match[2])) if match and match[1] in folders else (module, 0)


def _of_call(name: str, number: int) -> str:
    """The name of a tensor of a further call.

    >>> _of_call("output.norm.output.0", 1), _of_call("q", 2), _of_call("q", 0)
    ('output.norm#1.output.0', 'q#2', 'q')
    """
    if not number:
        return name
    match = HALF.fullmatch(name)
    return f"{match['path'] or ''}#{number}.{match['half']}" if match else f"{name}#{number}"


def _choose_step(files: list[_File]) -> tuple[list[_File], dict[str, str]]:
    """The files of the first step, and why the others are left out."""
    first = min(file.step for file in files)
    later = {file.path: f"of step {file.step}; step {first} is read" for file in files if file.step != first}
    return [file for file in files if file.step == first], later


def _in_order(files: list[_File], calls: dict[str, list[str]]) -> list[_File]:
    """The files in the order of writing, or of the numbers in their names."""
    natural = sorted(files, key=lambda file: _natural(file.path))
    if calls:
        order = _order_of_calls(calls)
        natural = [file._replace(order=_find_order(file.path, order)) for file in natural]
    return sorted(natural, key=lambda file: (file.order is None, file.order or 0, file.place))


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", path)]


def _order_of_calls(calls: dict[str, list[str]]) -> dict[tuple[str, str], int]:
    """The order of (folder of a module, input or output), from that of the calls.

    A call ends before the next one begins whose module is not inside its own.
    """
    events: list[tuple[str, str]] = []
    for parent, modules in calls.items():
        open_calls: list[str] = []
        for module in [*modules, ""]:
            while open_calls and not module.startswith(f"{open_calls[-1]}."):
                events.append((os.path.normpath(os.path.join(parent, open_calls.pop())), "output"))
            if module:
                events.append((os.path.normpath(os.path.join(parent, module)), "input"))
                open_calls.append(module)
    return {event: at for at, event in enumerate(events)}


def _find_order(path: str, order: dict[tuple[str, str], int]) -> int | None:
    parent, stem = os.path.split(path)
    return order.get((parent, "output" if stem.startswith("output") else "input"))


def _read_file(path: str, name: str, is_only: bool) -> dict[str, DumpEntry]:
    """The tensors of a file of a folder.

    The name is that of the file and their own, without what says nothing.

    The file is open no longer than it is read.
    """
    mapped = READERS[SUFFIXES[os.path.splitext(path)[1]]](path)
    inside = {one: one for one in mapped.entries}
    if all(re.match(r"value(\.|$)", one) for one in inside):  # SGLang writes {"value": …, "meta": …}
        inside = {one: one.removeprefix("value").removeprefix(".") for one in inside}
    if len(inside) == 1 and name and next(iter(mapped.entries)) in LONE:
        names = dict.fromkeys(inside, name)
    elif is_only or not name:
        names = inside
    else:
        names = {one: f"{name}.{key}" if key else name for one, key in inside.items()}
    return {names[one]: DumpEntry(*size, partial(_read_tensor, path, one)) for one, size in mapped.entries.items()}


def _read_tensor(path: str, name: str) -> Array:
    return READERS[SUFFIXES[os.path.splitext(path)[1]]](path).tensor(name)
