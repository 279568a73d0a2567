"""The tools on GGUF files: as models, as files of tensors, and as both."""

import json

import numpy as np
import pytest

from attnkit.formats import gguf
from attnkit.formats.gguf_blocks import BLOCK_TYPES, decode_blocks
from tests.gguf_files import TYPE_NUMBERS, pack_gguf
from tests.gguf_models import convert, quantize_rows, tokenizer_keys
from tests.places import folder
from tests.process import run


@pytest.fixture
def quantized(tmp_path):
    """A Llama with matrices in Q8_0 and Q4_0."""
    kinds = {True: "Q4_0", False: "Q8_0"}
    content = convert("wide", quantize=lambda name, array: quantize_rows(name, array, kinds["ffn" in name]))
    (tmp_path / "m.gguf").write_bytes(content)
    return tmp_path


def shown(folder, *arguments):
    done = run("show", *arguments, cwd=folder)
    assert done.code == 0, done.err
    return done.out.decode()


def numbers_of(folder, operand):
    """The only tensor that show writes."""
    [tensor] = json.loads(shown(folder, operand, "-f", "json"))["tensors"].values()
    return np.array(tensor["data"], np.float32)


def test_show_prints_metadata_facts_types_and_layers(quantized):
    text = shown(quantized, "m.gguf")
    assert "Q8_0 (10), Q4_0 (6), F32 (5)" in text and "general.name " in text
    assert "family           model_type               llama" in text  # the facts of the model
    assert "hidden_act (default)     silu" in text  # which no GGUF file states
    assert "blk.0…1.ffn_up.weight       2 × (96, 64)  Q4_0" in text
    assert "decoder.0…1.self   attend     wq wo (64, 64), wk wv (64, 32)" in text
    assert "llama.attention.layer_norm_rms_epsilon  1e-05" in text


def test_list_and_default_view_decode_nothing(quantized, monkeypatch):
    monkeypatch.setattr(gguf, "decode_blocks", lambda data, kind: pytest.fail("decoded"))
    for flags in ([], ["--list"], ["--facts"]):
        assert "Q4_0" in shown(quantized, "m.gguf", *flags)


def test_tensors_have_the_names_in_the_file_and_those_of_the_model(quantized):
    stored = gguf.map_tensors(str(quantized / "m.gguf")).tensor("blk.0.attn_q.weight")
    assert np.array_equal(numbers_of(quantized, "m.gguf:blk.0.attn_q.weight"), stored)
    by_head = stored.reshape(4, 8, 2, 64)
    halves = np.concatenate([by_head[:, :, 0], by_head[:, :, 1]], axis=1).reshape(64, 64)
    assert np.array_equal(numbers_of(quantized, "m.gguf:layers.0.self_attn.q_proj.weight"), halves)
    listed = shown(quantized, "m.gguf", "--name", "blk.*.attn_q.weight,decoder.1.norm1.gamma", "--list")
    assert [line.split()[0] for line in listed.splitlines()[2:5]] == [
        "blk.0.attn_q.weight",
        "blk.1.attn_q.weight",
        "decoder.1.norm1.gamma",
    ]
    assert shown(quantized, "m.gguf:decoder.0.self", "--list").count("heads") == 4
    assert "blk.0.ffn_up.weight" in shown(quantized, "m.gguf:blk.0.ffn_up.weight", "--stats")
    missing = run("show", "m.gguf:blk.7.attn_q.weight", cwd=quantized)
    assert (missing.code, missing.out) == (3, b"") and "no tensor 'blk.7.attn_q.weight'" in missing.err


def test_a_file_is_converted(quantized):
    assert run("show", "m.gguf", "-o", "m.safetensors", cwd=quantized).code == 0
    whole, file = shown(quantized, "m.safetensors", "--stats"), shown(quantized, "m.gguf", "--stats")
    assert whole == file
    piped = run("show", "--stats", stdin=(quantized / "m.gguf").read_bytes())
    assert piped.out.decode() == file


