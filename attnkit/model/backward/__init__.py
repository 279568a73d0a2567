"""Adjoints: for every function of the forward pass the gradients of its inputs, from the gradient of its output.

`<name>_backward(grad_output, inputs of <name> …)` is the adjoint of `<name>`, in a file of the same name. The gradient
of a tensor is the derivative of one number, the loss, with respect to each of its elements, so it has the tensor's
shape; the adjoint of y = f(x) maps the gradient of y to that of x, by the transposed Jacobian of f. Gradients have the
dtype that the forward function computes in, and are sums wherever an input was broadcast or used more than once.

linear.py embedding.py positions.py rotary.py norms.py feedforward.py   operators
patch_embedding.py pooling.py dropout.py   operators
scores.py dense_attention.py attention.py   attention, from its scores outwards
recurrent.py   steps of recurrent cells, directions, layers and stacks
recurrent_model.py recorded_decoder.py recurrent_decoder.py   recurrent layers of a model; attention in a recurrence
tape.py transformer.py whole_models.py   the steps of a model, recorded forward and undone in reverse
"""

from attnkit.model.backward.attention import (
    attention_backward,
    attention_forward,
    merge_partial_attention_backward,
    multi_head_attention_backward,
    multi_head_attention_forward,
)
from attnkit.model.backward.dropout import dropout_backward
from attnkit.model.backward.embedding import embed_backward, scale_embedding_backward
from attnkit.model.backward.feedforward import (
    WITH_SLOPE,
    activation_backward,
    activation_forward,
    feed_forward_backward,
    feed_forward_forward,
)
from attnkit.model.backward.linear import LinearGradients, add_backward, linear_backward
from attnkit.model.backward.norms import (
    NormGradients,
    batch_norm_backward,
    layer_norm_backward,
    norm_forward,
    norm_steps_backward,
    rms_norm_backward,
)
from attnkit.model.backward.patch_embedding import extract_patches_backward, interpolate_positions_backward
from attnkit.model.backward.pooling import first_token_backward, l2_normalize_backward, mean_pool_backward
from attnkit.model.backward.positions import add_positions_backward, learned_positions_backward, t5_bias_backward
from attnkit.model.backward.rotary import rotate_backward

__all__ = [
    "WITH_SLOPE",
    "LinearGradients",
    "NormGradients",
    "activation_backward",
    "activation_forward",
    "add_backward",
    "add_positions_backward",
    "attention_backward",
    "attention_forward",
    "batch_norm_backward",
    "dropout_backward",
    "embed_backward",
    "extract_patches_backward",
    "feed_forward_backward",
    "feed_forward_forward",
    "first_token_backward",
    "interpolate_positions_backward",
    "l2_normalize_backward",
    "layer_norm_backward",
    "learned_positions_backward",
    "linear_backward",
    "mean_pool_backward",
    "merge_partial_attention_backward",
    "multi_head_attention_backward",
    "multi_head_attention_forward",
    "norm_forward",
    "norm_steps_backward",
    "rms_norm_backward",
    "rotate_backward",
    "scale_embedding_backward",
    "t5_bias_backward",
]
