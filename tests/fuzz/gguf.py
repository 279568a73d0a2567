"""GGUF files of tiny models: values of other types in the metadata, and other types, shapes and offsets of tensors."""

import functools
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from attnkit.formats.gguf import Strings, read_header
from tests.fuzz.runner import INTEGERS, Door, check_command
from tests.gguf_files import F64, I64, LIST, U8, U64, pack_text, pack_value
from tests.gguf_models import TOKENIZERS, convert, tokenizer_keys

MODELS = (
    "llama", "gpt2", "t5", "bert-mlm", "olmo3", "mixtral", "deepseek_v3", "gpt_oss", "phi3-long", "stablelm", "gemma2",
    "falcon-40b", "smollm3",
)  # fmt: skip
COMMANDS = (
    ("show", "FILE"),
    ("show", "FILE", "--list"),
    ("show", "FILE", "--stats"),
    ("encode", "--model", "FILE", "The cat sat", "--pool", "mean"),
    ("decode", "--model", "FILE", "The cat", "--max-tokens", "2"),
    ("diff", "FILE", "FILE"),
    ("score", "--model", "FILE", "The cat sat"),
)
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, 3e38, float("inf"), float("-inf"), float("nan"), 2.5]
TEXTS = ["", "llama", "gpt2", "t5", "yarn", "linear", "longrope", "su", "4", "true", "a" * 300, "\x1b[2J", "é\n", "{}"]
TEXTS += ["{% for i in range(9) %}x{% endfor %}", '{"model": {}}', "bert", "deepseek2", "qwen2moe"]
SHAPES = [(), (0,), (1,), (1, 1), (0, 0), (3, 0), (1000000, 0), (1000000, 0, 0), (2, 3), (1 << 32, 1 << 32), (1, 1, 1)]


class Seed:
    """The parts of a file: pairs of keys and values, and the description and bytes of each tensor."""

    def __init__(self, content: bytes) -> None:
        header = read_header(memoryview(content))
        self.pairs: list[tuple[Any, Any]] = [(key, plain(value)) for key, value in header.metadata.items()]
        self.tensors = [
            [name, entry.shape, 0, entry.begin, header.data[entry.begin : entry.end].tobytes()]
            for name, entry in header.entries.items()
        ]

    def pack(self, pairs: list[tuple[Any, Any]], tensors: list[list[Any]]) -> bytes:
        infos, data = b"", b""
        for name, shape, kind, offset, content in tensors:
            at = len(data) if offset is None else offset
            dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
            infos += pack_text(name) + dimensions + struct.pack("<IQ", kind, at)
            data += content + bytes(-len(content) % 32)
        keys = b"".join(pack_text(key) + pack_value(value) for key, value in pairs)
        head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + keys + infos
        return head + bytes(-len(head) % 32) + data


def plain(value: Any) -> Any:
    """A value of the metadata as `pack_value` takes it."""
    if isinstance(value, Strings):
        return value.read()
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        return struct.pack("<IIQ", LIST, U8, value.size) + value.tobytes()
    return value.tolist() if isinstance(value, np.ndarray) else value


@functools.cache
def read_seed(model: str) -> Seed:
    return Seed(convert(model, tokenizer_keys(model) if model in TOKENIZERS else ()))


def draw_value(rng: random.Random, old: Any) -> Any:
    """A value of any type, more often of the type that it replaces."""
    integer = rng.choice([*INTEGERS, rng.randrange(64)])
    match rng.randrange(12):
        case 0:
            return rng.choice(TEXTS)
        case 1:
            return rng.choice([True, False])
        case 2:
            return rng.choice(FLOATS)
        case 3:
            return struct.pack("<Id", F64, rng.choice([*FLOATS, -1e308, 3.5e38]))
        case 4:
            return struct.pack("<IQ", U64, integer % (1 << 64))
        case 5:
            return struct.pack("<Iq", I64, integer % (1 << 63) - (1 << 62))
        case 6:
            return rng.choice(
                [
                    [],
                    struct.pack("<IIQd", LIST, F64, 1, 1e300),
                    [1, 2],
                    [4, 4],
                    [1.5, 2.5],
                    [True, False],
                    [float("nan")] * 2,
                    [0] * 300,
                    [7],
                ]
            )
        case 7:
            return rng.choice([["a"], ["a", "b"], [""] * 9, ["a" * 70000], TEXTS])
        case 8 if isinstance(old, list) and old:
            return rng.choice([old[:-1], old * 2, old[::-1], old[:1] * len(old), [*old[:-1], draw_item(rng, old[-1])]])
        case 9 if isinstance(old, list):
            return [draw_item(rng, item) if rng.random() < 0.05 else item for item in old]
        case _:
            return draw_item(rng, old)


