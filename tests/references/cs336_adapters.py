"""What a course on language models asks of its students, by attnkit: the functions that its tests call.

Copied over `tests/adapters.py` of github.com/stanford-cs336/assignment1-basics, it lets the tests of that repository
run against attnkit, in an environment with attnkit and torch: `pytest tests`. The test of attnkit,
tests/training/test_course.py, compares it with modules of torch.
"""

import json
import os
from collections.abc import Iterable, Iterator

import numpy as np
import torch

import attnkit
from attnkit import Record, formats, model
from attnkit.tokenizers.bpe import make_bpe, train_bpe
from attnkit.training.batches import block_batch
from attnkit.training.numpy_state import clip_gradients
from attnkit.training.optimizers import Update, adamw, optimizer_options
from attnkit.training.schedules import SCHEDULES, ScheduleOptions

EPS = 1e-5


def as_torch(array):
    return torch.from_numpy(np.array(array))


def within(prefix, weights):
    """The weights of a module, by the names that they have in it."""
    return {name.removeprefix(prefix): one for name, one in weights.items() if name.startswith(prefix)}


def run_linear(d_in, d_out, weights, in_features):
    return as_torch(attnkit.linear(in_features, params={"weight": weights})["x"])


def run_embedding(vocab_size, d_model, weights, token_ids):
    return as_torch(attnkit.embed(ids=token_ids, table=weights)["x"])


def run_swiglu(d_model, d_ff, w1_weight, w2_weight, w3_weight, in_features):
    params = {"w1.weight": w1_weight, "w2.weight": w2_weight, "w3.weight": w3_weight}
    return as_torch(attnkit.ffn(in_features, params=params, gated=True, activation="silu")["x"])


def run_silu(in_features):
    return as_torch(attnkit.linear(in_features, activation="silu")["x"])


def run_rmsnorm(d_model, eps, weights, in_features):
    return as_torch(attnkit.layernorm(in_features, kind="rms", eps=eps, params={"weight": weights})["x"])


def run_softmax(in_features, dim):
    return as_torch(attnkit.softmax(in_features, axis=dim)["x"])


def run_scaled_dot_product_attention(Q, K, V, mask=None):
    """Queries (..., T, K) of one head."""
    head = [one[..., None, :, :] for one in (Q, K, V)]
    mask = None if mask is None else mask[..., None, :, :]
    return as_torch(model.attention(*head, mask=mask)["heads"][..., 0, :, :])


def projections(q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight):
    weights = (q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight)
    return {f"{name}_proj.weight": one for name, one in zip("qkvo", weights, strict=True)}


def run_multihead_self_attention(
    d_model, num_heads, q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight, in_features
):
    params = projections(q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight)
    return as_torch(attnkit.attend(in_features, heads=num_heads, causal=True, params=params)["x"])


