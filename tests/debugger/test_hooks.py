"""Scripts that record an engine: each is run in its engine, or in a stand-in for one that needs a GPU or a Mac."""

import json
import shutil
import sys
import types

import numpy as np
import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.debugger.compare import Request, compare_with_model
from attnkit.debugger.dumps import open_dump
from attnkit.debugger.hooks import ENGINES, write_hooks
from attnkit.errors import UsageError
from tests.places import DATA, folder
from tests.process import run
from tests.registry import open_model

STORY = str(DATA / "story")


def record(name, engine, monkeypatch, tmp_path, *arguments, why=False):
    """Run the script of a model, and compare what it has written with the model."""
    checkpoint, file = open_model(name), str(tmp_path / "mine.npz")
    monkeypatch.setattr(sys, "argv", ["hooks.py", *arguments, file])
    exec(compile(write_hooks(checkpoint, engine), "hooks.py", "exec"), {})
    towers = ("text", "vision") if checkpoint.similarity else ("",)
    places = [f"{checkpoint.place}:{tower}".rstrip(":") for tower in towers]
    return [compare_with_model(open_checkpoint(one), open_dump(file), Request(why=why)) for one in places]


@pytest.fixture(scope="module")
def transformers():
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_script_states_its_commands_and_compiles(engine):
    script = run("show", STORY, "--hooks", engine).out.decode()
    compile(script, "hooks.py", "exec")
    argument = {"torch": " MODULE:LOAD", "jax": " MODULE:FUNCTION", "onnx": " MODEL.onnx", "llama.cpp": " MODEL.gguf"}
    assert f"\n    python hooks.py{argument.get(engine, '')} [MINE.npz [TOKEN_ID ...]]\n" in script
    assert f"\n    attnkit diff --model {STORY} MINE.npz --why\n" in script
    assert not any(word in script for word in ("$", "None,"))
    assert ("if not sys.argv[1:]:\n    sys.exit(__doc__)\n" in script) == (engine in argument)


