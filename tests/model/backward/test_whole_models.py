"""The gradients of whole models: those of torch.autograd, frozen, and slopes along random directions."""

import re
from functools import cache

import numpy as np
import pytest

from attnkit.checkpoints import open_checkpoint
from attnkit.errors import DataError, UsageError
from attnkit.model import KVCache, Model, decoder_layer, encoder_layer, token_positions
from attnkit.model.backward.tape import Dropout, Reverse
from attnkit.model.backward.tied import cast_parameters, tied_parameters
from attnkit.model.config import Config, StackConfig
from attnkit.model.context import Context
from attnkit.model.passes.model_gradients import StackInputs, model_backward, run_model
from attnkit.model.passes.recorded_pass import run_backward, run_recorded
from tests.places import REFERENCES

SMALL = 32  # elements of a gradient that is frozen whole
CASES = {  # case of tests/references/gradients.npz -> the model
    "gpt2": "gpt2", "gpt2-left": "gpt2", "gpt2-scaled": "gpt2-scaled", "openai-gpt": "openai-gpt", "llama": "llama",
    "llama3": "llama3", "llama-yarn": "llama-yarn", "mistral": "mistral", "qwen2": "qwen2", "bert-mlm": "bert-mlm",
    "bert": "bert", "vit": "vit", "vit-wide": "vit", "t5": "t5", "t5-gated": "t5-gated", "marian": "marian",
    "transformer": "transformer", "transformer-prenorm": "transformer-prenorm",
}  # fmt: skip
LONG = ("llama3", "llama-yarn", "mistral", "qwen2")


@cache
def frozen(file):
    with np.load(REFERENCES / file) as members:
        return dict(members)


def reference(case):
    return {key.removeprefix(f"{case}/"): x for key, x in frozen("gradients.npz").items() if key.startswith(f"{case}/")}


@cache
def core(name, dtype):
    checkpoint = open_checkpoint(str(REFERENCES / "models" / name))
    return Model(checkpoint.config, cast_parameters(checkpoint.params, dtype))


def padding(mask):
    return mask[:, None].astype(bool)


def inputs_of(case, dtype):
    """The inputs of each stack, and which output the loss is of."""
    members = frozen(f"models/{CASES[case]}.npz")
    if case.startswith("vit"):
        return {"encoder": StackInputs(members[{"vit": "pixels"}.get(case, "wide.pixels")].astype(dtype))}, "logits"
    if case.startswith("transformer"):
        x, tgt = members["x"].astype(dtype), members["tgt"].astype(dtype)
        return {"encoder": StackInputs(x, padding(members["padding"])), "decoder": StackInputs(tgt)}, "hidden"
    if case == "bert":
        return {"encoder": StackInputs(members["ids"], segment_ids=members["types"])}, "pooled"
    if case in LONG:
        return {"decoder": StackInputs(members["long_ids"])}, "logits"
    side = "left" if case == "gpt2-left" else "batch"
    ids, mask = members[f"{side}_ids"], padding(members[f"{side}_mask"])
    if case.startswith(("t5", "marian")):
        return {"encoder": StackInputs(ids, mask), "decoder": StackInputs(members["batch_decoder_ids"])}, "logits"
    positions = token_positions(mask) if side == "left" else None
    return {"encoder" if case == "bert-mlm" else "decoder": StackInputs(ids, mask, positions=positions)}, "logits"


