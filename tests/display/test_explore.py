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
from attnkit.display.explore import Attention, ExploredTrace, explore_page, matrices, pack_traces, payload
from attnkit.display.figures import FigureOptions
from attnkit.errors import DataError
from attnkit.record import Record, Tensor

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


def test_few_weights_are_on_the_page_as_they_are():
    weights = softmax(np.random.default_rng(0), 2, 5, 7)
    (layer,) = read_payload(attnkit.explore(make_record(weights)))["traces"][0]["attention"]
    assert (layer["map"]["form"], layer["largest"], layer["shape"]) == ("float32", None, [2, 5, 7])
    assert unpack(layer["map"]["values"], "<f4").tobytes() == weights.tobytes()


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
    packed = matrices.pack_pooled(weights)
    bound = unpack(packed["values"], np.uint8).reshape(packed["shape"]) * unpack(packed["scale"], "<f4")[:, None, None]
    assert packed["block"] == [3, 3] and packed["shape"] == [2, 100, 101]
    wide = np.repeat(np.repeat(bound, 3, axis=1), 3, axis=2)[:, :300, :301]
    assert np.all(weights <= wide) and np.all(bound.max(axis=(1, 2)) <= weights.max(axis=(1, 2)) * 1.001)


@pytest.mark.parametrize("pack", [matrices.pack_bytes, matrices.pack_pooled])
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
    with pytest.raises(DataError, match="of no token"):
        attnkit.explore(make_record(np.ones((2, 0, 0), np.float32)))
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
    assert unpack(matrices.pack_bytes(weights)["values"], np.int8).tolist() == [-127, 32, 63]  # rounded
    assert unpack(matrices.pack_pooled(weights)["values"], np.int8).tolist() == [-127, 32, 64]  # at most
    assert unpack(matrices.pack_largest(weights, 2)["values"], "<f4").tolist() == [-1.0, 0.5]


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
