"""A dump compared with a model: token ids, kinds of differences, and what is refused."""

import json

import numpy as np
import pytest
from PIL import Image

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.debugger.compare import Request, compare_dumps, compare_with_model
from attnkit.debugger.dumps import Dump, array_entry, open_dump
from attnkit.debugger.report import Facts, make_verdict, verdict_cells
from attnkit.debugger.verdict import SiteRow, compare_arrays
from attnkit.errors import DataError, UsageError
from attnkit.inputs import layers
from attnkit.interpret.comparison import compare_ids
from attnkit.model.graph.nodes import Inputs
from attnkit.model.passes.model_graph import model_graph
from tests import process
from tests.places import DATA, REFERENCES, ROOT, STORY, folder

IDS = np.array([[5, 9, 17, 30, 8, 41]])


def stages_of(family, changes=None, dtype=np.float32, **inputs):
    """What a program computes of a model in float32, under changed stages, by site."""
    core = layers.complete_model(open_checkpoint(folder(family)))
    graph, memo = model_graph(core, Inputs(ids=IDS, **inputs)), {}
    changed = {site: change(graph.nodes[site]) for site, change in (changes or {}).items()}
    for site in graph.nodes:
        graph.evaluate(site, graph.roots, changed, "float32", memo)
    return {"input_ids": IDS} | {site: array.astype(dtype) for site, array in memo.items()}


def dump_of(arrays):
    return Dump("mine.npz", {name: array_entry(array) for name, array in arrays.items()}, True)


def judge(family, arrays, **request):
    return compare_with_model(open_checkpoint(folder(family)), dump_of(arrays), Request(**request))


def differing(report):
    return {row.site: row for row in report.rows if row.differs}


def test_the_same_model_in_another_dtype_is_the_same():
    for dtype in (np.float32, np.float64):
        report = judge("llama", stages_of("llama", dtype=dtype), why=True)
        assert report.same
        assert len(report.rows) == report.facts.found[0] == report.facts.found[1]


def test_kinds_of_differences():
    arrays = stages_of("gpt2")
    arrays["decoder.0.norm1"] = arrays["decoder.0.norm1"][:, :4]
    arrays["decoder.0.ffn.activated"][0, 2, 3] = np.nan
    arrays["decoder.1.norm1"] = arrays["decoder.1.norm1"].astype(np.float16)
    arrays["decoder.1.self.output"][0, 1] += 0.5
    del arrays["decoder.1.norm2"]
    report = judge("gpt2", arrays, why=True, all_rows=True)
    kinds = {row.site: row.kind for row in report.rows if row.kind}
    assert kinds["decoder.0.norm1"] == "shape"
    assert kinds["decoder.0.ffn.activated"] == "not finite"
    assert kinds["decoder.1.norm1"] == "dtype"
    assert kinds["decoder.1.self.output"] == "numeric"
    assert kinds["decoder.1.norm2"] == "missing"
    assert "decoder.1.norm2" not in differing(report)
    assert differing(report)["decoder.1.self.output"].verdict == "unknown"
    assert "decoder.0.ffn.output" not in differing(report), "it is computed from what is before the NaN"


def test_two_slips_in_one_stage_are_named_if_one_was_found_before():
    rounds = {"rounds_parameters": "bfloat16"}
    changes = {f"decoder.{number}.norm1": lambda stage: stage.change(**rounds) for number in (0, 1)}
    changes["decoder.1.self.v_projected"] = lambda stage: stage.change(names=("wk", "bk"), **rounds)
    row = differing(judge("llama", stages_of("llama", changes), why=True))["decoder.1.self.v_projected"]
    assert row.verdict == "named"
    assert {cause.name for cause in row.causes} == {
        "the parameters are rounded to bfloat16 and v is computed with the weight of k"
    }


def test_one_wrong_number_is_not_the_rounding_of_all():
    arrays = stages_of("gpt2")
    arrays["decoder.1.self.output"][0, 1, 3] += 0.5
    row = differing(judge("gpt2", arrays, why=True))["decoder.1.self.output"]
    assert row.verdict == "unknown"
    assert not [cause for cause in row.causes if "rounded" in cause.name], "it leaves nearly all of the difference"


