"""Gradients of models and layers, by adjoints of a recorded forward pass.

The gradient of a tensor is the derivative of one number, the loss, with respect to each of its elements, so it has the
tensor's shape. The adjoint of y = f(x) maps the gradient of y to the gradient of x, by the transposed Jacobian of f.
Gradients have the dtype that the forward function computes in, and are sums if an input was broadcast or used more than
once. The adjoint of an operator stands beside its formula: `f_backward(grad_output, inputs …)`, or, if it reads what
the forward pass computes, `f_vjp(inputs …)`, which returns the value and the function that is its adjoint.

attention_backward.py   attention, on a dense score matrix or by blocks, and multi-head attention
recurrent_backward.py   recurrent layers; recurrent_decoder.py: attention inside a recurrence
tape.py recorded_steps.py whole_models.py   the steps of a stack and of a model, recorded and undone
tied.py   parameters that share one array
"""
