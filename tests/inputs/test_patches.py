"""Tokens of images: their names, the part of a picture that a model reads, and maps over patches."""

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.errors import DataError, UsageError
from attnkit.inputs import patches
from attnkit.inputs.image_processor import ImageProcessor
from attnkit.model.config import PatchConfig
from attnkit.records import Record, Tensor
from tests.drawing import drawn_models, write_model
from tests.places import DATA, MODELS
from tests.process import run

SHAPES, TRIANGLE = str(DATA / "shapes"), str(DATA / "triangle.png")
NAMES = ["cls", "reg0", *(f"r{row}c{column}" for row in range(2) for column in range(3))]
CUT = PatchConfig(21, 21, 7, 7)


def weights(names=NAMES, heads=2):
    array = np.random.default_rng(0).random((heads, len(names), len(names)))
    return Record({"weights": Tensor(array, ("head", "query", "key"))}, {"query": names, "key": names})


def test_registers_come_between_the_class_token_and_patches():
    assert patches.name_patches(PatchConfig(2, 3, 1, 1, registers=1), 2, 3) == NAMES
    assert patches.name_patches(PatchConfig(4, 4, 2, 2, has_class=False), 2, 4) == ["r0c0", "r0c1"]


@pytest.mark.parametrize("name", ["dinov2", "dinov2-registers", "dinov2-swiglu", "dinov3", "clip"])
@pytest.mark.parametrize("shape", [(50, 90), (90, 50), (21, 21), (400, 300)])
def test_what_is_in_the_box_is_what_the_model_reads(name, shape):
    """Of a picture that is white in its box alone the model reads white, and of the opposite black."""
    raw = drawn_models("vision")[name]["preprocessor"]
    processor = ImageProcessor(ConfigReader(raw, "p"), (21, 21))
    height, width = shape
    box = processor.box(shape, "p")
    left, top, right, bottom = box * [width, height, width, height]
    inside = np.zeros((*shape, 3), np.uint8)
    inside[max(round(top), 0) : max(round(bottom), 0), max(round(left), 0) : max(round(right), 0)] = 255
    read, opposite = (processor.fit(one, "p").astype(float)[..., 0] for one in (inside, 255 - inside))
    rows, columns = read.shape
    zeros = np.zeros((rows, columns), bool)  # around a picture that is smaller than what is cut out
    for at in range(rows):
        zeros[at] |= not -1e-9 <= box[1] + (at + 0.5) / rows * (box[3] - box[1]) <= 1 + 1e-9
    for at in range(columns):
        zeros[:, at] |= not -1e-9 <= box[0] + (at + 0.5) / columns * (box[2] - box[0]) <= 1 + 1e-9
    assert (read[zeros] == 0).all() and (opposite[zeros] == 0).all()
    inner = ~zeros
    inner[[0, 1, -1, -2]] = inner[:, [0, 1, -1, -2]] = False  # where a filter mixes pixels of both sides
    assert inner.any() and (read[inner] > 250).all() and (opposite[inner] < 5).all()


def test_a_map_has_each_patch_in_its_row_and_column():
    record = weights()
    tensor, chosen = patches.arrange_patches(record, record, "weights")
    assert tensor.axes == ("head", "row", "column") and chosen == "query cls"
    np.testing.assert_array_equal(tensor.array, record["weights"][:, 0, 2:].reshape(2, 2, 3))


def test_states_are_a_map_for_each_dimension_and_texts_of_a_batch_have_their_own():
    x = np.arange(2 * 8 * 4.0).reshape(2, 8, 4)
    record = Record({"x": Tensor(x, ("batch", "token", "model"))}, {"token": [NAMES, NAMES]})
    tensor, chosen = patches.arrange_patches(record, record, "x")
    assert tensor.axes == ("batch", "model", "row", "column") and chosen == ""
    np.testing.assert_array_equal(tensor.array[1, 3], x[1, 2:, 3].reshape(2, 3))


def test_a_chosen_key_is_a_map_over_the_queries():
    whole = weights()
    part = Record(
        {"w": Tensor(whole["weights"][:, :, 3:5], ("head", "query", "key"))}, whole.labels | {"key": NAMES[3:5]}
    )
    tensor, chosen = patches.arrange_patches(part, whole, "w")
    assert tensor.axes == ("head", "key", "row", "column") and chosen == ""
    np.testing.assert_array_equal(tensor.array[1, 0], whole["weights"][1, 2:, 3].reshape(2, 3))


def test_a_part_of_the_patches_is_no_map_even_where_it_is_a_row():
    whole = weights()
    part = Record({"w": Tensor(whole["weights"][0, 0, 2:5], ("key",))}, {"key": NAMES[2:5]})
    with pytest.raises(UsageError, match=r"3 of the 6 patches of axis key \(expected all\)"):
        patches.arrange_patches(part, whole, "w")


def test_two_axes_of_patches_without_a_class_token_need_a_choice():
    record = weights(NAMES[2:])
    with pytest.raises(UsageError, match="has patches on axis query too; choose one: --slice :,r0c0,:"):
        patches.arrange_patches(record, record, "weights")


