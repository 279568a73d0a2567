"""Two models compared on a text: errors of sites, KL of the predictions.

With the site that costs most.

For a model and its quantized file: the norms of weights do not say how much the predictions change.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from attnkit import model
from attnkit.display import Block, Note, Only, Style, Text, TextTable, text_lines
from attnkit.display.cells import Cells
from attnkit.display.report import ComparisonReport
from attnkit.errors import AttnkitError, AttnkitWarning, DataError, UsageError, counted, with_article
from attnkit.inputs.text_columns import parse_pairs
from attnkit.inputs.text_inputs import ModelInput, model_inputs
from attnkit.interpret.comparison import EXACT, Tolerance, compare_ids
from attnkit.interpret.weights_comparison import measure_change
from attnkit.records import Array, Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint, Parameters

# the ends of the names of sites that are compared
ENDS = (".residual", ".embed", ".embed_norm", ".norm", ".rnn.state", "decoder.cross.output", "readout.output")
ROWS = 64  # tokens whose logits are computed at a time
HEADINGS = ("stage", "‖b−a‖/‖a‖", "largest", "cosine")
COSTS = ("tensor", "stored as", "KL", "largest")
SAME_TENSORS = "no tensor differs"
FIGURES = ("relative", "largest", "cosine")


@dataclass(frozen=True, repr=False)
class AgreementReport(ComparisonReport):
    """How far two models agree on a text.

    `same` is one boolean; `relative`, `largest` and `cosine` are vectors over sites, `kl` over tokens, `tensor_kl` and
    `tensor_largest` over the tensors of a scan. KL is KL(A‖B) in nats.

    lines  sentences below the tables
    """

    lines: tuple[str, ...] = field(kw_only=True, compare=False)

    def blocks(self, style: Style) -> list[Block]:
        sites, costs = site_rows(self, style.precision), cost_rows(self, style.precision)
        tables = [TextTable(HEADINGS, sites, range(1, 4))] + [TextTable(COSTS, costs, range(2, 4))] * bool(costs)
        drawn = [Only("terminal", table) for table in tables]
        titles = ("stages", "tensors of B in A")
        drawn += [Only("figure", one._replace(title=title)) for one, title in zip(tables, titles, strict=False)]
        lines = "\n".join(text_lines(line, style) for line in self.lines)
        return [
            *drawn,
            *[Only("terminal", Text(lines))] * bool(lines),
            *(Only("figure", Note(one)) for one in self.lines),
        ]

    def cells(self) -> Cells:
        if "tensor_kl" in self:
            columns = self.labels["tensor"], self.labels["stored"], self["tensor_kl"], self["tensor_largest"]
            return Cells(["tensor", "stored", "kl", "largest"], [[*row] for row in zip(*columns, strict=True)])
        rows = zip(self.labels["stage"], *(self[name] for name in FIGURES), strict=True)
        return Cells(["stage", *FIGURES], [[*row] for row in rows])


class TokenText(NamedTuple):
    """The ids (1, T) of a text, and those of its source (1, S).

    source  of an encoder-decoder model, whose decoder reads all ids but the last; None for other models
    """

    ids: Array
    source: Array | None = None

    def inputs(self, stacks: Sequence[str]) -> dict[str, Array]:
        """What each stack reads."""
        if self.source is None:
            return dict.fromkeys(stacks, self.ids)
        return dict(zip(stacks, (self.source, self.ids[:, :-1]), strict=True))


@dataclass(frozen=True)
class Prediction:
    """KL (T,), losses of the tokens that are predicted, and first choices (T,)."""

    kl: Array
    losses: tuple[Array, Array]
    choices: tuple[Array, Array]


class Replaced(Mapping[str, Mapping[str, Array]]):
    """The parameters of a model, a few of them replaced.

    others  (layer, name) -> the parameter in place of the model's own
    """

    def __init__(self, params: "Parameters", others: Mapping[tuple[str, str], Array]) -> None:
        self._params, self._others = params, others

    def __getitem__(self, layer: str) -> Mapping[str, Array]:
        others = {name: array for (of, name), array in self._others.items() if of == layer}
        return {**self._params[layer], **others}

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)


@dataclass(frozen=True)
class ModelsOnText:
    """Two models that are compared on a text."""

    takes: ClassVar[tuple[str, ...]] = ("tolerance", "text", "ids", "scan", "languages")

    a: "Checkpoint"
    b: "Checkpoint"

    def compare(
        self,
        tolerance: Tolerance,
        text: Sequence[Sequence[str]] | None,
        ids: Record | None,
        scan: bool,
        languages: Sequence[str | None],
    ) -> AgreementReport:
        """Run both models on the lines of files or on token ids.

        languages  of the source and the target of models that translate between several
        """
        if text is not None and ids is not None:
            raise UsageError("cannot be combined with --ids", "--text")
        lines = [line for lines in text or [] for line in lines]
        inputs = self.find_sides(lines, ids, languages)
        return compare_on_text(self.a, self.b, *self.read_texts(inputs), tolerance, scan)

    def find_sides(
        self, lines: Sequence[str], ids: Record | None, languages: Sequence[str | None]
    ) -> list[list[ModelInput]]:
        """What the stacks read of each text, or of each pair of texts."""
        config, text = self.a.config, "\n".join(lines)
        if config.sound:
            problem = f"{with_article(config.family)} model reads a sound (expected models of texts)"
            raise UsageError(problem, "--text")
        if len(config.stacks) == 1:
            return [[ModelInput(None, ids=ids) if ids is not None else ModelInput(text, language=languages[0])]]
        if ids is not None:
            raise UsageError("an encoder-decoder model reads the pairs of --text", "--ids")
        pairs = [sides for _, *sides in parse_pairs(text, "--text")]
        return [[ModelInput(side, language=one) for side, one in zip(sides, languages, strict=True)] for sides in pairs]

    def read_texts(self, inputs: Sequence[Sequence[ModelInput]]) -> tuple[list[TokenText], list[str], bool]:
        """The ids of texts by the tokenizer of A, and the tokens that it reads last.

        Also whether B would read other ids, of which it warns.
        """
        stacks, texts, tokens, difference = self.a.config.stacks, list[TokenText](), list[str](), ""
        for sides in inputs:
            read = []
            for stack, side in zip(stacks, sides, strict=True):
                ids, record = model_inputs(self.a, stack, side)
                read.append(np.atleast_2d(ids))
                if len(read[-1]) > 1 or read[-1].shape[1] < 1:
                    raise DataError(f"ids {read[-1].shape} (expected those of one text)")
                with warnings.catch_warnings(), contextlib.suppress(AttnkitError):
                    warnings.simplefilter("ignore")  # A has warned of the same text
                    other = np.atleast_2d(model_inputs(self.b, stack, side)[0])
                    difference = difference or compare_ids(other, read[-1], None)
            texts.append(TokenText(*reversed(read)))
            tokens += [str(token) for token in record.labels.get("token", [])][: -1 if len(stacks) > 1 else None]
        if difference:
            problem = "the tokenizers of the models give other ids for the text; both models read those of A. B: "
            warnings.warn(problem + difference, AttnkitWarning, stacklevel=2)
        return texts, tokens, bool(difference)


def compare_on_text(
    a: "Checkpoint",
    b: "Checkpoint",
    texts: Sequence[TokenText],
    labels: Sequence[str] = (),
    has_other_ids: bool = False,
    tolerance: Tolerance = EXACT,
    scans: bool = False,
) -> AgreementReport:
    """Run two models of one architecture on texts, each read alone.

    labels         the tokens after which another is predicted, of all texts
    has_other_ids  whether B itself would read other ids of the text, so that the models are not the same
    scans          also replace one stored tensor of A at a time by that of B

    DataError for models of other shapes.
    """
    check_same_architecture(a, b)
    cores = [model.Model(one.config, one.params) for one in (a, b)]
    (x, kept), (y, others) = (run_compared(core, texts) for core in cores)
    figures = [compare_states(kept[name], others[name], tolerance) for name in kept]
    tensors = {"same": Tensor(np.array(all(same for *_, same in figures) and not has_other_ids), ())}
    tensors |= {
        name: Tensor(np.array([row[at] for row in figures], np.float64), ("stage",)) for at, name in enumerate(FIGURES)
    }
    names, lines = {"stage": [*kept]}, []
    if predicts(a):
        prediction = compare_predictions(cores[0], cores[1], x, y, texts)
        tensors["kl"] = Tensor(prediction.kl, ("token",))
        read = [str(id) for states, text in zip(x, texts, strict=True) for id in text.ids[0, : states.shape[1]]]
        names["token"] = [*labels] if len(labels) == len(read) else read
        lines += describe_prediction(prediction, names["token"])
    if scans:
        scanned = scan_tensors(a, b, cores[0], x, texts)
        names |= {"tensor": [name for name, *_ in scanned], "stored": [kind for _, kind, *_ in scanned]}
        tensors |= {
            key: Tensor(np.array([row[at] for row in scanned], np.float64), ("tensor",))
            for key, at in (("tensor_kl", 2), ("tensor_largest", 3))
        }
        tensors["stored"] = Tensor(np.arange(len(scanned)), ("stored",))
        lines.append(
            f"replaced alone: {counted(len(scanned), 'tensor')}, the costliest first" if scanned else SAME_TENSORS
        )
    return AgreementReport(tensors, dict(names), lines=tuple(lines))


def check_same_architecture(a: "Checkpoint", b: "Checkpoint") -> None:
    """Raise DataError for models whose parameters have other names or shapes."""
    for layer in dict.fromkeys([*a.params.specs, *b.params.specs]):
        one, other = (
            {name: params.config.parameter_shape(layer, name) for name in params.specs.get(layer, {})}
            for params in (a.params, b.params)
        )
        if one != other and not layer.startswith(("pooler", "head")):
            problem = f"not of the architecture of {a.folder}: {layer} has {describe_shapes(other)}"
            raise DataError(f"{problem} (expected {describe_shapes(one)})", b.folder)


def describe_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items()) or "no parameters"


def predicts(checkpoint: "Checkpoint") -> bool:
    """Whether a model predicts the next token at each position."""
    return checkpoint.config.decoder is not None and checkpoint.config.head


def run_compared(core: model.Model, texts: Sequence[TokenText]) -> tuple[list[Array], dict[str, Array]]:
    """The result (1, T, D) of a model for each text, and its states by name.

    The states of all texts are joined along their tokens.
    """
    ran = [run_kept(core, text) for text in texts]
    states = {name: np.concatenate([kept[name] for _, kept in ran], axis=1) for name in ran[0][1]}
    return [x for x, _ in ran], states


def run_kept(core: model.Model, text: TokenText) -> tuple[Array, dict[str, Array]]:
    """The result (1, T, D) of a model for a text and its states, in float32."""
    kept: dict[str, Array] = {}

    def hook(name: str) -> Callable[[Array], Array] | None:
        if name.endswith(ENDS) and name not in kept:
            return lambda x: kept.setdefault(name, x)
        return None

    x, context = None, model.Context()
    for stack, ids in text.inputs(core.config.stacks).items():
        context = model.Context(memory=x, source_states=context.last_states(), hook=hook)
        x = model.run(core, core.config.plan(stack), ids, context)
    assert x is not None
    return x, kept


def compare_states(x: Array, y: Array, tolerance: Tolerance = EXACT) -> tuple[float, float, float, bool]:
    """The relative norm and maximum of a change, the cosine, and whether it is 0."""
    change = measure_change(x, y, tolerance)
    left, right = x.astype(np.float64).ravel(), y.astype(np.float64).ravel()
    norms = float(np.linalg.norm(left) * np.linalg.norm(right))
    cosine = float(left @ right) / norms if norms else math.nan
    return change.relative, float(np.abs(left - right).max(initial=0)), cosine, change.verdict == "equal"


def compare_predictions(
    a: model.Model, b: model.Model, x: Sequence[Array], y: Sequence[Array], texts: Sequence[TokenText]
) -> Prediction:
    """Compare next-token distributions after hidden states x and y (1, T, D)."""
    kl, losses, choices = [], ([], []), ([], [])  # type: ignore[var-annotated]
    for one_x, one_y, text in zip(x, y, texts, strict=True):
        for start in range(0, one_x.shape[1], ROWS):
            rows = slice(start, start + ROWS)
            logs = [
                model.log_probabilities(model.head_logits(core, states[:, rows])[0].astype(np.float64))
                for core, states in ((a, one_x), (b, one_y))
            ]
            with np.errstate(invalid="ignore"):
                kl.append(np.where(np.isneginf(logs[0]), 0, np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=-1))
            following = text.ids[0, start + 1 : start + 1 + len(logs[0])]
            for at, one in enumerate(logs):
                losses[at].append(-one[np.arange(len(following)), following])
                choices[at].append(one.argmax(axis=-1))
    joined = [(np.concatenate(first), np.concatenate(second)) for first, second in (losses, choices)]
    return Prediction(np.maximum(np.concatenate(kl), 0.0), joined[0], joined[1])


def describe_prediction(prediction: Prediction, tokens: Sequence[str]) -> list[str]:
    """Sentences on KL, first choices and perplexities."""
    kl, at = prediction.kl, int(prediction.kl.argmax())
    same = float((prediction.choices[0] == prediction.choices[1]).mean())
    lines = [
        f"KL(A‖B) {kl.mean():.4g} nats a token, at most {kl[at]:.4g} after {tokens[at]!r} at [{at}]",
        f"the same first choice after {same:.1%} of {counted(len(kl), 'token')}",
    ]
    if len(prediction.losses[0]):
        before, after = (math.exp(min(float(one.mean()), 700.0)) for one in prediction.losses)
        lines.append(f"perplexity of the text {before:.5g} with A, {after:.5g} with B")
    return lines


def scan_tensors(
    a: "Checkpoint", b: "Checkpoint", core: model.Model, x: Sequence[Array], texts: Sequence[TokenText]
) -> list[tuple[str, str, float, float]]:
    """Replace each stored tensor of A, alone, by that of B.

    A row has its name, type, mean KL and largest KL.

    Of a model that predicts nothing, the two are the relative norm of the change of its result and the largest change.
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for layer, specs in b.params.specs.items():
        for name in specs:
            if name in a.params.specs.get(layer, {}):
                groups.setdefault(b.params.stored_name(layer, name), []).append((layer, name))
    found = []
    for stored, members in groups.items():
        others = {(layer, name): b.params.read(layer, name) for layer, name in members}
        if all(measure_change(a.params.read(*place), other).verdict == "equal" for place, other in others.items()):
            continue
        replaced = model.Model(a.config, Replaced(a.params, others))
        y, _ = run_compared(replaced, texts)
        if predicts(a):
            kl = compare_predictions(core, replaced, x, y, texts).kl
            cost = float(kl.mean()), float(kl.max())
        else:
            cost = compare_states(np.concatenate(x, axis=1), np.concatenate(y, axis=1))[:2]
        found.append((stored, b.params.weights.kind(stored), *cost))
    return sorted(found, key=lambda row: -row[2])


def site_rows(report: AgreementReport, precision: int) -> list[list[str]]:
    """The rows of the table of the stages."""
    digits = max(precision, 1)
    columns = [report[name] for name in FIGURES]
    return [
        [site, *(f"{number:.{digits}g}" for number in figures[:2]), f"{figures[2]:.{digits + 2}f}"]
        for site, *figures in zip(report.labels["stage"], *columns, strict=True)
    ]


def cost_rows(report: AgreementReport, precision: int) -> list[list[str]]:
    """The rows of the table of the scan; [] if there is none."""
    if "tensor_kl" not in report or not len(report["tensor_kl"]):
        return []
    digits, kinds = max(precision, 1), report.labels["stored"]
    columns = zip(report.labels["tensor"], kinds, report["tensor_kl"], report["tensor_largest"], strict=True)
    return [[str(name), str(kind), f"{kl:.{digits}g}", f"{most:.{digits}g}"] for name, kind, kl, most in columns]
