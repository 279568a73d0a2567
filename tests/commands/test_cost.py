"""The tool cost: sweeps, two models, Table 1, and what is measured."""

import json

import numpy as np
import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import UsageError
from attnkit.interpret import cost as counting
from attnkit.interpret import roofline
from attnkit.records import shared_labels
from tests import process
from tests.drawing import write_model
from tests.places import FRENCH, MODELS, STORY


def column(record, name):
    return record["x"][..., shared_labels(record.labels["quantity"]).index(name)]


def test_a_sweep_has_the_totals_of_its_runs():
    sweep = attnkit.cost(STORY, sweep="tokens=20:100")
    assert shared_labels(sweep.labels["run"]) == ["20 tokens", "40 tokens", "80 tokens", "100 tokens"]
    for number, row in zip((20, 40, 80, 100), sweep["x"], strict=True):
        alone = attnkit.cost(STORY, tokens=number)
        moved = column(alone, "bytes read").sum() + column(alone, "bytes written").sum()
        assert row.tolist() == [column(alone, "FLOPs").sum(), *row[1:3], moved, alone["cache"].item()]
        assert row[0] == row[1] + row[2]
    assert sweep["x"][1, 1] == 2 * sweep["x"][0, 1]  # products with weights; scores are four times as many
    assert sweep["x"][1, 2] == 4 * sweep["x"][0, 2]


def test_a_sweep_of_generated_tokens_and_of_texts():
    generated = attnkit.cost(STORY, tokens=8, sweep="generate=1:4")["x"]
    assert generated[1, 0] - generated[0, 0] == column(attnkit.cost(STORY, tokens=8, generate=2), "FLOPs")[1].sum()
    texts = attnkit.cost(STORY, tokens=8, sweep="batch=1:2")["x"]
    assert texts[1, :3].tolist() == (2 * texts[0, :3]).tolist() and texts[1, 4] == 2 * texts[0, 4]


def test_two_models_have_the_numbers_that_they_have_alone():
    both, sides = attnkit.cost(STORY, FRENCH, tokens=20), [attnkit.cost(one, tokens=20) for one in (STORY, FRENCH)]
    assert column(both, "FLOPs").sum(axis=1).tolist() == [column(one, "FLOPs").sum() for one in sides]
    assert both["weights"].tolist() == [one["weights"].item() for one in sides]
    sweep = attnkit.cost(STORY, FRENCH, sweep="tokens=20:40")
    assert sweep["x"].shape == (2, 2 * len(counting.CURVES))
    assert shared_labels(sweep.labels["curve"])[5] == "fr-en FLOPs"


def test_bytes_are_those_of_the_dtype():
    single, half = (attnkit.cost(STORY, tokens=20, dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert (column(single, "bytes read") == 2 * column(half, "bytes read")).all()
    assert single["cache"] == 2 * half["cache"] and (column(single, "FLOPs") == column(half, "FLOPs")).all()


def test_a_window_and_latents_need_less_cache_than_is_held(tmp_path):
    windowed = attnkit.cost(str(MODELS / "mistral"), tokens=100)
    rules = open_checkpoint(str(MODELS / "mistral")).config.attention_rules["decoder.0.self"]
    assert windowed["least_cache"] * 100 == windowed["cache"] * (rules.window[0] + 1)
    latent = open_checkpoint(str(write_model("deepseek_v2", tmp_path))).config.latent
    record = attnkit.cost(str(tmp_path), tokens=10)
    layers = open_checkpoint(str(tmp_path)).config.decoder.layers
    assert record["least_cache"].item() == 4 * 10 * layers * (latent.rank + latent.rotary)


def test_training_keeps_gradients_and_two_moments():
    record = attnkit.cost(STORY, tokens=20, train=True)
    assert record["gradients"] == record["weights"] and record["optimizer"] == 2 * record["weights"]
    assert (column(record, "FLOPs")[1] == 2 * column(record, "FLOPs")[0]).all()


def test_table_one_of_the_paper():
    record = attnkit.cost(STORY, paper=True, sweep="tokens=32:128", window=16, kernel=4)
    layers = shared_labels(record.labels["layer"])
    for n, rows in zip((32, 64, 128), record["x"].tolist(), strict=True):
        found = dict(zip(layers, rows, strict=True))
        assert found == {
            "self-attention": [n * n * 64, 1, 1],
            "restricted": [16 * n * 64, 1, n // 16],
            "recurrent": [n * 64 * 64, n, n],
            "convolution": [4 * n * 64 * 64, 1, {32: 3, 64: 3, 128: 4}[n]],  # 4^3 is 64
        }
    assert record["x"][1, 0, 0] == record["x"][1, 2, 0]  # n = d


def test_layers_of_table_one_are_measured_but_the_convolution():
    record = attnkit.cost(STORY, paper=True, tokens=16, measure=True)
    (times,) = record["seconds"]
    assert (times[:3] > 0).all() and np.isnan(times[3])


@pytest.mark.parametrize("folder", [STORY, FRENCH, *(str(MODELS / name) for name in ("vit", "seq2seq", "albert"))])
def test_every_stage_with_products_is_measured(folder):
    record = attnkit.cost(folder, measure=True)
    (seconds,), (rows,) = record["seconds"], column(record, "FLOPs")
    within = (
        "decoder.#.bridge",
        "decoder.cross",
        "decoder.readout",
        "head.dense",
        "head.norm",
    )  # timed with another stage
    for name, flops, times in zip(shared_labels(record.labels["stage"]), rows, seconds, strict=True):
        assert times[0] > 0 and (times[1] > 0 or name in within), name
        assert flops == 0 or times[0] >= flops / record["flops"]


def test_the_prediction_is_that_of_the_slower_part():
    record = attnkit.cost(STORY, tokens=20, measure=True)
    rows, (seconds,) = record["x"][0], record["seconds"]
    for (_, flops, _, read, written, _), (predicted, _) in zip(rows.tolist(), seconds, strict=True):
        assert predicted == max(flops / record["flops"], (read + written) / record["bandwidth"])
    assert roofline.Machine(1e9, 1e8).predict(10**9, 10**9) == 10


@pytest.mark.parametrize(
    ("models", "options"),
    [
        ([STORY, FRENCH], {"measure": True}),
        ([STORY, FRENCH], {"paper": True}),
        ([STORY], {"paper": True, "sweep": "batch=1:2"}),
        ([STORY], {"measure": True, "sweep": "tokens=1:2"}),
        ([STORY], {"sweep": "tokens=64:256"}),
        ([STORY], {"window": 4}),
    ],
)
def test_runs_that_do_not_exist(models, options):
    with pytest.raises(UsageError):
        attnkit.cost(*models, **options)


def test_a_swept_pipeline_shows_from_which_length_on_a_state_costs_less_than_attention(tmp_path):
    """4 T² D of attention and 6 T D² of the delta rule, D 8: equal at 12 tokens, whatever x is."""
    text = "attend --causal | recall --rule delta"
    line = f"attnkit embed 'a b c' --dim 8 | attnkit cost '{text}' --sweep tokens=6:24"
    record = json.loads(process.bash(f"{line} -f json", cwd=tmp_path).out)
    assert record["labels"]["curve"][:2] == ["1.attend FLOPs", "2.recall FLOPs"]
    rows = [row[:2] for row in record["tensors"]["x"]["data"]]
    assert rows == [[4 * t * t * 8, 6 * t * 8 * 8] for t in (6, 12, 24)]
    shown = process.bash(f"{line} -f table", cwd=tmp_path).out.decode()
    assert shown.splitlines()[-1] == "from 24 tokens on 1.attend has more FLOPs than 2.recall"
