"""Models of images: pixels, states, features and logits as transformers computes them.

What the numbers are, and how they were made: tests/references/make_vision.py.
"""

import functools
import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import attnkit
from attnkit import model
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.errors import AttnkitError, AttnkitWarning
from attnkit.inputs import layers
from attnkit.inputs.text_inputs import fill_texts
from attnkit.model.layers.attention import rotation
from attnkit.records import Record
from tests import process
from tests.drawing import assert_near, drawn_models, keep_folders, write_model
from tests.places import FRENCH, MODELS, REFERENCES, arrays
from tests.transcripts import LINKS

TABLE = drawn_models("vision")
CLASSIFIERS = [name for name, one in TABLE.items() if "classifier.weight" in one["shapes"]]
TOWERS = [name for name, one in TABLE.items() if "logit_scale" in one["shapes"]]
EXACT, SINGLE = 1e-10, 1e-6  # of the largest number
PICTURE = str(MODELS / "vit.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return keep_folders(tmp_path_factory.mktemp, "vision")


def frozen(name, key):
    return arrays("vision")[f"{name}/{key}"]


@pytest.mark.parametrize("name", TABLE)
def test_an_image_is_prepared_as_the_processor_of_transformers_does(folder, name):
    record = attnkit.encode(model=folder(name), image=PICTURE)
    assert np.isfinite(record["x"]).all()
    pixels = frozen(name, "processed")
    expected = attnkit.encode(model=folder(name), image=pixels[0])["x"]
    if "DINOv3" in TABLE[name]["preprocessor"]["image_processor_type"]:  # resized as floats, whose sums round
        assert_near(record["x"], expected, 2 * SINGLE)
    else:
        np.testing.assert_array_equal(record["x"], expected)


@pytest.mark.parametrize("name", ["dinov2-registers", "siglip-classifier"])
def test_jax_computes_an_image_of_another_size(folder, name):
    pytest.importorskip("jax")
    image = frozen(name, "wide.pixels")[0]
    single = folder(name, np.float32)
    tools = (attnkit.encode, functools.partial(attnkit.decode, emit="logits"))
    for tool in tools[: 1 + (name in CLASSIFIERS)]:
        ours = tool(model=single, image=image)["x"]
        assert_near(tool(model=single, image=image, engine="jax")["x"], ours, 1e-5)


def test_patches_rotate_by_their_places_and_other_tokens_do_not(folder):
    """One patch is in the middle, where nothing rotates; two beside each other are turned to opposite sides."""
    core = layers.core_model(open_checkpoint(folder("dinov3")))
    rules = core.config.attention_rules["encoder.0.self"]
    cos, sin = rotation(core.config, rules, 5 + 1, model.Context(grid=(1, 1)))
    assert (cos == 1).all() and (sin == 0).all()
    cos, sin = rotation(core.config, rules, 5 + 2, model.Context(grid=(1, 2)))
    assert (cos[:5] == 1).all() and (sin[5:, :2] == 0).all()
    turns = np.pi * np.array([1, 100**-0.5])  # of heads of width 8: two pairs of frequencies for each direction
    np.testing.assert_allclose(cos[5:, 2:], [np.cos(-turns), np.cos(turns)], atol=1e-12)
    np.testing.assert_allclose(sin[5:, 2:], [np.sin(-turns), np.sin(turns)], atol=1e-12)
    with pytest.raises(AttnkitError, match="8 tokens of an image"):
        rotation(core.config, rules, 8, model.Context(grid=(1, 2)))


@pytest.mark.parametrize("name", TOWERS)
@pytest.mark.parametrize("tower", ["text", "vision"])
def test_vectors_are_those_of_transformers(folder, name, tower):
    for dtype, tolerance in ((np.float64, EXACT), (np.float32, SINGLE)):
        place = f"{folder(name, dtype)}:{tower}"
        given, options = frozen(name, "ids"), {"model": place, "dtype": np.dtype(dtype).name}
        if tower == "vision":
            made = attnkit.encode(image=frozen(name, "pixels"), **options)
        else:  # whose padding is attended to if all texts have the same length
            mask = {} if open_checkpoint(place).config.text_length else {"mask": frozen(name, "ids.mask")[:, None] == 1}
            made = attnkit.encode(Record({"ids": given, "x": given} | mask), **options)
        assert_near(made["x"], frozen(name, f"{tower}.vectors.f64"), tolerance)


@pytest.mark.parametrize("name", TOWERS)
def test_the_similarity_of_an_image_and_texts(folder, name):
    checkpoint = open_checkpoint(folder(name))
    image = attnkit.encode(model=folder(name), image=frozen(name, "pixels"), dtype="float64")["x"]
    texts = frozen(name, "text.vectors.f64")
    cosines = (image / np.linalg.norm(image)) @ (texts / np.linalg.norm(texts, axis=-1, keepdims=True)).T
    assert_near(checkpoint.similarity.logits(cosines), frozen(name, "logits.f64"), EXACT)


CLIP = str(LINKS["inputs"] / "clip")
LABELS = json.loads((REFERENCES / "clip_labels.json").read_text())


def test_an_image_is_labelled_as_transformers_does():
    record = attnkit.decode(model=CLIP, image=PICTURE, labels=LABELS["texts"])
    assert_near(record["logits"], np.array(LABELS["logits"]), 1e-5)
    exponents = np.exp(LABELS["logits"])
    np.testing.assert_allclose(record["x"], exponents / exponents.sum(), rtol=1e-5)
    assert record.labels["label"] == LABELS["texts"] and record["next"] == np.argmax(LABELS["logits"])
    assert attnkit.decode(model=CLIP, image=PICTURE, labels=LABELS["texts"], emit="text") == LABELS["texts"][1]


def test_texts_are_tokens_of_transformers_and_lines_are_the_bits_of_each_alone():
    texts = attnkit.encode(LABELS["texts"], model=CLIP)
    image = attnkit.encode(model=CLIP, image=PICTURE)
    for row, (text, ids) in enumerate(zip(LABELS["texts"], LABELS["ids"], strict=True)):
        alone = attnkit.encode(text, model=CLIP)
        assert alone["ids"].tolist() == ids
        np.testing.assert_allclose(texts["x"][row], alone["x"], rtol=0, atol=1e-6)
    order = attnkit.near(image, index=texts, top=3)
    assert order["rows"].tolist() == np.argsort(LABELS["logits"])[::-1].tolist()
    given = "\n".join(LABELS["texts"]).encode()
    lines = process.run("encode", "--model", CLIP, "--lines", "-f", "json", stdin=given)
    assert lines.code == 0, lines.err
    for text, line in zip(LABELS["texts"], lines.out.splitlines(), strict=True):
        x = np.array(json.loads(line)["tensors"]["x"]["data"], np.float32)
        np.testing.assert_array_equal(x, attnkit.encode(text, model=CLIP)["x"])


def test_the_end_of_a_text_is_its_first_end_token_or_in_old_files_its_largest(folder):
    """Row 1 and 2 are padded with the end token: the last of them is another state."""
    new, old = (open_checkpoint(folder(name)).config.vector_pooling for name in ("clip", "clip-old"))
    assert (new, old) == ("end", "largest")
    ids = np.array([[59, 7, 60, 5, 60]])
    record = Record({"x": ids, "ids": ids})
    for name in ("clip", "clip-old"):
        states = attnkit.encode(record, model=folder(name), pool="none", dtype="float64")["x"]
        w = open_checkpoint(folder(name)).params["vector"]["w"]
        np.testing.assert_allclose(attnkit.encode(record, model=folder(name), dtype="float64")["x"], states[:, 2] @ w)


SIGLIP = str(LINKS["inputs"] / "siglip")
PAIRS = json.loads((REFERENCES / "siglip_labels.json").read_text())


def test_a_model_of_pairs_gives_each_label_a_probability_of_its_own():
    record = attnkit.decode(model=SIGLIP, image=PICTURE, labels=PAIRS["texts"])
    assert_near(record["logits"], np.array(PAIRS["logits"]), 2e-6)
    np.testing.assert_allclose(record["x"], PAIRS["probabilities"], rtol=2e-6)
    assert record.tensor("x").formula == "σ(logits), logits = s cos(image, text) + b"
    assert record.labels["function"] == ["sigmoid"]
    alone = attnkit.decode(model=SIGLIP, image=PICTURE, labels=PAIRS["texts"][:1])
    np.testing.assert_allclose(alone["x"], record["x"][:1], rtol=1e-6)
    steps = attnkit.decode(model=SIGLIP, image=PICTURE, labels=PAIRS["texts"], steps=True)
    assert [steps.tensor(name).formula for name in ("logits", "x")] == ["s cos(image, text) + b", "σ(logits)"]
    assert attnkit.decode(model=SIGLIP, image=PICTURE, labels=PAIRS["texts"], emit="text") == PAIRS["texts"][1]


def test_spiece_models_of_siglip_give_the_tokens_of_transformers():
    tokenizer = open_tokenizer(SIGLIP)
    for text, ids in PAIRS["tokens"].items():
        assert tokenizer.encode(text).ids == ids
        assert tokenizer.decode(ids) == PAIRS["words"][text]
    assert tokenizer.truncate([*PAIRS["tokens"]][-1], None, 13).ids == PAIRS["cut"]


def test_texts_are_padded_to_the_length_of_all_and_the_padding_is_attended_to():
    texts = attnkit.encode(PAIRS["texts"], model=SIGLIP)
    assert texts["ids"].tolist() == PAIRS["ids"]
    for row, (text, ids) in enumerate(zip(PAIRS["texts"], PAIRS["ids"], strict=True)):
        alone = attnkit.encode(text, model=SIGLIP)
        assert alone["ids"].tolist() == ids
        np.testing.assert_array_equal(alone["x"], texts["x"][row])
    image = attnkit.encode(model=SIGLIP, image=PICTURE)
    order = attnkit.near(image, index=texts, top=3)
    assert order["rows"].tolist() == np.argsort(PAIRS["logits"])[::-1].tolist()
    with pytest.warns(AttnkitWarning, match="1 text is cut to 13 tokens"):
        assert attnkit.encode([*PAIRS["tokens"]][-1], model=SIGLIP)["ids"].tolist() == PAIRS["cut"]


def test_the_padding_is_that_of_the_tokenizer(tmp_path):
    """SigLIP 2 has a tokenizer.json whose padding is another token than the configuration implies."""
    for file in ("model.safetensors", "config.json"):
        shutil.copy(f"{SIGLIP}/{file}", tmp_path)
    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, "cat": 3}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "decoder": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"}))
    assert attnkit.encode("cat", model=str(tmp_path))["ids"].tolist() == [3] + 12 * [0]


