"""Apply the head of a model to hidden states, texts, an image or a sound."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from attnkit import callbacks, model
from attnkit.errors import AttnkitError, DataError
from attnkit.generation.options import GENERATION, DecodeOptions
from attnkit.generation.task import Input, ModelTask, require_states
from attnkit.generation.words import choose_by_logits, replace_words, view_words
from attnkit.inputs import encoding, layers, patches, text_inputs
from attnkit.inputs.detokenizer import Detokenizer
from attnkit.inputs.operands import cast_x
from attnkit.inputs.output_matrix import OutputLogits, OutputOperands
from attnkit.records import Array, Labels, Record, Tensor

if TYPE_CHECKING:
    from attnkit import display


SPANS = ("question", "aggregate")  # the options of parts of a text


class HeadTask(ModelTask):
    """A task of the head of a model, on texts, images, sounds or hidden states."""

    @property
    def refused(self) -> Mapping[str, Sequence[str]]:
        config = self.options.config
        other = f"which this {config.family} model is not" if self.options.layer is None else "not its head alone"
        rows = {f"a model that generates text, {other}": GENERATION}
        return {**super().refused, **rows} | ({} if config.task else {"a model with a head of labels": SPANS})

    def prepare_source(self, source: Input) -> Input:
        """Check the layer and the input of a head; cast hidden states to --dtype."""
        layer, dtype = self.options.layer, self.options.dtype
        if layer is not None:
            source = require_states(source)
            layers.find_layer(self.options.checkpoint, layer, "decode")
        if isinstance(source, Record):
            self.refuse({"text, not hidden states": ("ids", "image", "batch", "pair", *SPANS)})
            return cast_x(source, dtype) if dtype is not None and "x" in source else source
        return source


class OutputHead(HeadTask):
    """The head of a model: words at each position or in place of masks, or classes."""

    def run_model(self, source: Input) -> Record | str:
        """Logits of the head, and the words or classes chosen by them."""
        output = apply_output_head(self.prepare_source(source), self.options)
        output = replace_words(output, self.options.matrix.vocab)
        return choose_by_logits(output, "head(x)", self.options, fills_masks=not self.options.config.decoder)

    def view(self, record: Record, style: "display.Style") -> "display.ResultView":
        """The most probable words or classes, or x."""
        return view_words(record, self.options, find_titles(self.options.config), style)


def find_titles(config: model.Config) -> tuple[str, str]:
    """The titles of the words of a head, and of its positions."""
    if config.frame_labels:
        return "label of each frame", "frame"
    if config.classes:
        return ("class", "image") if config.patches else ("label", "text")
    return ("next word" if config.decoder else "word at each position"), "position"


def apply_output_head(source: Input, options: DecodeOptions) -> OutputLogits:
    """Apply the head of a model to hidden states, texts or an image."""
    core, config = layers.core_model(options.checkpoint), options.config
    options.require_head()
    tracer = options.tracer()
    if isinstance(source, Record):
        record = source
    else:  # run its only stack, as encode does, or its decoder over the source
        layers.check_pair(config, options.pair, source)
        read = text_inputs.ModelInput(
            source,
            options.pair,
            options.ids,
            options.image,
            options.tokenizer,
            options.batch,
            audio=options.speech.audio,
        )
        inputs, base = text_inputs.model_inputs(options.checkpoint, config.stacks[0], read)
        has_both = bool(config.encoder and config.decoder)
        context = layers.context_from(base, hook=model.no_hook if has_both else tracer.visit, dtype=options.dtype)
        complete = layers.complete_model(options.checkpoint)
        states = model.run(complete, config.plan(config.stacks[0]), inputs, context)
        if has_both:
            decoding = layers.new_context(
                memory=states, memory_mask=context.mask, hook=tracer.visit, dtype=options.dtype
            )
            states = model.run(complete, config.plan("decoder"), shift_source(config, inputs), decoding)
        record = Record({"x": Tensor(states, ("batch", "token", "model")[3 - states.ndim :])}).merge(base)
    x = record["x"]
    if x.ndim not in (2, 3) or x.shape[-1] != config.width:
        raise DataError(f"x {x.shape}: expected hidden states (T, {config.width}) or (B, T, {config.width})")
    logits = encoding.compute_logits(core, record, x, tracer.visit)
    callbacks.current().on_operands(OutputOperands(record, logits, core))
    tracer.check()
    if options.inspection.tracing.trace:
        tokens, memory_tokens = record.labels.get("token"), None
        if tokens and config.encoder and config.decoder:
            tokens, memory_tokens = shift_labels(tokens, options), tokens
        traced = tracer.record(tokens, memory_tokens).merge(patches.find_box(record))
        callbacks.current().write_side_output(options.inspection.tracing.trace, traced)
    if config.classes:
        return OutputLogits(record, logits, list(config.classes), None, "label", config.label_function)
    side = "target" if config.encoder and config.decoder else "source"
    try:
        tokenizer = options.tokenizer or text_inputs.tokenizer_of(options.checkpoint, side)
    except AttnkitError:
        return OutputLogits(record, logits, [], None)
    return OutputLogits(record, logits, Detokenizer(tokenizer, logits.shape[-1]).words() or [], tokenizer.decode)


def shift_source(config: model.Config, ids: Array) -> Array:
    """Read the source after its start, as a classifier's decoder does.

    (..., T) -> (..., T)

    >>> shift_source(model.Config("bart", 2, special=model.SpecialTokens(start=2)), np.array([0, 5, 2])).tolist()
    [2, 0, 5]
    """
    start = np.full((*ids.shape[:-1], 1), config.special.start)
    return np.concatenate([start, ids[..., :-1]], axis=-1)


def shift_labels(tokens: Labels, options: DecodeOptions) -> Labels:
    """The tokens of `shift_source`, of one text or of each."""
    start = options.config.special.start or 0
    size = options.config.stack("decoder").vocab
    words = text_inputs.vocabulary_of(options.checkpoint, "source", options.tokenizer, size)
    first = words[start] if start < len(words) else str(start)
    rows = [[first, *row[:-1]] for row in ([tokens] if isinstance(tokens[0], str) else tokens)]
    return rows[0] if isinstance(tokens[0], str) else rows
