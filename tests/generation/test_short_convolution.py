"""LFM2: states, logits, windows and texts as transformers computes them, and padding that enters no state.

What the numbers are, and how they were made: tests/references/make_shortconv.py.
"""

import json
from dataclasses import replace

import numpy as np
import pytest

import attnkit
from attnkit import formats, model
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import DataError, UsageError
from attnkit.generation.kv_cache_file import cache_record, read_cache
from attnkit.inputs import layers
from attnkit.interpret import cost
from attnkit.model.formulas.causal_convolution import causal_convolution, last_window
from attnkit.model.formulas.experts import route
from attnkit.records import Record
from tests.drawing import assert_near, drawn_models, write_model
from tests.generation.frozen_states import LENGTHS, Frozen, hidden, logits
from tests.gguf_models import convert
from tests.places import REFERENCES
from tests.process import run
from tests.registry import load_core, place_of

TABLE = drawn_models("shortconv")
LIMITS = {np.float64: 1e-10, np.float32: 6e-6}  # products of gates: float32 in transformers itself is 3.3e-6 off
frozen = Frozen("shortconv")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    return frozen.opener(tmp_path_factory.mktemp)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("name", TABLE)
def test_logits_are_those_of_transformers(opened, name, dtype):
    core, ending = opened(name, dtype), "f64" if dtype is np.float64 else "f32"
    for key in ("", "long."):
        found = logits(core, frozen(name, f"{key}ids"))[:, -4:]
        assert_near(found, frozen(name, f"{key}logits.{ending}"), LIMITS[dtype])
    mask = frozen(name, "batch.mask").astype(bool)
    found = logits(core, frozen(name, "batch.ids"), mask)[:, -4:]
    assert_near(found, frozen(name, f"batch.logits.{ending}"), LIMITS[dtype])
    for count in LENGTHS:
        found = logits(core, frozen(name, "texts.ids")[None, :count])[:, -1]
        assert_near(found, frozen(name, f"texts.{count}.logits.{ending}"), LIMITS[dtype])


@pytest.mark.parametrize("name", TABLE)
def test_states_and_windows_are_those_of_transformers(opened, name):
    core, seen, cache = opened(name), {}, model.KVCache()
    ids, depth = frozen(name, "ids"), core.config.decoder.layers
    last = hidden(core, ids, cache=cache, hook=lambda site: lambda one: seen.setdefault(site, one))
    assert_near(seen["decoder.embed"], frozen(name, "hidden.0"), 1e-12)
    for number in range(depth - 1):
        assert_near(seen[f"decoder.{number}.ffn.residual"], frozen(name, f"hidden.{number + 1}"), 1e-12)
    assert_near(last, frozen(name, f"hidden.{depth}"), 1e-12)
    assert [*cache.states] == [*core.config.states] and cache.length == ids.shape[1]
    for layer, (window,) in cache.states.items():
        assert_near(window[0].T, frozen(name, f"window.{layer.split('.')[1]}"), 1e-12)


@pytest.mark.parametrize("name", TABLE)
def test_greedy_and_beams_write_the_same_tokens(opened, name):
    core, ids = opened(name), frozen(name, "ids")
    settings, prompt = model.SamplingConfig(limit=12, eos=core.config.special.eos), ids[0].tolist()
    text = model.generate(model.CachedDecoder(core), prompt, settings).ids
    best = model.beam_search(model.CachedDecoder(core), prompt, settings, 3)[0].ids
    for found, key in ((text, "greedy"), (best, "beam")):
        assert [*prompt, *found] == frozen(name, key)[0].tolist()[: len(prompt) + len(found)]


def swapped(params, one, other):
    return dict(params) | {one: params[other], other: params[one]}


SLIPS = {  # what a port gets wrong -> the parameters of a short convolution as it has them
    "the gates exchanged": lambda params: swapped(params, "wb", "wc"),
    "the gate before it and what it reads": lambda params: swapped(params, "wb", "wx"),
    "the gate after it and what it reads": lambda params: swapped(params, "wc", "wx"),
    "the taps from the newest token on": lambda params: dict(params) | {"w": params["w"][::-1]},
}


