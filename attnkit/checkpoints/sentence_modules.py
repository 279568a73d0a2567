"""The files of sentence-transformers: how hidden states become one vector."""

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from attnkit.checkpoints.checkpoint import CONFIG, as_float
from attnkit.checkpoints.config_reader import ConfigReader, read_json, read_json_object
from attnkit.checkpoints.late_interaction import (
    METADATA,
    PYLATE_TYPE,
    STANFORD,
    LateInteraction,
    read_native,
    read_pylate,
    read_stanford,
)
from attnkit.checkpoints.static_embedding import MODEL2VEC, STATIC
from attnkit.checkpoints.weights import Weights, open_weights
from attnkit.errors import AttnkitWarning, DataError
from attnkit.formats.streams import exists
from attnkit.model.dtypes import Array
from attnkit.model.formulas.activations import TORCH
from attnkit.model.formulas.linear import LinearGradients, linear
from attnkit.model.formulas.norms import layer_norm
from attnkit.model.formulas.pooling import dense, dense_backward, l2_normalize
from attnkit.tokenizers.files import TokenizerFolder

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
SETTINGS = tuple(  # the first of these; older folders have one with the name of their family
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
MASK = "MultiVectorMask"
PYLATE, OF_TOKENS = "pylate.models.Dense.Dense", "Dense of tokens"  # which reads the vectors of tokens, as PyLate's
FIRST = ("Transformer", STATIC)  # kinds of the first module
NAMED = (*FIRST, "Pooling", "Dense", "LayerNorm", "Normalize", MASK, "Dropout")  # a dropout does nothing here
KINDS = (*NAMED, OF_TOKENS)  # of modules
TOKENS, WHOLE = "token_embeddings", "sentence_embedding"  # what a module reads: the vectors of tokens, or of the text
POOLS = {  # the names of sentence-transformers -> those of --pool; vectors of several are joined in this order
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean-sqrt",
    "weightedmean": "weighted-mean",
    "lasttoken": "last",
}
FLAGS = {  # of configurations that have no pooling_mode
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
LARGEST_LENGTH = 1 << 30  # a maximum from here on is none: tokenizers write 1e30


@dataclass(frozen=True)
class Pooling:
    """How the states of tokens become one vector: the vectors of `pools` joined."""

    pools: tuple[str, ...]
    with_prompt: bool

    @property
    def summary(self) -> str:
        """What it does, in a few words."""
        prompt = "" if self.with_prompt else ", without the prompt"
        return f"Pooling: {' and '.join(self.pools)} of the tokens{prompt}"


@dataclass(frozen=True)
class Dense:
    """A linear layer w (in, out) with bias b and an activation.

    on_tokens   whether it reads the vector of each token, not of the text
    adds_input  whether its input is added to the result after the activation, by `residual` (in, out) if widths differ
    """

    w: Array
    b: Array | None
    activation: str
    on_tokens: bool = False
    adds_input: bool = False
    residual: Array | None = None

    @property
    def summary(self) -> str:
        """What it does, in a few words."""
        rows, columns = self.w.shape
        parts = [f"{rows} to {columns}", self.activation, *["plus its input"] * self.adds_input]
        return f"Dense: {', '.join(parts)}{ON_TOKENS * self.on_tokens}"

    def apply(self, x: Array) -> Array:
        """The result of vectors x (..., in) -> (..., out)."""
        y = dense(x, self.w, self.b, self.activation)
        if not self.adds_input:
            return y
        return y + (x if self.residual is None else linear(x, self.residual))

    def backward(self, grad_output: Array, x: Array) -> LinearGradients:
        """Gradients of the input, and of the weight and the bias: (..., out) -> (..., in)."""
        gradients = dense_backward(grad_output, x, self.w, self.b, self.activation)
        if not self.adds_input:
            return gradients
        added = grad_output if self.residual is None else linear(grad_output, self.residual.T)
        return gradients._replace(x=gradients.x + added)


@dataclass(frozen=True)
class Normalize:
    """The scaling of vectors to length 1."""

    on_tokens: bool = False

    def apply(self, x: Array) -> Array:
        """The vectors x (..., D) as unit vectors; zeros stay zeros."""
        return l2_normalize(x)

    @property
    def summary(self) -> str:
        """What it does, in a few words."""
        return f"Normalize: to length 1{ON_TOKENS * self.on_tokens}"


@dataclass(frozen=True)
class LayerNorm:
    """Layer normalization of the vector of a text."""

    gamma: Array
    beta: Array
    on_tokens: ClassVar[bool] = False

    def apply(self, x: Array) -> Array:
        """The normalized vectors x (..., D) -> (..., D)."""
        return layer_norm(x, self.gamma, self.beta, eps=LAYER_NORM_EPS).y

    @property
    def summary(self) -> str:
        """What it does, in a few words."""
        return f"LayerNorm: {len(self.gamma)}"


ON_TOKENS = ", of each token"
LAYER_NORM_EPS = 1e-5
Module = Pooling | Dense | Normalize | LayerNorm


@dataclass(frozen=True)
class SentenceModules:
    """What the files of sentence-transformers in a folder state.

    modules         after the model, by the number in modules.json; number 0 is the mean of a StaticEmbedding
    first           the kind of the first module, "" if there is no list of modules
    max_length      tokens of a text at most; None: as many as the model has positions
    is_lower        whether texts are written in lower case first
    prompts         what comes before a text, by name; `prompt` is the name of the one by default, "" for none
    dim             how many numbers of a vector are kept; 0: all
    late            of a model that has a vector for each token; None: a text has one
    """

    modules: Mapping[int, Module] = field(default_factory=dict)
    first: str = ""
    max_length: int | None = None
    is_lower: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str = ""
    dim: int = 0
    files: tuple[str, ...] = ()
    late: LateInteraction | None = None

    @property
    def is_pooled(self) -> bool:
        """Whether the folder says how a text becomes one vector, or one for each token."""
        return self.late is not None or any(isinstance(module, Pooling) for module in self.modules.values())

    @property
    def summary(self) -> list[str]:
        """What each module does, in their order; [] without a list of modules."""
        late = [self.late.summary] if self.late else []
        return [self.first, *late, *(module.summary for module in self.modules.values())] if self.first else []

    def named_prompt(self, name: str | None, task: str | None) -> str:
        """The text of a prompt: of a name, of a task, or the one by default.

        As in sentence-transformers, a query has the prompt `query`, a document the first of `document`, `passage` and
        `corpus`; without such a prompt they have none, not the one by default.

        >>> modules = SentenceModules(prompts={"passage": "p: ", "topic": "t: "}, prompt="topic")
        >>> [modules.named_prompt(None, task) for task in (None, "document", "query")]
        ['t: ', 'p: ', '']
        """
        of_task = next((one for one in PROMPTS_OF_TASKS.get(task or "", ()) if one in self.prompts), "")
        return self.prompts.get(name or of_task or ("" if task else self.prompt), "")


PROMPTS_OF_TASKS = {"query": ("query",), "document": ("document", "passage", "corpus")}


def load_sentence_modules(folder: str | TokenizerFolder, name: str = "") -> SentenceModules:
    """Read modules.json and its files. A folder without it contains none.

    A GGUF file states the pooling alone, if that.

    DataError for a module that is not known, one outside the folder, or weights that do not fit their configuration.
    """
    if not isinstance(folder, str):
        pool = getattr(folder, "pool", "")
        return SentenceModules({1: Pooling((pool,), True)}, files=(folder.path,)) if pool else SentenceModules()
    path = os.path.join(folder, MODULES)
    if not exists(path):
        return read_other_folder(folder)
    files: list[str] = [path]
    modules: dict[int, Module] = {}
    (first, _), *rest = read_module_list(path)
    if first == STATIC:
        modules[0] = STATIC_MEAN
    settings_file = next((name for name in SETTINGS if exists(os.path.join(folder, name))), SETTINGS[0])
    settings = read_optional(folder, settings_file, files)
    prompts = read_optional(folder, PROMPTS, files)
    masks = [part for kind, part in rest if kind == MASK]
    late = read_late(folder, masks, settings, prompts, files)
    for number, (kind, part) in enumerate(rest, start=1):
        if module := read_module(kind, os.path.join(folder, part), files, TOKENS if late else WHOLE):
            modules[number] = module
    if late and not masks and not any(isinstance(module, Normalize) for module in modules.values()):
        modules[len(rest) + 1] = Normalize(on_tokens=True)  # which PyLate does not list
    check_order(modules, path)
    return SentenceModules(
        modules,
        first,
        None if first == STATIC else read_max_length(settings, read_optional(folder, "tokenizer_config.json", [])),
        settings.get_bool("do_lower_case", False),
        *read_prompt_texts(prompts),
        prompts.get_int("truncate_dim", 0, least=0),
        tuple(files),
        late,
    )


def read_late(
    folder: str, masks: list[str], settings: ConfigReader, prompts: ConfigReader, files: list[str]
) -> LateInteraction | None:
    """What the files of a model of late interaction state; None of another model.

    masks  the folders of its modules that say which tokens count
    """
    if masks:
        return read_native(settings, read_optional(os.path.join(folder, masks[0]), CONFIG, files), prompts)
    kind = prompts.values.get("model_type")
    return read_pylate(prompts) if kind == PYLATE_TYPE or prompts.has("query_prefix") else None


def read_other_folder(folder: str) -> SentenceModules:
    """The modules of a folder without modules.json: of ColBERT, or model2vec."""
    path = os.path.join(folder, CONFIG)
    raw = ConfigReader(read_json_object(path) if exists(path) else {}, path)
    if not raw.has_architecture(STANFORD):
        return read_model2vec(raw)
    files, weights = [path], open_weights(folder)
    late = read_stanford(read_optional(folder, METADATA, files))
    name = "linear.weight"
    shape = weights.entries[name][1] if name in weights.entries else ()
    if len(shape) != 2:
        raise weights.error(name, f"has shape {shape} (expected (E, D), of vectors of tokens)")
    dense = Dense(as_float(weights.tensor(name)).T, None, "identity", on_tokens=True)
    modules: dict[int, Module] = {1: dense, 2: Normalize(on_tokens=True)}
    return SentenceModules(modules, "Transformer", files=tuple(files), late=late)


def read_model2vec(raw: ConfigReader) -> SentenceModules:
    """The modules of a folder of model2vec that has no modules.json.

    Its config.json states whether the mean is scaled to length 1. Another folder has none.
    """
    if raw.values.get("model_type") != MODEL2VEC:
        return SentenceModules()
    modules: dict[int, Module] = {0: STATIC_MEAN}
    modules |= {1: Normalize()} if raw.get_bool("normalize", False) else {}
    return SentenceModules(modules, STATIC, files=(raw.name,))


STATIC_MEAN = Pooling(("mean",), with_prompt=True)


def read_module(kind: str, folder: str, files: list[str], place: str = WHOLE) -> Module | None:
    """Read a module of a kind, None if it does nothing.

    The files that it is read from join `files`.

    place  what a Dense reads that does not say
    """
    config = os.path.join(folder, CONFIG)
    if kind in ("Dropout", MASK, *FIRST):
        return None
    if kind == "Normalize" and not exists(config):  # its folder may be absent
        return Normalize()
    raw = ConfigReader(read_json_object(config), config)
    files.append(config)
    if kind == "Pooling":
        return read_pooling(raw)
    if kind == "Normalize":
        return Normalize(read_place(raw, WHOLE) == TOKENS)
    weights = open_weights(folder)
    files += weights.files
    if kind == "LayerNorm":
        return read_layer_norm(raw, weights)
    return read_dense(raw, weights, *(TANH, place) if kind == "Dense" else (IDENTITY, TOKENS))


def check_order(modules: Mapping[int, Module], path: str) -> None:
    """Raise DataError for a module that reads what no module before it makes.

    >>> check_order({1: Normalize()}, "modules.json")
    Traceback (most recent call last):
        ...
    attnkit.errors.DataError: modules.json: module 1 reads the vector of a text, before a Pooling makes one
    """
    is_pooled = False
    for number, module in modules.items():
        if isinstance(module, Pooling):
            if is_pooled:
                raise DataError(f"module {number} is a second Pooling", path)
            is_pooled = True
        elif not (module.on_tokens or is_pooled):
            raise DataError(f"module {number} reads the vector of a text, before a Pooling makes one", path)
        elif module.on_tokens and is_pooled:
            raise DataError(f"module {number} reads the vectors of tokens, after a Pooling", path)


def check_widths(modules: Mapping[int, Module], width: int, path: str) -> int:
    """The width of the vectors of a text; DataError for a module of another width.

    >>> import numpy as np
    >>> two = Pooling(("mean", "cls"), with_prompt=True)
    >>> check_widths({1: two, 2: Dense(np.ones((3, 2)), None, "tanh")}, 3, "modules.json")
    Traceback (most recent call last):
        ...
    attnkit.errors.DataError: modules.json: module 2 takes vectors of 3, and those before it are of 6
    """
    for number, module in modules.items():
        if isinstance(module, Pooling):
            width *= len(module.pools)
        elif not isinstance(module, Normalize):
            size, out = module.w.shape if isinstance(module, Dense) else 2 * module.gamma.shape
            if size != width:
                raise DataError(f"module {number} takes vectors of {size}, and those before it are of {width}", path)
            width = out
    return width


def read_module_list(path: str) -> list[tuple[str, str]]:
    entries = read_json(path)
    if not isinstance(entries, list) or not entries:
        raise DataError("not a JSON list of modules", path)
    modules = []
    for number, entry in enumerate(entries):
        reader = ConfigReader(entry if isinstance(entry, dict) else {}, path)
        full, part = reader.get_str("type"), reader.get_str("path", "")
        kind = OF_TOKENS if full == PYLATE else full.rpartition(".")[2]
        if kind not in KINDS or not (full.startswith("sentence_transformers.") or full == PYLATE):
            known = ", ".join(NAMED)
            raise reader.error(f"module {number} is a {full[:60]!r}, which is not supported (use {known})")
        steps = part.replace("\\", "/").split("/")
        if os.path.isabs(part) or ".." in steps or not part.isprintable():
            raise reader.error(f"module {number}: path {part[:40]!r} is not within the folder")
        if (kind in FIRST) != (number == 0):
            raise reader.error(f"module {number} is a {kind} (expected {' or '.join(FIRST)} first, and no other)")
        if kind == "Transformer" and part:
            raise reader.error(f"module 0: path {part[:40]!r}: the model must be in the folder itself")
        modules.append((kind, part))
    return modules


def read_pooling(raw: ConfigReader) -> Pooling:
    """How a Pooling makes one vector, by default the mean of the tokens."""
    named = raw.values.get("pooling_mode") or [mode for key, mode in FLAGS.items() if raw.get_bool(key, False)]
    if named == [] and raw.has("pooling_mode_mean_tokens"):
        raise raw.error("no pooling_mode is true")
    modes = [named] if isinstance(named, str) else named
    known = [*POOLS]  # a list, as a mode of JSON may be a list
    unknown = [mode for mode in modes if mode not in known] if isinstance(modes, list) else [modes]
    if unknown:
        raise raw.error(f"pooling_mode {str(unknown[0])[:40]!r} is not supported (use {', '.join(POOLS)})")
    return Pooling(tuple(POOLS[mode] for mode in modes) or ("mean",), raw.get_bool("include_prompt", True))


TANH, IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"


def read_place(raw: ConfigReader, usual: str) -> str:
    """What a module reads and replaces: the vectors of tokens, or of the text."""
    place = raw.get_str("module_input_name", usual)
    if place not in (TOKENS, WHOLE) or raw.get_str("module_output_name", place) != place:
        output = raw.get_str("module_output_name", place)
        named = f"module_input_name {place[:40]!r}, module_output_name {output[:40]!r}"
        raise raw.error(f"{named} are not supported (use {TOKENS} or {WHOLE} for both)")
    return place


def read_dense(raw: ConfigReader, weights: Weights, usual: str, place: str) -> Dense:
    """Read a Dense layer. DataError for sizes that differ.

    usual, place  the activation and what it reads where its configuration does not say; an activation that is not a
                  class of torch is replaced by Tanh, with a warning
    """
    function = raw.get_str("activation_function", usual)
    if not function.startswith("torch."):
        named = f"activation_function {function[:60]!r} is not one of torch; Tanh is taken, as in sentence-transformers"
        warnings.warn(f"{raw.name}: {named}", AttnkitWarning, stacklevel=2)
        function = TANH
    name = function.rpartition(".")[2].removesuffix("()")
    if name not in TORCH:
        raise raw.error(f"activation_function {name[:40]!r} is not supported (use {', '.join(TORCH)} of torch)")
    rows, columns = raw.get_int("out_features"), raw.get_int("in_features")
    has_residual = raw.get_bool("use_residual", False)
    return Dense(
        read_module_tensor(weights, "linear.weight", (rows, columns)).T,
        read_module_tensor(weights, "linear.bias", (rows,)) if raw.get_bool("bias", True) else None,
        TORCH[name],
        read_place(raw, place) == TOKENS,
        has_residual,
        read_module_tensor(weights, "residual.weight", (rows, columns)).T if has_residual and rows != columns else None,
    )


def read_layer_norm(raw: ConfigReader, weights: Weights) -> LayerNorm:
    shape = (raw.get_int("dimension"),)
    return LayerNorm(*(read_module_tensor(weights, f"norm.{name}", shape) for name in ("weight", "bias")))


def read_module_tensor(weights: Weights, name: str, shape: tuple[int, ...]) -> Array:
    """Read a tensor of a shape. DataError without it, or for another shape."""
    if not weights.has(name):
        raise DataError(f"no tensor {name!r}", weights.name)
    stored = weights.entries[name][1]
    if stored != shape:
        raise DataError(f"tensor {name!r} has shape {stored} (expected {shape})", weights.name)
    return as_float(weights.tensor(name))


def read_optional(folder: str, name: str, files: list[str]) -> ConfigReader:
    """The values of a JSON file, or {} if it is absent. Its path joins `files`."""
    path = os.path.join(folder, name)
    if not exists(path):
        return ConfigReader({}, path)
    files.append(path)
    return ConfigReader(read_json_object(path), path)


def read_max_length(settings: ConfigReader, tokenizer: ConfigReader) -> int | None:
    """The most tokens of a text: max_seq_length, or model_max_length, or None."""
    if settings.has("max_seq_length"):
        return settings.get_int("max_seq_length")
    most = tokenizer.values.get("model_max_length")
    return most if isinstance(most, int) and 0 < most < LARGEST_LENGTH else None


def read_prompt_texts(raw: ConfigReader) -> tuple[dict[str, str], str]:
    prompts = {name: text for name, text in raw.get_dict("prompts").items() if text is not None}
    if not all(isinstance(text, str) for text in prompts.values()):
        raise raw.error("prompts is not an object of texts")
    default = raw.get_str("default_prompt_name", "")
    if default and default not in prompts:
        raise raw.error(f"default_prompt_name {default[:40]!r} is not one of the prompts ({', '.join(prompts)})")
    return prompts, default
