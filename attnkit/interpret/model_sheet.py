"""The facts of a model with their keys of config.json; differences of two."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attnkit.checkpoints.checkpoint import fact_of
from attnkit.checkpoints.config_reader import Fields, keys_of
from attnkit.checkpoints.generation_defaults import key_of, list_defaults
from attnkit.checkpoints.sentence_modules import MODULES, PROMPTS
from attnkit.display import Block, Style, Text, TextTable
from attnkit.display.cells import Cells
from attnkit.display.report import ReportRecord
from attnkit.errors import counted, flag_name, format_bytes
from attnkit.inputs.encoding import sentence_modules
from attnkit.model import Config, RecurrentConfig, SpecialTokens, StackConfig
from attnkit.model.config import POSITION_CONVOLUTION, SoundConfig
from attnkit.model.formulas.experts import ExpertConfig
from attnkit.model.formulas.recall import RecallConfig
from attnkit.model.recurrent_config import as_recurrent
from attnkit.records import Tensor, join_names

if TYPE_CHECKING:
    from attnkit.checkpoints import Checkpoint
    from attnkit.checkpoints.outline import Outline


MOST = 8  # words in a row
DEFAULT, FIXED = " (default)", "–"
LEGEND = f"{DEFAULT.strip()}: not in the file; {FIXED}: implied by model_type, or seen in the tensors"

CONVOLUTION_NORMS = {
    "channel": "of the first, by channel",
    "layer": "of all, by frame",
    "group": "of the first, of all channels and frames together",
}
VECTORS = {  # the state of the vector of a text or image
    "cls": "of the first token",
    "end": "of the first end token",
    "largest": "of the token with the largest id",
    "last": "of the last token, after padding",
    "probe": "what a learned query attends to",
}


class Fact(NamedTuple):
    """A fact of a model: its value, and the key that states it.

    is_stated  whether config.json has the key; otherwise `key` is "" or stands for a default
    file       another file that states it, "" for config.json
    """

    name: str
    value: str
    key: str = ""
    is_stated: bool = False
    file: str = ""

    @property
    def source(self) -> str:
        if self.file:
            return self.file
        return (self.key.rpartition(".")[2] + DEFAULT * (not self.is_stated)) if self.key else FIXED


def model_facts(checkpoint: "Checkpoint") -> list[Fact]:
    """The facts of a model in order."""
    config = checkpoint.config
    rows = {"family": config.family, **file_facts(checkpoint)}
    rows |= recurrent_facts(as_recurrent(config)) if config.is_recurrent else transformer_facts(checkpoint)
    rows |= {
        "vector": VECTORS.get(getattr(config, "vector_pooling", ""), ""),
        "vector width": str(getattr(config, "vector_width", 0) or ""),
        "head": head_text(checkpoint),
        "classes": named(config.classes),
        "probabilities": config.label_function * bool(config.classes),
        "pooling": config.pooling * config.is_head_pooled,
        "tokens": tokens_text(config.special),
    }
    rows = rows if any(config.stack(name).layers for name in config.stacks) else table_facts(checkpoint, rows)
    fields = fact_of(config.family, "FIELDS")
    facts = [Fact(name, value, *find_key(fields, checkpoint.keys, name)) for name, value in rows.items() if value]
    facts += module_facts(checkpoint)
    asked = list_defaults(checkpoint.generation)
    flags = " ".join(f"{flag_name(name)} {value}" for name, value in asked.items())
    return [*facts, Fact("asks for", flags, key_of(next(iter(asked))), is_stated=True)] if asked else facts


@dataclass(frozen=True, repr=False)
class FactSheet(ReportRecord):
    """The facts of one model, or of two side by side, as a record.

    Tensors of booleans have the words as labels: `fact`, `value` and `key`, or `fact`, `a` and `b`. `stated` is true
    for a fact that config.json states, `equal` for one that both models share.

    models  the folder and the facts of each model
    legend  what the columns and marks mean
    """

    models: Mapping[str, Sequence[Fact]] = field(kw_only=True, compare=False)
    legend: str = field(kw_only=True, compare=False, default=LEGEND)

    def blocks(self, style: Style) -> list[Block]:
        heads, rows = self.cells()
        if len(self.models) == 1:
            return [TextTable(heads, rows, title=next(iter(self.models)), footer=self.legend)]
        equal = counted(int(self["equal"].sum()), "fact") + " equal"
        return [TextTable(heads, rows, footer=equal) if rows else Text(f"the same: {equal}")]

    def cells(self) -> Cells:
        """The table: the facts of one model, or what differs between two."""
        if len(self.models) == 1:
            [facts] = self.models.values()
            return Cells(["fact", "key", "value"], [[fact.name, fact.source, fact.value] for fact in facts])
        shown = [*zip(*(self.labels[axis] for axis in ("fact", "a", "b")), self["equal"], strict=True)]
        return Cells(["fact", *self.models], [[name, a, b] for name, a, b, is_equal in shown if not is_equal])


def describe_model(checkpoint: "Checkpoint") -> FactSheet:
    """The sheet of one model."""
    return facts_sheet(checkpoint.folder, model_facts(checkpoint))


def describe_outline(outline: "Outline") -> FactSheet:
    """The sheet of a model that is not opened, with the reason as its legend.

    Of a family that is not known it has the keys whose meaning is usual, with their values as they are.
    """
    if outline.model and not outline.facts:
        return facts_sheet(outline.folder, model_facts(outline.model), f"{outline.problem}; {LEGEND}")
    facts = [Fact(name, str(value), key, is_stated=True) for name, (key, value) in outline.facts.items()]
    if outline.model:
        facts += [Fact("parameters", f"about {outline.model.parameter_count:,}, {outline.mark}")]
    unread = f"; not read: {join_names(outline.unread, MOST)}" if outline.unread else ""
    return facts_sheet(outline.folder, facts, f"{outline.problem}; the keys have their usual meaning{unread}")


def facts_sheet(folder: str, facts: Sequence[Fact], legend: str = LEGEND) -> FactSheet:
    words: dict[str, Any] = {"fact": [fact.name for fact in facts], "value": [fact.value for fact in facts]}
    words["key"] = [fact.key or fact.file or FIXED for fact in facts]
    tensors = {"stated": Tensor(np.array([fact.is_stated for fact in facts]), ("fact",))}
    tensors |= {name: Tensor(np.ones(len(facts), bool), (name,)) for name in ("value", "key")}
    return FactSheet(tensors, words, models={folder: facts}, legend=legend)


def compare_models(a: "Checkpoint", b: "Checkpoint") -> FactSheet:
    """The sheet of two models, with "–" for a fact that one does not have."""
    sides = [{fact.name: fact.value for fact in model_facts(one)} for one in (a, b)]
    names = [*merge_order([*sides[0]], [*sides[1]])]
    words: dict[str, Any] = {"fact": names, "a": [sides[0].get(name, FIXED) for name in names]}
    words["b"] = [sides[1].get(name, FIXED) for name in names]
    equal = np.array([one == other for one, other in zip(words["a"], words["b"], strict=True)])
    tensors = {"equal": Tensor(equal, ("fact",))}
    tensors |= {name: Tensor(np.array([text != FIXED for text in words[name]]), (name,)) for name in ("a", "b")}
    folders = (a.folder, b.folder) if a.folder != b.folder else ("A", "B")
    return FactSheet(tensors, words, models=dict(zip(folders, map(model_facts, (a, b)), strict=True)))


def merge_order(first: Sequence[str], second: Sequence[str]) -> Iterator[str]:
    """Yield the names of two lists once, each after those that come before it.

    >>> [*merge_order(["width", "gate", "head"], ["width", "biases", "head"])]
    ['width', 'gate', 'biases', 'head']
    """
    rest = [*second]
    for name in first:
        if name in rest:
            at = rest.index(name)
            yield from (one for one in rest[:at] if one not in first)
            rest = rest[at + 1 :]
        yield name
    yield from (one for one in rest if one not in first)


def find_key(fields: Fields, keys: Mapping[str, bool], fact: str) -> tuple[str, bool]:
    """The key that states a fact, and whether the file has it; "" if none was read.

    fields  of the family
    keys    the keys that were read, and whether the file has each

    >>> fields = {"hidden width": "n_inner", "norm": "norm_bias"}
    >>> find_key(fields, {"n_embd": True, "n_inner": False}, "hidden width"), find_key(fields, {"n_embd": True}, "norm")
    (('n_inner', False), ('', False))
    """
    stack = fact.partition(" ")[0] if fact.startswith(("encoder ", "decoder ")) else ""
    bare = fact.removeprefix(f"{stack} ") if stack else fact
    names = [*fields.get(fact, "").split(), *fields.get(bare, "").split()] if stack else keys_of(fields, fact)
    found = [key for name in names for key in keys if key.rpartition(".")[2] == name]
    is_local = fact.startswith("window ")
    found.sort(key=lambda key: (not keys[key], is_local is not ("sliding" in key), "." not in key))
    return (found[0], keys[found[0]]) if found else ("", False)


def file_facts(checkpoint: "Checkpoint") -> dict[str, str]:
    """What the files hold: parameters, bytes, tensors that are not read, dtypes."""
    stored = checkpoint.tensors()
    files = [file for file in checkpoint.params.weights.files if not file.endswith(".json")]
    size = format_bytes(sum(map(os.path.getsize, files)))
    dtypes = Counter(map(checkpoint.params.weights.kind, stored)).most_common()
    return {
        "towers": ", ".join(one.folder for one in checkpoint.towers.values()),
        "parameters": f"{checkpoint.parameter_count:,}",
        "on disk": f"{size} in {os.path.basename(files[0]) if len(files) == 1 else f'{len(files)} files'}"
        if files
        else "no weights",
        "not read": unread_text(checkpoint),
        "dtype": ", ".join(f"{name} ({n} of {len(stored)})" if at else name for at, (name, n) in enumerate(dtypes)),
    }


def table_facts(checkpoint: "Checkpoint", rows: Mapping[str, str]) -> dict[str, str]:
    """The facts of a model without layers: of its files, and the sizes of its table."""
    config, of_files = checkpoint.config, {"family", *file_facts(checkpoint)}
    sizes = {"stacks": "none, but a table", "width": f"{config.width:,}"}
    vocabulary = {"vocabulary": f"{config.stack(config.stacks[0]).vocab:,}"}
    return {name: value for name, value in rows.items() if name in of_files} | sizes | vocabulary


def module_facts(checkpoint: "Checkpoint") -> list[Fact]:
    """What the files of sentence-transformers state: modules in order, and prompts."""
    modules = sentence_modules(checkpoint)
    if not modules.first:
        return []
    names = [f"module {number}" for number in range(len(modules.summary))]
    facts = [Fact(*row, file=MODULES) for row in zip(names, modules.summary, strict=True)]
    usual = {name: " (default)" * (name == modules.prompt) for name in modules.prompts}
    prompts = ", ".join(f"{name} {modules.prompts[name]!r}{mark}" for name, mark in usual.items())
    rows = {"prompts": prompts, "kept numbers": str(modules.dim or "")}
    return facts + [Fact(name, value, file=PROMPTS) for name, value in rows.items() if value]


def unread_text(checkpoint: "Checkpoint") -> str:
    """The stored tensors that no layer reads, and why some change no number."""
    unread, groups = checkpoint.params.unread, dict[str, list[str]]()
    reasons = dict.fromkeys(unread.of_layers, "part of its layers") | unread.harmless
    for name in unread.names:
        groups.setdefault(reasons.get(name, ""), []).append(name)
    texts = [join_names(names, 3) + f" ({why})" * bool(why) for why, names in groups.items()]
    return f"{len(unread.names)} of {len(checkpoint.tensors())} tensors: {'; '.join(texts)}" if texts else ""


def transformer_facts(checkpoint: "Checkpoint") -> dict[str, str]:
    """The architecture of a Transformer, "" for what it does not have."""
    config, cut, sound = checkpoint.config, checkpoint.config.patches, checkpoint.config.sound
    specs = checkpoint.params.specs
    return {
        "stacks": ", ".join(config.stacks) + ", causal" * all(config.stack(name).causal for name in config.stacks),
        **stack_facts(config),
        "embedding width": f"{config.embed_width:,}, projected" if config.embed_width else "",
        "norm": norm_text(config, specs),
        "norm places": norm_places(config),
        "norm eps": f"{config.eps:g}",
        "sub-layers": "parallel: both read the same input" * config.parallel,
        "query-key norm": config.qk_norm and f"by {config.qk_norm}",
        "score scale": scale_text(config),
        "taps": f"{config.taps} tokens of a short convolution" if config.taps else "",
        **recall_facts(config.recall),
        "head gates": "a sigmoid of each number" * config.gates_heads,
        "scores by layer": "divided by the number of the layer" * config.scale_by_layer,
        "key factor": number_of(config.key_scale, 1),
        "score cap": number_of(config.softcap, 0),
        "q k v bound": number_of(config.clip, 0),
        "embedding factor": number_of(config.embed_scale, 1),
        "residual factor": number_of(config.residual_scale, 1),
        "sub-layer factors": factors_text(config),
        "layer scale": "a factor of each feature" * config.layer_scale,
        "logit factor": number_of(config.logit_scale, 1),
        "logit cap": number_of(config.logit_softcap, 0),
        "activation": activations_text(config),
        "gate": "gated" if any("w3" in names for names in specs.values()) else "",
        "gate factor": number_of(config.gate_scale, 1),
        "gate bound": number_of(config.ffn_limit, 0),
        **expert_facts(config.experts),
        "sinks": "a logit of each head" if any("sinks" in names for names in specs.values()) else "",
        "biases": biases_text(specs),
        **position_facts(config),
        "segments": f"{config.types} kinds" if config.types else "",
        **(sound_facts(sound) if sound else {}),
        "frame labels": f"{config.frame_labels}, joined by CTC" if config.frame_labels else "",
        "image": f"{cut.channels} channels of {cut.height} × {cut.width}" if cut else "",
        "patches": f"{cut.patch_height} × {cut.patch_width}" if cut else "",
        "registers": str(cut.registers) if cut and cut.registers else "",
    }


def recall_facts(recall: RecallConfig | None) -> dict[str, str]:
    """The facts of layers that keep a state."""
    if recall is None:
        return {}
    shared = f", {counted(recall.key_heads, 'head')} of queries and keys" if recall.key_heads != recall.heads else ""
    return {
        "state": f"{counted(recall.heads, 'head')} of {recall.key} × {recall.value}{shared}",
        "state rule": recall.rule,
        "state taps": f"{recall.taps} tokens of a convolution" if recall.taps else "",
        "step limits": limits_text(*recall.step_limits),
        "state norm": norm_order(recall),
        "state factors": ", ".join(f"{STATE_PARTS[part]} {factor:g}" for part, factor in recall.factors),
    }


def activations_text(config: "Config") -> str:
    """The activation of the networks, or of those of each stack."""
    each = {name: config.activation_of(f"{name}.0.ffn") for name in config.stacks}
    names = [f"{one} ({name})" for name, one in each.items()]
    return ", ".join(names) if len({*each.values()}) > 1 else config.activation


# parts of the projection of a layer with a state, in words
STATE_PARTS = {"q": "queries", "k": "keys", "v": "values", "g": "gates", "dt": "steps"}


def limits_text(least: float, most: float) -> str:
    """The bounds of the steps of a state, "" for those of every positive number.

    >>> limits_text(0.01, 0.5), limits_text(0.0, math.inf)
    ('0.01 to 0.5', '')
    """
    return f"{least:g} to {most:g}" if (least, most) != (0, math.inf) else ""


def norm_order(recall: RecallConfig) -> str:
    """The parts that the norm of a state is taken of, and its place.

    >>> norm_order(RecallConfig("mamba2", 4, 2, 3, 5, norm_groups=2, gates_first=True))
    'RMS of 2 groups, after the gate'
    """
    if not recall.norm_groups:
        return "none"
    place = ", after the gate" if recall.gates_first else ", before the gate"
    return f"RMS of {counted(recall.norm_groups, 'group')}" + place * bool(recall.gate)


def factors_text(config: Config) -> str:
    """The factors on what sub-layers read, and on their results.

    >>> factors_text(Config("falcon_h1", 2, factors={"self": (0.5, 1.0), "ffn": (1.0, 2.0)}))
    'attention 0.5 in, network 2 out'
    """
    words = MIXED_BY | {"ffn": "network"}
    sides = [
        (f"{words[part]} {factor:g} {side}", factor)
        for part, factors in config.factors.items()
        for side, factor in zip(("in", "out"), factors, strict=True)
    ]
    return ", ".join(text for text, factor in sides if factor != 1)


def sound_facts(sound: SoundConfig) -> dict[str, str]:
    """What a model of sounds reads, and its convolutions."""
    cuts = [cut for part, cut in sound.convolutions.items() if part != POSITION_CONVOLUTION]
    windows = ", ".join(f"{cut.size}/{cut.options.stride[0]}" for cut in cuts)
    position = sound.convolutions.get(POSITION_CONVOLUTION)
    shown = sound.spectrogram
    return {
        "sound": f"{sound.samples / shown.rate:g} seconds" if shown else "samples",
        "mel filters": f"{shown.mels}" if shown else "",
        "convolutions": f"{windows} (frames of a window / stride)",
        "convolution norm": CONVOLUTION_NORMS.get(cuts[0].norm, ""),
        "position convolution": f"{position.size} frames, {position.options.groups} groups" if position else "",
    }


def stack_facts(config: Config) -> dict[str, str]:
    """The sizes of the stacks: one fact for what all share, otherwise one for each.

    >>> small = StackConfig(layers=2, heads=2, hidden=8, kv_heads=1, head_dim=4, causal=True)
    >>> stack_facts(Config("llama", 8, decoder=small))["key/value heads"]
    '1'
    """
    by_stack = {name: _sizes(config, config.stack(name)) for name in config.stacks}
    rows = {}
    for fact in next(iter(by_stack.values())):
        values = {name: sizes[fact] for name, sizes in by_stack.items()}
        if len({*values.values()}) == 1:
            rows[fact] = next(iter(values.values()))
        else:
            rows |= {f"{name} {fact}": value for name, value in values.items()}
    return rows


def _sizes(config: Config, stack: StackConfig) -> dict[str, str]:
    has_attention = not stack.mixers or any("self" in one.split() for one in stack.mixers)
    return {
        "layers": str(stack.layers),
        "width": f"{config.width:,}",
        "heads": str(stack.heads) if has_attention else "",
        "key/value heads": str(stack.kv_heads) if has_attention else "",
        "head width": str(stack.head_dim) if has_attention else "",
        "hidden width": f"{stack.hidden:,}" if stack.networks else "",
        "vocabulary": f"{stack.vocab:,}" if stack.vocab else "",
        "windows": windows_text(stack.windows, stack.causal),
        "mixers": mixers_text(stack.mixers),
    }


MIXED_BY = {"self": "attention", "recall": "state", "shortconv": "short convolution"}  # mixers of layers


def mixers_text(mixers: tuple[str, ...]) -> str:
    """What mixes the tokens of the layers, if it is not attention in all.

    >>> mixers_text(("shortconv", "self", "shortconv", "shortconv")), mixers_text(())
    ('short convolution in layers 0, 2…3, attention in layer 1', '')
    >>> mixers_text(("recall self",) * 2)
    'state beside attention in layers 0…1'
    """
    places = {one: [at for at, other in enumerate(mixers) if other == one] for one in dict.fromkeys(mixers)}
    words = {one: " beside ".join(MIXED_BY[mixer] for mixer in one.split()) for one in places}
    return ", ".join(f"{words[one]} in {layers_text(layers)}" for one, layers in places.items())


def windows_text(windows: tuple[int, ...], is_causal: bool = True) -> str:
    """Describe how many keys before and after a query the layers attend to.

    >>> windows_text((5, 5)), windows_text((-1, 5)), windows_text(())
    ('a window of 5 keys before the query', 'a window of 5 keys before the query in layer 1', '')
    """
    sides = "before the query" if is_causal else "before the query and after it"
    parts = []
    for size in dict.fromkeys(size for size in windows if size >= 0):
        layers = [at for at, one in enumerate(windows) if one == size]
        where = f" in {layers_text(layers)}" if len(layers) < len(windows) else ""
        parts.append(f"a window of {size:,} keys {sides}{where}")
    return ", ".join(parts)


def layers_text(layers: Sequence[int]) -> str:
    """Numbers of layers, those that follow each other as one.

    >>> layers_text([0, 1, 2, 5]), layers_text([3])
    ('layers 0…2, 5', 'layer 3')
    """
    places = ", ".join(f"{a}…{b}" if b > a else f"{a}" for a, b in runs(layers))
    return f"{'layers' if len(layers) > 1 else 'layer'} {places}"


def runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of every run of consecutive whole numbers.

    >>> list(runs([0, 1, 2, 5]))
    [(0, 2), (5, 5)]
    """
    starts = [at for at, number in enumerate(numbers) if at == 0 or numbers[at - 1] != number - 1]
    for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True):
        yield numbers[start], numbers[end - 1]


