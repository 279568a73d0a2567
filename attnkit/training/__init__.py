"""Training: what changes the parameters of a model, and the data and files that it needs.

parameter_buffer.py   named parameters, or their gradients, as views of one contiguous array
optimizers.py         adamw, adam and sgd, in place and in blocks
gradients.py          the norm of all gradients, and clipping by it
schedules.py          factors on the learning rate by step
parameter_groups.py   weight decay, learning rates by layer, frozen parameters, gradual unfreezing
"""