def run_multihead_self_attention_with_rope(
    d_model,
    num_heads,
    max_seq_len,
    theta,
    q_proj_weight,
    k_proj_weight,
    v_proj_weight,
    o_proj_weight,
    in_features,
    token_positions=None,
):
    """Positions other than 0, 1, … need the angles themselves."""
    params = projections(q_proj_weight, k_proj_weight, v_proj_weight, o_proj_weight)
    if token_positions is None:
        options = {"heads": num_heads, "causal": True, "rotary": "interleaved", "base": theta}
        return as_torch(attnkit.attend(in_features, params=params, **options)["x"])
    angles = model.rotary_angles(token_positions, d_model // num_heads, base=theta)
    rotary = tuple(one[..., None, :, :] for one in angles)
    weights = {f"w{name[0]}": one.T for name, one in params.items()}
    options = {"heads": num_heads, "causal": True, "rotary": rotary, "interleaved": True}
    return as_torch(model.multi_head_attention(in_features, in_features, in_features, weights, **options)["output"])


def run_rope(d_k, theta, max_seq_len, in_query_or_key, token_positions):
    angles = model.rotary_angles(token_positions, d_k, base=theta)
    return as_torch(model.rotate(in_query_or_key, *angles, interleaved=True))


def apply_block(x, weights, heads, theta):
    """A block of a decoder, whose norms come before attention and network: the stages of a pipeline."""
    normed = attnkit.layernorm(x, kind="rms", eps=EPS, params=within("ln1.", weights))
    options = {"heads": heads, "causal": True, "rotary": "interleaved", "base": theta}
    x = attnkit.attend(normed, params=within("attn.", weights), add=x, **options)
    normed = attnkit.layernorm(x, kind="rms", eps=EPS, params=within("ln2.", weights))
    return attnkit.ffn(normed, params=within("ffn.", weights), gated=True, activation="silu", add=x)


def run_transformer_block(d_model, num_heads, d_ff, max_seq_len, theta, weights, in_features):
    return as_torch(apply_block(Record({"x": in_features}), weights, num_heads, theta)["x"])


def run_transformer_lm(
    vocab_size, context_length, d_model, num_layers, num_heads, d_ff, rope_theta, weights, in_indices
):
    x = attnkit.embed(ids=in_indices, table=weights["token_embeddings.weight"], only="x")
    for number in range(num_layers):
        x = apply_block(x, within(f"layers.{number}.", weights), num_heads, rope_theta)
    x = attnkit.layernorm(x, kind="rms", eps=EPS, params=within("ln_final.", weights))
    return as_torch(attnkit.linear(x, params=within("lm_head.", weights))["x"])


def run_cross_entropy(inputs, targets):
    return as_torch(model.cross_entropy(inputs, targets))


def run_get_batch(dataset, batch_size, context_length, device):
    """Blocks from random places of a text, and the ids one place later."""
    drawn = block_batch(dataset, batch_size, context_length, seed=int(torch.randint(1 << 31, ())), step=1)
    return tuple(as_torch(one).to(device) for one in (drawn.ids, drawn.targets))


def run_gradient_clipping(parameters, max_l2_norm):
    slopes = [one.grad for one in parameters if one.grad is not None]
    flat = np.concatenate([slope.numpy().ravel() for slope in slopes])
    clip_gradients(flat, max_l2_norm)
    for slope, part in zip(slopes, np.split(flat, np.cumsum([slope.numel() for slope in slopes])[:-1]), strict=True):
        slope.copy_(torch.from_numpy(part).view_as(slope))


class AdamW(torch.optim.Optimizer):
    """The rule of attnkit on the memory of the tensors of torch."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            options = optimizer_options("adamw", **{name: group[name] for name in ("lr", "betas", "eps")})
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                for name in ("exp_avg", "exp_avg_sq"):
                    state.setdefault(name, torch.zeros_like(parameter))
                state["step"] = state.get("step", 0) + 1
                arrays = {name: state[name].numpy() for name in ("exp_avg", "exp_avg_sq")}
                update = Update(group["lr"], group["weight_decay"], state["step"])
                adamw(parameter.numpy(), parameter.grad.numpy(), arrays, options, update)


def get_adamw_cls():
    return AdamW


def run_get_lr_cosine_schedule(it, max_learning_rate, min_learning_rate, warmup_iters, cosine_cycle_iters):
    """Iterations are counted from 0, steps from 1: the warm-up counts steps, the decay the steps before."""
    options = ScheduleOptions(cosine_cycle_iters, warmup_iters, min_learning_rate / max_learning_rate)
    step = it if it <= warmup_iters else it + 1
    return max_learning_rate * SCHEDULES["cosine"](step, options)


def run_save_checkpoint(model, optimizer, iteration, out):
    """A record: the tensors of the model and of the optimizer, and what is no tensor as JSON."""
    saved = optimizer.state_dict()
    tensors = {f"model.{name}": one for name, one in model.state_dict().items()}
    counts = {}
    for number, state in saved["state"].items():
        tensors |= {f"state.{number}.{name}": one for name, one in state.items() if torch.is_tensor(one)}
        counts[number] = {name: one for name, one in state.items() if not torch.is_tensor(one)}
    rest = json.dumps({"groups": saved["param_groups"], "counts": counts, "iteration": iteration})
    record = Record(tensors | {"rest": np.frombuffer(rest.encode(), np.uint8)})
    data = b"".join(map(bytes, formats.encode(record, "npz")))
    if hasattr(out, "write"):
        out.write(data)
    else:
        with open(out, "wb") as file:
            file.write(data)


def run_load_checkpoint(src, model, optimizer):
    if not hasattr(src, "read"):
        with open(src, "rb") as file:
            return run_load_checkpoint(file, model, optimizer)
    data = src.read()
    (record,) = formats.read(formats.Source.of(data))
    rest = json.loads(record["rest"].tobytes())
    model.load_state_dict({name: as_torch(one) for name, one in within("model.", record.arrays()).items()})
    state = {int(number): dict(counts) for number, counts in rest["counts"].items()}
    for name, one in within("state.", record.arrays()).items():
        number, _, key = name.partition(".")
        state[int(number)][key] = as_torch(one)
    groups = [group | {"betas": tuple(group["betas"])} for group in rest["groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    return rest["iteration"]


class CourseTokenizer:
    """A tokenizer of attnkit, whose text and ids are plain values."""

    def __init__(self, vocabulary, merges, special):
        self.tokenizer = make_bpe(vocabulary, merges, special)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def encode_iterable(self, texts: Iterable[str]) -> Iterator[int]:
        """The ids of texts that follow one another, as the lines of a file: no more than one is in memory."""
        for text in texts:
            yield from self.encode(text)

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, with_special=True)


def get_tokenizer(vocab, merges, special_tokens=None):
    return CourseTokenizer(vocab, merges, special_tokens or [])


def run_train_bpe(input_path: str | os.PathLike, vocab_size, special_tokens, **kwargs):
    with open(input_path, encoding="utf-8") as file:
        return train_bpe([file.read()], vocab_size, special_tokens)