def in_convolutions(core, change):
    """A model whose short convolutions have other parameters."""
    changed = {layer: change(params) if layer.endswith(".shortconv") else params
               for layer, params in core.params.items()}  # fmt: skip
    return core._replace(params=changed)


@pytest.mark.parametrize("slip", SLIPS)
def test_the_texts_show_a_slip(opened, slip):
    """But for the first two, whose product is the same."""
    core, changed = opened("lfm2"), in_convolutions(opened("lfm2"), SLIPS[slip])
    difference = np.abs(logits(changed, frozen("lfm2", "ids"))[:, -4:] - frozen("lfm2", "logits.f64")).max()
    is_symmetric = slip == "the gate before it and what it reads"
    assert (difference < 1e-10) if is_symmetric else (difference > 0.1), difference
    assert logits(core, frozen("lfm2", "ids")).shape[1] >= 3


def test_the_norm_that_is_called_embedding_norm_is_the_last(opened):
    core, ids = opened("lfm2"), frozen("lfm2", "ids")
    steps = core.config.plan("decoder")
    assert steps[-1].layer == "decoder.norm" and "decoder.embed_norm" not in core.params
    first = [steps[0], steps[-1], *steps[1:-1]]
    wrong = model.head_logits(core, model.run(core, first, ids, model.Context()))[:, -4:]
    assert np.abs(wrong - frozen("lfm2", "logits.f64")).max() > 0.1


def test_the_width_of_the_networks_is_stated_in_two_ways():
    """Two thirds of 51 are 34, of which the next multiple of 6 is 36; 23 stays where nothing is adjusted."""
    widths = []
    factors = [("lfm2", {"block_ffn_dim_multiplier": factor}) for factor in (None, 0.5)]
    for name, changes in (("lfm2", {}), ("lfm2", {"block_ff_dim": 45}), ("lfm2-biases", {}), *factors):
        widths.append(published_tensors(TABLE[name]["config"] | changes).config.decoder.hidden)
    assert widths == [36, 30, 23, 34, 18]


def test_older_files_name_the_layers_with_attention(opened, tmp_path):
    config = TABLE["lfm2"]["config"]
    changes = {"layer_types": ..., "full_attn_idxs": [1, 4], "tie_word_embeddings": ..., "tie_embedding": True,
               "intermediate_size": ..., "block_ff_dim": config["intermediate_size"], "rope_parameters": ...,
               "rope_theta": 1000.0, "block_dim": 20, "num_heads": 5}  # fmt: skip
    older = open_checkpoint(str(write_model("lfm2", tmp_path, np.float64, "shortconv", **changes)))
    assert older.config == opened("lfm2").config
    assert_near(logits(layers.core_model(older), frozen("lfm2", "ids"))[:, -4:], frozen("lfm2", "logits.f64"), 1e-12)


@pytest.mark.parametrize(("changes", "problem"), [
    ({"layer_types": ["conv", "linear_attention"] * 2 + ["conv"]}, "layer_types is not a list of 5 times conv or full"),
    ({"layer_types": ["conv"] * 4}, "layer_types is not a list of 5 times"),
    ({"layer_types": None, "full_attn_idxs": ["1"]}, "full_attn_idxs is no list of the numbers of layers"),
    ({"block_use_swiglu": False}, "block_use_swiglu"),
    ({"conv_L_cache": 0}, "conv_L_cache"),
    ({"conv_dim": 21}, "conv_dim"),
    ({"architectures": ["Lfm2BidirectionalModel"]}, "an encoder is not supported: its short convolutions see a token"),
])  # fmt: skip
def test_a_configuration_that_cannot_be_is_named(tmp_path, changes, problem):
    with pytest.raises(DataError, match=problem):
        open_checkpoint(str(write_model("lfm2", tmp_path, kind="shortconv", **changes)))


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("name", TABLE)
def test_no_padding_enters_a_state(opened, name, side):
    """Each text of a padded batch, and what continues it, has the numbers of the text alone."""
    core, rng = opened(name), np.random.default_rng(0)
    rows = [slice(None), {"left": slice(4, None), "right": slice(0, 5), "both": slice(2, 4)}[side]]
    ids, mask = rng.integers(3, 60, (2, 9)), np.zeros((2, 9), bool)
    for row, real in enumerate(rows):
        mask[row, real] = True
    more, cache = rng.integers(3, 60, (2, 3)), model.KVCache()
    whole = [hidden(core, ids, mask, cache=cache)]
    longer = np.concatenate([mask, np.ones((2, 3), bool)], axis=1)
    windows = {layer: state[0].copy() for layer, state in cache.states.items()}
    whole.append(hidden(core, more, longer, first=9, cache=cache))
    for row, real in enumerate(rows):
        alone = model.KVCache()
        assert_near(whole[0][row, real], hidden(core, ids[row : row + 1, real], cache=alone)[0], 1e-12)
        for layer, window in windows.items():
            assert_near(window[row], alone.states[layer][0][0], 1e-12)
        assert_near(whole[1][row], hidden(core, more[row : row + 1], cache=alone)[0], 1e-12)


