"""attnkit loss: the cross-entropy of logits and targets."""

import warnings
from typing import Annotated, Any

import numpy as np
import typer

from attnkit import display, model, options
from attnkit.cli.calls import tool
from attnkit.cli.constraints import Constraints
from attnkit.cli.stage import Stage
from attnkit.errors import AttnkitWarning
from attnkit.inputs.targets import (
    expected_distribution,
    find_logits,
    find_targets,
    ignore_padding,
    is_distribution,
    target_words,
)
from attnkit.model.formulas.loss import IGNORE_INDEX, REDUCTIONS, LossOptions, cross_entropy, target_probabilities
from attnkit.records import Array, Labels, Record, Tensor, row_labels

DISTRIBUTIONS = ["target", "model"]  # the rows of a table of --steps


def view_loss(record: Record, stage: Stage, style: display.Style) -> display.ResultView:
    """View tables of the distributions and of the losses of each text."""
    return display.ResultView(list_losses(record, stage, style))


def list_losses(record: Record, stage: Stage, style: display.Style) -> list[display.TextTable | display.TensorView]:
    """Tables of the losses of each text, below the view of its distributions."""
    ignore = stage.parameters["ignore"]
    arrays = [record[name] for name in ("target", "probability", "loss")]
    length = arrays[0].shape[-1] if arrays[0].ndim else 1
    targets, probabilities, losses = (array.reshape(-1, length) for array in arrays)
    has_weights = stage.parameters["weights"] is not None
    parts: list[display.TextTable | display.TensorView] = []
    for row, ids in enumerate(targets):
        counted = [at for at in range(length) if ids[at] != ignore]
        tokens = names_along(record, "loss", row, length)
        words = names_along(record, "target", row, length, [str(id) for id in ids])
        if "expected" in record:
            parts += [view_distributions(record, row, tokens, words, counted, style)] * bool(counted)
        parts.append(
            display.losses_table(
                [(tokens[at], words[at], float(probabilities[row, at]), float(losses[row, at])) for at in counted],
                style,
                title=f"batch {row}" if len(targets) > 1 else "",
                has_weights=has_weights,
            )
        )
    if len(targets) > 1 or has_weights:  # else the table has it
        parts.append(display.tensor_view(record, "x", style))
    return parts


def names_along(record: Record, name: str, row: int, length: int, default: list[str] | None = None) -> list[str]:
    """The labels of the last axis in a row of the batch, or the numbers of its cells."""
    labels = record.labels_of(name, record[name].ndim - 1) if record[name].ndim else None
    names = row_labels(labels, row)
    return names if len(names) == length else default or [str(at) for at in range(length)]


def view_distributions(
    record: Record, row: int, tokens: list[str], words: list[str], counted: list[int], style: display.Style
) -> display.TensorView:
    size = record["expected"].shape[-1]
    pairs = [record[name].reshape(-1, len(tokens), size)[row, counted] for name in ("expected", "probs")]
    titles = [f"{tokens[at]} → {words[at]}" for at in counted]
    labels: list[Labels | None] = [titles, DISTRIBUTIONS, record.labels_of("expected", record["expected"].ndim - 1)]
    formula = "(1 − ε) one-hot(target) + ε/N, and softmax(logits)"
    stacked = np.stack(pairs, axis=1)
    return display.TensorView("distributions", stacked, ("token", "p", "vocab"), labels, style, formula)


@tool(
    rules=Constraints(one_of=[("target",)]),
    view=view_loss,
    adds=lambda stage: bool(stage.parameters["steps"]),
)
def loss(
    record: Record,
    *,
    target: Annotated[
        Any,
        options.file(
            "targets",
            "correct token for each row: words, ids, or a FILE of ids (:ids takes those of the record); if there "
            "are fewer targets than rows, they belong to the last rows",
            "TEXT|FILE",
        ),
    ] = None,
    smoothing: Annotated[
        float,
        typer.Option(
            min=0, max=1, metavar="E", help="label smoothing ε: the target distribution is (1 − ε) one-hot + ε/N"
        ),
    ] = 0.0,
    ignore: Annotated[int, typer.Option(metavar="ID", help="ignore targets with this id")] = IGNORE_INDEX,
    weights: Annotated[Record | None, options.file("tensor", "weight of each word (class) in the loss, (N,)")] = None,
    reduction: Annotated[
        str, options.choice(REDUCTIONS, "x is the loss of each row, their sum, or their weighted mean")
    ] = "mean",
    steps: Annotated[
        bool,
        typer.Option(help="add the two distributions to the record, `expected` and `probs`, and show tables of them"),
    ] = False,
) -> Record:
    """Compute the cross-entropy of logits and targets.

    The loss tells how improbable the model finds the correct tokens.

    loss = −log softmax(logits)[target] for every row of `logits`, or of x if the record has no logits. The record gets
    `target` (ids), `probability` (of each target) and `loss`; x is the mean, the sum, or the loss of each row
    (--reduction). The table shows the total, the mean, and the perplexity = exp(mean of −log probability). A target
    that equals --ignore, or that is padding in the record's mask, has loss 0 and is not counted. With --weights,
    the mean, which x then shows alone, divides by the sum of the weights of the targets, as in PyTorch.

    \b
    Examples:
      attnkit embed "The cat sat" --dim 8 | attnkit decode | attnkit loss --target "cat sat The"
      attnkit decode --model DIR "Once" --score " upon a time" --emit logits | attnkit loss --target :ids
    """
    logits, axes, words = find_logits(record)
    if is_distribution(logits):
        warnings.warn("the rows of x are distributions; loss takes logits: decode --emit logits", AttnkitWarning, 2)
    ids = find_targets(target["x"] if isinstance(target, Record) else target, logits.shape, words, ignore)
    ids = ignore_padding(ids, record, ignore)
    factors = None if weights is None else weights["x"]
    each = LossOptions(factors, ignore, smoothing, "none")
    losses = cross_entropy(logits, ids, each)
    reduced = losses if reduction == "none" else cross_entropy(logits, ids, each._replace(reduction=reduction))
    over = () if reduced.ndim < losses.ndim else axes[:-1]
    formula = "−log softmax(logits)[target]" + (f", {reduction} over the targets" if reduction != "none" else "")
    tensors = {
        "x": Tensor(reduced, over, formula=formula),
        "target": Tensor(ids, (*axes[:-2], "target") if len(axes) > 1 else (), target_words(ids, words, ignore)),
        "probability": Tensor(target_probabilities(logits, ids, ignore), axes[:-1]),
        "loss": Tensor(losses, axes[:-1]),
    }
    return record.with_tensors(tensors | (distributions(logits, ids, axes, each) if steps else {}))


def distributions(logits: Array, ids: Array, axes: tuple[str, ...], each: LossOptions) -> dict[str, Tensor]:
    expected = expected_distribution(ids, logits.shape[-1], each.ignore_index, each.label_smoothing)
    probabilities = model.probabilities(logits)
    return {
        "expected": Tensor(expected.astype(probabilities.dtype), axes),
        "probs": Tensor(probabilities, axes),
    }
