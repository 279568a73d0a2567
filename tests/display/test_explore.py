"""The data and the file of a page: numbers, sizes, hostile words, and that it can load nothing."""

import base64
import hashlib
import json
import re
import zlib

import ml_dtypes
import numpy as np
import pytest

import attnkit
from attnkit.display.explore import Attention, ExploredTrace, Lens, explore_page, pack_traces, payload
from attnkit.display.figures import FigureOptions
from attnkit.errors import AttnkitNote, DataError, UsageError
from attnkit.records import Record, Tensor
from tests.places import STORY

HOSTILE = ["</script><script>alert(1)</script>", "<!--", "‮evil", "a\0b", "\ud800", "x" * 5000, "", "&amp;", '"', "日本"]


def unpack(blob, dtype):
    return np.frombuffer(zlib.decompress(base64.b64decode(blob)), dtype)


def softmax(rng, *shape):
    weights = np.exp(rng.normal(size=shape) * 2)
    return (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)


def make_record(weights, **labels):
    return Record({"weights": Tensor(weights, ("head", "query", "key"))}, labels)


def read_payload(page):
    (text,) = re.findall(r'<script type="application/json" id="payload">(.*?)</script>', page, re.DOTALL)
    return json.loads(text)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_few_weights_are_on_the_page_as_they_are(dtype):
    weights = softmax(np.random.default_rng(0), 2, 5, 7).astype(dtype) / 3
    (layer,) = read_payload(attnkit.explore(make_record(weights)))["traces"][0]["attention"]
    assert (layer["map"]["form"], layer["largest"], layer["shape"]) == ("exact", None, [2, 5, 7])
    assert unpack(layer["map"]["values"], layer["map"]["dtype"]).tobytes() == weights.tobytes()


def test_many_weights_are_within_half_a_step_and_the_largest_as_they_are(monkeypatch):
    monkeypatch.setattr(payload, "EXACT", 0)
    weights = softmax(np.random.default_rng(1), 3, 20, 40)
    (layer,) = read_payload(attnkit.explore(make_record(weights)))["traces"][0]["attention"]
    scale = unpack(layer["map"]["scale"], "<f4").reshape(3, 20, 1)
    levels = unpack(layer["map"]["values"], np.uint8).reshape(3, 20, 40)
    assert layer["map"]["form"] == "bytes" and np.all(np.abs(levels * scale - weights) <= scale * 0.5000001)
    count = layer["largest"]["count"]
    keys, values = unpack(layer["largest"]["keys"], "<u2"), unpack(layer["largest"]["values"], "<f4")
    ranked = -np.sort(-weights, axis=-1)[..., :count]
    assert count == 8 and np.array_equal(values.reshape(3, 20, 8), ranked)
    assert np.array_equal(np.take_along_axis(weights, keys.reshape(3, 20, 8).astype(int), -1), ranked)


def test_no_weight_is_above_the_bound_of_its_block():
    weights = softmax(np.random.default_rng(2), 2, 300, 301)
    packed = payload.pack_pooled(weights)
    bound = unpack(packed["values"], np.uint8).reshape(packed["shape"]) * unpack(packed["scale"], "<f4")[:, None, None]
    assert packed["block"] == [3, 3] and packed["shape"] == [2, 100, 101]
    wide = np.repeat(np.repeat(bound, 3, axis=1), 3, axis=2)[:, :300, :301]
    assert np.all(weights <= wide) and np.all(bound.max(axis=(1, 2)) <= weights.max(axis=(1, 2)) * 1.001)


@pytest.mark.parametrize("pack", [payload.pack_bytes, payload.pack_pooled])
def test_what_is_not_finite_has_a_level_of_its_own(pack):
    weights = np.array([[[0.5, np.nan], [0, 0], [np.inf, 1]]], np.float32)
    packed = pack(weights)
    assert unpack(packed["values"], np.uint8).reshape(3, 2).tolist() == [[254, 255], [0, 0], [255, 254]] or (
        packed["form"] == "pooled" and unpack(packed["values"], np.uint8)[[1, 4]].tolist() == [255, 255]
    )


