"""How fast this machine multiplies and reads, and how long layers take."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnkit import model as core
from attnkit.interpret.cost import Workload, collapse, count_forward, count_model, source_tokens
from attnkit.model import Step
from attnkit.model.formulas.recurrent import RecurrentLayer, run_layer
from attnkit.model.graph.costs import ModelShapes
from attnkit.model.passes.transformer import apply_step
from attnkit.model.processor.products import matrix_product
from attnkit.records import Array, Labels, Record, Tensor, shared_labels

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

SIDE, NUMBERS, SECONDS = 1024, 1 << 24, 0.25  # of a matrix; of a copied array; how long each rate is measured
REPEATS = 3  # runs, of which the fastest counts


class Machine(NamedTuple):
    """The rates of this machine: FLOPs of a large product, bytes of a copy."""

    flops: float
    bandwidth: float

    def predict(self, flops: int, moved: int) -> float:
        """Seconds of a row of costs, as fast as the slower of both allows.

        >>> Machine(100.0, 10.0).predict(200, 5), Machine(100.0, 10.0).predict(100, 50)
        (2.0, 5.0)
        """
        return max(flops / self.flops, moved / self.bandwidth)


def measure_machine() -> Machine:
    """Measure both rates, in half a second."""
    x, source = np.ones((SIDE, SIDE), np.float32), np.ones(NUMBERS, np.float32)
    target = np.empty_like(source)
    product = fastest(lambda: matrix_product(x, x))
    copy = fastest(lambda: np.copyto(target, source))
    return Machine(2 * SIDE**3 / product, 2 * source.nbytes / copy)


def fastest(work: Callable[[], Any], seconds: float = SECONDS) -> float:
    """Seconds of the fastest of the calls that fit into a time, after a first one."""
    work()
    times, end = list[float](), time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def measure_rows(checkpoint: "Checkpoint", run: Workload) -> dict[str, float]:
    """Seconds of each row of a table of layers over random tokens.

    The fastest of three passes.

    What is computed within another step is timed with it: the whole head as its logits, experts as their layer.
    """
    config, shapes = checkpoint.config, count_model(checkpoint)
    model, rng = core.Model(config, checkpoint.params), np.random.default_rng(0)
    rows = {row.name: collapse([row])[0].name for row in count_forward(shapes, run.tokens, run.batch)}
    passes = []
    for _ in range(REPEATS + 1):  # the first one reads the weights
        timer = Timer(rows)
        memory, states = None, None
        for stack in config.stacks:
            context = core.Context(memory=memory, source_states=states, dtype="float32")
            inputs = draw_random_input(checkpoint, stack, run, rng)
            memory = core.run(model, config.plan(stack), inputs, context, timer.apply)
            states = context.last_states()
        if config.head and memory is not None:
            start = time.perf_counter()
            core.head_logits(model, memory)
            timer.add("logits", start)
        passes.append(timer.seconds)
    return {row: min(one[row] for one in passes[1:]) for row in passes[0]}


class Timer:
    """Applies steps, and adds up the seconds of each row of a table of layers."""

    def __init__(self, rows: dict[str, str]) -> None:
        self.rows, self.seconds = rows, dict[str, float]()

    def apply(self, model: core.Model, step: Step, x: Array, context: core.Context) -> Array:
        """Apply a step, and add its seconds."""
        start = time.perf_counter()
        result = apply_step(model, step, x, context)
        self.add(row_of(step.layer, self.rows), start)
        return result

    def add(self, row: str, start: float) -> None:
        """Add the seconds since the start to a row."""
        self.seconds[row] = self.seconds.get(row, 0.0) + time.perf_counter() - start


def row_of(layer: str, rows: dict[str, str]) -> str:
    """The row of a table that shows a layer.

    Of a recurrence over all layers of a decoder, the row of these.

    >>> rows = {"decoder.0.rnn.state": "decoder.#.rnn"}
    >>> row_of("decoder.0.rnn", rows), row_of("decoder.rnn", rows)
    ('decoder.#.rnn', 'decoder.#.rnn')
    """
    own = (row for name, row in rows.items() if name == layer or name.startswith(f"{layer}."))
    return next(own, None) or next(row for row in rows.values() if row.replace("#.", "") == layer)


def draw_random_input(checkpoint: "Checkpoint", stack: str, run: Workload, rng: np.random.Generator) -> Array:
    """Random ids, an image, or vectors where a stack has no embeddings."""
    config, cut = checkpoint.config, checkpoint.config.patches
    if cut:
        return rng.standard_normal((run.batch, cut.channels, cut.height, cut.width), np.float32)
    if config.sound and stack == "encoder":
        frames = config.sound.frames_before("", source_tokens(config, run.tokens))
        channels = (config.sound.spectrogram.mels,) if config.sound.spectrogram else ()
        return rng.standard_normal((run.batch, frames, *channels), np.float32)
    if f"{stack}.embed" not in checkpoint.params:
        return rng.standard_normal((run.batch, run.tokens, config.width), np.float32)
    words = checkpoint.params[f"{stack}.embed"]["table"].shape[0]
    return rng.integers(0, words, (run.batch, run.tokens))


MOST = 1 << 37  # operations of a layer of Table 1 that is measured


def measure_layer(layer: str, tokens: int, width: int, heads: int, window: int) -> float:
    """Seconds of a layer of Table 1 over random vectors, without projections.

    NaN where it would take long.
    """
    operations = {"recurrent": tokens * width**2, "restricted": tokens * window * width}
    if operations.get(layer, tokens**2 * width) > MOST or layer == "convolution":
        return float("nan")
    rng = np.random.default_rng(0)
    if layer == "recurrent":
        x = rng.standard_normal((1, tokens, width), np.float32)
        weights = {name: np.full((width, width), 1 / width, np.float32) for name in ("input", "hidden")}
        return fastest(lambda: run_layer("tanh", x, RecurrentLayer(weights, None), (None, None)), 0.1)
    q = rng.standard_normal((heads, tokens, width // heads), np.float32)
    sides = (window // 2, (window - 1) // 2) if layer == "restricted" else (-1, -1)
    return fastest(lambda: core.attention(q, q, q, window=sides, keep=()), 0.1)


def table_one(tokens: int, width: int, kernel: int, window: int) -> dict[str, tuple[int, int, int]]:
    """Operations, sequential steps and longest path of layers, as in Table 1.

    Source: Attention Is All You Need, section 4. A path through convolutions is that of dilated ones.

    >>> table_one(9, 4, 3, 3)["self-attention"], table_one(9, 4, 3, 3)["convolution"]
    ((324, 1, 1), (432, 1, 2))
    """
    return {
        "self-attention": (tokens**2 * width, 1, 1),
        "restricted": (tokens * min(window, tokens) * width, 1, -(-tokens // window)),
        "recurrent": (tokens * width**2, tokens, tokens),
        "convolution": (kernel * tokens * width**2, 1, count_dilations(tokens, kernel)),
    }


def count_dilations(tokens: int, kernel: int) -> int:
    """Layers of a kernel until every token reads every other: a logarithm."""
    layers, reach = 0, 1
    while reach < tokens:
        layers, reach = layers + 1, reach * kernel
    return max(layers, 1)


def measured_record(record: Record, checkpoint: "Checkpoint", run: Workload) -> Record:
    """Add the rates of this machine, and predicted and measured seconds.

    seconds (phase, stage, time)
    """
    machine, measured = measure_machine(), measure_rows(checkpoint, run)
    names, seconds = shared_labels(record.labels["stage"]), []
    for name, (_, flops, _, read, written, _) in zip(names, record["x"][0].tolist(), strict=True):
        seconds.append([machine.predict(flops, read + written), measured.get(name, np.nan)])
    tensors = {
        "seconds": Tensor(np.array([seconds]), ("phase", "stage", "time")),
        "flops": Tensor(np.asarray(machine.flops), ()),
        "bandwidth": Tensor(np.asarray(machine.bandwidth), ()),
    }
    return record.with_tensors(tensors, {"time": ["predicted", "measured"]})


def paper_record(model: ModelShapes, lengths: Sequence[int], window: int, kernel: int, measure: bool) -> Record:
    """Build Table 1 of the paper for some lengths: x (tokens, layer, quantity), sizes.

    With `measure` the record contains seconds (tokens, layer), too.
    """
    config = model.config
    width, heads = config.width, config.stack(config.stacks[-1]).heads
    tables = [table_one(length, width, kernel, window) for length in lengths]
    x = np.array([[*table.values()] for table in tables], np.int64)
    tensors = {
        "x": Tensor(x, ("tokens", "layer", "quantity")),
        "sizes": Tensor(np.array([width, window, kernel]), ("size",)),
    }
    if measure:
        heads = heads if width % heads == 0 else 1
        seconds = [[measure_layer(layer, length, width, heads, window) for layer in tables[0]] for length in lengths]
        tensors["seconds"] = Tensor(np.array(seconds), ("tokens", "layer"))
    labels: dict[str, Labels] = {
        "tokens": [str(length) for length in lengths],
        "layer": [*tables[0]],
        "quantity": ["operations", "sequential", "path"],
        "size": ["d", "r", "k"],
    }
    return Record(tensors, labels)