def norm_text(config: Config, specs: Mapping[str, Mapping[str, Any]]) -> str:
    kind = "RMS" if config.norm == "rms" else "layer"
    names = {name for layer, named in specs.items() if "norm" in layer.rpartition(".")[2] for name in named}
    if not names:
        return f"{kind}, without parameters"
    return f"{kind}, without biases" if config.norm == "layer" and "beta" not in names else kind


def norm_places(config: Config) -> str:
    """Where the norms are: before sub-layers, of their results, or after residuals.

    >>> norm_places(Config("bert", 2)), norm_places(Config("gpt2", 2, norm_first=True))
    ('after residuals (post-norm)', 'before sub-layers (pre-norm)')
    """
    places = {
        (True, True): "before sub-layers, of their results",
        (True, False): "before sub-layers (pre-norm)",
        (False, True): "of results of sub-layers",
        (False, False): "after residuals (post-norm)",
    }[config.norm_first, config.norm_output]
    has_last = any(config.stack(name).final_norm for name in config.stacks)
    return places + ", of embeddings" * config.embed_norm + ", at the end" * has_last


def scale_text(config: Config) -> str:
    """The factor of the scores; of the usual one its formula.

    >>> scale_text(Config("t5", 2, scale=1.0)), scale_text(Config("gpt2", 2))
    ('1', '1/√(head width)')
    """
    if config.scale is None:
        return "1/√(head width)" if config.score == "scaled-dot" else "1"
    return f"{config.scale:g}"


