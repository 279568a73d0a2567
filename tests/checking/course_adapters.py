"""The adapters of Stanford CS336, assignment 1, in NumPy; those of checkpoints, which need PyTorch, are left out."""

import itertools
import math
import re
from collections import Counter

import numpy as np

WORDS = re.compile(r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?(?:[^\w\s]|_)+|\s+(?!\S)|\s+")

DRAWS = np.random.default_rng(0)


def run_linear(d_in, d_out, weights, in_features):
    return in_features @ weights.T


def run_embedding(vocab_size, d_model, weights, token_ids):
    return weights[token_ids]


def run_silu(in_features):
    return in_features / (1 + np.exp(-np.clip(in_features, -80, None)))


def run_swiglu(d_model, d_ff, w1_weight, w2_weight, w3_weight, in_features):
    return (run_silu(in_features @ w1_weight.T) * (in_features @ w3_weight.T)) @ w2_weight.T


def run_softmax(in_features, dim):
    exponentials = np.exp(in_features - in_features.max(dim, keepdims=True))
    return exponentials / exponentials.sum(dim, keepdims=True)


def run_scaled_dot_product_attention(Q, K, V, mask=None):
    scores = Q @ np.swapaxes(K, -1, -2) / np.float32(math.sqrt(Q.shape[-1]))
    return run_softmax(scores if mask is None else np.where(mask, scores, -np.inf), -1) @ V


def run_rope(d_k, theta, max_seq_len, in_query_or_key, token_positions):
    angles = token_positions[..., None] * theta ** (-np.arange(0, d_k, 2) / d_k)
    x, y = in_query_or_key[..., ::2], in_query_or_key[..., 1::2]
    turned = np.stack([x * np.cos(angles) - y * np.sin(angles), x * np.sin(angles) + y * np.cos(angles)], -1)
    return turned.reshape(in_query_or_key.shape).astype(in_query_or_key.dtype)


def attend_in_heads(num_heads, q, k, v, o, x, turn=lambda one: one):
    def split(weight):
        projected = x @ weight.T
        return np.swapaxes(projected.reshape(*x.shape[:-1], num_heads, -1), -2, -3)

    mask = np.tri(x.shape[-2], dtype=bool)
    heads = run_scaled_dot_product_attention(turn(split(q)), turn(split(k)), split(v), mask)
    return np.swapaxes(heads, -2, -3).reshape(x.shape) @ o.T


def run_multihead_self_attention(
    d_model, num_heads, q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight, in_features
):
    return attend_in_heads(num_heads, q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight, in_features)


def run_multihead_self_attention_with_rope(
    d_model, num_heads, max_seq_len, theta, q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight, in_features,
    token_positions=None,
):  # fmt: skip
    positions = np.arange(in_features.shape[-2]) if token_positions is None else token_positions

    def turn(x):
        return run_rope(x.shape[-1], theta, max_seq_len, x, positions)

    return attend_in_heads(num_heads, q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight, in_features, turn)


def run_rmsnorm(d_model, eps, weights, in_features):
    return in_features / np.sqrt((in_features**2).mean(-1, keepdims=True) + np.float32(eps)) * weights


def run_transformer_block(d_model, num_heads, d_ff, max_seq_len, theta, weights, in_features):
    attention = [weights[f"attn.{name}_proj.weight"] for name in ("q", "k", "v", "output")]
    normed = run_rmsnorm(d_model, 1e-5, weights["ln1.weight"], in_features)
    x = in_features + run_multihead_self_attention_with_rope(d_model, num_heads, max_seq_len, theta, *attention, normed)
    network = [weights[f"ffn.w{one}.weight"] for one in (1, 2, 3)]
    return x + run_swiglu(d_model, d_ff, *network, run_rmsnorm(d_model, 1e-5, weights["ln2.weight"], x))


def run_transformer_lm(
    vocab_size, context_length, d_model, num_layers, num_heads, d_ff, rope_theta, weights, in_indices
):
    x = weights["token_embeddings.weight"][in_indices]
    for layer in range(num_layers):
        start = f"layers.{layer}."
        own = {name.removeprefix(start): one for name, one in weights.items() if name.startswith(start)}
        x = run_transformer_block(d_model, num_heads, d_ff, context_length, rope_theta, own, x)
    return run_rmsnorm(d_model, 1e-5, weights["ln_final.weight"], x) @ weights["lm_head.weight"].T


def run_cross_entropy(inputs, targets):
    shifted = inputs - inputs.max(-1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -np.take_along_axis(logarithms, targets[..., None], -1).mean()


def run_get_batch(dataset, batch_size, context_length, device):
    starts = DRAWS.integers(0, len(dataset) - context_length, batch_size)
    rows = dataset[starts[:, None] + np.arange(context_length + 1)]
    return rows[:, :-1], rows[:, 1:]


def run_gradient_clipping(parameters, max_l2_norm):
    gradients = [one.grad for one in parameters if one.grad is not None]
    norm = math.sqrt(sum(float((one**2).sum()) for one in gradients))
    for one in gradients:
        one *= min(1, max_l2_norm / (norm + 1e-6))


class AdamW:
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        self.params, self.lr, self.betas, self.eps, self.weight_decay = [*params], lr, betas, eps, weight_decay
        self.means, self.squares = ([one * 0 for one in self.params] for _ in range(2))
        self.steps = 0

    def step(self, gradients):
        self.steps += 1
        for x, g, mean, square in zip(self.params, gradients, self.means, self.squares, strict=True):
            mean += (1 - self.betas[0]) * (g - mean)
            square += (1 - self.betas[1]) * (g * g - square)
            x *= 1 - self.lr * self.weight_decay
            root = np.sqrt(square / (1 - self.betas[1] ** self.steps)) + self.eps
            x -= self.lr * mean / (1 - self.betas[0] ** self.steps) / root


def get_adamw_cls():
    return AdamW


def run_get_lr_cosine_schedule(it, max_learning_rate, min_learning_rate, warmup_iters, cosine_cycle_iters):
    if it < warmup_iters:
        return max_learning_rate * it / warmup_iters
    done = min((it - warmup_iters) / (cosine_cycle_iters - warmup_iters), 1)
    return min_learning_rate + (max_learning_rate - min_learning_rate) * (1 + math.cos(math.pi * done)) / 2


class Tokenizer:
    def __init__(self, vocab, merges, special_tokens):
        self.tokens, self.special = vocab, sorted(special_tokens or [], key=len, reverse=True)
        self.ids = {token: id for id, token in vocab.items()}
        self.ranks = {pair: rank for rank, pair in enumerate(merges)}

    def encode(self, text):
        pattern = f"({'|'.join(map(re.escape, self.special))})"
        parts = re.split(pattern, text) if self.special else [text]
        return [id for part in parts for id in self.encode_part(part)]

    def encode_part(self, part):
        if part in self.special:
            return [self.ids[part.encode()]]
        found = []
        for word in WORDS.findall(part):
            tokens = [bytes([one]) for one in word.encode()]
            while pairs := [pair for pair in itertools.pairwise(tokens) if pair in self.ranks]:
                at = [*itertools.pairwise(tokens)].index(min(pairs, key=self.ranks.get))
                tokens[at : at + 2] = [tokens[at] + tokens[at + 1]]
            found += [self.ids[one] for one in tokens]
        return found

    def encode_iterable(self, texts):
        for text in texts:
            yield from self.encode(text)

    def decode(self, ids):
        return b"".join(self.tokens[one] for one in ids).decode("utf-8", "replace")


def get_tokenizer(vocab, merges, special_tokens=None):
    return Tokenizer(vocab, merges, special_tokens)


def run_train_bpe(input_path, vocab_size, special_tokens, **kwargs):
    with open(input_path, encoding="utf-8") as file:
        text = file.read()
    parts = re.split("|".join(map(re.escape, special_tokens)), text) if special_tokens else [text]
    words = Counter(tuple(bytes([one]) for one in word.encode()) for part in parts for word in WORDS.findall(part))
    vocabulary, merges = [*(one.encode() for one in special_tokens), *(bytes([one]) for one in range(256))], []
    while len(vocabulary) < vocab_size:
        counts = Counter()
        for word, count in words.items():
            for pair in itertools.pairwise(word):
                counts[pair] += count
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(best)
        vocabulary.append(b"".join(best))
        merged = Counter()
        for word, count in words.items():
            tokens = [*word]
            for at in range(len(tokens) - 1):
                if tuple(tokens[at : at + 2]) == best:
                    tokens[at : at + 2] = [b"".join(best)]
            merged[tuple(tokens)] += count
        words = merged
    return dict(enumerate(vocabulary)), merges