def left_folder(place, settings, file="tokenizer_config.json"):
    shutil.copytree(SIGLIP, place, dirs_exist_ok=True)
    (place / file).write_text(json.dumps(json.loads((place / file).read_text()) | settings))
    return str(place)


def test_padding_is_on_the_side_that_the_tokenizer_states(tmp_path):
    """transformers pads on the left then, too, and the position that is read is that of the end of the text."""
    left = left_folder(tmp_path, {"padding_side": "left"})
    texts = attnkit.encode(PAIRS["texts"], model=left)
    for row, text in zip(texts["ids"].tolist(), PAIRS["texts"], strict=True):
        ids = PAIRS["tokens"][text]
        assert row == [1] * (13 - len(ids)) + ids
    assert texts.labels["token"][0] == [*["</s>"] * 9, "▁a", "▁c", "at", "</s>"]
    record = Record({"x": texts["ids"], "ids": texts["ids"]})
    np.testing.assert_array_equal(attnkit.encode(record, model=SIGLIP)["x"], texts["x"])
    done = process.run("encode", "a cat", "--model", left_folder(tmp_path, {"padding_side": "top"}))
    problem = f"{tmp_path}/tokenizer_config.json: padding_side is 'top' (expected left or right)\n"
    assert (done.code, done.err) == (3, f"attnkit encode: {problem}")