def number_of(value: float, neutral: float) -> str:
    return "" if value == neutral else f"{value:g}"


def biases_text(specs: Mapping[str, Mapping[str, Any]]) -> str:
    """The parts of a layer that have biases, as q k v o, network; or none.

    >>> biases_text({"decoder.0.self": {"wq": 0, "bq": 0}, "decoder.0.ffn": {"w1": 0}}), biases_text({})
    ('q', 'none')
    """
    attention = {name for layer, named in specs.items() if layer.endswith((".self", ".cross")) for name in named}
    network = {name for layer, named in specs.items() if layer.endswith(".ffn") for name in named}
    letters = " ".join(letter for letter in "qkvo" if f"b{letter}" in attention)
    return ", ".join(filter(None, [letters, "network" * bool({"b1", "b2"} & network)])) or "none"


def expert_facts(experts: ExpertConfig | None) -> dict[str, str]:
    """How many experts there are, and how a router chooses among them.

    >>> expert_facts(ExpertConfig(8, 2, 16, renormalizes=True))["router"]
    'softmax over all, divided by their sum'
    """
    if experts is None:
        return {}
    scores = {"softmax": "softmax over all", "sigmoid": "sigmoid", "chosen": "softmax over the chosen"}
    router = scores[experts.score] + ", divided by their sum" * experts.renormalizes
    is_grouped = experts.groups > 1
    return {
        "experts": f"{experts.count}, {experts.chosen} for each token",
        "expert width": f"{experts.hidden:,}",
        "shared width": f"{experts.shared:,}" if experts.shared else "",
        "dense layers": layers_text(experts.dense) if experts.dense else "",
        "router": router,
        "expert factor": number_of(experts.scale, 1),
        "expert groups": f"{experts.groups}, {experts.chosen_groups} for each token" if is_grouped else "",
    }


