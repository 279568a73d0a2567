"""Implementations that are no function of arrays: optimizers, clipping, batches, tokenizers, checkpoints."""

import numpy as np
import pytest

from attnkit.checking.callees import open_object
from attnkit.checking.definitions import DEFINITIONS
from attnkit.checking.definitions.tokenizers import (
    END,
    GPT2,
    GREATER,
    LEARNED,
    LESSER,
    TEXT,
    VOCABULARY,
    ids_of,
    learn,
    learn_merges,
)
from attnkit.checking.verdict import Examiner
from attnkit.tokenizers.bpe import make_bpe, train_bpe
from tests.checking.implementations import AdamW, Tokenizer

DRAWS = np.random.default_rng(0)


def judge(function, name, library="numpy"):
    definition = DEFINITIONS[name]
    return Examiner(definition, open_object(definition, function, library, {})).judge(definition.cases)


def named(findings):
    return [cause.slip.name for cause in findings.causes]


# optimizers


def adam_of_one(parameter, grad, m, v, t, learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-8):
    m = beta1 * m + (1 - beta1) * grad
    v = beta2 * v + (1 - beta2) * grad**2
    return parameter - learning_rate * m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon), m, v


def adam_of_config(w, dw, config=None):
    for name in ("m", "v"):
        config.setdefault(name, np.zeros_like(w))
    config["t"] = config.get("t", 0) + 1
    numbers = [config[name] for name in ("t", "learning_rate", "beta1", "beta2", "epsilon")]
    w, config["m"], config["v"] = adam_of_one(w, dw, config["m"], config["v"], *numbers)
    return w, config


def decay_in_the_gradient(params, grads, m, v, t, lr, beta1, beta2, eps, weight_decay):
    for at, (x, g) in enumerate(zip(params, grads, strict=True)):
        params[at], m[at], v[at] = adam_of_one(x, g + weight_decay * x, m[at], v[at], t, lr, beta1, beta2, eps)
    return params, m, v


def moments_that_are_lost(parameter, grad, m, v, t, lr, beta1, beta2, eps, weight_decay):
    return adam_of_one(parameter * (1 - lr * weight_decay), grad, m, v, t, lr, beta1, beta2, eps)[0]


@pytest.mark.parametrize("function", [adam_of_one, adam_of_config, AdamW])
def test_an_optimizer_is_a_class_or_a_function_of_moments_or_of_a_configuration(function):
    assert judge(function, "adamw").is_right


@pytest.mark.parametrize(
    ("function", "slip"),
    [
        (decay_in_the_gradient, "the decay is added to the gradient (L2, as in Adam), not taken from the parameter"),
        (moments_that_are_lost, "the moments are not kept: each step starts from 0"),
    ],
)
def test_the_slip_of_an_optimizer_is_named(function, slip):
    assert named(judge(function, "adamw")) == [slip]


def test_the_optimizers_of_torch_and_what_else_changes_tensors():
    torch = pytest.importorskip("torch")

    def each_by_itself(parameters, max_l2_norm):
        for one in parameters:
            if one.grad is not None:
                one.grad *= min(1, max_l2_norm / (one.grad.norm() + 1e-6))

    assert judge(torch.optim.AdamW, "adamw", "torch").is_right
    assert named(judge(torch.optim.Adam, "adamw", "torch")) == [
        "the decay is added to the gradient (L2, as in Adam), not taken from the parameter"
    ]
    assert judge(torch.nn.utils.clip_grad_norm_, "clip", "torch").is_right
    assert named(judge(each_by_itself, "clip", "torch")) == [
        "each gradient is clipped by its own norm, not by that of all"
    ]
    assert named(judge(batch_on_one_device, "batch", "torch")) == ["the device is ignored"]
    assert judge(torch.nn.Conv2d, "conv2d", "torch").is_right


def batch_on_one_device(data, batch_size, block_size, device):
    import torch

    starts = torch.randint(len(data) - block_size, (batch_size,))
    return tuple(torch.stack([data[at + shift : at + shift + block_size] for at in starts]) for shift in (0, 1))


def test_checkpoints_are_restored():
    pytest.importorskip("torch")
    from tests.checking import checkpoints

    assert judge(checkpoints.save_all, "checkpoint", "torch").is_right
    assert judge(checkpoints.load_all, "checkpoint", "torch").is_right
    assert named(judge(checkpoints.save_model, "checkpoint", "torch")) == ["the state of the optimizer is not restored"]


def test_gradients_may_be_clipped_in_place_or_be_returned():
    def without_eps(grads, max_norm):
        norm = np.sqrt(sum((one**2).sum() for one in grads))
        return [one * min(1, max_norm / norm) for one in grads]

    found = judge(without_eps, "clip")
    assert found.is_right and found.found == ("no eps in the divisor",)
    assert named(judge(lambda grads, max_norm: None, "clip")) == [
        "the gradients are unchanged: nothing is clipped in place"
    ]