def test_a_page_of_64_tokens_has_at_most_2_mb_and_one_of_512_at_most_10():
    rng = np.random.default_rng(3)
    for tokens, most in ((64, 2e6), (512, 10e6)):
        weights = softmax(rng, 12, tokens, tokens)
        layers = [Attention(f"{at}", weights, "query", "key", ["other"] * 12, [0.0] * 12) for at in range(12)]
        page = explore_page(pack_traces([ExploredTrace("a", {}, layers, [], [])]), FigureOptions(), "a")
        assert len(page) <= most


def test_a_page_of_64_tokens_with_all_that_it_has_room_for_has_at_most_2_mb():
    rng = np.random.default_rng(0)
    layers = []
    for at in range(12):
        weights = softmax(rng, 4, 64, 64)
        parts = {name: rng.normal(size=(4, 64, 64)).astype(np.float32) for name in ("q", "k", "v", "scores", "masked")}
        layers.append(Attention(f"{at}", weights, "query", "key", [""] * 4, [0.0] * 4, parts=parts))
    lens = Lens([*"abcdefghijklm"], np.arange(13 * 64 * 5).reshape(13, 64, 5), rng.random((13, 64, 5)), {})
    packed = pack_traces([ExploredTrace("a", {}, layers, [], [], lens=lens)])
    assert [bool(one["parts"]) for one in packed["traces"][0]["attention"]] == [True, True] + [False] * 10
    assert len(explore_page(packed, FigureOptions(), "a")) <= 2e6


def test_hostile_words_are_data_and_end_no_element():
    weights = softmax(np.random.default_rng(4), 1, 10, 10)
    page = attnkit.explore(make_record(weights, key=HOSTILE, query=HOSTILE))
    assert page.count("<script") == 2 and page.count("</script>") == 2 and "<!--" not in page
    assert page.isascii() or all(ord(one) < 0xD800 for one in page)
    words = read_payload(page)["traces"][0]["labels"]["key"]
    assert words[:6] == [*HOSTILE[:2], "\\u202eevil", "a\\x00b", "\\ud800", "x" * 5000]


def test_its_policy_loads_nothing_and_runs_its_own_script_alone():
    page = attnkit.explore(make_record(softmax(np.random.default_rng(5), 1, 3, 3)))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "unsafe" not in policy and "http" not in policy
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for name, text in (("script-src", script), ("style-src", style)):
        assert rules[name] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|https?://(?!www\.w3\.org/2000/svg)", script
    )


def test_each_text_of_a_batch_is_a_record_and_record_chooses_one():
    weights = softmax(np.random.default_rng(6), 3, 2, 4, 4)
    batch = Record(
        {"weights": Tensor(weights, ("batch", "head", "query", "key"))}, {"key": [[*"abcd"], [*"efgh"], [*"ijkl"]]}
    )
    traces = read_payload(attnkit.explore(batch))["traces"]
    assert [one["labels"]["key"][0] for one in traces] == ["a", "e", "i"]
    two = Record({"weights": Tensor(weights[:2], ("batch", "head", "query", "key"))})
    assert read_payload(attnkit.explore(two))["difference"] is None
    (one,) = read_payload(attnkit.explore(batch, record=1))["traces"]
    assert one["labels"]["key"] == [*"efgh"]
    assert unpack(one["attention"][0]["map"]["values"], "<f4").tobytes() == weights[1].tobytes()


def test_what_is_not_finite_is_no_number_of_the_page():
    weights = softmax(np.random.default_rng(10), 2, 3, 3)
    weights[0, 0, 0], weights[1, 1] = np.nan, np.inf
    record = make_record(weights).with_tensors({"x": np.array([np.nan, np.inf, 1e308, -1e308])})
    (trace,) = read_payload(attnkit.explore(record))["traces"]  # strict JSON
    np.testing.assert_array_equal(unpack(trace["attention"][0]["map"]["values"], "<f4").reshape(2, 3, 3), weights)
    (x,) = [one for one in trace["stages"] if one["name"] == "x"]
    assert (x["max"], x["nan"], x["inf"]) == (1e308, 1, 1) and "norm" not in x


