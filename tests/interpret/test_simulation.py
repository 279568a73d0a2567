"""Models in narrow dtypes: rounding by hand and by PyTorch, accumulation by loops, and stages that break."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import attnkit
from attnkit.errors import AttnkitWarning, UsageError
from attnkit.interpret.simulation import Simulated, StageRounding, accumulate_product, is_largest
from attnkit.model.dtypes import rounded
from attnkit.records import Record
from tests.places import DATA, REFERENCES, folder
from tests.process import run
from tests.registry import load_core, make_batch, place_of

IDS = np.array([5, 12, 19, 26, 33, 40, 47, 54])
STORY = str(DATA / "story")


def test_eight_bits_by_hand():
    """From 256 on, numbers are 32 apart; from 1 on, 1/8; below 2^-6, all are multiples of 2^-9. Ties are even."""
    given = [463.9, 464, 465, -1e9, np.inf, 1.0625, 1.1875, 2**-10, 3 * 2**-10, 0.3]
    saturated = [448, 448, 448, -448, 448, 1.0, 1.25, 0, 2**-8, 0.3125]
    np.testing.assert_array_equal(rounded(np.array(given), "fp8-e4m3"), np.float32(saturated))
    outside = rounded(np.array(given), "fp8-e4m3:nan")
    np.testing.assert_array_equal(outside, np.float32([448, 448, *[np.nan] * 3, *saturated[5:]]))
    np.testing.assert_array_equal(rounded(np.array([465.0, 1e3, 1.0625]), "fp8-e4m3:unbounded"), [480, 1024, 1])
    assert np.isnan(rounded(np.array([np.nan]), "fp8-e4m3")).all()


def test_eight_bits_are_those_of_torch():
    frozen = np.load(REFERENCES / "simulation.npz")
    np.testing.assert_array_equal(rounded(frozen["fp8.numbers"], "fp8-e4m3"), frozen["fp8.rounded"])


@pytest.mark.parametrize(("form", "unit", "share"), [("float16", 2.0**-10, 0.9), ("bfloat16", 2.0**-7, 0.999)])
def test_a_layer_of_half_precision_is_that_of_torch(form, unit, share):
    """Bits, but where sums in float32 in another order are rounded to the next number."""
    frozen = np.load(REFERENCES / "simulation.npz")
    record = attnkit.encode(None, model=folder("gpt2"), ids=IDS, simulate=form, keep=("decoder.0.*",))
    for stage in ("norm1", "self.output", "norm2", "ffn.hidden"):
        mine, torch = record[f"decoder.0.{stage}"].astype(np.float32), frozen[f"{form}.{stage}"]
        assert (mine == torch).mean() > share, stage
        np.testing.assert_allclose(mine, torch, rtol=0, atol=unit * np.abs(torch).max())


@pytest.mark.parametrize(("form", "end"), [("float16", 2048), ("bfloat16", 256)])
def test_partial_sums_are_rounded_one_after_another(form, end):
    """In float16 a sum of ones ends at 2048, in bfloat16 at 256: half a unit in the last place more is a tie."""
    ones = np.ones((1, 3000), np.float32)
    assert accumulate_product(form)(ones, ones.T).item() == end
    rng = np.random.default_rng(0)
    x, y = (rounded(rng.normal(size=size), form).astype(np.float32) for size in ((2, 3, 40), (2, 40, 5)))
    wanted = np.zeros((2, 3, 5), np.float32)
    for index in np.ndindex(2, 3, 5):
        total = np.float64(0)
        for a, b in zip(x[index[0], index[1]], y[index[0], :, index[2]], strict=True):
            total = np.float64(rounded(np.array([total + np.float64(a) * np.float64(b)]), form)[0])
        wanted[index] = total
    np.testing.assert_array_equal(accumulate_product(form)(x, y), wanted)


def test_ties_are_numbers_that_join_the_largest_of_their_row():
    assert is_largest(np.array([[3.0, 1.0, 3.0]])).tolist() == [[True, False, True]]
    wide = np.array([[0.99993, 0.99991, 0.5]], np.float32)  # both are 1 in float16
    joined = is_largest(rounded(wide, "float16")) & ~is_largest(wide)
    assert joined.tolist() == [[False, True, False]]


OF_ALL_KINDS = (
    "gpt2",
    "llama",
    "bert-sequence",
    "t5",
    "mixtral",
    "vit",
    "clip:text",
    "whisper",
    "waves/layer",
    "lstm",
    "lfm2",
)


@pytest.mark.parametrize("name", OF_ALL_KINDS)
def test_a_simulation_has_the_stages_of_a_trace(name, tmp_path):
    batch = make_batch(load_core(name).config)
    given, options = {"ids": batch.ids, "x": batch.sound}, {}
    if batch.pixels is not None:
        given, options = {}, {"image": batch.pixels[0]}
    tensors = {key: one for key, one in given.items() if one is not None}
    if batch.ids is not None:
        tensors |= {} if batch.mask is None else {"mask": batch.mask[:, None]}
        tensors |= {} if batch.types is None else {"types": batch.types}
    source = Record(tensors) if tensors else None
    names = [str(tmp_path / f"{at}.npz") for at in range(2)]
    model = place_of(name)
    plain = attnkit.encode(source, model=model, trace=names[0], **options)
    narrow = attnkit.encode(source, model=model, trace=names[1], simulate="float16", **options)
    wanted, found = (attnkit.formats.load(one) for one in names)
    assert {*wanted} <= {*found} and all(name in wanted or ".previous" in name for name in found)
    for stage in wanted:
        assert found[stage].shape == wanted[stage].shape and found.axes_of(stage) == wanted.axes_of(stage), stage
        assert found[stage].dtype == np.float16 or found[stage].dtype.kind in "iub"
    real = narrow["mask"][:, 0] if "mask" in narrow and narrow["x"].ndim == 3 else ...
    a, b = plain["x"][real], narrow["x"][real]
    assert 0 < np.abs(a - b).max() < 0.02 * np.abs(a).max() and narrow["x"].dtype == np.float16


@pytest.fixture(scope="module")
def wide_network(tmp_path_factory):
    """The model of the samples, with a hidden layer of numbers up to 72990 that the next matrix makes small again."""
    place = tmp_path_factory.mktemp("models") / "story"
    shutil.copytree(STORY, place)
    weights = {name: one.astype(np.float32) for name, one in load_file(place / "model.safetensors").items()}
    weights["transformer.h.1.mlp.c_fc.weight"] *= 30000
    weights["transformer.h.1.mlp.c_proj.weight"] /= 30000
    save_file(weights, place / "model.safetensors")
    return str(place)


def simulate(model, simulation, file):
    with pytest.warns(AttnkitWarning) as told:
        record = attnkit.encode("the fox", model=model, simulate=simulation, trace=file)
    figures = dict(zip(record.labels["stage"], record["rounding"].tolist(), strict=True))
    report = attnkit.diff("the fox", file, model=model)
    return record, [str(one.message) for one in told], figures, [row.site for row in report.rows if row.differs]


def test_a_stage_that_overflows_is_named(wide_network, tmp_path):
    record, told, figures, different = simulate(wide_network, "float16", str(tmp_path / "s.npz"))
    assert told[0].startswith("decoder.1.ffn.hidden is the first stage that overflows float16: 4 of 1,024 numbers")
    assert told[0].endswith("; the largest is 72990.3, and 65504 the limit")
    largest, overflow, _, _, numbers = figures["decoder.1.ffn.hidden"]
    assert 72990 < largest < 72991 and (overflow, numbers) == (4, 1024)
    assert [stage for stage, row in figures.items() if row[1]] == ["decoder.1.ffn.hidden"]
    assert different[0] == "decoder.1.ffn.hidden" and not np.isfinite(record["x"]).all()
    assert attnkit.encode("the fox", model=wide_network, simulate="bfloat16")["rounding"][:, 1].sum() == 0


def test_an_overflow_that_a_later_norm_hides_is_named(wide_network, tmp_path):
    """Saturated numbers leave a result that looks like any other."""
    record, told, figures, different = simulate(wide_network, "fp8-e4m3", str(tmp_path / "s.npz"))
    assert np.isfinite(record["x"]).all() and record["x"].dtype == np.float16
    assert told == [told[0]] and "overflows fp8-e4m3: 926 of 1,024" in told[0]
    assert different == ["decoder.1.ffn.hidden"] and figures["decoder.1.ffn.hidden"][1] == 926


def test_a_parameter_beyond_the_range():
    row = StageRounding("logits", 3.0, 9, 0, 0, 9)
    [sentence] = Simulated("fp8-e4m3:nan", np.zeros(1), [row]).sentences()
    assert sentence.endswith("9 of 9 numbers; a parameter or a partial sum is beyond the limit, 448")
    assert Simulated("float16", np.zeros(1), [row._replace(overflow=0)]).sentences() == []


def test_clean_simulations_are_the_same_and_narrow_accumulation_is_not(tmp_path):
    file, sites = str(tmp_path / "s.npz"), {}
    for simulation in ("float16", "bfloat16", "fp8-e4m3", "fp8-e4m3:nan", "float16:accumulate"):
        attnkit.encode("the fox", model=STORY, simulate=simulation, trace=file)
        report = attnkit.diff("the fox", file, model=STORY)
        assert simulation.startswith(report.facts.dtype)
        sites[simulation] = [row.site for row in report.rows if row.differs]
    assert sites.pop("float16:accumulate")[0] == "decoder.0.self.q"
    assert not any(sites.values()), sites


def test_edits_apply_to_rounded_stages():
    plain = attnkit.encode(None, model=folder("gpt2"), ids=IDS, simulate="float16")
    edited = attnkit.encode(
        None,
        model=folder("gpt2"),
        ids=IDS,
        simulate="float16",
        ablate=("decoder.0.self",),
        keep=("decoder.0.self.heads",),
    )
    assert not edited["decoder.0.self.heads"].any() and (edited["x"] != plain["x"]).any()


def test_what_is_not_simulated():
    with pytest.raises(UsageError, match=r"--simulate: float16:accumulate: the sums of its nodes .+ not simulated"):
        attnkit.encode(None, model=folder("lstm"), ids=IDS % 7, simulate="float16:accumulate")
    with pytest.raises(UsageError, match="--simulate: a transformer model needs ids, and this record has x"):
        attnkit.encode(Record({"x": np.zeros((3, 16), np.float32)}), model=folder("transformer"), simulate="float16")
    for options in ({"dtype": "float64"}, {"layers_": ":1"}, {"weights": "stats", "keep": ("*.weights",)}):
        with pytest.raises(UsageError, match="--simulate"):
            attnkit.encode(None, model=folder("gpt2"), ids=IDS, simulate="float16", **options)


def test_other_tools_on_a_simulation(tmp_path):
    line = f"encode --model {STORY} 'the fox' --simulate float16"
    with pytest.raises(UsageError, match="--simulate: rounding has no derivative"):
        attnkit.grad(line)
    narrow, plain = (attnkit.cost(one)["x"] for one in (line, line.removesuffix(" --simulate float16")))
    np.testing.assert_array_equal(narrow[..., :3], plain[..., :3])  # parameters and FLOPs
    np.testing.assert_array_equal(2 * narrow[..., 4], plain[..., 4])  # bytes that are written
    assert run("run", line, "--trace", str(tmp_path / "t.npz"), "-o", str(tmp_path / "x.npz")).code == 0
    assert attnkit.formats.load(str(tmp_path / "t.npz"))["decoder.0.ffn.hidden"].dtype == np.float16
