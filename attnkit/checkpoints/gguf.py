"""A GGUF file as a model: a config.json, and tensors by their published names.

llama.cpp renames tensors and changes some. ARCHITECTURES says of which family an architecture is, and GGUF in the file
of the family what its names and keys are, and how to undo the changes; the reader of the family then reads the file as
it does a folder.
"""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from attnkit.checkpoints.config_reader import ConfigReader, Fields
from attnkit.checkpoints.gguf_tokenizer import ARCHITECTURE, GgufFolder, read_id
from attnkit.checkpoints.weights import Weights
from attnkit.errors import DataError
from attnkit.formats.gguf import FLAG, FLAGS, NUMBER, TEXT, WHOLE, WHOLES, GgufFile, ValueType, open_gguf
from attnkit.formats.mapped import Mapped
from attnkit.formats.streams import name_errors
from attnkit.model.dtypes import Array

Values = dict[str, Any]
Undo = Callable[..., Array]

BLOCK = re.compile(r"blk\.([0-9]{1,6})\.")
SUFFIX = re.compile(r"\.(weight|bias)$")
SCALE = re.compile(r"\.(?:input_)?scale$")  # of a weight of 4 bits, and of its input where that has 4 bits too
EXPERT = re.compile(r"(?<=[a-z]\.)[0-9]{1,6}$")  # in older files, which have tensors for each expert
TOKENS = {"bos_token_id": "bos_token_id", "pad_token_id": "padding_token_id"}
ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
HARMLESS = (
    "context_length", "feed_forward_length", "rope.dimension_count", "rope.scaling.finetuned",
    "tensor_data_layout", "attention.max_alibi_bias", "pooling_type",
)  # fmt: skip

MOST_EXPERTS = 1 << 12
KINDS: dict[str, ValueType[Any]] = {  # of keys after the name of the architecture; all others are whole numbers
    **dict.fromkeys(
        (
            "attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon", "attention.scale",
            "attention.clamp_kqv", "attention.max_alibi_bias", "attn_logit_softcapping", "final_logit_softcapping",
            "embedding_scale", "residual_scale", "logit_scale", "expert_weights_scale", "rope.freq_base",
            "rope.freq_base_swa", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor",
            "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_log_multiplier",
        ),
        NUMBER,
    ),
    **dict.fromkeys(
        ("use_parallel_residual", "expert_weights_norm", "attention.causal", "rope.scaling.finetuned"), FLAG
    ),
    "attention.sliding_window_pattern": FLAGS,
    "attention.recurrent_layers": FLAGS,
    "rope.dimension_sections": WHOLES,
    "rope.scaling.type": TEXT,
    "expert_count": ValueType(
        f"a whole number, at most {MOST_EXPERTS}", lambda value: type(value) is int and 0 <= value <= MOST_EXPERTS
    ),
}  # fmt: skip

COUNTS = ValueType[Any](
    "a whole number, or one for each layer", lambda value: WHOLE.accepts(value) or WHOLES.accepts(value)
)

METADATA = {  # fact of a model -> the key that states it, after the name of the architecture
    "width": "embedding_length",
    "layers": "block_count",
    "hidden width": "feed_forward_length",
    "heads": "attention.head_count",
    "key/value heads": "attention.head_count_kv",
    "head width": "attention.key_length",
    "latent width": "attention.kv_lora_rank",
    "rotated width": "rope.dimension_count",
    "longest text": "context_length",
    "shorter text": "rope.scaling.original_context_length",
    "theta": "rope.freq_base",
    "window theta": "rope.freq_base_swa",
    "windows": "attention.sliding_window",
    "buckets": "attention.relative_buckets_count",
    "norm eps": "attention.layer_norm_epsilon",
    "rms norm eps": "attention.layer_norm_rms_epsilon",
    "score scale": "attention.scale",
    "score cap": "attn_logit_softcapping",
    "embedding factor": "embedding_scale",
    "residual factor": "residual_scale",
    "logit factor": "logit_scale",
    "logit cap": "final_logit_softcapping",
    "sub-layers": "use_parallel_residual",
    "experts": "expert_count",
    "chosen experts": "expert_used_count",
    "shared experts": "expert_shared_count",
    "expert width": "expert_feed_forward_length",
    "shared width": "expert_shared_feed_forward_length",
    "dense layers": "leading_dense_block_count",
    "expert factor": "expert_weights_scale",
    "first token": "decoder_start_token_id",
    "taps": "shortconv.l_cache",
    "state taps": "ssm.conv_kernel",
    "state width": "ssm.state_size",
    "state groups": "ssm.group_count",
    "state heads": "ssm.time_step_rank",
    "inner width": "ssm.inner_size",
}
SHARED = "key/value heads"
AGAIN = {  # keys that no family reads, and what they have to be equal to
    "attention.value_length": "attention.key_length",
    "attention.head_count_kv": "attention.head_count",
    "rope.freq_base_swa": "rope.freq_base",
}


