"""The output of a command as lines of text: tensors, figures and long texts shortened, other text unchanged."""

import hashlib
import html
import io
import itertools
import json
import re
import zipfile

import numpy as np

import attnkit

MACHINE = re.compile(r"\bOpenBLAS \w+, NumPy \d[\w.]*(, \d+ threads?)?|\baccelerate, NumPy \d[\w.]*")
LONG_JSON, LONG_TEXT = 4_000, 12_000  # the most bytes of a text that is given in full


def normalized(text, folder):
    """Text without folders, digests, versions and machines, which change from run to run."""
    text = text.replace(f"{folder}/", "").replace(str(folder), ".")
    text = re.sub(r"\b[0-9a-f]{64}\b", "<sha256>", text)
    text = re.sub(r"\b[0-9a-f]{12}…", "<sha256>…", text)
    text = re.sub(r',\s*"machine": ?"[^"]*"', "", text)
    text = MACHINE.sub("<machine>", text)
    return re.sub(rf"(attnkit |version\W+){re.escape(attnkit.__version__)}", r"\1<version>", text)


def rendered(data, folder):
    """Bytes as text; tensors, figures and long texts are shortened and followed by the SHA-256 of all."""
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
    """The arrays of an NPZ, and its member meta.json."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(members.pop("meta.json", b"{}"))
    return {name.removesuffix(".npy"): next(npy_arrays(content)) for name, content in members.items()}, about


def safetensors_arrays(data):
    """The arrays of a safetensors file, and its metadata."""
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
    """The records of a stream of JSON: arrays, and the rest of each record."""
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
    """The numbers in nested lists, in which NaN and infinity are words."""
    if isinstance(value, list):
        return [number for one in value for number in flat(one)]
    return [float(value) if isinstance(value, str) else value]


def described(form, arrays, about):
    """A short description of a record: a line for each tensor, its labels and its history."""
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
    """A short description of a tensor: dtype, shape, axes, sums over all its numbers, and the first numbers.

    dot is the sum of x[i] · cos(i) over the sum of |x[i]|, which is the same to 5 places on every processor.
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
    """The text of a figure or a page, a line for each piece."""
    text = re.sub(r"<(style|script|defs)\b.*?</\1>", "", markup, flags=re.DOTALL)
    text = html.unescape(re.sub(r"<[^>]*>", "\n", text)).replace("\xa0", " ")
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    pieces = [line for line, _ in itertools.groupby(lines)]
    kind = "svg" if "<svg" in markup else "html"
    return f"{kind} with the text\n" + "".join(f"  {line}\n" for line in pieces[:150]) + "  …\n" * (len(pieces) > 150)
