"""Right implementations in NumPy, in the conventions that students use; tests/checking/slipped.py puts slips into them.

Each was written from the definition in papers and textbooks, without attnkit.
"""

import math

import numpy as np


def softmax(x, axis=-1):
    shifted = x - np.max(x, axis=axis, keepdims=True)
    exponentials = np.exp(shifted)
    return exponentials / np.sum(exponentials, axis=axis, keepdims=True)


def softmax_of_rows(z):
    shifted = z - z.max(-1, keepdims=True)
    exponentials = np.exp(shifted)
    return exponentials / exponentials.sum(-1, keepdims=True)


# attention


def attention_keep(Q, K, V, mask=None):
    d_k = Q.shape[-1]
    scores = Q @ np.swapaxes(K, -1, -2) / np.sqrt(d_k)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = softmax(scores, axis=-1)
    return weights @ V


def attention_block(K, Q, V, attn_mask=None):
    scores = np.matmul(Q, np.swapaxes(K, -1, -2)) / math.sqrt(K.shape[-1])
    if attn_mask is not None:
        scores = np.where(attn_mask, -1e9, scores)
    scores = scores - scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.matmul(weights, V), weights


def attention_add(queries, keys, values, mask=0.0):
    scores = np.einsum("...td,...sd->...ts", queries, keys) / queries.shape[-1] ** 0.5
    weights = softmax(scores + mask)
    return np.einsum("...ts,...sd->...td", weights, values)


def attention_numbers(q, k, v, mask=None):
    matmul_qk = np.matmul(q, np.swapaxes(k, -1, -2))
    scaled = matmul_qk / np.sqrt(np.float32(k.shape[-1]))
    if mask is not None:
        scaled = scaled + mask * -1e9
    weights = softmax(scaled)
    return np.matmul(weights, v), weights


def attention_zero_is_blocked(query, key, value, mask=None):
    scores = query @ np.swapaxes(key, -1, -2) * key.shape[-1] ** -0.5
    if mask is not None:
        scores = np.where(mask == 0, np.finfo(scores.dtype).min, scores)
    return softmax(scores) @ value


def attention_without_names(a, b, c):
    return softmax(b @ np.swapaxes(a, -1, -2) / np.sqrt(b.shape[-1])) @ c


# linear, embeddings, positions


def linear_in_out(x, W, b=None):
    y = x @ W
    return y if b is None else y + b


def linear_out_in(x, weight, bias=0.0):
    return np.einsum("...i,oi->...o", x, weight) + bias


class Dense:
    def __init__(self, in_features, out_features):
        self.W = np.zeros((in_features, out_features))
        self.b = np.zeros(out_features)

    def __call__(self, inputs):
        return np.dot(inputs, self.W) + self.b


def embed_rows(token_ids, weights):
    return weights[token_ids]


def embed_one_hot(ids, table):
    one_hot = np.eye(len(table), dtype=table.dtype)[ids]
    return one_hot @ table


def rope_even_odd(x, positions, theta=10000.0):
    d = x.shape[-1]
    inverse = 1.0 / theta ** (np.arange(0, d, 2) / d)
    angles = positions[:, None] * inverse
    cos, sin = np.cos(angles), np.sin(angles)
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return turned.reshape(x.shape).astype(x.dtype)


