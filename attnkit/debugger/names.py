"""The site of each name of a dump, by four schemes or a map of the user.

attnkit          the names of a trace: decoder.0.self.weights
Hugging Face     paths of modules: model.layers.0.mlp.up_proj.output, or without its suffix; those of vLLM and SGLang,
                 and nodes of exported graphs: /model/layers.0/mlp/up_proj/MatMul_output_0
TransformerLens  hooks: blocks.0.attn.hook_pattern
llama.cpp        names of its graph or of its weights: kq_soft_max-0, blk.0.attn_q
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

from attnkit import model
from attnkit.checkpoints import Checkpoint
from attnkit.checkpoints.checkpoint import FAMILIES, SAME_AS, fact_of, find_family
from attnkit.checkpoints.config_reader import first_keys, keys_of
from attnkit.checkpoints.label_heads import SUFFIXES
from attnkit.checkpoints.publishing import published_tensors
from attnkit.debugger.modules import Columns, Held, Module, Modules, Specs, build_nodes, find_modules
from attnkit.errors import DataError, counted, suggest
from attnkit.formats.streams import open_source
from attnkit.model.graph.nodes import Node

# how directly a name states a site, the best first
LEAF, CONTAINER, INPUT, OUTER_INPUT, WHOLE, NODE_OF_GRAPH = range(6)


class TensorSource(NamedTuple):
    """The tensor of a dump that holds a site.

    columns  first, end and count: the site is these of so many equal parts of its last axis; None: all of it
    note     what differs by nature, "" for nothing
    dtype    in which it was computed, where that is narrower than the dtype that it has; "" for that dtype
    """

    name: str
    columns: Columns | None = None
    note: str = ""
    dtype: str = ""


@dataclass(frozen=True)
class Located:
    """What the names of a dump are.

    scheme   the kind of most names: attnkit, Hugging Face, TransformerLens or llama.cpp; "" if no name fits any
    family   the family whose tables explain most names, or that of the model
    sources  site -> its tensor, in the order of computation
    unknown  every name that is no site -> why
    """

    scheme: str
    family: str
    sources: dict[str, TensorSource]
    unknown: dict[str, str]


class Claim(NamedTuple):
    """A name that may be the source of a site, and how directly it states it."""

    site: str
    source: TensorSource
    rank: int = LEAF


@dataclass(frozen=True)
class KnownModel:
    """What is known of the model of a dump.

    has_sizes  whether the configuration is that of the model, not of the smallest of its family
    form       of the smallest model: what its config.json has beside sizes
    """

    config: model.Config
    specs: Specs
    raw: Mapping[str, Any]
    nodes: Mapping[str, Node]
    has_sizes: bool = False
    form: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def modules(self) -> Modules:
        """The modules of the published model."""
        return find_modules(self.config, self.specs, self.raw)

    @cached_property
    def fused_modules(self) -> Modules:
        """The modules of the model in vLLM and SGLang."""
        modules = find_modules(self.config, self.specs, self.raw)
        _fuse_projections(modules, self)
        return modules

    def cuts_latents(self, layer: str) -> bool:
        """Whether a layer projects latents, not queries, keys and values."""
        rules = self.config.attention_rules.get(layer)
        return rules is not None and rules.latent is not None

    def cut_heads(self, layer: str) -> list[Held]:
        """Queries, keys and values that are columns of one tensor, or []."""
        rules = self.config.attention_rules[layer]
        if rules.rotation and not self.has_sizes:
            return []
        ends = (rules.heads, rules.heads + rules.kv_heads, count := rules.heads + 2 * rules.kv_heads)
        return [
            Held(f"{layer}.{letter}_projected", (start, end, count))
            for letter, start, end in zip("qkv", (0, *ends), ends, strict=False)
        ]

    def cut_gates(self, layer: str) -> list[Held]:
        """The activated and the linear half of a network in one tensor, or []."""
        specs = self.specs.get(layer, {})
        if any(name not in specs or specs[name].share.is_whole for name in ("w1", "w3")):
            return []
        return [Held(f"{layer}.hidden", (0, 1, 2)), Held(f"{layer}.linear", (1, 2, 2))]

    @property
    def has_whole_logits(self) -> bool:
        """Whether a published model returns all columns of the logits."""
        return all(spec.padding_row is None for spec in self.specs.get("head", {}).values())


def locate_sites(
    names: Sequence[str], checkpoint: Checkpoint | None = None, user_map: Mapping[str, str] | None = None
) -> Located:
    """Find the tensor of a dump that holds each site.

    names       of the dump, in its order
    checkpoint  of the model; None: the family is found from the names
    user_map    name -> site, which counts more than the tables; see `read_map`

    >>> names = ["h.0.attn.c_attn.output", "h.0.mlp.act.output", "ln_f.output"]
    >>> located = locate_sites([*(f"transformer.{name}" for name in names), "loss"])
    >>> located.scheme, located.family, located.sources["decoder.0.self.k_projected"].columns
    ('Hugging Face', 'gpt2', (1, 2, 3))
    >>> located.sources["decoder.0.ffn.activated"].name, located.unknown
    ('transformer.h.0.mlp.act.output', {'loss': 'no site by this name'})
    """
    known = _know(checkpoint) if checkpoint else _find_family(names)
    others = checkpoint.others if checkpoint else ()
    scheme, claims = _claim_all([name for name in names if not _begins_part(name, others)], known)
    chosen = {name: [Claim(site, TensorSource(name), rank=-1)] for name, site in (user_map or {}).items()}
    found = _claim_sites(names, known) | _claimed(claims) | chosen
    best: dict[str, Claim] = {}
    for one in (claim for name in names for claim in found.get(name, ())):
        if one.site not in best or one.rank < best[one.site].rank:
            best[one.site] = one
    unknown = {name: str(claims.get(name) or "no site by this name") for name in names if name not in found}
    is_any = len(unknown) < len(names)
    order = {site: at for at, site in enumerate(known.nodes)}
    located = sorted(best.values(), key=lambda one: order.get(one.site, -1))
    sources = {one.site: one.source for one in located}
    return Located(scheme if is_any else "", known.config.family if is_any else "", sources, unknown)


def read_map(path: str, names: Iterable[str], sites: Iterable[str]) -> dict[str, str]:
    """Read a file of two columns: a name of the dump, and its site.

    names  of the dump; sites: of the model

    Columns are separated by blanks, a tab or a comma; a line that begins with # is a comment. DataError names the line
    that is not so, or whose name or site is unknown or was given before.
    """
    with open_source(path) as source:
        lines = bytes(source.read_all()).decode("utf-8", "replace").splitlines()
    known, existing, found = list(names), list(sites), dict[str, str]()
    for number, line in enumerate(lines, start=1):
        words = re.split(r"\s*[,\t]\s*" if re.search(r"[,\t]", line.strip()) else r"\s+", line.strip())
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        problem = ""
        if len(words) != 2:
            problem = f"{counted(len(words), 'column')} (expected 2: a name of the dump, and a site)"
        elif words[0] not in known:
            problem = f"the dump has no tensor {words[0]!r}{suggest(words[0], known)}"
        elif words[1] not in existing:
            problem = f"the model has no site {words[1]!r}{suggest(words[1], existing)}"
        elif words[1] in found.values():
            problem = f"site {words[1]!r} was given before"
        elif words[0] in found:
            problem = f"tensor {words[0]!r} was given before"
        if problem:
            raise DataError(f"line {number}: {problem}", path)
        found[words[0]] = words[1]
    return found


def _begins_part(name: str, beginnings: tuple[str, ...]) -> bool:
    """Whether a part of a name begins so.

    >>> _begins_part("/vision_model/encoder/Add", ("vision_",)), _begins_part("television_model", ("vision_",))
    (True, False)
    """
    return any(part.startswith(beginnings) for part in re.split(r"[./]", name))


Claims = dict[str, list[Claim] | str]  # a name to its sites, or to why it holds none


def _claim_all(names: Sequence[str], known: KnownModel) -> tuple[str, Claims]:
    """The scheme that explains most names, and its claims."""
    schemes: dict[str, Callable[[Sequence[str], KnownModel], Mapping[str, list[Claim] | str]]] = {
        "attnkit": _claim_sites,
        "Hugging Face": _claim_modules,
        "TransformerLens": _claim_hooks,
        "llama.cpp": _claim_nodes,
    }
    claims = {scheme: claim(names, known) for scheme, claim in schemes.items()}
    scheme = max(claims, key=lambda one: len(_claimed(claims[one])))
    return scheme, dict(claims[scheme])


def _claimed(claims: Mapping[str, list[Claim] | str]) -> dict[str, list[Claim]]:
    return {name: claim for name, claim in claims.items() if not isinstance(claim, str)}


# what is known of a model


def _know(checkpoint: Checkpoint) -> KnownModel:
    specs = checkpoint.params.specs
    return KnownModel(checkpoint.config, specs, checkpoint.raw, build_nodes(checkpoint.config, specs), True)


# the facts that any family needs, for the smallest model of each
SMALLEST: dict[str, Any] = {
    "width": 2, "embedding width": 2, "head width": 2, "heads": 1, "key/value heads": 1, "hidden width": 3,
    "expert width": 3, "experts": 2, "chosen experts": 1, "vocabulary": 4, "longest text": 512,
    "rotated features": 1.0, "image": 4, "patches": 2,
}  # fmt: skip
HEADED = ({}, *({"architectures": [suffix]} for suffix in SUFFIXES.values()))
FEW = 200  # layers
FIRST = ("gpt2", "llama")  # the families that names are first compared with


def _find_family(names: Sequence[str]) -> KnownModel:
    """The family whose tables explain most names, with as many layers as they have."""
    firsts = {name: FIRST_NUMBER.sub("0", CALL.sub("", name), count=1) for name in names}
    unique = [*dict.fromkeys(firsts.values())]
    best, most, claims = _sketches()[0], (0, 0, 0, 0), dict[str, list[Claim]]()
    for known in _sketches():
        found = _claimed(_claim_all(unique, known)[1])
        score = _score(found, known)
        if score > most:
            best, most, claims = known, score, found
    depths: dict[str, int] = {}
    for name, first in firsts.items():
        numbers = [int(number) + 1 for number in FIRST_NUMBER.findall(name)[:1] + CALL.findall(name)]
        is_named = FIRST_NUMBER.search(name) and first in claims and claims[first][0].rank <= CONTAINER
        if is_named and (layer := OF_LAYER.match(claims[first][0].site)):
            stack = layer[1]
            depths[stack] = min(max(depths.get(stack, 1), *numbers), FEW)
    return _sketch(best.config.family, best.form, depths)


def _score(found: Mapping[str, Sequence[Claim]], known: KnownModel) -> tuple[int, int, int, int]:
    """How well a family explains names: how many, and as how many results.

    Then with fewer sites of one result.

    Of families that explain them equally, the smaller one.

    Logits do not count: where a bias is added outside of the last module, they are not its output.
    """
    names = [name for name, claims in found.items() if {one.site for one in claims} != {"logits"}]
    leaves = [(name, one) for name in names for one in found[name] if one.rank == LEAF]
    columns = [one.source.columns or () for _, one in leaves]  # parts that alternate are one result
    results = {(name, one if len(one) < 4 else ()) for (name, _), one in zip(leaves, columns, strict=True)}
    sites = {one.site for _, one in leaves}
    return len(names), len(results), -len(sites), -len(known.specs)


OF_LAYER = re.compile(r"(\w+)\.\d+\.")  # a site of a numbered layer, not of a convolution
FIRST_NUMBER = re.compile(r"(?<![\w#])[0-9]{1,4}(?!\w)")


@cache
def _sketches() -> list[KnownModel]:
    """The smallest models of all families, by themselves and with each kind of head."""
    families = {name: find_family(name) for name in (*FIRST, *FAMILIES) if name not in SAME_AS}
    return [
        _sketch(name, form, {})
        for name, family in families.items()
        if fact_of(family, "HAS_OWN_MODULES", True)
        for form in (*HEADED, *fact_of(family, "FORMS", ()))
    ]


def _sketch(name: str, form: Mapping[str, Any], depths: Mapping[str, int]) -> KnownModel:
    """The smallest model of a family in one of its forms, by layers of a stack."""
    family = find_family(name)
    fields = fact_of(family, "FIELDS")
    counts = keys_of(fields, "layers")
    sizes = {key: size for fact, size in SMALLEST.items() for key in first_keys(fields, fact)}
    layers = {key: depths.get("decoder" if "decoder" in key else "encoder", 1) for key in counts}
    if "encoder" not in depths:
        layers = dict.fromkeys(counts, depths.get("decoder", 1))
    raw = {**sizes, "num_labels": 2, **fact_of(family, "SMALLEST", {}), **form, "model_type": name, **layers}
    table = published_tensors(raw, strict=False)
    return KnownModel(table.config, table.specs, raw, build_nodes(table.config, table.specs), form=form)


# attnkit


def _claim_sites(names: Sequence[str], known: KnownModel) -> dict[str, list[Claim]]:
    return {name: [Claim(name, TensorSource(name))] for name in names if name in known.nodes or name in IDS}


IDS = ("ids", "decoder.ids")


# Hugging Face

# tensors of modules that are no sites
OTHER_TENSORS = {
    r"dropout|\bdrop\b|_drop\b": "a dropout",
    r"mask": "a mask",
    r"rotary|position_embeddings\.[01]$": "the angles of a rotation",
    r"relative|rel_embeddings|pos_\w+_proj|position_bias|encoder\.LayerNorm": "relative positions",
    r"\.parametrizations\.": "the weight of a module",
    r"position_ids|position_embeddings|\bw?pe\b|cache_position|positions": "positions",
    r"token_type": "segments",
}
SUFFIX = re.compile(r"(?:^|[./])(?P<kind>input|output)s?(?:[._](?P<key>.+?))?(?:_(?:cuda|cpu|npu|xpu|mps)_\d+)?$")
CALL = re.compile(r"#([0-9]{1,4})(?!\w)")


class NamePart(NamedTuple):
    """A part of what a module reads or returns: its path, call and key."""

    path: str
    call: int
    is_output: bool
    key: str


def _claim_modules(names: Sequence[str], known: KnownModel) -> Claims:
    is_fused = any(re.search(r"\.(qkv|gate_up)_proj\b", name) for name in names)
    modules = known.fused_modules if is_fused else known.modules
    exported = _claim_exported([name for name in names if EXPORTED.fullmatch(name)], modules, known)
    given, repeated = {*names}, {CALL.sub("", name) for name in names if CALL.search(name)}
    others = [name for name in names if name not in exported]
    return exported | {name: _claim_module(name, given, repeated, modules, known) for name in others}


def _claim_module(
    name: str, names: Collection[str], repeated: Collection[str], modules: Modules, known: KnownModel
) -> list[Claim] | str:
    """The sites of a name, or why it has none.

    repeated  the names that have further calls, without the number of a call
    """
    is_known = False
    for part, path in _read_name(name):
        calls = modules.get(path)
        is_known |= calls is not None and path != ""
        if calls is not None:
            called = calls[part.call : part.call + 1] or _find_shared(name, names, part, path, modules)
            claims = [claim for module in called for claim in _claim_part(name, part, module, known)]
            if claims and len(calls) > 1 and CALL.sub("", name) not in repeated:
                return "of one call of a module that is called several times, under the name of all"
            if claims:
                return claims
    kind = next((words for pattern, words in OTHER_TENSORS.items() if _compiled(pattern).search(name)), "")
    return kind or "another input or output of a module" * is_known


@lru_cache(maxsize=10_000)  # each name is read for every family
def _read_name(name: str) -> list[tuple[NamePart, str]]:
    """The parts of modules that a name may be, each with a path of its module."""
    return [(part, path) for part in _split_name(name) for path in _without_prefixes(part.path)]


def _split_name(name: str) -> Iterator[NamePart]:
    """The ways to read a name as a part of a module.

    >>> [(part.path, part.key) for part in _split_name("layer.0.output.0")]
    [('layer.0.output.0', ''), ('layer.0', '0'), ('layer.0.output', '0'), ('', 'layer.0.output.0')]
    """
    counter = CALL.search(name)
    call, plain = int(counter[1]) if counter else 0, CALL.sub("", name).replace("/", ".")
    yield NamePart(plain, call, True, "")
    for start in reversed([match.start() for match in re.finditer(r"(?:^|\.)(?=(?:in|out)puts?(?:[._]|$))", plain)]):
        if match := SUFFIX.search(plain, start):
            yield NamePart(plain[:start], call, match["kind"] == "output", match["key"] or "")
    path, _, number = plain.rpartition(".")
    if number.isdecimal():
        yield NamePart(path, call, True, number)
    yield NamePart("", call, True, plain)


def _without_prefixes(path: str) -> Iterator[str]:
    """A path, and what remains of it without its first parts up to a number.

    "" remains of the name of a class alone.

    >>> list(_without_prefixes("Gpt.h.0.attn")), list(_without_prefixes("Gpt"))
    (['Gpt.h.0.attn', 'h.0.attn', '0.attn'], ['Gpt', ''])
    """
    if re.fullmatch(r"[A-Z]\w+|", path):
        yield from dict.fromkeys((path, ""))
        return
    first = ""
    while path and not first.isdecimal():
        yield path
        first, _, path = path.partition(".")


def _claim_part(name: str, part: NamePart, module: Module, known: KnownModel) -> list[Claim]:
    if part.is_output:
        held = module.outputs.get(part.key, [])
        rank = LEAF if module.is_leaf else CONTAINER
    else:
        held = [Held(module.inputs[part.key])] if part.key in module.inputs else module.states.get(part.key, [])
        rank = INPUT if module.is_leaf else OUTER_INPUT
    if held or not module.stacks:
        return [Claim(one.site, TensorSource(name, one.columns), rank) for one in held]
    return _claim_whole(name, part, module.stacks, known)


def _find_shared(name: str, names: Collection[str], part: NamePart, path: str, modules: Modules) -> list[Module]:
    """The module that a further call of the first layer's stands for."""
    later, other = (FIRST_NUMBER.sub(str(part.call), text, count=1) for text in (path, CALL.sub("", name)))
    return modules[later][:1] if later != path and later in modules and other not in names else []