def test_a_mask_that_is_no_padding_is_refused(opened):
    core = opened("lfm2")
    with pytest.raises(DataError) as error:
        context = model.Context(mask=np.tril(np.ones((3, 3), bool)))
        model.run(core, core.config.plan("decoder"), np.ones((1, 3), int), context)
    assert str(error.value) == "mask (3,3) for a layer that carries states (expected that of a padded batch, (1,1,3))"


def test_a_cache_in_a_file_continues_a_text(opened):
    core, ids = opened("lfm2"), frozen("lfm2", "ids")[0]
    cache, config = model.KVCache(), core.config
    hidden(core, ids[None, :9], cache=cache)
    record = cache_record(cache, config, ids[:9].tolist(), [*"abcdefghi"]).check()
    assert record.axes_of("decoder.0.shortconv.window") == ("batch", "place", "model") and record["position"] == 9
    assert {*record} == {"ids", "position", *(f"decoder.{n}.self.{half}" for n in (1, 4) for half in ("key", "value")),
                         *(f"decoder.{n}.shortconv.window" for n in (0, 2, 3))}  # fmt: skip
    read, words = read_cache(record.arrays(), config, "float64", 1)
    assert words == ids[:9].tolist() and read.length == 9
    found = hidden(core, ids[None, 9:], cache=read)
    assert_near(found[0], frozen("lfm2", "hidden.5")[0, 9:], 1e-12)
    with pytest.raises(UsageError, match="its states follow all of its tokens: TEXT or --ids must continue them"):
        read_cache(record.arrays(), config, "float64", 0)
    short = {**record.arrays(), "decoder.2.shortconv.window": np.zeros((1, 3, 20))}
    with pytest.raises(DataError, match=r"decoder.2.shortconv.window has shape \(1, 3, 20\) \(expected \(1, 2, 20\)\)"):
        read_cache(short, config, "float64", 1)


def test_the_windows_of_a_longer_cache_stay_as_large(opened):
    core, caches = opened("lfm2"), [model.KVCache(), model.KVCache()]
    for cache, count in zip(caches, (5, 17), strict=True):
        hidden(core, frozen("lfm2", "ids")[:, :count], cache=cache)
    assert all(one.states[layer][0].shape == (1, 2, 20) for one in caches for layer in core.config.states)


def test_a_convolution_by_hand():
    """The last tap meets the newest token, so that the first token is 0.4 times itself."""
    x, taps = np.arange(1.0, 6.0)[None, :, None], np.array([[0.1], [0.2], [0.3], [0.4]])
    whole = causal_convolution(x, taps)
    np.testing.assert_allclose(whole.ravel(), [0.4, 1.1, 2, 3, 4])
    for cut in range(1, 5):
        window = last_window(x[:, :cut], 3)
        np.testing.assert_allclose(causal_convolution(x[:, cut:], taps, before=window), whole[:, cut:], rtol=1e-15)
    with pytest.raises(DataError, match=r"w \(4,1\) for x \(1,5,2\): expected 2 channels"):
        causal_convolution(np.ones((1, 5, 2)), taps)


