"""Courses whose adapters have known names, each for one part of a student's work.

The functions are those of the handout; the conventions are stated there, so that they are not looked for.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Adapter(NamedTuple):
    """The stage that a function of a course stands for, and its conventions."""

    stage: str
    convention: Mapping[str, str] = {}


KEEP = {"mask": "keep"}
OUT_IN = {"weights": "out-in"}
EVEN_ODD = {"pairs": "even-odd"}

# Stanford CS336, assignment 1: tests/adapters.py
CS336 = {
    "run_linear": Adapter("linear", OUT_IN),
    "run_embedding": Adapter("embed"),
    "run_swiglu": Adapter("swiglu", OUT_IN),
    "run_scaled_dot_product_attention": Adapter("attend", KEEP),
    "run_multihead_self_attention": Adapter("multihead", {**OUT_IN, "causal": "causal"}),
    "run_multihead_self_attention_with_rope": Adapter("multihead-rope", {**OUT_IN, **EVEN_ODD, "causal": "causal"}),
    "run_rope": Adapter("rope", EVEN_ODD),
    "run_rmsnorm": Adapter("rmsnorm"),
    "run_silu": Adapter("silu"),
    "run_softmax": Adapter("softmax"),
    "run_cross_entropy": Adapter("cross-entropy"),
    "run_transformer_block": Adapter("block", {**OUT_IN, **EVEN_ODD}),
    "run_transformer_lm": Adapter("lm", {**OUT_IN, **EVEN_ODD}),
    "run_get_batch": Adapter("batch"),
    "run_gradient_clipping": Adapter("clip", {"eps": "1e-6"}),
    "get_adamw_cls": Adapter("adamw"),
    "run_get_lr_cosine_schedule": Adapter("schedule"),
    "run_save_checkpoint": Adapter("checkpoint"),
    "run_load_checkpoint": Adapter("checkpoint"),
    "get_tokenizer": Adapter("bpe"),
    "run_train_bpe": Adapter("train-bpe"),
}
COURSES: Mapping[str, Mapping[str, Adapter]] = {"cs336": CS336}
