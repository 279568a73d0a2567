"""Training on a folder of labelled images: what is read of it, steps and gradients as PyTorch's, folders."""

import hashlib
import json
import os
import re
import runpy

import numpy as np
import pytest
from PIL import Image

from attnkit.checkpoints import open_checkpoint
from attnkit.errors import AttnkitNote, DataError
from attnkit.formats import load
from attnkit.generation.options import DecodeOptions
from attnkit.generation.output_head import apply_output_head
from attnkit.inputs.image_processor import new_processor
from attnkit.training.images import find_images, image_corpus, read_images
from attnkit.training.initial_model import prepare_model
from attnkit.training.loop import Monitor, Run
from attnkit.training.recipe import Recipe
from attnkit.training.reports import Origin
from attnkit.training.trainer import Trainer
from tests.places import DATA, MODELS, REFERENCES, arrays
from tests.references.make_image_training import GRADIENTS, RECIPE

draw_folder = runpy.run_path(str(DATA / "shapes.py"))["draw_folder"]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images") / "shapes"
    draw_folder(folder, 4, 0)
    return str(folder)


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, np.uint8)).save(path)


def trainer_of(recipe, folder):
    return Trainer(recipe, prepare_model(recipe, find_images(folder), folder))


def test_images_are_found_by_label_and_name(tmp_path):
    for name in ("b/2.png", "b/1.JPG", "a/deep/x.jpeg", "a/y.png", "a/.hidden.png", ".cache/z.png"):
        save(tmp_path / name, np.zeros((2, 2, 3)))
    (tmp_path / "a" / "notes.txt").write_text("no image")
    save(tmp_path / "lost.png", np.zeros((2, 2, 3)))
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    with pytest.warns(AttnkitNote, match=r"left out 2 files, no PNG or JPEG of a label: lost\.png, …"):
        images = find_images(str(tmp_path))
    assert images.files == [("a", "a/y.png"), ("a", "a/deep/x.jpeg"), ("b", "b/1.JPG"), ("b", "b/2.png")]
    assert images.labels == ("a", "b")
    digests = [hashlib.sha256((tmp_path / path).read_bytes()).hexdigest() for _, path in images.files]
    listed = "".join(f"{digest}  {path}\n" for digest, (_, path) in zip(digests, images.files, strict=True))
    assert images.digest() == hashlib.sha256(listed.encode()).hexdigest()


def test_pixels_of_any_kind_and_size_become_those_of_the_model(tmp_path):
    rng = np.random.default_rng(0)
    kinds = {"grey": (6, 4), "colour": (9, 16, 3), "alpha": (8, 8, 4)}
    for name, shape in kinds.items():
        save(tmp_path / name / "1.png", rng.integers(0, 256, shape))
    images = find_images(str(tmp_path))
    read = read_images(images, ("grey", "alpha", "colour"), new_processor(8, 8))
    assert [(one.pixels.shape, one.label) for one in read] == [((8, 8, 3), 1), ((8, 8, 3), 2), ((8, 8, 3), 0)]
    alpha, colour, grey = (one.pixels for one in read)
    with Image.open(tmp_path / "alpha" / "1.png") as kept:
        over_white = Image.alpha_composite(Image.new("RGBA", kept.size, "white"), kept)
        np.testing.assert_array_equal(alpha, np.asarray(over_white)[..., :3])
    with Image.open(tmp_path / "colour" / "1.png") as kept:
        np.testing.assert_array_equal(colour, np.asarray(kept.resize((8, 8), Image.Resampling.BILINEAR)))
    assert (grey == grey[..., :1]).all()


def test_every_image_is_read_once_an_epoch_and_every_third_held_out(shapes):
    images, processor, recipe = find_images(shapes), new_processor(16, 16), Recipe(family="vit", batch=3, valid="34%")
    read = read_images(images, images.labels, processor)
    corpus = image_corpus(read, "shapes", processor, recipe)
    assert corpus.steps_per_epoch == 3
    batches = [corpus.batch(step) for step in (1, 2, 3)]
    seen = {batch.ids[row].tobytes() for batch in batches for row in range(len(batch.ids))}
    held_out = [*corpus.held_out()]
    assert [batch.targets.tolist() for batch in held_out] == [[0, 1, 2], [2]]
    assert len(seen | {one.tobytes() for batch in held_out for one in batch.ids}) == 12 and len(seen) == 8
    first = held_out[0].ids[0]
    np.testing.assert_allclose(first, np.moveaxis(read[2].pixels, -1, 0) / 127.5 - 1, atol=1e-6)
    with pytest.raises(DataError, match=r"no image is held out: 5% of 12; --valid 0 trains on all"):
        image_corpus(read, "shapes", processor, Recipe(family="vit"))


def test_steps_are_those_of_pytorch(shapes):
    frozen, trainer = arrays("image_training"), trainer_of(RECIPE, shapes)
    trainer.state.collect_gradients(trainer.plan(1))
    for name in GRADIENTS:
        ours, theirs = trainer.state.gradients[name], frozen[f"GRADIENT.{name}"]
        assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max(), name
    losses = [trainer.step(number).loss for number in range(1, 1 + RECIPE.steps)]
    np.testing.assert_allclose(losses, frozen["losses"], atol=1e-4)