def test_a_stack_of_short_convolutions_alone_generates(opened):
    """A model without keys: its cache has the length of what its states have read."""
    core = opened("lfm2-biases")
    decoder = replace(core.config.decoder, mixers=("shortconv",) * 3, layers=3)
    names = {f"decoder.{n + 1}": f"decoder.{n}" for n in range(3)}
    params = {".".join([names.get(layer[:9], "x"), layer[10:]]): one for layer, one in core.params.items()}
    params |= {layer: core.params[layer] for layer in ("decoder.embed", "decoder.norm", "head")}
    alone = core._replace(config=replace(core.config, decoder=decoder), params=params)
    ids = frozen("lfm2-biases", "ids")
    stepwise = model.CachedDecoder(alone)
    for token in ids[0]:
        found = stepwise(np.array([[token]]))
    assert_near(found, logits(alone, ids)[:, -1], 1e-12)
    assert stepwise.cache.length == ids.shape[1] and not [*stepwise.cache]


def test_the_windows_cost_the_same_after_any_number_of_tokens():
    """LFM2-350M: 10 windows of 2 · 1024 numbers, and of 6 layers 2 · 8 heads · 64 for each token."""
    raw = json.loads((REFERENCES / "published.json").read_text())["LiquidAI/LFM2-350M"]["config"]
    shapes = cost.ModelShapes(published_tensors(raw).config, {}, {})
    assert cost.count_states(shapes.config) == 20_480
    assert [cost.count_cache(shapes, tokens) for tokens in (1 << 10, 1 << 13, 1 << 16)] == [
        6144 * (1 << 10) + 20_480, 6144 * (1 << 13) + 20_480, 6144 * (1 << 16) + 20_480]  # fmt: skip
    held = cost.count_held(shapes, cost.Workload(1 << 10, batch=3))
    assert held == {"cache": 3 * (6144 * 1024 + 20_480), "states": 61_440}


def test_a_layer_is_a_stage(tmp_path):
    """conv computes it as the model does, by padding too, with its gates and its gradient."""
    place, core = place_of("lfm2"), load_core("lfm2")
    x, layer = np.random.default_rng(1).normal(size=(2, 6, 20)), "decoder.2.shortconv"
    mask = np.array([[True] * 6, [True] * 4 + [False] * 2])
    record = Record({"x": x, "mask": mask[:, None], "residual": x})
    found = attnkit.conv(record, model=place, layer=layer, keep=("gate_in", "released"), add=x)
    seen, step = {}, model.Step("shortconv", layer)
    hook = lambda site: lambda one: seen.setdefault(site, one)  # noqa: E731
    expected = model.run(core, [step], x, model.Context(mask=mask[:, None], hook=hook))
    assert np.array_equal(found["x"], expected + x)
    assert np.array_equal(found["released"], seen[f"{layer}.released"]) and "admitted" not in found
    assert found.axes_of("gate_in") == ("batch", "token", "model")
    with pytest.raises(UsageError, match=r"--keep: decoder.2.shortconv has no padded \(it has gate_in, gate_out, "):
        attnkit.conv(record, model=place, layer=layer, keep=("padded",))
    with pytest.raises(DataError, match=r"x \(2, 3\): expected \(token, 20\) or \(batch, token, 20\) for decoder.2"):
        attnkit.conv(Record({"x": np.ones((2, 3))}), model=place, layer=layer)
    with pytest.raises(UsageError, match="--add: needs a layer that mixes the tokens of a text"):
        attnkit.conv(Record({"x": np.ones((9, 3))}), model=place_of("whisper"), layer="encoder.conv1",
                     add=x)  # fmt: skip


