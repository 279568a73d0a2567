"""Layers and whole models, composed of the steps of their parts.

A part keeps its steps and its slips; in a whole its steps get a prefix, and read other steps in place of arguments.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from attnkit.checking.definition import Argument, Case, Definition, Way
from attnkit.checking.definitions.attention import POLARITIES, stable_softmax
from attnkit.checking.definitions.formulas import rename, with_names
from attnkit.checking.definitions.heads import ARGUMENTS as OF_HEADS
from attnkit.checking.definitions.heads import BIASES, CAUSAL, CONSTRUCT, MULTIHEAD, ROTARY
from attnkit.checking.definitions.linear import layouts_of, with_bias, within
from attnkit.checking.definitions.networks import FFN, OF_NETWORKS, SWIGLU
from attnkit.checking.definitions.norms import LAYERNORM, RMSNORM
from attnkit.checking.definitions.positions import (
    MOST_TOKENS,
    THETA,
    frequencies,
    scatter_positions,
)
from attnkit.checking.definitions.texts import as_ids
from attnkit.model.exercises.worked_steps import Formula, Steps, work
from attnkit.model.slips import NO_CAUSAL, Slip

POST_NORM = "the norms follow the residuals (post-norm, not pre-norm)"
STACKS = ("layers", "blocks", "h", "layer", "block", "encoder.layers", "decoder.layers")


class Portion(NamedTuple):
    """A part of a whole.

    kind    what its slips are said to be those of
    prefix  of its steps in the whole
    inputs  what stands for its arguments: other steps and arguments, or None
    ways    steps that are otherwise in this whole
    """

    kind: str
    definition: Definition
    prefix: str
    inputs: Mapping[str, str | None]
    ways: Steps = MappingProxyType({})

    def place(self, steps: Steps) -> dict[str, Formula]:
        """Some of its steps as those of the whole."""
        names = {**self.inputs, **{step: self.prefix + step for step in self.definition.steps}}
        return {self.prefix + step: rename(formula, names) for step, formula in steps.items()}

    @property
    def steps(self) -> dict[str, Formula]:
        """Its steps as those of the whole."""
        return self.place({**self.definition.steps, **self.ways})

    @property
    def slips(self) -> list[Slip[Formula]]:
        """The slips that it can have: none of what it lacks, and no number that is stated."""
        absent = [words for name, words in (("bq", "bias"), ("mask", "the mask ")) if self.inputs.get(name, "") is None]
        absent += [] if "masked" in self.ways else [NO_CAUSAL]
        absent += ["over the heads of a token", "are exchanged"] if "memory" in self.inputs else []  # T is not S
        possible = [one for one in self.definition.slips if not any(words in one.name for words in absent)]
        return [one for one in possible if one.number is None or one.value != one.number.stated]

    @property
    def output(self) -> str:
        """Its last step."""
        return self.prefix + [*self.definition.steps][-1]


class Layer(NamedTuple):
    """A layer: its parts in their order, and the sums between them.

    x       the step that it reads
    sums    each before the part that reads it
    others  the slips of its order: other formulas of its steps, by their sentences
    """

    x: str
    parts: Sequence[Portion]
    sums: Mapping[str, Formula]
    others: Mapping[str, Steps]
    output: str

    @property
    def steps(self) -> dict[str, Formula]:
        """All steps in the order of computation."""
        steps: dict[str, Formula] = {}
        pending = dict(self.sums)
        for part in self.parts:
            steps |= {name: pending.pop(name) for name in [*pending] if name in part.inputs.values()}
            steps |= part.steps
        return {**steps, **pending}


def gather_slips(layers: Iterable[Layer]) -> list[Slip[Formula]]:
    """The slips of all layers at once: of their order, then of their portions.

    A part may have several slips of one name; the first is that of all parts of a kind, and so is the second.
    """
    found: dict[tuple[str, int], dict[str, Formula]] = {}
    for layer in layers:
        groups = [[*layer.others.items()]]
        groups += [
            [(f"{part.kind}: {one.name}", part.place(one.changes)) for one in part.slips] for part in layer.parts
        ]
        for group in groups:
            seen: Counter[str] = Counter()
            for words, changes in group:
                one = words, seen[words]
                seen[words] += 1
                found[one] = {**found.get(one, {}), **changes}
    return [Slip(words, changes) for (words, _), changes in found.items()]


def place_ways(ways: Mapping[str, Way], layers: Iterable[Layer]) -> dict[str, Way]:
    """The ways of a convention of attention as those of all layers."""
    parts = [part for layer in layers for part in layer.parts if part.kind.endswith("attention")]
    return {
        name: replace(way, steps={step: one for part in parts for step, one in part.place(way.steps).items()})
        for name, way in ways.items()
    }


def keep(x: str) -> Formula:
    """The formula of a step that is another one."""
    return rename(lambda x: x, {"x": x})


def order_of_pre_norm(
    x: str, norms: Sequence[Portion], parts: Sequence[Portion], sums: Sequence[str]
) -> dict[str, Steps]:
    """Slips of the order of a pre-norm layer: x → norm → part → + x, twice."""
    (norm1, norm2), (first, second), (sum1, sum2) = norms, parts, sums
    return {
        "the first residual is missing": {sum1: keep(first.output)},
        "the second residual is missing": {sum2: keep(second.output)},
        "both residuals are missing": {sum1: keep(first.output), sum2: keep(second.output)},
        "the first norm is missing": {norm1.output: keep(x)},
        "the second norm is missing": {norm2.output: keep(sum1)},
        "both norms are missing": {norm1.output: keep(x), norm2.output: keep(sum1)},
        "the residual is the normalized input": {
            sum1: sum_of(norm1.output, first.output),
            sum2: sum_of(norm2.output, second.output),
        },
        POST_NORM: {
            norm1.output: keep(x),
            norm2.output: keep(sum1),
            sum1: fuse(norm1)(x, first.output),
            sum2: fuse(norm2)(sum1, second.output),
        },
        "the sub-layers read the same input (parallel, not serial)": {
            step: rename(formula, {sum1: x}) for step, formula in norm2.steps.items()
        },
    }


def order_of_post_norm(
    x: str, norms: Sequence[Portion], parts: Sequence[Portion], sums: Sequence[str]
) -> dict[str, Steps]:
    """Slips of the order of a post-norm layer: x → part → + x → norm, twice or more."""
    inputs = [x, *(norm.output for norm in norms)]
    missing = {one: keep(part.output) for one, part in zip(sums, parts, strict=True)}
    return {
        "the residuals are missing": missing,
        "the norms are missing": {norm.output: keep(one) for norm, one in zip(norms, sums, strict=True)},
        "the residuals are added after the norms": {
            **missing,
            **{
                norm.output: fuse(norm)(None, one, then=before)
                for norm, one, before in zip(norms, sums, inputs, strict=False)
            },
        },
    }


def fuse(norm: Portion) -> Any:
    """Make the formula of a norm of a sum, with its parameters."""

    def normalize(x: str | None, y: str, then: str | None = None) -> Formula:
        arguments = norm.definition.arguments
        given = {name: one for name, one in norm.inputs.items() if name != "x" and one is not None}
        read = [*dict.fromkeys([*([x] if x else []), y, *given.values(), *([then] if then else [])])]

        def compute(*values: Any) -> Any:
            found = dict(zip(read, values, strict=True))
            summed = found[y] + (found[x] if x else 0)
            own = {**dict.fromkeys(arguments), **{name: found[one] for name, one in given.items()}, "x": summed}
            result = [*work(norm.definition.steps, own).values()][-1]
            return result + (found[then] if then else 0)

        return with_names(compute, read)

    return normalize


def sum_of(x: str, y: str) -> Formula:
    """The formula of a residual sum of two steps."""
    return rename(lambda x, y: x + y, {"x": x, "y": y})


def with_end(names: Iterable[str], at: str) -> dict[str, str | None]:
    return {name: name + at for name in names}


WEIGHTS = ("wq", "wk", "wv", "wo")
NO_JOINED: dict[str, str | None] = {"wqkv": None, "bqkv": None}


def place_llama_layer(x: str, at: str = "") -> Layer:
    """A pre-norm layer: RMS norm, causal rotary attention, gated network.

    x   the step that it reads
    at  the end of the names of its parameters
    """
    norm1 = Portion("norm", RMSNORM, f"norm1{at}_", {"x": x, "gamma": f"ln1{at}", "eps": "eps"})
    heads = with_end(WEIGHTS, at) | dict.fromkeys((*BIASES, "wqkv", "bqkv", "mask"))
    attention = Portion("attention", ROTARY, f"attention{at}_", {"x": norm1.output, **heads}, CAUSAL["causal"].steps)
    first = f"sum1{at}"
    norm2 = Portion("norm", RMSNORM, f"norm2{at}_", {"x": first, "gamma": f"ln2{at}", "eps": "eps"})
    network = Portion("network", SWIGLU, f"network{at}_", {"x": norm2.output, **with_end(("w1", "w2", "w3"), at)})
    second = f"sum2{at}"
    sums = {first: sum_of(x, attention.output), second: sum_of(first, network.output)}
    others = order_of_pre_norm(x, (norm1, norm2), (attention, network), (first, second))
    return Layer(x, (norm1, attention, norm2, network), sums, others, second)


def place_gpt_layer(x: str, at: str = "") -> Layer:
    """A pre-norm layer: layer norm, causal attention, network, all with biases."""
    norm1 = Portion("norm", LAYERNORM, f"norm1{at}_", {"x": x, "gamma": f"ln1{at}", "beta": f"ln1b{at}", "eps": "eps"})
    heads = with_end((*WEIGHTS, *BIASES), at) | NO_JOINED | {"mask": None}
    attention = Portion("attention", MULTIHEAD, f"attention{at}_", {"x": norm1.output, **heads}, CAUSAL["causal"].steps)
    first = f"sum1{at}"
    norm2 = Portion(
        "norm", LAYERNORM, f"norm2{at}_", {"x": first, "gamma": f"ln2{at}", "beta": f"ln2b{at}", "eps": "eps"}
    )
    of_network = with_end(("w1", "w2", "b1", "b2"), at)
    network = Portion("network", FFN, f"network{at}_", {"x": norm2.output, **of_network}, OF_NETWORKS["gelu"].steps)
    second = f"sum2{at}"
    sums = {first: sum_of(x, attention.output), second: sum_of(first, network.output)}
    others = order_of_pre_norm(x, (norm1, norm2), (attention, network), (first, second))
    return Layer(x, (norm1, attention, norm2, network), sums, others, second)


def place_encoder_layer(x: str, at: str = "", mask: str | None = "mask") -> Layer:
    """A post-norm layer of the paper: attention with a mask, network, all with biases."""
    heads = with_end((*WEIGHTS, *BIASES), at) | NO_JOINED | {"mask": mask}
    attention = Portion("attention", MULTIHEAD, f"attention{at}_", {"x": x, **heads})
    first, second = f"sum1{at}", f"sum2{at}"
    norm1 = Portion(
        "norm", LAYERNORM, f"norm1{at}_", {"x": first, "gamma": f"ln1{at}", "beta": f"ln1b{at}", "eps": "eps"}
    )
    network = Portion("network", FFN, f"network{at}_", {"x": norm1.output, **with_end(("w1", "w2", "b1", "b2"), at)})
    norm2 = Portion(
        "norm", LAYERNORM, f"norm2{at}_", {"x": second, "gamma": f"ln2{at}", "beta": f"ln2b{at}", "eps": "eps"}
    )
    sums = {first: sum_of(x, attention.output), second: sum_of(norm1.output, network.output)}
    others = order_of_post_norm(x, (norm1, norm2), (attention, network), (first, second))
    return Layer(x, (attention, norm1, network, norm2), sums, others, norm2.output)


def place_decoder_layer(x: str, at: str = "", memory: str = "memory", mask: str | None = "memory_mask") -> Layer:
    """A post-norm layer: causal attention, attention to a memory, network."""
    own = with_end((*WEIGHTS, *BIASES), at) | NO_JOINED | {"mask": None}
    attention = Portion("self-attention", MULTIHEAD, f"own{at}_", {"x": x, **own}, CAUSAL["causal"].steps)
    sums = {f"sum1{at}": sum_of(x, attention.output)}
    norm1 = Portion(
        "norm", LAYERNORM, f"norm1{at}_", {"x": f"sum1{at}", "gamma": f"ln1{at}", "beta": f"ln1b{at}", "eps": "eps"}
    )
    of_cross = {name: f"c{name}{at}" for name in (*WEIGHTS, *BIASES)}
    cross = Portion(
        "cross-attention",
        MULTIHEAD,
        f"cross{at}_",
        {"x": norm1.output, **of_cross, **NO_JOINED, "mask": mask, "memory": memory},
        {
            "projected_k": lambda memory, wk, bk: with_bias(memory @ wk, bk),
            "projected_v": lambda memory, wv, bv: with_bias(memory @ wv, bv),
        },
    )
    sums[f"sum2{at}"] = sum_of(norm1.output, cross.output)
    norm2 = Portion(
        "norm", LAYERNORM, f"norm2{at}_", {"x": f"sum2{at}", "gamma": f"ln2{at}", "beta": f"ln2b{at}", "eps": "eps"}
    )
    network = Portion("network", FFN, f"network{at}_", {"x": norm2.output, **with_end(("w1", "w2", "b1", "b2"), at)})
    sums[f"sum3{at}"] = sum_of(norm2.output, network.output)
    norm3 = Portion(
        "norm", LAYERNORM, f"norm3{at}_", {"x": f"sum3{at}", "gamma": f"ln3{at}", "beta": f"ln3b{at}", "eps": "eps"}
    )
    others = order_of_post_norm(x, (norm1, norm2, norm3), (attention, cross, network), [*sums])
    return Layer(x, (attention, norm1, cross, norm2, network, norm3), sums, others, norm3.output)


# names

ATTENTIONS = ("attn", "self_attn", "attention", "mha", "self_attention", "")
NETWORKS = ("ffn", "mlp", "feed_forward", "ff", "")
NORMS = {
    "1": "ln1 ln_1 norm1 input_layernorm attention_norm norm_1 layernorm1 ln_attn rms1",
    "2": "ln2 ln_2 norm2 post_attention_layernorm ffn_norm norm_2 layernorm2 ln_ffn rms2",
    "3": "ln3 ln_3 norm3 norm_3 layernorm3",
}
CROSSES = ("cross_attn", "multihead_attn", "cross_attention", "encoder_attn", "src_attn")


def parameter(axes: str, names: str) -> Argument:
    return Argument(axes, names, role="parameter")


def norm_arguments(number: str, has_bias: bool, at: str = "") -> dict[str, Argument]:
    """The arguments of a norm of a layer."""
    names = NORMS[number]
    weight = within(names, "weight gamma scale g gain") + " " + names
    found = {f"ln{number}{at}": parameter("D", weight)}
    if has_bias:
        found[f"ln{number}b{at}"] = parameter("D", within(names, "bias beta shift offset b"))
    return found


def head_arguments(has_bias: bool, prefixes: Sequence[str] = ATTENTIONS, first: str = "") -> dict[str, Argument]:
    """The arguments of attention in a layer, their names behind `first`."""
    found = {}
    for name, one in OF_HEADS.items():
        if one.role == "parameter" and (has_bias or name.startswith("w")):
            joins = " ".join(first + part for part in one.joins.split())
            found[first + name] = one._replace(names=within(prefixes, one.names), joins=joins)
    return found


def network_arguments(definition: Definition, has_bias: bool = True) -> dict[str, Argument]:
    return {
        name: one._replace(names=within(NETWORKS, one.names))
        for name, one in definition.arguments.items()
        if one.role == "parameter" and (has_bias or name.startswith("w"))
    }


X = Argument("... T D", "x in_features input inputs hidden_states src embeddings tgt h")
HEADS = OF_HEADS["heads"]
EPS = Argument("", "eps epsilon norm_eps layer_norm_eps", role="number")
MASK = Argument("... T T", "mask attn_mask attention_mask src_mask", draw="mask")
OF_LAYER = {
    **CONSTRUCT,
    "D": f"{CONSTRUCT['D']} hidden",
    "F": "d_ff hidden_dim dim_feedforward ffn_dim intermediate_size inner_dim ff_dim",
    "eps": EPS.names,
    "theta": "theta rope_theta base",
}
SIZES = {"T": 5, "D": 12, "F": 7}
CS336_LAYER = {
    "ln1": "ln1.weight", "ln2": "ln2.weight",
    "wq": "attn.q_proj.weight", "wk": "attn.k_proj.weight", "wv": "attn.v_proj.weight", "wo": "attn.output_proj.weight",
    "w1": "ffn.w1.weight", "w2": "ffn.w2.weight", "w3": "ffn.w3.weight",
}  # fmt: skip
SMALL = 0.01
CASES = (
    Case("plain"),
    Case("small numbers", given={"x": lambda given, generator: SMALL * generator.standard_normal((2, 5, 12))}),
    Case("more tokens", lead=(3,), sizes={"T": 11}),
    Case("two heads", given={"heads": 2}),
)


def with_gammas(cases: Sequence[Case], arguments: Mapping[str, Argument]) -> tuple[Case, ...]:
    """Cases whose norms have scales near 1."""
    gammas = {
        name: near_gamma for name in arguments if name.startswith("ln") and not name.rstrip("0123456789").endswith("b")
    }
    return tuple(case._replace(given={**gammas, **case.given}) for case in cases)


def near_gamma(given: Any, generator: Any) -> Any:
    return 1 + 0.3 * generator.standard_normal(SIZES["D"])


LLAMA_ARGUMENTS = {
    "x": X,
    **norm_arguments("1", False),
    **head_arguments(False),
    **norm_arguments("2", False),
    **network_arguments(SWIGLU, False),
    "weights": Argument("", "weights params state_dict parameters", role="parameter", collects=CS336_LAYER),
    "heads": HEADS,
    "positions": Argument("T", "positions token_positions position_ids", draw="ids T"),
    "theta": Argument("", OF_LAYER["theta"], role="number"),
    "eps": EPS,
}
LLAMA = place_llama_layer("x")
BLOCK = Definition(
    "a pre-norm layer as in Llama: RMS norm, causal rotary attention, gated network",
    LLAMA_ARGUMENTS,
    LLAMA.steps,
    SIZES,
    with_gammas(
        [*CASES, Case("any positions", given={"positions": scatter_positions}, needs=("positions",))], LLAMA_ARGUMENTS
    ),
    "... T D",
    gather_slips([LLAMA]),
    {
        "weights": layouts_of("wq", "wk", "wv", "wo", "wqkv", "w1", "w2", "w3"),
        "pairs": place_ways(ROTARY.conventions["pairs"], [LLAMA]),
    },
    "TransformerBlock Block transformer_block run_transformer_block DecoderBlock LlamaDecoderLayer",
    {"heads": 3, "theta": THETA, "eps": 1e-5, "M": MOST_TOKENS},
    OF_LAYER,
)

ALL_WEIGHTS = ("wq", "wk", "wv", "wo", "wqkv", "w1", "w2")
OF_CROSS = tuple(f"c{name}" for name in ("wq", "wk", "wv", "wo", "wqkv"))
EMBEDDINGS = "token_embeddings tok_emb wte embed embedding embeddings token_embedding tok_embeddings embed_tokens"
HEAD_NAMES = "lm_head head output out_head unembed fc_out output_layer lm_head_proj"
LAST_NORM = "ln_final ln_f norm_f final_norm norm ln_final_norm out_norm"


def layer_arguments(numbers: str) -> dict[str, Argument]:
    """The arguments of a layer with layer norms, by their numbers, and biases."""
    norms = {name: one for number in numbers for name, one in norm_arguments(number, True).items()}
    return {"x": X, **head_arguments(True), **norms, **network_arguments(FFN), "heads": HEADS, "eps": EPS}


def activations_of(layer: Layer) -> dict[str, Way]:
    """The activations that the network of a layer may have, its own first."""
    network = next(part for part in layer.parts if part.kind == "network")
    own = next((name for name, way in OF_NETWORKS.items() if way.steps == network.ways), "relu")
    others = {
        name: Way(f"activation: {name}", steps=network.place(way.steps or {"activated": FFN.steps["activated"]}))
        for name, way in OF_NETWORKS.items()
        if name != own
    }
    return {own: Way(), **others}


GPT = place_gpt_layer("x")
GPT_BLOCK = Definition(
    "a pre-norm layer as in GPT-2: layer norm, causal attention, network",
    layer_arguments("12"),
    GPT.steps,
    SIZES,
    with_gammas(CASES, layer_arguments("12")),
    "... T D",
    gather_slips([GPT]),
    {"weights": layouts_of(*ALL_WEIGHTS), "activation": activations_of(GPT)},
    "GPTBlock TransformerBlock Block DecoderBlock transformer_block",
    {"heads": 3, "eps": 1e-5, "M": MOST_TOKENS},
    OF_LAYER,
)
ENCODER = place_encoder_layer("x")
ENCODER_LAYER = Definition(
    "an encoder layer of the paper: attention, + x, layer norm, network, + x, layer norm",
    {**layer_arguments("12"), "mask": MASK},
    ENCODER.steps,
    SIZES,
    with_gammas([*CASES, Case("any mask", needs=("mask",))], layer_arguments("12")),
    "... T D",
    gather_slips([ENCODER]),
    {
        "weights": layouts_of(*ALL_WEIGHTS),
        "activation": activations_of(ENCODER),
        "mask": POLARITIES,
    },
    "EncoderLayer TransformerEncoderLayer encoder_layer EncoderBlock",
    {"heads": 3, "eps": 1e-5, "M": MOST_TOKENS},
    OF_LAYER,
)
DECODER = place_decoder_layer("x")
DECODER_ARGUMENTS = {
    "x": X,
    "memory": Argument(
        "... S D", "memory enc_output encoder_output enc_out encoder_out context enc encoder_hidden_states"
    ),
    **head_arguments(True),
    **head_arguments(True, CROSSES, "c"),
    **{name: one for number in "123" for name, one in norm_arguments(number, True).items()},
    **network_arguments(FFN),
    "heads": HEADS,
    "eps": EPS,
    "memory_mask": Argument(
        "... T S", "memory_mask src_mask enc_mask cross_mask encoder_mask padding_mask", draw="mask"
    ),
}
DECODER_LAYER = Definition(
    "a decoder layer of the paper: causal attention, attention to a memory, network, each + x and layer norm",
    DECODER_ARGUMENTS,
    DECODER.steps,
    {**SIZES, "S": 8},
    with_gammas([*CASES, Case("any mask of the memory", needs=("memory_mask",))], DECODER_ARGUMENTS),
    "... T D",
    gather_slips([DECODER]),
    {
        "weights": layouts_of(*ALL_WEIGHTS, *OF_CROSS),
        "activation": activations_of(DECODER),
        "mask": {
            name: replace(way, send={"memory_mask": send} if (send := way.send.get("mask")) else {})
            for name, way in POLARITIES.items()
        },
    },
    "DecoderLayer TransformerDecoderLayer decoder_layer DecoderBlock",
    {"heads": 3, "eps": 1e-5, "M": MOST_TOKENS},
    OF_LAYER,
)

# a whole model

LAYERS = 2


def numbered_arguments(arguments: Mapping[str, Argument], at: str) -> dict[str, Argument]:
    """The parameters of a layer as those of a model, whose modules are with_end."""
    found = {}
    for name, one in arguments.items():
        if one.role == "parameter" and not one.collects:
            names = within([f"{stack}.{at}" for stack in STACKS], one.names)
            found[name + at] = one._replace(names=names, joins=" ".join(part + at for part in one.joins.split()))
    return found


def share_parameters(layers: Sequence[Layer]) -> dict[str, Formula]:
    """The steps of the second layer with the parameters of the first."""
    own = {f"{name}1": f"{name}0" for name in LLAMA_ARGUMENTS if LLAMA_ARGUMENTS[name].role == "parameter"}
    return {step: rename(formula, own) for step, formula in layers[1].steps.items()}


LM_LAYERS = tuple(place_llama_layer("rows" if not at else f"sum2{at - 1}", str(at)) for at in range(LAYERS))
FINAL = Portion("norm", RMSNORM, "final_", {"x": LM_LAYERS[-1].output, "gamma": "ln", "eps": "eps"})
LM_PARAMETERS = {
    "table": parameter("V D", within(EMBEDDINGS, "weight") + " " + EMBEDDINGS)._replace(draw="table"),
    **{name: one for at in range(LAYERS) for name, one in numbered_arguments(LLAMA_ARGUMENTS, str(at)).items()},
    "ln": parameter("D", within(LAST_NORM, "weight") + " " + LAST_NORM),
    "head": parameter("D V", within(HEAD_NAMES, "weight") + " " + HEAD_NAMES),
}
CS336_MODEL = {
    "table": "token_embeddings.weight",
    **{f"{name}{at}": f"layers.{at}.{published}" for at in range(LAYERS) for name, published in CS336_LAYER.items()},
    "ln": "ln_final.weight",
    "head": "lm_head.weight",
}
LM = Definition(
    "a language model as Llama: embeddings, two layers, RMS norm, logits",
    {
        "ids": Argument("... T", "ids in_indices input_ids idx tokens token_ids x", draw="ids V"),
        **LM_PARAMETERS,
        "weights": Argument("", "weights params state_dict parameters", role="parameter", collects=CS336_MODEL),
        "heads": HEADS,
        "layers": Argument("", "layers num_layers n_layers n_layer depth num_blocks", role="number"),
        "positions": LLAMA_ARGUMENTS["positions"],
        "theta": Argument("", OF_LAYER["theta"], role="number"),
        "eps": EPS,
    },
    {
        "rows": lambda ids, table: table[as_ids(ids)],
        **{step: one for layer in LM_LAYERS for step, one in layer.steps.items()},
        **FINAL.steps,
        "logits": rename(lambda x, head: x @ head, {"x": FINAL.output}),
    },
    {**SIZES, "V": 13},
    with_gammas(
        (
            Case("plain"),
            Case("more tokens", lead=(3,), sizes={"T": 11}),
            Case("two heads", given={"heads": 2}),
            Case("any positions", given={"positions": scatter_positions}, needs=("positions",)),
        ),
        LM_PARAMETERS,
    ),
    "... T V",
    (
        Slip("the last norm is missing", {FINAL.output: keep(LM_LAYERS[-1].output)}),
        Slip(
            "the embeddings are multiplied by √D",
            {"rows": lambda ids, table: table[as_ids(ids)] * math.sqrt(table.shape[-1])},
        ),
        Slip(
            "the head is the table of the embeddings",
            {"logits": rename(lambda x, table: x @ table.T, {"x": FINAL.output})},
        ),
        Slip(
            "softmax is applied to the logits",
            {"logits": rename(lambda x, head: stable_softmax(x @ head), {"x": FINAL.output})},
        ),
        Slip("all layers have the parameters of the first", share_parameters(LM_LAYERS)),
        Slip("the second layer is missing", {LM_LAYERS[-1].output: keep(LM_LAYERS[0].output)}),
        *gather_slips([*LM_LAYERS, Layer(FINAL.output, (FINAL,), {}, {}, FINAL.output)]),
    ),
    {
        "weights": layouts_of(*(f"{name}{at}" for at in range(LAYERS) for name in (*ALL_WEIGHTS, "w3")), "head"),
        "pairs": place_ways(ROTARY.conventions["pairs"], LM_LAYERS),
    },
    "TransformerLM TransformerLanguageModel GPT LM Transformer run_transformer_lm Llama",
    {"heads": 3, "theta": THETA, "eps": 1e-5, "layers": LAYERS, "M": MOST_TOKENS},
    {**OF_LAYER, "V": "vocab_size n_vocab vocab num_tokens", "layers": "num_layers n_layers n_layer depth num_blocks"},
)

ENCODERS = ("encoder.layers", "encoder.blocks", "encoder_layers", "encoder_blocks", "enc_layers", "encoder.layer")
DECODERS = ("decoder.layers", "decoder.blocks", "decoder_layers", "decoder_blocks", "dec_layers", "decoder.layer")


def place_positions(ids: str, table: str) -> Formula:
    """The formula of embeddings · √D with sinusoidal positions."""

    def embedded(ids: Any, table: Any) -> Any:
        return table[as_ids(ids)] * math.sqrt(table.shape[-1]) + sinusoidal_rows(ids, table)

    return rename(embedded, {"ids": ids, "table": table})


def sinusoidal_rows(ids: Any, table: Any) -> Any:
    angles = np.arange(ids.shape[-1])[:, None] * frequencies(table.shape[-1], THETA)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(angles), -1)


def embed_otherwise(formula: Formula) -> dict[str, Formula]:
    """Both embeddings by another formula of ids and table."""
    return {
        "source_rows": rename(formula, {"ids": "source", "table": "source_table"}),
        "target_rows": rename(formula, {"ids": "target", "table": "target_table"}),
    }


SOURCE_LAYERS = tuple(
    place_encoder_layer("source_rows" if not at else "norm20e_scaled", f"{at}e", None) for at in range(LAYERS)
)
MEMORY = SOURCE_LAYERS[-1].output
TARGET_LAYERS = tuple(
    place_decoder_layer("target_rows" if not at else "norm30d_scaled", f"{at}d", MEMORY, None) for at in range(LAYERS)
)


def stacked(arguments: Mapping[str, Argument], stacks: Sequence[str], end: str) -> dict[str, Argument]:
    """The parameters of layers of a stack, whose modules are with_end in it."""
    found = {}
    for at in range(LAYERS):
        for name, one in arguments.items():
            if one.role == "parameter" and not one.parts:
                names = within([f"{stack}.{at}" for stack in stacks], one.names)
                found[f"{name}{at}{end}"] = one._replace(names=names)
    return found


def table_argument(axes: str, names: str) -> Argument:
    """The argument of a table of embeddings."""
    return parameter(axes, f"{within(names.split(), 'weight embedding.weight lut.weight')} {names}")._replace(
        draw="table"
    )


SEQ2SEQ_PARAMETERS = {
    "source_table": table_argument("U D", "src_embed src_embedding encoder_embedding src_tok_emb source_embedding"),
    "target_table": table_argument("V D", "tgt_embed tgt_embedding decoder_embedding tgt_tok_emb target_embedding"),
    **stacked(layer_arguments("12"), ENCODERS, "e"),
    **stacked(DECODER_ARGUMENTS, DECODERS, "d"),
    "head": parameter(
        "D V",
        within([*HEAD_NAMES.split(), "generator", "generator.proj", "fc", "projection"], "weight") + " " + HEAD_NAMES,
    ),
    "head_bias": parameter(
        "V", within([*HEAD_NAMES.split(), "generator", "generator.proj", "fc", "projection"], "bias")
    ),
}
SEQ2SEQ = Definition(
    "the encoder-decoder of the paper: two layers each, post-norm, sinusoidal positions",
    {
        "source": Argument("... S", "source src src_ids input_ids enc_input x encoder_input src_tokens", draw="ids U"),
        "target": Argument(
            "... T", "target tgt tgt_ids decoder_input_ids dec_input y decoder_input tgt_tokens", draw="ids V"
        ),
        **SEQ2SEQ_PARAMETERS,
        "heads": HEADS,
        "layers": Argument(
            "", "layers num_layers n_layers num_encoder_layers num_decoder_layers n depth", role="number"
        ),
        "eps": EPS,
    },
    {
        "source_rows": place_positions("source", "source_table"),
        **{step: one for layer in SOURCE_LAYERS for step, one in layer.steps.items()},
        "target_rows": place_positions("target", "target_table"),
        **{step: one for layer in TARGET_LAYERS for step, one in layer.steps.items()},
        "logits": rename(lambda x, head, b: with_bias(x @ head, b), {"x": TARGET_LAYERS[-1].output, "b": "head_bias"}),
    },
    {**SIZES, "S": 8, "U": 17, "V": 13},
    with_gammas(
        (Case("plain"), Case("more tokens", lead=(3,), sizes={"T": 11, "S": 9}), Case("two heads", given={"heads": 2})),
        SEQ2SEQ_PARAMETERS,
    ),
    "... T V",
    (
        Slip(
            "the embeddings are not multiplied by √D",
            embed_otherwise(lambda ids, table: table[as_ids(ids)] + sinusoidal_rows(ids, table)),
        ),
        Slip(
            "the positions are missing",
            embed_otherwise(lambda ids, table: table[as_ids(ids)] * math.sqrt(table.shape[-1])),
        ),
        Slip(
            "positions are multiplied by √D too",
            embed_otherwise(
                lambda ids, table: (table[as_ids(ids)] + sinusoidal_rows(ids, table)) * math.sqrt(table.shape[-1])
            ),
        ),
        Slip(
            "the decoder reads the first layer of the encoder, not the last",
            {
                step: rename(one, {MEMORY: SOURCE_LAYERS[0].output})
                for layer in TARGET_LAYERS
                for step, one in layer.steps.items()
                if step.endswith(("projected_k", "projected_v")) and step.startswith("cross")
            },
        ),
        Slip(
            "softmax is applied to the logits",
            {
                "logits": rename(
                    lambda x, head, b: stable_softmax(with_bias(x @ head, b)),
                    {"x": TARGET_LAYERS[-1].output, "b": "head_bias"},
                )
            },
        ),
        *gather_slips([*SOURCE_LAYERS, *TARGET_LAYERS]),
    ),
    {
        "weights": layouts_of(
            *(name for name, one in SEQ2SEQ_PARAMETERS.items() if len(one.axes.split()) == 2 and one.draw != "table")
        )
    },
    "Transformer Seq2Seq EncoderDecoder TransformerModel make_model",
    {"heads": 3, "eps": 1e-5, "layers": LAYERS},
    {
        **OF_LAYER,
        "U": "src_vocab_size src_vocab source_vocab_size n_src_vocab",
        "V": "tgt_vocab_size tgt_vocab target_vocab_size n_trg_vocab trg_vocab_size vocab_size",
        "layers": "num_layers n_layers num_encoder_layers num_decoder_layers n depth num_blocks",
    },
)

DEFINITIONS = {
    "block": BLOCK,
    "gpt-block": GPT_BLOCK,
    "encoder-layer": ENCODER_LAYER,
    "decoder-layer": DECODER_LAYER,
    "lm": LM,
    "seq2seq": SEQ2SEQ,
}