def test_weights_of_no_token_are_an_error_and_those_of_half_the_bits_are_read():
    for shape in ((2, 0, 0), (0, 2, 3, 3)):
        with pytest.raises(DataError, match="of no token, no head or no text"):
            attnkit.explore(
                Record({"weights": Tensor(np.ones(shape), ("batch", "head", "query", "key")[-len(shape) :])})
            )
    axes = ("head", "query", "head_dim")
    no_heads = Record(
        {"weights": Tensor(np.eye(2)[None], ("head", "query", "key")), "q": Tensor(np.ones((0, 2, 4)), axes)}
    )
    assert not read_payload(attnkit.explore(no_heads))["traces"][0]["attention"][0]["parts"]
    half = np.full((1, 2, 2), 0.5, ml_dtypes.bfloat16)
    (layer,) = read_payload(attnkit.explore(make_record(half)))["traces"][0]["attention"]
    assert unpack(layer["map"]["values"], "<f4").tolist() == [0.5] * 4


def test_an_encoder_and_its_decoder_are_not_compared():
    weights = softmax(np.random.default_rng(9), 1, 3, 3)
    records = [
        Record({f"{stack}.0.self.weights": Tensor(weights, ("head", "query", "key"))})
        for stack in ("encoder", "decoder")
    ]
    page = read_payload(attnkit.explore(records))
    assert [one["attention"][0]["name"] for one in page["traces"]] == ["encoder.0.self", "decoder.0.self"]
    assert page["difference"] is None


def test_weights_of_both_signs_keep_them():
    weights = np.array([[[-1.0, 0.25, 0.5]]], np.float32)
    assert payload.has_signs(weights) and not payload.has_signs(np.array([-np.inf, np.nan, 0, 1]))
    assert unpack(payload.pack_bytes(weights)["values"], np.int8).tolist() == [-127, 32, 63]  # rounded
    assert unpack(payload.pack_pooled(weights)["values"], np.int8).tolist() == [-127, 32, 64]  # at most
    assert unpack(payload.pack_largest(weights, 2)["values"], "<f4").tolist() == [-1.0, 0.5]


def test_the_largest_weights_of_long_texts_are_explored_without_the_others():
    kept = attnkit.attend(attnkit.embed("a b c d e a", dim=4), heads=2, weights="topk:3", causal=True)
    (layer,) = read_payload(attnkit.explore(kept))["traces"][0]["attention"]
    assert (layer["shape"], layer["keys"], layer["map"]["kept"]) == ([2, 6, 6], "key", True)
    assert {one["kind"] for one in layer["kinds"]} == {""}
    values = unpack(layer["largest"]["values"], "<f4")
    assert values.tobytes() == kept["weights.top"].astype(np.float32).tobytes()
    keys = unpack(layer["largest"]["keys"], "<u2").reshape(2, 6, 3).astype(int)
    assert np.array_equal(np.where(keys < 6, keys, -1), kept["weights.keys"]) and (keys == 65535).any()


def test_two_records_are_compared_as_diff_compares_them():
    a, b = (softmax(np.random.default_rng(seed), 2, 4, 4) for seed in (7, 8))
    page = read_payload(attnkit.explore([make_record(a), make_record(b)]))
    (layer,) = page["difference"]["attention"]
    assert unpack(layer["map"]["values"], "<f4").tobytes() == (a - b).tobytes()
    assert page["difference"]["rows"][0][:2] == ["weights", "32 of 32"]


def read_part(parts, name):
    """The numbers of an intermediate of a layer, as the page makes them of those before it."""
    part = parts[name]
    if "of" not in part:
        return unpack(part["values"], part["dtype"]).reshape(part["shape"])
    before = read_part(parts, part["of"])
    if "hidden" in part:
        return np.where(unpack(part["hidden"], np.uint8).reshape(before.shape), -np.inf, before).astype(before.dtype)
    return before * before.dtype.type(part["times"])