@pytest.mark.parametrize(
    ("direction", "stated", "ids"),
    [("Left", {}, [0, 0, 3]), ("Right", {}, [3, 0, 0]), ("Left", {"padding_side": "right"}, [3, 0, 0])],
)
def test_a_tokenizer_json_states_the_side_of_the_padding_where_its_configuration_does_not(
    tmp_path, direction, stated, ids
):
    padding = {"strategy": "BatchLongest", "direction": direction, "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "<pad>"}  # fmt: skip
    words = {"type": "WordLevel", "vocab": {"<pad>": 0, "<unk>": 1, "cat": 3}, "unk_token": "<unk>"}
    content = {"version": "1.0", "truncation": None, "padding": padding, "normalizer": None, "decoder": None,
               "pre_tokenizer": None, "post_processor": None, "added_tokens": [], "model": words}  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>"} | stated))
    tokenizer = open_tokenizer(str(tmp_path))
    config = model.Config("siglip_text_model", 2, text_length=3)
    assert fill_texts([tokenizer.encode("cat")], tokenizer, config)[0].ids == ids


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_jax_computes_the_vectors_of_towers(folder, name):
    pytest.importorskip("jax")
    place, ids = folder(name, np.float32), frozen(name, "ids")[:1]
    for given in ({"image": frozen(name, "pixels")[0]}, {"ids": Record({"x": ids})}):
        ours, theirs = (attnkit.encode(model=place, engine=engine, **given)["x"] for engine in ("numpy", "jax"))
        assert_near(theirs, ours, 1e-5)
    labelled = [
        attnkit.decode(
            model={"clip": CLIP, "siglip": SIGLIP}[name], image=PICTURE, labels=("a cat", "a red dog"), engine=one
        )
        for one in ("numpy", "jax")
    ]
    assert_near(labelled[1]["x"], labelled[0]["x"], 1e-5)


@pytest.mark.parametrize("name", ["siglip", "siglip-wide"])
def test_positions_are_resized_and_the_last_position_is_read_though_it_is_masked(folder, name):
    place = folder(name)
    wide = attnkit.encode(model=place, image=frozen(name, "wide.pixels"), dtype="float64")
    assert_near(wide["x"], frozen(name, "wide.vectors"), EXACT)
    ids, mask = frozen(name, "ids"), frozen(name, "ids.mask")[:, None].astype(bool)
    masked = attnkit.encode(Record({"x": ids, "ids": ids, "mask": mask}), model=place, dtype="float64")
    assert_near(masked["x"], frozen(name, "masked.vectors"), EXACT)


def test_the_vector_of_an_image_is_traced_step_by_step(folder):
    place, image = f"{folder('siglip')}:vision", frozen("siglip", "pixels")
    record = attnkit.encode(model=place, image=image, dtype="float64", keep=("vector.*", "encoder.norm"))
    params, x = open_checkpoint(place).params, record["encoder.norm"]
    assert record["vector.cross.weights"].shape == (1, 5, 1, 9)
    q = params["vector"]["probe"] @ params["vector.cross"]["wq"] + params["vector.cross"]["bq"]
    k = x[0] @ params["vector.cross"]["wk"] + params["vector.cross"]["bk"]
    scores = (q.reshape(5, 1, 4) @ k.reshape(9, 5, 4).transpose(1, 2, 0)) / 2
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    assert_near(record["vector.cross.weights"][0], weights, EXACT)
    assert_near(record["vector.ffn.residual"][:, 0], frozen("siglip", "vision.vectors.f64"), EXACT)
    states = attnkit.encode(model=place, image=image, dtype="float64", pool="none")["x"]
    attended = attnkit.attend(
        Record({"x": np.broadcast_to(params["vector"]["probe"], (1, 1, 20))}),
        model=place, layer="vector.cross", memory=Record({"x": states}),
    )  # fmt: skip
    assert_near(attended["x"], record["vector.cross.output"], EXACT)


def test_a_classifier_of_several_labels_gives_each_a_probability_of_its_own(folder):
    image = frozen("siglip-classifier", "pixels")[0]
    record = attnkit.decode(model=folder("siglip-classifier"), image=image, dtype="float64")
    logits = frozen("siglip-classifier", "logits.f64")[0]
    np.testing.assert_allclose(record["x"], 1 / (1 + np.exp(-logits)), rtol=1e-9)
    assert record.labels["label"] == ["circle", "square", "cross"]
    assert record.tensor("x").formula == "σ(logits), logits = head(x)"


@pytest.mark.parametrize("name", ["dinov2", "siglip-classifier"])
def test_problem_type_of_a_classifier_of_images_states_the_function(tmp_path, name):
    image = frozen(name, "pixels")[0]
    for kind, formula in (("multi_label", "σ(logits)"), ("single_label", "softmax(logits)")):
        write_model(name, tmp_path, np.float64, "vision", problem_type=f"{kind}_classification")
        record = attnkit.decode(model=str(tmp_path), image=image, dtype="float64")
        assert record.tensor("x").formula == f"{formula}, logits = head(x)"
    write_model(name, tmp_path, np.float64, "vision", problem_type="regression")
    with pytest.raises(AttnkitError, match="problem_type regression is not supported for images"):
        attnkit.decode(model=str(tmp_path), image=image)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"id2label": {"0": "a"}}, "tensor 'classifier.weight' (w of head) has shape (3, 20) (expected (1, 20))"),
        ({"vision_config": []}, "vision_config is '[]' (expected an object)"),
        ({"per_layer_config": {"0": {"hidden_size": 3}}}, "not supported by family siglip_vision_model: layers of"),
        ({"architectures": ["SiglipModel"]}, "no tensor 'embeddings.token_embedding.weight'"),
    ],
)
def test_hostile_classifiers_of_siglip_are_one_line(tmp_path, changes, problem):
    write_model("siglip-classifier", tmp_path, np.float32, "vision", **changes)
    done = process.run("decode", "--model", str(tmp_path), "--image", PICTURE)
    assert done.code == 3 and problem in done.err and done.err.count("\n") == 1, done.err


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"text_config": {}}, "text_model.embeddings.token_embedding.weight"),
        ({"vision_config": []}, "vision_config is '[]' (expected an object)"),
        ({"quantization_config": {"bits": 4}}, "is not supported by family siglip: quantized weights"),
        ({"vision_config": {"vision_use_head": False}}, "vision_use_head false leaves images without a vector"),
        ({"vision_config": {"image_size": 5, "patch_size": 7}}, "image_size 5x5 is smaller than patch_size 7x7"),
        ({"model_type": "siglip2"}, "model_type 'siglip2' is not known"),
    ],
)
def test_hostile_configurations_of_siglip_are_one_line(tmp_path, changes, problem):
    write_model("siglip", tmp_path, np.float32, "vision", **changes)
    done = process.run("encode", "--model", str(tmp_path), "--image", PICTURE)
    assert done.code == 3 and problem in done.err and done.err.count("\n") == 1, done.err


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("vision_model.head.probe", (1, 2, 20), "has shape (1, 2, 20) (expected (1, 1, 20))"),
        ("vision_model.head.probe", None, "no tensor 'head.probe' (probe of vector)"),
        ("vision_model.head.attention.in_proj_weight", (20, 60), "has shape (20, 60) (expected (60, 20))"),
        ("text_model.head.bias", (11,), "has shape (11,) (expected (20,))"),
        ("logit_bias", None, "tensor 'logit_bias' is missing"),
        ("logit_bias", (3,), "tensor 'logit_bias' has shape (3,) (expected one number)"),
    ],
)
def test_hostile_weights_of_siglip_are_one_line(tmp_path, name, shape, problem):
    path = write_model("siglip", tmp_path, np.float32, "vision") / "model.safetensors"
    tensors = {key: one for key, one in load_file(path).items() if key != name}
    save_file(tensors if shape is None else tensors | {name: np.zeros(shape, np.float32)}, path)
    done = process.run("decode", "--model", str(tmp_path), "--image", PICTURE, "--labels", "a")
    assert done.code == 3 and problem in done.err and done.err.count("\n") == 1, done.err


