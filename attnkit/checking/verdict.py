"""The outcome of each case, and the conventions and the slip that explain them.

Noise is measured: the steps are computed in float64, and again with the result of each step rounded to the dtype of the
implementation, to either side at random.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from attnkit.checking.callees import Callee, CalleeError, Outcome
from attnkit.checking.cases import Drawn, draw_case
from attnkit.checking.definition import Case, Definition, Way
from attnkit.debugger.verdict import DECISIVE
from attnkit.errors import AttnkitError
from attnkit.model.dtypes import Array, quiet
from attnkit.model.exercises.worked_steps import Formula, work
from attnkit.model.rounding import EPSILON, MARGIN, gap, make_rounding
from attnkit.model.slips import Slip

ROUNDINGS = range(4)  # seeds of the roundings of each step that measure the noise
LEAST_ULPS = 4  # of the largest number of an answer, by which it may always differ
COARSE = 8.0  # times the tolerance by one rounding, by which a slip is rejected before its noise is measured again
MOST_ORDERED = 4  # arguments by place, whose orders are tried
MOST_PAIRS = 1000  # of slips that are tried
MOST_ENDS = 3  # of the process of an implementation, after which it is not called again
FEW_SLIPS = 20  # of a definition, which are tried with every convention that may be meant
MOST_TRIED = 3  # combinations of conventions with which two slips at once are looked for

MISSING = "not implemented"
OTHER_RANK = "it does not take this number of axes"

Choice = tuple[str, ...]  # the name of a way for each convention


class StatedTolerance(NamedTuple):
    """The tolerance of a user in place of measured noise; None for the measured one."""

    rtol: float | None = None
    atol: float | None = None


class Expected(NamedTuple):
    """The right answer of a case, and how far rounding may move it.

    overflows  where no finite number may be left of it in the dtype
    """

    array: Array
    noise: float
    overflows: Array = np.zeros((), bool)

    @property
    def scale(self) -> float:
        """The largest of its finite numbers."""
        return float(np.abs(self.array, where=np.isfinite(self.array), out=np.zeros(self.array.shape)).max(initial=0))


class Tested(NamedTuple):
    """The outcome of a case beside what is expected.

    status   "ok", "FAIL", "note", or "skip" where the implementation lacks an argument of the case
    largest  the largest difference, nan where there is none to measure
    words    why it fails where no difference was measured, or what a note says
    at       the index of the first wrong number
    number   that of the case among all of the definition, from 1
    where    what is wrong there in words, where the definition has some
    """

    drawn: Drawn
    status: str
    outcome: Outcome
    expected: Expected
    largest: float = np.nan
    words: str = ""
    at: tuple[int, ...] = ()
    number: int = 0
    where: str = ""

    @property
    def name(self) -> str:
        """The name of the case."""
        return self.drawn.case.name


class NamedSlip(NamedTuple):
    """A slip that explains every difference, and the largest difference it leaves."""

    slip: Slip[Formula]
    remaining: float
    is_decisive: bool


class Trial(NamedTuple):
    """The rows of all cases with a choice of conventions."""

    choice: Choice
    ways: tuple[Way, ...]
    rows: list[Tested]

    @property
    def failing(self) -> list[Tested]:
        return [row for row in self.rows if row.status == "FAIL"]

    @property
    def unanswered(self) -> int:
        """How many failing rows have no answer."""
        return sum(row.outcome.array is None for row in self.failing)


@dataclass(frozen=True)
class Findings:
    """What a check found.

    found     the ways of conventions that were found by value, in words
    causes    the slips that explain the differences equally well
    smallest  the smallest case that fails, where no slip is known
    remarks   what else is to be said
    """

    definition: Definition
    rows: tuple[Tested, ...]
    found: tuple[str, ...] = ()
    causes: tuple[NamedSlip, ...] = ()
    smallest: Tested | None = None
    remarks: tuple[str, ...] = ()

    @property
    def counted(self) -> list[Tested]:
        """The rows that count: no notes and no cases without an argument."""
        return [row for row in self.rows if row.status in ("ok", "FAIL")]

    @property
    def failing(self) -> list[Tested]:
        """The rows that fail."""
        return [row for row in self.rows if row.status == "FAIL"]

    @property
    def is_missing(self) -> bool:
        """Whether it says of all cases that it can read that it is not implemented."""
        skipped = [row.words for row in self.rows if row.status == "skip"]
        return len(skipped) == len(self.rows) and MISSING in skipped

    @property
    def is_right(self) -> bool:
        """Whether every case that counts is right, and there is one."""
        return bool(self.counted) and all(row.status == "ok" for row in self.counted)


@dataclass
class Examiner:
    """Judges an implementation by the cases of a definition.

    fixed  the way of each convention that the user states, by its name
    """

    definition: Definition
    callee: Callee
    seed: int = 0
    dtype: str = "float32"
    fixed: Mapping[str, str] = field(default_factory=dict)
    tolerance: StatedTolerance = field(default_factory=StatedTolerance)
    _outcomes: dict[Any, Outcome] = field(default_factory=dict)
    _expected: dict[Any, Expected] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.conventions = dict(self.definition.conventions)
        if 1 < len(self.callee.by_place) <= MOST_ORDERED:
            self.conventions["order"] = find_orders(self.callee.by_place)

    def judge(self, cases: Sequence[Case]) -> Findings:
        """Judge the outcome of cases."""
        drawn = [draw_case(self.definition, case, self.seed, self.dtype) for case in cases]
        trials: list[Trial] = []
        for choice in self.choices():
            trials.append(self.try_choice(choice, drawn))
            if not trials[-1].failing or all(row.status == "skip" for row in trials[-1].rows):
                break
        trials.sort(key=lambda trial: (len(trial.failing), trial.unanswered))  # stable: of equal ones the most usual
        self.refuse_unbuilt(trials[0])
        best, causes = self.find_cause(trials)
        chosen = zip(best.ways, self.conventions.items(), strict=True)
        looked = [(way, rows) for way, (name, rows) in chosen if way.words and name not in self.fixed]
        found = tuple(way.words for way, rows in looked if self.tells(rows.values(), best))
        rows = as_notes_of_rank(best.rows)
        failing = [row for row in rows if row.status == "FAIL"]
        can_shrink = failing and not causes and not failing[0].outcome.is_end
        smallest = self.shrink(best, failing[0]) if can_shrink else None
        return Findings(self.definition, tuple(rows), found, tuple(causes), smallest, self.remarks(best))

    def refuse_unbuilt(self, trial: Trial) -> None:
        """Raise CalleeError if no case could construct the implementation."""
        outcomes = [row.outcome for row in trial.rows if row.status != "skip"]
        if outcomes and all(outcome.unbuilt for outcome in outcomes):
            raise CalleeError(f"{self.callee.title}: {outcomes[0].problem}")

    def remarks(self, trial: Trial) -> tuple[str, ...]:
        """What else is to be said: that a second call answers otherwise."""
        row = next((row for row in trial.rows if row.outcome.array is not None), None)
        if row is None or not trial.failing:
            return ()
        again = self.ask(trial.ways, row.drawn)
        one, other = again.array, row.outcome.array
        is_same = one is not None and other is not None and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        return () if is_same else ("a second call answers otherwise: dropout, or state that calls share?",)

    def choices(self) -> list[Choice]:
        """The combinations of the ways of all conventions, the most usual first."""
        ways = [[self.fixed[name]] if name in self.fixed else [*rows] for name, rows in self.conventions.items()]
        usual = [next(iter(rows)) for rows in self.conventions.values()]
        return sorted(itertools.product(*ways), key=lambda one: sum(a != b for a, b in zip(one, usual, strict=True)))

    def tells(self, ways: Iterable[Way], trial: Trial) -> bool:
        """Whether a convention changes what some case of a trial reads or should answer."""
        names = {name for way in ways for name in (*way.send, *way.exchange)}
        return any(way.steps for way in ways) or any(
            names & {*row.drawn.given} for row in trial.rows if row.status != "skip"
        )

    def try_choice(self, choice: Choice, drawn: Sequence[Drawn]) -> Trial:
        """The rows of all cases with a choice of conventions."""
        ways = tuple(rows[way] for rows, way in zip(self.conventions.values(), choice, strict=True))
        names = [case.name for case in self.definition.cases]
        rows = [self.try_case(choice, ways, one) for one in drawn]
        return Trial(choice, ways, [row._replace(number=names.index(row.name) + 1) for row in rows])

    def try_case(self, choice: Choice, ways: Sequence[Way], drawn: Drawn) -> Tested:
        """The row of one case."""
        expected = self.expect(choice, ways, drawn)
        missing = [name for name in drawn.case.needs if not self.callee.takes(name)]
        if missing:
            return Tested(drawn, "skip", Outcome(None), expected, words=f"no parameter for {missing[0]}")
        outcome = self.call(choice, ways, drawn)
        if outcome.lacks in drawn.case.needs:
            return Tested(drawn, "skip", outcome, expected, words=f"no parameter for {outcome.lacks}")
        if outcome.problem.startswith(NotImplementedError.__name__):
            return Tested(drawn, "skip", outcome, expected, words=MISSING)
        return self.compare(drawn, outcome, expected)

    def call(self, choice: Choice, ways: Sequence[Way], drawn: Drawn) -> Outcome:
        """The outcome of a case, called once for each way to hand its arguments over."""
        sending = tuple(
            name
            for way, name in zip(ways, choice, strict=True)
            if any(drawn.given.get(one) is not None for one in (*way.send, *way.exchange))
        )
        key = (drawn.case.name, drawn.describe(), sending)
        if key not in self._outcomes:
            self._outcomes[key] = self.ask(ways, drawn)
        return self._outcomes[key]

    def ask(self, ways: Sequence[Way], drawn: Drawn) -> Outcome:
        """Call the implementation, unless its process has ended more than once."""
        ends = [outcome for outcome in self._outcomes.values() if outcome.is_end]
        if len(ends) >= MOST_ENDS:
            return ends[-1]
        given = dict(drawn.given)
        for way in ways:
            given |= {name: drawn.given[other] for name, other in way.exchange.items() if other in drawn.given}
        for way in ways:
            given |= {name: send(given[name]) for name, send in way.send.items() if given.get(name) is not None}
        return self.callee.call(drawn, given, self.dtype)

    def expect(self, choice: Choice, ways: Sequence[Way], drawn: Drawn) -> Expected:
        """The right answer of a case, with its noise."""
        others = tuple(name if way.steps else "" for name, way in zip(choice, ways, strict=True))
        key = (others, drawn.case.name, drawn.describe())
        if key not in self._expected:
            self._expected[key] = self.compute(drawn, {step: f for way in ways for step, f in way.steps.items()})
        return self._expected[key]

    @quiet
    def compute(self, drawn: Drawn, changes: Mapping[str, Formula], roundings: Sequence[int] = ROUNDINGS) -> Expected:
        """The answer of a case with changed steps, and its noise."""
        steps = {**self.definition.steps, **changes}
        given = {**dict.fromkeys(self.definition.arguments), **drawn.given}
        *_, answer = steps
        array = work(steps, given)[answer]
        finite, noise = np.isfinite(array), 0.0
        overflows = ~finite
        for seed in () if self.definition.is_exact else roundings:
            moved = work(steps, given, make_rounding(self.dtype, seed))[answer]
            off = np.abs(np.subtract(moved, array, where=finite, out=np.zeros(array.shape)))
            noise = max(noise, float(off[np.isfinite(off)].max(initial=0)))
            overflows |= ~np.isfinite(moved)
        return Expected(array, noise, overflows)

    def allowed(self, expected: Expected) -> float:
        """By how much an answer may differ."""
        if self.definition.is_exact:
            return 0.0
        rtol, atol = self.tolerance
        if rtol is not None or atol is not None:
            return (atol or 0.0) + (rtol or 0.0) * expected.scale
        return max(MARGIN * expected.noise, LEAST_ULPS * EPSILON[self.dtype] * expected.scale)

    @quiet
    def compare(self, drawn: Drawn, outcome: Outcome, expected: Expected) -> Tested:
        """Compare an outcome with what is expected."""
        wrong = "note" if drawn.case.note or expected.noise > expected.scale else "FAIL"
        array = outcome.array
        if array is None:
            return Tested(drawn, wrong, outcome, expected, words=outcome.problem)
        if array.shape != expected.array.shape:
            words = f"shape {array.shape}, expected {expected.array.shape}"
            return Tested(drawn, wrong, outcome, expected, words=words)
        if array.dtype.kind not in "fiub":
            return Tested(drawn, wrong, outcome, expected, words=f"its dtype is {array.dtype}")
        off = gap(array, expected.array)
        bad = ~(off <= self.allowed(expected))
        at = tuple(map(int, np.argwhere(bad)[0])) if bad.any() else ()
        words = ""
        if bad.any() and not np.isfinite(array[bad]).all() and np.isfinite(expected.array[bad]).all():
            words = f"{array[bad][~np.isfinite(array[bad])][0]:g}"
        words = "every number is nan" if np.isnan(array).all() and array.size else words
        largest = float(np.nanmax(off[np.isfinite(off)], initial=0)) / (expected.scale or 1)
        place = self.definition.place
        where = f"{place(array, at)}, expected {place(expected.array, at)}" if place and bad.any() else ""
        return Tested(drawn, wrong if bad.any() else "ok", outcome, expected, largest, words, at, where=where)

    # slips

    def find_cause(self, trials: Sequence[Trial]) -> tuple[Trial, list[NamedSlip]]:
        """The trial that slips explain, and these; else the one with fewest failures."""
        if not trials[0].failing:
            return trials[0], []
        right = len(trials[0].rows) - len(trials[0].failing)
        errors = min(trial.unanswered for trial in trials)
        likely = [one for one in trials if len(one.rows) - len(one.failing) >= right or one.unanswered == errors]
        trials = [one for one in likely if one.unanswered == errors] or likely
        singles = [[slip] for slip in self.definition.slips]
        for at, trial in enumerate(trials):
            if causes := self.explain(trial, singles):
                return trial, causes + self.explain_otherwise(trial, trials[at + 1 :], causes)
        slips = self.definition.slips
        for trial in trials[:MOST_TRIED] if len(slips) * (len(slips) - 1) // 2 <= MOST_PAIRS else ():
            if causes := self.explain(trial, [*map(list, itertools.combinations(slips, 2))]):
                return trial, causes
        return trials[0], []

    def has_same_calls(self, trial: Trial, other: Trial) -> bool:
        """Whether trials hand over the same, and differ in what is expected alone."""
        return all(
            not (way.send or way.exchange or than.send or than.exchange) or way is than
            for way, than in zip(trial.ways, other.ways, strict=True)
        )

    def explain_otherwise(self, trial: Trial, others: Sequence[Trial], causes: Sequence[NamedSlip]) -> list[NamedSlip]:
        """Other slips, which explain with other ways of conventions."""
        found: dict[str, NamedSlip] = {}
        for other in others if len(self.definition.slips) <= FEW_SLIPS else ():
            if not self.has_same_calls(other, trial):
                continue
            words = ", ".join(way.words for way in other.ways if way.words and way not in trial.ways)
            for cause in self.explain(other, [[slip] for slip in self.definition.slips]):
                if cause.slip.name not in [one.slip.name for one in causes] and cause.is_decisive:
                    named = cause.slip._replace(name=f"{cause.slip.name} ({words})" if words else cause.slip.name)
                    found.setdefault(cause.slip.name, cause._replace(slip=named))
        return [*found.values()]

    def explain(self, trial: Trial, candidates: Sequence[Sequence[Slip[Formula]]]) -> list[NamedSlip]:
        """The slips that explain each row of a trial that has numbers."""
        causes = []
        for slips in candidates:
            changes = {step: formula for slip in slips for step, formula in slip.changes.items()}
            if len(changes) < sum(len(slip.changes) for slip in slips):
                continue  # two slips of one step
            if (cause := self.explain_by(trial, " and ".join(slip.name for slip in slips), changes)) is not None:
                causes.append(cause)
        decisive = [cause for cause in causes if cause.is_decisive]
        return decisive or causes

    def explain_by(self, trial: Trial, name: str, changes: Mapping[str, Formula]) -> NamedSlip | None:
        """The cause, if changed steps explain each row that has numbers."""
        base = {step: formula for way in trial.ways for step, formula in way.steps.items()}
        if not changes.keys() <= self.definition.steps.keys():
            return None
        rows = [row for row in trial.rows if row.status in ("ok", "FAIL") and row.outcome.array is not None]
        rows.sort(key=lambda row: row.status)  # those that fail first
        if not rows or rows[0].status != "FAIL":
            return None
        if not any(row.outcome.array is not None and np.isfinite(row.outcome.array).any() for row in rows):
            return None
        most, is_decisive = 0.0, False
        for row in rows:
            remaining = self.remaining(row, {**base, **changes})
            if remaining is None:
                return None
            most = max(most, remaining)
            overflows = row.outcome.array is not None and not np.isfinite(row.outcome.array).all()
            is_decisive |= row.status == "FAIL" and (overflows or not row.largest <= DECISIVE * remaining)
        return NamedSlip(Slip(name, changes), most, is_decisive)

    @quiet
    def remaining(self, row: Tested, changes: Mapping[str, Formula]) -> float | None:
        """The difference that a slip leaves; None where it does not explain the row."""
        array = row.outcome.array
        assert array is not None
        try:
            if not self.is_near(array, self.compute(row.drawn, changes, roundings=ROUNDINGS[1:2])):
                return None
            other = self.compute(row.drawn, changes)
        except (AttnkitError, ValueError, IndexError, TypeError, KeyError, ZeroDivisionError):
            return None  # a formula that does not fit these shapes
        off = gap(array, other.array)
        off = np.where(~np.isfinite(array) & other.overflows, 0, off)
        allowed = self.allowed(other)
        return float(off.max(initial=0)) / (other.scale or 1) if (off <= allowed).all() else None

    def is_near(self, array: Array, expected: Expected) -> bool:
        """Whether an answer may be an expected one, whose noise is measured once."""
        if array.shape != expected.array.shape:
            return False
        off = gap(array, expected.array)[np.isfinite(array)]
        if not (np.isfinite(array) | expected.overflows).all():
            return False
        return float(off.max(initial=0)) <= COARSE * self.allowed(expected)

    # the smallest case

    def shrink(self, trial: Trial, row: Tested) -> Tested:
        """The smallest case that still fails: its sizes are reduced one by one."""
        drawn = row.drawn
        smaller = True
        while smaller:
            smaller = False
            for case in reduce(drawn):
                try:
                    other = draw_case(self.definition, case, self.seed, self.dtype)
                    tried = self.try_case(trial.choice, trial.ways, other)
                except (AttnkitError, ValueError, IndexError, TypeError, ZeroDivisionError):
                    continue  # sizes that this definition cannot have
                if tried.status == "FAIL" and bool(tried.words) == bool(row.words):
                    drawn, row, smaller = other, tried, True
                    break
        return row


def as_notes_of_rank(rows: Sequence[Tested]) -> list[Tested]:
    """Rows of numbers of leading axes that an implementation does not take, as notes.

    It takes another number of them if all cases of one raise, and one of another is right.
    """
    right = {len(row.drawn.lead) for row in rows if row.status == "ok"}
    answered = {len(row.drawn.lead) for row in rows if row.outcome.array is not None or row.outcome.is_end}
    return [
        row._replace(status="note", words=OTHER_RANK)
        if row.status == "FAIL" and right and len(row.drawn.lead) not in answered
        else row
        for row in rows
    ]


def reduce(drawn: Drawn) -> Iterator[Case]:
    """A case with one size less, or one leading axis fewer."""
    case = drawn.case
    for at, size in enumerate(drawn.lead):
        yield case._replace(lead=drawn.lead[:at] + drawn.lead[at + 1 :])
        if size > 1:
            yield case._replace(lead=(*drawn.lead[:at], size - 1, *drawn.lead[at + 1 :]))
    for axis, size in drawn.sizes.items():
        if size > 1:
            yield case._replace(sizes={**drawn.sizes, axis: size - 1})


def find_orders(names: Sequence[str]) -> dict[str, Way]:
    """The orders in which arguments that names do not tell may be handed over.

    >>> [*find_orders(["q", "k"])], find_orders(["q", "k"])["k, q"].exchange
    (['q, k', 'k, q'], {'q': 'k', 'k': 'q'})
    """
    orders = {}
    for order in itertools.permutations(names):
        words = "" if list(order) == list(names) else f"the arguments are {', '.join(order)}"
        orders[", ".join(order)] = Way(words, exchange=dict(zip(names, order, strict=True)) if words else {})
    return orders
