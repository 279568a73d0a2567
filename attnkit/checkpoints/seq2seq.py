"""Recurrent encoder-decoders: Sutskever 2014, Cho 2014, Bahdanau and Luong 2015.

`attnkit help checkpoints` lists the keys of config.json.
"""

from collections.abc import Mapping
from typing import Any

from attnkit.checkpoints.config_reader import FIELDS as USUAL
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import Layers, Specs, TensorSpec, Weights, embedding_table, map_linear, tied_head
from attnkit.errors import UsageError
from attnkit.model.recurrent_config import DecoderConfig, RecurrentConfig, RecurrentStack

PREFIXES = ()
WRITES_PREFIX = False
FIELDS = USUAL | {
    "encoder layers": "encoder_layers", "decoder layers": "decoder_layers", "encoder": "encoder_layers",
    "decoder": "decoder_layers", "decoder vocabulary": "decoder_vocab_size", "embedding width": "embedding_size",
    "attention": "attention", "readout": "readout", "bridge": "bridge", "layers": "", "heads": "", "hidden width": "",
    "longest text": "",
}  # fmt: skip
LEARNS, TEMPLATE, DEPTH, DISTRIBUTION = ("pairs",), "$A </s>", 1, "recurrent"
TOKENS = {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"}
OPTIONS = ("tokens", "block", "pairs", "weight_drop", "cell", "attention", "input_feeding", "bidirectional")
LAST_KEYS = ("readout", "readout_size")
HAS_OWN_MODULES = False  # of transformers
ATTENTIONS = {"none": "none", "dot": "dot", "general": "general", "additive": "additive"}
QUERIES = {"previous": True, "current": False}
READOUTS = {"none": False, "tanh": True}
BRIDGES = {"none": "none", "identity": "identity", "tanh": "tanh"}
CELLS = {"tanh": "tanh", "relu": "relu", "gru": "gru", "gru-reset-before": "gru-reset-before", "lstm": "lstm"}
PARTS = {"input": "weight_ih", "hidden": "weight_hh", "input_bias": "bias_ih", "hidden_bias": "bias_hh"}


def recurrent_stack(
    cell: str, embedding: int, widths: tuple[int, ...], vocab: int, is_bidirectional: bool = False
) -> RecurrentStack:
    """A stack of recurrent layers as a StackConfig.

    >>> stack = recurrent_stack("gru", 8, (4, 16), 100, is_bidirectional=True)
    >>> stack.hidden, stack.head_dim, stack.output_width(1)
    (16, 32, 32)
    """
    width = widths[-1] * (2 if is_bidirectional else 1)
    return RecurrentStack(
        layers=len(widths),
        heads=1,
        hidden=widths[-1],
        kv_heads=1,
        head_dim=width,
        vocab=vocab,
        cell=cell,
        embedding=embedding,
        widths=widths,
        is_bidirectional=is_bidirectional,
    )


def map_cell(prefixes: tuple[str, ...], layer: str = "l{n}", suffix: str = "") -> dict[str, TensorSpec]:
    """Map one direction of a layer to the names of torch.nn.LSTM.

    >>> map_cell(("rnn.",), suffix="_reverse")["hidden_bias_reverse"].names
    ('rnn.bias_hh_l{n}_reverse',)
    """
    return {
        name + suffix: TensorSpec(tuple(f"{prefix}{published}_{layer}{suffix}" for prefix in prefixes))
        for name, published in PARTS.items()
    }


def map_layer(prefix: str, is_bidirectional: bool) -> Specs:
    """Map a layer of torch.nn.GRU, LSTM or RNN, of one direction or of both."""
    reverse = map_cell((prefix,), suffix="_reverse") if is_bidirectional else {}
    return map_cell((prefix,)) | reverse


def read_config(raw: ConfigReader, stored: Weights) -> RecurrentConfig:
    encoder, decoder = read_encoder(raw), read_decoder(raw)
    decoding = read_decoding(raw, decoder)
    config = RecurrentConfig(
        "seq2seq",
        decoding.readout_width or decoder.output_width(-1),
        encoder=encoder,
        decoder=decoder,
        activation="tanh",
        score=decoding.score if decoding.score != "none" else "dot",
        special=raw.get_special_tokens(start=raw.get_token_id("bos_token_id")),
        decoding=decoding,
    )
    check_stacks(raw, config)
    return config


def read_encoder(raw: ConfigReader) -> RecurrentStack:
    width, layers = raw.get_int("hidden_size"), raw.get_int("encoder_layers", 1)
    cell = raw.get_choice("encoder_cell", CELLS, raw.get_choice("cell", CELLS, "lstm"))
    embedding, vocab = raw.get_int("embedding_size"), raw.get_int("vocab_size")
    return recurrent_stack(cell, embedding, (width,) * layers, vocab, raw.get_bool("bidirectional", False))


def read_decoder(raw: ConfigReader) -> RecurrentStack:
    width = raw.get_int("decoder_hidden_size", raw.get_int("hidden_size"))
    cell = raw.get_choice("decoder_cell", CELLS, raw.get_choice("cell", CELLS, "lstm"))
    embedding = raw.get_int("decoder_embedding_size", raw.get_int("embedding_size"))
    vocab = raw.get_int("decoder_vocab_size", raw.get_int("vocab_size"))
    return recurrent_stack(cell, embedding, (width,) * raw.get_int("decoder_layers", 1), vocab)


def read_decoding(raw: ConfigReader, decoder: RecurrentStack) -> DecoderConfig:
    score = raw.get_choice("attention", ATTENTIONS, "none")
    asks_before = raw.get_choice("attention_query", QUERIES, "previous" if score == "additive" else "current")
    input_feeding = raw.get_bool("input_feeding", False)
    has_readout = raw.get_choice("readout", READOUTS, "none" if score == "none" else "tanh")
    if input_feeding and (score == "none" or asks_before):
        raise raw.error("input_feeding needs an attention whose attention_query is 'current'")
    if score != "none" and not asks_before and not has_readout:
        raise raw.error("readout 'none' leaves attention unused where attention_query is 'current' (use tanh)")
    width = decoder.output_width(-1)
    score_width, readout_width = raw.get_int("attention_size", width), raw.get_int("readout_size", width)
    return DecoderConfig(
        score=score,
        score_width=score_width if score == "additive" else 0,
        asks_before=asks_before and score != "none",
        input_feeding=input_feeding,
        readout_width=readout_width if has_readout else 0,
        bridge=raw.get_choice("bridge", BRIDGES, "identity"),
    )


def check_stacks(raw: ConfigReader, config: RecurrentConfig) -> None:
    """Raise DataError where the encoder and the decoder do not fit each other."""
    encoder, decoder = config.recurrent_stack("encoder"), config.recurrent_stack("decoder")
    bridge, memory = config.decoding.bridge, config.memory_width
    if bridge != "none" and encoder.layers != decoder.layers:
        raise raw.error(f"bridge {bridge!r} from {encoder.layers} layers to {decoder.layers} (use bridge 'none')")
    if bridge != "none" and encoder.has_cell_state != decoder.has_cell_state:
        raise raw.error(f"bridge {bridge!r} from a cell {encoder.cell} to {decoder.cell} (use bridge 'none')")
    if bridge == "identity" and memory != decoder.output_width(-1):
        sizes = f"states of width {memory} to states of width {decoder.output_width(-1)}"
        raise raw.error(f"bridge 'identity' from {sizes} (use bridge 'tanh')")
    if config.decoding.score == "dot" and memory != decoder.output_width(-1):
        raise raw.error(f"attention 'dot' of states of width {decoder.output_width(-1)} and {memory} (use general)")
    for key, one, other in (
        ("tie_word_embeddings", config.width, decoder.embedding),
        ("share_encoder_decoder_embeddings", (encoder.vocab, encoder.embedding), (decoder.vocab, decoder.embedding)),
    ):
        if raw.get_bool(key, False) and one != other:
            raise raw.error(f"{key} needs two tables of one size, got {one} and {other}")


def map_layers(raw: ConfigReader) -> Layers:
    is_shared = raw.get_bool("share_encoder_decoder_embeddings", False)
    target = "encoder.embedding.weight" if is_shared else "decoder.embedding.weight"
    head = tied_head("head.weight", to=target * raw.get_bool("tie_word_embeddings", False))
    return {
        "encoder.embed": embedding_table("encoder.embedding.weight"),
        "encoder.{n}.rnn": map_layer("encoder.rnn.", raw.get_bool("bidirectional", False)),
        "decoder.embed": embedding_table(target),
        "decoder.{n}.bridge": map_linear("bridge", w1="{n}"),
        "decoder.{n}.bridge_cell": map_linear("bridge_cell", w1="{n}"),
        "decoder.{n}.rnn": map_layer("decoder.rnn.", False),
        "decoder.cross": ATTENTION_PARAMETERS[raw.get_choice("attention", ATTENTIONS, "none")],
        "decoder.readout": map_linear("decoder", w1="readout"),
        "head": head | {"b": TensorSpec(("head.bias",))},
    }


ATTENTION_PARAMETERS: Mapping[str, dict[str, TensorSpec]] = {
    "none": {},
    "dot": {},
    "general": {"w": TensorSpec(("attention.weight",))},
    "additive": {
        "wa": TensorSpec(("attention.query.weight",), transposed=True),
        "ua": TensorSpec(("attention.key.weight",), transposed=True),
        "va": TensorSpec(("attention.score.weight",), leading_ones=1),
    },
}


def new_values(recipe: Any, special: Mapping[str, int]) -> dict[str, Any]:
    """The values of a new model's config.json, beside its sizes.

    UsageError for choices that exclude each other.
    """
    attention, is_fed, hidden = recipe.attention, recipe.input_feeding, recipe.hidden or recipe.dim
    if is_fed and attention == "none":
        raise UsageError("hands on what attention found, and --attention is none", "--input-feeding")
    if recipe.bidirectional and attention == "dot":
        problem = "dot compares states of one width, and those of two directions are wider; try general"
        raise UsageError(problem, "--attention")
    readout: dict[str, Any] = {} if attention == "none" else {"readout": "tanh", "readout_size": recipe.dim}
    return {
        "attention": attention,
        "attention_query": "previous" if attention == "additive" and not is_fed else "current",
        "bidirectional": recipe.bidirectional,
        "bridge": "tanh" if recipe.bidirectional else "identity",
        "cell": recipe.cell,
        "decoder_start_token_id": special["pad"],
        "hidden_size": hidden,
        "input_feeding": is_fed,
        "is_encoder_decoder": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": bool(readout) or hidden == recipe.dim,
        **readout,
    }
