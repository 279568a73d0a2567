"""What stands at both ends of a model: embeddings, masks, cross-entropy."""

import math
from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition, Way
from attnkit.checking.definitions.attention import stable_softmax
from attnkit.checking.definitions.linear import WIDTH
from attnkit.checking.definitions.positions import leading_ones
from attnkit.model.exercises.worked_steps import softmax_of
from attnkit.model.slips import OPPOSITE_CAUSAL, SHIFTED_CAUSAL, STRICT_CAUSAL, Slip

IGNORED = -100  # the target that PyTorch ignores
LARGE = 1000.0


def as_ids(ids: Any) -> Any:
    return np.asarray(ids).astype(int)


EMBED = Definition(
    "token ids to the rows of a table",
    {
        "ids": Argument("... T", "ids token_ids input_ids x tokens idx input indices inputs", draw="ids V"),
        "table": Argument(
            "V D", "table weights weight w embeddings embedding_matrix wte emb", role="parameter", draw="table"
        ),
    },
    {"rows": lambda ids, table: table[as_ids(ids)]},
    {"T": 5, "V": 11, "D": 6},
    (
        Case("plain"),
        Case("no leading axis", lead=()),
        Case("leading axes", lead=(2, 3)),
        Case("the last word", lead=(), given={"ids": lambda given, generator: np.arange(10, 5, -1)}),
    ),
    "... T D",
    (
        Slip(
            "the embeddings are multiplied by √D",
            {"rows": lambda ids, table: table[as_ids(ids)] * math.sqrt(table.shape[-1])},
        ),
        Slip("each id takes the row after its own", {"rows": lambda ids, table: np.roll(table, -1, 0)[as_ids(ids)]}),
        Slip("each id takes the row before its own", {"rows": lambda ids, table: np.roll(table, 1, 0)[as_ids(ids)]}),
        Slip(
            "the rows are normalized to length 1",
            {"rows": lambda ids, table: (table / np.linalg.norm(table, axis=-1, keepdims=True))[as_ids(ids)]},
        ),
    ),
    functions="embedding Embedding embed TokenEmbedding run_embedding",
    construct={
        "V": "num_embeddings vocab_size n_vocab num_words vocab",
        "D": WIDTH,
    },
)

SQUARE = {"T": Argument("", "t size seq_len length n sz tgt_len max_len seq_length", role="number")}


def polarity_of(step: str) -> dict[str, Way]:
    """The ways to say which keys a query may attend to."""
    return {
        "keep": Way(),
        "block": Way("True = blocked", steps={step: lambda allowed: ~allowed.astype(bool)}),
        "add": Way("a mask to add, −∞ where blocked", steps={step: lambda allowed: np.where(allowed, 0.0, -np.inf)}),
        "add-1e9": Way("a mask to add, −10⁹ where blocked", steps={step: lambda allowed: np.where(allowed, 0.0, -1e9)}),
    }


CAUSAL_MASK = Definition(
    "the causal mask: a token may attend to itself and to those before it",
    SQUARE,
    {
        "allowed": lambda T: np.tri(int(T)),
        "table": lambda allowed: allowed,
        "shaped": lambda table: table,
    },
    {},
    (
        Case("short", lead=(), given={"T": 5}),
        Case("long", lead=(), given={"T": 64}),
        Case("one token", lead=(), given={"T": 1}),
    ),
    "T T",
    (
        Slip(STRICT_CAUSAL, {"allowed": lambda T: np.tri(int(T), k=-1)}),
        Slip(SHIFTED_CAUSAL, {"allowed": lambda T: np.tri(int(T), k=1)}),
        Slip(OPPOSITE_CAUSAL, {"allowed": lambda T: np.tri(int(T)).T}),
        Slip("a token may attend to itself alone", {"allowed": lambda T: np.eye(int(T))}),
        Slip("every token may attend to all", {"allowed": lambda T: np.ones((int(T), int(T)))}),
    ),
    {"polarity": polarity_of("table"), "shape": leading_ones("T, T")},
    "causal_mask subsequent_mask create_causal_mask look_ahead_mask create_look_ahead_mask make_causal_mask "
    "get_causal_mask generate_square_subsequent_mask",
)


