"""Engines beside NumPy: what computes models and attention on GPUs, TPUs and many machines, imported when asked for."""
