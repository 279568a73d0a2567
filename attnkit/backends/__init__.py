"""Engines beside NumPy, imported when asked for: what computes models and attention on GPUs, TPUs and many hosts."""