def test_minus_a_billion_is_as_good_as_minus_infinity():
    arrays = stages_of("gpt2")
    masked = arrays["decoder.0.self.masked"]
    masked[np.isneginf(masked)] = -1e9
    assert judge("gpt2", arrays).same
    masked[masked == -1e9] = -1
    (cause,) = differing(judge("gpt2", arrays, why=True))["decoder.0.self.masked"].causes
    assert cause.name == "blocked scores are -1 instead of −∞"


def test_logits_of_the_last_token_alone():
    arrays = stages_of("gpt2")
    arrays["logits"] = arrays["logits"][:, -1:]
    report = judge("gpt2", arrays)
    assert report.same
    assert "logits: of the last token alone" in report.facts.notes
    arrays["logits"] = arrays["logits"] + 1
    assert [*differing(judge("gpt2", arrays))] == ["logits"]


def test_a_part_of_the_tokens_does_not_inherit_as_its_own():
    arrays = stages_of("gpt2", {"decoder.0.norm1": lambda stage: stage.change(kind="rms")})
    arrays["logits"] = arrays["logits"][:, -1:]
    assert [*differing(judge("gpt2", arrays, all_rows=True))] == ["decoder.0.norm1"]


def test_the_norm_of_an_image_of_the_first_token_alone():
    checkpoint = open_checkpoint(f"{ROOT}/tests/transcripts/inputs/clip:vision")
    core = layers.complete_model(checkpoint)
    image = np.random.default_rng(0).normal(size=(1, 3, 21, 21)).astype(np.float32)
    graph, memo = model_graph(core, Inputs(image=image)), {}
    slip = {"encoder.0.norm1": graph.nodes["encoder.0.norm1"].change(kind="rms")}
    for site in graph.nodes:
        graph.evaluate(site, graph.roots, slip, "float32", memo)
    arrays = {"pixel_values": image} | {site: array.astype(np.float32) for site, array in memo.items()}
    arrays["encoder.norm"] = arrays["encoder.norm"][:, 0]
    report = compare_with_model(checkpoint, dump_of(arrays), Request(all_rows=True))
    assert "encoder.norm: of the first token alone" in report.facts.notes
    assert [*differing(report)] == ["encoder.0.norm1"]
    arrays["vector.state"] = arrays["encoder.norm"] = arrays["encoder.norm"] + 1
    del arrays["vector"]
    report = compare_with_model(checkpoint, dump_of(arrays), Request(all_rows=True))
    assert [*differing(report)] == ["encoder.0.norm1", "encoder.norm"]


def test_ids_that_differ_are_said_first():
    assert compare_ids(IDS, IDS, None) == ""
    assert compare_ids(IDS, IDS[:, 1:], None).startswith(
        "6 tokens, expected 5; the first that differs is 5, expected 9"
    )
    assert compare_ids(IDS[:, 1:], IDS, None).endswith("they lack the first 1")
    report = compare_with_model(open_checkpoint(folder("gpt2")), dump_of(stages_of("gpt2")), Request(), IDS + 1)
    assert not report.same
    assert not differing(report)
    assert repr(report).startswith(
        "token ids: the first that differs is 5, expected 6 (token 0); the stages are judged"
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda arrays: arrays.pop("input_ids"), "no token ids"),
        (
            lambda arrays: [arrays.pop(name) for name in [*arrays] if name != "input_ids"],
            "none of its names is a stage",
        ),
        (lambda arrays: arrays.update(attention_mask=np.ones((1, 9))), "KV cache"),
    ],
)
def test_a_dump_that_cannot_be_compared_is_refused(change, problem):
    arrays = stages_of("gpt2")
    change(arrays)
    with pytest.raises((DataError, UsageError), match=problem):
        judge("gpt2", arrays)