def draw_item(rng: random.Random, old: Any) -> Any:
    if isinstance(old, bool) or not isinstance(old, int | float | str):
        return rng.choice([True, False])
    if isinstance(old, int):
        return rng.choice([0, 1, 2, 3, 5, 7, 64, 1000, 1 << 20, (1 << 31) - 1, (1 << 32) - 1, -1, -2, old - 1])
    return rng.choice(FLOATS if isinstance(old, float) else TEXTS)


def edit_pairs(rng: random.Random, pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    at = rng.randrange(len(pairs))
    key, value = pairs[at]
    architecture = dict(pairs).get("general.architecture", "llama")
    other = rng.choice(
        [
            *("expert_count", "expert_used_count", "rope.scaling.type", "rope.scaling.factor", "attention.key_length"),
            *("rope.dimension_count", "attention.sliding_window", "attention.sliding_window_pattern", "pooling_type"),
            *("rope.scaling.original_context_length", "expert_gating_func", "attention.head_count_kv", "unknown"),
        ]
    )
    added = rng.choice(
        [
            f"{architecture}.{other}",
            *("split.count", "split.no", "split.tensors.count", "general.alignment", "tokenizer.chat_template"),
            *("tokenizer.huggingface.json", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.precompiled_charsmap"),
            *("tokenizer.ggml.eot_token_id", "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens"),
        ]
    )
    match rng.randrange(8):
        case 0:
            return pairs[:at] + pairs[at + 1 :]
        case 1 | 2:
            return [*(pair for pair in pairs if pair[0] != added), (added, draw_value(rng, 1))]
        case _:
            return [*pairs[:at], (key, draw_value(rng, value)), *pairs[at + 1 :]]


def edit_tensors(rng: random.Random, tensors: list[list[Any]]) -> list[list[Any]]:
    edited = [[*tensor] for tensor in tensors]
    one = rng.choice(edited)
    match rng.randrange(7):
        case 0:
            one[1] = rng.choice([*SHAPES, one[1][::-1], (*one[1], 1), one[1][1:], (one[1][:1] or (1,)) * 3])
        case 1:
            one[2] = rng.choice([1, 2, 4, 8, 9, 16, 24, 30, 38, 39, 41, 42, 43, 99, (1 << 32) - 1])
        case 2:
            one[3] = rng.choice([0, 1, 32, 1 << 20, 1 << 63, (1 << 64) - 32])
        case 3:
            edited.remove(one)
        case 4:
            one[0] = rng.choice([*(other[0] for other in edited), "x", "output.weight", "blk.999999.attn_q.weight"])
        case 5:
            edited.append([rng.choice(["output.bias", "rope_freqs.weight", "y"]), *one[1:]])
        case _:
            one[1], one[2], one[4] = (len(one[4]) // 4 * 4 // 34 * 32,), 8, one[4][: len(one[4]) // 34 * 34]
    return edited


def draw(rng: random.Random) -> bytes:
    seed = read_seed(rng.choice(MODELS))
    pairs, tensors = seed.pairs, [[*tensor[:3], None, tensor[4]] for tensor in seed.tensors]
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if rng.random() < 0.75:
            pairs = edit_pairs(rng, pairs)
        else:
            tensors = edit_tensors(rng, tensors)
    return seed.pack(pairs, tensors)


def check(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    command = COMMANDS[zlib.crc32(content) % len(COMMANDS)]
    return check_command(*(part.replace("FILE", str(path)) for part in command))


def doors(scratch: str) -> dict[str, Door]:
    return {"gguf models": Door(draw, functools.partial(check, Path(scratch, "m.gguf")), 8)}