# batches


def test_properties_of_batches_are_judged_not_their_numbers():
    def cut(data, batch_size, block_size, after=1, last=0, same=False):
        starts = DRAWS.integers(0, len(data) - block_size - last, batch_size)
        starts = starts * 0 + starts[0] if same else starts
        rows = starts[:, None] + np.arange(block_size)
        return data[rows], data[np.minimum(rows + after, len(data) - 1)]

    assert judge(lambda data, batch_size, block_size: cut(data, batch_size, block_size), "batch").is_right
    assert named(judge(lambda data, batch_size, block_size: cut(data, batch_size, block_size, 0), "batch")) == [
        "the targets are the inputs: they are not shifted"
    ]
    assert named(judge(lambda data, batch_size, block_size: cut(data, batch_size, block_size, last=1), "batch")) == [
        "the last start is never drawn"
    ]
    assert named(judge(lambda data, batch_size, block_size: cut(data, batch_size, block_size, same=True), "batch")) == [
        "all rows of a batch start at the same place"
    ]


def test_targets_that_are_shifted_by_different_numbers_have_no_slip():
    def cut(data, batch_size, block_size):
        starts = DRAWS.integers(0, len(data) - block_size, batch_size)
        rows = starts[:, None] + np.arange(block_size)
        return data[rows], data[np.minimum(rows + 2, len(data) - 1)]

    findings = judge(cut, "batch")
    assert [row.where for row in findings.failing] == ["no one number, expected 1"] and not findings.causes


# tokenizers


def test_merges_are_those_of_the_example_of_sennrich():
    # low 5 times, lower 2, widest 3, newest 6; equally frequent pairs: the greater
    words = {"low": 5, "lower": 2, "widest": 3, "newest": 6}
    found = learn_merges({tuple(bytes([one]) for one in word.encode()): count for word, count in words.items()}, 6)
    assert [first + b" " + second for first, second in found] == [b"s t", b"e st", b"o w", b"l ow", b"w est", b"n e"]


def test_ids_are_those_of_a_tokenizer_in_memory():
    tokenizer = make_bpe(dict(enumerate(VOCABULARY[: 256 + len(LEARNED)])), LEARNED)
    for text in ("the lowest of the newest: it's 1024!", "née Zoë 数 🙂", "a  b \n\n c  ", "hahahaha lowlow"):
        assert [VOCABULARY[one] for one in tokenizer.encode(text).ids] == [VOCABULARY[one] for one in ids_of(text, ())]


def test_merges_are_those_of_training_in_memory():
    for size in (256 + 1 + 12, 256 + 1 + 40):
        assert learn(TEXT, size, [END], GREATER, 1, GPT2, 1, 0) == train_bpe([TEXT], size, [END])[1]


class Longest(Tokenizer):
    def encode_part(self, part):
        data, found = part.encode(), []
        while data:
            token = next(data[:size] for size in range(len(data), 0, -1) if data[:size] in self.ids)
            found.append(self.ids[token])
            data = data[len(token) :]
        return found


class ShorterFirst(Tokenizer):
    def __init__(self, vocab, merges, special_tokens):
        super().__init__(vocab, merges, special_tokens)
        self.special = special_tokens or []


class OneByOne(Tokenizer):
    def decode(self, ids):
        return "".join(self.tokens[one].decode("utf-8", "replace") for one in ids)


@pytest.mark.parametrize(
    ("tokenizer", "slip"),
    [
        (ShorterFirst, "of overlapping special tokens the shorter is taken"),
        (OneByOne, "each token is decoded by itself, so that letters of several bytes are lost"),
    ],
)
def test_the_slip_of_a_tokenizer_is_named(tokenizer, slip):
    assert named(judge(tokenizer, "bpe")) == [slip]


def test_a_tokenizer_that_takes_the_longest_token_is_seen():
    assert not judge(Longest, "bpe").is_right


def test_the_first_wrong_merge_is_shown():
    def of_the_lesser(text, vocab_size, special_tokens):
        vocabulary = [bytes([one]) for one in range(256)]
        found = learn(text, vocab_size, special_tokens, LESSER, 1, GPT2, 1, 0)
        tokens = [*vocabulary, *(one + other for one, other in found), *(one.encode() for one in special_tokens)]
        return dict(enumerate(tokens)), found

    findings = judge(of_the_lesser, "train-bpe")
    assert named(findings) == ["of equally frequent pairs the lesser one is merged, not the greater"]
    (row,) = [row for row in findings.rows if row.name == "equally frequent pairs"]
    assert row.where == "merge 2 ' ' + 'a', expected merge 2 'é' + 'a'"
