"""A language model of LSTMs as AWD-LSTM (Merity et al. 2018) and ULMFiT name it."""

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.label_heads import read_classes
from attnkit.checkpoints.seq2seq import map_cell, recurrent_stack
from attnkit.checkpoints.weights import Layers, TensorSpec, Weights, embedding_table, map_linear, tied_head
from attnkit.model.recurrent_config import RecurrentConfig

PREFIXES = ("0.", "1.")  # fastai's: 0 the LSTMs, 1 the head
FIELDS = USUAL | {"layers": "num_layers", "decoder": "num_layers", "embedding width": "embedding_size"}
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