def loss_of(y, members):
    """The loss, and its gradient: mean cross-entropy where targets are not -100, or the mean of y times an array."""
    if "grad_output" in members:
        dy = members["grad_output"] / members["grad_output"].size
        return float((y * dy).sum()), dy.astype(y.dtype)
    targets = members["targets"]
    shifted = y - y.max(axis=-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    real = (targets >= 0)[..., None]
    hot = (targets[..., None] == np.arange(y.shape[-1])) & real
    return -float((logs * hot).sum() / real.sum()), ((np.exp(logs) * real - hot) / real.sum()).astype(y.dtype)


def gradients_of(model, inputs, output, members, **options):
    """The loss and the gradients of parameters, by name."""
    y, recorded = run_model(model, inputs, output=output, **options)
    loss, dy = loss_of(y, members)
    gradients = model_backward(model, recorded, dy)
    return loss, {f"{layer}.{name}": x for layer, names in gradients.params.items() for name, x in names.items()}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_torch_autograd(case, dtype):
    """In float64 to 1e-9 of the largest number of a tensor, in float32 to 1e-5.

    Random weights amplify rounding: where PyTorch's own float32 is further from its float64 than half of that in some
    tensor of the model (only in T5, whose scores are not scaled), ours may be twice as far.
    """
    members = reference(case)
    model, (inputs, output) = core(CASES[case], dtype), inputs_of(case, dtype)
    loss, gradients = gradients_of(model, inputs, output, members)
    assert set(gradients) == set(members["names"])
    wide = dtype == "float64"
    assert abs(loss - members["loss"]) <= (1e-11 if wide else 1e-5) * max(1, abs(members["loss"]))
    largest = dict(zip(members["names"], members["stats"][:, 0], strict=True))
    start, worst = 0, {}
    limit = 1e-9 if wide else max(1e-5, 2 * members["float32"].max())
    for name, stats in zip(members["names"], members["stats"], strict=True):
        gradient = gradients[name]
        assert gradient.dtype == dtype
        # those of the biases of queries and keys are sums that cancel, of keys to 0: compare with their weights'
        scale, flat = largest[re.sub(r"\.b([qk])$", r".w\1", name)], gradient.astype(float).ravel()
        signs = np.random.default_rng(flat.size).choice([-1.0, 1.0], (2, flat.size)) / flat.size**0.5
        errors = [np.abs(signs @ flat - stats[1:]).max(), abs(np.abs(flat).max() - stats[0])]
        if flat.size <= SMALL:
            errors.append(np.abs(flat - members["small"][start : start + flat.size]).max())
            start += flat.size
        worst[name] = max(errors) / scale
    assert start == members["small"].size
    assert max(worst.values()) <= limit, sorted(worst.items(), key=lambda item: -item[1])[:5]


def gpt2(dtype="float64"):
    """The small GPT-2, its padded batch, and the gradient of some loss of its logits."""
    model, (inputs, _) = core("gpt2", dtype), inputs_of("gpt2", dtype)
    y, recorded = run_model(model, inputs)
    return model, inputs, recorded, np.random.default_rng(0).standard_normal(y.shape).astype(dtype)


def test_tied_parameters_share_one_gradient():
    model, _, recorded, dy = gpt2()
    assert tied_parameters(model.params) == [[("decoder.embed", "table"), ("head", "w")]]
    tied = model_backward(model, recorded, dy).params
    np.testing.assert_array_equal(tied["head"]["w"], tied["decoder.embed"]["table"].T)
    apart = Model(model.config, {layer: dict(parts) for layer, parts in model.params.items()})
    apart.params["head"]["w"] = model.params["head"]["w"].copy()
    parts = model_backward(apart, recorded, dy).params
    total = parts["head"]["w"].T + parts["decoder.embed"]["table"]
    np.testing.assert_allclose(tied["head"]["w"].T, total, rtol=1e-13)


def test_gradients_of_several_batches_add_up():
    model, inputs, recorded, dy = gpt2()
    once = model_backward(model, recorded, dy).params
    rows = [slice(0, 1), slice(1, 3)]
    total = Reverse()
    for row in rows:
        x, mask = inputs["decoder"].x[row], inputs["decoder"].mask[row]
        _, part = run_model(model, {"decoder": StackInputs(x, mask)})
        for layer, parts in model_backward(model, part, dy[row]).params.items():
            total.add(layer, parts)
    for layer, names in once.items():
        for name, gradient in names.items():
            np.testing.assert_allclose(total.gradients[layer][name], gradient, rtol=1e-9, atol=1e-11)


def test_padding_has_no_gradient_and_no_effect():
    model, inputs, recorded, dy = gpt2()
    mask = inputs["decoder"].mask[:, 0]
    once = model_backward(model, recorded, dy * mask[..., None])
    assert not once.inputs["decoder"][~mask].any()
    other = StackInputs(np.where(mask, inputs["decoder"].x, 5), inputs["decoder"].mask)
    again = model_backward(model, run_model(model, {"decoder": other})[1], dy * mask[..., None])
    for layer, names in once.params.items():
        for name, gradient in names.items():
            np.testing.assert_allclose(again.params[layer][name], gradient, rtol=1e-9, atol=1e-12, err_msg=layer)


def test_gradients_have_the_dtype_that_the_pass_computes_in():
    case = "llama"
    members, (inputs, output) = reference(case), inputs_of(case, "float32")
    _, exact = gradients_of(core(case, "float64"), inputs, output, members)
    for dtype, result, limit in (("float64", "float64", 1e-12), ("float16", "float32", 0.1)):
        _, gradients = gradients_of(core(case, "float32"), inputs, output, members, dtype=dtype)
        for name, gradient in gradients.items():
            assert gradient.dtype == result, name
            assert np.abs(gradient - exact[name]).max() <= limit * np.abs(exact[name]).max(), name


def test_every_step_drops_others_and_the_same_step_the_same():
    model, inputs, *_ = gpt2()
    first, _ = run_model(model, inputs, dropout=Dropout(0.2, seed=1, step=3))
    again, recorded = run_model(model, inputs, dropout=Dropout(0.2, seed=1, step=3))
    np.testing.assert_array_equal(first, again)
    for other in (Dropout(0.2, 1, 4), Dropout(0.2, 2, 3), Dropout(0.3, 1, 3)):
        assert not np.allclose(first, run_model(model, inputs, dropout=other)[0])
    np.testing.assert_array_equal(run_model(model, inputs, dropout=Dropout(0.0, 1, 3))[0], run_model(model, inputs)[0])
    assert recorded.tapes["decoder"].dropped == {
        "decoder.positions", "decoder.0.self", "decoder.0.ffn", "decoder.1.self", "decoder.1.ffn",
    }  # fmt: skip


def test_a_hook_may_replace_gradients():
    model, _, recorded, dy = gpt2()
    stop = {"decoder.1.ffn.output": np.zeros_like, "decoder.1.self.output": np.zeros_like}
    stopped = model_backward(model, recorded, dy, hook=stop.get).params
    assert not any(gradient.any() for gradient in stopped["decoder.1.ffn"].values())
    assert not any(gradient.any() for gradient in stopped["decoder.1.norm1"].values())
    assert stopped["decoder.0.ffn"]["w1"].any()


@pytest.mark.parametrize(("layer", "cross"), [(encoder_layer, False), (decoder_layer, True)])
def test_a_layer_by_itself(layer, cross, directions):
    """The layers of the paper, recorded as the steps of a stack of one layer."""
    rng = np.random.default_rng(2)
    name = layer.__name__.removesuffix("_layer")
    parts = ("self", "cross") if cross else ("self",)
    attend = {part: {key: rng.standard_normal((4, 4)) for key in ("wq", "wk", "wv", "wo")} for part in parts}
    params = {**attend, "ffn": {"w1": rng.standard_normal((4, 6)), "w2": rng.standard_normal((6, 4))}}
    stack = StackConfig(1, 2, 6, 2, 2, causal=cross, cross=cross)
    config = Config("", 4, **{name: stack}, activation="silu", head=False)
    model = Model(config, {f"{name}.0.{part}": weights for part, weights in params.items()})
    arrays = {"x": rng.standard_normal((3, 4)), "memory": rng.standard_normal((5, 4))}
    dy = rng.standard_normal((3, 4))

    def outputs(arrays):
        memory = [arrays["memory"]] if cross else []
        return layer(arrays["x"], *memory, params, heads=2, activation="silu")

    context = Context(memory=arrays["memory"] if cross else None)
    y, tape = run_recorded(model, config.plan(name), arrays["x"], context)
    np.testing.assert_allclose(y, outputs(arrays), rtol=1e-12)
    reverse = Reverse()
    gradients = {"x": run_backward(model, tape, dy, reverse)} | ({"memory": reverse.memory} if cross else {})
    directions(lambda moved: np.vdot(dy, outputs(moved)), arrays, gradients, rng)


def test_the_first_layer_that_is_not_finite_is_named():
    model, inputs, *_ = gpt2("float32")
    broken = Model(model.config, {layer: dict(parts) for layer, parts in model.params.items()})
    broken.params["decoder.1.self"]["wv"] = np.full_like(model.params["decoder.1.self"]["wv"], np.nan)
    first = []
    context = Context(inputs["decoder"].mask, on_non_finite=first.append)
    run_recorded(broken, model.config.plan("decoder"), inputs["decoder"].x, context)
    assert first == ["decoder.1.self"]


def test_what_cannot_be_recorded():
    model, inputs, recorded, dy = gpt2()
    with pytest.raises(UsageError, match="cache"):
        run_recorded(model, model.config.plan("decoder"), inputs["decoder"].x, Context(cache=KVCache()))
    with pytest.raises(DataError, match="inputs of encoder: a gpt2 model needs those of its decoder"):
        run_model(model, {"encoder": inputs["decoder"]})
    with pytest.raises(UsageError, match=r"output 'logit' \(expected one of logits, pooled, hidden\)"):
        run_model(model, inputs, output="logit")
    with pytest.raises(DataError, match="gradient"):
        model_backward(model, recorded, dy[:, :2])
