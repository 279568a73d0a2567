"""Records as the traces of a page that explores them, and how two of them differ."""

from dataclasses import replace

import numpy as np

from attnkit import display
from attnkit.display.explore import Attention, Difference, ExploredTrace, Lens, Picture
from attnkit.errors import DataError, escaped
from attnkit.inputs.patches import WHOLE, find_grid, read_box
from attnkit.interpret.comparison import Pair, are_traces, compare_tensors, make_report, report_lines, report_table
from attnkit.interpret.head_scores import WEIGHTS, find_weights, score_layers
from attnkit.interpret.tensor_statistics import describe_tensors, map_parallel
from attnkit.model.formulas.head_scores import HeadScores
from attnkit.model.intermediates import ATTENTION, PARTS
from attnkit.records import Array, Labels, Record, Tensor, index_axes, join_names, row_labels

PRECISION = 4  # digits of the table of differences
WORDED = ("token", "query", "key")  # the axes of a text
TOP_ENDING, KEYS_ENDING = ".top", ".keys"  # the ends of the names of --weights topk:K


def split_texts(record: Record) -> list[Record]:
    """The record of each text of a batch; the record itself if it is one text.

    >>> batch = Record({"weights": np.zeros((2, 1, 3, 3)), "lse": np.zeros((2, 1, 3)), "table": np.zeros((5, 4))})
    >>> [row["weights"].shape for row in split_texts(batch)]
    [(1, 3, 3), (1, 3, 3)]
    """
    if is_lens(record):
        return split_lens(record)
    names = [*find_weights(record), *(name for name in record if name.endswith(f"{WEIGHTS}{TOP_ENDING}"))]
    sizes = {record[name].shape[0] for name in names if record[name].ndim == 4}
    rows = max(sizes, default=0)
    return [select_row(record, row, rows) for row in range(rows)] if rows and len(sizes) == 1 else [record]


def select_row(record: Record, row: int, rows: int) -> Record:
    """One text of a batch of `rows` texts: its row of each tensor, and its labels."""
    tensors = {}
    for name, one in record.tensors.items():
        axes = one.axis_names()
        if axes[:1] == ("batch",) and one.shape[0] == rows:
            one = replace(one, array=one.array[row], axes=axes[1:])
        tensors[name] = one
    labels: dict[str, Labels] = {axis: row_labels(names, row) for axis, names in record.labels.items()}
    return replace(record, tensors=tensors, labels=labels)


def make_trace(record: Record, name: str, is_raw: bool = False) -> ExploredTrace:
    """A record of one text as a trace to explore.

    is_raw  spell tokens as they are in the vocabulary, not as a reader writes them
    """
    if is_lens(record):
        labels = {"token": spell(record.labels.get("token", []), is_raw)}
        return ExploredTrace(escaped(name), labels, [], [], list_commands(record), lens=make_lens(record, is_raw))
    scores = score_layers(record) if find_weights(record) else {}
    layers = [explored_attention(record, f"{layer}.{WEIGHTS}".lstrip("."), one) for layer, one in scores.items()]
    layers += [top_attention(record, name) for name in find_top(record)]
    labels = id_words(record) | {axis: spell(names, is_raw) for axis, names in record.labels.items() if axis != "vocab"}
    stages = [facts | {"name": escaped(facts["name"])} for facts in describe_tensors(record)]
    return ExploredTrace(escaped(name), labels, layers, stages, list_commands(record))


def add_picture(trace: ExploredTrace, record: Record, pixels: Array | None) -> ExploredTrace:
    """Add the patches of an image and its picture to a trace with such tokens."""
    names = row_labels(record.labels.get("key") or record.labels.get("token"), 0)
    patches, grid = find_grid(names)
    if not patches:
        return trace
    box = WHOLE if pixels is None else read_box(record)
    return trace._replace(picture=Picture(len(names), patches, grid, box, pixels))


def id_words(record: Record) -> dict[str, list[str]]:
    """Token ids as words of the axes of a record that has no words.

    >>> id_words(Record({"ids": np.array([5, 2])}))["key"]
    ['#5', '#2']
    """
    ids = record.get("ids")
    return {axis: [f"#{one}" for one in ids] for axis in WORDED} if ids is not None and ids.ndim == 1 else {}


def explored_attention(record: Record, name: str, scores: HeadScores) -> Attention:
    queries, keys = record.axes_of(name)[-2:]
    measures = [float(one) for one in scores.kind_measures()]
    parts = find_parts(record, name.removesuffix(WEIGHTS), record[name].shape)
    return Attention(layer_name(name), record[name], queries, keys, scores.kinds(), measures, parts=parts)


def find_parts(record: Record, prefix: str, shape: tuple[int, ...]) -> dict[str, Array]:
    """The other intermediates of attention that a record keeps for weights (H, T, S).

    >>> record = Record({"weights": np.ones((2, 1, 3)), "k": np.ones((1, 3, 4)), "q": np.ones((1, 2, 1, 4))})
    >>> [*find_parts(record, "", (2, 1, 3))]
    ['k']
    """
    heads, queries, keys = shape[-3:]
    rows = {name: queries if "query" in (ATTENTION[name].axes or ()) else keys for name in PARTS}
    parts = {name: record[prefix + name] for name in PARTS if prefix + name in record}
    fits = {name: one.ndim == 3 and one.shape[1] == rows[name] for name, one in parts.items()}
    return {name: one for name, one in parts.items() if fits[name] and one.shape[0] and heads % one.shape[0] == 0}


