"""Right implementations in PyTorch, functions and modules; tests/checking/slipped.py puts slips into them.

Each was written from the definition in papers and textbooks, without attnkit.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


def softmax(in_features, dim):
    shifted = in_features - in_features.max(dim=dim, keepdim=True).values
    exponentials = shifted.exp()
    return exponentials / exponentials.sum(dim=dim, keepdim=True)


def softmax_of_torch(x, dim=-1):
    return torch.softmax(x, dim=dim)


# attention


def attention_keep(Q, K, V, mask=None):
    d_k = Q.shape[-1]
    scores = torch.einsum("...qd,...kd->...qk", Q, K) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = softmax(scores, -1)
    return torch.einsum("...qk,...kd->...qd", weights, V)


def attention_zero_is_blocked(query, key, value, mask=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    return torch.matmul(weights, value), weights


def attention_block(q, k, v, attn_mask=None):
    scores = q @ k.mT * k.shape[-1] ** -0.5
    if attn_mask is not None:
        scores = torch.where(attn_mask, float("-inf"), scores)
    return F.softmax(scores, dim=-1) @ v


def attention_of_torch(queries, keys, values, mask=None):
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


class DotProductAttention(nn.Module):
    def forward(self, queries, keys, values, mask=None):
        scores = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
        if mask is not None:
            scores = scores + mask
        weights = torch.softmax(scores, dim=-1)
        return weights @ values


# linear, embeddings, positions


class Linear(nn.Module):
    def __init__(self, in_features, out_features, device=None, dtype=None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features, device=device, dtype=dtype))

    def forward(self, x):
        return x @ self.weight.T


class LinearWithBias(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.empty(d_out))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


def linear_of_torch(x, weight, bias=None):
    return F.linear(x, weight, bias)


def linear_in_out(inputs, kernel, b=0.0):
    return inputs @ kernel + b


class Embedding(nn.Module):
    def __init__(self, num_embeddings, embedding_dim, device=None, dtype=None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_embeddings, embedding_dim, device=device, dtype=dtype))

    def forward(self, token_ids):
        return self.weight[token_ids]


def embed_of_torch(input_ids, weight):
    return F.embedding(input_ids, weight)


class RotaryPositionalEmbedding(nn.Module):
    def __init__(self, theta, d_k, max_seq_len, device=None):
        super().__init__()
        inverse = 1.0 / theta ** (torch.arange(0, d_k, 2, dtype=torch.float64) / d_k)
        angles = torch.outer(torch.arange(max_seq_len, dtype=torch.float64), inverse)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x, token_positions):
        cos, sin = self.cos[token_positions], self.sin[token_positions]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        return turned.flatten(-2)


def rotate_half(x):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def rope_halves(x, position_ids, base=10000.0):
    width = x.shape[-1]
    frequencies = 1.0 / base ** (torch.arange(0, width, 2).double() / width)
    angles = torch.cat([position_ids[:, None] * frequencies] * 2, dim=-1)
    return (x * angles.cos() + rotate_half(x) * angles.sin()).to(x.dtype)


def rope_complex(x, positions, theta=10000.0):
    frequencies = theta ** -(torch.arange(0, x.shape[-1], 2).double() / x.shape[-1])
    angles = torch.outer(positions.double(), frequencies)
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


def sinusoidal_of_exponents(max_len, d_model):
    position = torch.arange(max_len).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    pe = torch.zeros(max_len, d_model)
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)
    return pe


def sinusoidal_of_powers(seq_len, d_model):
    columns = torch.arange(0, d_model, 2, dtype=torch.float32)
    angles = torch.arange(seq_len)[:, None] / 10000 ** (columns / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).unsqueeze(0)


def mask_tril(T):
    return torch.tril(torch.ones(T, T)).bool()


def mask_blocked(size):
    return torch.triu(torch.ones(1, 1, size, size), diagonal=1).bool()


def mask_to_add(sz):
    return torch.triu(torch.full((sz, sz), float("-inf")), diagonal=1)


# norms, activations, networks, loss


class LayerNorm(nn.Module):
    def __init__(self, emb_dim):
        super().__init__()
        self.eps = 1e-5
        self.scale = nn.Parameter(torch.ones(emb_dim))
        self.shift = nn.Parameter(torch.zeros(emb_dim))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * (x - mean) / torch.sqrt(var + self.eps) + self.shift


def layernorm(x, weight, bias, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(var + eps) * weight + bias


def layernorm_of_torch(x, gamma, beta, eps):
    return F.layer_norm(x, x.shape[-1:], gamma, beta, eps)


class RMSNorm(nn.Module):
    def __init__(self, d_model, eps=1e-5, device=None, dtype=None):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model, device=device, dtype=dtype))

    def forward(self, x):
        in_dtype = x.dtype
        x = x.to(torch.float32)
        rms = torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return (x / rms * self.weight).to(in_dtype)


def rmsnorm(hidden_states, weight, eps=1e-6):
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    return weight * hidden_states * torch.rsqrt(variance + eps)


def relu(x):
    return x.clamp(min=0)


def gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_of_torch(x):
    return F.gelu(x)


def silu(x):
    return x * torch.sigmoid(x)


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        hidden = torch.relu(self.linear1(x))
        return self.linear2(self.dropout(hidden))


class MLP(nn.Module):
    def __init__(self, n_embd, hidden_dim):
        super().__init__()
        self.c_fc = nn.Linear(n_embd, hidden_dim)
        self.c_proj = nn.Linear(hidden_dim, n_embd)

    def forward(self, x):
        hidden = F.gelu(self.c_fc(x), approximate="tanh")
        return self.c_proj(hidden)


class Sequence(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model))

    def forward(self, x):
        return self.layers(x)


class SwiGLU(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.w1, self.w2, self.w3 = Linear(d_model, d_ff), Linear(d_ff, d_model), Linear(d_model, d_ff)

    def forward(self, x):
        gate, up = self.w1(x), self.w3(x)
        return self.w2(silu(gate) * up)


class LlamaMLP(nn.Module):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x):
        gate, up = self.gate_proj(x), self.up_proj(x)
        return self.down_proj(F.silu(gate) * up)


def cross_entropy(inputs, targets):
    shifted = inputs - inputs.max(dim=-1, keepdim=True).values
    log_probs = shifted - torch.log(torch.exp(shifted).sum(dim=-1, keepdim=True))
    picked = log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return -picked.mean()


def cross_entropy_of_torch(logits, labels):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


# heads and layers


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q, self.W_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.W_v, self.W_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def split(self, x):
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, self.num_heads, self.d_k).transpose(1, 2)

    def forward(self, x, mask=None):
        batch, tokens, width = x.shape
        q, k, v = self.split(self.W_q(x)), self.split(self.W_k(x)), self.split(self.W_v(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        heads = weights @ v
        joined = heads.transpose(1, 2).contiguous().view(batch, tokens, width)
        return self.W_o(joined)


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        weights = F.softmax(scores, dim=-1)
        heads = weights @ v
        joined = heads.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(joined)


class AttentionOfTorch(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


def multihead(d_model, num_heads, q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight, in_features):
    *lead, tokens, _ = in_features.shape
    d_head = d_model // num_heads
    weights_of_all = torch.cat([q_proj_weight, k_proj_weight, v_proj_weight])
    q, k, v = (in_features @ weights_of_all.T).chunk(3, dim=-1)
    q, k, v = (one.reshape(*lead, tokens, num_heads, d_head).transpose(-2, -3) for one in (q, k, v))
    scores = q @ k.mT / math.sqrt(d_head)
    scores = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), float("-inf"))
    weights = scores.softmax(-1)
    joined = (weights @ v).transpose(-2, -3).reshape(*lead, tokens, d_model)
    return joined @ o_proj_weight.T


class MultiHeadSelfAttentionWithRope(nn.Module):
    def __init__(self, d_model, num_heads, max_seq_len, theta):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj = Linear(d_model, d_model), Linear(d_model, d_model)
        self.v_proj, self.output_proj = Linear(d_model, d_model), Linear(d_model, d_model)
        self.rope = RotaryPositionalEmbedding(theta, d_model // num_heads, max_seq_len)

    def forward(self, x, token_positions=None):
        batch, tokens, width = x.shape
        if token_positions is None:
            token_positions = torch.arange(tokens)
        q, k, v = (
            one(x).view(batch, tokens, self.num_heads, -1).transpose(1, 2)
            for one in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = self.rope(q, token_positions), self.rope(k, token_positions)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~torch.ones(tokens, tokens).tril().bool(), float("-inf"))
        weights = torch.softmax(scores, dim=-1)
        joined = (weights @ v).transpose(1, 2).reshape(batch, tokens, width)
        return self.output_proj(joined)


class TransformerBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, max_seq_len, theta, eps=1e-5):
        super().__init__()
        self.ln1, self.ln2 = RMSNorm(d_model, eps), RMSNorm(d_model, eps)
        self.attn = MultiHeadSelfAttentionWithRope(d_model, num_heads, max_seq_len, theta)
        self.ffn = SwiGLU(d_model, d_ff)

    def forward(self, x, token_positions=None):
        x = x + self.attn(self.ln1(x), token_positions)
        return x + self.ffn(self.ln2(x))


class TransformerLM(nn.Module):
    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff, rope_theta):
        super().__init__()
        self.token_embeddings = Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(
            TransformerBlock(d_model, num_heads, d_ff, context_length, rope_theta) for _ in range(num_layers)
        )
        self.ln_final = RMSNorm(d_model)
        self.lm_head = Linear(d_model, vocab_size)

    def forward(self, in_indices):
        x = self.token_embeddings(in_indices)
        for layer in self.layers:
            x = layer(x)
        x = self.ln_final(x)
        return self.lm_head(x)


class Block(nn.Module):
    def __init__(self, n_embd, n_head, hidden_dim):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = MLP(n_embd, hidden_dim)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff):
        super().__init__()
        self.self_attn = MultiHeadAttention(d_model, num_heads)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x, mask=None):
        x = self.norm1(x + self.self_attn(x, mask))
        return self.norm2(x + self.feed_forward(x))


class EncoderLayerOfTorch(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward, batch_first=True)

    def forward(self, src):
        return self.layer(src)


class CrossAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.d_k = num_heads, d_model // num_heads
        self.W_q, self.W_k = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
        self.W_v, self.W_o = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def split(self, x):
        return x.view(*x.shape[:2], self.num_heads, self.d_k).transpose(1, 2)

    def forward(self, Q, K, V, mask=None):
        q, k, v = self.split(self.W_q(Q)), self.split(self.W_k(K)), self.split(self.W_v(V))
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.d_k)
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        heads = torch.softmax(scores, dim=-1) @ v
        return self.W_o(heads.transpose(1, 2).reshape(Q.shape))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff):
        super().__init__()
        self.self_attn = CrossAttention(d_model, num_heads)
        self.cross_attn = CrossAttention(d_model, num_heads)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))

    def forward(self, x, enc_output, src_mask=None):
        causal = torch.ones(1, x.shape[1], x.shape[1]).tril()
        x = self.norm1(x + self.self_attn(x, x, x, causal))
        x = self.norm2(x + self.cross_attn(x, enc_output, enc_output, src_mask))
        return self.norm3(x + self.feed_forward(x))
