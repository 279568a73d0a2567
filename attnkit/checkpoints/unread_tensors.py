"""The stored tensors that no layer reads: which may change a number, and why.

A tensor is harmless by its name, by the table below. Any other that is part of a layer of the model may change what
the layer computes. The rest has no place in the model.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

NUMBER = re.compile(r"(?<![0-9])[0-9]+(?![0-9])")
COMPUTED, COPY, ZERO = "computed anew", "a copy of another", "zeros alone"
FURTHER = "a layer that predicts further tokens"
HARMLESS = {  # reason -> patterns of names, without the prefix of the family
    COMPUTED: (  # masks, positions and frequencies, which files hold as buffers; numbers of a format
        r"(^|\.)(attn|attention)\.(masked_)?bias$", r"(^|\.)causal_mask$", r"(^|\.)position_ids$",
        r"(^|\.)token_type_ids$", r"inv_freq$", r"(cos|sin)_cached$", r"rope_embeddings\.periods$",
        r"(^|\.)embed_positions(\.weights?)?$", r"(^|\.)embed_positions\._float_tensor$",
        r"^blk\.[0-9]+\.attn_rot_embd(\.|$)", r"(^|\.)version$",
    ),
    "read by no computation of T5": (
        r"EncDecAttention\.relative_attention_bias\.weight$", r"^dec\.blk\.[0-9]+\.cross_attn_rel_b\.weight$",
    ),
    "of the vectors of tokens, which `encode` makes": (r"^linear\.weight$",),
    "of masked inputs in training": (r"(^|\.)mask_token$", r"^masked_spec_embed$"),
    "beside the tables of both stacks, which are read": (r"^shared\.weight$",),
    "of words before the dropout of training": (r"^encoder_dp\.emb\.weight$",),
    "positions that the configuration leaves out": (r"^embeddings\.position_embeddings\.weight$",),
    "of the other tower": (
        r"^(text|vision)_model\.", r"^(text|visual)_projection\.", r"^logit_(scale|bias)$",
        r"(^|\.)(vision_tower|multi_modal_projector|visual)\.",
    ),
    FURTHER: (r"^mtp\.", r"^blk\.[0-9]+\.nextn\."),
}  # fmt: skip
HEADS = (  # modules of heads; one of which the model reads nothing is that of another task
    "cls.seq_relationship", "cls.predictions", "cls", "classifier", "score", "qa_outputs", "classification_head",
    "sop_classifier", "multiple_choice_head", "sequence_summary", "mask_predictions", "lm_predictions", "predictions",
    "generator_predictions", "generator_lm_head", "discriminator_predictions", "lm_head", "embed_out", "proj_out",
    "final_logits_bias", "vocab_transform", "vocab_layer_norm", "vocab_projector", "pre_classifier", "pooler", "head",
    "decoder", "quantizer", "project_q", "project_hid", "projector", "layer_weights", "tdnn", "objective",
    "final_proj", "label_embs_concat",
)  # fmt: skip
OTHER_TASK, OTHER_BIAS = "a part for another task", "beside the bias of `decoder`, which is read"


class UnreadTensors(NamedTuple):
    """The stored tensors that no layer reads.

    harmless   name -> why it changes no number
    of_layers  those that are part of a layer of the model, and may change what it computes
    beyond     name -> the prefix of its layer, as h.12, which the configuration leaves out
    others     those of no layer, and of none of the reasons
    """

    harmless: dict[str, str]
    of_layers: list[str]
    beyond: dict[str, str]
    others: list[str]

    @property
    def names(self) -> list[str]:
        """The names of all of them."""
        return [*self.of_layers, *self.beyond, *self.others, *self.harmless]


def sort_unread(
    unread: Sequence[str], read: Collection[str], prefixes: Sequence[str] = (), is_strict: bool = False
) -> UnreadTensors:
    """Sort stored tensors that no layer reads by what they are to the model.

    read       the published names of what the layers read, stored or not
    prefixes   what names may begin with
    is_strict  whether any tensor of the file is part of a layer

    >>> read = ["model.layers.0.q_proj.weight", "lm_head.weight"]
    >>> unread = ["model.layers.0.q_proj.bias", "lm_head.bias", "model.layers.0.rotary_emb.inv_freq", "score.weight",
    ...     "model.layers.1.q_proj.weight", "extra"]
    >>> sort_unread(unread, read, ("model.",))  # doctest: +NORMALIZE_WHITESPACE
    UnreadTensors(harmless={'model.layers.0.rotary_emb.inv_freq': 'computed anew',
        'score.weight': 'a part for another task'},
        of_layers=['model.layers.0.q_proj.bias', 'lm_head.bias'],
        beyond={'model.layers.1.q_proj.weight': 'model.layers.1'}, others=['extra'])
    """
    found = UnreadTensors({}, [], {}, [])
    if not unread:
        return found
    bare = {name: _without_prefix(name, prefixes) for name in (*read, *unread)}
    known = [bare[name] for name in read]
    modules = {path for name in known for path in (name.rpartition(".")[0],) if path}
    paths = {path for name in known for path in (name, *_modules_above(name))}
    patterns, blocks = ({split_number(name)[at] for name in known} for at in (0, 1))
    shapes = {name: split_number(bare[name]) for name in unread}
    beyond = {block for pattern, block in shapes.values() if pattern in patterns and block not in blocks}
    further = {block for pattern, block in shapes.values() if pattern.endswith(".eh_proj.weight")}  # of two states
    for name, (_, block) in shapes.items():
        if reason := FURTHER if block in beyond & further else _reason(bare[name], paths):
            found.harmless[name] = reason
        elif block in beyond:
            found.beyond[name] = name.removesuffix(bare[name]) + block
        elif is_strict or (block and block in blocks) or not modules.isdisjoint(_modules_above(bare[name])):
            found.of_layers.append(name)
        else:
            found.others.append(name)
    return found


def _reason(name: str, paths: Collection[str]) -> str:
    """Why a tensor changes no number, or "".

    paths  the tensors and modules that are read
    """
    for reason, patterns in HARMLESS.items():
        if any(re.search(pattern, name) for pattern in patterns):
            return reason
    above, _, last = name.rpartition(".")
    if last == "bias" and f"{above}.decoder.bias" in paths:
        return OTHER_BIAS
    head = next((head for head in HEADS if f"{name}.".startswith(f"{head}.")), "")
    return OTHER_TASK if head and head not in paths else ""


def split_number(name: str) -> tuple[str, str]:
    """A published name with `#` for its first number, and what comes up to it, or "".

    >>> split_number("h.12.ln_1.weight"), split_number("wte.weight")
    (('h.#.ln_1.weight', 'h.12'), ('wte.weight', ''))
    """
    number = NUMBER.search(name)
    return NUMBER.sub("#", name, count=1), name[: number.end()] if number else ""


def _without_prefix(name: str, prefixes: Iterable[str]) -> str:
    return next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name)


def _modules_above(name: str) -> Iterator[str]:
    """The modules that a tensor is in, the innermost first.

    >>> [*_modules_above("lm_head.lora_A.weight")]
    ['lm_head.lora_A', 'lm_head']
    """
    while name := name.rpartition(".")[0]:
        yield name
