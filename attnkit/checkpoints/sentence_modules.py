"""The files of sentence-transformers: how hidden states become one vector."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from attnkit.checkpoints.checkpoint import as_float
from attnkit.checkpoints.config_reader import ConfigReader, read_json, read_json_object
from attnkit.checkpoints.weights import open_weights
from attnkit.errors import DataError
from attnkit.formats.streams import exists
from attnkit.model.dtypes import Array
from attnkit.model.formulas.activations import TORCH
from attnkit.tokenizers.files import TokenizerFolder

MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
SETTINGS = tuple(  # the first of these; older folders have one with the name of their family
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
KINDS = ("Transformer", "Pooling", "Dense", "Normalize", "Dropout")  # of modules; a dropout does nothing here
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


@dataclass(frozen=True)
class Dense:
    """A linear layer w (in, out) with bias b and an activation."""

    w: Array
    b: Array | None
    activation: str


@dataclass(frozen=True)
class SentenceModules:
    """What the files of sentence-transformers in a folder state.

    modules         after the model: Pooling, Dense, and None for a normalization, by the number in modules.json
    max_length      tokens of a text at most; None: as many as the model has positions
    is_lower        whether texts are written in lower case first
    prompts         what comes before a text, by name; `prompt` is the name of the one by default, "" for none
    """

    modules: Mapping[int, Pooling | Dense | None] = field(default_factory=dict)
    max_length: int | None = None
    is_lower: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str = ""
    files: tuple[str, ...] = ()

    @property
    def is_pooled(self) -> bool:
        """Whether the folder says how a text becomes one vector."""
        return any(isinstance(module, Pooling) for module in self.modules.values())


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
        return SentenceModules()
    files: list[str] = [path]
    modules: dict[int, Pooling | Dense | None] = {}
    for number, (kind, part) in enumerate(read_module_list(path)):
        config = os.path.join(folder, part, "config.json")
        if kind == "Pooling":
            modules[number] = read_pooling(ConfigReader(read_json_object(config), config))
            files.append(config)
        elif kind == "Dense":
            modules[number], more = read_dense(os.path.join(folder, part), config)
            files += more
        elif kind == "Normalize":
            modules[number] = None
    if modules and not isinstance(next(iter(modules.values())), Pooling):
        raise DataError("its first module after the Transformer is not a Pooling", path)
    settings_file = next((name for name in SETTINGS if exists(os.path.join(folder, name))), SETTINGS[0])
    settings = read_optional(folder, settings_file, files)
    prompts = read_optional(folder, PROMPTS, files)
    return SentenceModules(
        modules,
        read_max_length(settings, read_optional(folder, "tokenizer_config.json", [])),
        settings.get_bool("do_lower_case", False),
        *read_prompt_texts(prompts),
        tuple(files),
    )


def check_widths(modules: Mapping[int, Pooling | Dense | None], width: int, path: str) -> None:
    """Raise DataError for a Dense whose input is not as wide as the vectors before.

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
        elif module is not None:
            size, out = module.w.shape
            if size != width:
                raise DataError(f"module {number} takes vectors of {size}, and those before it are of {width}", path)
            width = out


def read_module_list(path: str) -> list[tuple[str, str]]:
    entries = read_json(path)
    if not isinstance(entries, list) or not entries:
        raise DataError("not a JSON list of modules", path)
    modules = []
    for number, entry in enumerate(entries):
        reader = ConfigReader(entry if isinstance(entry, dict) else {}, path)
        full, part = reader.get_str("type"), reader.get_str("path", "")
        kind = full.rpartition(".")[2]
        if kind not in KINDS or not full.startswith("sentence_transformers."):
            raise reader.error(f"module {number} is a {full[:60]!r}, which is not supported (use {', '.join(KINDS)})")
        steps = part.replace("\\", "/").split("/")
        if os.path.isabs(part) or ".." in steps or not part.isprintable():
            raise reader.error(f"module {number}: path {part[:40]!r} is not within the folder")
        if (kind == "Transformer") != (number == 0):
            raise reader.error(f"module {number} is a {kind} (expected a Transformer first, and no other)")
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


def read_dense(folder: str, config: str) -> tuple[Dense, list[str]]:
    """A Dense layer and the files it is read from. DataError for sizes that differ."""
    raw, weights = ConfigReader(read_json_object(config), config), open_weights(folder)
    places = {raw.get_str(f"module_{end}_name", "sentence_embedding") for end in ("input", "output")}
    if places != {"sentence_embedding"} or raw.get_bool("use_residual", False):
        raise raw.error("a Dense of other vectors than that of the text, or with a residual, is not supported")
    name = raw.get_str("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2].removesuffix("()")
    if name not in TORCH:
        raise raw.error(f"activation_function {name[:40]!r} is not supported (use {', '.join(TORCH)} of torch)")
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (raw.get_int("out_features"), raw.get_int("in_features"))}
    shapes |= {"linear.bias": shapes["linear.weight"][:1]} if raw.get_bool("bias", True) else {}
    arrays = []
    for tensor, shape in shapes.items():
        if not weights.has(tensor):
            raise DataError(f"no tensor {tensor!r}", weights.name)
        stored = weights.entries[tensor][1]
        if stored != shape:
            raise DataError(f"tensor {tensor!r} has shape {stored} (expected {shape})", weights.name)
        arrays.append(as_float(weights.tensor(tensor)))
    return Dense(arrays[0].T, arrays[1] if arrays[1:] else None, TORCH[name]), [config, *weights.files]


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
