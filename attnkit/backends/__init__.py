"""Engines beside NumPy, for GPUs, TPUs and many hosts; imported when chosen.

choice      which engine computes, what is installed, and its devices
jax/        the steps of a model compiled by JAX
"""
