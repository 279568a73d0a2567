"""Models of 16 bits whose float32 does not fit into memory: the same bits, one layer at a time."""

import json
import re
import resource
import shutil
import sys
import tracemalloc
import weakref

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from attnkit import formats, model
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import AttnkitNote
from attnkit.formats import memory
from attnkit.model.passes import output_head
from tests import process
from tests.generation import test_decoders as decoders
from tests.places import FRENCH, STORY, arrays, folder

pytestmark = pytest.mark.filterwarnings("ignore::attnkit.errors.AttnkitNote")
SHAPE = {"width": 512, "hidden": 2048, "layers": 12, "vocab": 6000}  # of a model of 200 MB in float32
LIMIT = 128 << 20  # bytes that its process may take, with its libraries


@pytest.fixture
def no_room(monkeypatch):
    """Lets no parameters be kept, if it is called."""
    return lambda: monkeypatch.setattr(formats, "available_memory", lambda: 0)


def llama(path, width, hidden, layers, vocab):
    """Write a Llama of random weights in bfloat16."""
    rng, half = np.random.default_rng(0), {"q_proj": width, "k_proj": width // 2, "v_proj": width // 2}
    shapes = {"model.embed_tokens.weight": (vocab, width), "model.norm.weight": (width,)}
    for place in (f"model.layers.{number}" for number in range(layers)):
        shapes |= {f"{place}.self_attn.{name}.weight": (size, width) for name, size in half.items()}
        shapes |= {f"{place}.self_attn.o_proj.weight": (width, width)}
        shapes |= {f"{place}.mlp.{name}_proj.weight": (hidden, width) for name in ("gate", "up")}
        shapes |= {f"{place}.mlp.down_proj.weight": (width, hidden)}
        shapes |= {f"{place}.{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
    tensors = {name: rng.standard_normal(shape, np.float32) * shape[-1] ** -0.5 for name, shape in shapes.items()}
    path.mkdir()
    written = {name: one.astype(ml_dtypes.bfloat16) for name, one in tensors.items()}
    safetensors.numpy.save_file(written, path / "model.safetensors")
    config = {"model_type": "llama", "vocab_size": vocab, "hidden_size": width, "intermediate_size": hidden}
    config |= {"num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-6}
    config |= {"max_position_embeddings": 128, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2}
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def outputs(path, ids, mask):
    """What a decoder computes in each way: a trace, a padded batch, tokens one by one, greedy text and beams."""
    checkpoint, found = open_checkpoint(str(path)), {}
    core, steps = decoders.core(checkpoint), checkpoint.config.plan("decoder")

    def hook(where):
        return lambda x: found.setdefault(where, x.copy())

    model.head_logits(core, model.run(core, steps, ids, model.Context(hook=hook)), hook)
    real = mask[:, None].astype(bool)
    context = model.Context(mask=real, positions=model.token_positions(real))
    found["batch"] = model.head_logits(core, model.run(core, steps, ids[: len(mask), : mask.shape[1]], context))
    decoder = model.CachedDecoder(core)
    found["cached"] = np.stack([decoder(ids[:1, :4]), *(decoder(ids[:1, at : at + 1]) for at in range(4, 7))])
    settings, prompt = model.SamplingConfig(limit=6), [int(token) for token in ids[0, :4]]
    found["greedy"] = np.array(model.generate(model.CachedDecoder(core), prompt, settings).ids)
    found["beam"] = np.array(model.beam_search(model.CachedDecoder(core), prompt, settings, 3)[0].ids)
    return checkpoint, found


@pytest.mark.parametrize("name", ["qwen3", "gemma3", "falcon-40b", "gpt_neo", "lfm2", "opt-350m", "phi3-long", "bloom"])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16])
def test_decoders_compute_the_same_bits(name, dtype, tmp_path, no_room):
    kind = "shortconv" if name == "lfm2" else "decoders"
    path = decoders.write_model(name, tmp_path, dtype, kind)
    ids = np.repeat(arrays(kind)[f"{name}/ids"][:1, :7], 2, axis=0)
    mask = np.array([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    kept, expected = outputs(path, ids, mask)
    no_room()
    with pytest.warns(AttnkitNote, match="would not fit into memory") as notes:
        checkpoint, found = outputs(path, ids, mask)
    assert kept.params.keeps_layers and not checkpoint.params.keeps_layers
    assert len(notes) == 1
    assert [*found] == [*expected]
    for where, array in expected.items():
        assert found[where].tobytes() == array.tobytes(), where


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "mpnet", "modernbert", "deberta-v3", "electra"])
def test_text_encoders_compute_the_same_bits(name, tmp_path, no_room):
    shutil.copytree(folder(name), tmp_path / name)
    weights = tmp_path / name / "model.safetensors"
    tensors = {
        key: one.astype(np.float16)
        for key, one in safetensors.numpy.load_file(folder(name) + "/" + weights.name).items()
    }
    safetensors.numpy.save_file(tensors, weights)
    ids = arrays(f"models/{name}")["ids"]

    def computed():
        checkpoint = open_checkpoint(str(tmp_path / name))
        core = decoders.core(checkpoint)
        x = model.run(core, checkpoint.config.plan("encoder"), ids, model.Context())
        packed = model.run_packed(core, checkpoint.config.plan("encoder"), [*ids, ids[0, :3]], None, None)
        head = [model.head_logits(core, x)] if "head" in core.params else []
        return [x, *packed, *head]

    expected = computed()
    no_room()
    for one, other in zip(computed(), expected, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    "command",
    [
        ["decode", "--model", FRENCH, "je suis étudiant", "--beam", "4", "-f", "npz"],
        ["encode", "--model", FRENCH, "je suis étudiant", "-f", "npz"],
        ["decode", "--model", STORY, "Once upon", "--max-tokens", "70", "-f", "npz"],
        ["decode", "--model", STORY, "Once upon", "--score", " a time", "-f", "npz"],
        ["heads", "--model", STORY, "-f", "npz"],
    ],
)
def test_tools_write_the_same_bytes_with_a_note(command, no_room):
    expected = process.run(*command)
    no_room()
    run, silent = process.run(*command), process.run(*command, "--quiet")
    assert run.out == silent.out == expected.out
    assert expected.err == silent.err == ""
    note = f"attnkit {command[0]}: note: {command[2]}/model.safetensors: "
    assert re.fullmatch(re.escape(note) + r"[\d.]+ [kM]B in float32 would not fit [^\n]+\n", run.err)


def test_a_layer_is_let_go_before_the_next_is_converted(no_room):
    no_room()
    params = open_checkpoint(STORY).params
    weight = weakref.ref(params["decoder.0.ffn"]["w1"])
    assert weight() is not None
    assert "decoder.0.ffn" in params and params["decoder.1.ffn"]
    assert weight() is None


def test_tables_and_heads_are_converted_in_parts(tmp_path, no_room, monkeypatch):
    monkeypatch.setattr(output_head, "LARGEST", 1 << 14)
    path, ids = llama(tmp_path / "model", 64, 96, 6, 9000), [5, 8000, 7]
    no_room()
    checkpoint = open_checkpoint(path)
    table = checkpoint.params.part("decoder.embed", "table")
    stored = checkpoint.tensor("model.embed_tokens.weight")
    assert np.array_equal(table[np.array(ids)], stored[ids].astype(np.float32))
    decoder = model.CachedDecoder(decoders.core(checkpoint))
    decoder(np.array([ids]))
    tracemalloc.start()
    decoder(np.array([[3]]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    largest = 4 * 3 * 64 * 96  # bytes of the feed-forward network of a layer
    rows = 4 * 9000  # of the logits
    assert largest < peak < 2 * largest + 4 * rows < 4 * 9000 * 64


def test_numbers_that_are_not_finite_are_found_in_layers_that_were_let_go(tmp_path, no_room):
    path = decoders.write_model("qwen3", tmp_path, np.float16)
    tensors = safetensors.numpy.load_file(path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"] = tensors["model.layers.0.mlp.up_proj.weight"].copy()
    tensors["model.layers.0.mlp.up_proj.weight"][1, 2] = np.inf
    safetensors.numpy.save_file(tensors, path / "model.safetensors")
    no_room()
    checkpoint = open_checkpoint(str(path))
    core = decoders.core(checkpoint)
    model.run(core, checkpoint.config.plan("decoder"), decoders.frozen("qwen3", "ids"), model.Context())
    assert checkpoint.params.find_non_finite() == "parameter decoder.0.ffn.w3 is inf at [2][1]"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of data are those of Linux")
def test_a_process_decodes_a_model_larger_than_its_memory(tmp_path):
    path = llama(tmp_path / "model", **SHAPE)
    (tmp_path / "ids.json").write_text("[5, 6, 7, 8]")
    size = 2 * (tmp_path / "model" / "model.safetensors").stat().st_size
    assert size > 1.4 * LIMIT
    command = ["attnkit", "decode", "--model", path, "--ids", "ids.json", "--max-tokens", "3", "-f", "json"]
    setting = {"PATH": process.ALONE, "OPENBLAS_NUM_THREADS": "1"}
    whole = process.run_command(command, cwd=tmp_path, env=setting)

    def limited():
        resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))

    run = process.run_command(command, cwd=tmp_path, env=setting, preexec_fn=limited)
    assert (whole.code, whole.err, run.code, run.out) == (0, "", 0, whole.out)
    assert re.fullmatch(r"attnkit decode: note: [^\n]+: 20\d\.\d MB in float32 would not fit [^\n]+\n", run.err)


FILES = {  # of a process in a container of a megabyte, whose group is not in the container's own tree
    "/proc/self/cgroup": "0::/outside/box\n",
    "/sys/fs/cgroup/memory.max": "1000000\n",
    "/sys/fs/cgroup/memory.current": "700000\n",
    "/sys/fs/cgroup/memory.stat": "anon 5\nactive_file 7\ninactive_file 200000\n",
}
VERSION_1 = {
    "/proc/self/cgroup": "4:memory:/box\n3:cpuset:/\n",
    "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": "500000\n",
    "/sys/fs/cgroup/memory/box/memory.usage_in_bytes": "450000\n",
    "/sys/fs/cgroup/memory/box/memory.stat": "inactive_file 1\ntotal_inactive_file 100000\n",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
}
NO_LIMIT = {"/sys/fs/cgroup/memory.max": "max\n", "/proc/meminfo": "MemFree: 1 kB\nMemAvailable:  300 kB\n"}


@pytest.mark.parametrize(
    ("files", "left"),
    [(FILES, 500_000), (VERSION_1, 150_000), (NO_LIMIT, 307_200), (FILES | NO_LIMIT, 307_200), ({}, 1 << 30)],
)
def test_available_memory_is_what_the_least_of_the_limits_leaves(files, left, monkeypatch):
    monkeypatch.setattr(memory, "_text", lambda path: files.get(path, ""))
    monkeypatch.setattr(memory, "physical_memory", lambda: 1 << 30)
    assert memory.available_memory() == left


def test_limits_of_data_and_addresses_are_less_what_is_in_use(monkeypatch):
    limits = {resource.RLIMIT_DATA: 10_000_000, resource.RLIMIT_AS: resource.RLIM_INFINITY}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limits[kind], limits[kind]))
    monkeypatch.setattr(memory, "_text", {"/proc/self/status": "VmData:\t 4000 kB\nVmSize:\t 9000 kB\n"}.get)
    assert [*memory._left_by_limits()] == [10_000_000 - 4_096_000]
    limits[resource.RLIMIT_AS] = 5_000_000
    monkeypatch.setattr(memory, "_text", lambda path: "VmSize: 9000 kB\n" if path == "/proc/self/status" else "")
    assert memory.available_memory() == 0
