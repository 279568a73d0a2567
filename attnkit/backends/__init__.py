"""Engines beside NumPy, imported where one is chosen: they compute models and attention on GPUs, TPUs, many hosts."""