def test_gradients_are_those_of_differences(shapes):
    recipe = Recipe(family="vit", layers=2, heads=2, dim=8, size=8, patch=4, batch=4, valid="0", smoothing=0.1)
    start = prepare_model(recipe, find_images(shapes), shapes)
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal(one.shape) * 0.3 for name, one in start.tensors.items()}
    trainer = Trainer(recipe, start._replace(tensors=tensors))
    state, plan = trainer.state, trainer.plan(1)
    plan = plan._replace(batch=plan.batch._replace(ids=plan.batch.ids.astype(float)))
    state.collect_gradients(plan)
    gradients = {name: state.gradients[name].copy() for name in GRADIENTS}
    for name, gradient in gradients.items():
        direction = rng.standard_normal(gradient.shape)
        expected, losses, step = (gradient * direction).sum(), [], 1e-5
        for distance in (step, -2 * step):
            state.parameters[name][...] += distance * direction
            state.load(state)
            losses.append(state.collect_gradients(plan))
        state.parameters[name][...] += step * direction
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(expected, rel=1e-6), name


def test_a_folder_is_what_transformers_reads(shapes, tmp_path):
    kept = REFERENCES / "image_classifier"
    pixels = load(str(kept / "picture.png"))["x"]
    output = apply_output_head(None, DecodeOptions(model_=open_checkpoint(str(kept)), image=pixels))
    theirs = arrays("image_training")["logits"]
    assert np.abs(output.logits - theirs).max() <= 1e-5 * np.abs(theirs).max()
    assert output.words == ["circle", "square", "triangle"]
    run = Run(
        RECIPE, prepare_model(RECIPE, find_images(shapes), shapes), Origin("", "", "", ""), str(tmp_path / "made")
    )
    run.train(Monitor())
    for name in ("config.json", "preprocessor_config.json"):
        assert json.loads((tmp_path / "made" / name).read_text()) == json.loads((kept / name).read_text())
    made, known = (open_checkpoint(str(folder)) for folder in (tmp_path / "made", kept))
    assert made.params.unused() == [] and set(made.tensors()) == set(known.tensors())
    for name in known.tensors():
        np.testing.assert_allclose(made.tensor(name), known.tensor(name), atol=1e-3)


def test_a_published_model_keeps_its_labels_or_gets_a_new_head(shapes, tmp_path):
    recipe = Recipe(from_=str(MODELS / "vit"), batch=2, valid="0")
    with pytest.warns(AttnkitNote, match="it has no label 'circle', so a new head replaces its own"):
        relabelled = prepare_model(recipe, find_images(shapes), shapes)
    checkpoint = open_checkpoint(str(MODELS / "vit"))
    assert relabelled.raw["id2label"] == {"0": "circle", "1": "square", "2": "triangle"}
    assert relabelled.tensors["classifier.weight"].shape == (3, 24)
    for name in ("vit.embeddings.cls_token", "vit.encoder.layer.1.output.dense.weight"):
        np.testing.assert_array_equal(relabelled.tensors[name], checkpoint.tensor(name))
    assert relabelled.files["preprocessor_config.json"] != []
    save(tmp_path / "dog" / "1.png", np.zeros((4, 4, 3)))
    save(tmp_path / "cat" / "1.png", np.ones((4, 4, 3)))
    kept = prepare_model(recipe, find_images(str(tmp_path)), str(tmp_path))
    np.testing.assert_array_equal(kept.tensors["classifier.weight"], checkpoint.tensor("classifier.weight"))
    assert sorted(kept.corpus.batch(1).targets.tolist()) == [0, 1]  # cat, dog among cat, dog, river, machine, book


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({}, "no folders in it (expected a folder of images for each label)"),
        ({"a.png": b""}, "no folders in it"),
        ({"a/1.png": b"", "b/notes.txt": b""}, "/b: no PNG or JPEG in it (expected the images of a label)"),
        ({"a/1.png": b"", "a/2.png": b""}, "all images have the label 'a' (expected two labels or more)"),
        ({"a/1.png": b"\x89PNG\r\n\x1a\n", "b/1.png": b""}, "/a/1.png: not a PNG or JPEG that can be read"),
        ({"a/1.png": b"GIF89a", "b/1.png": b""}, "/a/1.png: neither a PNG nor a JPEG, by its first bytes"),
        ({"a/1.png": b"", "b/1.png": b""}, "/a/1.png: neither a PNG nor a JPEG"),
    ],
)
def test_a_folder_that_cannot_be_learned_from(tmp_path, files, problem):
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=re.escape(problem)):
        images = find_images(str(tmp_path))
        read_images(images, images.labels, new_processor(4, 4))


def test_images_that_are_refused(tmp_path):
    save(tmp_path / "a" / "1.png", np.zeros((2, 2)))
    (tmp_path / "b").mkdir()
    Image.fromarray(np.arange(4, dtype=np.uint16).reshape(2, 2) * 9999).save(tmp_path / "b" / "2.png")
    images = find_images(str(tmp_path))
    with pytest.raises(DataError, match=r"b/2\.png: greys of 16 bits"):
        read_images(images, images.labels, new_processor(4, 4))
    os.unlink(tmp_path / "b" / "2.png")
    os.mkfifo(tmp_path / "b" / "2.png")  # which would never end
    with pytest.raises(Exception, match=r"b/2\.png: not a regular file"):
        images.digest()
    os.mkdir(os.fsencode(tmp_path) + b"/\xe9")
    with pytest.raises(DataError, match="the name of a label is not UTF-8"):
        find_images(str(tmp_path))
