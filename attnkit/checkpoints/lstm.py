"""A language model of LSTMs as AWD-LSTM (Merity et al. 2018) and ULMFiT name it."""

from collections.abc import Mapping
from typing import Any

from attnkit.checkpoints import gpt2
from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import read_classes
from attnkit.checkpoints.seq2seq import map_cell, recurrent_stack
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, embedding_table, map_linear, tied_head
from attnkit.model.config import Config
from attnkit.model.recurrent_config import RecurrentConfig

PREFIXES = ("0.", "1.")  # fastai's: 0 the LSTMs, 1 the head
WRITES_PREFIX = False
FIELDS = USUAL | {
    "layers": "num_layers", "decoder": "num_layers", "embedding width": "embedding_size", "heads": "",
    "hidden width": "", "longest text": "",
}  # fmt: skip
LEARNS, TEMPLATE, DEPTH, DISTRIBUTION = ("causal", "labels"), "$A", 3, "recurrent"
TOKENS = gpt2.TOKENS
OPTIONS = ("tokens", "block", "pairs", "weight_drop")
HAS_OWN_MODULES = False  # of transformers
TABLE = "encoder.weight"


def read_config(raw: ConfigReader, stored: Weights) -> RecurrentConfig:
    embedding, hidden, layers = raw.get_int("embedding_size"), raw.get_int("hidden_size"), raw.get_int("num_layers", 3)
    is_tied = raw.get_bool("tie_word_embeddings", True)
    widths = (hidden,) * (layers - 1) + (embedding if is_tied else hidden,)
    classes = read_classes(raw)
    return RecurrentConfig(
        "lstm",
        widths[-1],
        decoder=recurrent_stack("lstm", embedding, widths, raw.get_int("vocab_size")),
        activation="tanh",
        special=raw.get_special_tokens(),
        classes=classes,
        task="sequence" if classes else "",
        pooling="concat",
    )


def map_layers(raw: ConfigReader) -> Layers:
    cell = map_cell(("rnns.{n}.", "rnns.{n}.module."), "l0")
    raw_names = tuple(f"{name}_raw" for name in cell["hidden"].names)  # of weights that training drops
    is_tied = raw.get_bool("tie_word_embeddings", True)
    head = tied_head("decoder.weight", to=TABLE * is_tied)
    return {
        "decoder.embed": embedding_table(TABLE),
        "decoder.{n}.rnn": cell | {"hidden": TensorSpec((*cell["hidden"].names, *raw_names))},
        "head": map_linear(w="classifier") if read_classes(raw) else head | {"b": TensorSpec(("decoder.bias",))},
    }


def new_values(recipe: Any, special: Mapping[str, int]) -> dict[str, Any]:
    """The values of a new model's config.json, beside its sizes."""
    return {
        "hidden_size": recipe.hidden or recipe.dim,
        "tie_word_embeddings": True,
    }


def draw_initial(
    config: Config, raw: Mapping[str, Any], part: str, name: str, usual: tuple[str, float]
) -> tuple[str, float]:
    """Draw embeddings uniformly within 0.1 (AWD-LSTM, section 5)."""
    is_table = name in ("table", "w") and not (part == "head" and config.classes)
    return ("uniform", 0.1) if is_table else usual