def test_a_file_that_is_no_known_model_is_one_of_tensors(tmp_path):
    block = bytes(range(210))
    (tmp_path / "m.gguf").write_bytes(pack_gguf({"general.architecture": "mamba"}, {"a": ("Q6_K", (1, 256), block)}))
    done = run("show", "m.gguf", cwd=tmp_path)
    assert done.code == 0 and "a       (1, 256)  Q6_K" in done.out.decode()
    assert "note: m.gguf: architecture 'mamba' is not known" in done.err and "shown as a file of tensors" in done.err
    numbers = decode_blocks(np.frombuffer(block, np.uint8), BLOCK_TYPES[TYPE_NUMBERS["Q6_K"]])
    assert np.array_equal(numbers_of(tmp_path, "m.gguf:a")[0], numbers)
    refused = run("show", "m.gguf", "--facts", cwd=tmp_path)
    assert refused.code == 3 and "architecture 'mamba' is not known" in refused.err


def test_stages_compute_with_a_file_as_with_the_folder(tmp_path):
    (tmp_path / "m.gguf").write_bytes(convert("gpt2", tokenizer_keys("gpt2")))
    text, published = "The cat sat on the mat.", folder("gpt2")

    def result(*arguments):
        done = run(*arguments, cwd=tmp_path)
        assert done.code == 0, done.err
        return json.loads(done.out)["tensors"]

    ours, theirs = (result("encode", "--model", one, text) for one in ("m.gguf", published))
    assert {name: one["axes"] for name, one in ours.items()} == {name: one["axes"] for name, one in theirs.items()}
    x, expected = (np.array(one["x"]["data"]) for one in (ours, theirs))
    assert np.abs(x - expected).max() <= 1e-6 * np.abs(expected).max()
    generate = ("--max-tokens", "5", "--emit", "ids", "-f", "json")
    assert result("decode", "--model", "m.gguf", text, *generate) == result(
        "decode", "--model", published, text, *generate
    )
    lines = run("show", "m.gguf", "--pipeline", "all", cwd=tmp_path).out.decode()
    assert "--model m.gguf --layer decoder.0.self" in lines
    traced = run("encode", "--model", "m.gguf", text, "--trace", "t.npz", cwd=tmp_path)
    assert traced.code == 0 and "decoder.0.self.weights" in shown(tmp_path, "t.npz", "--list")


@pytest.mark.parametrize(("kind", "pool"), [(1, "mean"), (2, "cls"), (0, "none")])
def test_the_pooling_of_the_file_applies(kind, pool, tmp_path):
    keys = tokenizer_keys("bert-mlm") | {"bert.pooling_type": kind}
    (tmp_path / "m.gguf").write_bytes(convert("bert-mlm", keys))
    found = run("encode", "--model", "m.gguf", "The cat sat.", cwd=tmp_path)
    assert found.code == 0, found.err
    expected = run("encode", "--model", folder("bert-mlm"), "The cat sat.", "--pool", pool, cwd=tmp_path)
    data = [json.loads(done.out)["tensors"]["x"]["data"] for done in (found, expected)]
    assert data[0] == data[1]


def test_a_chat_uses_the_template_in_the_file(tmp_path):
    pytest.importorskip("jinja2")
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    keys = tokenizer_keys("gpt2") | {"tokenizer.chat_template": template}
    (tmp_path / "m.gguf").write_bytes(convert("gpt2", keys))
    chat = run("decode", "--model", "m.gguf", "--chat", "The cat", "--max-tokens", "3", "--emit", "ids", cwd=tmp_path)
    assert chat.code == 0, chat.err
    prompt = "user: The cat\nassistant:"
    plain = run("decode", "--model", "m.gguf", prompt, "--max-tokens", "3", "--emit", "ids", cwd=tmp_path)
    assert json.loads(chat.out)["tensors"]["x"]["data"] == json.loads(plain.out)["tensors"]["x"]["data"]


def test_two_models_side_by_side(quantized):
    (quantized / "other.gguf").write_bytes(convert("llama"))
    assert "head width    16" in shown(quantized, "m.gguf", "other.gguf")


def test_near_finds_words_of_a_file_as_of_the_folder(tmp_path):
    (tmp_path / "m.gguf").write_bytes(convert("gpt2", tokenizer_keys("gpt2")))
    query = run("embed", "--model", "m.gguf", " cat", "-f", "json", cwd=tmp_path).out
    near = [
        run("near", "--index", index, "--top", "3", "-f", "csv", stdin=query, cwd=tmp_path).out
        for index in ("m.gguf", "m.gguf:decoder.embed", folder("gpt2"))
    ]
    assert near[0].startswith(b"query,rank,cosine,row,label\n") and near[0] == near[1] == near[2]
