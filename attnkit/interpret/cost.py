"""The cost of a model by its configuration: the sum over the nodes of its graph."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnkit.errors import UsageError, counted, with_article
from attnkit.model.config import AttentionRules, Config, Step
from attnkit.model.context import Model
from attnkit.model.dtypes import Array
from attnkit.model.graph.costs import Cost, ModelShapes, Passes, Shape, Sizes
from attnkit.model.graph.head import build_head
from attnkit.model.graph.kinds import KINDS
from attnkit.model.graph.nodes import Inputs, Node
from attnkit.model.passes.model_graph import build_connector, build_steps, build_vector
from attnkit.model.recurrent_config import as_recurrent
from attnkit.records import Labels, Record, Tensor

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint

CACHED = re.compile(r"decoder\.[0-9]+\.self")  # layers whose keys and values each token adds to the cache
NUMBER = re.compile(r"(?<=\.)[0-9]+(?=\.)")
# how the names of some nodes end -> the row that they are counted in
ROWS = {
    **dict.fromkeys(("words", "types", "patches", "rows", "convolved", "normalized", "probe"), ""),
    **{f"{name}_projected": name for name in ("q", "k", "v", "q_latent", "kv_latent")},
    **{f"{name}_{ending}": name for name in "qk" for ending in ("normed", "features")},
    **{"beta_projected": "beta", "beta_sigmoid": "beta", "dt_projected": "step", "divided": "read", "skipped": "read"},
    **dict.fromkeys(("scaled", "capped", "masked"), "scores"),
    "activated": "hidden",
    "gated": "linear",
    **dict.fromkeys(("chosen", "gates"), "router"),
    "head.hidden": "head.dense",
    "ffn.shared_gate": "shared.gate",
    **{f"{name}.hidden": name for name in ("bridge", "bridge_cell")},
}


def count_model(checkpoint: "Checkpoint") -> ModelShapes:
    """The shapes of the parameters of a model, and which are whose."""
    config, specs, seen = checkpoint.config, checkpoint.params.specs, set()
    shapes, owned = {}, {}
    for layer, parameters in specs.items():
        shapes[layer] = {name: config.parameter_shape(layer, name) for name in parameters}
        own = set()
        for name, spec in parameters.items():
            stored = tuple(checkpoint.params.weights.find(names) for names in spec.joined_names())
            key = stored, spec.share, spec.entry, spec.padding_row
            if key not in seen:
                seen.add(key)
                own.add(name)
        owned[layer] = frozenset(own)
    return ModelShapes(config, shapes, owned)


def count_forward(model: ModelShapes, tokens: int, texts: int = 1) -> list[Cost]:
    """Stages of one pass over texts of a length, with the logits of every token.

    The decoder of an encoder-decoder model reads as many tokens as the encoder, unless that reads a sound.
    """
    for stack in model.config.stacks:
        check_length(model.config, stack, tokens)
    return count_stacks(model, Passes(texts, tokens, heads=tokens), source_tokens(model.config, tokens))


def count_generation(model: ModelShapes, tokens: int, generated: int, texts: int = 1) -> dict[str, list[Cost]]:
    """Stages of a prompt, and of the generated tokens after it.

    The first new token follows from the pass over the prompt, and the last one is not read, so that there is one pass
    less than tokens are generated. The prompt of an encoder-decoder model is what its encoder reads; its decoder begins
    with one token. UsageError for a model that does not generate.
    """
    config = model.config
    if config.decoder is None or not config.head or config.classes:
        raise UsageError(f"{with_article(config.family)} model generates no text", "--generate")
    prompt = 1 if config.encoder else tokens
    check_length(config, config.stacks[0], tokens)
    check_length(config, "decoder", prompt + generated - 1, "--generate")
    return count_text(model, prompt, generated, source_tokens(config, tokens), texts)


def count_text(
    model: ModelShapes, prompt: int, generated: int, source: int = 0, texts: int = 1
) -> dict[str, list[Cost]]:
    """Rows of a prompt of the decoder after a source, and of the generated tokens."""
    prefill = count_stacks(model, Passes(texts, prompt, heads=1), source)
    rows: list[Cost] = []
    for passes in generation_passes(model.config, prompt, generated - 1, texts):
        passes = replace(passes, source=source, has_memory=passes.past > 0)
        rows = sum_costs([*rows, *count_stack(model, "decoder", passes), *count_head(model, passes)])
    return {"prompt": prefill} | ({"generation": rows} if rows else {})


def source_tokens(config: Config, tokens: int) -> int:
    """The number of states of the source: its tokens, or 0 without an encoder.

    Those of a sound are as many in any case.
    """
    if config.encoder is None:
        return 0
    return (config.sound.positions if config.sound else 0) or tokens


def generation_passes(config: Config, prompt: int, steps: int, texts: int) -> Iterator[Passes]:
    """Yield the passes after a prompt: all steps together, or one by one.

    Steps are counted one by one if rotations change with the length.
    """
    from attnkit.model.passes.incremental_decoder import keeps_cache  # a single pass does not need it

    if not steps:
        return
    if config.is_recurrent:
        yield Passes(texts, steps, steps, prompt, heads=steps)
    elif keeps_cache(config, prompt, prompt + steps):
        yield Passes(texts, steps, steps, prompt, is_incremental=True, heads=steps)
    else:
        for length in range(prompt, prompt + steps):
            if keeps_cache(config, length, length + 1):
                yield Passes(texts, 1, 1, length, is_incremental=True, heads=1)
            else:
                yield Passes(texts, length + 1, heads=1)


def check_length(config: Config, stack: str, tokens: int, flag: str = "--tokens") -> None:
    """Raise UsageError, named by a flag, for more tokens than a stack has positions."""
    longest = longest_text(config, stack)
    if longest and tokens > longest:
        problem = f"{counted(tokens, 'token')}, and the {stack} of this {config.family} model has {longest} positions"
        raise UsageError(problem, flag)


def longest_text(config: Config, stack: str) -> int:
    """The number of tokens of the longest text of a stack whose positions end; else 0.

    The positions of the patches of an image are resized, and a sound is cut to the positions of its encoder.
    """
    is_text = not config.patches and not (config.sound and stack == "encoder")
    return config.position_count(stack) if is_text and config.positions.kind in ("learned", "sinusoidal") else 0


def count_stacks(model: ModelShapes, passes: Passes, source: int) -> list[Cost]:
    """Rows of the encoder's pass over a source, the decoder's passes, and the head."""
    config = model.config
    if config.decoder is None:
        return [*count_stack(model, "encoder", passes), *count_connector(model, passes), *count_head(model, passes)]
    rows = []
    if config.encoder is not None:
        rows = count_stack(model, "encoder", Passes(passes.texts, source))
        passes = replace(passes, source=source)
    return [*rows, *count_stack(model, "decoder", passes), *count_head(model, passes)]


def count_stack(model: ModelShapes, stack: str, passes: Passes) -> list[Cost]:
    """Rows of the passes of one stack."""
    rows = [row for step in model.config.plan(stack) for row in count_step(model, step, passes)]
    shared = [layer for layer in (f"{stack}.bias", f"{stack}.relative") if layer in model.shapes]
    return [*(Cost(layer, parameters=model.own_size(layer)) for layer in shared), *rows]


def count_step(model: ModelShapes, step: Step, passes: Passes, frames: int = 0) -> list[Cost]:
    """The rows of one step, its residual at last.

    frames  that a convolution makes of a sound; 0: as many as the states need
    """
    sizes, core, inputs = (passes.texts, passes.tokens), as_core(model), make_inputs(model, passes)
    alone = step if step.adds_residual != "concat" else step._replace(adds_residual="")  # it copies numbers
    nodes = [*build_steps(core, inputs, [alone], "x", "memory", sizes)]
    if model.config.is_recurrent:
        return count_nodes(recurrent_order(nodes), model, passes)
    if frames:
        nodes = [node._replace(shape=(passes.texts, frames, node.shape[-1])) for node in nodes]
    rows = count_nodes(nodes, model, passes)
    return with_cache(rows, step.layer, model.config.attention_rules[step.layer]) if step.attends else rows


def recurrent_order(nodes: Iterable[Node]) -> list[Node]:
    """Nodes of a recurrent step in order: each layer, attention, and the readout.

    The scores of attention count all that it multiplies.
    """
    parts = ("cross", "readout")

    def place(node: Node) -> tuple[int, int]:
        part = node.site.split(".")[1]
        return 1 + parts.index(part) if part in parts else 0, int(part) if part.isdigit() else 0

    return sorted((node for node in nodes if node.kind == "alignment" or ".cross." not in node.site), key=place)


def as_core(model: ModelShapes) -> Model:
    """A model with the shapes of parameters in place of their arrays.

    Builders of nodes read their names alone.
    """
    shapes: Any = model.shapes
    return Model(model.config, shapes)


def make_inputs(model: ModelShapes, passes: Passes) -> Inputs:
    """The inputs of passes in the right shapes, without memory.

    Inputs are ids, and with a sound the frames that its states need.
    """
    ids, sound = hold(passes.texts, passes.tokens), model.config.sound
    source = passes.source or passes.tokens
    heard = hold(passes.texts, sound.frames_before("", source), 1) if sound else None
    return Inputs(ids=hold(passes.texts, source), target=ids, features=heard)


@lru_cache(maxsize=16)
def hold(*shape: int) -> Array:
    """Zeros in no memory."""
    return np.broadcast_to(np.int8(0), shape)


def with_cache(rows: Iterable[Cost], layer: str, rules: AttentionRules) -> list[Cost]:
    """Rows of a layer of attention with its window, and what a token adds to a cache."""
    each = dict(zip("kv", head_widths(rules), strict=True)) if CACHED.fullmatch(layer) else {}
    cached = {f"{layer}.{letter}": rules.kv_heads * width for letter, width in each.items()}
    return [
        row if row.name == f"{layer}.residual" else row._replace(window=rules.window[0], cached=cached.get(row.name, 0))
        for row in rows
    ]


def head_widths(rules: AttentionRules) -> tuple[int, int]:
    """Features of a key head and of a value head."""
    latent = rules.latent
    return (latent.content + latent.rotary, latent.value) if latent else (rules.head_dim, rules.head_dim)


def count_nodes(
    nodes: Iterable[Node], model: ModelShapes, passes: Passes, given: Mapping[str, Shape] | None = None
) -> list[Cost]:
    """The rows of nodes, each with the nodes that are computed in place of its result.

    given  shapes of sites that no node computes, where its cost needs them
    """
    nodes = [*nodes]
    shapes = {**(given or {}), **{node.site: node.shape for node in nodes}}
    rows, first = dict[str, Cost](), dict[str, Shape]()
    for node in without_memory(nodes) if passes.has_memory else nodes:
        own = row_of(node.site)
        held = rows[own].written if own in rows else 0
        read = tuple(shapes.get(site, ()) for site in node.inputs)
        for cost in KINDS[node.kind].cost(Sizes(node, model, passes, read, held)):
            name = cost.name or own
            rows[name] = add_costs(rows.pop(name), cost) if name in rows else cost._replace(name=name)
            first.setdefault(name, node.shape)
    return [with_shape(row, first[row.name], passes) for row in rows.values() if row.is_counted]


def without_memory(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield all nodes but those of the memory and the encoder.

    An earlier pass has computed these.
    """
    known = {"memory"}
    for node in nodes:
        if node.inputs and all(one in known or one.startswith("encoder.") for one in node.inputs):
            known.add(node.site)
        else:
            yield node