@pytest.mark.parametrize(
    "options",
    [{"causal": True}, {"softcap": 2.0}, {"scale": 0.3, "dtype": "float64"}, {"kv_heads": 1, "seed": 1}],
)
def test_the_intermediates_of_attention_are_those_of_the_record(options):
    text = attnkit.embed("a b c a", dim=12)
    record = attnkit.attend(text, heads=2, keep=("q", "k", "v", "scores", "scaled", "masked", "weights"), **options)
    (layer,) = read_payload(attnkit.explore(record))["traces"][0]["attention"]
    for name in ("q", "k", "v", "scores", "scaled", "masked"):
        assert read_part(layer["parts"], name).tobytes() == record[name].tobytes(), name
    assert layer["parts"]["scaled"]["of"] == "scores"


def test_of_many_intermediates_a_page_has_those_of_the_first_layers_unless_it_is_exact(monkeypatch):
    tensors = {}
    for at in range(2):
        tensors |= {f"decoder.{at}.self.weights": softmax(np.random.default_rng(at), 2, 4, 4)}
        tensors |= {f"decoder.{at}.self.{name}": np.ones((2, 4, 3), np.float32) for name in "qkv"}
    record = Record({name: Tensor(array, ("head", "query", "key")) for name, array in tensors.items()})
    monkeypatch.setattr(payload, "NUMBERS", 64 + 3 * 24)
    for exact, has_parts in ((False, [True, False]), (True, [True, True])):
        layers = read_payload(attnkit.explore(record, exact=exact))["traces"][0]["attention"]
        assert [bool(layer["parts"]) for layer in layers] == has_parts


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A trace of the story model."""
    path = tmp_path_factory.mktemp("story") / "fox.npz"
    attnkit.encode("the fox looked", model=STORY, trace=path)
    return attnkit.formats.load(str(path))


def read_words(lens):
    """The words and the probabilities of a lens, (L, T, K)."""
    words = np.array(lens["words"])[unpack(lens["ids"], "<u4")].reshape(lens["shape"])
    return words, unpack(lens["probabilities"], "<f4").reshape(lens["shape"])


def test_the_words_of_layers_are_those_of_lens(story):
    kept = attnkit.lens(story, model=STORY, top=3)
    of_trace = read_payload(attnkit.explore(story, model=STORY, top=3, tokens="raw"))["traces"][0]["lens"]
    of_lens = read_payload(attnkit.explore(kept, tokens="raw"))["traces"][0]
    assert of_trace == of_lens["lens"] and of_lens["attention"] == []
    words, probabilities = read_words(of_trace)
    assert words.reshape(-1, 3).tolist() == kept.labels["ids"] and probabilities.tobytes() == kept["x"].tobytes()
    assert of_trace["layers"] == ["embedding", "decoder.0", "decoder.1", "decoder.2"]
    last = read_payload(attnkit.explore(attnkit.lens(story, model=STORY, position=-1)))["traces"][0]["lens"]
    assert (last["first"], last["shape"]) == (len(story["logits"]) - 1, [4, 1, 3])


def test_an_encoder_beside_its_decoder_has_no_words_of_layers(story):
    other = make_record(softmax(np.random.default_rng(0), 1, 3, 3))
    with pytest.warns(AttnkitNote, match="no words of its layers: no decoder"):
        traces = read_payload(attnkit.explore([other, story], model=STORY))["traces"]
    assert [one["lens"] is None for one in traces] == [True, False]
    with pytest.raises(DataError, match=r"no decoder\."):
        attnkit.explore(other, model=STORY)


def test_words_of_layers_of_a_batch_are_a_record_each(tmp_path):
    attnkit.encode(["the fox", "a"], model=STORY, trace=tmp_path / "batch.npz")
    kept = attnkit.lens(attnkit.formats.load(str(tmp_path / "batch.npz")), model=STORY)
    traces = read_payload(attnkit.explore(kept, tokens="raw"))["traces"]
    words = np.array(kept.labels["ids"]).reshape(kept["x"].shape)
    for row, trace in enumerate(traces):
        assert np.array_equal(read_words(trace["lens"])[0], words[row])
    assert len(traces) == 2


def make_run(folder, steps):
    """A folder of a training run that recorded some steps of a batch of two texts."""
    tokenizer = {"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for step in steps:
        weights = np.stack([softmax(np.random.default_rng(step + row), 2, 3, 3) for row in range(2)])
        record = Record(
            {
                "ids": Tensor(np.array([[0, 1, 0], [1, 1, 0]]), ("batch", "token")),
                "decoder.0.self.weights": Tensor(weights, ("batch", "head", "query", "key")),
                "decoder.0.self.weights.grad": Tensor(weights, ("batch", "head", "query", "key")),
                "decoder.0.self.wq.grad": np.full((2, 2), step / 2.0),
            }
        )
        attnkit.formats.save(record, str(folder / f"step-{step}.npz"))
    reports = [
        {"step": at, "loss": 3 - at / 10, "held_out_loss": 3.5, "gradient_norm": 1, "learning_rate": 0.1, "tokens": at}
        for at in (5, 10)
    ]
    (folder / "training.jsonl").write_text("".join(json.dumps(one) + "\n" for one in reports))
    return reports


def test_the_steps_of_a_training_run_and_its_curve(tmp_path):
    reports = make_run(tmp_path, (10, 2))
    page = read_payload(attnkit.explore(tmp_path, record=1))
    assert page["curve"] == reports and [one["step"] for one in page["traces"]] == [2, 10]
    assert page["traces"][0]["labels"]["key"] == ["b", "b", "a"]
    norms = [stage["norm"] for one in page["traces"] for stage in one["stages"] if stage["name"].endswith("wq.grad")]
    assert norms == [2.0, 10.0]


def test_folders_that_are_no_training_run(tmp_path):
    with pytest.raises(DataError, match="without recorded steps"):
        attnkit.explore(tmp_path)
    make_run(tmp_path, (1,))
    with pytest.raises(UsageError, match="a folder of train is explored alone"):
        attnkit.explore([tmp_path, make_record(softmax(np.random.default_rng(0), 1, 3, 3))])


def test_a_trace_of_a_recurrent_model_is_refused_with_what_draws_it():
    record = Record({"encoder.0.rnn.state": np.ones((2, 4), np.float32)})
    with pytest.raises(DataError, match=r"recurrent layer has none; attnkit show FILE:encoder.0.rnn.state --heatmap"):
        attnkit.explore(record)


def test_the_patches_of_an_image_and_its_picture_are_on_the_page():
    pytest.importorskip("PIL")
    names = ["cls", "r0c0", "r0c1"]
    record = make_record(softmax(np.random.default_rng(0), 1, 3, 3), query=names, key=names)
    box = Record({"box": np.array([0.25, 0, 0.75, 1])})
    page = attnkit.explore(record.merge(box), over=np.zeros((2000, 1000, 3), np.uint8))
    picture = read_payload(page)["traces"][0]["picture"]
    assert picture.pop("source").startswith("data:image/") and "img-src data:" in page
    expected = {"tokens": 3, "patches": [1, 2], "grid": [1, 2], "box": [0.25, 0, 0.75, 1], "size": [1000, 2000]}
    assert picture == expected and len(page) < 200_000
    with pytest.warns(AttnkitNote, match="no tensor box"):
        attnkit.explore(record, over=np.zeros((2, 2, 3), np.uint8))
    assert read_payload(attnkit.explore(record))["traces"][0]["picture"]["source"] == ""
    with pytest.raises(DataError, match="no trace has patches; encode --image names"):
        attnkit.explore(make_record(softmax(np.random.default_rng(0), 1, 3, 3)), over=np.zeros((2, 2, 3), np.uint8))
    with pytest.raises(DataError, match=r"float64 \(2, 2\) is no picture"):
        attnkit.explore(record, over=np.zeros((2, 2)))
