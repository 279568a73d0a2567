"""The modules of a published model by path, with the sites of inputs and outputs.

The paths follow from the names of the parameters: `layers.0.self_attn.q_proj.weight` belongs to the module
`layers.0.self_attn.q_proj`, whose output is the site that this weight computes, and whose input is the site that it
reads. What a module of modules returns follows from the order of the nodes: the last node inside it, and the nodes
after that one which need no parameters and nothing from outside.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from attnkit import model
from attnkit.checkpoints.checkpoint import CONFIG, Family, fact_of, find_family, import_family, map_layers
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.weights import TensorSpec, expand_layers
from attnkit.model.dtypes import Array
from attnkit.model.graph.nodes import Inputs, Node
from attnkit.model.passes.model_graph import model_graph

Specs = Mapping[str, Mapping[str, TensorSpec]]
# first, end and count: these of so many equal parts of the last axis; and the number of groups that have such parts
Columns = tuple[int, ...]

MAIN = ("", "0")  # keys of the only or first output
READ = ("", "0", "hidden_states", "input")  # keys of the only or first input
ACTIVATIONS = ("act", "act_fn", "activation", "activation_fn", "intermediate_act_fn", "transform_act_fn",
               "pooler_activation")  # fmt: skip
DROPOUTS = ("dropout", "attn_dropout", "attention_dropout")  # of the weights of attention, beside q, k and v
# operation -> the parameters by whose names a module that computes it is found
PARAMETERS: dict[str, tuple[str, ...]] = {
    "words": ("table",),
    "types": ("types",),
    "rows": ("table",),
    "norm": ("gamma",),
    "pooler": ("w",),
    "loop": ("input",),
    "alignment": ("va",),
    "probe": ("probe",),
}
UNTIED = {"tie_word_embeddings": False, "scale_decoder_outputs": False}


class Held(NamedTuple):
    """What a tensor of a module holds: a site, or columns that are one."""

    site: str
    columns: Columns | None = None


@dataclass
class Module:
    """One call of a module.

    outputs, inputs  key -> what the tensor holds; the key is "" for the only one, else its number or name
    states           key of an input -> the states of recurrent layers that it holds
    is_leaf          whether it has a parameter of its own
    stacks           the stacks that a module of the whole model contains, () for one within a layer
    inside           the sites that a module of modules computes, in their order
    """

    outputs: dict[str, list[Held]] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    states: dict[str, list[Held]] = field(default_factory=dict)
    is_leaf: bool = True
    stacks: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()


Modules = dict[str, list[Module]]  # path -> its calls in one pass


def build_nodes(config: model.Config, specs: Specs) -> Mapping[str, Node]:
    """The nodes of a configuration by site, in the order of computation."""
    cut, ids = config.patches, np.zeros((1, 1), np.int64)
    image = np.zeros((1, cut.channels, cut.height, cut.width), np.float32) if cut else None
    core = model.Model(config, {layer: dict.fromkeys(params, ids) for layer, params in specs.items()})
    inputs = Inputs(ids=None if cut else ids, target=ids, image=image, features=_smallest_features(config))
    return model_graph(core, inputs).nodes


def _smallest_features(config: model.Config) -> Array | None:
    """What a model of sounds reads of the shortest one, or None."""
    if (sound := config.sound) is None:
        return None
    frames, channels = sound.frames_before("", 1), [sound.spectrogram.mels] if sound.spectrogram else []
    return np.zeros((1, frames, *channels), np.float32)


def find_modules(config: model.Config, specs: Specs, raw: Mapping[str, object]) -> Modules:
    """The modules of a model, from its parameters by layer.

    raw  the values of config.json

    >>> from attnkit.checkpoints.publishing import published_tensors
    >>> raw = {"model_type": "gpt2", "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 8, "vocab_size": 9}
    >>> table = published_tensors(raw)
    >>> modules = find_modules(table.config, table.specs, raw)
    >>> modules["h.0.mlp.c_fc"][0].outputs[""], modules["h.0.mlp.c_fc"][0].inputs[""]
    ([Held(site='decoder.0.ffn.hidden', columns=None)], 'decoder.0.norm2')
    >>> modules["h.0"][0].outputs[""]
    [Held(site='decoder.0.ffn.residual', columns=None)]
    """
    if not raw.get("model_type"):
        return _Finder(config, specs).find([])
    reader = ConfigReader({**raw, **UNTIED}, CONFIG)  # the head under the names of one with a table of its own
    family = import_family(reader)
    untied = expand_layers(config, map_layers(family, reader, config))
    own = {"head": untied["head"]} if "head" in specs else {}
    return _Finder(config, {**specs, **own}).find([prefix.removesuffix(".") for prefix in fact_of(family, "PREFIXES")])


class ModuleParameter(NamedTuple):
    """A parameter: its module and layer, and what the output of the module holds."""

    path: str
    layer: str
    held: Held
    is_weight: bool


class _Finder:
    def __init__(self, config: model.Config, specs: Specs) -> None:
        self.config = config
        self.family = find_family(config.family)
        self.specs = specs
        self.nodes = build_nodes(config, specs)
        self.names = list(self.nodes)
        self.order = {site: at for at, site in enumerate(self.names)}
        self.entries = list(dict.fromkeys(self._read_entries()))
        self.computed = {entry.held.site for entry in self.entries}
        self.calls: dict[str, dict[str, int]] = {}  # path -> the layers that it computes, and by which call
        for entry in self.entries:
            calls = self.calls.setdefault(entry.path, {})
            if entry.layer not in calls:
                calls[entry.layer] = self._call_number(entry, calls)

    def find(self, prefixes: Iterable[str]) -> Modules:
        """The modules by path; prefixes: the paths of the model without its head."""
        modules: Modules = {}
        for entry in self.entries:
            if entry.is_weight:
                self._add_leaf(modules, entry)
        for path in {entry.path: None for entry in self.entries if self.nodes[entry.held.site].kind == "loop"}:
            modules[path] = [self._describe_recurrent([*self.calls[path]])]
        for path, calls in self._group_by_container().items():
            if path not in modules:
                modules[path] = [self._describe_container(sites) for sites in calls]
        inner, whole = (self._describe_container(self.names) for _ in range(2))
        if "logits" in self.nodes:
            whole.outputs |= {key: self._hold("logits") for key in MAIN}
        return {**{path: [inner] for path in prefixes}, **modules, "": [whole]}

    def _describe_recurrent(self, layers: Sequence[str]) -> Module:
        """A torch.nn.RNN, GRU or LSTM of some layers.

        The module returns its last states beside the states of all tokens.

        The layers and directions of states (L, B, H) are one axis. Of a module that is called for each token, the last
        states are those of the token.
        """
        first, last = (self.nodes[f"{layer}.state"] for layer in (layers[0], layers[-1]))
        each, of_token = len(last.options["directions"]), f"{last.layer}.last_state" not in self.nodes
        module = Module({key: [Held(last.site)] for key in MAIN}, dict.fromkeys(READ, first.inputs[0]))
        if of_token:
            module.inputs = dict.fromkeys(READ, f"{first.layer}.input")
        names = [name for name in ("state", "cell") if f"{last.layer}.{name}" in self.nodes]
        for at, name in enumerate(names):
            key = f"1.{at}" if len(names) > 1 else "1"
            before = "previous" if name == "state" else f"previous_{name}"
            for number, layer in enumerate(layers):
                columns = (number * each, (number + 1) * each, len(layers) * each)
                site = f"{layer}.{name}" if of_token else f"{layer}.last_{name}"
                module.outputs.setdefault(key, []).append(Held(site, columns))
                begins = [f"{layer}.{before}"] if of_token else self.nodes[f"{layer}.{before}"].inputs[1:]
                module.states.setdefault(key, []).extend(Held(one, columns) for one in begins)
        return module

    def _call_number(self, entry: ModuleParameter, calls: Mapping[str, int]) -> int:
        """The call that computes a layer, perhaps with the norm of a parallel block.

        A new one, or that of another norm of the same input.
        """
        reads = self.nodes[entry.held.site].inputs
        alike = [one for one in calls if one in self.nodes and self.nodes[one].inputs == reads]
        return calls[alike[0]] if alike and entry.held.site == entry.layer else len({*calls.values()})

    def _end_of(self, site: str) -> str:
        """The site that the module of a weight returns: a norm may apply a gate, too."""
        after = next((one for one in self.nodes.values() if one.kind == "gated" and one.inputs[0] == site), None)
        return after.site if after and self.nodes[site].kind == "norm of groups" else site

    def _hold(self, site: str) -> list[Held]:
        """What the output of a module holds; nothing if a row is added to it elsewhere."""
        specs = self.specs.get(self.nodes[site].layer, {}).values()
        return [] if any(spec.padding_row is not None for spec in specs) else [Held(site)]

    def _read_entries(self) -> Iterator[ModuleParameter]:
        computed_by = {(node.layer, name): node.site for node in self.nodes.values() for name in _names_of(node)}
        tables: set[str] = set()  # modules of embeddings, which a tied head shares
        for layer, params in self.specs.items():
            for name, spec in params.items():
                site = computed_by.get((layer, "gamma" if name == "beta" else name))
                if site is None:
                    continue
                share, rules = spec.share, self.config.attention_rules.get(layer)
                if rules and rules.latent and share.groups > 1:  # keys and values of each head in turn
                    continue
                is_fused = rules and not rules.latent  # columns of fused heads are counted in heads
                unit = (rules.heads + 2 * rules.kv_heads) // share.total if rules and is_fused else 1
                columns = tuple(unit * one for one in (share.first, share.first + share.units, share.total))
                if "wg" in params or (share.groups > 1 and not rules):  # parts that alternate, by head
                    columns = (share.first, share.first + share.units, share.total, share.groups)
                end = self._end_of(site)
                held = Held(end, None if share.is_whole else columns)
                names = [(one, held) for stored in spec.names for one in renamed(self.family, stored)]
                names += [(one, Held(end)) for stored in spec.names for one in split_module(self.family, stored, name)]
                for published, held in names:
                    path, _, kind = published.rpartition(".")
                    if ".parametrizations." in published:  # a module of torch, which returns the weight of another
                        continue
                    is_weight = kind in ("weight", "gamma") and not name.startswith("b")
                    tables |= {path} if name == "table" else set()
                    if path and not (layer == "head" and is_weight and path in tables):
                        yield ModuleParameter(path, layer, held, is_weight)

    def _add_leaf(self, modules: Modules, entry: ModuleParameter) -> None:
        path, call = entry.path, self.calls[entry.path][entry.layer]
        node = self.nodes[entry.held.site]
        if node.kind != "pooler":
            leaf = call_of(modules, path, call)
            for key in () if self._is_unfinished(entry) else MAIN:
                is_scaled = node.kind == "words" and fact_of(self.family, "SCALES_EMBEDDINGS", False)
                leaf.outputs.setdefault(key, []).append(Held(entry.layer) if is_scaled else entry.held)
            if node.kind not in ("rows", "types", "patches", "alignment") and node.options.get("factor", 1.0) == 1:
                leaf.inputs = self._inputs_of(node)
        if entry.held.site.endswith(".router"):  # whose module returns the choice too
            choice = [f"{node.layer}.{name}" for name in ("gates", "chosen")]
            leaf.outputs |= {str(at): [Held(site)] for at, site in enumerate(choice, start=1)}
            mixed = next(site for site, one in self.nodes.items() if one.kind == "experts" and choice[0] in one.inputs)
            call_of(modules, sibling(path, "experts"), call).outputs = {key: [Held(mixed)] for key in MAIN}
        if trims_windows(node):
            call_of(modules, sibling(path, "padding"), call).outputs = {key: [entry.held] for key in MAIN}
        self._add_activations(modules, entry, call)
        if node.kind == "words" and self.config.positions.kind == "sinusoidal":
            rows = [Held(f"{entry.held.site.partition('.')[0]}.positions.rows")]
            call_of(modules, sibling(path, "embed_positions"), 0).outputs = dict.fromkeys(MAIN, rows)
        if entry.held.site.endswith(".q_projected"):
            for name in DROPOUTS:
                weights = entry.held.site.replace("q_projected", "weights")
                call_of(modules, sibling(path, name), call).inputs = dict.fromkeys(READ, weights)
            rules = self.config.attention_rules.get(entry.layer)
            if rules and rules.rotation:  # of queries, then of keys, as in MLX
                for number, letter in enumerate("qk"):
                    rotated = [Held(f"{entry.layer}.{letter}")]
                    call_of(modules, sibling(path, "rope"), number).outputs = dict.fromkeys(MAIN, rotated)

    def _inputs_of(self, node: Node) -> dict[str, str]:
        """What the module of a node reads: a norm of parts also its gate."""
        gate = ""
        while node.kind in ("gated", "norm of groups"):
            gate = node.inputs[1] if node.kind == "gated" else gate
            before = self.nodes[node.inputs[0]]
            if before.kind not in ("gated", "norm of groups"):
                break
            node = before
        return dict.fromkeys(READ, node.inputs[0]) | ({"1": gate, "gate": gate} if gate else {})

    def _add_activations(self, modules: Modules, entry: ModuleParameter, call: int) -> None:
        """Add the modules that apply the activation of a module beside them.

        Each convolution beside an activation is a further call of that module.
        """
        node = self.nodes[entry.held.site]
        activation = node if node.kind == "pooler" else self._next_node(node)
        if not (activation is node or (activation and activation.kind == "activate")):
            return
        for name in ACTIVATIONS:
            path = sibling(entry.path, name)
            module = call_of(modules, path, len(modules.get(path, ())) if node.kind == "convolve" else call)
            module.outputs = {key: [Held(activation.site)] for key in MAIN}
            module.inputs = dict.fromkeys(READ, node.site) if activation is not node else {}

    def _next_node(self, node: Node) -> Node | None:
        """The node after another, if that one is all it reads."""
        following = next(iter(self.names[self.order[node.site] + 1 :]), "")
        return self.nodes[following] if following and self.nodes[following].inputs == (node.site,) else None

    def _is_unfinished(self, entry: ModuleParameter) -> bool:
        """Whether another module ends what a module begins: bias, row, factor, cap.

        The other may be none.
        """
        options = self.nodes[entry.held.site].options
        if self.nodes[entry.held.site].kind == "causal convolution":
            return True  # a torch.nn.Conv1d gives K − 1 more, which are cut off beside it
        is_scaled = options.get("factor", 1) != 1 and not fact_of(self.family, "SCALES_STATES", False)
        if entry.held.site == "logits" and (is_scaled or options["softcap"]):
            return True
        if trims_windows(self.nodes[entry.held.site]) and options["cut"].size % 2 == 0:
            return True  # a module beside it cuts off the last window
        if entry.layer != "head" or "b" not in self.specs["head"]:
            return not self._hold(entry.held.site)
        biases = {one.path for one in self.entries if one.layer == "head" and not one.is_weight}
        is_inside = any(entry.path == path or entry.path.startswith(f"{path}.") for path in biases)
        return not is_inside or not self._hold(entry.held.site)

    def _group_by_container(self) -> dict[str, list[list[str]]]:
        """The sites inside every module of modules, by its calls."""
        calls: dict[str, dict[int, list[str]]] = {}
        for entry in self.entries:
            parts = entry.path.split(".")
            call = self.calls[entry.path][entry.layer]
            for end in range(1, len(parts) + (not entry.is_weight)):
                calls.setdefault(".".join(parts[:end]), {}).setdefault(call, []).append(entry.held.site)
        groups = {}
        for path, by_call in calls.items():
            sites = [site for some in by_call.values() for site in some]
            is_whole = any(model.parse_layer_name(self.nodes[site].layer)[1] is None for site in sites)
            groups[path] = [sites] if is_whole else list(by_call.values())
        return groups

    def _describe_container(self, sites: Iterable[str]) -> Module:
        found = sorted(set(sites), key=self.order.__getitem__)
        of_stacks = [site for site in found if site.partition(".")[0] in self.config.stacks]
        inside = of_stacks or found
        first, last = self.nodes[inside[0]], self._last_inside(inside)
        within = self.names[self.order[inside[0]] : self.order[last] + 1]
        module = Module(is_leaf=False, inside=tuple(within))
        embeds = [self.nodes[site] for site in inside if site.partition(".")[2] == "embed.words"]
        numbers = {model.parse_layer_name(self.nodes[site].layer)[1] for site in inside}
        if of_stacks and (embeds or len(numbers - {None}) > 1):
            module.stacks = tuple(dict.fromkeys(site.partition(".")[0] for site in inside))
        module.outputs = {key: self._hold(last) for key in MAIN}
        weights = [  # but of a probe, of which torch returns the mean over the heads
            name for name in within if name.endswith(".weights") and not name.startswith("vector.")
        ]
        if len(weights) == 1 and not module.stacks:
            module.outputs[str(fact_of(self.family, "WEIGHTS_OUTPUT", 1))] = [Held(weights[0])]
        if first.kind not in ("rows", "types", "patches") and first.inputs[0] != "head.pooled":
            module.inputs = dict.fromkeys((*READ, "input_ids"), first.inputs[0])
        return module

    def _last_inside(self, inside: list[str]) -> str:
        """The last site that a module of modules computes."""
        first, last = self.order[inside[0]], self.order[inside[-1]]
        known = {*self.names[first : last + 1]}
        operation = self.nodes[inside[0]].kind
        if operation == "norm of heads":
            return inside[-1]
        known |= {*self.nodes[inside[0]].inputs} if operation == "norm" or inside[0].endswith(".router") else set()
        for name in self.names[last + 1 :]:
            is_other = name.partition(".")[0] != inside[-1].partition(".")[0]
            is_other |= self.nodes[name].kind in ("norm", "previous state")  # a norm without parameters
            if is_other or name in self.computed or not {*self.nodes[name].inputs} <= known:
                break
            known.add(name)
            last += 1
        return self.names[last]


def trims_windows(node: Node) -> bool:
    """Whether a node is a convolution that makes as many windows as it reads frames."""
    return "cut" in node.options and isinstance(node.options["cut"].options.padding, str)


def _names_of(node: Node) -> tuple[str, ...]:
    """The parameters by whose names the module is found that returns a site."""
    names: tuple[str, ...] = node.options.get("names", PARAMETERS.get(node.kind, ()))
    return names


def call_of(modules: Modules, path: str, call: int) -> Module:
    """A call of a module, added if there is none yet."""
    calls = modules.setdefault(path, [])
    calls += [Module() for _ in range(len(calls), call + 1)]
    return calls[call]


def sibling(path: str, name: str) -> str:
    """The path of another module beside one.

    >>> sibling("h.0.mlp.c_fc", "act"), sibling("vocab_transform", "activation")
    ('h.0.mlp.act', 'activation')
    """
    parent = path.rpartition(".")[0]
    return f"{parent}.{name}" if parent else name


def split_module(family: Family, published: str, parameter: str) -> list[str]:
    """The name that a parameter alone has since version 5 of transformers.

    [] if no published name is split.

    >>> split_module(find_family("nomic_bert"), "encoder.layers.3.attn.Wqkv.weight", "wk")
    ['layers.3.self_attn.k_proj.weight']
    """
    parts = fact_of(family, "SPLIT_MODULES", {})
    fused = next((name for name in parts if f".{name}." in published), None)
    if fused is None:
        return []
    return renamed(family, published.replace(fused, parts[fused][parameter[1:]]))[-1:]


def renamed(family: Family, published: str) -> list[str]:
    """A published name, and its name since version 5 of transformers.

    >>> renamed(find_family("vit"), "encoder.layer.3.attention.attention.query.weight")[1]
    'layers.3.attention.q_proj.weight'
    """
    newer = published
    for pattern, replacement in fact_of(family, "RENAMED_MODULES", ()):
        newer = re.sub(pattern, replacement, newer)
    return [published] if newer == published else [published, newer]
