"""Engines beside NumPy, for GPUs, TPUs and many hosts; imported when chosen."""
