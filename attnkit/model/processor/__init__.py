"""Arithmetic that depends on the processor: tasks and products on every core.

threads      tasks on every core; results do not depend on the number of threads
machine      the loops of BLAS and the version of NumPy, which rounding depends on
products     large matrix products on every core: x @ y, up to rounding, the same on any number of threads
"""
