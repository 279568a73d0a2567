"""Batches of a text at random places, judged by their properties.

The tokens of the text are all different, so that each tells its place.
"""

from typing import Any

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition
from attnkit.model.exercises.worked_steps import Formula
from attnkit.model.slips import Slip

LENGTH, ROWS, BLOCK = 23, 5, 7
VARIES = -1e9  # a property that differs from token to token or call to call
CALLS = 300  # so many that every start is drawn, were it one a call


def places_of(given: Any, tokens: Any) -> Any:
    """The place of each token in the text; NaN where it has none."""
    data = given["data"]
    order = np.argsort(data)
    at = np.searchsorted(data[order], tokens).clip(0, len(data) - 1)
    return np.where(data[order][at] == tokens, order[at].astype(float), np.nan)


def the_only(values: Any) -> Any:
    """The number that all values are; VARIES where they differ."""
    values = np.asarray(values, float)
    return values.flat[0] if values.size and (values == values.flat[0]).all() else VARIES


def count_distinct(rows: Any) -> int:
    return len(np.unique(rows, axis=0))


# property -> what it is of places of inputs and targets (N, B, T), and whether they are on the device
PROPERTIES: dict[str, Formula] = {
    "shape": lambda x, y, on_device: np.array([*x.shape[1:], *y.shape[1:]]),
    "distance": lambda x, y, on_device: the_only(np.diff(x, axis=-1)),
    "shift": lambda x, y, on_device: the_only(y - x),
    "first": lambda x, y, on_device: x[..., 0].min(),
    "last": lambda x, y, on_device: x[..., 0].max(),
    "starts": lambda x, y, on_device: count_distinct(x[..., 0].reshape(-1, 1)),
    "rows": lambda x, y, on_device: max(count_distinct(one[:, :1]) for one in x) > 1,
    "calls": lambda x, y, on_device: count_distinct(x[..., 0]) > 1,
    "device": lambda x, y, on_device: on_device.all(),
}


def measure(given: Any, arrays: Any) -> Any:
    """The property of a case; VARIES where it is no number."""
    x, y, on_device = arrays
    wanted = given["property"]
    if wanted not in ("shape", "device"):
        x, y = places_of(given, x), places_of(given, y)
        if x.ndim != 3 or x.shape != y.shape:
            return np.array(VARIES)
    return np.nan_to_num(np.asarray(PROPERTIES[wanted](x, y, on_device), float), nan=VARIES)


def describe_property(answer: Any, at: tuple[int, ...]) -> str:
    """The number of a property, in words where it is none.

    >>> describe_property(np.array(2.0), ()), describe_property(np.array(VARIES), ())
    ('2', 'no one number')
    """
    return "no one number" if answer[at] == VARIES else f"{answer[at]:g}"


def draw_text(given: Any, generator: Any) -> Any:
    """Different ids in random order."""
    return generator.permutation(10 * LENGTH)[:LENGTH].astype(np.int64)


def case(name: str, wanted: str, **given: Any) -> Case:
    needs = ("device",) if "device" in given else ()
    return Case(name, lead=(), given={"data": draw_text, "property": wanted, **given}, needs=needs)


def choose_property(
    property: str, shape: Any, distance: Any, shift: Any, first: Any, last: Any, starts: Any, rows_differ: Any,
    calls_differ: Any, on_device: Any,
) -> Any:  # fmt: skip
    """The property that a case has."""
    found = {"shape": shape, "distance": distance, "shift": shift, "first": first, "last": last, "starts": starts}
    return {**found, "rows": rows_differ, "calls": calls_differ, "device": on_device}[property]


BATCH = Definition(
    "batches of blocks from random places of a text, and the tokens after each",
    {
        "data": Argument("L", "data dataset tokens x ids text_ids train_data arr"),
        "rows": Argument("", "rows batch_size batch bs b n", role="number"),
        "block": Argument(
            "", "block context_length block_size seq_len length sequence_length t context", role="number"
        ),
        "device": Argument("", "device", role="number"),
        "property": Argument("", ""),
        "calls": Argument("", ""),
    },
    {
        "shape": lambda rows, block: np.array([rows, block, rows, block]),
        "distance": lambda: 1,
        "shift": lambda: 1,
        "first": lambda: 0,
        "last": lambda data, block: len(data) - block - 1,
        "starts": lambda data, block: len(data) - block,
        "rows_differ": lambda: 1,
        "calls_differ": lambda: 1,
        "on_device": lambda: 1,
        "answer": choose_property,
    },
    {},
    (
        case("shapes", "shape"),
        case("consecutive tokens", "distance"),
        case("targets one place later", "shift"),
        case("the first start is drawn", "first"),
        case("the last start is drawn, none after it", "last"),
        case("all starts are drawn", "starts"),
        case("rows differ", "rows"),
        case("calls differ", "calls"),
        case("device", "device", device="meta"),
    ),
    "",
    (
        Slip("the targets are the inputs: they are not shifted", {"shift": lambda: 0}, "y starts one place later"),
        Slip("the targets are shifted by two places", {"shift": lambda: 2}),
        Slip("the targets are shifted the other way: they are the tokens before", {"shift": lambda: -1}),
        Slip(
            "the last start is never drawn",
            {
                "last": lambda data, block: len(data) - block - 2,
                "starts": lambda data, block: len(data) - block - 1,
            },
            "the upper end of randint is exclusive",
        ),
        Slip(
            "the first start is never drawn",
            {"first": lambda: 1, "starts": lambda data, block: len(data) - block - 1},
        ),
        Slip(
            "neither the first nor the last start is drawn",
            {
                "first": lambda: 1,
                "last": lambda data, block: len(data) - block - 2,
                "starts": lambda data, block: len(data) - block - 2,
            },
        ),
        Slip(
            "blocks start at multiples of their length alone",
            {
                "last": lambda data, block: (len(data) - block - 1) // block * block,
                "starts": lambda data, block: (len(data) - block - 1) // block + 1,
            },
        ),
        Slip("all rows of a batch start at the same place", {"rows_differ": lambda: 0}, "draw a start for each row"),
        Slip(
            "every call draws the same batch",
            {"calls_differ": lambda: 0},
            "set the seed once, not in the function",
        ),
        Slip("the axes of rows and tokens are exchanged", {"shape": lambda rows, block: [block, rows, block, rows]}),
        Slip("the blocks have one token too many", {"shape": lambda rows, block: [rows, block + 1, rows, block + 1]}),
        Slip("the device is ignored", {"on_device": lambda: 0}, "move both tensors: .to(device)"),
    ),
    functions="get_batch run_get_batch sample_batch get_batches random_batch draw_batch data_loading",
    defaults={"rows": ROWS, "block": BLOCK, "device": "cpu", "calls": CALLS},
    drive="batches",
    expects="a function (dataset, batch_size, context_length, device) that returns inputs and targets",
    measure=measure,
    is_exact=True,
    place=describe_property,
)

DEFINITIONS = {"batch": BATCH}
