"""The Transformer as pure functions on arrays, in the order of a forward pass.

B  batch                     N  vocabulary
T  queries                   D  model width
S  keys                      K  width of a query or key head
H  query heads               V  width of a value head
G  key and value heads       R  rotated width
P  past keys                 F  hidden width of the feed-forward network

Masks are boolean, True = may attend. Results have the dtype of the input if it is a float; float16 and bfloat16
compute in float32, integers in float64. Inputs are never modified. Arrays of PyTorch and JAX are accepted.
whole_models.py lists the names of whole models, which are imported lazily.

The parts of the package from the bottom up, each of which imports only those above it in this list:

dtypes rounding arrays checks processor/  numbers: dtypes, rounding, shapes, arrays of other libraries, all cores
hooks intermediates parameters slips      names: of what is computed, of what it is computed with, of mistakes
formulas/ reference                       pure functions of arrays; the whole paper by such functions
kernels/                                  fast paths of attention
attention                                 attention by its formula or a kernel
config recurrent_config kv_cache context  a model, its plan of steps, and the context of a pass
layers/                                   what each step of a plan computes
backward/                                 the same with gradients
graph/                                    the same as nodes
groups                                    the table of these three for each operation of a step
passes/                                   whole models by that table: passes, gradients, graphs, generation
exercises/                                arithmetic on paper
"""

from inspect import isfunction
from typing import TYPE_CHECKING, Any

# ruff: noqa: I001 (in the order of a forward pass, not of the alphabet)
from attnkit.model.dtypes import Array, output_dtype, working
from attnkit.model.arrays import numpy_array, takes_foreign_arrays
from attnkit.model.formulas.embedding import check_ids, embed, one_hot, random_table, scale_embedding
from attnkit.model.formulas.positions import (
    LAYOUTS,
    add_positions,
    alibi_bias,
    alibi_slopes,
    learned_positions,
    sinusoidal_positions,
    t5_bias,
    t5_buckets,
)
from attnkit.model.formulas.rotary import ROPE_TYPES, angles, rope_frequencies, rotary_angles, rotate
from attnkit.model.formulas.patch_embedding import interpolate_positions, normalize_pixels, extract_patches
from attnkit.model.formulas.linear import add, linear, random_weight, scaled
from attnkit.model.formulas.masks import (
    to_additive,
    to_boolean,
    causal_mask,
    causal_offset,
    chunk_mask,
    mask_lengths,
    padding_mask,
    prefix_mask,
    segment_mask,
    window_mask,
)
from attnkit.model.formulas.norms import Normalized, batch_norm, layer_norm, rms_norm, square_mean
from attnkit.model.formulas.scores import SCORES
from attnkit.model.formulas.softmax import log_softmax, softmax
from attnkit.model.attention import attention, multi_head_attention
from attnkit.model.formulas.head_views import merge_heads, split_heads
from attnkit.model.formulas.activations import ACTIVATIONS
from attnkit.model.formulas.feedforward import feed_forward
from attnkit.model.formulas.dense_attention import AttentionOptions, MultiHeadOptions
from attnkit.model.hooks import Hook, no_hook, parse_weight_summary
from attnkit.model.formulas.sampling import (
    Sampling,
    candidates,
    greedy,
    label_probabilities,
    log_probabilities,
    logits,
    min_p,
    probabilities,
    repetition_penalty,
    sample_word,
    apply_temperature,
    top_k,
    top_p,
)

if TYPE_CHECKING:
    from attnkit.model.whole_models import *

for _name, _value in [*globals().items()]:
    if isfunction(_value) and _value not in (takes_foreign_arrays, no_hook):  # which a pass compares a hook with
        globals()[_name] = takes_foreign_arrays(_value)
del _name, _value


def __getattr__(name: str) -> Any:
    """Import a module of the package, or a name of whole_models.py, on first use."""
    from importlib import import_module
    from importlib.util import find_spec

    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    models = None if name.startswith("_") and name != "__all__" else import_module("attnkit.model.whole_models")
    if name == "__all__":  # of `from attnkit.model import *`
        return sorted(name for name in {**globals(), **vars(models)} if not name.startswith("_"))
    if not hasattr(models, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(models, name)
    found = globals()[name] = takes_foreign_arrays(found) if isfunction(found) else found
    return found