def position_facts(config: Config) -> dict[str, str]:
    """The kind of positions, and its sizes.

    >>> position_facts(Config("t5", 2))["positions"]
    'none'
    """
    positions = config.positions
    over = "by height and width, " * positions.over_grid
    pairs = "neighbouring features" if positions.interleaved else "halves of a head"
    order = "sines before cosines" if positions.layout == "halves" else "sine and cosine in turn"
    kinds = {
        "sinusoidal": f"sinusoidal, {order}, base {positions.base:g}",
        "rotary": f"rotary, {over}{pairs}",
    }
    relative = {
        "t5": "a bias on the scores by distance",
        "alibi": "ALiBi" + ", rounded to bfloat16" * positions.rounds_bias,
        "disentangled": f"disentangled ({', '.join(positions.terms)})",
    }
    kind = kinds.get(positions.kind, positions.kind)
    kind += f", the first is {positions.first}" * bool(positions.first)
    parts = [kind] if positions.kind != "none" or not positions.relative else []
    has_buckets = positions.relative in ("t5", "disentangled")
    return {
        "positions": "; ".join([*parts, *filter(None, [relative.get(positions.relative)])]),
        "longest text": f"{positions.longest:,}" if positions.size and not config.patches else "",
        **(rotation_facts(config) if positions.kind == "rotary" else {}),
        "buckets": str(positions.buckets) if has_buckets else "",
        "largest distance": str(positions.max_distance) if has_buckets and positions.max_distance else "",
    }


