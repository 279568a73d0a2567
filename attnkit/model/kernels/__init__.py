"""Kernels: fast paths of plain formulas, each tested against its formula.

tiled_attention      heads and log-sum-exps of dot-product attention, T and S in tiles: `attention` with every
                     intermediate kept (dense_attention.py), to 2e-6 of the largest value in float32
row_attention        the same for any score function and rounding, some queries at a time: equal to dense_attention to
                     the last bits, and equal bits on any number of threads
weight_stats         summaries of the attention weights: those computed from dense weights (summarize_dense_weights)
fused_attention      heads and weights of dot-product attention, up to rounding, and the adjoint of both:
                     `dense_attention_backward`, to 1e-12 in float64 and 1e-5 in float32
tiles                the tiles of scores that tiled_attention and weight_stats share; tasks with buffers for all three

attention.py chooses among these and the formula.
"""
