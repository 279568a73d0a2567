"""Open a published folder as a model, by the family that its config.json names."""

import glob
import importlib
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cache, cached_property, reduce
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from attnkit import formats
from attnkit.checkpoints import static_embedding
from attnkit.checkpoints.bidirectional import name_encoder, read_direction
from attnkit.checkpoints.config_reader import END_KEYS, LARGEST, TOKEN_KEYS, ConfigReader, keys_of, read_json_object
from attnkit.checkpoints.harmless_keys import note_unread, refuse_unread
from attnkit.checkpoints.mxfp4 import join_packed
from attnkit.checkpoints.picture_towers import PictureTokens
from attnkit.checkpoints.unread_tensors import COMPUTED, COPY, ZERO, UnreadTensors, sort_unread
from attnkit.checkpoints.weights import (
    MAX_NAME_LENGTH,
    Layers,
    TensorSpec,
    Weights,
    expand_layers,
    open_weights,
)
from attnkit.errors import (
    AttnkitError,
    AttnkitNote,
    AttnkitWarning,
    DataError,
    FileError,
    counted,
    format_bytes,
)
from attnkit.formats.streams import exists, name_errors
from attnkit.model.config import Config, Similarity
from attnkit.model.dtypes import FLOATS, Array
from attnkit.model.formulas.linear import to_column_major
from attnkit.model.formulas.rotary import rope_frequencies
from attnkit.records import join_names

if TYPE_CHECKING:
    from attnkit.tokenizers.files import TokenizerFolder
    from attnkit.tokenizers.tokens import Tokenizer

FAMILIES = ("albert", "bamba", "bart", "bert", "bloom", "camembert", "clip", "clip_text_model", "clip_vision_model",
            "cohere", "cohere2", "deberta-v2", "deepseek_v2", "deepseek_v3", "dinov2", "dinov2_with_registers",
            "dinov3_vit", "distilbert", "electra", "eurobert", "falcon", "falcon_h1", "gemma", "gemma2", "gemma3",
            "gemma3_text", "gpt2", "gpt_neo", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoehybrid", "gte",
            "hubert", "idefics3", "jina_embeddings_v3", "lfm2", "lfm2_moe", "llama", "llava", "lstm", "m2m_100",
            "mamba2", "marian", "mbart", "mistral", "mixtral", "modernbert", "moonshine", "mpnet", "mt5", "nomic_bert",
            "olmo", "olmo2", "olmo3", "olmoe", "openai-gpt", "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3",
            "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next", "roberta",
            "seq2seq", "siglip", "siglip_text_model", "siglip_vision_model", "smollm3", "smolvlm", "stablelm", "t5",
            "transformer", "vit", "wav2vec2", "whisper", "xlm-roberta")  # fmt: skip
SAME_AS = {  # families that differ from another by name alone
    "hubert": "wav2vec2",
    "smolvlm": "idefics3",
}
RENAMED = {  # model_type of code that was published beside models -> the family in transformers
    "new": "gte",
}
CONFIG, GENERATION_CONFIG, MARIAN_FILE = "config.json", "generation_config.json", "model.npz"
TOWERS = ("text", "vision")  # DIR:text and DIR:vision are the towers of a model of texts and images
WHAT_A_MODEL_IS = "a model is a local folder as published: attnkit help models"
FEW = 64  # layers, whose tensors are looked up in any case; some may share one
SHARE = 0.8  # of the available memory that weights may take; the rest is for activations and caches
LARGE, BLOCK = 1 << 18, 1 << 15  # numbers that a thread converts, and of those the ones that stay in its cache
SIGN, OVERFLOW = np.int32(-(1 << 31)), 2.0**16


Key = tuple[tuple[str, ...], float | None, int]  # stored tensors, their padding, and the entry of a stack