@pytest.mark.parametrize(
    "labels", [["The", "cat"], ["r0c0", "r5c5"], ["r0c1", "r0c0"], ["r999999c0", "r0c0"], ["r0c0", "r0c0"]]
)
def test_words_that_are_no_grid_are_no_patches(labels):
    record = Record({"x": Tensor(np.zeros(2), ("token",))}, {"token": labels})
    with pytest.raises((DataError, UsageError)):
        patches.arrange_patches(record, record, "x")


@pytest.mark.parametrize(
    "box",
    [np.zeros(4), np.array([0, 0, np.nan, 1]), np.array([0.0, 0, np.inf, 1]), np.ones(3), np.array([0, 0, 1, 1])],
    ids=["empty", "nan", "infinite", "three", "integers"],
)
def test_a_box_that_is_none_is_an_error(box):
    with pytest.raises(DataError, match="is no box"):
        patches.read_box(Record({"box": box}))


def test_a_trace_of_a_batch_of_images_names_the_tokens_of_each(tmp_path):
    write_model("dinov2-registers", tmp_path, np.float32, "vision")
    images = np.random.default_rng(0).random((2, 3, 14, 21)).astype(np.float32)
    record = attnkit.encode(model=str(tmp_path), image=images, keep="*.weights")
    names = ["cls", "reg0", "reg1", "reg2", *NAMES[2:]]
    assert record.labels["token"] == [names, names] and "box" not in record
    alone = attnkit.encode(model=str(tmp_path), image=images[1], keep="*.weights")
    assert alone.labels["token"] == names
    piped = attnkit.encode(Record({"x": images[1]}), model=str(tmp_path))
    assert piped.labels["token"] == names


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A folder with the trace of a picture, seen.npz."""
    folder = tmp_path_factory.mktemp("traced")
    done = run("encode", "--model", SHAPES, "--image", TRIANGLE, "--trace", "seen.npz", "-o", "x.npz", cwd=folder)
    assert done.code == 0, done.err
    return folder


def test_show_over_gives_the_numbers_of_a_map(traced):
    trace = formats.load(str(traced / "seen.npz"))
    done = run("show", "seen.npz", "--name", "encoder.0.self.weights", "--over", TRIANGLE, "-o", "map.npz", cwd=traced)
    assert done.code == 0, done.err
    made = formats.load(str(traced / "map.npz"))
    assert made.axes_of("x") == ("head", "row", "column")
    np.testing.assert_array_equal(made["x"], trace["encoder.0.self.weights"][:, 0, 1:].reshape(4, 4, 4))


def test_a_named_tensor_of_a_file_keeps_its_place_in_the_picture(tmp_path):
    """FILE:NAME is --name NAME, with the box of the file; a tensor alone has none, and a note says so."""
    write_model("dinov2", tmp_path, np.float32, "vision")
    picture, name = str(MODELS / "vit.png"), "encoder.0.self.weights"
    record = attnkit.encode(model=str(tmp_path), image=picture, keep=name)
    formats.save(record, str(tmp_path / "a.npz"))
    formats.save(record.select([name]), str(tmp_path / "b.npz"))
    one, two, alone = (
        run("show", *line, "--over", picture, "-f", "svg", cwd=tmp_path)
        for line in (("a.npz", "--name", name), (f"a.npz:{name}",), ("b.npz",))
    )
    assert (one.code, one.err, two.code, two.err) == (0, "", 0, "") and one.out == two.out
    assert b"that the model reads" in one.out and b"that the model reads" not in alone.out
    assert alone.code == 0 and "note: no tensor box" in alone.err


WEIGHTS = ("--name", "encoder.0.self.weights")


@pytest.mark.parametrize(
    ("flags", "code", "problem"),
    [
        ((), 2, "choose some with --name"),
        ((*WEIGHTS, "--slice", "0,cls,1:5"), 2, "--slice: 4 of the 16 patches of axis key (expected all)"),
        (("--name", "logits"), 3, "logits (3,) has no axis of patches (it has vocab)"),
        ((*WEIGHTS, "--heatmap"), 2, "--over: cannot be combined with --heatmap"),
        ((*WEIGHTS, "--over", "none.png"), 4, "none.png: No such file"),
        ((*WEIGHTS, "--over", "seen.npz:logits"), 3, "is no picture (expected PNG or JPEG)"),
        ((*WEIGHTS, "--over", "seen.npz"), 3, "seen.npz"),
        ((*WEIGHTS, "--over", "short.png"), 3, "not a PNG or JPEG that can be read"),
    ],
)
def test_show_over_refuses_in_one_line(traced, flags, code, problem):
    (traced / "short.png").write_bytes((MODELS / "vit.png").read_bytes()[:200])
    over = () if "--over" in flags else ("--over", TRIANGLE)
    done = run("show", "seen.npz", *flags, *over, "-o", "a.png", cwd=traced)
    assert done.code == code and problem in done.err and done.err.count("\n") == 1, done.err
    assert not (traced / "a.png").exists()


def test_a_page_has_a_map_of_every_layer(traced):
    pytest.importorskip("matplotlib")
    flags = ("--name", "encoder.*.self.weights", "--over", TRIANGLE, "-o", "a.html")
    done = run("show", "seen.npz", *flags, cwd=traced)
    assert done.code == 0, done.err
    page = (traced / "a.html").read_text()
    assert page.count("<svg") == 2 and page.count("query cls") == 2