BAD_INPUTS = {
    "input_ids": {
        "token id 0.5 at [0][0] is not a whole number": [[0.5]],
        "token id nan at [0][0] is not a whole number": [[np.nan]],
        "token id 60 at [0][1] outside 0..59": [[5, 60]],
        "token id -1 at [0][0] outside 0..59": [[-1]],
        "token ids are bool (expected whole numbers)": [[True]],
        "no token ids in shape (1, 0)": np.zeros((1, 0), np.int64),
        "no token ids in shape (0, 6)": np.zeros((0, 6), np.int64),
        "65 tokens, and this bert model has 64 positions": np.zeros(65, np.int64),
    },
    "attention_mask": {
        "shape (5,) (expected that of the token ids, (1, 6))": np.ones(5),
        "numbers other than 1 for a token and 0 for padding": [[0, 0, 0, 0, -1e4, -1e4]],
        "a text of padding alone": np.zeros((1, 6)),
    },
    "token_type_ids": {
        "segment 2 at [0][5] outside 0..1": [[0, 0, 0, 1, 1, 2]],
        "shape (1, 5) (expected that of the token ids, (1, 6))": np.zeros((1, 5)),
    },
}


@pytest.mark.parametrize("why", [False, True])
@pytest.mark.parametrize(
    ("name", "array", "problem"),
    [(name, array, problem) for name, cases in BAD_INPUTS.items() for problem, array in cases.items()],
)
def test_what_a_model_cannot_read_is_named(name, array, problem, why):
    with pytest.raises(DataError) as caught:
        judge("bert", stages_of("bert") | {name: np.array(array)}, why=why)
    assert str(caught.value) == f"mine.npz: tensor {name!r}: {problem}"


def test_an_image_that_a_model_cannot_read_is_named():
    with pytest.raises(DataError, match=r"^mine.npz: tensor 'pixel_values': shape \(1, 1, 32, 32\) \(expected "):
        judge("vit", {"pixel_values": np.zeros((1, 1, 32, 32)), "encoder.norm": np.zeros(3)})


def test_a_mask_of_queries_and_keys_is_no_padding_mask():
    assert judge("gpt2", stages_of("gpt2") | {"mask": np.tri(6)}).same


@pytest.mark.parametrize("why", [False, True])
@pytest.mark.parametrize(
    "array", [np.zeros(0), np.zeros((1, 0, 24)), np.float64(3), np.ones((1,) * 9), np.ones((1, 6, 24), bool)]
)
def test_a_stage_of_any_shape_is_judged(array, why):
    sites = ("decoder.0.norm1", "decoder.0.self.q_projected", "decoder.0.self.q", "decoder.positions.rows", "logits")
    report = judge("gpt2", stages_of("gpt2") | dict.fromkeys(sites, array), why=why, all_rows=True, match=True)
    assert {*sites} <= {*differing(report)}


def test_whole_numbers_are_the_floats_that_they_are():
    finite = {name: array for name, array in stages_of("gpt2").items() if np.isfinite(array).all()}
    arrays = {name: array.astype(np.int64) for name, array in finite.items()}
    whole = {name: array.astype(np.float32) for name, array in arrays.items()}
    figures = [[(row.site, row.largest) for row in judge("gpt2", one, all_rows=True).rows] for one in (arrays, whole)]
    assert figures[0] == figures[1]


def test_the_noise_of_a_norm_grows_with_the_mean_that_it_subtracts():
    """Rows of 3000 ± 1: a mean that is summed in another order is another float32, 2e-4 away."""
    arrays = stages_of("gpt2")
    x = (arrays["decoder.positions"] + 3000).astype(np.float32)
    centred = x - np.float32(x.astype(np.float64).mean(axis=-1, keepdims=True) + 1e-4)
    params = open_checkpoint(folder("gpt2")).params["decoder.0.norm1"]
    normed = (
        centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5) * params["gamma"] + params["beta"]
    )
    rows = judge("gpt2", {"input_ids": IDS, "decoder.positions": x, "decoder.0.norm1": normed}, why=True).rows
    assert [row.site for row in rows if row.differs] == ["decoder.positions"]
    assert 1e-4 < rows[1].added < rows[1].noise < 0.1