class Parameters(Mapping[str, Mapping[str, Array]]):
    """Parameters by layer, each layer converted on first use.

    Layers are kept if all of them fit into memory.

    weights  the stored tensors
    specs    layer -> {parameter: where it is stored}

    Weights are (in, out), views of the file where it holds float32 or float64. DataError if a tensor is missing,
    has another shape than the configuration says, or holds no floats.
    """

    def __init__(self, config: Config, weights: Weights, specs: Mapping[str, Mapping[str, TensorSpec]]) -> None:
        self.config = config
        self.weights = weights
        self.specs = specs
        self._stored = {
            layer: {name: self._find(layer, name) for name in parameters} for layer, parameters in specs.items()
        }
        self._layers: dict[str, dict[str, Array]] = {}
        self._views: dict[str, dict[str, Array]] = {}  # in the dtype of the file
        self._tensors: dict[Key, Array] = {}  # one may hold several parameters
        self._column_major: set[tuple[str, str]] = set()
        self._used_layers: dict[str, None] = {}  # in the order of their first use
        self._originals: dict[str, str] = {}  # a stored tensor that a tie names -> the one that is read in its place
        self._has_noted = False
        self._is_complete = False  # known to have no tensors that a layer should read

    def __getitem__(self, layer: str) -> Mapping[str, Array]:
        if not self._is_complete:
            self.refuse_unread()
        return self.convert(layer)

    def convert(self, layer: str) -> Mapping[str, Array]:
        """The parameters of a layer, even of a model with tensors that no layer reads."""
        parameters = self._layers.get(layer)
        if parameters is None:
            self._make_room()
            parameters = self._layers[layer] = {name: self._convert(layer, name) for name in self.specs[layer]}
            self._used_layers[layer] = None
        return parameters

    def __contains__(self, layer: object) -> bool:
        return layer in self.specs

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def __len__(self) -> int:
        return len(self.specs)

    def stored(self, layer: str) -> Mapping[str, Array]:
        """The parameters of a layer as views of the file, in 16 bits where it holds these."""
        if layer not in self._views:
            self.refuse_unread()
            self._views[layer] = {name: self._view(layer, name) for name in self.specs[layer]}
        return self._views[layer]

    def read(self, layer: str, name: str) -> Array:
        """One parameter, which is not kept."""
        spec = self.specs[layer][name]
        stored = as_float(self._read(self.stored_names(layer, name), spec))
        return spec.of_entry().to_parameter(stored, self.config.parameter_shape(layer, name))

    def release(self, layer: str, name: str) -> None:
        """Give the memory of the mapped file back that holds a parameter."""
        for stored in self.stored_names(layer, name):
            if self.weights.is_in_place(stored) or self.weights.entries[stored][0] in ("float16", "bfloat16"):
                formats.release_pages(self.weights.tensor(stored))

    def stored_name(self, layer: str, name: str) -> str:
        """The stored tensor of a parameter, the first one of several that are joined."""
        return self.stored_names(layer, name)[0]

    def stored_names(self, layer: str, name: str) -> tuple[str, ...]:
        """The stored tensors of a parameter; for equal tied ones the shared one."""
        stored, spec = self._stored[layer][name], self.specs[layer][name]
        return tuple(self._original(one, spec.tied) for one in stored) if spec.tied else stored

    def source(self, layer: str, name: str) -> tuple[object, ...]:
        """The stored tensors of a parameter and its part of them, as for its tied ones."""
        spec = self.specs[layer][name]
        return self.stored_names(layer, name), spec.share, spec.entry

    @cached_property
    def keeps_layers(self) -> bool:
        """Whether converted layers stay in memory; otherwise only the last one does.

        They stay if they are views of the file, or if all of them leave enough of the available memory for a run.
        """
        most = self._measure_converted(self._found)  # without a comparison of tensors that are tied
        limit = SHARE * formats.available_memory() if most else 0
        return most <= limit or self._converted_size <= limit

    def part(self, layer: str, name: str) -> "Array | StoredRows | None":
        """Open a parameter for reading in parts, as rows of a table; None without it."""
        if self.keeps_layers:
            return self[layer].get(name)
        self.refuse_unread()
        self._used_layers[layer] = None
        spec = self.specs[layer].get(name)
        if spec is None:
            return None
        stored, *more = self.stored_names(layer, name)
        if (
            not more
            and not self.weights.is_in_place(stored)
            and spec.is_matrix(self.config.parameter_shape(layer, name))
        ):
            return StoredRows(self.weights, stored, spec.transposed)
        self._make_room()
        return self._convert(layer, name)

    def to_column_major(self, layer: str, name: str) -> None:
        """Make a tall weight a column-major copy, in place of the memory-mapped view."""
        weight = self[layer][name]
        if weight.flags.c_contiguous and len(weight) > weight.shape[1]:
            self._column_major.add((layer, name))
            del self._layers[layer], weight

    @cached_property
    def used(self) -> Set[str]:
        """The stored tensors that parameters are read from."""
        parameters = ((layer, name) for layer, names in self._stored.items() for name in names)
        return {stored for parameter in parameters for stored in self.stored_names(*parameter)}

    @cached_property
    def unread(self) -> UnreadTensors:
        """The stored tensors that no layer reads, nor is tied to."""
        ties = {spec.tied for specs in self.specs.values() for spec in specs.values() if spec.tied}
        read = self._found | {stored for name in ties if (stored := self.weights.find([name]))}
        unread = [name for name in self.weights.entries if name not in read]
        if not unread:
            return sort_unread((), ())
        named = {
            one: stored
            for layer, specs in self.specs.items()
            for name, spec in specs.items()
            for stored, names in zip(self._stored[layer][name], spec.joined_names(), strict=True)
            for one in self.weights.candidates(names)
        }
        found = sort_unread(unread, [*read, *named], self.weights.prefixes, self.weights.is_strict)
        for name in found.of_layers:
            if name in named and self._are_equal(name, named[name]):
                found.harmless[name] = COPY
            elif self._is_without_effect(name):
                found.harmless[name] = ZERO
        return found._replace(of_layers=[name for name in found.of_layers if name not in found.harmless])

    def unused(self) -> list[str]:
        """The stored tensors that no layer uses, buffers excepted."""
        unread = self.unread
        buffers = {name for name, reason in unread.harmless.items() if reason in (COMPUTED, COPY)}
        unused = {*unread.names} - buffers
        return [name for name in self.weights.entries if name in unused]

    def refuse_unread(self) -> None:
        """Raise DataError if unread tensors may change what the layers compute."""
        if names := self.unread.of_layers:
            what = f"{counted(len(names), 'tensor')} of its layers"
            problem = f"family {self.config.family} does not read {what}: {join_names(names, 3, MAX_NAME_LENGTH)}"
            raise DataError(f"{problem}; what to do: attnkit help checkpoints", self.weights.file(names[0]))
        self._is_complete = True

    def find_non_finite(self, first: str = "") -> str:
        """Describe the first parameter that is not finite, or "" if all are.

        Layer `first` is read first.
        """
        for layer in dict.fromkeys([first, *self._views, *self._used_layers]):
            for name, array in (self._views.get(layer) or self.get(layer, {})).items():
                if value := formats.first_non_finite(array):
                    return f"parameter {layer}.{name} is {value}"
        return ""

    def _convert(self, layer: str, name: str) -> Array:
        spec, key = self.specs[layer][name], self._key(layer, name)
        if key not in self._tensors:
            self._tensors[key] = as_float(self._read(key[0], spec))
        array = spec.of_entry().to_parameter(self._tensors[key], self.config.parameter_shape(layer, name))
        if (layer, name) in self._column_major:
            del self._tensors[key]
            view, array = array, to_column_major(array)
            formats.release_pages(view)
        return array

    @cached_property
    def _converted_size(self) -> int:
        """The bytes of all converted parameters that are not views of the file."""
        return self._measure_converted(self.used)

    def _measure_converted(self, stored: Set[str]) -> int:
        converted = (name for name in stored if not self.weights.is_in_place(name))
        return sum(4 * math.prod(self.weights.entries[name][1]) for name in converted)

    @cached_property
    def _found(self) -> Set[str]:
        """The stored tensors of all parameters, copies of tied ones included."""
        return {one for layer in self._stored.values() for stored in layer.values() for one in stored}

    def _make_room(self) -> None:
        """Drop the layer last used if layers are not kept; with a note, the first time."""
        if self.keeps_layers:
            return
        if self._layers and not self._has_noted:
            self._has_noted = True
            need = f"{format_bytes(self._converted_size)} in float32"
            note = f"{self.weights.name}: {need} would not fit into memory; each layer is converted for each pass"
            warnings.warn(note, AttnkitNote, stacklevel=2)
        self._layers.clear()
        self._tensors.clear()

    def _view(self, layer: str, name: str) -> Array:
        spec = self.specs[layer][name]
        if spec.padding_row is not None or spec.offset:
            return self._convert(layer, name)
        stored = self._read(self.stored_names(layer, name), spec)
        return spec.of_entry().to_parameter(stored, self.config.parameter_shape(layer, name))

    def _read(self, stored: tuple[str, ...], spec: TensorSpec) -> Array:
        """Read a stored tensor, an entry of a stack, or several joined, with padding."""
        if spec.stacked:
            return self.weights.rows(stored[0], spec.entry)
        return spec.join([self.weights.tensor(name) for name in stored])

    def _key(self, layer: str, name: str) -> Key:
        spec = self.specs[layer][name]
        return self.stored_names(layer, name), spec.padding_row, spec.entry

    def _original(self, stored: str, tied: str) -> str:
        """The shared tensor that a stored tied one copies, or else the stored one.

        A stored one that is no copy brings a warning.

        They are compared when the tensor is first read, up to the first difference.
        """
        shared = self.weights.find([tied]) or self._find_tied([tied])
        if shared is None or shared == stored:
            return stored
        if stored not in self._originals:
            is_copy = self._are_equal(stored, shared)
            self._originals[stored] = shared if is_copy else stored
            if not is_copy:
                problem = f"{stored} is read, and not {shared}, which the configuration ties it to: they differ"
                warnings.warn(f"{self.weights.name}: {problem}", AttnkitWarning, stacklevel=2)
        return self._originals[stored]

    def _are_equal(self, one: str, other: str) -> bool:
        """Whether two stored tensors have the same dtype, shape and bits."""
        weights = self.weights
        if weights.entries[one] != weights.entries[other] or weights.kind(one) != weights.kind(other):
            return False
        return have_same_bits(weights.tensor(one), weights.tensor(other))

    def _is_without_effect(self, name: str) -> bool:
        """Whether a tensor is empty, or a bias of zeros."""
        dtype, shape = self.weights.entries[name]
        is_bias = name.endswith("bias") and dtype in FLOATS and math.prod(shape) == max(shape, default=1)
        return 0 in shape or (is_bias and not self.weights.tensor(name).astype(np.float32).any())

    def _find(self, layer: str, name: str) -> tuple[str, ...]:
        """The stored tensors of a parameter, whose shapes and dtypes are checked."""
        spec = self.specs[layer][name]
        return tuple(self._find_one(layer, name, spec, names) for names in spec.joined_names())

    def _find_tied(self, names: Sequence[str]) -> str | None:
        """The stored tensor of a parameter that is tied to one of these."""
        specs = (spec for layer in reversed([*self.specs]) for spec in self.specs[layer].values())
        return self.weights.find(name for spec in specs if spec.tied in names for name in spec.names)

    def _find_one(self, layer: str, name: str, spec: TensorSpec, names: Sequence[str]) -> str:
        weights, parameter = self.weights, f"{name} of {layer}"
        stored = weights.find(names) or self._find_tied(names)
        if stored is None:
            raise DataError(f"no tensor {(spec.tied or names[0])!r} ({parameter})", weights.name)
        dtype, shape = weights.entries[stored]
        expected = spec.stored_shape(self.config.parameter_shape(layer, name))
        if shape != expected:
            problem = f"has shape {shape} (expected {expected})"
        elif dtype not in FLOATS:
            problem = f"has dtype {dtype} (expected a float)"
        else:
            return stored
        raise DataError(f"tensor {stored!r} ({parameter}) {problem}", weights.file(stored))


