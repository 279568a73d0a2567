"""The law of the references: a model has the states, weights and logits that its reference computed, frozen.

What the arrays are, and how they were made, is said in the scripts of tests/references. Ours are those of a whole pass;
the logits of a text longer than windows and original contexts are those of a pass token by token, too.
"""

from itertools import pairwise, product

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.inputs.layers import core_model
from attnkit.model import RecurrentConfig
from tests.drawing import write_model
from tests.gguf_models import READ_BY_TRANSFORMERS
from tests.model.test_graph import run_whole
from tests.places import MODELS, arrays
from tests.registry import OTHERS, RECURRENT, TOWERS, Batch, drawn_names, kind_of, load_core

pytestmark = pytest.mark.filterwarnings("ignore:.*which the configuration ties it to")
PLACES = ("", "batch.", "left.", "long.", "wide.", "padded.")  # prefixes of the inputs of a model, and of its outputs
# names of inputs in the archives that have others than those of `read_batch`
NAMES = {
    "models": {f"{place}_{key}": f"{place}.{key}" for place in ("batch", "left", "long")
               for key in ("ids", "mask", "decoder_ids")} | {"start.decoder_ids": "decoder_ids"},
    "translators": {"source": "ids", "ids": "decoder_ids", "batch.source": "batch.ids",
                    "batch.ids": "batch.decoder_ids"},
    "sounds": {"features": "sound", "ids": "decoder_ids"},
    "waves": {"values": "sound"},
    "moonshine": {"values": "sound", "ids": "decoder_ids"},
    "vision": {"ids.mask": "mask"},
    "recurrent_models": {"target": "decoder_ids"},
}  # fmt: skip
SHARED = ("ids", "batch.ids", "batch.mask", "values")  # of all models of an archive
# name -> its archive, and what the keys of the model begin with there
SOURCES = {
    **{path.stem: (f"models/{path.stem}", "") for path in MODELS.glob("*.npz")},
    "bert-old": ("models/bert-mlm", ""),
    **{name: (kind, f"{own}/")
       for kind in (
           *("decoders", "recall", "state_spaces", "embedders", "translators"),
           *("vision", "sounds", "waves", "moonshine"),
       )
       for name, own in drawn_names(kind).items() if f"{name}:text" not in TOWERS},
    **{name: ("vision", f"{name.partition(':')[0]}/") for name in TOWERS},
    **{f"recurrent/{name}": ("recurrent_models", f"{name}/") for name in RECURRENT},
    **{f"ties/{own}": ("ties", f"{own}.") for own in drawn_names("ties").values()},
    **{name: ("untied", f"{name.partition('/')[2]}.") for name in OTHERS if name.startswith("untied/")},
    **{f"gguf/{name}": ("gguf_models", f"{name}.") for name in READ_BY_TRANSFORMERS},
}  # fmt: skip
UNNORMED = {"image", "tower", "stacks without embeddings", "wav2vec 2.0"}  # whose hidden states are before the norm
SINGLES = [name for name in SOURCES if not name.startswith("recurrent/")]  # whose files are of float64
EXACT = 1e-10  # of the largest number in float64
# in float32, else 1e-6
SINGLE = {"decoders": 2e-6, "embedders": 2e-6, "recall": 4e-5, "state_spaces": 2e-5, "waves": 2e-6}
# models whose reference computes parts in float32 always, or whose GELU has a constant of eight digits there
PARTLY_SINGLE = ("t5", "mt5", "llama", "mistral", "qwen2", "vit", "modernbert", "deberta", "ties/", "untied/", "gguf/")
EXACTNESS = {"bloom": 1e-8}
# models whose norms multiply by 1 + weight, in the dtype of the file
SUMS = ("gemma", "gemma2", "gemma3", "embeddinggemma", *(one for one in drawn_names("recall") if "qwen" in one))


def given(name):
    """The inputs and outputs of a model by name."""
    archive, start = SOURCES[name]
    tower, renamed = name.partition(":")[2], NAMES.get(archive.partition("/")[0], {})
    found = {key.removeprefix(start): x for key, x in arrays(archive).items() if key.startswith(start) or key in SHARED}
    if tower:
        others = ("pixels", "wide.", "logits") if tower == "text" else ("ids", "wide.", "logits")
        found = {key.removeprefix(f"{tower}."): x for key, x in found.items() if not key.startswith(others)}
    return {renamed.get(key, key): x for key, x in found.items()}


def read_batch(known, place, config):
    """What the model reads at a place, or None."""

    def get(key):
        return known.get(f"{place}{key}")

    ids, mask, target = get("ids"), get("mask"), None if config.classes else get("decoder_ids")
    if config.encoder and config.decoder and config.decoder.vocab:
        target = read_target(known, ids, config) if target is None else target
        target = None if target is None else np.where(target < 0, config.special.start, target)
    if "lengths" in known and ids is not None:
        mask = np.arange(ids.shape[1]) < known["lengths"][:, None]
    sound = get("sound")
    if sound is not None:
        sound = sound.swapaxes(1, 2) if sound.ndim == 3 else sound[None]
    states, words = (known.get(key) if place in ("", "padded.") else None for key in ("x", "tgt"))
    mask = known["padding"] if place == "padded." and states is not None else mask
    inputs = [ids, get("pixels"), sound, states]
    if all(one is None for one in inputs) or (place == "padded." and "padding" not in known):
        return None
    mask = None if mask is None or config.text_length else mask.astype(bool)
    return Batch(ids, mask, target, mask if config.classes else None, get("types"), get("pixels"), sound, states, words)