def test_a_layer_is_continued_by_its_window(tmp_path):
    """Whole = two halves, also of fewer tokens than the window; padding is not in it, and gradients know it."""
    place, layer, state = place_of("lfm2"), "decoder.2.shortconv", str(tmp_path / "s.npz")
    x, options = np.random.default_rng(4).normal(size=(2, 6, 20)), {"model": place, "layer": layer}
    whole = attnkit.conv(Record({"x": x}), **options, keep="admitted")
    for cut in (1, 2, 5):
        first = attnkit.conv(Record({"x": x[:, :cut]}), **options, state_out=state)["x"]
        rest = attnkit.conv(Record({"x": x[:, cut:]}), **options, state_in=state, state_out=state)["x"]
        assert_near(np.concatenate([first, rest], axis=1), whole["x"], 1e-12)
        found = formats.load(state)
        assert_near(found["window"], whole["admitted"][:, -2:], 1e-12)
        assert found["position"] == 6 and found.axes_of("window") == ("batch", "place", "model")
    attnkit.conv(Record({"x": x[0, :3]}), **options, state_out=state)
    assert_near(attnkit.conv(Record({"x": x[0, 3:]}), **options, state_in=state)["x"], whole["x"][0, 3:], 1e-12)
    pipeline = f"conv --model {place} --layer {layer} --state-in {state}"
    found = attnkit.grad(pipeline, Record({"x": x[0, 3:]}), of="x[1,0]", check=True)
    assert found["check"][2] < 1e-6 and found[f"{layer}.w"].any()
    mask = np.array([[False] * 2 + [True] * 4, [True] * 3 + [False] * 3])
    attnkit.conv(Record({"x": x, "mask": mask[:, None]}), **options, state_out=state)
    ends = np.stack([whole["admitted"][0, 4:], whole["admitted"][1, 1:3]])
    assert_near(formats.load(state)["window"], ends, 1e-12)


@pytest.mark.parametrize(
    "padding",
    [
        {"mask": np.array([[1] * 6, [1, 1, 1, 0, 0, 0]])},
        {"mask": np.tril(np.ones((6, 6), bool)) & (np.arange(6) < [[[6]], [[3]]])},
        {"lengths": np.array([6, 3])},
    ],
)
def test_a_layer_reads_padding_as_every_tool_does(padding):
    x, options = np.random.default_rng(5).normal(size=(2, 6, 20)), {"model": place_of("lfm2")}
    options["layer"] = "decoder.2.shortconv"
    alone = attnkit.conv(Record({"x": x[1, :3], "mask": np.tri(3, dtype=bool)}), **options)["x"]
    found = attnkit.conv(Record({"x": x, **padding}), **options, keep="convolved")
    assert_near(found["x"][1, :3], alone, 1e-12)
    assert not found["convolved"][1, 3:].any() and found["convolved"][0].all()


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"tokens": np.zeros((2, 20))}, r"--state-in: no window \(it has tokens\)"),
        ({"window": np.zeros((3, 20))}, r"--state-in: window \(3,20\): expected \(2,20\)"),
        ({"window": np.zeros((2, 20), int)}, "--state-in: window is int64: expected floats"),
    ],
)
def test_a_window_of_another_layer_is_refused(state, problem):
    with pytest.raises(DataError, match=problem):
        attnkit.conv(Record({"x": np.ones((4, 20))}), model=place_of("lfm2"), layer="decoder.2.shortconv",
                     state_in=state)  # fmt: skip


def test_a_convolution_of_another_model_keeps_no_state(tmp_path):
    with pytest.raises(UsageError, match="--state-out: needs a layer that mixes the tokens of a text"):
        attnkit.conv(Record({"x": np.ones((9, 3))}), model=place_of("whisper"), layer="encoder.conv1",
                     state_out=str(tmp_path / "s.npz"))  # fmt: skip


def test_a_pipeline_of_a_layer_has_the_trace_and_the_gradients_of_the_model(tmp_path):
    x, place, layer = np.random.default_rng(0).normal(size=(5, 20)), place_of("lfm2"), "decoder.0.shortconv"
    np.save(tmp_path / "x.npy", x)
    stages = f"layernorm {tmp_path}/x.npy --model {place} --layer decoder.0.norm1 --keep residual"
    stages += f" | conv --model {place} --layer {layer} --add :residual"
    attnkit.run(stages, trace=str(tmp_path / "t.npz"))
    trace, core, seen = formats.load(str(tmp_path / "t.npz")), load_core("lfm2"), {}
    steps = model.layer_steps(core.config, "decoder", 0)[:2]
    model.run(core, steps, x, model.Context(hook=lambda site: lambda one: seen.setdefault(site, one)))
    for site, array in seen.items():
        assert site == f"{layer}.output" or np.array_equal(trace[site], array), site
    found = attnkit.grad(stages, of="x[3,7]")
    assert found[f"{layer}.w"].shape == (3, 20) and found.axes_of(f"{layer}.wb") == ("model", "channel")
    step = np.zeros((5, 20))
    step[2, 3] = 1e-6
    above, below = (model.run(core, steps, x + sign * step, model.Context())[3, 7] for sign in (1, -1))
    assert found["0.input.x"][2, 3] == pytest.approx((above - below) / 2e-6, rel=1e-6)