class Change(NamedTuple):
    """What llama.cpp does to a tensor.

    undo   array of the file, values of config.json -> the published array
    shape  shape in the file -> the published one
    other  the name of a second tensor, of which the published one is made too; `undo` and `shape` get it as well, and
           `shape` raises ValueError where both do not fit each other
    """

    undo: Undo
    shape: Callable[..., tuple[int, ...]] = tuple
    other: str = ""


class Architecture(NamedTuple):
    """An architecture of llama.cpp.

    model_type  the family
    keys        the facts that the metadata state: names in FIELDS and in METADATA, or a key of config.json and a name
    names       name in the file, without .weight -> published name; {n} is the number of a layer, {h} of a head and {e}
                of an expert, of which the file has all in one tensor, unless its name has {e} too. With .weight the
                published name has another ending; "": the tensor is a part of what another one is published as
    infer       what tells more values, from other keys and the tensors: functions, or names in INFERENCES with their
                arguments
    changes     name in the file -> what llama.cpp does to the tensor: the fields of a Change, or a name in CHANGES with
                arguments
    instead     a tensor -> names in place of others, in a file that has it
    """

    model_type: str
    keys: tuple[str | tuple[str, str], ...]
    names: Mapping[str, str]
    infer: tuple[Any, ...]
    changes: Mapping[str, Any] = {}
    instead: Mapping[str, Mapping[str, str]] = {}

    def keys_of(self, fields: Fields) -> dict[str, str]:
        """The metadata keys by those of config.json, the first of each fact."""
        rows = ((fields[one].split()[0], one) if isinstance(one, str) else one for one in self.keys)
        return {key: METADATA[fact] for key, fact in rows}

    def change_of(self, *names: str) -> Change | None:
        """What llama.cpp does to a tensor, the first of these names that has an entry."""
        stated = next((self.changes[name] for name in names if name in self.changes), None)
        if isinstance(stated, str):
            return CHANGES[stated]()
        return stated and (CHANGES[stated[0]](*stated[1:]) if isinstance(stated[0], str) else Change(*stated))

    def infer_values(self, file: "ModelFile") -> Values:
        """What the keys and the tensors of a file tell beside `keys`."""
        values: Values = {}
        for stated in self.infer:
            if callable(stated):
                values |= stated(file)
            else:
                name, *arguments = (stated,) if isinstance(stated, str) else stated
                values |= INFERENCES[name](file, *arguments)
        return values

    def names_of(self, file: "ModelFile") -> Mapping[str, str]:
        """The names that apply to a file."""
        found = [names for name, names in self.instead.items() if name in file.entries]
        return reduce(lambda names, more: {**names, **more}, found, self.names)


