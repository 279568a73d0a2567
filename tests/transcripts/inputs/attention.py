import numpy as np


def attention(hidden, k, v, mask=None):
    scores = hidden @ np.swapaxes(k, -1, -2)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def relu(x):
    return np.maximum(x, 0)


def linear(x, table, b=0.0):
    return x @ table + b