@lru_cache(maxsize=1 << 14)
def row_of(site: str) -> str:
    """The row that a node is counted in.

    >>> row_of("decoder.0.self.q_projected"), row_of("decoder.embed.words"), row_of("decoder.0.ffn.output")
    ('decoder.0.self.q', 'decoder.embed', 'decoder.0.ffn.output')
    """
    for ending in (".".join(site.rsplit(".", 2)[-2:]), site.rpartition(".")[2]):
        if ending in ROWS:
            return (site.removesuffix(ending) + ROWS[ending]).rstrip(".")
    return site


def count_head(model: ModelShapes, passes: Passes) -> list[Cost]:
    """Rows from the last hidden states to the logits, or to one vector of each input."""
    config = model.config
    if config.vector_width:
        once = Passes(passes.texts, 1, source=passes.tokens)
        return count_nodes(build_vector(as_core(model), make_inputs(model, once), "memory"), model, once)
    tokens = passes.tokens if config.pools_late else 1 if config.is_head_pooled else passes.heads
    if not config.head or not tokens:
        return []
    read = replace(passes, tokens=tokens, source=0)
    nodes = [*build_head(as_core(model), make_inputs(model, read), "x")]
    needed = {site for node in nodes for site in node.inputs} | {"logits"}
    return count_nodes([node for node in nodes if node.site in needed], model, passes)


