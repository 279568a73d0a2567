"""Two checkpoints of one architecture compared: norms by hand, what only one has, one parameter at a time."""

import json
import math
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit.checkpoints import Checkpoint, open_checkpoint
from attnkit.checkpoints.publishing import published_tensors
from attnkit.interpret.comparison import Tolerance
from attnkit.interpret.weights_comparison import ModelPair, WeightChange, WeightsReport, measure_change
from tests.gguf_models import convert, load_tiny
from tests.places import MODELS, ROOT
from tests.process import run

Tensors = dict[str, np.ndarray]


def copied(name: str, folder: Path, change: Callable[[Tensors], None], **settings: object) -> Checkpoint:
    """The folder of a model again, with changed tensors and settings."""
    shutil.copytree(MODELS / name, folder)
    tensors = {key: one.copy() for key, one in safetensors.numpy.load_file(folder / "model.safetensors").items()}
    change(tensors)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | settings
    (folder / "config.json").write_text(json.dumps(config))
    return open_checkpoint(str(folder))


def figures(report: WeightsReport, pattern: str) -> dict[str, float]:
    at = report.labels["tensor"].index(pattern)
    return {name: report[name][at].item() for name in ("layers", "changed", "change", "norm", "relative", "largest")}


def verdicts(report: WeightsReport) -> dict[object, object]:
    return dict(zip(report.labels["tensor"], report.labels["verdict"], strict=True))


