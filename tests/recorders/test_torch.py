"""Recordings of torch modules; tests/debugger/test_dumps.py reads one that is frozen."""

import gc
import os
import threading
import weakref

import numpy as np
import pytest

from attnkit.debugger.dumps import open_dump
from attnkit.errors import DataError, UsageError
from attnkit.recorders import record, tap
from tests.places import folder


@pytest.fixture(scope="module", autouse=True)
def libraries():
    """Import torch and transformers when the first test runs: collection imports this file in every worker."""
    global torch, transformers
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))


def has_hooks(module):
    return any(one._forward_hooks or one._forward_pre_hooks for one in module.modules())


def record_call(path, module, *arguments, call=0, **keywords):
    with torch.no_grad(), record(path / "mine.npz", module, call=call):
        module(*arguments, **keywords)
    assert not has_hooks(module)
    return dict(open_dump(str(path / "mine.npz")))


def load_model(name, kind="AutoModelForCausalLM"):
    return getattr(transformers, kind).from_pretrained(folder(name)).eval()


def test_shared_modules_have_the_path_inside_their_caller(tmp_path):
    class Pair(torch.nn.Module):
        """Two paths of one module, and one within each of two parents."""

        def __init__(self):
            super().__init__()
            self.first = self.second = torch.nn.Linear(2, 2)
            self.left, self.right = torch.nn.Module(), torch.nn.Module()
            shared = torch.nn.Tanh()
            for side in (self.left, self.right):
                side.inner = torch.nn.Sequential(shared)

        def forward(self, x):
            return self.right.inner(self.left.inner(self.second(x)))

    found = record_call(tmp_path, Pair(), torch.ones(1, 2))
    assert [name for name in found if name.endswith("output")] == [
        "first.output", "second.output", "left.inner.0.output", "left.inner.output", "right.inner.0.output",
        "right.inner.output", "output",
    ]  # fmt: skip


def test_parts_of_inputs_and_outputs(tmp_path):
    class Kinds(torch.nn.Module):
        def forward(self, x, *others, **keywords):
            return {"list": [x, (x + 1, None, "text")], "number": 7, 3: x.bool()}

    x = torch.ones(2)
    found = record_call(tmp_path, Kinds(), x, None, [x], mask=x, name="a")
    assert [*found] == ["input.0", "input.2.0", "input.mask", "output.list.0", "output.list.1.0", "output.3"]


@pytest.mark.parametrize(
    "make, expected",
    [
        (lambda: torch.tensor([1.5, 2], dtype=torch.bfloat16), "bfloat16"),
        (lambda: torch.tensor([1.5, 2], dtype=torch.float16), "float16"),
        (lambda: torch.tensor([1.5, 2]).to(torch.float8_e4m3fn), "float32"),
        (lambda: torch.tensor([1.5, 2], requires_grad=True), "float32"),
        (lambda: torch.tensor([1.5, 2]).to_sparse(), "float32"),
        (lambda: torch.arange(4).reshape(2, 2).t()[0] + 0, "int64"),
        (lambda: torch.tensor([1 + 2j, 3]).conj(), "float32"),
        (lambda: torch.tensor(3), "int64"),
        (lambda: torch.zeros(0, 3), "float32"),
    ],
)
def test_tensors_of_every_kind(tmp_path, make, expected):
    tensor = make()
    with record(tmp_path / "mine.npz"):
        assert tap("x", tensor) is tensor
    found = open_dump(str(tmp_path / "mine.npz"))["x"]
    assert found.dtype.name == expected
    if expected in ("bfloat16", "float16"):
        assert found.astype(float).tolist() == [1.5, 2]
    if tensor.is_complex():
        assert found.tolist() == [[1, -2], [3, 0]]


def test_a_tensor_is_written_as_it_is_then(tmp_path):
    class InPlace(torch.nn.Module):
        def forward(self, x):
            return x.add_(1)

    model = torch.nn.Sequential(InPlace(), InPlace())
    found = record_call(tmp_path, model, torch.zeros(1))
    assert {name: float(array[0]) for name, array in found.items()} == {
        "input": 0, "0.input": 0, "0.output": 1, "1.input": 1, "1.output": 2, "output": 2,
    }  # fmt: skip


def test_generate_records_the_pass_over_the_prompt_or_a_later_one(tmp_path):
    model, ids = load_model("llama"), torch.tensor([[5, 6, 7, 8]])

    def generate(call):
        with record(tmp_path / "mine.npz", model, call=call):
            tokens = model.generate(ids, max_new_tokens=3, do_sample=False)
        return dict(open_dump(str(tmp_path / "mine.npz"))), tokens

    prompt, tokens = generate(0)
    assert prompt["input.input_ids"].tolist() == ids.tolist() and prompt["model.layers.1.output"].shape[1] == 4
    second, _ = generate(2)
    assert second["input.input_ids"].tolist() == [[int(tokens[0, 5])]] and [*second] == [*prompt]
    with torch.no_grad():
        whole = record_call(tmp_path, model, ids)
    assert np.allclose(whole["model.norm.output"], prompt["model.norm.output"], atol=1e-6)
    with pytest.raises(DataError, match="the module was called 3 times, and call 3 is to be recorded"):
        generate(3)


