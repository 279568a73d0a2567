"""The engine of JAX: the steps of a model compiled by XLA. Nothing here is imported unless it is chosen.

formulas.py    the formulas of model/ on arrays of JAX, each tested equal to NumPy's
attention.py   kernels of attention: with every intermediate, fused, by blocks, and around a ring of devices
recurrent.py   recurrent layers, and a decoder with attention inside its recurrence, by a scan over the tokens
program.py     the steps of a configuration as one function, which JAX compiles, differentiates and splits
inputs.py      what a pass reads besides parameters, checked and padded in NumPy
placement.py   which part of each array a device holds, and reads from the file
engine.py      the engine: whole passes and heads; decoder.py: token by token; attending.py: attention of a record
seeing.py      hooks of a pass; passes.py: what a pass is, its precision and its caches
"""
