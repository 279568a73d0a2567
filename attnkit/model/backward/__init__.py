"""Adjoints: for every function of the forward pass the gradients of its inputs, from the gradient of its output.

`<name>_backward(grad_output, inputs of <name> …)` is the adjoint of `<name>`, in a file of the same name. The gradient
of a tensor is the derivative of one number, the loss, with respect to each of its elements, so it has the tensor's
shape; the adjoint of y = f(x) maps the gradient of y to that of x, by the transposed Jacobian of f. Gradients have the
dtype that the forward function computes in, and are sums wherever an input was broadcast or used more than once.

linear.py embedding.py positions.py rotary.py norms.py feedforward.py patch_embedding.py dropout.py   operators
transformer.py whole_models.py   the steps of a model, recorded forward and undone in reverse
"""