def count_connector(model: ModelShapes, passes: Passes) -> list[Cost]:
    """Rows of the connector after a tower of pictures; [] for other models."""
    if not model.config.connector:
        return []
    return count_nodes(build_connector(as_core(model), make_inputs(model, passes), "states"), model, passes)


def count_picture(tower: ModelShapes, pictures: int, size: tuple[int, int]) -> list[Cost]:
    """Rows of the tower and the connector over some pictures of a height and width."""
    cut = tower.config.patches
    assert cut is not None
    model = tower._replace(config=replace(tower.config, patches=replace(cut, height=size[0], width=size[1])))
    return count_stacks(model, Passes(pictures, cut.tokens(*size)), 0)


def sum_costs(rows: Iterable[Cost]) -> list[Cost]:
    """Add up rows of one name, in the order of their first.

    Parameters, and the cache of a token, count once.
    """
    sums: dict[str, Cost] = {}
    for row in rows:
        known = sums.get(row.name)
        if known is not None:
            row = add_costs(known, row)._replace(parameters=known.parameters, cached=known.cached)
        sums[row.name] = row
    return [*sums.values()]


def add_costs(first: Cost, second: Cost) -> Cost:
    """The sum of two rows under the name and with the shape of the first."""
    names = ("flops", "elementwise", "read", "written", "cached", "parameters")
    return first._replace(**{name: getattr(first, name) + getattr(second, name) for name in names})