# the keys of what a whole model reads and returns -> a site, for the stack and the number that the key names
WHOLE_KEYS = {
    r"logits": "logits",
    r"pooler_output": "pooler",
    r"input_ids": "{ids}",
    r"decoder_input_ids": "decoder.ids",
    r"extract_features": "encoder.feature_norm",
    r"(?:(encoder|decoder)_)?last_hidden_state": "{last}",
    r"(?:(encoder|decoder)_)?hidden_states[._](?P<number>\d{1,4})": "{state}",
    r"(?:(encoder|decoder)_)?attentions[._](?P<number>\d{1,4})": "{stack}.{number}.self.weights",
    r"cross_attentions[._](?P<number>\d{1,4})": "decoder.{number}.cross.weights",
    r"(?:past_key_values|present)[._](?P<number>\d{1,4})[._](?:decoder[._])?(?:0|key)": "{stack}.{number}.self.k",
    r"(?:past_key_values|present)[._](?P<number>\d{1,4})[._](?:decoder[._])?(?:1|value)": "{stack}.{number}.self.v",
}


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of a table: they are more than the module re keeps compiled."""
    return re.compile(pattern)


def _claim_whole(name: str, part: NamePart, stacks: Sequence[str], known: KnownModel) -> list[Claim]:
    for pattern, site in WHOLE_KEYS.items():
        match = _compiled(pattern).fullmatch(part.key)
        if match is None:
            continue
        named = match[1] if match.re.groups > len(match.re.groupindex) else None
        if named is None and len(stacks) > 1 and "{state}" in site:
            return []
        stack = named or stacks[-1]
        if stack not in known.config.stacks or (site == "logits" and not known.has_whole_logits):
            return []
        number = int(match["number"]) if "number" in match.re.groupindex else 0
        ids = "decoder.ids" if stacks[0] == "decoder" and known.config.encoder else "ids"
        states = _hidden_states(stack, known)
        state = states[number] if number < len(states) else ""
        last = f"{stack}.norm" if known.config.stack(stack).final_norm else states[-1]
        found = site.format(ids=ids, last=last, state=state, stack=stack, number=number)
        return [Claim(found, TensorSource(name), WHOLE)] if found in known.nodes or found in IDS else []
    return []


def _hidden_states(stack: str, known: KnownModel) -> list[str]:
    """The sites of the hidden states that a published model returns."""
    config, states = known.config, list[str]()
    for step in config.plan(stack):
        number = model.parse_layer_name(step.layer)[1]
        if number is None and step.layer.endswith(".norm"):
            break
        states = [*states[: 0 if number is None else number + 1], step.trace_name]
    has_norm = config.stack(stack).final_norm and fact_of(config.family, "RETURNS_LAST_NORM", True)
    if not fact_of(config.family, "RETURNS_EMBEDDINGS", True):
        return [*states[1:], f"{stack}.norm"]
    return [*states[:-1], f"{stack}.norm"] if has_norm else states


# nodes of ONNX graphs that the exporter of TorchScript writes: the path of a module, an operator and its number
EXPORTED = re.compile(r"/(?P<path>.+)/(?P<operator>[A-Za-z]+)(?:_(?P<number>\d+))?_output_\d+")


def _claim_exported(names: Sequence[str], modules: Modules, known: KnownModel) -> Claims:
    """The sites of nodes: the last of a module is its output."""
    nodes: dict[str, list[tuple[str, str]]] = {}
    for name in names:
        if match := EXPORTED.fullmatch(name):
            nodes.setdefault(match["path"].replace("/", "."), []).append((match["operator"], name))
    claims: Claims = dict.fromkeys(names, "a node between sites")
    for path, some in nodes.items():
        module = next((modules[one][0] for one in _without_prefixes(path) if one in modules), None)
        if module and module.is_leaf:
            found = {some[-1][1]: module.outputs.get("", [])}
        elif module and not module.stacks:
            inner = _read_attention(some, module) or _read_sums(some, module)  # attention adds a mask too
            found = {name: [Held(site)] for name, site in inner.items()}
        else:
            continue
        for name, held in found.items():  # the last node of the head has the name of the graph's output
            sources = [
                Claim(one.site, TensorSource(name, one.columns), NODE_OF_GRAPH) for one in held if one.site != "logits"
            ]
            claims |= {name: sources} if sources else {}
    return claims


def _read_attention(nodes: Sequence[tuple[str, str]], module: Module) -> dict[str, str]:
    """The sites of the nodes of attention, which surround its softmax."""
    operators = [operator for operator, _ in nodes]
    weights = [site for site in module.inside if site.endswith(".weights")]
    if operators.count("Softmax") != 1 or len(weights) != 1:
        return {}
    layer, at = weights[0].removesuffix(".weights"), operators.index("Softmax")
    products = [number for number, operator in enumerate(operators) if operator == "MatMul"]
    first = next((number for number in products if number < at), None)
    after = [number for number in products if number > at]
    places = {"weights": at} | ({"heads": after[0]} if after else {})
    if first is not None:  # not in a graph that onnxruntime has optimized, where one node computes all that follow
        scales = [number for number in range(first, at) if operators[number] in ("Mul", "Div")]
        sums = [number for number in range(first, at) if operators[number] == "Add"]
        places |= {"scores": first, "scaled": scales[0]} if scales else {"scaled": first}
        places |= {"masked": sums[-1]} if sums else {}
        rotated = [number for number in range(first) if operators[number] == "Add"]
        rotated.sort(key=lambda number: _number_of(nodes[number][1]))  # as they were exported
        places |= dict(zip("qk", rotated, strict=True)) if len(rotated) == 2 else {}
    return {nodes[number][1]: f"{layer}.{site}" for site, number in places.items()}


def _number_of(node: str) -> int:
    """The number of a node among those of its operator.

    >>> _number_of("/h.0/attn/Add_output_0"), _number_of("/h.0/attn/Add_12_output_0")
    (0, 12)
    """
    match = EXPORTED.fullmatch(node)
    return int(match["number"] or 0) if match else 0


def _read_sums(nodes: Sequence[tuple[str, str]], module: Module) -> dict[str, str]:
    """The sites of residuals and gates, which modules of modules compute themselves."""
    found: dict[str, str] = {}
    for operator, kind in (("Add", ".residual"), ("Mul", ".gated")):
        names = {_number_of(name): name for other, name in nodes if other == operator}
        sites = [site for site in module.inside if site.endswith(kind)]
        if [*names] == [*range(len(sites))]:  # none of them is missing, as in a graph that was optimized
            found |= dict(zip(names.values(), sites, strict=True))
    return found


def _fuse_projections(modules: Modules, known: KnownModel) -> None:
    """Change the modules of a published model to those of vLLM and SGLang.

    Queries, keys and values are one projection there, gate and up too; a norm returns the sum that it normalized beside
    its result, and a layer its last sum in two parts.
    """
    for path, (module, *_) in list(modules.items()):
        if not module.is_leaf:
            module.inputs = {}
        site = module.outputs[""][0].site if module.outputs.get("") else ""
        node, parent = known.nodes.get(site), path.rpartition(".")[0]
        if node is None:
            continue
        if node.kind == "norm":
            module.outputs["1"], module.inputs = [Held(node.inputs[0])], {}
        elif site.endswith(".self.q_projected") and not known.cuts_latents(node.layer):
            layer, parts = node.layer, known.cut_heads(node.layer)
            modules[f"{parent}.qkv_proj"] = [Module({"": parts, "0": parts}, module.inputs)]
            joined, rotated = [Held(f"{layer}.joined")], {"0": [Held(f"{layer}.q")], "1": [Held(f"{layer}.k")]}
            modules[f"{parent}.attn"] = [Module({"": joined, "0": joined})]
            modules[f"{parent}.rotary_emb"] = [Module(rotated)]
        elif site.endswith(".ffn.linear") and path.endswith("up_proj"):
            halves = [Held(f"{node.layer}.hidden", (0, 1, 2)), Held(site, (1, 2, 2))]
            gated = [Held(f"{node.layer}.gated")]
            modules[f"{parent}.gate_up_proj"] = [Module({"": halves, "0": halves}, module.inputs)]
            modules[f"{parent}.act_fn"] = [Module({"": gated, "0": gated})]
        elif site.endswith(".ffn.residual") and not module.stacks:
            output = [Held(f"{node.site.removesuffix('residual')}output")]
            module.outputs = {"": output, "0": output, "1": [Held(node.inputs[1])]}
    logits = [Held("logits")]
    modules["logits_processor"] = [Module({"": logits, "0": logits})]
    modules["forward_batch_info.input_ids"] = [Module({"": [Held("ids")]})]


# TransformerLens: HookedTransformer, HookedEncoder and HookedEncoderDecoder, and TransformerBridge with hook_out

HOOK = re.compile(
    r"(?:(?:blocks|(?P<stack>encoder|decoder)(?:_blocks)?)\.(?P<number>\d+)\.|(?P<only>encoder|decoder)_)?(?P<hook>.*hook_.*)"
)
# hook -> site; {layer} is STACK.N, {input} what the layer reads, {inner} what its second linear layer reads
HOOKS = {
    r"(?:embed\.)?hook_embed|embed\.hook_out": "{stack}.embed.words",
    r"embed\.hook_token_type_embed|token_type_embed\.hook_out": "{stack}.embed.types",
    r"(?:embed\.)?hook_pos_embed|pos_embed\.hook_out": "{stack}.positions.rows",
    r"hook_full_embed|embed_ln\.hook_out": "{stack}.embed_norm",
    r"hook_resid_pre|hook_in": "{input}",
    r"(?:self_)?attn\.hook_([qkv])|(?:self_)?attn\.([qkv])\.hook_out": "{layer}.self.{letter}_projected",
    r"(?:self_)?attn\.hook_rot_([qk])": "{layer}.self.{letter}",
    r"(?:self_)?attn\.hook_attn_scores": "{layer}.self.masked",
    r"(?:self_)?attn\.hook_pattern": "{layer}.self.weights",
    r"(?:self_)?attn\.hook_z": "{layer}.self.heads",
    r"hook_attn_out|(?:self_)?attn\.(?:o\.)?hook_out": "{layer}.self.output",
    r"hook_resid_mid": "{layer}.self.residual",
    r"cross_attn\.hook_([qkv])|cross_attn\.([qkv])\.hook_out": "{layer}.cross.{letter}_projected",
    r"cross_attn\.hook_attn_scores": "{layer}.cross.masked",
    r"cross_attn\.hook_pattern": "{layer}.cross.weights",
    r"cross_attn\.hook_z": "{layer}.cross.heads",
    r"hook_cross_attn_out|cross_attn\.(?:o\.)?hook_out": "{layer}.cross.output",
    r"hook_resid_mid_cross|hook_resid_mid2": "{layer}.cross.residual",
    r"ln([123])\.hook_out": "{layer}.norm{letter}",
    r"mlp\.hook_pre|mlp\.gate\.hook_out": "{layer}.ffn.hidden",
    r"mlp\.hook_pre_linear": "{layer}.ffn.linear",
    r"mlp\.in\.hook_out": "{up}",
    r"mlp\.hook_post": "{inner}",
    r"hook_mlp_out|mlp\.hook_out": "{layer}.ffn.output",
    r"hook_resid_post": "{layer}.ffn.residual",
    r"hook_normalized_resid_post": "{layer}.norm2",
    r"hook_out": "{last}",
    r"ln_final\.hook_out": "{stack}.norm",
    r"hook_unembed|unembed\.hook_out": "logits",
    r"pooler\.hook_pooler_out": "pooler",
}
# hooks of TransformerBridge on a model whose norms follow its sub-layers
POST_NORM_HOOKS = {
    r"hook_embed": "{stack}.embed_norm",
    r"hook_attn_out|attn\.hook_out": "{layer}.norm1",
    r"attn\.hook_attn_scores": "{layer}.self.weights",
    r"hook_resid_mid": "{layer}.ffn.residual",
    r"hook_resid_post": "{last}",
    r"mlm_head\.hook_out": "head.hidden",
    r"ln_final\.hook_out": "head.norm",
}
# hooks of numbers that no site has
OTHER_HOOKS = {
    "hook_normalized": "a norm before its weight and bias",
    "hook_scale": "the standard deviation in a norm",
    "hook_result": "the output of each head by itself",
    "hook_q_input": "a copy of the input for each head",
    "hook_k_input": "a copy of the input for each head",
    "hook_v_input": "a copy of the input for each head",
    "hook_attn_in": "a copy of the input for each head",
    "hook_mlp_in": "a copy of the input of the network",
}


def _claim_hooks(names: Sequence[str], known: KnownModel) -> Claims:
    claims: Claims = {}
    is_bridge = any(name.endswith(".hook_in") for name in names)
    table = HOOKS if known.config.norm_first or not is_bridge else POST_NORM_HOOKS | HOOKS | POST_NORM_HOOKS
    for name in names:
        match = HOOK.fullmatch(name)
        if match is None:
            continue
        stack = next((one for one in (match["stack"], match["only"]) if one in known.config.stacks), "")
        found = _fill(table, match["hook"], known, stack or known.config.stacks[-1], match["number"])
        kind = match["hook"].rpartition(".")[2]
        if is_bridge and known.config.family == "t5" and re.fullmatch(r"decoder\.\d+\.self\.masked", found):
            claims[name] = "scores before the causal mask"
            continue
        claims[name] = [Claim(found, TensorSource(name))] if found else OTHER_HOOKS.get(kind, "")
    return claims


def _fill(table: Mapping[str, str], text: str, known: KnownModel, stack: str, number: str | None) -> str:
    """The site in a row of a table whose pattern fits a name, or ""."""
    for pattern, site in table.items():
        match = _compiled(pattern).fullmatch(text)
        if match is None or (
            (number is None) != (re.search(r"\{(layer|input|inner|up|last|attended|scores)\}", site) is None)
        ):
            continue
        layer = f"{stack}.{number}"
        is_gated = f"{layer}.ffn.gated" in known.nodes
        inside = [node for site, node in known.nodes.items() if site.startswith(f"{layer}.")]
        found = site.format(
            stack=stack,
            layer=layer,
            letter=next((letter for letter in match.groups() if letter), ""),
            input=inside[0].inputs[0] if inside else "",
            inner=f"{layer}.ffn.{'gated' if is_gated else 'activated'}",
            up=f"{layer}.ffn.{'linear' if is_gated else 'hidden'}",
            attended=f"{layer}.self.residual" if known.config.norm_first else f"{layer}.norm1",
            scores=f"{layer}.self.{'scaled' if known.config.family in SCALED_QUERIES else 'scores'}",
            embedded=f"{stack}.{'positions' if known.config.embed_norm else 'embed.words'}",
            last=inside[-1].site if inside else "",
        )
        return found if found in known.nodes else ""
    return ""


# llama.cpp

# node of the graph, without the number of its layer -> site
NODES = {
    r"(?:inp_)?embd": "{embedded}",
    r"pos_embd|position_embd": "{stack}.positions.rows",
    r"inpL": "{stack}.positions",
    r"inp_norm|token_embd_norm": "{stack}.embed_norm",
    r"token_embd": "{stack}.embed.words",
    r"token_types": "{stack}.embed.types",
    r"attn_norm": "{layer}.norm1",
    r"attn_([qkv])": "{layer}.self.{letter}_projected",
    r"kq": "{scores}",
    r"kq_soft_max(?:_ext)?": "{layer}.self.weights",
    r"kqv": "{layer}.self.heads",
    r"kqv_merged_cont": "{layer}.self.joined",
    r"attn_out(?:put)?": "{layer}.self.output",
    r"attn_output_norm": "{layer}.norm1",
    r"ffn_inp": "{attended}",
    r"ffn_norm": "{layer}.norm2",
    r"ffn_up(?:_b)?": "{up}",
    r"ffn_gate(?:_b)?": "{layer}.ffn.hidden",
    r"ffn_(?:silu|gelu|relu)": "{layer}.ffn.activated",
    r"ffn_(?:gate_par|swiglu|geglu|reglu)": "{layer}.ffn.gated",
    r"ffn_(?:moe_)?out|ffn_down(?:_b)?": "{layer}.ffn.output",
    r"ffn_moe_logits(?:_biased)?": "{layer}.ffn.router",
    r"ffn_moe_topk": "{layer}.ffn.chosen",
    r"l_out|layer_output_norm": "{last}",
    r"result_norm|output_norm": "{stack}.norm",
    r"result_output|output": "logits",
}
NODE = re.compile(
    r"(?:(?P<stack>enc|dec)\.)?(?:blk\.(?P<layer>\d+)\.)?(?P<name>\w+?)(?:-(?P<number>\d+))?"
    r"(?: \(reshaped\))?(?P<call>#\d+)?(?:\.(?:weight|output))?"
)
FUSED = ("wqkv", "wqkv_b", "bqkv", "attn_qkv")
SCALED_QUERIES = (
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
)  # families whose queries llama.cpp scales, not scores
TABLES = ("ffn_gelu", "ffn_geglu")  # computed by a table of float16
WRITTEN = ("Qcur", "Kcur", "Vcur", "kqv_out")  # whose sites depend on how often they are written


def _claim_nodes(names: Sequence[str], known: KnownModel) -> Claims:
    claims: Claims = {}
    writes: dict[tuple[str, str], list[str]] = {}
    for name in names:
        match = NODE.fullmatch(name)
        if match is None:
            continue
        stacks = {"enc": "encoder", "dec": "decoder", None: known.config.stacks[-1]}
        node, stack, number = match["name"], stacks[match["stack"]], match["layer"] or match["number"]
        layer = f"{stack}.{number}.self"
        if node in WRITTEN and layer in known.config.attention_rules:
            writes.setdefault((layer, node), []).append(name)
        elif node in FUSED and layer in known.config.attention_rules:
            has_bias = any(name.replace("wqkv", biased) in names for biased in ("wqkv_b", "bqkv"))
            cut = [Claim(held.site, TensorSource(name, held.columns)) for held in known.cut_heads(layer)]
            claims[name] = BEFORE_BIAS if node == "wqkv" and has_bias else cut or "columns of unknown sizes"
        elif node in AFTER and any(name.replace(node, later) in names for later in AFTER[node]):
            claims[name] = BEFORE_BIAS
        elif node == "ffn_up" and (halves := known.cut_gates(f"{stack}.{number}.ffn")):
            claims[name] = [Claim(held.site, TensorSource(name, held.columns)) for held in halves]
        elif site := _fill(NODES, node, known, stack, number):
            claims[name] = [Claim(site, TensorSource(name, dtype="float16" if node in TABLES else ""))]
    for (layer, node), some in writes.items():
        sites = _read_writes(layer, node, some, names, known)
        for name in some:
            claims[name] = [Claim(sites[name], TensorSource(name))] if name in sites else "written again later"
    return claims


BEFORE_BIAS = "a product before its bias is added"
# a product -> the names of its sum with a bias, if it has one
AFTER = {
    "ffn_moe_logits": ("ffn_moe_logits_biased",),
    "ffn_up": ("ffn_up_b",),
    "ffn_gate": ("ffn_gate_b",),
    "ffn_down": ("ffn_down_b", "ffn_out"),
}


def _read_writes(layer: str, node: str, some: Sequence[str], names: Sequence[str], known: KnownModel) -> dict[str, str]:
    """The sites of a node that is written several times."""
    if node == "kqv_out":
        is_older = any(name.startswith("kqv_merged_cont") for name in names)
        sites = [f"{layer}.output"] if is_older else [f"{layer}.joined", f"{layer}.output"]
        return dict(zip(some, sites, strict=False))
    letter = node[0].lower()
    is_rotated = node != "Vcur" and known.config.attention_rules[layer].rotation
    if node == "Qcur" and known.config.family in SCALED_QUERIES:
        keys = [name for name in names if name.startswith(some[0].replace("Qcur", "Kcur")) and "(" not in name]
        some = some[: -1 if len(some) > len(keys) or len(some) == 1 else None]
        if not some:
            return {}
    if not is_rotated:
        return {some[-1]: f"{layer}.{letter}_projected"}
    return {**({some[-2]: f"{layer}.{letter}_projected"} if len(some) > 1 else {}), some[-1]: f"{layer}.{letter}"}
