"""All models of the tests: where their files come from, how they are opened, and small inputs that they read.

The name of a model is that of its folder in tests/references/models, or of its row in a table of drawn models. Names
from other sources begin with the source, as in ties/gpt2 and gguf/llama.
"""

import functools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy

from attnkit import model
from attnkit.checkpoints import Checkpoint, open_checkpoint
from attnkit.inputs import layers
from attnkit.model import RecurrentConfig
from tests.drawing import VARIANTS, drawn_models, write_model, write_variant
from tests.gguf_models import ARCHITECTURES, convert
from tests.places import DATA, MODELS, REFERENCES, ROOT, arrays
from tests.sentence_folders import MODEL2VEC, write_model2vec, write_sentences

# tables of tests/references
DRAWN = (
    *("decoders", "recall", "shortconv", "state_spaces", "embedders", "translators", "ties"),
    *("vision", "pictures", "sounds", "waves", "moonshine"),
)
PREFIXED = ("waves", "ties")  # those with names that other models have too
FOLDERS = tuple(sorted(path.name for path in MODELS.iterdir() if path.is_dir()))
# of them, those that continue a text, and those that translate one, with outputs of transformers
CAUSAL = ("gpt2", "gpt2-scaled", "openai-gpt", "llama", "llama3", "llama-linear", "llama-dynamic", "llama-yarn",
          "mistral", "qwen2")  # fmt: skip
TRANSLATORS = ("t5", "t5-gated", "mt5", "marian", "marian-half", "marian-native")
TOWERS = tuple(f"{name}:{tower}" for name, one in drawn_models("vision").items() if "logit_scale" in one["shapes"]
               for tower in ("text", "vision"))  # fmt: skip
# the parts of models of pictures and texts
PICTURE_PARTS = tuple(f"{name}:{tower}" for name in drawn_models("pictures") for tower in ("text", "vision"))
RECURRENT = tuple(dict.fromkeys(key.partition("/")[0] for key in arrays("recurrent_models")))
COPIES = ("gguf/", "ties/", "trained/", "untied/", "inputs/", "pytorch/")  # models of the same kinds from other files
OTHERS = {  # name -> folder
    **{name: DATA / name for name in ("fr-en", "shapes", "story")},
    **{f"inputs/{name}": ROOT / "tests" / "transcripts" / "inputs" / name
       for name in ("clip", "nllb", "siglip", "wav2vec2", "whisper")},
    **{f"{part}/{path.name}": path for part in ("trained", "untied") for path in sorted((REFERENCES / part).iterdir())},
    "image_classifier": REFERENCES / "image_classifier",
    "pytorch/shards": REFERENCES / "pytorch" / "shards",
}  # fmt: skip


class Source(NamedTuple):
    """Where a model comes from: place (its name, an empty folder) -> its folder or file."""

    place: Callable[[str, Path], Path]
    name: str


def drawn_names(kind: str) -> dict[str, str]:
    """The names here of the drawn models of a table, and their names there."""
    return {f"{kind}/{name}" if kind in PREFIXED else name: name for name in drawn_models(kind)}


def write_recurrent(name: str, folder: Path, **changes: Any) -> Path:
    """Write the folder of a model of tests/references/recurrent_models.npz, with keys of config.json changed."""
    members = {key.removeprefix(f"{name}/"): one for key, one in arrays("recurrent_models").items()
               if key.startswith(f"{name}/")}  # fmt: skip
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(json.loads(str(members["config"])) | changes))
    weights = {key.removeprefix("weights/"): one for key, one in members.items() if key.startswith("weights/")}
    safetensors.numpy.save_file(weights, folder / "model.safetensors")
    return folder


def write_gguf(name: str, folder: Path) -> Path:
    """Write the GGUF file of a tiny model."""
    (folder / "model.gguf").write_bytes(convert(name))
    return folder / "model.gguf"


def _list_models() -> Iterator[tuple[str, Source]]:
    for name in FOLDERS:
        yield name, Source(lambda name, _: MODELS / name, name)
    for name in OTHERS:
        yield name, Source(lambda name, _: OTHERS[name], name)
    for kind in DRAWN:
        write = functools.partial(write_model, kind=kind)
        for name, own in drawn_names(kind).items():
            yield name, Source(write, own)
    for name in VARIANTS:
        yield name, Source(write_variant, name)
    for name in (*TOWERS, *PICTURE_PARTS):
        yield name, Source(lambda name, _: Path(f"{place_of(name.partition(':')[0])}:{name.partition(':')[2]}"), name)
    for name in RECURRENT:
        yield f"recurrent/{name}", Source(write_recurrent, name)
    for name in ARCHITECTURES:
        yield f"gguf/{name}", Source(write_gguf, name)
    yield "static", Source(write_sentences, "static")
    for name in MODEL2VEC:
        yield f"static/{name}", Source(write_model2vec, name)


REGISTRY: Mapping[str, Source] = dict(_list_models())


@functools.cache
def _temporary() -> tempfile.TemporaryDirectory:
    """A folder for the files of this process, which is removed at its end."""
    return tempfile.TemporaryDirectory(prefix="attnkit-models-")


@functools.cache
def place_of(name: str) -> str:
    """The folder or the file of a model, written once in a process if its weights are drawn."""
    place, own = REGISTRY[name]
    folder = Path(_temporary().name) / name.replace("/", "-").replace(":", "-")
    folder.mkdir()
    return str(place(own, folder))


def open_model(name: str) -> Checkpoint:
    """Open a model of the registry."""
    return open_checkpoint(place_of(name))


def load_core(name: str) -> model.Model:
    """Open a model as its configuration and parameters."""
    return layers.core_model(open_model(name))


