"""Configuration of recurrent models: the families seq2seq and lstm.

They are run by the same loop as a Transformer, by other steps. Layer names, with STACK for encoder or decoder:

STACK.embed      table (N, E)
STACK.N.rnn      input (G*H, D), hidden (G*H, H), input_bias, hidden_bias (G*H,), and of the reverse direction the same
                 with _reverse: the parameters of recurrent_cells.py
decoder.N.bridge w1 (S, H), b1 (H,): the last state of encoder layer N to the first of decoder layer N, and
                 decoder.N.bridge_cell those of the cell state of an LSTM
decoder.cross    of the additive score wa (H, A), ua (M, A), va (A,); of the general score w (H, M)
decoder.readout  w1 (C, R), b1 (R,): what the decoder computes of a token to what the head reads
head             w (R, N), b
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from attnkit.errors import UsageError, with_article
from attnkit.model.config import Config, SourceStates, StackConfig, Step, parse_layer_name
from attnkit.model.formulas.recurrent_cells import CELLS

DIRECTIONS = ("", "_reverse")


def is_state_weight(layer: str, name: str) -> bool:
    """Whether a parameter is a weight between the states of a recurrent layer.

    >>> is_state_weight("decoder.0.rnn", "hidden_reverse"), is_state_weight("decoder.0.rnn", "hidden_bias")
    (True, False)
    """
    return layer.endswith(".rnn") and name in ("hidden", "hidden_reverse")


@dataclass(frozen=True)
class RecurrentStack(StackConfig):
    """One stack of recurrent layers.

    cell       a name of CELLS
    embedding  width of its embeddings
    widths     width of the hidden state of each layer, in one direction
    is_bidirectional  whether each layer has a reverse direction beside the forward one
    """

    cell: str = "lstm"
    embedding: int = 0
    widths: tuple[int, ...] = ()
    is_bidirectional: bool = False

    def output_width(self, layer: int) -> int:
        """Width of the outputs of a layer."""
        return self.widths[layer] * (2 if self.is_bidirectional else 1)

    @property
    def has_cell_state(self) -> bool:
        """Whether its states have two parts."""
        return CELLS[self.cell].has_cell_state


@dataclass(frozen=True)
class DecoderConfig:
    """How a decoder attends to the memory, and what it computes of it.

    score           none, dot, general or additive, the last of width `score_width`
    asks_before     attention asks with the state before the token (Bahdanau et al. 2015), whose input then has the
                    context beside the embedding; else with the state after it (Luong et al. 2015)
    input_feeding   the input of the next token has the readout of this one beside its embedding (Luong et al. 2015)
    readout_width   of tanh([…] w1 + b1); 0: the head reads the state itself
    bridge          none: the decoder starts from zeros; identity: from the last states of the encoder; tanh: from
                    tanh(state w1 + b1)
    """

    score: str = "none"
    score_width: int = 0
    asks_before: bool = False
    input_feeding: bool = False
    readout_width: int = 0
    bridge: str = "none"

    @property
    def is_sequential(self) -> bool:
        """Whether the input of a token depends on what attention found at the one before."""
        return self.asks_before or self.input_feeding


@dataclass(frozen=True)
class RecurrentConfig(Config):
    """One recurrent model; `width` is that of what its head reads."""

    decoding: DecoderConfig = field(default_factory=DecoderConfig)

    @property
    def is_recurrent(self) -> bool:
        """True: there are no keys of self-attention."""
        return True

    @cached_property
    def states(self) -> dict[str, dict[str, dict[str, int]]]:
        """The parts of the states of the decoder after a token, by layer.

        >>> RecurrentConfig("lstm", 4, decoder=RecurrentStack(1, 1, 4, 1, 4, vocab=9, widths=(4,))).states
        {'decoder.0.rnn': {'state': {'model': 4}, 'cell': {'model': 4}}}
        """
        if self.decoder is None:
            return {}
        stack = self.recurrent_stack("decoder")
        states = {}
        for number, width in enumerate(stack.widths):
            parts = ("state", *("cell",) * stack.has_cell_state)
            states[f"decoder.{number}.rnn"] = {part: {"model": width} for part in parts}
        return states | ({"decoder.readout": {"state": {"model": self.width}}} if self.decoding.input_feeding else {})

    @property
    def source_states(self) -> SourceStates | None:
        """The last states of the encoder, if there is a bridge."""
        if self.encoder is None or self.decoding.bridge == "none":
            return None
        stack = self.recurrent_stack("encoder")
        return SourceStates(stack.layers, self.memory_width, 1 + stack.has_cell_state)

    def needs_memory(self, step: Step) -> bool:
        """Whether a step attends to the memory, or begins with the states of its encoder."""
        stack, number, part = parse_layer_name(step.layer)
        begins = stack == "decoder" and part == "rnn" and (number is None or self.source_states is not None)
        return part == "cross" or begins

    def head_states(self, stack: str) -> dict[str, str]:
        """The sites of the states of a stack that are as wide as its head reads.

        The last site is the state that the head reads.

        >>> decoder = RecurrentStack(2, 1, 4, 1, 4, vocab=9, embedding=4, widths=(6, 4))
        >>> RecurrentConfig("lstm", 4, decoder=decoder).head_states("decoder")
        {'embedding': 'decoder.embed', 'decoder.1': 'decoder.1.rnn.state'}
        """
        chosen = self.recurrent_stack(stack)
        sites = {"embedding": (f"{stack}.embed", chosen.embedding)}
        for number in range(chosen.layers):
            sites[f"{stack}.{number}"] = f"{stack}.{number}.rnn.state", chosen.output_width(number)
        if stack == "decoder" and self.decoding.readout_width:
            sites["readout"] = "decoder.readout.output", self.decoding.readout_width
        return {name: site for name, (site, width) in sites.items() if width == self.width}

    def recurrent_stack(self, name: str) -> RecurrentStack:
        """The encoder or the decoder; UsageError if the model has none."""
        return cast(RecurrentStack, self.stack(name))

    def fixes_shapes(self, layer: str) -> bool:
        """False: recurrent layers compute the tokens of a text one after another."""
        return False

    def result_width(self, layer: str) -> int:
        """Width of what the step of a layer computes, without its residual.

        Of a decoder that attends inside its recurrence: that of the readout that is fed to the next token, else of
        what the readout is computed from, else of the state.
        """
        stack, number, part = parse_layer_name(layer)
        chosen, is_recurrent = self.recurrent_stack(stack), part == "rnn"
        if is_recurrent and number is not None:
            return chosen.output_width(number)
        if is_recurrent and not self.decoding.input_feeding:
            return self.readout_input_width if self.decoding.readout_width else chosen.output_width(-1)
        return {"embed": chosen.embedding, "cross": self.memory_width}.get(part, self.width)

    @property
    def memory_width(self) -> int:
        """The width of the encoder's hidden states."""
        return 0 if self.encoder is None else self.recurrent_stack("encoder").output_width(-1)

    def input_width(self, stack: str, layer: int) -> int:
        """Width of the input of a layer of a stack."""
        chosen = self.recurrent_stack(stack)
        if layer:
            return chosen.output_width(layer - 1)
        if stack == "encoder":
            return chosen.embedding
        fed = self.decoding.readout_width if self.decoding.input_feeding else 0
        return chosen.embedding + (self.memory_width if self.decoding.asks_before else 0) + fed

    @property
    def readout_input_width(self) -> int:
        """The width of what the readout of a token is computed from.

        The context and the state; of a decoder that asks with the state before, that state, the embedding and the
        context (Bahdanau et al. 2015, appendix A.2.2).
        """
        decoder = self.recurrent_stack("decoder")
        attended = 0 if self.decoding.score == "none" else self.memory_width
        return decoder.output_width(-1) + attended + (decoder.embedding if self.decoding.asks_before else 0)

    def cross_widths(self) -> tuple[int, int]:
        """Widths of the keys and values that a cache holds of the memory."""
        is_projected = self.decoding.is_sequential and self.decoding.score == "additive"
        return self.decoding.score_width if is_projected else self.memory_width, self.memory_width

    def plan(self, stack: str) -> list[Step]:
        """All steps of a stack, from ids to its last hidden states.

        >>> decoder = RecurrentStack(1, 1, 4, 1, 4, vocab=9, embedding=4, widths=(4,))
        >>> [step.layer for step in RecurrentConfig("lstm", 4, decoder=decoder).plan("decoder")]
        ['decoder.embed', 'decoder.0.rnn']
        """
        chosen, decoding = self.recurrent_stack(stack), self.decoding
        steps = [Step("embed", f"{stack}.embed")]
        names = [f"{stack}.{number}.rnn" for number in range(chosen.layers)]
        layers = [Step("rnn", name, result=f"{name}.state") for name in names]
        if stack == "encoder" or decoding.score == "none":
            return [*steps, *layers, *self._readout(stack)]
        if decoding.is_sequential:
            return [*steps, Step("rnn", "decoder.rnn"), *([] if decoding.input_feeding else self._readout(stack))]
        return [*steps, *layers, Step("attend", "decoder.cross", "concat"), *self._readout(stack)]

    def layer_names(self) -> list[str]:
        """Names of all layers that may have parameters, in the order of a forward pass."""
        names = []
        for stack in self.stacks:
            numbers = range(self.recurrent_stack(stack).layers)
            names += [f"{stack}.embed", *(name for name in self._bridges() if stack == "decoder")]
            names += [f"{stack}.{number}.rnn" for number in numbers]
        cross = ["decoder.cross"] if self.decoding.score != "none" else []
        return [*names, *cross, *(step.layer for step in self._readout("decoder")), "head"]

    def parameter_shape(self, layer: str, name: str) -> tuple[int, ...]:
        """Shape of a parameter of a layer."""
        stack_name, number, part = parse_layer_name(layer)
        decoder = self.recurrent_stack("decoder")
        if part == "rnn":
            return self._cell_shape(stack_name, number or 0, name.removesuffix("_reverse"))
        if part == "embed":
            stack = self.recurrent_stack(stack_name)
            return stack.vocab, stack.embedding
        outputs = len(self.classes) or decoder.vocab
        state, memory, scored = decoder.output_width(-1), self.memory_width, self.decoding.score_width
        shapes: dict[str, dict[str, tuple[int, ...]]] = {
            "head": {"w": (self.pooled_width, outputs), "b": (outputs,)},
            "cross": {"wa": (state, scored), "ua": (memory, scored), "va": (scored,), "w": (state, memory)},
            "readout": {"w1": (self.readout_input_width, self.width), "b1": (self.width,)},
        }
        if part in ("bridge", "bridge_cell"):
            source = self.recurrent_stack("encoder").output_width(number or 0)
            width = decoder.widths[number or 0]
            return (source, width) if name.startswith("w") else (width,)
        return shapes[part][name]

    def _cell_shape(self, stack_name: str, number: int, name: str) -> tuple[int, ...]:
        stack = self.recurrent_stack(stack_name)
        width, blocks = stack.widths[number], CELLS[stack.cell].blocks
        columns = {"input": (self.input_width(stack_name, number),), "hidden": (width,)}
        return (blocks * width, *columns.get(name, ()))

    def _bridges(self) -> list[str]:
        if self.decoding.bridge != "tanh":
            return []
        stack = self.recurrent_stack("decoder")
        parts = ("bridge", "bridge_cell") if stack.has_cell_state else ("bridge",)
        return [f"decoder.{number}.{part}" for number in range(stack.layers) for part in parts]

    def _readout(self, stack: str) -> list[Step]:
        has_readout = stack == "decoder" and self.decoding.readout_width > 0
        return [Step("ffn", "decoder.readout")] * has_readout


def as_recurrent(config: Config, flag: str = "") -> RecurrentConfig:
    """The configuration of a recurrent model; UsageError for another model."""
    if not isinstance(config, RecurrentConfig):
        raise UsageError(f"{with_article(config.family)} model has no recurrent layers", flag)
    return config