def test_a_script_without_its_argument_says_how_it_is_called(monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(sys, "argv", ["hooks.py"])
    with pytest.raises(SystemExit, match=r"python hooks.py MODEL.onnx \[MINE.npz"):
        exec(compile(write_hooks(open_checkpoint(STORY), "onnx"), "hooks.py", "exec"), {})


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize(
    ("name", "stages"), [("gpt2", 30), ("bart-labels", 100), ("siglip", 30), ("waves/layer", 40), ("smolvlm", 20)]
)
def test_what_transformers_computes(name, stages, monkeypatch, tmp_path):
    """One of each kind of input; scripts of all models of the registry were run when the test was written."""
    for report in record(name, "transformers", monkeypatch, tmp_path):
        assert report.same, repr(report)
        assert len(report.rows) > stages


OWN = '''
import torch
from safetensors.torch import load_file

class Own(torch.nn.Module):
    """GPT-2 with names of its own, Linear for Conv1D, and one activation of the wrong kind."""

    def __init__(self, stored):
        super().__init__()
        embedding = lambda name: torch.nn.Embedding.from_pretrained(stored[f"transformer.{name}.weight"].float())
        self.words, self.places, self.layers = embedding("wte"), embedding("wpe"), torch.nn.ModuleList()
        self.head, numbers = torch.nn.Linear(64, 512, bias=False), range(3)
        self.head.weight = self.words.weight
        for number in numbers:
            parts = {"first": "ln_1", "joint": "attn.c_attn", "out": "attn.c_proj", "second": "ln_2", "up": "mlp.c_fc",
                     "down": "mlp.c_proj"}
            self.layers.append(torch.nn.ModuleDict({
                own: self.part(stored, f"transformer.h.{number}.{name}") for own, name in parts.items()}))
        self.last = self.part(stored, "transformer.ln_f")

    def part(self, stored, name):
        weight, bias = (stored[f"{name}.{key}"].float() for key in ("weight", "bias"))
        module = torch.nn.LayerNorm(len(weight)) if weight.ndim == 1 else torch.nn.Linear(*weight.shape)
        module.weight.data, module.bias.data = (weight if weight.ndim == 1 else weight.T.contiguous()), bias
        return module

    def forward(self, ids):
        x, attend = self.words(ids) + self.places(torch.arange(ids.shape[1])), torch.nn.functional
        for one in self.layers:
            heads = [z.unflatten(-1, (4, -1)).transpose(1, 2) for z in one["joint"](one["first"](x)).chunk(3, -1)]
            joined = attend.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
            x = x + one["out"](joined)
            x = x + one["down"](attend.silu(one["up"](one["second"](x))))
        return self.head(self.last(x))

def load(folder):
    return Own(load_file(folder + "/model.safetensors"))
'''


@pytest.mark.usefixtures("transformers")
def test_modules_of_your_own_have_the_published_names_of_their_weights(monkeypatch, tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    [report] = record("story", "torch", monkeypatch, tmp_path, "own:load", why=True)
    sys.modules.pop("own")
    assert [row.site for row in report.rows if row.differs] == [f"decoder.{at}.ffn.output" for at in range(3)]
    assert {cause.name for row in report.rows for cause in row.causes} == {
        "the activation is silu (expected gelu-tanh)"
    }
    assert len(report.rows) == 28 and report.rows[-1].site == "logits"


PORT = """
import attnkit, jax, jax.numpy as jnp
from attnkit.checkpoints import open_checkpoint

@jax.jit
def forward(ids):
    table = jnp.asarray(open_checkpoint(FOLDER).params["decoder.embed"]["table"])
    return attnkit.tap("decoder.embed", table[ids])
"""


def test_what_a_function_of_jax_taps(monkeypatch, tmp_path):
    pytest.importorskip("jax")
    (tmp_path / "port.py").write_text(f"FOLDER = {folder('gpt2')!r}\n{PORT}")
    monkeypatch.syspath_prepend(str(tmp_path))
    [report] = record("gpt2", "jax", monkeypatch, tmp_path, "port:forward")
    sys.modules.pop("port")
    assert report.same and [row.site for row in report.rows] == ["decoder.embed"]
    script = write_hooks(open_model("gpt2"), "jax")
    assert "\n    decoder.0.self.weights\n" in script and "decoder.1.norm1" not in script
    assert "\n    logits\n    and those of decoder.1 to decoder.1\n" in script
    assert "\n    encoder.embed.patches\n" in write_hooks(open_model("dinov3"), "jax")


def test_what_an_onnx_model_computes(monkeypatch, tmp_path):
    """A graph of the embeddings alone, with an empty cache that it passes on."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kinds = onnx.helper, onnx.TensorProto
    weights = {name: onnx.numpy_helper.from_array(array, name)
               for name, array in open_dump(f"{folder('gpt2')}/model.safetensors").items()
               if name.partition("transformer.")[2] in ("wte.weight", "wpe.weight")}  # fmt: skip
    words, places = sorted(weights, reverse=True)
    nodes = [
        helper.make_node("Gather", [words, "input_ids"], ["/transformer/wte/Gather_output_0"]),
        helper.make_node("Gather", [places, "position_ids"], ["/transformer/wpe/Gather_output_0"]),
        helper.make_node("Identity", ["past_key_values.0.key"], ["present"]),
    ]
    ids = [helper.make_tensor_value_info(name, kinds.INT64, [1, "t"]) for name in ("input_ids", "position_ids")]
    cache = helper.make_tensor_value_info("past_key_values.0.key", kinds.FLOAT, ["b", 2, "past", 8])
    result = helper.make_tensor_value_info("present", kinds.FLOAT, None)
    graph = helper.make_graph(nodes, "graph", [*ids, cache], [result], [*weights.values()])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.save(made, str(tmp_path / "m.onnx"))
    [report] = record("gpt2", "onnx", monkeypatch, tmp_path, str(tmp_path / "m.onnx"))
    assert report.same and [row.site for row in report.rows] == ["decoder.embed.words", "decoder.positions.rows"]


class StandIn:
    """LLM of vLLM, with the model of transformers in its place."""

    def __init__(self, folder, dtype, enforce_eager, enable_prefix_caching):
        import transformers

        assert (dtype, enforce_eager, enable_prefix_caching) == ("float32", True, False)
        kind = transformers.AutoModelForCausalLM
        self.model = kind.from_pretrained(folder, attn_implementation="eager", dtype="float32").eval()

    def apply_model(self, function):
        function(self.model)

    def generate(self, prompts, sampling):
        import torch

        assert sampling == {"temperature": 0, "max_tokens": 1}
        with torch.no_grad():
            self.model(torch.tensor([prompts[0]["prompt_token_ids"]]), use_cache=False)


@pytest.mark.usefixtures("transformers")
def test_the_hooks_of_vllm_in_a_stand_in(monkeypatch, tmp_path):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "")
    monkeypatch.setitem(sys.modules, "vllm", types.SimpleNamespace(LLM=StandIn, SamplingParams=dict))
    [report] = record("llama", "vllm", monkeypatch, tmp_path)
    assert report.same and len(report.rows) > 25, repr(report)


class Module:
    """A module of MLX as its library has it: found by its path, called by its class."""

    def __init__(self, table):
        self.embed = Table(table)

    def named_modules(self):
        return [("", self), ("model.embed_tokens", self.embed)]

    def modules(self):
        return [self, self.embed]

    def set_dtype(self, dtype):
        self.embed.table = self.embed.table.astype(dtype)

    def __call__(self, ids):
        return self.embed(ids) @ self.embed.table.T


class Table:
    def __init__(self, table):
        self.table = table

    def __call__(self, ids):
        return self.table[ids]


def test_the_hooks_of_mlx_in_a_stand_in(monkeypatch, tmp_path):
    """tests/references/make_port_dumps.py runs in MLX; here the calls are counted and named."""
    table = open_model("llama").params["decoder.embed"]["table"]
    core = types.SimpleNamespace(array=np.ndarray, float32=np.float32)
    core.array = type("array", (np.ndarray,), {"__new__": lambda kind, one: np.asarray(one).view(kind)})
    model = Module(core.array(table))
    library = {"mlx": types.ModuleType("mlx"), "mlx.core": core, "mlx_lm": types.ModuleType("mlx_lm"),
               "mlx_lm.utils": types.SimpleNamespace(load_model=lambda folder: (model, {}))}  # fmt: skip
    library["mlx"].core = core
    for name, one in library.items():
        monkeypatch.setitem(sys.modules, name, one)
    for kind in (Module, Table):
        monkeypatch.setattr(kind, "__call__", kind.__call__)
    [report] = record("llama", "mlx", monkeypatch, tmp_path)
    assert [row.site for row in report.rows] == ["decoder.embed.words", "logits"] and not report.rows[0].differs


@pytest.mark.parametrize(("name", "engine", "problem"), [
    ("bert", "vllm", "vllm: this bert model continues no text"),
    ("t5", "mlx", "mlx: this t5 model continues no text"),
    ("vit", "torch", "torch: a vit model reads more than token ids; transformers or jax record it"),
    ("transformer", "transformers", "transformers: config.json names no class in architectures"),
    ("opt", "llama.cpp", "this opt model has no architecture of llama.cpp that attnkit reads"),
    ("gguf/gpt2", "onnx", "onnx: needs the folder that the GGUF file was made of; llama.cpp reads the file"),
])  # fmt: skip
def test_an_engine_that_does_not_run_a_model(name, engine, problem):
    with pytest.raises(UsageError) as error:
        write_hooks(open_model(name), engine)
    assert str(error.value) == f"--hooks: {problem}"


def test_nothing_of_a_folder_becomes_code(tmp_path):
    place = tmp_path / '"""\nimport evil\n"""$ids'
    place.mkdir()
    for file in ("config.json", "model.safetensors"):
        shutil.copy(f"{folder('gpt2')}/{file}", place)
    config = json.loads((place / "config.json").read_text()) | {"architectures": ["GPT2; import evil"]}
    tree = compile(write_hooks(open_checkpoint(str(place)), "onnx"), "hooks.py", "exec")
    assert "evil" not in tree.co_names
    (place / "config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match="names no class"):
        write_hooks(open_checkpoint(str(place)), "transformers")


def test_hooks_are_of_a_whole_model():
    assert "import mlx" in str(attnkit.show(folder("llama"), hooks="mlx"))
    for operand, flags, problem in (
        (f"{STORY}:decoder.0.self", (), "--hooks: cannot be combined with DIR:decoder.0.self"),
        (f"{STORY}", ("--list",), "--hooks: cannot be combined with --list"),
        (
            str(DATA / "words.json"),
            (),
            "--hooks: needs the folder of a model, or its GGUF file: attnkit show DIR --hooks",
        ),
    ):
        result = run("show", operand, "--hooks", "mlx", *flags)
        assert result.code == 2 and problem in result.err
