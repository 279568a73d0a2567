"""The engine of JAX: the steps of a model compiled by XLA; imported when chosen.

engine.py             the engine: whole passes, heads, and decoding token by token
program.py            the steps of a configuration as one function, which JAX compiles, differentiates and splits
passes.py             a pass: its precision, its caches and its hooks; inputs.py: what it reads besides parameters
formulas.py           the functions that values of nodes call of JAX, each tested equal to NumPy's
attention_kernels.py  attention with every intermediate, fused, by blocks, and around a ring of devices
record_attention.py   attention of a record
recurrence.py         recurrent layers, and a decoder with attention inside its recurrence, by a scan over the tokens
mesh.py               the devices: which part of each array every one of them stores
processes.py          the processes of a run, joined and ended together
gradients.py          gradients of a pass or a head, of parameters and intermediates
training.py           training on the devices
"""