def test_vectors_of_different_widths_are_one_line(tmp_path):
    path = write_model("siglip", tmp_path, np.float32, "vision") / "model.safetensors"
    part = TABLE["siglip"]["config"]["text_config"] | {"projection_size": 11}
    (tmp_path / "config.json").write_text(json.dumps(TABLE["siglip"]["config"] | {"text_config": part}))
    tensors = load_file(path)
    head = {key: tensors[key][:11].copy() for key in ("text_model.head.weight", "text_model.head.bias")}
    save_file(tensors | head, path)
    done = process.run("decode", "--model", str(tmp_path), "--image", PICTURE, "--labels", "a")
    problem = f"{tmp_path}/config.json: vectors of texts have width 11, and those of images 20"
    assert (done.code, done.err) == (3, f"attnkit decode: {problem}\n")


@pytest.mark.parametrize("name", ["vision_model.head.probe", "text_model.head.bias"])
def test_a_weight_of_either_tower_that_is_not_finite_is_named(tmp_path, name):
    shutil.copytree(SIGLIP, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file(tensors | {name: np.full_like(tensors[name], np.nan)}, path)
    command = (
        "--model",
        str(tmp_path),
        "--image",
        PICTURE,
        "--labels",
        "a",
        "--emit",
        "logits",
        "-q",
        "--check-finite",
    )
    done = process.run("decode", *command)
    parameter = {"vision_model.head.probe": "vector.probe", "text_model.head.bias": "vector.b"}[name]
    assert done.code == 3 and f"the result is nan at [0]: parameter {parameter} is nan at [0]" in done.err, done.err


def test_a_tower_of_images_without_a_head_gives_its_states(tmp_path):
    write_model("siglip", tmp_path, np.float64, "vision")
    part = TABLE["siglip"]["config"]["vision_config"] | {"vision_use_head": False}
    (tmp_path / "config.json").write_text(json.dumps(part))
    record = attnkit.encode(model=str(tmp_path), image=frozen("siglip", "pixels"), dtype="float64")
    assert_near(record["x"], frozen("siglip", "vision.normed"), EXACT)


def test_an_older_file_overrides_the_configuration_of_the_texts(tmp_path):
    config = TABLE["clip"]["config"]
    wrong = config["text_config"] | {"num_attention_heads": 6}
    write_model("clip", tmp_path, np.float64, "vision", text_config=wrong, text_config_dict=config["text_config"])
    assert open_checkpoint(str(tmp_path)).config.encoder.heads == 3


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"text_config": {}}, "text_model.embeddings.token_embedding.weight"),
        ({"text_config": []}, "text_config is '[]' (expected an object)"),
        ({"projection_dim": 12}, "'text_projection.weight' (w of vector) has shape (11, 18) (expected (12, 18))"),
        ({"quantization_config": {"bits": 4}}, "is not supported by family clip: quantized weights"),
        ({"architectures": ["CLIPForImageClassification"]}, "a classifier of images of family clip is not supported"),
        ({"vision_config": {"rope": 2}}, "has shape (20, 3, 7, 7) (expected (768, 3, 32, 32))"),
        ({"text_config": TABLE["clip"]["config"]["text_config"] | {"eos_token_id": -1}}, "eos_token_id is no id"),
        ({"text_config": TABLE["clip"]["config"]["text_config"] | {"eos_token_id": []}}, "eos_token_id is no id"),
    ],
)
def test_hostile_towers_are_one_line(tmp_path, changes, problem):
    write_model("clip", tmp_path, np.float32, "vision", **changes)
    done = process.run("encode", "--model", str(tmp_path), "--image", PICTURE)
    assert done.code == 3 and problem in done.err and done.err.count("\n") == 1, done.err


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"use_swiglu_ffn": True}, "no tensor 'encoder.layer.0.mlp.weights_in.weight'"),
        ({"mlp_ratio": 0}, "mlp_ratio"),
        ({"image_size": 3}, "image_size 3x3 is smaller than patch_size 7x7"),
        ({"num_hidden_layers": 10**8}, "num_hidden_layers 100000000, and only"),
        ({"patch_size": [7, 7, 7]}, "patch_size"),
        ({"per_layer_config": {"0": {"hidden_size": 3}}}, "is not supported by family dinov2: layers of other"),
    ],
)
def test_hostile_configurations_are_one_line(tmp_path, changes, problem):
    write_model("dinov2", tmp_path, np.float32, "vision", **changes)
    done = process.run("encode", "--model", str(tmp_path), "--image", PICTURE)
    assert done.code == 3 and problem in done.err and done.err.count("\n") == 1, done.err


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"size": {"shortest_edge": 10**9}}, "size 1000000000x1000000000 (expected at most 4 times"),
        ({"size": {"shortest_edge": 0}}, "shortest_edge"),
        ({"size": {"shortest_edge": 21, "longest_edge": 40}}, "size with longest_edge is not supported"),
        ({"crop_size": {"height": -1, "width": 21}}, "height"),
        ({"crop_size": {"height": 10**6, "width": 21}}, "crop_size 1000000x21 (expected at most 4 times"),
        ({"resample": 9}, "resample"),
        ({"image_mean": [1, 2]}, "image_mean"),
        ({"crop_size": {"height": 20, "width": 21}}, "20 x 21 is not divisible by patches of 7 x 7"),
    ],
)
def test_hostile_preprocessors_are_one_line(tmp_path, settings, problem):
    write_model("dinov2", tmp_path, np.float32, "vision")
    path = tmp_path / "preprocessor_config.json"
    path.write_text(json.dumps(TABLE["dinov2"]["preprocessor"] | settings))
    done = process.run("encode", "--model", str(tmp_path), "--image", PICTURE)
    assert done.code == 3 and problem in done.err and done.err.count("\n") == 1, done.err