def test_a_decoder_without_its_ids_is_compared_in_its_encoder_alone():
    arrays = stages_of("t5") | {"encoder.0.norm1": np.ones((1, 6, 24), np.float32)}
    report = judge("t5", {name: array for name, array in arrays.items() if "decoder" not in name}, why=True)
    assert [*differing(report)] == ["encoder.0.norm1"]


def test_stages_in_another_order_are_reordered():
    arrays = stages_of("gpt2")
    first = {name: arrays[name] for name in ("input_ids", "decoder.0.self.output")}
    report = judge("gpt2", {**first, **arrays})
    assert report.same
    (note,) = report.facts.notes
    assert note.startswith("reordered: decoder.0.self.output is computed before decoder.0.self.joined")
    assert [row.site for row in report.rows if row.kind == "reordered"] == ["decoder.0.self.output"]


def test_two_dumps_by_the_names_of_two_tools():
    arrays = stages_of("gpt2")
    theirs = {
        "transformer.h.0.ln_1.output": arrays["decoder.0.norm1"],
        "transformer.h.0.mlp.act.output": arrays["decoder.0.ffn.activated"] + 0.25,
    }
    report = compare_dumps(dump_of(arrays), dump_of(theirs), Request())
    assert {row.site: round(row.largest, 6) for row in report.rows} == {
        "decoder.0.norm1": 0,
        "decoder.0.ffn.activated": 0.25,
    }
    with pytest.raises(DataError, match="no name or stage in common"):
        compare_dumps(dump_of({"a": IDS}), dump_of({"b": IDS}), Request())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_dumps_have_the_dtype_of_most_of_the_tensors(dtype):
    arrays = {name: np.ones(3, dtype) for name in "ab"} | {"c": np.ones(3, np.float16)}
    assert compare_dumps(dump_of(arrays), dump_of(arrays), Request()).facts.dtype == dtype


def test_two_arrays_are_compared_by_their_rows():
    """4 units in the last place of the largest number of a row are noise, by which 0.5 is too much."""
    row = compare_arrays("x", np.array([[1.0, 2.0], [0.0, 3.5]]), np.array([[1.0, 2.0], [0.0, 4.0]]), "float32")
    assert (row.kind, row.largest, row.added) == ("numeric", 0.5, 0.5) and row.excess > 1
    assert row.cosine == pytest.approx(19 / np.sqrt(17.25 * 21))
    same = compare_arrays("x", np.array([1.0, np.nan]), np.array([1.0 + 1e-7, np.nan]), "float32")
    assert same.kind == "" and 0 < same.added == same.largest < same.noise
    assert compare_arrays("x", np.array([np.nan]), np.array([1.0]), "float32").kind == "not finite"


def test_a_table_has_what_a_node_inherits_and_adds_and_the_noise_if_it_lists_all():
    row = SiteRow("decoder.norm", "numeric", 2.0, 0.5, inherited=0.25, added=1.75, noise=0.001, excess=9.0)
    assert verdict_cells(make_verdict([row], Facts("mine.npz"))) == [
        ["stage", "max |a−b|", "cosine", "inherited", "added", ""],
        ["decoder.norm", "2", "0.5", "0.25", "1.8", "numeric"],
    ]
    small = SiteRow("decoder.norm", "", 2.0, 0.5, inherited=0.0005, added=np.nan, noise=0.001)
    cells = verdict_cells(make_verdict([small], Facts("mine.npz", shows_all=True)))
    assert cells[1] == ["decoder.norm", "2", "0.5", "noise", "–", "0.001", "rounding"]