def with_shape(row: Cost, first: Shape, passes: Passes) -> Cost:
    """A row with its own shape, the shape of heads, or the shape of one text.

    Heads are (H, T, K); one text counts its rows in one pass.

    first  the shape of its first node
    """
    if row.shape or not row.written:
        return row
    if len(first) == 4:
        return row._replace(shape=(first[1], first[2] // passes.count, first[3]))
    lines = row.written // first[-1] // passes.texts // passes.count
    return row._replace(shape=(max(lines, 1), first[-1]))


def count_cache(model: ModelShapes, tokens: int, source: int = 0, texts: int = 1) -> int:
    """Numbers in the cache after tokens of the decoder: keys, values or states.

    Layers with a window keep all tokens.
    """
    config = model.config
    held = count_states(config)
    if config.is_recurrent:
        recurrent = as_recurrent(config)
        attended = sum(recurrent.cross_widths()) if recurrent.decoding.score != "none" else 0
        return texts * (held + source * attended)
    of = [rules for layer, rules in config.attention_rules.items() if layer.startswith("decoder.")]
    each = sum((source if one.is_cross else tokens) * one.kv_heads * sum(head_widths(one)) for one in of)
    return texts * (held + each)


def count_states(config: Config) -> int:
    """Numbers of the states of the layers of a text, after any number of tokens."""
    return sum(math.prod(sizes.values()) for parts in config.states.values() for sizes in parts.values())


def count_least_cache(model: ModelShapes, tokens: int, source: int = 0, texts: int = 1) -> int:
    """Numbers that suffice: keys in a window, or latents of latent attention."""
    of = [rules for layer, rules in model.config.attention_rules.items() if layer.startswith("decoder.")]
    total = texts * count_states(model.config)
    for rules in of:
        kept = source if rules.is_cross else tokens if rules.window[0] < 0 else min(tokens, rules.window[0] + 1)
        latent = rules.latent
        each = latent.rank + latent.rotary if latent else rules.kv_heads * sum(head_widths(rules))
        total += texts * kept * each
    return total


def layer_of(name: str) -> str:
    """The layer that a row belongs to.

    A row outside the stacks, and a layer's own result, is its own.

    The name of a stage of a pipeline begins with its number and its tool.

    >>> layer_of("decoder.0.self.scores"), layer_of("decoder.embed"), layer_of("head.dense")
    ('decoder.0.self', 'decoder.embed', 'head.dense')
    >>> layer_of("2.attend.scores"), layer_of("1.encode.encoder.0.self.q")
    ('2.attend', '1.encode.encoder.0.self')
    """
    parts = name.split(".")
    tool = 2 * parts[0].isdigit()
    if tool and not set(parts[2:3]) & {"encoder", "decoder", "head"}:
        return ".".join(parts[:2])
    numbered = len(parts) > tool + 1 and parts[tool + 1].isdigit()
    return ".".join(parts[: tool + (3 if numbered else 2)])


def collapse(rows: Iterable[Cost], by_layer: bool = True) -> list[Cost]:
    """Add up the rows of a layer, and those of all layers with one window.

    In the name of the sum, # stands for the numbers of the layers.

    >>> rows = [Cost(f"decoder.{n}.self.{name}", (2, 2), 5) for n in (0, 1) for name in ("q", "output")]
    >>> [(row.name, row.flops) for row in collapse(rows)]
    [('decoder.#.self', 20)]
    """
    sums: dict[str, Cost] = {}
    for row in rows:
        name = NUMBER.sub("#", layer_of(row.name) if by_layer else row.name, count=1)
        key = f"{name} window {row.window}" if row.window >= 0 else name
        known = sums.get(key)
        sums[key] = (add_costs(known, row) if known else row)._replace(name=key, shape=row.shape)
    return [*sums.values()]


QUANTITIES = ("parameters", "flops", "elementwise", "read", "written", "cached")
LABELS = ("parameters", "FLOPs", "elementwise FLOPs", "bytes read", "bytes written", "cache bytes/token")
IN_BYTES = ("read", "written", "cached")
HELD = ("states", "cache", "least_cache", "gradients", "optimizer")  # scalars of a record: bytes that stay in memory
ITEMSIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
USUAL = 128  # tokens of a text
MOMENTS = 2  # numbers that AdamW keeps of each parameter


class Workload(NamedTuple):
    """A run: tokens of each text, generated tokens, texts, and whether it trains."""

    tokens: int
    generate: int = 0
    batch: int = 1
    train: bool = False


def count_phases(model: ModelShapes, run: Workload) -> dict[str, list[Cost]]:
    """The rows of each phase of a run by its name.

    UsageError for a run that the model cannot do.
    """
    tokens, texts = run.tokens, run.batch
    patches = count_patches(model.config)
    if patches and tokens != patches:
        raise UsageError(f"{counted(tokens, 'token')}, and an image of this model has {patches}", "--tokens")
    if run.generate:
        source = source_tokens(model.config, tokens)
        if source not in (0, tokens):
            raise UsageError(f"{counted(tokens, 'token')}, and a sound of this model has {source}", "--tokens")
        return count_generation(model, tokens, run.generate, texts)
    forward = count_forward(model, tokens, texts)
    if not run.train:
        return {"forward": forward}
    return {"forward": forward, "backward": [undo_row(row) for row in forward]}


def count_patches(config: Config) -> int:
    """Tokens of an image of the size of a model, all of them; 0 for a model of texts."""
    cut = config.patches
    return cut.tokens(cut.height, cut.width) if cut else 0


def default_tokens(config: Config, generated: int = 0) -> int:
    """The tokens of a run that states none: 128, or all positions of a model.

    generated  tokens after them, of which all but the last are read
    """
    if patches := count_patches(config):
        return patches
    if generated and config.sound and (source := source_tokens(config, 0)):
        return source
    ends = [longest for stack in config.stacks if (longest := longest_text(config, stack))]
    is_prompt = config.encoder is None and generated > 0
    return max(min([USUAL, *ends]) - (max(0, USUAL + generated - 1 - min(ends)) if is_prompt and ends else 0), 1)


def undo_row(row: Cost) -> Cost:
    """The backward pass of a row: two products for each, one for each factor."""
    doubled = {name: 2 * getattr(row, name) for name in ("flops", "elementwise", "read", "written")}
    return row._replace(**doubled, parameters=0, cached=0)


def describe_phase(name: str, run: Workload) -> str:
    """The title of a phase."""
    of = f" of {counted(run.batch, 'text')}" if run.batch > 1 else ""
    if name == "generation":
        return f"{name}: {counted(run.generate, 'token')}{of}, the last of which is not read"
    return f"{name}: {counted(run.tokens, 'token')}{of}"


def cost_record(models: Mapping[str, ModelShapes], run: Workload, dtype: str, by_layer: bool = True) -> Record:
    """The cost of a run by phase, stage and quantity, and bytes in memory.

    x (phase, stage, quantity), shape (phase, stage, dimension), bytes (model,)

    Of several models, each has its own phases. A result of fewer than three dimensions has zeros for the others.
    """
    phases = {
        f"{model}: " * (len(models) > 1) + describe_phase(name, run): rows
        for model, one in models.items()
        for name, rows in count_phases(one, run).items()
    }
    held = {model: {"weights": one.parameters} | count_held(one, run) for model, one in models.items()}
    return phases_record(phases, held, dtype, by_layer)


def phases_record(
    phases: Mapping[str, Iterable[Cost]], held: Mapping[str, Mapping[str, int]], dtype: str, by_layer: bool
) -> Record:
    """The cost of some phases, as `cost_record`, and numbers in memory by model."""
    phases = {title: collapse(rows, by_layer) for title, rows in phases.items()}
    rows = [*dict.fromkeys(row.name for some in phases.values() for row in some)]
    x = np.zeros((len(phases), len(rows), len(QUANTITIES)), np.int64)
    shape = np.zeros((len(phases), len(rows), 3), np.int64)
    for phase, some in enumerate(phases.values()):
        for row in some:
            at = phase, rows.index(row.name)
            x[at] = [whole_number(number) for number in quantities(row, ITEMSIZES[dtype])]
            shape[at][: len(row.shape)] = row.shape
    tensors = {"x": Tensor(x, ("phase", "stage", "quantity")), "shape": Tensor(shape, ("phase", "stage", "dimension"))}
    for name in dict.fromkeys(name for one in held.values() for name in one):
        numbers = [whole_number(one.get(name, 0) * ITEMSIZES[dtype]) for one in held.values()]
        tensors[name] = Tensor(np.array(numbers, np.int64), ("model",))
    labels: dict[str, Labels] = {"phase": [*phases], "stage": rows, "quantity": [*LABELS], "model": [*held]}
    return Record(tensors, labels)


def quantities(row: Cost, itemsize: int) -> list[int]:
    """The numbers of a row in the order of QUANTITIES, memory in bytes."""
    return [getattr(row, name) * (itemsize if name in IN_BYTES else 1) for name in QUANTITIES]


def whole_number(number: int) -> int:
    """The number; UsageError where it is too large for a record."""
    if number >= 1 << 63:
        raise UsageError("a run of more than 2^63 FLOPs or bytes (expected fewer tokens, or texts)")
    return number


CURVES = ("FLOPs", "FLOPs of weights", "FLOPs of scores", "bytes", "cache bytes")


def sweep_record(models: Mapping[str, ModelShapes], runs: Mapping[str, Workload], dtype: str) -> Record:
    """The totals of several runs: x (run, curve), of each model the curves of CURVES."""
    size = ITEMSIZES[dtype]
    rows = [
        [whole_number(number) for one in models.values() for number in sum_run(one, run, size)] for run in runs.values()
    ]
    curves = [f"{model} {name}" if len(models) > 1 else name for model in models for name in CURVES]
    return Record({"x": Tensor(np.array(rows, np.int64), ("run", "curve"))}, {"run": [*runs], "curve": curves})


def total_stages(rows: Iterable[Cost]) -> dict[str, Cost]:
    """The total of the rows of each stage of a pipeline, by its number and tool.

    >>> total_stages([Cost("1.attend.q", flops=2), Cost("1.attend.k", flops=3)])["1.attend"].flops
    5
    """
    totals: dict[str, Cost] = {}
    for row in rows:
        stage = ".".join(row.name.split(".")[:2])
        totals[stage] = add_costs(totals[stage], row) if stage in totals else row._replace(name=stage)
    return totals


def sum_run(model: ModelShapes, run: Workload, itemsize: int) -> list[int]:
    """The totals of a run, in the order of CURVES."""
    rows = [row for some in count_phases(model, run).values() for row in some]
    scores = sum(row.flops for row in rows if row.name.endswith((".scores", ".heads", ".relative")))
    total, moved = sum(row.flops for row in rows), sum(row.read + row.written for row in rows)
    cache = count_held(model, run).get("cache", 0)
    return [total, total - scores, scores, moved * itemsize, cache * itemsize]


def count_held(model: ModelShapes, run: Workload) -> dict[str, int]:
    """Numbers that stay in memory beside the weights, by the names of HELD."""
    config = model.config
    if run.train:
        return {"gradients": model.parameters, "optimizer": MOMENTS * model.parameters}
    if config.decoder is None or config.classes:
        return {}
    source = source_tokens(config, run.tokens)
    read = (1 if config.encoder and run.generate else run.tokens) + max(run.generate - 1, 0)
    cache = count_cache(model, read, source, run.batch)
    if config.is_recurrent:
        return {"cache": cache}
    least, states = count_least_cache(model, read, source, run.batch), run.batch * count_states(config)
    return {"cache": cache} | ({"states": states} if states else {}) | ({"least_cache": least} if least < cache else {})


def format_count(count: int) -> str:
    """A number with four digits at least, in a readable unit; "" for 0.

    >>> format_count(9999), format_count(12345678), format_count(0)
    ('9,999', '12.35 M', '')
    """
    if count < 10000:
        return f"{count:,}" if count else ""
    power = min((len(str(count)) - 1) // 3, 6)
    number = f"{count / 1000**power:.4g}"
    return f"{number} {'kMGTPE'[power - 1]}"