def rope_halves(q, position_ids, base=10000.0):
    width = q.shape[-1]
    frequencies = base ** (-2.0 * np.arange(width // 2) / width)
    angles = np.concatenate([np.outer(position_ids, frequencies)] * 2, axis=-1)
    first, second = q[..., : width // 2], q[..., width // 2 :]
    rotated = np.concatenate([-second, first], axis=-1)
    return (q * np.cos(angles) + rotated * np.sin(angles)).astype(q.dtype)


def rope_complex(x, token_positions, theta=10000.0):
    pairs = x[..., 0::2] + 1j * x[..., 1::2]
    frequencies = theta ** -(np.arange(0, x.shape[-1], 2) / x.shape[-1])
    turned = pairs * np.exp(1j * token_positions[:, None] * frequencies)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape).astype(x.dtype)


def rope_of_sequence(x):
    length, width = x.shape[-2:]
    out = np.empty_like(x)
    for position in range(length):
        for i in range(width // 2):
            angle = position / 10000 ** (2 * i / width)
            first, second = x[..., position, 2 * i], x[..., position, 2 * i + 1]
            out[..., position, 2 * i] = first * math.cos(angle) - second * math.sin(angle)
            out[..., position, 2 * i + 1] = first * math.sin(angle) + second * math.cos(angle)
    return out


def sinusoidal_loops(seq_len, d_model):
    table = np.zeros((seq_len, d_model))
    for position in range(seq_len):
        for i in range(0, d_model, 2):
            angle = position / 10000 ** (i / d_model)
            table[position, i] = math.sin(angle)
            table[position, i + 1] = math.cos(angle)
    return table


def sinusoidal_columns(max_len, d_model):
    columns = np.arange(d_model)[None, :]
    angles = np.arange(max_len)[:, None] / np.power(10000, 2 * (columns // 2) / d_model)
    angles[:, 0::2] = np.sin(angles[:, 0::2])
    angles[:, 1::2] = np.cos(angles[:, 1::2])
    return angles[None]


def sinusoidal_halves(length, dim):
    frequencies = np.exp(-math.log(10000) * np.arange(dim // 2) / (dim // 2))
    angles = np.outer(np.arange(length), frequencies)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def mask_tril(n):
    return np.tril(np.ones((n, n)))


def mask_compare(size):
    place = np.arange(size)
    return place[None, :] <= place[:, None]


def mask_blocked(seq_len):
    return np.triu(np.ones((seq_len, seq_len), dtype=bool), k=1)


def mask_to_add(seq_len):
    return np.triu(np.full((seq_len, seq_len), -np.inf), k=1)


def mask_of_texts(size):
    return np.triu(np.ones((1, size, size)), k=1) == 0


# norms, activations, networks, loss


def layernorm_of_parts(x, gamma, beta, eps=1e-5):
    mean = x.mean(axis=-1, keepdims=True)
    var = x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * gamma + beta


def layernorm_centered(x, weight, bias, epsilon=1e-5):
    centered = x - np.mean(x, -1, keepdims=True)
    std = np.sqrt(np.mean(centered**2, -1, keepdims=True) + epsilon)
    return weight * centered / std + bias


class LayerNorm:
    def __init__(self, features, eps=1e-5):
        self.gamma, self.beta, self.eps = np.ones(features), np.zeros(features), eps

    def __call__(self, x):
        mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return self.gamma * (x - mean) / np.sqrt(var + self.eps) + self.beta


def rmsnorm_of_parts(x, weight, eps=1e-5):
    rms = np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)
    return x / rms * weight


def rmsnorm_einsum(x, g, eps=1e-5):
    squares = np.einsum("...d,...d->...", x, x) / x.shape[-1]
    return g * x * (squares + eps)[..., None] ** -0.5


def relu(x):
    return np.maximum(x, 0)


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(z):
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1 / (1 + e), e / (1 + e))


def sigmoid_simple(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def silu_simple(x):
    return x / (1 + np.exp(-x))


def ffn_relu(x, W1, b1, W2, b2):
    hidden = np.maximum(0, x @ W1 + b1)
    return hidden @ W2 + b2


def ffn_gelu(x, w1, w2):
    hidden = x @ w1.T
    hidden = gelu_tanh(hidden)
    return hidden @ w2.T


def swiglu_in_out(x, w_gate, w_up, w_down):
    gate, up = x @ w_gate, x @ w_up
    return (silu(gate) * up) @ w_down


def swiglu_out_in(x, w1, w2, w3):
    gate, up = np.einsum("...d,fd->...f", x, w1), np.einsum("...d,fd->...f", x, w3)
    return np.einsum("...f,df->...d", silu(gate) * up, w2)


def cross_entropy_of_logits(logits, targets):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_probs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    picked = log_probs[np.arange(len(targets)), targets]
    return -picked.mean()


def cross_entropy_one_hot(y_pred, y_true):
    shifted = y_pred - np.max(y_pred, axis=-1, keepdims=True)
    log_probs = shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))
    one_hot = np.eye(y_pred.shape[-1])[y_true]
    return -np.sum(one_hot * np.where(one_hot > 0, log_probs, 0)) / len(y_true)


# heads and layers


def split_heads(x, heads):
    *lead, tokens, width = x.shape
    return np.swapaxes(x.reshape(*lead, tokens, heads, width // heads), -2, -3)


def join_heads(x):
    *lead, heads, tokens, width = x.shape
    return np.swapaxes(x, -2, -3).reshape(*lead, tokens, heads * width)


def multihead_split(x, Wq, Wk, Wv, Wo, num_heads, mask=None):
    batch, tokens, width = x.shape
    d_head = width // num_heads
    q = (x @ Wq).reshape(batch, tokens, num_heads, d_head).transpose(0, 2, 1, 3)
    k = (x @ Wk).reshape(batch, tokens, num_heads, d_head).transpose(0, 2, 1, 3)
    v = (x @ Wv).reshape(batch, tokens, num_heads, d_head).transpose(0, 2, 1, 3)
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(d_head)
    if mask is not None:
        scores = np.where(mask[:, None], scores, -1e9)
    weights = softmax(scores)
    heads = weights @ v
    joined = heads.transpose(0, 2, 1, 3).reshape(batch, tokens, width)
    return joined @ Wo


def multihead_of_heads(x, w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o, n_heads):
    d_head = x.shape[-1] // n_heads
    zero = np.zeros(x.shape[-1], x.dtype)
    b_q, b_k, b_v, b_o = (zero if one is None else one for one in (b_q, b_k, b_v, b_o))
    q, k, v = x @ w_q.T + b_q, x @ w_k.T + b_k, x @ w_v.T + b_v
    outputs = []
    for h in range(n_heads):
        columns = slice(h * d_head, (h + 1) * d_head)
        scores = q[..., columns] @ np.swapaxes(k[..., columns], -1, -2) / math.sqrt(d_head)
        weights = softmax(scores)
        outputs.append(weights @ v[..., columns])
    joined = np.concatenate(outputs, axis=-1)
    return joined @ w_o.T + b_o


def multihead_fused(x, W_qkv, W_o, n_head):
    q, k, v = np.split(x @ W_qkv, 3, axis=-1)
    q, k, v = (split_heads(one, n_head) for one in (q, k, v))
    tokens, d_head = q.shape[-2:]
    scores = np.einsum("...td,...sd->...ts", q, k) / math.sqrt(d_head)
    scores = np.where(np.tril(np.ones((tokens, tokens), bool)), scores, -np.inf)
    weights = softmax(scores)
    joined = join_heads(weights @ v)
    return joined @ W_o


def multihead_rope(x, wq, wk, wv, wo, num_heads, token_positions=None, theta=10000.0):
    positions = np.arange(x.shape[-2]) if token_positions is None else token_positions
    q, k, v = (split_heads(x @ w.T, num_heads) for w in (wq, wk, wv))
    q, k = rope_even_odd(q, positions, theta), rope_even_odd(k, positions, theta)
    tokens, d_head = q.shape[-2:]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d_head)
    scores = np.where(np.tril(np.ones((tokens, tokens), bool)), scores, -np.inf)
    weights = softmax(scores)
    joined = join_heads(weights @ v)
    return joined @ wo.T


def multihead_rope_halves(x, wq, wk, wv, wo, n_heads, positions=None, theta=10000.0):
    places = np.arange(x.shape[-2]) if positions is None else positions
    q, k, v = (split_heads(x @ w, n_heads) for w in (wq, wk, wv))
    q, k = rope_halves(q, places, theta), rope_halves(k, places, theta)
    tokens, d_head = q.shape[-2:]
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(d_head)
    scores = np.where(np.tril(np.ones((tokens, tokens), bool)), scores, -np.inf)
    weights = softmax(scores)
    joined = join_heads(weights @ v)
    return joined @ wo


def block_of_weights(x, weights, num_heads, theta=10000.0, eps=1e-5, positions=None):
    attended = multihead_rope(
        rmsnorm_of_parts(x, weights["ln1.weight"], eps),
        *(weights[f"attn.{name}_proj.weight"] for name in ("q", "k", "v", "output")),
        num_heads,
        positions,
        theta,
    )
    x = x + attended
    normed = rmsnorm_of_parts(x, weights["ln2.weight"], eps)
    fed = swiglu_out_in(normed, *(weights[f"ffn.w{number}.weight"] for number in (1, 2, 3)))
    return x + fed


def lm_of_weights(in_indices, weights, num_layers, num_heads, rope_theta=10000.0, eps=1e-5):
    x = weights["token_embeddings.weight"][in_indices]
    for layer in range(num_layers):
        prefix = f"layers.{layer}."
        own = {name[len(prefix) :]: one for name, one in weights.items() if name.startswith(prefix)}
        x = block_of_weights(x, own, num_heads, rope_theta, eps)
    x = rmsnorm_of_parts(x, weights["ln_final.weight"], eps)
    return x @ weights["lm_head.weight"].T


def encoder_layer(x, wq, wk, wv, wo, bq, bk, bv, bo, ln1, ln1b, w1, b1, w2, b2, ln2, ln2b, heads, mask=None, eps=1e-5):
    q, k, v = (split_heads(x @ w + b, heads) for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask[:, None], scores, -np.inf)
    attended = join_heads(softmax(scores) @ v) @ wo + bo
    x = layernorm_of_parts(x + attended, ln1, ln1b, eps)
    fed = np.maximum(0, x @ w1 + b1) @ w2 + b2
    return layernorm_of_parts(x + fed, ln2, ln2b, eps)
