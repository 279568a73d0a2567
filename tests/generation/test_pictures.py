"""Chats about a picture: pixels, tokens, rows, logits and answers as transformers computes them.

What the numbers are, and how they were made: tests/references/make_pictures.py.
"""

import json

import numpy as np
import pytest

import attnkit
from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import AttnkitError, AttnkitNote, DataError, UsageError
from attnkit.inputs import image_processor, layers, picture_prompts
from attnkit.model.backward.tape import Reverse
from attnkit.model.formulas.patch_embedding import nearest_weights
from attnkit.model.formulas.patch_grouping import Grouping, group_patches, group_patches_backward
from attnkit.model.graph.nodes import Inputs
from attnkit.model.layers.connector import connector_model
from attnkit.model.passes.model_graph import model_graph
from attnkit.model.passes.recorded_pass import run_backward, run_recorded
from tests import process
from tests.drawing import assert_near, drawn_models, keep_folders
from tests.places import MODELS, arrays
from tests.registry import load_core, make_batch

pytestmark = pytest.mark.filterwarnings("ignore:the picture is read as")
TABLE = drawn_models("pictures")
TILED = ("idefics3", "smolvlm")
EXACT, SINGLE = 1e-10, 1e-5  # of the largest number
PICTURE = str(MODELS / "vit.png")
TEXT, NEW = "What is this?", 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return keep_folders(tmp_path_factory.mktemp, "pictures")


def frozen(name, key):
    return arrays("pictures")[f"{name}/{key}"]


def read_picture():
    from PIL import Image

    with Image.open(PICTURE) as image:
        return np.asarray(image)


def ask(place, **options):
    return attnkit.decode(TEXT, model=place, chat=True, image=PICTURE, **options)


@pytest.mark.parametrize("name", TABLE)
def test_a_picture_is_cut_as_the_processor_of_transformers_does(folder, name):
    tiles = picture_prompts.cut_image(open_checkpoint(folder(name)), read_picture())
    np.testing.assert_array_equal(tiles, frozen(name, "pixels"))


@pytest.mark.parametrize("name", TABLE)
def test_the_rows_of_a_picture_and_the_logits_of_a_chat(folder, name, tmp_path):
    """Logits, the embeddings with the rows among them, and the weights of every layer."""
    for dtype, tolerance in ((np.float64, EXACT), (np.float32, SINGLE)):
        place, given = folder(name, dtype), np.array(TABLE[name]["ids"])
        tower = layers.core_model(open_checkpoint(place).tower("vision"))
        pixels = frozen(name, "pixels").astype(dtype)
        assert_near(model.read_pictures(tower, pixels), frozen(name, "rows"), tolerance)
        trace = str(tmp_path / f"{name}-{dtype.__name__}.npz")
        options = {"image": PICTURE, "max_tokens": 0, "emit": "logits", "trace": trace, "dtype": dtype.__name__}
        logits = attnkit.decode(model=place, ids=given, **options)["x"]
        expected = frozen(name, "logits.f64")
        if len(expected) == len(given):
            assert_near(logits, expected, tolerance)
        with np.load(trace) as traced:
            assert_near(traced["logits"][-len(expected) :], expected, tolerance)
            assert_near(traced["decoder.embed"], frozen(name, "embedded"), tolerance)
            for at in (0, 1):
                weights = frozen(name, f"weights.{at}")
                assert_near(traced[f"decoder.{at}.self.weights"][:, -weights.shape[1] :], weights, tolerance)


@pytest.mark.parametrize("name", TABLE)
def test_the_answer_to_a_chat_is_that_of_transformers_token_for_token(folder, name):
    place = folder(name)
    prompt = attnkit.decode(TEXT, model=place, chat=True, image=PICTURE, emit="prompt")
    assert prompt == TABLE[name]["prompt"]
    assert ask(place, max_tokens=NEW, emit="ids", dtype="float64")["x"].tolist() == TABLE[name]["answer"]
    two = attnkit.decode([TEXT, TEXT], model=place, chat=True, image=PICTURE, max_tokens=NEW, emit="ids", batch=True)
    assert two["x"].tolist() == [TABLE[name]["answer"]] * 2


