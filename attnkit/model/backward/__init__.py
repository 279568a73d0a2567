"""Gradients of layers, by adjoints of what they compute.

The gradient of a tensor is the derivative of one number, the loss, with respect to each of its elements, so it has the
tensor's shape. The adjoint of y = f(x) maps the gradient of y to the gradient of x, by the transposed Jacobian of f.
Gradients have the dtype that the forward function computes in, and are sums if an input was broadcast or used more than
once. The adjoint of an operator stands beside its formula: `f_backward(grad_output, inputs …)`, or, if it reads what
the forward pass computes, `f_vjp(inputs …)`, which returns the value and the function that is its adjoint.

attention_backward.py   attention, on a dense score matrix or by blocks, and multi-head attention
recurrent_backward.py   recurrent layers; recurrent_decoder.py: attention inside a recurrence
layer_vjps.py           every other step of a plan
tape.py                 what a pass records, and what its undoing adds up (passes/recorded_pass.py)
tied.py   parameters that share one array
"""