class ModelFile:
    """The metadata of a file and the shapes of its tensors, as `infer` reads them.

    architecture  the name of the architecture
    entries       tensor name -> dtype and shape
    used          the keys that have been read
    """

    def __init__(self, opened: GgufFile) -> None:
        self.name = opened.parts[0].name
        self.metadata, self.parts = opened.metadata, opened.parts
        self.entries = {name: entry for part in opened.parts for name, entry in part.entries.items()}
        architecture = opened.metadata.read(ARCHITECTURE, TEXT)
        if architecture is None:
            raise DataError(f"no {ARCHITECTURE}: not the file of a model", self.name)
        self.architecture = architecture
        self.used: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key after the architecture's name, as config.json has it.

        DataError for a value of another kind than KINDS has.
        """
        self.used.add(key)
        kind: ValueType[Any] = KINDS.get(key, WHOLE)
        value: Any = self.metadata.read(f"{self.architecture}.{key}", kind)
        return default if value is None else json_value(value)

    def get_int(self, key: str, default: int = 0) -> int:
        return int(self.get(key, default))

    def get_counts(self, key: str) -> list[int]:
        """A whole number for each layer; a single one holds for all."""
        self.used.add(key)
        value = self.metadata.read(f"{self.architecture}.{key}", COUNTS, 0)
        return value.tolist() if isinstance(value, np.ndarray) else [value] * self.get_int("block_count")

    def numbers(self, name: str) -> list[float]:
        """The numbers of a small tensor."""
        [part] = [part for part in self.parts if name in part.entries]
        return [json_value(float(number)) for number in part.tensor(name).astype(np.float32).ravel()]

    def head_dim(self) -> int:
        """The width of a head. DataError if the file does not say."""
        if (own := self.get_int("attention.key_length")) > 0:
            return own
        width, heads = self.get_int("embedding_length"), self.get_int("attention.head_count")
        if heads < 1 or width < 1 or width % heads:
            problem = f"embedding_length {width} is not divisible by attention.head_count {heads}"
            raise DataError(problem, self.name)
        return width // heads

    def rotation(self) -> Values:
        """The scaling of the rotation, by keys or by tensors of frequency divisors."""
        kind, factor = self.get("rope.scaling.type", "none"), self.get("rope.scaling.factor")
        original, attention = (self.get(f"rope.scaling.{key}") for key in ("original_context_length", "attn_factor"))
        extent = self.get_int("context_length")
        short, long = ("rope_factors_short.weight", "rope_factors_long.weight")
        if "rope_freqs.weight" in self.entries:  # divisors for every length, as of Llama 3.1
            divisors = self.numbers("rope_freqs.weight")
            rope = {"short_factor": divisors, "long_factor": divisors, "attention_factor": 1.0}
            return {"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": extent, **rope}}
        if short in self.entries and long in self.entries:
            rope = {"short_factor": self.numbers(short), "long_factor": self.numbers(long)}
            rope |= {"original_max_position_embeddings": original or extent}
            return {"rope_scaling": {"rope_type": "longrope", **rope, "attention_factor": attention or 1.0}}
        if kind == "none" or not factor:
            return {}
        rope = {"rope_type": kind, "factor": factor}
        if kind == "yarn":
            rope |= {"original_max_position_embeddings": original} if original else {}
            betas = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
            rope |= {key: value for key, name in betas.items() if (value := self.get(f"rope.scaling.{name}"))}
            if published := self.get("rope.scaling.yarn_attn_factor"):
                rope["attention_factor"] = published
            elif attention and factor > 0:
                rope["attention_factor"] = attention * (1 + 0.1 * math.log(factor))
        return {"rope_scaling": rope}

    def check_gating(self, rule: int) -> None:
        """Raise DataError if the router has another rule than this one."""
        if (stated := self.get_int("expert_gating_func", rule)) != rule:
            raise DataError(f"expert_gating_func {stated} is not supported here (expected {rule})", self.name)


def json_value(value: Any) -> Any:
    """A value of the metadata as JSON would hold it: of float32 the shortest decimal.

    >>> json_value(np.float32(1e-6).item()), json_value(np.array([8, 4]))
    (1e-06, [8, 4])
    """
    if isinstance(value, np.ndarray):
        return [json_value(item) for item in value.tolist()]
    with np.errstate(over="ignore"):
        return float(str(np.float32(value))) if isinstance(value, float) and np.float32(value) == value else value


def unrotate(heads: str, array: Array, values: Mapping[str, Any]) -> Array:
    """Undo the order of rows that makes the two halves of a head neighbours.

    >>> unrotate("heads", np.arange(8), {"heads": 2})
    array([0, 2, 1, 3, 4, 6, 5, 7])
    """
    count = values.get(heads) or values["num_attention_heads"]
    with_heads = array.reshape(count, -1, 2, *array.shape[1:])
    return with_heads.swapaxes(1, 2).reshape(array.shape)


def group_heads(heads: str, groups: str, array: Array, values: Mapping[str, Any]) -> Array:
    """Rows of queries, keys and values, ordered by groups of heads.

    A group shares a key and a value.

    >>> group_heads("heads", "groups", np.arange(8), {"heads": 4, "groups": 2})
    array([0, 1, 4, 6, 2, 3, 5, 7])
    """
    count, shared = values[heads], values.get(groups, 1)
    each = len(array) // (count + 2 * shared)
    q, k, v = np.split(array, [count * each, (count + shared) * each])
    grouped = [part.reshape(shared, -1, *array.shape[1:]) for part in (q, k, v)]
    return np.concatenate(grouped, axis=1).reshape(array.shape)


CHANGES: dict[str, Callable[..., Change]] = {  # of several families
    "transposed": lambda: Change(lambda array, values: array.T, lambda shape: shape[::-1]),
    "less one": lambda: Change(lambda array, values: array - array.dtype.type(1)),
    "rotated": lambda heads: Change(partial(unrotate, heads)),
    "by head": lambda heads, groups: Change(partial(group_heads, heads, groups)),
}
WORDS, HEAD = "token_embd.weight", "output.weight"
ROUTER = ".ffn_gate_inp.weight"


def infer_head(file: ModelFile) -> Values:
    """A head that predicts words: the embedding table, unless the file has another."""
    return {"architectures": ["ForCausalLM"], "tie_word_embeddings": HEAD not in file.entries}


def infer_biases(file: ModelFile) -> Values:
    return {
        "attention_bias": "blk.0.attn_q.bias" in file.entries,
        "mlp_bias": "blk.0.ffn_up.bias" in file.entries,
    }


def infer_direction(file: ModelFile) -> Values:
    """Attention in both directions, if the file asks for it.

    DataError with windows, which llama.cpp then applies to the keys before a query alone.
    """
    if file.get("attention.causal") is not False:
        return {}
    if file.get_int("attention.sliding_window"):
        raise DataError("attention.causal false is not supported with a sliding window", file.name)
    return {"is_causal": False}


def infer_whole_rotation(file: ModelFile) -> Values:
    """Raise DataError if a part of each head is rotated, and the family rotates all."""
    if (count := file.get_int("rope.dimension_count", file.head_dim())) != file.head_dim():
        problem = f"rope.dimension_count is {count} (expected the width of a head, {file.head_dim()})"
        raise DataError(problem, file.name)
    return {}


def infer_part(file: ModelFile, key: str) -> Values:
    """The part of each head that is rotated."""
    count, width = file.get_int("rope.dimension_count"), file.head_dim()
    # the part is multiplied by the width and rounded down: the next float above keeps the count
    return {key: min(math.nextafter(count / width, 2.0), 1.0)} if count else {}


INFERENCES: dict[str, Callable[..., Values]] = {  # of several families
    "head": infer_head,
    "biases": infer_biases,
    "rotation": ModelFile.rotation,
    "whole rotation": infer_whole_rotation,
    "rotated part": infer_part,
}
ARCHITECTURES = {  # of llama.cpp -> family
    "llama": "llama", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "olmoe": "olmoe", "gpt-oss": "gpt_oss",
    "deepseek2": "deepseek_v2", "qwen2": "qwen2", "qwen3": "qwen3", "smollm3": "smollm3", "granite": "granite",
    "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text", "olmo": "olmo", "olmo2": "olmo2", "phi2": "phi",
    "phi3": "phi3", "stablelm": "stablelm", "command-r": "cohere", "cohere2": "cohere2", "gptneox": "gpt_neox",
    "qwen3next": "qwen3_next", "qwen35": "qwen3_5_text", "qwen35moe": "qwen3_5_moe_text",
    "falcon": "falcon", "bloom": "bloom", "gpt2": "gpt2", "bert": "bert", "t5": "t5", "t5encoder": "t5",
    "nomic-bert": "nomic_bert", "jina-bert-v3": "jina_embeddings_v3", "eurobert": "eurobert", "lfm2": "lfm2",
    "lfm2moe": "lfm2_moe",
    "mamba2": "mamba2", "granitehybrid": "granitemoehybrid", "falcon-h1": "falcon_h1",
}  # fmt: skip
OTHERWISE = {"granitehybrid": ("attention.scale", "bamba")}  # the family of files that lack a key


def open_model(path: str, fact_of: Callable[[str, str], Any]) -> tuple[ConfigReader, Weights, GgufFolder]:
    """Open a GGUF file: configuration and tensors for its family, and its tokenizer.

    fact_of  a family and the name of a fact -> what its file states

    DataError for an architecture that is not known, or for keys that are not read and may change a number.
    """
    file = ModelFile(open_gguf(path))
    family = ARCHITECTURES.get(file.architecture)
    key, other = OTHERWISE.get(file.architecture, ("", ""))
    family = other if key and file.get(key) is None else family
    if family is None:
        known = ", ".join(ARCHITECTURES)
        raise DataError(f"architecture {file.architecture[:40]!r} is not known (expected {known})", path)
    architecture = Architecture(family, **fact_of(family, "GGUF"))
    keys = architecture.keys_of(fact_of(family, "FIELDS"))
    with name_errors(path):
        values = infer_values(file, architecture, keys)
        weights = name_tensors(file, architecture, values)
        names = {key: f"{file.architecture}.{name}" for key, name in keys.items()}
        return ConfigReader(values, path, names=names), weights, GgufFolder(path, file.metadata, weights.files)


def infer_values(file: ModelFile, architecture: Architecture, keys: Mapping[str, str]) -> Values:
    """The values of config.json that a file and its architecture state."""
    values: Values = {"model_type": architecture.model_type}
    if WORDS not in file.entries or len(file.entries[WORDS][1]) != 2:
        raise DataError(f"no table of embeddings {WORDS!r}")
    values["vocab_size"] = rows = file.entries[WORDS][1][0]
    if (stated := file.get_int("vocab_size", rows)) != rows:
        raise DataError(f"{file.architecture}.vocab_size is {stated} (expected {rows}, the rows of {WORDS})")
    routers = {shape[0] for name, (_, shape) in file.entries.items() if name.endswith(ROUTER) and shape}
    if (count := file.get_int("expert_count")) and routers != {count}:
        outputs = ", ".join(map(str, sorted(routers))) or "none"
        raise DataError(f"expert_count is {count}, and the outputs of the routers are {outputs}")
    for key, name in keys.items():
        value = file.get(name)
        if value is None and name == METADATA[SHARED] and SHARED in architecture.keys:  # to llama.cpp as many as heads
            value = file.get(METADATA["heads"])
        if value is not None:
            values[key] = value
    if values.get("sliding_window") == 0:  # as converters write null
        values["sliding_window"] = None
    values |= architecture.infer_values(file) | infer_direction(file)
    values |= {key: id for key, name in TOKENS.items() if (id := read_id(file.metadata, name)) is not None}
    ends = [id for name in ENDS if (id := read_id(file.metadata, name)) is not None]
    if ends:
        values["eos_token_id"] = [*dict.fromkeys(ends)]
    refuse_unread_keys(file)
    return values


def refuse_unread_keys(file: ModelFile) -> None:
    """Raise DataError for an unread key of the architecture that may change numbers."""
    begin = f"{file.architecture}."
    for key, value in file.metadata.items():
        name = key.removeprefix(begin)
        is_known = name == key or name in file.used or name in HARMLESS
        if not is_known and name in AGAIN:
            expected = file.head_dim() if name == "attention.value_length" else file.get(AGAIN[name])
            if (stated := file.get(name)) != expected:
                raise DataError(f"{key} is {stated} (expected {expected}, as {begin}{AGAIN[name]})")
            continue
        is_off = isinstance(value, bool | int | float) and not value
        if not is_known and not is_off:
            raise DataError(f"{key[:100]} is not supported, and may change what the model computes")


class Restored(NamedTuple):
    """The tensor in the file that a published one is made of.

    change  what llama.cpp did to it
    row     the row of it that it is, where the file has several tensors as one
    other   the name of a second tensor that it is made of
    """

    name: str
    change: Change | None = None
    row: int | None = None
    other: str = ""

    def entry(self, parts: Mapping[str, Mapped]) -> tuple[str, tuple[int, ...]]:
        """The dtype and the published shape.

        DataError for tensors that do not fit each other.
        """
        dtype, shape = parts[self.name].entries[self.name]
        shape = shape if self.row is None else shape[1:]
        others = [parts[self.other].entries[self.other][1]] if self.other in parts else []
        try:
            return dtype, self.change.shape(shape, *others) if self.change else shape
        except IndexError:
            raise DataError(f"tensor {self.name!r} has shape {shape} (expected more dimensions)") from None
        except (ValueError, TypeError):
            found = f"shape {others[0]}" if others else "missing"
            problem = f"tensor {self.name!r} has shape {shape}, which does not fit {self.other!r} ({found})"
            raise DataError(problem) from None

    def read(self, parts: Mapping[str, Mapped], values: Mapping[str, Any]) -> Array:
        """The published tensor."""
        array = read_scaled(parts, self.name, self.row)
        if self.change is None:
            return array
        try:
            others = [read_scaled(parts, self.other)] if self.other else []
            return self.change.undo(array, *others, values)
        except (ValueError, ZeroDivisionError):
            raise DataError(f"tensor {self.name!r}: shape {array.shape} does not fit the heads of the model") from None


def read_scaled(parts: Mapping[str, Mapped], name: str, index: Any = None) -> Array:
    """A tensor of the file, or rows of it, times its scale if there is one.

    The scale of attn_q.weight is attn_q.scale: a number, or one for each expert. DataError for another shape.
    """
    part, scale = parts[name], f"{SUFFIX.sub('', name)}.scale"
    array = part.tensor(name) if index is None else part.rows(name, index)
    if scale not in parts or not name.endswith(".weight"):
        return array
    factors, shape = parts[scale].tensor(scale).astype(np.float32), part.entries[name][1]
    if factors.shape != (1,) and not (len(shape) == 3 and factors.shape == shape[:1]):
        raise DataError(f"tensor {scale[:100]!r} has shape {factors.shape} (expected (1), or (experts))", part.name)
    if len(shape) == 3:
        factors = np.broadcast_to(factors, shape[:1])[... if index is None else index]
        factors = factors[..., None, None]
    return (array * factors).astype(array.dtype)


def name_tensors(file: ModelFile, architecture: Architecture, values: Values) -> Weights:
    """The tensors under their published names, each changed back when it is read."""
    mapped: dict[str, Mapped] = {}
    for name, (_, shape) in file.entries.items():
        if 0 in shape:  # of any number of experts or heads, in no bytes
            raise DataError(f"tensor {name[:100]!r} has shape {shape} (expected at least 1 of each)")
    names, layers = architecture.names_of(file), values.get("num_hidden_layers", 0)
    further = layers if file.get_int("nextn_predict_layers") else math.inf  # whose blocks predict further tokens
    parts = {name: part for part in file.parts for name in part.entries}
    for part in file.parts:
        read_apart = {*ROPE_FACTORS, *(name for name in part.entries if is_scale(parts, name))}
        read_apart |= {name for name in part.entries if (block := BLOCK.match(name)) and int(block[1]) >= further}
        found = (find_published(file, architecture, names, name) for name in part.entries if name not in read_apart)
        restored = {published: one for many in found for published, one in many.items()}
        entries = {name: one.entry(parts) for name, one in restored.items()}
        packed = {name: part.packed[one.name] for name, one in restored.items() if one.name in part.packed}
        read, read_rows = (partial(function, parts, restored, values) for function in (restore_tensor, restore_rows))
        mapped |= dict.fromkeys(restored, Mapped(part.name, entries, read, packed, read_rows))
    weights = Weights(file.name, [part.name for part in file.parts], mapped)
    weights.is_strict = True  # llama.cpp opens no file with a tensor that it does not read
    return weights


def is_scale(parts: Mapping[str, Mapped], name: str) -> bool:
    """Whether a tensor is the scale of a weight, or of its input.

    That of an input says how to round it to four bits, which is not done here.
    """
    return bool(SCALE.search(name)) and SCALE.sub(".weight", name) in parts


def find_published(
    file: ModelFile, architecture: Architecture, names: Mapping[str, str], name: str
) -> dict[str, Restored]:
    """The published tensors of one in the file, by name; an unknown one is itself."""
    suffix, number = SUFFIX.search(name), BLOCK.search(name)
    bare = SUFFIX.sub("", name)
    expert = EXPERT.search(bare)
    pattern = BLOCK.sub("blk.{n}.", EXPERT.sub("{e}", bare))
    whole = pattern + (suffix[0] if suffix else "")
    published = names.get(whole, names.get(pattern))
    if published is None:
        return {name: Restored(name)}
    if not published:
        return {}
    layer = number[1] if number else ""
    published = published.replace("{n}", layer) + (suffix[0] if suffix and whole not in names else "")
    if expert:
        published = published.replace("{e}", expert[0])
    change = architecture.change_of(whole, pattern)
    for mark, key in (("{h}", "attention.head_count"), ("{e}", "expert_count")):
        if mark in published:
            shape, most = file.entries[name][1], file.get_int(key)
            if not shape or shape[0] > most:
                raise DataError(f"tensor {name[:100]!r} has shape {shape} (expected at most {most} rows, by {key})")
            return {published.replace(mark, str(row)): Restored(name, row=row) for row in range(shape[0])}
    return {published: Restored(name, change, other=change.other.replace("{n}", layer) if change else "")}


def restore_tensor(
    parts: Mapping[str, Mapped], restored: Mapping[str, Restored], values: Mapping[str, Any], name: str
) -> Array:
    return restored[name].read(parts, values)


def restore_rows(
    parts: Mapping[str, Mapped], restored: Mapping[str, Restored], values: Mapping[str, Any], name: str, index: Any
) -> Array:
    """The rows of a published tensor that an index selects.

    No others are decoded, where rows are as in the file.
    """
    one = restored[name]
    is_plain = one.change is None and one.row is None
    return read_scaled(parts, one.name, index) if is_plain else one.read(parts, values)[index]
