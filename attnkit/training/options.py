"""The options of train: the model, how it learns, the end of the run, its results.

An option that is not set has the value of the recipe, or of the run to resume.
"""

from typing import Annotated, Literal, NamedTuple

import typer

from attnkit import options
from attnkit.checkpoints.seq2seq import ATTENTIONS, CELLS
from attnkit.training.families import FAMILIES
from attnkit.training.optimizers import DEFAULTS
from attnkit.training.schedules import SCHEDULES


class ModelOptions(NamedTuple):
    """The model that is trained, new or published, and what a text is to it."""

    family: Annotated[str | None, options.choice(FAMILIES, "family of a new model [default: gpt2]")] = None
    layers: Annotated[int | None, typer.Option(min=1, help="number of layers [default: 4; seq2seq: 1, lstm: 3]")] = None
    heads: Annotated[int | None, typer.Option(min=1, help="number of attention heads [default: 4]")] = None
    dim: Annotated[int | None, typer.Option(min=1, help="width of the embeddings and hidden states [default: 128]")] = (
        None
    )
    hidden: Annotated[
        int | None, typer.Option(min=1, help="width of the feed-forward networks, or of the recurrent states")
    ] = None
    size: Annotated[
        int | None, typer.Option(min=1, help="pixels of each side of the images of a vit [default: 32]")
    ] = None
    patch: Annotated[
        int | None, typer.Option(min=1, help="pixels of each side of a patch, a token of a vit [default: 4]")
    ] = None
    cell: Annotated[str | None, options.choice(CELLS, "recurrent cell of a seq2seq [default: gru]")] = None
    attention: Annotated[
        str | None, options.choice(ATTENTIONS, "attention of the decoder of a seq2seq [default: additive]")
    ] = None
    input_feeding: Annotated[bool, typer.Option(help="feed the last attention output to the decoder of a seq2seq")] = (
        False
    )
    bidirectional: Annotated[bool, typer.Option(help="bidirectional encoder of a seq2seq")] = False
    config: Annotated[str | None, typer.Option(metavar="FILE", help="config.json of a new model")] = None
    from_: Annotated[str | None, typer.Option(metavar="DIR", help="fine-tune this published model")] = None
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="chars|words|bpe:N|unigram:N|DIR", help="tokenizer: trained on the text, or taken from DIR"
        ),
    ] = None
    pairs: Annotated[bool, typer.Option(help="train a t5 on lines of source, tab, target")] = False
    classify: Annotated[bool, typer.Option(help="train a classifier on lines of label, tab, text (lstm)")] = False


class LearningOptions(NamedTuple):
    """How the parameters are changed: batches, optimizer, schedule, regularization."""

    batch: Annotated[int | None, typer.Option(min=1, help="number of texts or images in a batch [default: 12]")] = None
    block: Annotated[
        int | None, typer.Option(min=1, help="number of tokens in a sequence [default: 64; fewer if the text is short]")
    ] = None
    accumulate: Annotated[
        int | None, typer.Option(min=1, help="number of batches whose gradients are added up in each step [default: 1]")
    ] = None
    optimizer: Annotated[str | None, options.choice(DEFAULTS, "optimizer [default: adamw]")] = None
    lr: Annotated[float | None, typer.Option(click_type=options.ABOVE_0, help="learning rate [default: 0.001]")] = None
    momentum: Annotated[float | None, typer.Option(min=0, help="momentum of sgd [default: 0]")] = None
    weight_decay: Annotated[
        float | None,
        typer.Option(min=0, help="weight decay, not applied to norms and biases [default: adamw 0.01, otherwise 0]"),
    ] = None
    schedule: Annotated[
        str | None, options.choice(SCHEDULES, "schedule of the learning rate after the warm-up [default: constant]")
    ] = None
    warmup: Annotated[
        int | None, typer.Option(min=0, help="number of steps in which the learning rate rises [default: 100]")
    ] = None
    clip: Annotated[
        float | None,
        typer.Option(
            min=0, help="largest norm of the gradients, which are scaled down to it; 0: no limit [default: 1]"
        ),
    ] = None
    dropout: Annotated[float | None, typer.Option(min=0, help="dropout rate [default: 0]")] = None
    weight_drop: Annotated[
        float | None, typer.Option(min=0, help="dropout rate of the weights between recurrent states [default: 0]")
    ] = None
    smoothing: Annotated[float | None, typer.Option(min=0, metavar="E", help="label smoothing ε [default: 0]")] = None
    freeze: Annotated[
        tuple[str, ...], options.names("parameters that are not trained: decoder.embed*", metavar="PATTERNS")
    ] = ()
    unfreeze_every: Annotated[
        int | None, typer.Option(min=1, help="train the last layer first, and one more layer after every N steps")
    ] = None
    layer_decay: Annotated[
        float | None,
        typer.Option(
            click_type=options.SHARE, help="factor of the learning rate from each layer to the layer below it"
        ),
    ] = None
    seed: Annotated[int | None, typer.Option(min=0, help="seed of all random numbers [default: 0]")] = None


class EndOptions(NamedTuple):
    """When a run ends, and the run to resume."""

    steps: Annotated[
        int | None, typer.Option(min=0, help="end after N steps; 0: an untrained model [default: 1000]")
    ] = None
    epochs: Annotated[int | None, typer.Option(min=1, help="end when the data have been read N times")] = None
    minutes: Annotated[float | None, typer.Option(click_type=options.ABOVE_0, help="end after X minutes")] = None
    patience: Annotated[int | None, typer.Option(min=1, help="end after N reports without a better held-out loss")] = (
        None
    )
    valid: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="share of the data that is held out; 0: nothing [default: 5%]")
    ] = None
    resume: Annotated[str | None, typer.Option(metavar="DIR", help="resume the run in this folder")] = None


class ResultOptions(NamedTuple):
    """What a run writes beside the model, and how often."""

    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        typer.Option(help="dtype of the tensors in model.safetensors [default: float32]"),
    ] = None
    every: Annotated[int | None, typer.Option(min=1, help="report and save after every N steps [default: 100]")] = None
    sample: Annotated[str | None, typer.Option(help="let the model continue TEXT at every report")] = None
    record: Annotated[
        tuple[int, ...],
        typer.Option(
            parser=options.parse_whole_numbers,
            metavar="STEPS",
            help="write activations and gradients of these steps, comma-separated, to step-N.npz",
        ),
    ] = ()