def test_norms_of_changes_by_hand(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.layers.0.mlp.up_proj.weight"][0, :2] += (3, 4)
        tensors["model.layers.1.mlp.up_proj.weight"][5, 5] += 12

    a, b = open_checkpoint(str(MODELS / "llama")), copied("llama", tmp_path / "b", change)
    report = ModelPair(a, b).compare()
    norms = [float(np.linalg.norm(a.params[f"decoder.{n}.ffn"]["w3"].astype(np.float64))) for n in (0, 1)]
    found = figures(report, "decoder.#.ffn.w3")
    assert (found["layers"], found["changed"]) == (2, 2)
    assert found["change"] == pytest.approx(13, rel=1e-6) and found["norm"] == pytest.approx(math.hypot(*norms))
    assert found["relative"] == pytest.approx(13 / math.hypot(*norms), rel=1e-6)
    assert found["largest"] == pytest.approx(12 / norms[1], rel=1e-6)
    assert {name for name, verdict in verdicts(report).items() if verdict != "equal"} == {"decoder.#.ffn.w3"}
    assert not report["same"]
    assert "layers 0…1, most in 1" in repr(report)


def test_a_fused_matrix_is_compared_by_its_parts(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["transformer.h.1.attn.c_attn.weight"][:, 16:32] *= 2

    report = ModelPair(open_checkpoint(str(MODELS / "gpt2")), copied("gpt2", tmp_path / "b", change)).compare()
    assert [name for name, verdict in verdicts(report).items() if verdict == "changed"] == ["decoder.#.self.wk"]
    assert figures(report, "decoder.#.self.wk")["largest"] == pytest.approx(1, rel=1e-6)
    assert "head.w" not in verdicts(report)  # the table of embeddings, compared once


def test_what_only_one_has_and_other_shapes() -> None:
    llama, qwen2 = (open_checkpoint(str(MODELS / name)) for name in ("llama", "qwen2"))
    one, other = ModelPair(llama, qwen2).compare(), ModelPair(qwen2, llama).compare()
    assert verdicts(one)["decoder.#.self.bq"] == "only in B" and verdicts(other)["decoder.#.self.bq"] == "only in A"
    assert verdicts(one)["decoder.embed.table"] == "shapes (330, 24) and (60, 24)"
    assert math.isnan(figures(one, "decoder.#.self.bq")["change"])


def test_layers_that_only_one_has(tmp_path: Path) -> None:
    b = copied("llama", tmp_path / "b", lambda tensors: None, num_hidden_layers=1)
    report = ModelPair(open_checkpoint(str(MODELS / "llama")), b).compare()
    rows = [*zip(report.labels["tensor"], report.labels["verdict"], strict=True)]
    assert ("decoder.#.ffn.w1", "equal") in rows and ("decoder.#.ffn.w1", "only in A") in rows
    assert "only in A, layer 1" in repr(report) and "not compared, since no layer uses them" in repr(report)


def test_equal_weights_of_other_configurations_are_not_the_same(tmp_path: Path) -> None:
    a, b = open_checkpoint(str(MODELS / "llama")), copied("llama", tmp_path / "b", lambda tensors: None)
    assert ModelPair(a, b).compare()["same"]
    other = copied("llama", tmp_path / "c", lambda tensors: None, rms_norm_eps=0.5)
    report = ModelPair(a, other).compare()
    assert not report["same"] and report.lines[-1].startswith("the configurations differ: attnkit show ")


def test_another_padding_id_alone_is_the_same(tmp_path: Path) -> None:
    a = open_checkpoint(str(MODELS / "llama"))
    report = ModelPair(a, copied("llama", tmp_path / "b", lambda tensors: None, pad_token_id=7)).compare()
    line = "the padding ids differ, which changes no number of a text: no padding id in A, 7 in B"
    assert report["same"] and report.lines[-1] == line


@pytest.mark.parametrize(("x", "y", "expected"), [
    ([np.nan, 1.0], [np.nan, 1.0], WeightChange("equal", 0.0, math.nan)),
    ([np.inf, 1.0], [np.inf, 4.0], WeightChange("changed", 3.0, math.inf)),
    ([0.0], [2.0], WeightChange("changed", 2.0, 0.0)),
    ([], [], WeightChange("equal", 0.0, 0.0)),
])  # fmt: skip
def test_numbers_that_are_not_finite_and_none(x: list[float], y: list[float], expected: WeightChange) -> None:
    found = measure_change(np.array(x), np.array(y))
    assert found.verdict == expected.verdict
    np.testing.assert_array_equal(found[1:], expected[1:])


def test_the_change_beside_zeros_is_infinite() -> None:
    assert (WeightChange("changed", 2.0, 0.0).relative, WeightChange("equal", 0.0, 0.0).relative) == (math.inf, 0.0)


def test_blocks_of_a_large_tensor_add_up() -> None:
    x = np.random.default_rng(0).standard_normal((500, 300))
    y = x + 0.5
    for left, right in ((x, y), (x.T, y.T), (x.T, np.ascontiguousarray(y.T))):
        found = measure_change(left, right)
        assert found.change == pytest.approx(0.5 * math.sqrt(x.size)) and found.norm == pytest.approx(np.linalg.norm(x))


def test_tolerances(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.norm.weight"] *= np.float32(1.01)

    a, b = open_checkpoint(str(MODELS / "llama")), copied("llama", tmp_path / "b", change)
    pair = ModelPair(a, b)
    assert not pair.compare(Tolerance(rtol=0.005))["same"] and pair.compare(Tolerance(rtol=0.02))["same"]


def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    raw = {"model_type": "gpt2", "n_embd": 256, "n_head": 2, "n_layer": 12, "n_positions": 8, "vocab_size": 9}
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(raw))
        shapes = published_tensors(raw).shapes
        tensors = {key: np.ones(shape, np.float16) for key, shape in shapes.items()}
        safetensors.numpy.save_file(tensors, tmp_path / name / "model.safetensors")
    a, b = (open_checkpoint(str(tmp_path / name)) for name in "ab")
    tracemalloc.start()
    assert ModelPair(a, b).compare()["same"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    largest = 256 * 1024
    assert peak < 20 * largest < a.parameter_count  # two of float32, and their blocks in float64


def test_the_process(tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        tensors["model.norm.weight"] += 1

    copied("llama", tmp_path / "b", change)
    same, other = str(MODELS / "llama"), str(tmp_path / "b")
    assert run("diff", same, same) == (0, b"the same (21 parameters)\n", "")
    code, out, _ = run("diff", same, other, "-f", "csv")
    heads, *rows = out.decode().splitlines()
    assert (code, heads) == (1, "tensor,verdict,layers,changed,change,norm,relative,largest")
    assert [row.split(",")[:4] for row in rows if "changed" in row] == [["decoder.norm.gamma", "changed", "1", "1"]]
    code, out, _ = run("diff", same, other, "-f", "json")
    record = json.loads(out)
    assert code == 1 and record["tensors"]["same"]["data"] is False and "changed" in record["labels"]["verdict"]
    assert run("diff", same, other, "-q") == (1, b"", "")
    assert run("diff", same, other, "--heatmap").code == run("diff", same, other, "--all").code == 2
    assert run("diff", same, other, "--only", "head.w").code == 2
    assert run("diff", same, str(tmp_path / "none")).code == 4


def test_towers_are_models() -> None:
    text, vision = (f"{ROOT}/tests/transcripts/inputs/clip:{tower}" for tower in ("text", "vision"))
    assert run("diff", text, text) == (0, b"the same (37 parameters)\n", "")  # 16 of each layer, 5 others
    assert run("diff", text, vision).code == 1


def test_a_folder_and_its_gguf_file(tmp_path: Path) -> None:
    config, tensors = load_tiny("llama")
    (tmp_path / "config.json").write_text(json.dumps(config))
    stored = {key: np.ascontiguousarray(one) for key, one in tensors.items()}
    safetensors.numpy.save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "m.gguf").write_bytes(convert("llama"))
    folder, file = str(tmp_path), str(tmp_path / "m.gguf")
    code, out, _ = run("diff", folder, file, "-f", "csv", "--rtol", "1e-6")
    assert code in (0, 1) and {row.split(",")[1] for row in out.decode().splitlines()[1:]} == {"equal"}
    code, out, err = run("show", folder, file)
    assert code == 0 and "facts equal" in out.decode(), err
    code, out, err = run("show", file, "--facts")
    assert code == 0 and "layers" in out.decode(), err


def test_from_python(tmp_path: Path) -> None:
    report = attnkit.diff(str(MODELS / "llama"), MODELS / "llama")
    assert isinstance(report, WeightsReport) and report["same"] and repr(report) == "the same (21 parameters)"
