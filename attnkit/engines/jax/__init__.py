"""The engine of JAX: the steps of a model compiled by XLA. Only `engines.load_engine` imports this package's modules.

formulas.py   the formulas of model/ on arrays of JAX, each tested equal to NumPy's
attention.py  kernels of attention: with every intermediate, fused, by blocks, and around a ring of devices
program.py    the steps of a configuration as one function, which JAX compiles, differentiates and splits
inputs.py     what a pass reads besides parameters, checked and padded in NumPy
"""
