"""attnkit lens: the words that the head reads in the state of each layer; what each part adds to a logit."""

from typing import Annotated, Any

from attnkit.cli import options
from attnkit.cli.lens_views import draw_lens, list_lens, render_lens
from attnkit.cli.tool import tool
from attnkit.inference.attribution import attribute_logit
from attnkit.inference.lens import apply_lens
from attnkit.record import Record

TOP = 3  # words of each layer, unless --top sets another number


@tool(
    view=render_lens,
    figure=draw_lens,
    cells=list_lens,
    keep_names=True,
    is_answer=True,
    without=("dtype",),
    one_of=[("model",)],
    exclusive=[("top", "direct")],
    requires=[("minus", "direct"), ("by", "direct")],
)
def lens(
    record: Record,
    *,
    model_: Annotated[Any, options.MODEL] = None,
    top: Annotated[int | None, options.integer(f"words of each layer [default: {TOP}]", least=1)] = None,
    position: Annotated[
        int | None,
        options.integer(
            "only the token at this position, -1 the last of each text [default: all; with --direct the last]"
        ),
    ] = None,
    direct: Annotated[
        str | None, options.text("what each part adds to the logit of this next word, one token", "WORD")
    ] = None,
    minus: Annotated[str | None, options.text("to that logit less the logit of this word", "WORD")] = None,
    by: Annotated[
        str | None,
        options.choice("parts: each layer's attention, or each of its heads [default: layer]", ("layer", "head")),
    ] = None,
) -> Record:
    """Apply the logit lens to a trace: the likeliest words in the state after each layer.

    The input is a trace of the model. The state of each layer is normalized by the norm after the last layer, where the
    model has one (a post-norm model has normalized it already), and the head applied: the row of the last layer is what
    the model predicts, bit for bit (with --position, to rounding). An encoder needs a head of words, as a masked
    language model has.

    --direct says how much each part adds to the logit of a word at a position: the embedding, positions, each layer's
    attention (or its heads and bias) and feed-forward network, the shift of norms, the bias of the head. Norms scale
    the parts as they scaled the whole state in the run, as TransformerLens does. The parts add up to the logit; the
    rest is what they lack of it beyond rounding. Of a post-norm model each part goes through all later norms.

    \b
    Examples:
      attnkit encode --model DIR "The capital of France is" --trace run.npz -o states.npz
      attnkit lens run.npz --model DIR --position -1
      attnkit lens run.npz --model DIR --direct " Paris" --minus " Rome" --by head
    """
    if direct is None:
        return apply_lens(record, model_, top or TOP, position)
    words = [direct] if minus is None else [direct, minus]
    return attribute_logit(record, model_, words, position, by or "layer")
