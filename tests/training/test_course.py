"""What tests/references/cs336_adapters.py computes for the tests of a course, against torch."""

import importlib.util
import io
import math

import numpy as np
import pytest

from tests.places import ROOT

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional

spec = importlib.util.spec_from_file_location("cs336_adapters", ROOT / "tests" / "references" / "cs336_adapters.py")
course = importlib.util.module_from_spec(spec)
spec.loader.exec_module(course)

WIDTH, HEADS, HIDDEN, WORDS, THETA = 8, 2, 12, 11, 100.0
torch.manual_seed(0)
X, IDS = torch.randn(2, 5, WIDTH, requires_grad=True), torch.randint(WORDS, (2, 5))


def draw_block():
    names = {f"attn.{name}_proj.weight": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    names |= {"ffn.w1.weight": (HIDDEN, WIDTH), "ffn.w2.weight": (WIDTH, HIDDEN), "ffn.w3.weight": (HIDDEN, WIDTH)}
    return {name: torch.randn(shape) / 3 for name, shape in names.items()} | {
        "ln1.weight": torch.rand(WIDTH),
        "ln2.weight": torch.rand(WIDTH),
    }


def turn(x, positions):
    """Rotate neighbouring features as one complex number."""
    angles = positions[..., None] / THETA ** (torch.arange(0, x.shape[-1], 2) / x.shape[-1])
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


def attend(x, weights, positions=None):
    q, k, v = (
        (x @ weights[f"attn.{name}_proj.weight"].T).unflatten(-1, (HEADS, -1)).transpose(-2, -3) for name in "qkv"
    )
    if positions is not None:
        q, k = turn(q, positions), turn(k, positions)
    heads = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return heads.transpose(-2, -3).flatten(-2) @ weights["attn.output_proj.weight"].T


def norm(x, weight):
    return functional.rms_norm(x, (WIDTH,), weight, 1e-5)


def block(x, weights):
    x = x + attend(norm(x, weights["ln1.weight"]), weights, torch.arange(x.shape[-2]).float())
    h = norm(x, weights["ln2.weight"])
    gate = functional.silu(h @ weights["ffn.w1.weight"].T) * (h @ weights["ffn.w3.weight"].T)
    return x + gate @ weights["ffn.w2.weight"].T


def equal(result, expected, atol=2e-6):
    expected = expected.detach()
    assert result.dtype == expected.dtype and result.shape == expected.shape
    assert torch.allclose(result, expected, rtol=0, atol=atol * max(1, float(expected.abs().max())))


def test_layers():
    weight = torch.randn(3, WIDTH)
    equal(course.run_linear(WIDTH, 3, weight, X), X @ weight.T)
    table = torch.randn(WORDS, WIDTH)
    equal(course.run_embedding(WORDS, WIDTH, table, IDS), table[IDS])
    equal(course.run_rmsnorm(WIDTH, 1e-5, weight[0], X), norm(X, weight[0]))
    equal(course.run_silu(X), functional.silu(X))
    equal(course.run_softmax(X, 1), X.softmax(1))
    equal(
        course.run_cross_entropy(X[0], torch.tensor([0, 1, 2, 3, 4])), functional.cross_entropy(X[0], torch.arange(5))
    )


def test_attention_of_any_rank():
    for lead in ((2,), (2, 3), (2, 3, 2)):
        q, k, v = (torch.randn(*lead, 4, 6) for _ in range(3))
        mask = torch.rand(*lead, 4, 4) > 0.3
        mask[..., 0] = True
        expected = functional.scaled_dot_product_attention(q, k, v, mask)
        equal(course.run_scaled_dot_product_attention(q, k, v, mask), expected)


def test_attention_of_several_heads():
    weights = draw_block()
    own = [weights[f"attn.{name}_proj.weight"] for name in ("q", "k", "v", "output")]
    equal(course.run_multihead_self_attention(WIDTH, HEADS, *own, X), attend(X, weights))
    for positions in (None, torch.arange(5)[None], torch.tensor([[3, 1, 4, 1, 5]])):
        result = course.run_multihead_self_attention_with_rope(WIDTH, HEADS, 9, THETA, *own, X, positions)
        where = torch.arange(5.0) if positions is None else positions[0].float()
        equal(result, attend(X, weights, where))
    equal(course.run_rope(WIDTH, THETA, 9, X, torch.arange(5)), turn(X, torch.arange(5.0)))


def test_a_language_model():
    weights = {"token_embeddings.weight": torch.randn(WORDS, WIDTH), "lm_head.weight": torch.randn(WORDS, WIDTH)}
    weights["ln_final.weight"] = torch.rand(WIDTH)
    blocks = [draw_block() for _ in range(2)]
    weights |= {f"layers.{number}.{name}": one for number, own in enumerate(blocks) for name, one in own.items()}
    x = weights["token_embeddings.weight"][IDS]
    equal(course.run_transformer_block(WIDTH, HEADS, HIDDEN, 9, THETA, blocks[0], x), block(x, blocks[0]))
    for own in blocks:
        x = block(x, own)
    logits = norm(x, weights["ln_final.weight"]) @ weights["lm_head.weight"].T
    sizes = (WORDS, 9, WIDTH, 2, HEADS, HIDDEN, THETA)
    equal(course.run_transformer_lm(*sizes, weights, IDS), logits)
    equal(course.run_transformer_lm(*sizes, weights, IDS[:, :3]), logits[:, :3])


def test_a_step_of_training():
    models = [nn.Linear(3, 2) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    kinds = (course.get_adamw_cls(), torch.optim.AdamW)
    runs = [kind(one.parameters(), lr=0.1, weight_decay=0.1) for kind, one in zip(kinds, models, strict=True)]
    for _ in range(5):
        x = torch.randn(4, 3)
        for one, optimizer, clip in zip(
            models, runs, (course.run_gradient_clipping, nn.utils.clip_grad_norm_), strict=True
        ):
            optimizer.zero_grad()
            (one(x) ** 2).sum().backward()
            clip(one.parameters(), 0.5)
            optimizer.step()
    for own, other in zip(*(one.parameters() for one in models), strict=True):
        equal(own.detach(), other.detach())
    file = io.BytesIO()
    course.run_save_checkpoint(models[0], runs[0], 5, file)
    file.seek(0)
    again = kinds[0](models[1].parameters())
    assert course.run_load_checkpoint(file, models[1], again) == 5
    assert torch.equal(models[1].weight, models[0].weight)
    assert again.state_dict()["param_groups"] == runs[0].state_dict()["param_groups"]
    assert torch.equal(again.state_dict()["state"][0]["exp_avg"], runs[0].state_dict()["state"][0]["exp_avg"])


def test_the_schedule_counts_iterations():
    """Warm-up it / 2 to iteration 2, half a cosine to iteration 6."""
    rates = [course.run_get_lr_cosine_schedule(it, 1.0, 0.5, 2, 6) for it in range(8)]
    cosine = [0.75 + math.cos(math.pi * part / 4) / 4 for part in range(5)]
    assert np.allclose(rates, [0, 0.5, *cosine, 0.5])


def test_batches_and_tokens():
    x, y = course.run_get_batch(np.arange(10, 30), 6, 4, "cpu")
    assert x.shape == (6, 4) and torch.equal(y, x + 1) and int(x.min()) >= 10 and int(y.max()) <= 29
    vocabulary, merges = course.train_bpe(["low lower<end>lowest"], 262, ["<end>"])
    tokenizer = course.get_tokenizer(vocabulary, merges, ["<end>"])
    ids = tokenizer.encode("low<end> lowest")
    assert tokenizer.decode(ids) == "low<end> lowest" and ids[1] == 0
    assert [*tokenizer.encode_iterable(["low<end>", " lowest"])] == ids