@pytest.mark.parametrize("name", ["dinov2", "dinov3", "clip"])
def test_an_image_without_a_patch_is_one_line(folder, name, tmp_path):
    np.save(tmp_path / "flat.npy", np.zeros((3, 0, 21)))
    done = process.run("encode", "--model", folder(name), "--image", "flat.npy", cwd=tmp_path)
    assert (done.code, done.err) == (3, "attnkit encode: flat.npy: image (3,0,21) has no patch of 7 x 7\n")


def test_a_pixel_that_is_no_number_is_named(folder, tmp_path):
    pixels = np.zeros((3, 21, 21))
    pixels[1, 2, 3] = np.nan
    np.save(tmp_path / "hole.npy", pixels)
    done = process.run("encode", "--model", folder("dinov3"), "--image", "hole.npy", "-o", "x.npz", cwd=tmp_path)
    assert done.code == 0 and done.err.endswith("the result is nan at [0][0]: --image is nan at [1][2][3]\n"), done.err


def test_an_image_for_a_model_of_texts_is_refused_before_a_text_is_read(folder):
    command = ("decode", "--model", folder("clip"), "--image", PICTURE)
    hint = "a clip_text_model model takes no image; --labels NAMES compares one with texts"
    done = process.run(*command)
    assert (done.code, done.err) == (2, f"attnkit decode: {PICTURE}: {hint}\n")
    done = process.run("decode", "--model", FRENCH, "--image", PICTURE)
    assert (done.code, done.err) == (2, f"attnkit decode: {PICTURE}: a marian model takes no image\n")