@pytest.mark.parametrize("name", TABLE)
def test_placeholders_are_those_of_the_processor(folder, name):
    """The text around the picture is written out; the ids of the processor, token for token."""
    place, row = folder(name), TABLE[name]
    text = attnkit.decode(model=place, ids=np.array(row["ids"]), image=PICTURE, max_tokens=1, top=1)
    same = ask(place, max_tokens=1, top=1)
    np.testing.assert_array_equal(text["candidates.logits"], same["candidates.logits"])
    wrong = np.array(row["ids"])
    wrong[np.flatnonzero(wrong == 5)[0]] = 40
    count = row["ids"].count(5)
    with pytest.raises(DataError, match=f"{count - 1} tokens of a picture .id 5., and the picture becomes {count}$"):
        attnkit.decode(model=place, ids=wrong, image=PICTURE)


def test_a_shuffled_block_has_its_rows_first_then_its_columns_then_the_features():
    x = np.arange(2.0 * 4 * 4 * 2).reshape(2, 16, 2)  # feature f of the patch at (row, column): 8 row + 2 column + f
    rows = group_patches(x, Grouping("shuffle", (4, 4), 2))
    assert rows[0, 1].tolist() == [4, 5, 6, 7, 12, 13, 14, 15]  # the second block: columns 2 and 3 of rows 0 and 1
    assert rows[0, 2].tolist() == [16, 17, 18, 19, 24, 25, 26, 27]
    mean = group_patches(x, Grouping("mean", (4, 4), 2))
    assert mean[0, 1].tolist() == [9, 10]
    with pytest.raises(DataError, match="expected 4 x 3 patches in blocks of 2 x 2"):
        group_patches(x[:, :12], Grouping("shuffle", (4, 3), 2))


@pytest.mark.parametrize("kind", ["shuffle", "mean", "patches", "all"])
def test_gradients_of_groups_are_the_adjoint(kind):
    rng, before = np.random.default_rng(0), int(kind in ("patches", "all"))
    how = Grouping(kind, (2, 4), 1 if before else 2, before)
    x = rng.normal(size=(3, before + 8, 5))
    y = group_patches(x, how)
    dy = rng.normal(size=y.shape)
    np.testing.assert_allclose(np.vdot(dy, y), np.vdot(group_patches_backward(dy, x.shape, how), x), rtol=1e-12)


def test_positions_of_another_grid_are_those_of_the_places_of_its_own():
    """Three rows on a grid of two: 0, 1/3 and 2/3 are in the halves 0, 0 and 1; a grid of its own size is itself."""
    assert nearest_weights(2, 3).argmax(axis=1).tolist() == [0, 0, 1]
    assert nearest_weights(4, 2).argmax(axis=1).tolist() == [0, 2]
    for size in (19, 25, 27, 32):
        np.testing.assert_array_equal(nearest_weights(size, size), np.eye(size))