def test_a_rollout_names_the_layer_without_weights():
    trace = attnkit.encode(Record({"ids": np.arange(3, 8)}), model=place_of("lfm2"), keep="*")
    problem = (
        r"layer 0 mixes its tokens without weights of attention \(decoder.0.shortconv\), which a rollout multiplies"
    )
    with pytest.raises(DataError, match=problem):
        attnkit.rollout(trace)
    assert attnkit.rollout(trace, layers="1:2")["x"].shape == (5, 5)


def test_what_each_part_adds_to_a_logit():
    trace = attnkit.encode(Record({"ids": np.arange(3, 8)}), model=place_of("lfm2"), keep="*")
    found = attnkit.lens(trace, model=place_of("lfm2"), direct="30")
    assert [name for name in found.labels["part"] if "shortconv" in name] == [
        f"decoder.{number}.shortconv" for number in (0, 2, 3)]  # fmt: skip
    assert abs(found["x"][-1]) < 1e-5 < abs(found["x"][1]) and abs(found["x"].sum() - found["logit"]) < 1e-5


def test_a_gguf_file_of_an_encoder_is_refused(tmp_path):
    for changes, problem in (({"lfm2.attention.causal": False}, "an encoder is not supported"),
                             ({"lfm2.attention.head_count_kv": [0, 1, 0, 0, 5]},
                              r"head_count_kv \[0, 1, 0, 0, 5\]: layers with different numbers of heads")):  # fmt: skip
        (tmp_path / "m.gguf").write_bytes(convert("lfm2", changes=changes))
        with pytest.raises(DataError, match=problem):
            open_checkpoint(str(tmp_path / "m.gguf"))


def test_gates_are_divided_by_their_sum_and_a_millionth(opened):
    """Logits of 0 are sigmoids of 1/2: three gates of 0.5 / (1.5 + 1e-6), times the factor 1.5."""
    mixture = opened("lfm2_moe").config.experts
    gates = route(np.zeros((1, 6)), mixture).gates
    np.testing.assert_allclose(gates, 1.5 * 0.5 / (1.5 + 1e-6), rtol=1e-15)
    chosen = route(np.zeros((1, 6)), mixture, np.array([0, 0, 9.0, 0, 8.0, 7.0]))
    assert chosen.chosen.tolist() == [[2, 4, 5]] and np.array_equal(chosen.gates, gates)


def test_gates_that_a_port_exchanges_are_named(tmp_path):
    """The dump has both gates as the projection made them: they are exchanged where they are used."""
    place, core, layer, seen = place_of("lfm2"), load_core("lfm2"), "decoder.0.shortconv", {}
    ids = np.array([[3, 9, 4, 1, 5]])
    hidden(core, ids, hook=lambda site: lambda one: seen.setdefault(site, one))
    sites = ("decoder.0.norm1", *(f"{layer}.{part}" for part in ("gate_in", "gate_out", "values")))
    dump = {site: seen[site][0] for site in sites}
    admitted = (dump[f"{layer}.gate_out"] * dump[f"{layer}.values"])[None]
    dump[f"{layer}.released"] = dump[f"{layer}.gate_in"] * causal_convolution(admitted, core.params[layer]["w"])[0]
    np.savez(tmp_path / "mine.npz", ids=ids[0], **dump)
    done = run("diff", "--model", place, tmp_path / "mine.npz", "--why", "-f", "table")
    assert done.code == 1
    assert f"{layer}.released: becomes equal" in done.out.decode()
    assert "if the gates before and after the convolution are exchanged" in done.out.decode()