def test_an_image_that_would_become_huge_is_refused(tmp_path):
    from PIL import Image

    write_model("dinov2", tmp_path, np.float32, "vision")
    settings = TABLE["dinov2"]["preprocessor"] | {"size": {"shortest_edge": 64}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    Image.new("RGB", (1, 20_000)).save(tmp_path / "line.png")
    done = process.run("encode", "--model", str(tmp_path), "--image", str(tmp_path / "line.png"))
    assert done.code == 3 and "too narrow to resize" in done.err and done.err.count("\n") == 1, done.err


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (np.array(np.nan, np.float32), "is nan (expected a number from -100 to 100)"),
        (np.array(500, np.float32), "is 500 (expected a number from -100 to 100)"),
        (np.zeros(2, np.float32), "has shape (2,) (expected one number)"),
        (None, "is missing"),
    ],
    ids=["nan", "large", "two", "none"],
)
def test_a_scale_of_similarity_that_is_no_number_is_one_line(tmp_path, value, problem):
    path = write_model("clip", tmp_path, np.float32, "vision") / "model.safetensors"
    tensors = {name: one for name, one in load_file(path).items() if name != "logit_scale"}
    save_file(tensors if value is None else tensors | {"logit_scale": value}, path)
    done = process.run("encode", "--model", str(tmp_path), "--image", PICTURE)
    assert (done.code, done.err) == (3, f"attnkit encode: {path}: tensor 'logit_scale' {problem}\n")