def as_float(array: Array) -> Array:
    """The array itself if it is float64 or float32, otherwise a float32 copy.

    >>> as_float(np.array([1.5], np.float16))
    array([1.5], dtype=float32)
    """
    if array.dtype in (np.float64, np.float32):
        return array
    if array.size <= BLOCK:
        return array.astype(np.float32)
    from attnkit.model.processor.threads import run_parallel, split_range

    wide = np.empty(array.shape, np.float32)
    source, target = array.reshape(-1), wide.reshape(-1)
    convert = _widen_halves if array.dtype == np.float16 else np.copyto

    def widen(tasks: Iterator[slice]) -> None:
        for part in tasks:
            for block in split_range(part.start, part.stop, BLOCK):
                convert(target[block], source[block])

    run_parallel(widen, split_range(0, array.size, LARGE))
    return wide


def have_same_bits(x: Array, y: Array) -> bool:
    """Whether two arrays of one dtype and shape have the same bits.

    The comparison ends at the first difference.

    Views of the same bytes are not read. The memory of each block of a mapped file is released after it is compared.

    >>> x = np.array([1.0, np.nan])
    >>> have_same_bits(x, x.copy()), have_same_bits(x, -x)
    (True, False)
    """
    if (x.ctypes.data, x.strides) == (y.ctypes.data, y.strides):
        return True
    bits = f"u{x.dtype.itemsize}"
    rows = max(LARGE * len(x) // x.size, 1) if x.size else 1
    for start in range(0, len(x), rows):
        blocks = x[start : start + rows], y[start : start + rows]
        one, other = (block.view(bits) for block in blocks)
        is_equal = np.array_equal(one, other)
        for block in blocks:
            formats.release_pages(block)
        if not is_equal:
            return False
    return True


def _widen_halves(wide: Array, halves: Array) -> None:
    """Convert float16 to float32 by shifting its bits, four times as fast as NumPy.

    >>> wide = np.empty(4, np.float32)
    >>> _widen_halves(wide, np.array([-1.5, 6e-8, 65504, np.inf], np.float16))
    >>> wide.tolist() == [-1.5, 2.0**-24, 65504.0, np.inf]
    True
    """
    bits = wide.view(np.int32)
    np.left_shift(halves.view(np.int16), 13, out=bits, dtype=np.int32)
    np.bitwise_and(bits, SIGN | 0x0FFFE000, out=bits)  # the sign was extended over the bits beside it
    np.multiply(wide, np.float32(2.0**112), out=wide)  # 127 is the bias of the exponents of float32, and 15 of these
    if not max(wide.max(), -wide.min()) < OVERFLOW:  # infinity and NaN, which become larger numbers
        np.copyto(wide, halves)


class StoredRows:
    """A stored matrix (N, D) or its transpose, whose rows are converted when read.

    An index is that of rows, or, of a transposed one, `:` and that of columns.
    """

    def __init__(self, weights: Weights, name: str, transposed: bool) -> None:
        self._weights, self._name, self._transposed = weights, name, transposed
        rows, width = weights.entries[name][1]
        self.shape = (width, rows) if transposed else (rows, width)
        self.ndim, self.dtype = 2, np.dtype(np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Array:
        rows = as_float(self._weights.rows(self._name, index[1] if self._transposed else index))
        return rows.T if self._transposed else rows


class Checkpoint:
    """A published model.

    config  the choices of the model
    raw     config.json as parsed
    params  layer -> {parameter: array}
    keys    the keys that its family read, and whether config.json has each

    tokenizer  the files of the tokenizer, where they are not in the folder
    generation what generation_config.json states, else config.json: the defaults of another library
    place      the folder of the files, where `folder` names one tower of a model besides
    towers     of a model of texts and of images, of which this is one: by the names text and vision
    others     beginnings of the names of tensors and modules of the other tower
    similarity of a text and an image, by their vectors
    pictures   how a text of the model holds pictures; None: it holds none
    """

    def __init__(
        self,
        folder: str,
        config: Config,
        raw: Mapping[str, Any],
        params: Parameters,
        files: Sequence[str],
        keys: Mapping[str, bool] | None = None,
        tokenizer: "TokenizerFolder | None" = None,
        place: str = "",
        generation: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.place = place or folder
        self._companion_folder = tokenizer or self.place
        self.config = config
        self.raw = raw
        self.params = params
        self.keys = keys or {}
        self.generation = raw if generation is None else generation
        self.towers: Mapping[str, Checkpoint] = {}
        self.others: tuple[str, ...] = ()
        self.similarity: Similarity | None = None
        self.pictures: PictureTokens | None = None
        self._files = list(files)
        self._companions: dict[str, Any] = {}

    def load_companion(self, name: str, load: Callable[[Any, str], Any]) -> Any:
        """Load a part such as a tokenizer once, by `load(folder, name)`."""
        if name not in self._companions:
            self._companions[name] = load(self._companion_folder, name)
            self._files = [*dict.fromkeys([*self._files, *self._companions[name].files])]
        return self._companions[name]

    def tower(self, name: str) -> "Checkpoint":
        """The tower of texts or of images; the model itself if it has none."""
        one = self.towers.get(name, self)
        return self if one.folder == self.folder else one

    def reading(self, image: bool) -> "Checkpoint":
        """The part that reads an input: of an image the tower of images, if there is one."""
        return self.tower("vision") if image else self

    def layers(self) -> list[str]:
        return list(self.params)

    def tensors(self) -> Mapping[str, tuple[str, tuple[int, ...]]]:
        """The dtype and the shape of every stored tensor by its published name."""
        return self.params.weights.entries

    def tensor(self, name: str) -> Array:
        """A stored tensor by its published name, or a parameter as encoder.0.self.wq."""
        weights = self.params.weights
        if stored := weights.find([name]):
            return weights.tensor(stored)
        layer, _, parameter = name.rpartition(".")
        if parameter in self.params.specs.get(layer, {}):
            return self.params.convert(layer)[parameter]
        raise DataError(f"no tensor {name!r}{self._suggest(name)}", self.folder)

    @cached_property
    def parameter_count(self) -> int:
        """The number of elements of all tensors in use, each tensor counted once."""
        return sum(math.prod(self.tensors()[name][1]) for name in self.params.used)

    def digests(self) -> dict[str, str]:
        """The SHA-256 of every file that the model was read from, by path."""
        return {path: file_digest(path, *file_stamp(path)) for path in self._files}

    def _suggest(self, name: str) -> str:
        """The hint ` (near: …)` with names close to an unknown one, or ""."""
        import difflib

        specs = self.params.specs
        parameters = [f"{layer}.{key}" for layer, keys in specs.items() for key in keys]
        prefixes = [prefix for prefix in self.params.weights.prefixes if not name.startswith(prefix)]
        published = [reduce(str.removeprefix, prefixes, stored) for stored in self.tensors()]
        of_layer = [f"{name}.{key}" for key in specs.get(name, {})]
        of_layer = of_layer or [one for one in published if one.startswith(f"{name}.")][:4]
        near = of_layer or difflib.get_close_matches(name, [*published, *parameters], 4)
        return f" (near: {', '.join(near)})" if near else ""


def file_stamp(path: str) -> tuple[int, int, int]:
    """The inode, size and modification time of a file."""
    status = os.stat(path)
    return status.st_ino, status.st_size, status.st_mtime_ns


@cache
def file_digest(path: str, *stamp: int) -> str:
    """The SHA-256 of a file, computed once for each stamp."""
    import hashlib

    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Family(Protocol):
    """The module of a family.

    `fact_of` reads what else it states, PREFIXES and FIELDS in any case.

    PREFIXES           what published names of tensors may or may not begin with
    WRITES_PREFIX      whether the names of today's files begin with the first of them
    FIELDS             a fact of the model -> the keys of config.json that state it
    VARIANT_OF         the module that states what this one does not
    TOKENIZER          the class of its tokenizer in transformers, for folders that do not state it
    GGUF               the fields of its Architecture in GGUF files, all but the first
    SMALLEST           values of config.json, beside sizes, that its smallest model needs
    IS_CAUSAL          what comes of `is_causal: false` in transformers, if it is no attention in both directions:
                       ignored, or unclear where its kinds of attention disagree
    FORMS              changes of config.json after which tensors or modules have other names
    RERANKER           the published reranker of this very family that generates text: a name of --reranker

    of its modules in transformers, as the debugger reads their outputs:
    HAS_OWN_MODULES    False: names of modules do not lead to it, but to another family, or to none
    RENAMED_MODULES    patterns in published names, and what stands in their place since version 5
    SPLIT_MODULES      the published name of a fused matrix -> what its parameters have in its place since version 5,
                       by their names without w or b
    SCALES_EMBEDDINGS  whether its module of embeddings returns them scaled
    SCALES_STATES      whether states are scaled before the head, and not logits after it
    RETURNS_EMBEDDINGS  whether the first of the hidden states is the embeddings, and not the result of the first layer
    RETURNS_LAST_NORM  whether the last of the hidden states is that after the final norm
    WEIGHTS_OUTPUT     the number of the output of attention that has its weights

    of a new model, as training makes it:
    LEARNS             kinds of data, the first by default: causal, masked, spans, pairs, labels or images
    OPTIONS            the options of train, beside those of every family, that it has
    DEPTH, POSITIONS   layers where none are given; rotary or sinusoidal: what the width has to be divisible for
    TOKENS, TEMPLATE, SENTINELS   special tokens by their keys, in the order of their ids; those around a text, $A;
                       those that replace spans
    new_values, LAST_KEYS   what its config.json has beside sizes; its last keys
    DISTRIBUTION, draw_initial   how its parameters are drawn, and exceptions: normal or uniform, a scale, the middle
    HAS_LONGEST_TEXT   whether a text cannot be longer than its key says
    """

    def read_config(self, raw: ConfigReader, stored: Weights) -> Config:
        """The configuration of the model."""

    def map_layers(self, raw: ConfigReader) -> Layers:
        """Where the parameters of each layer are stored."""


def fact_of(family: Family | str, name: str, default: Any = None) -> Any:
    """Find a fact of a family by its name, in its file or that of its base family.

    family  its module, or its name in a Config

    >>> fact_of("gemma2", "PREFIXES"), fact_of("gemma2", "COLOR", "none")
    (('model.',), 'none')
    """
    family = find_family(family) if isinstance(family, str) else family
    while not hasattr(family, name) and hasattr(family, "VARIANT_OF"):
        family = family.VARIANT_OF
    return getattr(family, name, default)


def find_family(name: str) -> Family:
    """The file of a family, by the name that a Config has."""
    return _import_module(SAME_AS.get(name, name).replace("-", "_"))


def open_checkpoint(folder: str) -> Checkpoint:
    """Open the model in a folder or in a GGUF file.

    Check the shape of every tensor, read none yet.

    FileError if a file is missing; DataError names the file and what is wrong in it.
    """
    if os.path.isfile(folder):
        from attnkit.formats.gguf import is_gguf

        if is_gguf(folder):
            return _open_gguf(folder)
    if is_tower(folder):
        above, _, tower = folder.rpartition(":")
        found = open_checkpoint(above).towers.get(tower)
        if found is None:
            raise DataError(f"has no towers of texts and images, and so no {tower}", above)
        return found
    if not os.path.isdir(folder):
        above = os.path.dirname(folder) or os.curdir
        hint = f"; did you mean {above}?" if is_model(above) else f"; {WHAT_A_MODEL_IS}"
        raise FileError(f"{'not a folder' if exists(folder) else 'no such folder'}{hint}", folder)
    path = os.path.join(folder, CONFIG)
    raw = read_json_object(path) if exists(path) else {}
    if raw.get("model_type") not in FAMILIES and (part := static_embedding.find_static(folder, raw)):
        return _open_static(folder, part, raw)
    if not exists(path):
        return _open_marian(folder)
    reader, files = ConfigReader(raw, path), [path]
    try:
        family = import_family(reader)
    except DataError as error:
        hint = "" if "model_type" in raw else hint_at_folder(folder)
        raise DataError(f"{error.problem}{hint}", error.name) from None
    generation, defaults = os.path.join(folder, GENERATION_CONFIG), raw
    if exists(generation):
        defaults = read_json_object(generation)
        reader, files = override_tokens(reader, defaults, generation, family), [path, generation]
    weights = join_packed(open_weights(folder))
    if modules := find_towers(family, reader, weights):
        return _open_towers(family, modules, folder, reader, weights, files)
    config, params = read_model(family, reader, weights)
    files += weights.files
    return Checkpoint(folder, config, raw, params, files, reader.values.stated(), generation=defaults)


def open_tokenizer(place: "str | TokenizerFolder", side: str = "source") -> "Tokenizer":
    """Load the tokenizer of a folder, by its files and its family.

    config.json names the family, if the folder contains one.

    side  "source" or "target" of a translation: which text `encode` and `decode` are for

    Errors are those of `load_tokenizer`.
    """
    from attnkit.tokenizers.auto import load_tokenizer
    from attnkit.tokenizers.files import TokenizerFolder

    if not isinstance(place, str):
        return load_tokenizer(place)
    path = os.path.join(place, CONFIG)
    raw = read_json_object(path) if exists(path) else {}
    part = None if raw.get("model_type") in FAMILIES else static_embedding.find_static(place, raw)
    tokenizer = load_tokenizer(TokenizerFolder(part or place, side, find_class))
    return static_embedding.restrict_tokenizer(part, tokenizer) if part else tokenizer


def find_class(family: str) -> str:
    """The class of a family's tokenizers in transformers; "" for no rules of its own.

    >>> find_class("qwen3"), find_class("bert")
    ('Qwen2Tokenizer', '')
    """
    return str(fact_of(family, "TOKENIZER", "")) if family in FAMILIES else ""


def is_tower(path: str) -> bool:
    """Whether a path is DIR:text or DIR:vision, of a folder.

    >>> is_tower("/:text"), is_tower("/:encoder"), is_tower("/")
    (True, False, False)
    """
    folder, _, tower = path.rpartition(":")
    return tower in TOWERS and os.path.isdir(folder) and not exists(path)


def find_towers(family: Any, reader: ConfigReader, weights: Weights) -> Mapping[str, Family]:
    """The families of the towers of a model; {} for a model without."""
    towers: Mapping[str, Family] = getattr(family, "TOWERS", {})
    return family.find_towers(reader, weights) if hasattr(family, "find_towers") else towers


def _open_towers(
    family: Any, modules: Mapping[str, Family], folder: str, reader: ConfigReader, weights: Weights, files: list[str]
) -> Checkpoint:
    """Open a model of texts and images as its tower of texts, which knows the other."""
    towers: dict[str, Checkpoint] = {}
    for name, module in modules.items():
        before = {*reader.values.reads}
        others = tuple(prefix for other in modules if other != name for prefix in family.NAMES[other])
        tower, stored = family.read_tower(reader, name), weights.without(*others, *family.NUMBERS)
        config, params = read_model(module, tower, stored)
        parts = [*files, *weights.files]
        path = f"{folder}:{name}"
        keys = {key: is_stated for key, is_stated in reader.values.stated().items() if key not in before}
        towers[name] = Checkpoint(path, config, reader.values.plain, params, parts, keys, place=folder)
        towers[name].others = others
    tokens = family.read_tokens(reader) if hasattr(family, "read_tokens") else None
    refuse_unread(reader, reader.get_str("model_type"))
    note_unread(reader, reader.get_str("model_type"))
    if tokens:
        for one in towers.values():
            one.towers, one.pictures = towers, tokens
        return towers["text"]
    texts, images = (one.config.vector_width for one in towers.values())
    if texts != images:
        raise reader.error(f"vectors of texts have width {texts}, and those of images {images}")
    similarity = family.read_similarity(weights)
    for one in towers.values():
        one.towers, one.similarity = towers, similarity
    return towers["text"]


def hint_at_folder(folder: str) -> str:
    """A hint at the model above or below a folder that is none, or ""."""
    above = os.path.normpath(os.path.join(folder, os.pardir))
    if is_model(above):
        return f"; the folder above it looks like the model: {above}"
    names = sorted(glob.glob("*/", root_dir=folder) + glob.glob("snapshots/*/", root_dir=folder))
    below = [path for name in names if is_model(path := os.path.join(folder, name.rstrip(os.sep)))]
    return f"; did you mean {below[0]}?" if below else ""


def is_model(folder: str) -> bool:
    """Whether a folder has a configuration that names a family, or a file of Marian."""
    try:
        if os.path.isfile(os.path.join(folder, MARIAN_FILE)) or static_embedding.find_static(folder, {}):
            return True
        return "model_type" in read_json_object(os.path.join(folder, CONFIG))
    except AttnkitError:
        return False


def import_family(reader: ConfigReader) -> Family:
    """Import the family that a configuration names, or its classifier of images.

    DataError if it is unknown.
    """
    stated = reader.get_str("model_type")
    name = RENAMED.get(stated, stated)
    if name not in FAMILIES:
        raise reader.error(f"model_type {name[:40]!r} is not known (expected {', '.join(FAMILIES)})")
    family = find_family(name)
    if not (hasattr(family, "TOWERS") and reader.has_architecture("ForImageClassification")):
        return family
    if not hasattr(family, "CLASSIFIER"):
        raise reader.error(f"a classifier of images of family {name} is not supported")
    return cast(Family, family.CLASSIFIER)


def _import_module(name: str) -> Family:
    return cast(Family, importlib.import_module(f"attnkit.checkpoints.{name}"))


def override_tokens(reader: ConfigReader, values: Mapping[str, Any], path: str, family: Family) -> ConfigReader:
    """Override special tokens and some keys by those of generation_config.json.

    Any other key of that file is one of another library. Null overrides what ends a text, and nothing else.
    """
    keys = {*TOKEN_KEYS, *getattr(family, "GENERATION_KEYS", ())} - {*getattr(family, "MODEL_KEYS", ())}
    tokens = {key: value for key, value in values.items() if key in keys and (value is not None or key in END_KEYS)}
    return reader.replaced({**reader.values.plain, **tokens}, dict.fromkeys(tokens, path))


def _open_gguf(path: str) -> Checkpoint:
    from attnkit.checkpoints.gguf import open_model

    reader, weights, tokenizer = open_model(path, fact_of)
    config, params = read_model(import_family(reader), reader, weights)
    return Checkpoint(path, config, reader.values.plain, params, weights.files, reader.values.stated(), tokenizer)


def _open_static(folder: str, part: str, raw: dict[str, Any]) -> Checkpoint:
    """Open a table of vectors of tokens, which is in a part of a folder."""
    path, weights = os.path.join(folder, CONFIG), static_embedding.open_static(part)
    reader = ConfigReader(raw, path)
    config, params = read_model(static_embedding, reader, weights)
    files = [*[path] * bool(raw), *weights.files]
    return Checkpoint(folder, config, raw, params, files, reader.values.stated())


def _open_marian(folder: str) -> Checkpoint:
    from attnkit.checkpoints.marian_native import open_marian

    path = os.path.join(folder, MARIAN_FILE)
    if not exists(path):
        hint = hint_at_folder(folder)
        raise FileError(f"no {CONFIG} in this folder, nor a {MARIAN_FILE} of Marian{hint}", folder)
    weights, reader = open_marian(path)
    config, params = read_model(_import_module("marian_native"), reader, weights)
    return Checkpoint(folder, config, reader.values.plain, params, [path], reader.values.stated())


def read_model(family: Family, reader: ConfigReader, weights: Weights) -> tuple[Config, Parameters]:
    """Read the configuration of a model and match its parameters.

    DataError if they do not fit each other.
    """
    weights.prefixes, stored = fact_of(family, "PREFIXES"), len(weights.entries)
    for key in keys_of(fact_of(family, "FIELDS"), "layers"):  # before any tensor of a layer is looked up
        count = reader.values.plain.get(key)
        if isinstance(count, int) and count > max(stored, FEW):
            raise reader.error(f"{key} {count}, and only {stored} tensors are stored")
    config, layers = read_family(family, reader, weights)
    start, vocab = config.special.start, config.decoder.vocab if config.decoder else 0
    if start is not None and vocab and start >= vocab:
        problem = f"decoder_start_token_id {start} is outside the vocabulary of {vocab}"
        raise reader.error(problem, "decoder_start_token_id")
    specs = expand_layers(config, layers)
    params = Parameters(config, weights, {layer: _in_files(one, weights) for layer, one in specs.items()})
    _check_positions(reader, config)  # of sizes that the shapes of tensors have confirmed
    if not reader.values.path:  # of a tower, the model that it belongs to does
        has_cache = config.decoder is not None and not config.is_recurrent
        note_unread(reader, config.family, has_cache=has_cache)
    return config, params


def _in_files(specs: Mapping[str, TensorSpec], weights: Weights) -> dict[str, TensorSpec]:
    """The forms that the parameters of a layer have in files."""
    return {name: spec.in_files(weights) if spec.other else spec for name, spec in specs.items()}


def read_family(family: Family, reader: ConfigReader, weights: Weights, strict: bool = True) -> tuple[Config, Layers]:
    """Read a configuration and map its layers.

    DataError, if strict, names a key that is not read and asks for a computation.
    """
    config = read_direction(reader, family.read_config(reader, weights), fact_of(family, "IS_CAUSAL", ""))
    layers = map_layers(family, reader, config)
    if config.experts and config.experts.chosen > config.experts.count:
        raise reader.error(f"num_experts_per_tok {config.experts.chosen} of {config.experts.count} experts")
    if strict:
        refuse_unread(reader, config.family)
    return config, layers


def map_layers(family: Family, reader: ConfigReader, config: Config) -> Layers:
    """Where the parameters of each layer of a model are stored."""
    return name_encoder(config, family.map_layers(reader))


def _check_positions(reader: ConfigReader, config: Config) -> None:
    """DataError for rotary or relative positions that cannot be computed."""
    positions = config.positions
    if positions.kind == "rotary":
        with name_errors(reader.name):
            width = positions.rotary_dim or config.stack(config.stacks[-1]).head_dim
            if positions.over_grid and width % 4:
                raise DataError(f"heads of width {width} (expected a multiple of 4: half rotates by each direction)")
            for rope in (positions.rope, *filter(None, [positions.local_rope])):
                fields = ConfigReader(rope, reader.name)
                for length in (1, LARGEST):
                    rope_frequencies(width, fields.values, length)
                fields.ignore("max_position_embeddings", "original_max_position_embeddings")  # added to every rotation
                note_unread(fields, config.family, f"rope_type {rope.get('rope_type')}")
    if positions.relative == "t5":
        for name in config.stacks:
            exact = positions.buckets // (2 if config.stack(name).causal else 4)
            if exact < 1 or positions.max_distance <= exact:
                sizes = f"relative_attention_num_buckets {positions.buckets} up to relative_attention_max_distance "
                raise reader.error(f"{sizes}{positions.max_distance}: too few buckets, or too short a distance")