def shallow(core: model.Model) -> model.Model:
    """A Transformer whose stacks have their layers up to the first of each kind; other models as they are."""
    config = core.config
    if isinstance(config, RecurrentConfig):
        return core
    stacks = {}
    for name in config.stacks:
        stack = config.stack(name)
        kinds = [_layer_kind(core, name, number) for number in range(stack.layers)]
        depth = 1 + max((kinds.index(kind) for kind in kinds), default=-1)
        stacks[name] = replace(stack, layers=depth, windows=stack.windows[:depth])
    return core._replace(config=replace(config, **stacks))


def _layer_kind(core: model.Model, stack: str, number: int) -> list[Any]:
    """What a layer computes: its steps, rules of attention, and names of parameters."""
    config, kind = core.config, []
    for step in model.layer_steps(config, stack, number):
        names = [*core.params[step.layer]] if step.layer in core.params else []
        experts = len(config.with_experts(step.layer))
        kind.append((step.op, step.adds_residual, config.attention_rules.get(step.layer), experts, names))
    return kind


@dataclass(frozen=True)
class Batch:
    """What a model reads: texts of ids (B, T), or images, sounds or hidden states.

    mask     (B, T) True = a token, no padding; target and target_mask: those of the decoder of an encoder-decoder model
    types    (B, T) segments
    pixels   (B, C, height, width) of images
    sound    (B, frame, channel) of a spectrogram, or (B, sample)
    states   (B, T, D) of the first stack of a model without embeddings; target_states of its decoder
    """

    ids: np.ndarray | None = None
    mask: np.ndarray | None = None
    target: np.ndarray | None = None
    target_mask: np.ndarray | None = None
    types: np.ndarray | None = None
    pixels: np.ndarray | None = None
    sound: np.ndarray | None = None
    states: np.ndarray | None = None
    target_states: np.ndarray | None = None

    def alone(self, row: int) -> "Batch":
        """One text, image or sound of the batch, without padding."""
        masks = {"ids": self.mask, "types": self.mask, "states": self.mask, "mask": self.mask}
        masks |= dict.fromkeys(("target", "target_states", "target_mask"), self.target_mask)
        parts = {}
        for field in fields(self):
            array, mask = getattr(self, field.name), masks.get(field.name)
            if array is not None:
                parts[field.name] = array[row : row + 1] if mask is None else array[row][mask[row]][None]
        return Batch(**parts)

    def first(self, stack: str, config: model.Config) -> np.ndarray:
        """What a stack reads."""
        names = ("target", "target_states") if stack == "decoder" and config.encoder else (
            "ids", "pixels", "sound", "states")  # fmt: skip
        return next(array for name in names if (array := getattr(self, name)) is not None)

    def padding(self, stack: str, config: model.Config) -> np.ndarray | None:
        """The mask of what a stack reads."""
        return self.target_mask if stack == "decoder" and config.encoder else self.mask


def kind_of(config: model.Config) -> str:
    """The kind of a model: what it reads, and what it makes of that."""
    if isinstance(config, RecurrentConfig):
        return "recurrent encoder-decoder" if config.encoder else "recurrent language model"
    if config.sound:
        return "wav2vec 2.0" if config.frame_labels or config.decoder is None else "Whisper"
    if not (config.patches or config.stack(config.stacks[0]).vocab):
        return "stacks without embeddings"
    if config.vector_width or config.has_probe:
        return "tower"
    if config.patches:
        return "image"
    return "-".join(config.stacks)


TOKENS, PADDED = 7, 5  # of the first text of a batch, and of the second without its padding


def make_batch(config: model.Config, tokens: int = TOKENS, padded: int = PADDED) -> Batch:
    """Two texts, images or sounds, the same in every call.

    The second text has padding: on the left for a decoder alone, else on the right; none if attention reads padding.
    """
    rng = np.random.default_rng(0)
    if config.patches:
        cut = config.patches
        size = (cut.channels, cut.height, cut.width)
        return Batch(pixels=rng.normal(size=(2, *size)).astype(np.float32))
    batch = Batch() if config.text_length else Batch(mask=_padded(tokens, padded, is_left=config.encoder is None))
    if config.sound:
        read = config.sound
        shape = (2 * read.positions, read.spectrogram.mels) if read.spectrogram else (read.frames_before("", tokens),)
        batch = Batch(sound=rng.normal(size=(2, *shape)).astype(np.float32))
    elif config.stack(config.stacks[0]).vocab:
        batch = replace(batch, ids=_draw_ids(rng, config, config.stacks[0], tokens))
        if config.types:
            batch = replace(batch, types=np.arange(2 * tokens).reshape(2, tokens) % config.types)
    else:
        batch = replace(batch, states=rng.normal(size=(2, tokens, config.width)).astype(np.float32))
    if not (config.encoder and config.decoder):
        return batch
    target_mask = _padded(tokens - 1, padded - 1)
    if config.decoder.vocab:
        return replace(batch, target=_draw_ids(rng, config, "decoder", tokens - 1), target_mask=target_mask)
    states = rng.normal(size=(2, tokens - 1, config.width)).astype(np.float32)
    return replace(batch, target_states=states, target_mask=target_mask)


def _padded(tokens: int, second: int, *, is_left: bool = False) -> np.ndarray:
    places = np.arange(tokens)[:: -1 if is_left else 1]
    return places < np.array([[tokens], [second]])


def _draw_ids(rng: np.random.Generator, config: model.Config, stack: str, tokens: int) -> np.ndarray:
    return rng.integers(min(5, config.stack(stack).vocab // 2), min(30, config.stack(stack).vocab), (2, tokens))