def layer_name(name: str) -> str:
    """The layer that weights are of; their own name if it has none.

    >>> layer_name("decoder.0.self.weights"), layer_name("weights")
    ('decoder.0.self', 'weights')
    """
    return name.removesuffix(WEIGHTS).removesuffix(".") or name


def find_top(record: Record) -> list[str]:
    """The names of weights whose largest alone, in each row, a record keeps.

    >>> find_top(Record({"weights.top": np.ones((1, 2, 1)), "weights.keys": np.ones((1, 2, 1), int)}))
    ['weights']
    """
    names = [name.removesuffix(TOP_ENDING) for name in record if f".{name}".endswith(f".{WEIGHTS}{TOP_ENDING}")]
    return [
        name
        for name in names
        if name not in record and f"{name}{KEYS_ENDING}" in record and record[name + TOP_ENDING].ndim == 3
    ]


def top_attention(record: Record, name: str) -> Attention:
    """The largest weights of each row of a layer; the kinds of its heads are unknown."""
    weights, indices = record[f"{name}{TOP_ENDING}"], record[f"{name}{KEYS_ENDING}"]
    axis = index_axes(f"{name}{KEYS_ENDING}")[0]
    words = record.labels.get(axis) or []
    size = max(len(words), int(indices.max(initial=-1)) + 1, 1)
    heads = len(weights)
    return Attention(layer_name(name), weights, "query", axis, [""] * heads, [np.nan] * heads, indices, size)


def is_lens(record: Record) -> bool:
    """Whether a record contains the likely words of layers, as `lens` returns them.

    >>> is_lens(Record({"x": np.ones((2, 3, 1))}))
    False
    """
    if not {"x", "ids"} <= {*record} or record["ids"].shape != record["x"].shape or not record["x"].size:
        return False
    return record.axes_of("x")[-3:] == ("layer", "token", "rank")


def split_lens(record: Record) -> list[Record]:
    """Split the likely words of layers by the texts of a batch."""
    if record["x"].ndim == 3:
        return [record]
    x, words = record["x"], record.labels.get("ids", [])
    states = x.shape[1] * x.shape[2]
    rows = []
    for row in range(len(x)):
        tensors = {name: Tensor(record[name][row], record.axes_of(name)[1:]) for name in ("x", "ids")}
        labels: dict[str, Labels] = {axis: row_labels(names, row) for axis, names in record.labels.items()}
        labels["ids"] = words[row * states : (row + 1) * states]
        rows.append(Record(tensors, {axis: names for axis, names in labels.items() if names}, record.history))
    return rows


def make_lens(record: Record, is_raw: bool = False) -> Lens:
    ids, names = record["ids"], record.labels.get("ids", [])
    flat = [word for row in names for word in ([row] if isinstance(row, str) else row)]
    words = dict(zip(ids.reshape(-1).tolist(), spell(flat, is_raw), strict=False))
    layers = row_labels(record.labels.get("layer"), 0) or [str(at) for at in range(len(ids))]
    position = row_labels(record.labels.get("position"), 0) or ["0"]
    return Lens([escaped(one) for one in layers], ids, record["x"], words, int(position[0]))


def spell(labels: Labels, is_raw: bool = False) -> list[str]:
    r"""Words as a reader writes them, or raw, with what cannot be printed escaped.

    >>> spell(["Ġfox", "\x00"]), spell(["Ġfox"], is_raw=True)
    (['·fox', '\\x00'], ['Ġfox'])
    """
    words = labels if is_raw else display.plain_labels(labels) or []
    return [escaped(one) for one in row_labels(words, 0)]


def spell_labels(record: Record, is_raw: bool) -> Record:
    words = {axis: spell(names, is_raw) for axis, names in record.labels.items() if axis in WORDED}
    return replace(record, labels={**record.labels, **words})


def list_commands(record: Record) -> list[str]:
    return [escaped(str(entry.get("command", ""))) for entry in record.history]


def compare_traces(a: Record, b: Record, is_raw: bool = False) -> Difference | None:
    """How two records differ stage by stage, and A - B of equally shaped weights.

    None if they have no tensor of one name, such as an encoder and its decoder.
    """
    if not any(name in b for name in a):
        return None
    a, b = spell_labels(a, is_raw), spell_labels(b, is_raw)
    pair = Pair(a, b, are_traces(a, b))
    comparisons = map_parallel(lambda name: compare_tensors(a, b, name), pair.names())
    report = make_report(pair, tuple(comparisons), all_sites=True)
    names = [name for name in find_weights(a) if name in b and a[name].shape == b[name].shape]
    layers = []
    for name in names:
        queries, keys = a.axes_of(name)[-2:]
        layers.append(Attention(layer_name(name), a[name] - b[name], queries, keys))
    heads, body, _ = report_table(report, PRECISION)
    rows = [[escaped(cell) for cell in row] for row in ([heads, *body] if body else [])]
    return Difference(rows, [escaped(line) for line in report_lines(report)], layers)


def check_weights(record: Record, source: str) -> None:
    """Raise DataError if a record keeps no weights of attention."""
    if is_lens(record):
        return
    names = [*find_weights(record), *(f"{name}{TOP_ENDING}" for name in find_top(record))]
    if names and not any(record[name].size for name in names):
        raise DataError("weights of attention of no token, no head or no text", source)
    if not names:
        keeps = "attend --keep weights, or --trace FILE of encode, decode or run, keeps them"
        if state := next((name for name in record if name.endswith(".rnn.state")), ""):
            keeps = f"a recurrent layer has none; attnkit show FILE:{state} --heatmap draws its states"
        raise DataError(f"no weights of attention (it has {join_names([*record])}); {keeps}", source)