def test_a_map_names_what_no_table_knows(tmp_path):
    arrays = stages_of("gpt2", {"decoder.0.norm1": lambda stage: stage.change(eps=1e-3)})
    np.savez(tmp_path / "mine.npz", tokens=IDS, first=arrays["decoder.embed.words"], l0=arrays["decoder.0.norm1"])
    (tmp_path / "names.txt").write_text("# mine, stage\ntokens, ids\nfirst decoder.embed.words\nl0\tdecoder.0.norm1\n")
    command = [
        "diff",
        "--model",
        folder("gpt2"),
        str(tmp_path / "mine.npz"),
        "--map",
        str(tmp_path / "names.txt"),
        "--why",
    ]
    done = process.run(*command)
    assert done.code == 1
    assert b"if eps of the norm is 0.001 instead of 1e-05" in done.out
    assert process.run(*command, "-q").out == b""
    record = json.loads(process.run(*command, "-f", "json").out)
    assert record["labels"]["stage"] == ["decoder.embed.words", "decoder.0.norm1"]
    assert record["labels"]["verdict"] == ["", "named"]


def test_tensors_without_names_are_paired_by_value(tmp_path):
    arrays = stages_of("gpt2")
    np.savez(tmp_path / "mine.npz", input_ids=IDS, a=arrays["decoder.1.norm1"][0], b=arrays["decoder.0.norm1"][0])
    report = attnkit.diff(str(tmp_path / "mine.npz"), model=folder("gpt2"), match=True)
    assert [row.site for row in report.rows] == ["decoder.0.norm1", "decoder.1.norm1"]
    assert report.same
    assert "b is taken for decoder.0.norm1 by its values (100 % sure)" in report.facts.notes


def test_from_python_a_text_and_a_dump(tmp_path):
    ids = attnkit.embed("the fox", tokenizer=f"{STORY}/tokenizer.json", dim=1)["ids"]
    trace = attnkit.encode(None, model=STORY, ids=ids, keep=["*"])
    names = [name for name in trace if name.startswith("decoder.")]
    np.savez(tmp_path / "mine.npz", ids=ids, **{name: trace[name] for name in names})
    report = attnkit.diff("the fox", str(tmp_path / "mine.npz"), model=STORY, why=True)
    assert report.same
    assert report.facts.tokens == len(ids)
    assert not attnkit.diff("the dog", str(tmp_path / "mine.npz"), model=STORY).same


def test_the_port_of_the_page_has_the_mistakes_that_the_page_names():
    text = (DATA / "port.py").read_text(encoding="utf-8")
    assert "math.sqrt(x.shape[-1])" in text, "of the whole width"
    assert "x / (1 + np.exp(-x))" in text, "SiLU"


def test_why_needs_a_model():
    done = process.run("diff", str(REFERENCES / "slips.json"), str(REFERENCES / "slips.json"), "--why")
    assert (done.code, done.err) == (2, "attnkit diff: --why: needs --model DIR\n")


def test_the_ids_of_two_dumps_need_a_model(tmp_path):
    np.savez(tmp_path / "a.npz", **{"model.layers.0.input_layernorm.output": np.ones((1, 2, 4))})
    np.savez(tmp_path / "b.npz", **{"attn_norm-0": np.ones((1, 2, 4)), "other": np.ones(1)})
    dumps = [str(tmp_path / name) for name in ("a.npz", "b.npz")]
    assert attnkit.diff(*dumps).same
    with pytest.raises(UsageError, match="needs --model DIR, or two models"):
        attnkit.diff(*dumps, ids=np.arange(2))


def test_a_frozen_dump_opens_in_the_order_of_its_calls():
    dump = open_dump(str(REFERENCES / "slips" / "gpt2-no-scale-float32.npz"))
    names = [*dump]
    assert dump.is_ordered
    assert names.index("transformer.h.0.ln_1.output") < names.index("transformer.h.1.ln_1.output")