def rotation_facts(config: Config) -> dict[str, str]:
    positions = config.positions
    scaling, local = rotation_text(positions.rope), rotation_text(positions.local_rope)
    width = config.stack(config.stacks[-1]).head_dim
    is_partial = positions.rotary_dim not in (0, width)
    theta, local_theta = (
        number_text(rope.get("rope_theta", 10000.0)) for rope in (positions.rope, positions.local_rope)
    )
    return {
        "theta": theta,
        "scaling": scaling,
        "window theta": local_theta * bool(positions.local_rope and local_theta != theta),
        "window scaling": (local or "none") * bool(positions.local_rope and local != scaling),
        "rotated features": f"{positions.rotary_dim} of {width}" if is_partial else "",
        "unrotated layers": ", ".join(map(str, positions.unrotated)),
    }


def rotation_text(rope: Mapping[str, Any]) -> str:
    """The scaling of a rotation with its fields, "" for none.

    >>> rotation_text({"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}), rotation_text({"rope_theta": 1e4})
    ('linear, factor 4', '')
    """
    known = ("rope_type", "rope_theta", "max_position_embeddings")
    fields = ", ".join(f"{key} {number_text(value)}" for key, value in rope.items() if key not in known)
    kind = rope.get("rope_type", "default")
    return "" if kind == "default" else f"{kind}, {fields}"


