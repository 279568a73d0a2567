"""Arithmetic that depends on the processor: tasks and products on every core.

threads      tasks on every core; results do not depend on the number of threads
products     large matrix products on every core: x @ y, up to rounding, the same on any number of threads
"""