def test_the_padding_of_a_source_hides_no_token_of_its_targets():
    mask, target = np.array([[True, True, True, True, False, False]]), np.array([[2, 7, 9, 11, 12, 13]])
    arrays = stages_of("marian", mask=mask, target=target)
    arrays |= {"attention_mask": mask.astype(int), "decoder_input_ids": target}
    assert judge("marian", arrays).same
    arrays["encoder.0.ffn.output"][0, 5] += 1  # of padding
    assert judge("marian", arrays).same
    arrays["decoder.0.ffn.output"][0, 5] += 1
    arrays["logits"][0, 5] += 1
    found = [*differing(judge("marian", arrays, all_rows=True))]
    assert found == ["decoder.0.ffn.output", "decoder.0.ffn.residual", "logits"]


@pytest.mark.parametrize("length, is_noted", [(24, True), (12, False)])
def test_frequencies_of_the_longest_text_of_a_batch_are_named(length, is_noted):
    """As transformers computes dynamic scaling; its base grows beyond 16 tokens."""
    core = layers.complete_model(open_checkpoint(folder("llama-dynamic")))
    ids = np.random.default_rng(0).integers(5, 60, (2, length))
    mask = np.arange(length) < np.array([[length], [7]])
    graph, memo = model_graph(core, Inputs(ids=ids, mask=mask)), {}
    rotated = {site: one for site, one in graph.nodes.items() if one.options.get("rope")}
    changed = {site: one.change(length=length) for site, one in rotated.items()}
    assert changed
    for site in graph.nodes:
        graph.evaluate(site, graph.roots, changed, "float32", memo)
    arrays = {"input_ids": ids, "attention_mask": mask.astype(int)} | memo
    report = judge("llama-dynamic", arrays, why=True)
    noted = [note for note in report.facts.notes if "in transformers that of the longest" in note]
    assert bool(noted) == is_noted == (not report.same)
    causes = {cause.name for row in report.rows for cause in row.causes}
    assert any("those of the longest text of the batch" in cause for cause in causes) == is_noted


def picture_command(tmp_path, pixels):
    """The command that compares a dump of pixels alone with what ViT makes of a picture."""
    np.savez(tmp_path / "mine.npz", pixel_values=pixels.astype(np.float32))
    picture = str(REFERENCES / "models" / "vit.png")
    return ["diff", "--model", folder("vit"), "--image", picture, str(tmp_path / "mine.npz"), "--why"]


def resize_picture(resample):
    """The picture in 32 x 32 pixels between 0 and 1: (1, 3, 32, 32)."""
    image = Image.open(REFERENCES / "models" / "vit.png").convert("RGB").resize((32, 32), resample)
    return np.moveaxis(np.asarray(image) / 255, -1, 0)[None]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x, "the pixels are not normalized"),
        (lambda x: x * 510 - 1, "the pixels are not multiplied by 1/255"),
        (lambda x: (2 * x - 1)[:, ::-1], "the channels of the pixels are blue, green and red, not red, green and blue"),
        (lambda x: 2 * resize_picture(Image.Resampling.BOX) - 1, "the picture is resized by the filter box"),
        (lambda x: (2 * x - 1).swapaxes(2, 3), "the rows and columns of the pixels are exchanged"),
        (lambda x: np.moveaxis(2 * x - 1, 1, -1), "the same within the noise"),
    ],
)
def test_the_pixels_are_compared_with_what_becomes_of_the_picture(change, words, tmp_path):
    done = process.run(*picture_command(tmp_path, change(resize_picture(Image.Resampling.BILINEAR))))
    assert words in done.out.decode()


def test_pixels_that_differ_by_a_grey_level_are_the_same(tmp_path):
    right = resize_picture(Image.Resampling.BILINEAR)
    done = process.run(*picture_command(tmp_path, 2 * (right + 1 / 255) - 1))
    assert (done.code, done.err) == (0, "")
    done = process.run(*picture_command(tmp_path, 2 * (right + 2 / 255) - 1))
    assert done.code == 1


def test_a_picture_needs_a_model_of_images(tmp_path):
    command = picture_command(tmp_path, resize_picture(Image.Resampling.BILINEAR))
    command[2] = folder("gpt2")
    done = process.run(*command)
    assert done.code == 2
    assert "vit.png: this gpt2 model reads no images" in done.err
