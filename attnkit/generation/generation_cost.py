"""The cost of generated texts in a pipeline: each prompt and its tokens after."""

from collections.abc import Iterable, Iterator

import numpy as np

from attnkit.errors import flag_name
from attnkit.generation.options import DecodeOptions, is_set
from attnkit.generation.prompts import make_detokenizer, make_prompts
from attnkit.inputs.layers import ids_from_x
from attnkit.interpret.cost import count_model, count_text, sum_costs
from attnkit.interpret.pipeline_cost import count_decode, count_probabilities
from attnkit.interpret.stage_calls import StageCall
from attnkit.model.graph.costs import Cost, ModelShapes
from attnkit.options import collect_options
from attnkit.records import Record

# options by which a stage computes more, or less, than one text after each prompt
REFUSED = ("score", "beam", "cache_in", "cache_out", "trace", "patch", "ablate", "grad", "attribute", "audio", "chat",
           "image", "labels")  # fmt: skip


def count_decoded(call: StageCall) -> Iterable[Cost]:
    """The rows of decode: of generated texts, or of the head alone."""
    options = collect_options(DecodeOptions, call.values)
    if options.model_ is None or not options.writes_text:
        return count_decode(call)
    return sum_costs(count_generated(call, options, count_model(options.model_)))


def count_generated(call: StageCall, options: DecodeOptions, model: ModelShapes) -> Iterator[Cost]:
    """Yield the rows of each text, and of the probabilities of its tokens."""
    values, result = call.values, call.result
    given = [name for name in REFUSED if is_set(values[name])]
    given += ["max_tokens"] * (values["max_tokens"] == 0)
    if not isinstance(result, Record):
        raise call.error("--emit text: a text does not say how many tokens were generated; --emit ids does")
    if given:
        raise call.error(f"{flag_name(given[0])}: only a prompt and the one text after it are counted")
    item = ids_from_x(call.item) if isinstance(call.item, Record) else call.item
    prompts, _ = make_prompts(item, options, make_detokenizer(options))
    for prompt, generated in zip(prompts, generated_lengths(result), strict=True):
        source = 0 if prompt.memory is None else len(prompt.memory)
        phases = count_text(model, len(prompt.ids), generated, source)
        for row in (row for rows in phases.values() for row in rows):
            if prompt.source_ids is not None or not row.name.startswith("encoder."):  # else the memory is given
                yield row
        yield from count_probabilities((generated, model.config.parameter_shape("head", "w")[-1]))


def generated_lengths(result: Record) -> list[int]:
    """The tokens of each text of a record that decode made."""
    rows = np.atleast_2d(result["ids" if "ids" in result else "x"])
    mask = result.get("mask")
    return [rows.shape[1]] * len(rows) if mask is None else mask.reshape(len(rows), -1).sum(axis=1).tolist()