def logarithms(logits: Any, axis: int = -1) -> Any:
    """The logarithm of softmax."""
    shifted = logits - logits.max(axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))


def pick(values: Any, targets: Any) -> Any:
    """The value of each target: (..., V), (...) -> (...)."""
    ids = np.where(as_ids(targets) == IGNORED, 0, as_ids(targets))
    return np.take_along_axis(values, ids[..., None], -1)[..., 0]


def mean_of_counted(losses: Any, targets: Any) -> Any:
    counted = as_ids(targets) != IGNORED
    return np.where(counted, losses, 0).sum() / counted.sum()


def some_ignored(given: Any, generator: Any) -> Any:
    targets = generator.integers(0, given["logits"].shape[-1], given["logits"].shape[:-1])
    return np.where(np.arange(targets.shape[-1]) % 3 == 1, IGNORED, targets)


CROSS_ENTROPY = Definition(
    "cross-entropy: the mean of −ln of the probability of each target",
    {
        "logits": Argument("... V", "logits inputs input x scores predictions y_pred outputs pred"),
        "targets": Argument("...", "targets labels target y y_true label ids", draw="ids V"),
    },
    {
        "logarithms": lambda logits: logarithms(logits),
        "picked": lambda logarithms, targets: pick(logarithms, targets),
        "losses": lambda picked: -picked,
        "loss": lambda losses, targets: mean_of_counted(losses, targets),
    },
    {"V": 7},
    (
        Case("plain", lead=(5,)),
        Case(
            "large logits",
            lead=(5,),
            given={"logits": lambda given, generator: LARGE * generator.standard_normal((5, 7))},
        ),
        Case("one token", lead=(1,)),
        Case("leading axes", lead=(2, 3), note="attnkit: the mean of all; PyTorch reads (N, V) alone"),
        Case(
            "ignored targets",
            lead=(5,),
            given={"targets": some_ignored},
            note="attnkit and PyTorch leave out targets of −100",
        ),
    ),
    "",
    (
        Slip(
            "the largest logit is not subtracted, so that e^logit overflows",
            {"logarithms": lambda logits: np.log(softmax_of(logits))},
        ),
        Slip(
            "softmax is applied twice: probabilities are taken for logits",
            {"logarithms": lambda logits: logarithms(stable_softmax(logits))},
        ),
        Slip("softmax is missing: the logit of the target is taken", {"logarithms": lambda logits: logits}),
        Slip("the logarithm has the base 2", {"losses": lambda picked: -picked / math.log(2)}),
        Slip("the logarithm has the base 10", {"losses": lambda picked: -picked / math.log(10)}),
        Slip("the minus sign is missing", {"losses": lambda picked: picked}),
        Slip("the loss is the sum, not the mean", {"loss": lambda losses: losses.sum()}),
        Slip(
            "the loss is divided by the number of all logits",
            {"loss": lambda losses, logits: losses.sum() / logits.size},
        ),
        Slip("that is the perplexity, e^loss", {"loss": lambda losses: np.exp(losses.mean())}),
        Slip("that is −ln of the mean probability", {"loss": lambda picked: -np.log(np.exp(picked).mean())}),
        Slip(
            "the targets are those of the next token: they are shifted by one",
            {
                "picked": lambda logarithms, targets: pick(logarithms[..., :-1, :], targets[..., 1:]),
                "loss": lambda losses: losses.sum() / max(losses.size, 1),
            },
        ),
        Slip(
            "the targets are those of the next token: they are shifted by one",
            {
                "picked": lambda logarithms, targets: pick(logarithms[..., :-1, :], targets[..., 1:]),
                "loss": lambda losses: losses.mean() if losses.size else np.nan,
            },
        ),
        Slip(
            "softmax is over the tokens, not over the words",
            {
                "logarithms": lambda logits: logarithms(logits, 0),
            },
        ),
    ),
    functions="cross_entropy crossentropy cross_entropy_loss CrossEntropyLoss ce_loss run_cross_entropy loss",
)

DEFINITIONS = {"embed": EMBED, "mask": CAUSAL_MASK, "cross-entropy": CROSS_ENTROPY}