def number_text(value: object) -> str:
    """A published value in a few digits.

    >>> number_text(500000.0), number_text("yarn"), number_text([1.0, 2.5])
    ('500000', 'yarn', '1 2.5')
    """
    if isinstance(value, list):
        return named(tuple(map(number_text, value)), between=" ")
    is_whole = isinstance(value, float) and value.is_integer() and value < 1e9
    return f"{value:.0f}" if is_whole else f"{value:g}" if isinstance(value, float) else str(value)


def head_text(checkpoint: "Checkpoint") -> str:
    """Where the weights of the head are: the table of embeddings, or their own."""
    config, params = checkpoint.config, checkpoint.params
    if not config.head:
        return "none"
    tables = [
        params.stored_name(layer, "table")
        for layer, specs in params.specs.items()
        if layer.endswith(".embed") and "table" in specs
    ]
    head = params.specs["head"]
    is_tied = "w" in head and params.stored_name("head", "w") in tables
    return ("the table of embeddings (tied)" if is_tied else "weights of its own") + ", biased" * ("b" in head)


def tokens_text(special: SpecialTokens) -> str:
    """The ids of special tokens.

    >>> tokens_text(SpecialTokens(eos=(2,), bos=1))
    'begin 1, end 2'
    """
    parts = {
        "begin": special.bos,
        "end": " ".join(map(str, special.eos)) or None,
        "padding": special.pad,
        "decoding starts with": special.start,
        "first is always": special.forced_bos,
        "last is always": special.forced_eos,
        "never": " ".join(map(str, special.banned)) or None,
    }
    return ", ".join(f"{name} {ids}" for name, ids in parts.items() if ids is not None)