def test_tiles_are_cut_row_by_row_and_the_whole_is_last(folder):
    """A picture of 2 x 3 tiles of one colour each, which no resizing changes inside."""
    raw = {"image_processor_type": "SmolVLMImageProcessor"}
    raw |= {"size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 16}}
    processor = image_processor.ImageProcessor(image_processor.ConfigReader(raw, "file"), (16, 16))
    colours = np.arange(6, dtype=np.uint8).reshape(2, 3, 1) * 40
    image = colours.repeat(16, 0).repeat(16, 1).repeat(3, 2)
    tiles = processor.cut(image, "picture")
    assert len(tiles) == 7 and all(tile.shape == (16, 16, 3) for tile in tiles)
    assert [int(tile[8, 8, 0]) for tile in tiles[:6]] == [0, 40, 80, 120, 160, 200]
    assert tiles[6][0, 0, 0] < 20 and tiles[6][-1, -1, 0] > 180  # squeezed
    assert processor.tile_grid((32, 48)) == (2, 3) and processor.tile_grid((10, 4000)) == (1, 3)
    tall = processor.tile_grid((4000, 10))
    assert tall == (3, 1)
    text = picture_prompts.write_tiles(["#"], picture_prompts.Tiles(1, 2, (16, 16), (1, 1)))
    fake = picture_prompts.FAKE
    assert text == f"{fake}<row_1_col_1>#{fake}<row_1_col_2>#\n\n{fake}<global-img>#{fake}"


def test_tokens_of_a_picture_of_gemma_see_each_other_and_words_before_it_do_not(folder, tmp_path):
    """The first of four tokens sees the last; a window of six keys holds for them too; frozen weights have the rest."""
    ids, place = np.array(TABLE["gemma3-pictures"]["ids"]), folder("gemma3-pictures")
    trace = str(tmp_path / "trace.npz")
    attnkit.decode(model=place, ids=ids, image=PICTURE, max_tokens=0, trace=trace)
    first, last = np.flatnonzero(ids == 5)[[0, -1]]
    with np.load(trace) as traced:
        near, full = (traced[f"decoder.{at}.self.weights"] for at in (0, 1))
    for weights in (near, full):
        assert (weights[:, first, last] > 0).all() and (weights[:, first, last + 1] == 0).all()
        assert (weights[:, first - 1, first:] == 0).all()
    assert (near[:, last, : last - 5] == 0).all() and (near[:, last, last - 5] > 0).all()
    assert (full[:, last, 0] > 0).all()


def test_the_tower_of_llava_ends_before_its_last_layer(folder):
    config = open_checkpoint(folder("llava")).tower("vision").config
    assert TABLE["llava"]["config"]["vision_config"]["num_hidden_layers"] == 3
    assert config.encoder.layers == 2 and not config.encoder.final_norm
    assert config.connector.rows(config.patches, (4, 4)) == 16  # without the class token


@pytest.mark.parametrize(
    ("name", "changes", "problem"),
    [
        ("llava", {"vision_feature_layer": [1, 2]}, "vision_feature_layer .1, 2. is not supported by family llava"),
        ("llava", {"vision_feature_layer": -4}, "use a number from 1 to 3, or from -3 to -1"),
        ("llava", {"vision_config": {"model_type": "siglip_vision_model"}}, "vision_config.model_type 'siglip_vision"),
        ("llava", {"projector_hidden_act": "none"}, "projector_hidden_act 'none' is not supported"),
        ("idefics3", {"text_config": {"model_type": "mamba"}}, "text_config.model_type 'mamba' is not supported"),
        ("idefics3", {"scale_factor": 4}, "expected .16, 192"),
        ("gemma3-pictures", {"mm_tokens_per_image": 9}, "mm_tokens_per_image 9 is no square of blocks of 4 x 4"),
    ],
)
def test_what_is_not_built_is_refused(tmp_path, name, changes, problem):
    from tests.drawing import write_model

    with pytest.raises(DataError, match=problem):
        open_checkpoint(str(write_model(name, tmp_path, kind="pictures", **changes)))


def test_a_folder_without_a_tower_is_its_text_model(tmp_path):
    import safetensors.numpy

    from tests.drawing import write_model

    place = write_model("gemma3-pictures", tmp_path, kind="pictures")
    stored = safetensors.numpy.load_file(place / "model.safetensors")
    text = {name: one for name, one in stored.items() if name.startswith("language_model")}
    safetensors.numpy.save_file(text, place / "model.safetensors")
    opened = open_checkpoint(str(place))
    assert opened.pictures is None and not opened.towers and opened.config.family == "gemma3_text"
    with pytest.raises(UsageError, match="a gemma3_text model takes no image"):
        ask(str(place))


ERRORS = {
    "two placeholders": ({"source": f"<image>{TEXT}"}, "the prompt has <image> 2 times .expected once"),
    "no chat": ({"chat": False}, "the prompt has <image> 0 times .expected once.; write <image> where the picture is"),
    "no picture": ({"image": np.zeros((4, 4), np.uint8)}, "uint8 .4, 4. is no image"),
    "no tensor": ({"image": np.zeros((2, 3, 16, 16), np.float32)}, "is no image .expected floats"),
    "narrow": ({"image": np.zeros((3, 16, 4), np.float32)}, "4x16 pixels are 4 x 1 patches, which are not blocks of 2"),
    "gradients": ({"score": " a", "grad": "g.npz"}, "needs a text without a picture"),
    "attributions": ({"score": " a", "attribute": "input-x-gradient"}, "needs a text without a picture"),
    "cache": ({"cache_in": "c.npz"}, "cannot be combined with"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_errors_say_what_is_wrong_with_a_picture(folder, case):
    given, problem = ERRORS[case]
    options = {"source": TEXT, "chat": True, "image": read_picture(), "model": folder("idefics3")} | given
    source = options.pop("source")
    with pytest.raises(AttnkitError, match=problem):
        attnkit.decode(source, **options)


@pytest.mark.parametrize(
    ("name", "tool", "layer"),
    [("llava", "ffn", "ffn"), ("gemma3-pictures", "layernorm", "norm"), ("idefics3", "linear", "projection")],
)
def test_a_layer_of_a_connector_is_no_stage_whose_norm_or_activation_would_be_of_the_tower(folder, name, tool, layer):
    with pytest.raises(UsageError, match=f"connector.{layer} is not a layer for {tool}"):
        getattr(attnkit, tool)(np.ones((2, 12)), model=f"{folder(name)}:vision", layer=f"connector.{layer}")


def test_a_picture_is_given_once_and_is_a_picture(folder):
    place = folder("idefics3")
    command = ("decode", "--model", place, "--chat", TEXT, "--image")
    with pytest.warns(AttnkitNote, match="3 x 3 tiles and the whole, each 16 x 16 and 4 tokens: 40 tokens"):
        ask(folder("smolvlm"), max_tokens=1)
    twice = process.run(*command, PICTURE, "--image", PICTURE)
    assert twice.code == 2 and "--image: given twice" in twice.err, twice.err
    wrong = process.run(*command, f"{place}/config.json")
    assert wrong.code in (2, 3) and wrong.err.startswith("attnkit decode: ") and "config.json" in wrong.err
    none = process.run("decode", "--model", MODELS / "gpt2", "--image", PICTURE)
    assert none.code == 2 and "a gpt2 model takes no image" in none.err


@pytest.mark.parametrize("name", ["smolvlm", "gemma3-pictures"])
def test_a_cache_holds_the_picture_and_a_text_goes_on_after_it(folder, name, tmp_path):
    place, cache = folder(name), str(tmp_path / "cache.npz")
    whole = ask(place, max_tokens=NEW, emit="ids")["x"].tolist()
    ask(place, max_tokens=3, cache_out=cache)
    rest = attnkit.decode(model=place, cache_in=cache, max_tokens=NEW - 3, emit="ids")["x"].tolist()
    assert rest == whole[3:]
    beams = ask(place, max_tokens=NEW, beam=1, emit="ids")["x"].tolist()
    assert beams == whole


def test_sites_of_the_tower_are_traced_and_patched_by_name(folder, tmp_path):
    place, trace = folder("smolvlm"), str(tmp_path / "t.npz")
    ask(place, max_tokens=1, trace=trace)
    from attnkit import formats

    record = formats.load(trace)
    assert record.axes_of("encoder.0.self.weights") == ("tile", "head", "patch query", "patch key")
    assert record.axes_of("connector.projection") == ("tile", "block", "model")
    assert record.labels["tile"] == [*(f"tile{row}.{column}" for row in (1, 2, 3) for column in (1, 2, 3)), "whole"]
    assert record.labels["block"] == ["r0c0", "r0c1", "r1c0", "r1c1"]
    words = record.labels["key"]
    assert words.count("r0c0") == 1 and words.count("tile2.3 r1c0") == 1
    np.testing.assert_array_equal(record["box"], [0, 0, 1, 1])
    rows = record["connector.projection"].reshape(40, -1)
    places = np.flatnonzero(np.array(TABLE["smolvlm"]["ids"]) == 5)
    np.testing.assert_array_equal(record["decoder.embed"][places], rows)
    same, other = (ask(place, score=" a", patch=[f"connector.projection={trace}"])["x"] for _ in (0, 1))
    np.testing.assert_array_equal(same, other)
    ablated = ask(place, score=" a", ablate=["encoder.0.self:1"])["x"]
    assert not np.allclose(ablated, same)
    with pytest.raises(UsageError, match=r"the run has no intermediate 'connector\.none'"):
        ask(place, patch=[f"connector.none={trace}:connector.projection"])


def test_attention_from_a_word_is_drawn_over_the_picture(folder, tmp_path):
    trace = tmp_path / "t.npz"
    ask(folder("smolvlm"), max_tokens=1, trace=str(trace))
    shown = process.run(
        *("show", trace, "--name", "decoder.1.self.weights", "--slice", "0,?,:", "--over", PICTURE, "-f", "json")
    )
    assert shown.code == 0, shown.err
    tensors = json.loads(shown.out)["tensors"]
    maps = np.array(tensors["decoder.1.self.weights"]["data"])
    with np.load(trace) as traced:
        ids = TABLE["smolvlm"]["ids"]
        word = len(ids) - 1 - ids[::-1].index(48)  # "?"
        weights = traced["decoder.1.self.weights"][0, word]
    np.testing.assert_allclose(maps.ravel(), weights[np.flatnonzero(np.array(ids) == 5)[-4:]], rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "size", "title"),
    [
        ("smolvlm", "52x40", "3 x 3 tiles and the whole, each 16 x 16 and 4 tokens: 40 tokens"),
        ("smolvlm", "400x100", "1 x 3 tiles and the whole, each 16 x 16 and 4 tokens: 16 tokens"),
        ("idefics3", "52x40", "the whole, 16 x 16: 4 tokens"),
        ("llava", "52x40", "the whole, 16 x 16: 16 tokens"),
        ("gemma3-pictures", "9x9", "the whole, 16 x 16: 4 tokens"),
    ],
)
def test_cost_says_what_a_picture_costs(folder, name, size, title):
    record = attnkit.cost(folder(name), image=size, tokens=5)
    phases = record.labels["phase"]
    tokens = int(title.split()[-2])
    assert phases == [f"picture of {size}: {title}", f"forward: {tokens + 5} tokens"]
    stages = record.labels["stage"]
    flops = record["x"][0, :, 1]
    config = open_checkpoint(folder(name)).tower("vision").config
    number = tokens // config.connector.rows(config.patches, (4, 4))
    patches, pixels = 16 * number, 3 * 4 * 4
    assert flops[stages.index("encoder.embed")] == 2 * patches * pixels * config.width
    if "connector.projection" in stages:
        inner, outer = config.parameter_shape("connector.projection", "w")
        assert flops[stages.index("connector.projection")] == 2 * tokens * inner * outer
    with pytest.raises(UsageError, match="the texts of this model hold no pictures"):
        attnkit.cost(str(MODELS / "gpt2"), image=size)


def test_jax_computes_the_rows_and_the_answer(folder):
    pytest.importorskip("jax")
    place = folder("idefics3", np.float32)
    ours = ask(place, max_tokens=1)
    theirs = ask(place, max_tokens=1, engine="jax")
    assert_near(theirs["x"], ours["x"], 1e-5)
    with pytest.raises(UsageError, match="tokens attend to each other in both directions"):
        ask(folder("gemma3-pictures", np.float32), engine="jax")


@pytest.mark.parametrize("name", TABLE)
def test_gradients_of_a_connector_are_differences_and_those_of_its_graph(name):
    core = connector_model(load_core(f"{name}:vision"))
    batch, rng = make_batch(core.config), np.random.default_rng(0)
    graph, memo = model_graph(load_core(f"{name}:vision"), Inputs(image=batch.pixels)), {}
    last = core.config.plan("connector")[-1]
    site = f"{last.layer}.output" if last.op == "ffn" else last.layer
    y = graph.evaluate(site, graph.roots, memo=memo)
    states = core.config.plan("encoder")[-1]
    x = memo[f"{states.layer}.residual" if states.adds_residual else states.layer]
    z, tape = run_recorded(core, core.config.plan("connector"), x, model.Context())
    assert_near(z, y, EXACT)
    dy, reverse = rng.normal(size=y.shape), Reverse()
    dx = run_backward(core, tape, dy, reverse)
    way = rng.normal(size=x.shape)
    above, below = (np.vdot(dy, model.connect_states(core, x + sign * 1e-6 * way)) for sign in (1, -1))
    assert abs((above - below) / 2e-6 - np.vdot(dx, way)) <= 1e-6 * np.abs(dx * way).sum()
    found = graph.backward({site: dy}, graph.roots, memo)
    for layer, names in reverse.gradients.items():
        for parameter, gradient in names.items():
            assert_near(found.params[layer][parameter], gradient, 1e-7)


def test_embeddings_of_words_have_no_gradient_where_a_picture_is():
    core, ids = load_core("idefics3:text"), np.array([7, 5, 5, 8])
    pictures = model.Pictures(np.array([1, 2]), np.ones((2, 16)))
    _, tape = run_recorded(core, core.config.plan("decoder")[:1], ids, model.Context(pictures=pictures))
    reverse = Reverse()
    run_backward(core, tape, np.ones((4, 16)), reverse)
    rows = reverse.gradients["decoder.embed"]["table"]
    assert rows[5].tolist() == [0] * 16 and rows[7].tolist() == rows[8].tolist() == [1] * 16