def read_target(known, ids, config):
    """What the decoder of a model reads that has no inputs of its own: the source, in some archives in reverse."""
    if ids is None or "long.ids" in known:
        return ids
    start = np.full((len(ids), 1), config.special.start)
    return np.concatenate((start, ids[:, :-1] if config.classes else ids[:, ::-1]), axis=1)


def sites_of(config, stack):
    """The sites of the hidden states of a stack: its embeddings, and what leaves each layer."""
    steps = config.plan(stack)
    first = [step for step in steps if model.parse_layer_name(step.layer)[1] is None and step.layer != f"{stack}.norm"]
    ends = [model.layer_steps(config, stack, number)[-1] for number in range(config.stack(stack).layers)]
    sites = [f"{step.layer}.residual" if step.adds_residual else step.layer for step in (*first[-1:], *ends)]
    if stack == "decoder" and config.transform and not config.encoder:
        return [*sites[:-1], "head.dense"]
    is_normed = config.stack(stack).final_norm and kind_of(config) not in UNNORMED
    return [*sites[:-1], f"{stack}.norm"] if is_normed else sites


def site_of(config, key):
    """The site of an output of a reference, or None."""
    parts = key.split(".")
    stack = parts.pop(0) if parts[0] in ("encoder", "decoder") else config.stacks[0]
    match parts:
        case ["logits"]:
            return "logits" if config.head else config.plan("decoder")[-1].layer
        case ["pooled"]:
            return "pooler"
        case ["features"]:
            return "encoder.feature_norm"
        case ["memory"] if isinstance(config, RecurrentConfig):
            return f"encoder.{config.encoder.layers - 1}.rnn.state"
        case ["hidden" | "memory" | "normed" | "states"]:
            return config.plan(stack)[-1].layer
        case ["y"]:
            return config.plan("decoder")[-1].layer
        case ["alignments"]:
            return "decoder.cross.weights"
        case ["attentions" | "weights", number]:
            return f"{stack}.{number}.self.weights"
        case ["states", number] if number.isdigit():
            return f"decoder.{number}.rnn.state"
        case ["hidden", number] | [number] if number.isdigit():
            return sites_of(config, stack)[int(number)]
    return None


@pytest.mark.parametrize(("name", "dtype"), [*product(SOURCES, ["float64"]), *product(SINGLES, ["float32"])])
def test_states_weights_and_logits_are_those_of_the_reference(name, dtype, tmp_path):
    core, known, compared = load(name, dtype, tmp_path), given(name), 0
    for place in PLACES:
        if (batch := read_batch(known, place, core.config)) is None:
            continue
        kept = run_whole(core, batch, dtype)
        for key, expected in outputs_of(known, place):
            if site := site_of(core.config, key):
                assert kept[site].dtype == dtype
                check_output(name, batch, kept[site], expected, known.get(f"{place}{key}.f32"), site, core.config)
                compared += 1
    assert compared


def load(name, dtype, folder):
    """A model with its parameters; norms of Gemma are sums in the dtype of the file."""
    if name not in SUMS:
        return load_core(name)
    kind, _ = SOURCES[name]
    return core_model(open_checkpoint(str(write_model(name, folder, np.dtype(dtype).type, kind))))


def outputs_of(known, place):
    """The outputs in float64 of a place, without its prefix."""
    for key, array in known.items():
        if key.startswith(place) and (place or not key.startswith(PLACES[1:])):
            yield key.removeprefix(place).removesuffix(".f64"), array


def check_output(name, batch, found, expected, rounded, site, config):
    """Compare what is real to 1e-10 of the largest number in float64, and to 1e-6 in float32.

    Random weights amplify rounding: where the reference's own float32 is further from its float64 than half of that,
    ours may be twice as far as it.
    """
    if found.ndim == expected.ndim == 3:  # some archives have the last tokens, or no registers
        width = expected.shape[1]
        found = found[:, -width:, : expected.shape[2]] if site == "logits" else found[:, :width]
    assert found.size == expected.size, site
    found, stack = found.reshape(expected.shape), "encoder" if site.startswith("encoder") else config.stacks[-1]
    mask = batch.padding(stack, config)
    has_padding = mask is not None and expected.ndim == 3 and not site.endswith("weights")
    real = mask[:, -expected.shape[1] :] if has_padding and expected.shape[1] <= mask.shape[1] else ...
    scale = max(1, np.abs(expected[real]).max())
    is_single = found.dtype == np.float32
    limit = SINGLE.get(SOURCES[name][0], 1e-6) if is_single else EXACTNESS.get(name, EXACT)
    limit = 1e-5 if name.startswith(PARTLY_SINGLE) else limit
    if is_single and rounded is not None:
        limit = max(limit, 2 * np.abs(rounded - expected)[real].max() / scale)
    assert np.abs(found[real] - expected[real]).max() <= limit * scale, site


@pytest.mark.parametrize("name", [name for name in SOURCES if "long.ids" in given(name)])
def test_logits_after_a_long_text_token_by_token_are_those_of_the_reference(name, tmp_path):
    core, known, fields = load(name, "float64", tmp_path), given(name), {}
    if not (core.config.decoder and core.config.head):
        return
    ids = known["long.ids"]
    if core.config.encoder:
        fields["memory"] = model.run(core, core.config.plan("encoder"), ids, model.Context(dtype="float64"))
    decoder = model.CachedDecoder(core, dtype="float64", **fields)
    for start, end in pairwise((0, 5, *range(ids.shape[1] - 4, ids.shape[1] + 1))):
        row = decoder(ids[:, start:end])
    expected = known["long.logits.f64"][:, -1]
    limit = 1e-5 if name.startswith(PARTLY_SINGLE) else EXACTNESS.get(name, EXACT)
    assert np.abs(row - expected).max() <= limit * max(1, np.abs(expected).max())
