"""Sweeps of patches, in every family of one stack: a row of a batch is one run with one patch."""

from functools import partial

import numpy as np
import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.inputs import layers
from attnkit.interpret.sweeps import Scored, find_axes, list_patches, match_names, run_text, sweep
from tests.places import MODELS

CAUSAL = ["gpt2-scaled", "openai-gpt", "llama3", "llama-dynamic", "llama-yarn", "mistral", "qwen2"]
MASKED = [
    "roberta",
    "albert",
    "electra",
    "mpnet",
    "deberta-v2",
    "deberta-v3",
    "modernbert",
    "distilbert",
    "xlm-roberta",
]
WORD = 7


def scored_model(name, place):
    checkpoint = open_checkpoint(str(MODELS / name))
    core, plan = layers.complete_model(checkpoint), checkpoint.config.plan(checkpoint.config.stacks[0])
    head = {layer: core.params[layer] for layer in ("head.dense", "head.norm", "head") if layer in core.params}
    head["head"] = {key: np.ascontiguousarray(value[..., [WORD]]) for key, value in head["head"].items()}
    return checkpoint, Scored(core, plan, head, place, "float64")


@pytest.mark.parametrize("name", CAUSAL + MASKED)
def test_every_row_is_one_run(name):
    clean = np.array([9, 12, 30, 17, 22, 25])
    corrupted = np.array([9, 12, 14, 17, 40, 25])
    place = 5 if name in CAUSAL else 2
    checkpoint, scored = scored_model(name, place)
    assert scored.is_causal == (name in CAUSAL) and scored.is_cached == (scored.is_causal and name != "llama-dynamic")
    decode = partial(attnkit.decode, model=checkpoint, ids=corrupted, emit="logits", dtype="float64")
    run = partial(decode, max_tokens=0) if name in CAUSAL else decode
    for pattern, by_head in (("*.ffn.residual", False), ("*.self.[kv]", False), ("*.heads", True), ("*.norm2", False)):
        source, base = (run_text(scored, ids, [pattern]) for ids in (clean, corrupted))
        if pattern == "*.norm2" and not source.states:  # a norm of another name
            continue
        patches, _ = list_patches(scored, base, match_names(base, pattern), by_head, True)
        scores = sweep(scored, base, patches, source.states)
        for at in range(2, len(patches), len(patches) // 2):
            patch, states = patches[at], source.states[patches[at].name]
            head, axis = find_axes(patch.name, states.ndim)
            cells = [":"] * states.ndim
            for dimension, index in ((head, patch.head), (axis, patch.position)):
                if index is not None:
                    cells[dimension] = str(index)
            logits = run(patch={f"{patch.name}[{','.join(cells)}]": states})["x"]
            assert abs(logits[place, WORD] - scores[at]) < 1e-10