def named(words: tuple[str, ...], between: str = ", ") -> str:
    """The first few of some words, and how many there are.

    >>> named(tuple("abcdefghij")), named(("cat",))
    ('a, b, c, d, e, f, g, h … (10 in all)', 'cat')
    """
    return between.join(words[:MOST]) + (f" … ({len(words)} in all)" if len(words) > MOST else "")


CELL_NAMES = {
    "tanh": "tanh cells",
    "relu": "ReLU cells",
    "gru": "GRU cells, reset gate after the product",
    "gru-reset-before": "GRU cells, reset gate before the product",
    "lstm": "LSTM cells",
}
BRIDGES = {
    "none": "zeros",
    "identity": "the last states of the encoder",
    "tanh": "tanh(the last states of the encoder · W + b)",
}


def recurrent_facts(config: RecurrentConfig) -> dict[str, str]:
    """The facts of a recurrent model by name, "" for what it does not have.

    >>> from attnkit.model.recurrent_config import RecurrentStack
    >>> decoder = RecurrentStack(1, 1, 4, 1, 4, vocab=9, embedding=3, widths=(4,))
    >>> recurrent_facts(RecurrentConfig("lstm", 4, decoder=decoder))["decoder"]
    '1 layer of LSTM cells, width 4, embeddings of 3, vocabulary 9'
    """
    rows = {}
    for name in config.stacks:
        stack = config.recurrent_stack(name)
        is_even = len(set(stack.widths)) == 1
        parts = (
            f"{counted(stack.layers, 'layer')} of {CELL_NAMES[stack.cell]}",
            f"width {stack.widths[0]:,}" if is_even else "widths " + ", ".join(f"{one:,}" for one in stack.widths),
            "both directions" * stack.is_bidirectional,
            f"embeddings of {stack.embedding:,}",
            f"vocabulary {stack.vocab:,}",
        )
        rows[name] = ", ".join(filter(None, parts))
    decoding, attention, read = config.decoding, "", "[state]"
    if decoding.score != "none":
        score = f"additive of width {decoding.score_width:,}" if decoding.score == "additive" else decoding.score
        state = "before" if decoding.asks_before else "after"
        attention = f"{score}, with the state {state} the token" + ", input feeding" * decoding.input_feeding
        read = "[context; state]"
    read = "[state before; embedding; context]" if decoding.asks_before else read
    return rows | {
        "attention": attention,
        "readout": f"tanh({read} W + b), width {config.width:,}" if decoding.readout_width else "",
        "bridge": f"the decoder begins with {BRIDGES[decoding.bridge]}" if config.encoder else "",
    }