def test_an_encoder_and_a_decoder_in_generate(tmp_path):
    model, ids = load_model("t5", "T5ForConditionalGeneration"), torch.tensor([[5, 6, 7, 8]])
    with record(tmp_path / "mine.npz", model):
        model.generate(ids, max_new_tokens=3, do_sample=False)
    found = open_dump(str(tmp_path / "mine.npz"))
    assert {"encoder.embed_tokens.output", "decoder.embed_tokens.output", "encoder.output.last_hidden_state"} <= {
        *found
    }
    assert found["decoder.embed_tokens.output"].shape[1] == 1 and "shared.output" not in found
    with record(tmp_path / "mine.npz", model, call=1):
        model.generate(ids, max_new_tokens=3, do_sample=False)
    assert not [name for name in open_dump(str(tmp_path / "mine.npz")) if name.startswith("encoder.")]


def test_each_call_of_a_layer_that_is_shared(tmp_path):
    found = record_call(tmp_path, load_model("albert", "AutoModel"), torch.tensor([[5, 6, 7]]))
    calls = [
        name
        for name in found
        if name.startswith("encoder.albert_layer_groups.0.albert_layers.0.ffn") and "ffn_" not in name
    ]
    path = "encoder.albert_layer_groups.0.albert_layers.0.ffn"
    assert calls[:5] == [f"{path}.input", f"{path}.output", f"{path}#1.input", f"{path}#1.output", f"{path}#2.input"]


def test_taps_inside_a_call_that_is_not_recorded_are_left_out(tmp_path):
    class Tapping(torch.nn.Module):
        def forward(self, x):
            return tap("inside", x * 2)

    module = Tapping()
    with record(tmp_path / "mine.npz", module, call=1):
        tap("outside", np.ones(1))
        for number in range(3):
            module(torch.tensor([float(number)]))
    found = open_dump(str(tmp_path / "mine.npz"))
    assert [*found] == ["outside", "input", "inside", "output"] and found["inside"].tolist() == [2]


def test_a_forward_pass_that_fails_removes_hooks_and_file(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(2, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        record_call(tmp_path, model, torch.ones(1, 2))
    assert os.listdir(tmp_path) == [] and not any(
        one._forward_hooks or one._forward_pre_hooks for one in model.modules()
    )
    with record(tmp_path / "mine.npz", model, call=1):  # the program catches the error and goes on
        with pytest.raises(RuntimeError):
            model(torch.ones(1, 2))
        model[0](torch.ones(1, 2))
        model[0](torch.ones(1, 2))
    assert [*open_dump(str(tmp_path / "mine.npz"))] == ["0.input", "0.output"]


def test_a_tensor_without_numbers_is_one_error(tmp_path):
    model = torch.nn.Linear(2, 2, device="meta")
    with pytest.raises(DataError, match=r"mine\.npz: tensor 'input': cannot be recorded: ") as caught:
        record_call(tmp_path, model, torch.ones(1, 2, device="meta"))
    assert "\n" not in str(caught.value) and os.listdir(tmp_path) == []


def test_two_threads_may_call_the_model(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
    with record(tmp_path / "mine.npz", model):
        threads = [threading.Thread(target=model, args=[torch.ones(1, 2)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [*open_dump(str(tmp_path / "mine.npz"))] == ["input", "0.input", "0.output", "1.input", "1.output", "output"]


def test_training_works_while_it_is_recorded(tmp_path):
    model = torch.nn.Linear(2, 2)
    with record(tmp_path / "mine.npz", model):
        model(torch.ones(1, 2)).sum().backward()
    assert model.weight.grad is not None


@pytest.mark.filterwarnings("ignore")
def test_compiled_modules_have_the_names_of_their_own(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.compile(torch.nn.Tanh(), backend="eager"))
    names = ["input", "0.input", "0.output", "1.input", "1.output", "output"]
    for module in (model, torch.compile(model, backend="eager")):
        for _ in range(2):  # the second time it was compiled before
            assert [*record_call(tmp_path, module, torch.ones(1, 2))] == names


@pytest.mark.filterwarnings("ignore")
def test_a_module_of_torchscript_is_refused(tmp_path):
    script = torch.jit.script(torch.nn.Linear(2, 2))
    with pytest.raises(UsageError, match=r"record: the module is compiled by torch\.jit"):
        record_call(tmp_path, script, torch.ones(1, 2))
    found = record_call(tmp_path, torch.nn.Sequential(script), torch.ones(1, 2))
    assert [*found] == ["input", "output"]


def test_a_model_is_not_kept_after_its_recording(tmp_path):
    model = torch.nn.Linear(2, 2)
    record_call(tmp_path, model, torch.ones(1, 2))
    kept = weakref.ref(model)
    del model
    gc.collect()
    assert kept() is None


def test_arguments_without_names_have_those_of_the_parameters(tmp_path):
    class Masked(torch.nn.Module):
        def forward(self, input_ids, attention_mask):
            return input_ids * attention_mask

    class Any(torch.nn.Module):
        def forward(self, *parts):
            return parts[0] + parts[1]

    for module, names in ((Masked(), ["input.input_ids", "input.attention_mask"]), (Any(), ["input.0", "input.1"])):
        with record(tmp_path / "mine.npz", module):
            module(torch.tensor([2, 3]), torch.tensor([1, 0]))
        found = open_dump(str(tmp_path / "mine.npz"))
        assert [*found] == [*names, "output"] and found[names[1]].tolist() == [1, 0]
