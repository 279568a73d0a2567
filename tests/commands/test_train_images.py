"""Training on a folder of images as a command: reports, resuming, labels by decode, and what is refused."""

import json
import runpy

import pytest

from tests.places import DATA
from tests.process import run

draw_folder = runpy.run_path(str(DATA / "shapes.py"))["draw_folder"]
SMALL = ("--layers", "1", "--heads", "2", "--dim", "16", "--batch", "4", "--size", "16", "--every", "4")


@pytest.fixture
def place(tmp_path):
    draw_folder(tmp_path / "shapes", 5, 0)
    return tmp_path


def train(place, *words):
    return run("train", "shapes", "--family", "vit", *SMALL, *words, cwd=place)


def test_a_classifier_of_images_is_trained_resumed_and_asked(place):
    done = train(place, "-o", "whole", "--valid", "20%", "--steps", "8", "--dropout", "0.1")
    assert (done.code, done.err) == (0, "")
    first, _, last = map(json.loads, done.out.splitlines())
    assert first["tokens"] == 4 * 4 * 17 and 0 <= first["accuracy"] <= 1 and "bits_per_byte" not in first
    assert last["parameters"] == sum((16 * 48 + 16, 17 * 16, 16, 3280, 32, 16 * 3 + 3))
    values = json.loads((place / "whole" / "config.json").read_text())
    assert (values["image_size"], values["patch_size"], values["id2label"]["2"]) == (16, 4, "triangle")
    processor = json.loads((place / "whole" / "preprocessor_config.json").read_text())
    assert processor["size"] == {"height": 16, "width": 16} and processor["image_mean"] == [0.5, 0.5, 0.5]
    shown = run("decode", "--model", "whole", "--image", "shapes/circle/0001.png", "--emit", "text", cwd=place)
    assert shown.out.decode().strip() in ("circle", "square", "triangle")
    script = run("history", "whole", cwd=place).out.decode().splitlines()
    assert script[2].endswith("  shapes") and script[3].startswith("attnkit train shapes --output whole --family vit")


def test_a_resumed_run_writes_the_same_bits(place):
    for words in (("-o", "parts", "--steps", "4"), ("-o", "whole", "--steps", "8")):
        assert train(place, "--dropout", "0.1", "--valid", "20%", *words).code == 0
    assert run("train", "shapes", "--resume", "parts", "--steps", "8", cwd=place).code == 0
    for name in ("state.safetensors", "model.safetensors", "training.jsonl"):
        assert (place / "parts" / name).read_bytes() == (place / "whole" / name).read_bytes(), name
    (place / "shapes" / "circle" / "0001.png").unlink()
    done = run("train", "shapes", "--resume", "parts", "--steps", "9", cwd=place)
    assert done.code == 3 and done.err.startswith("attnkit train: shapes: other data than those of parts (SHA-256 ")


def test_a_recorded_step_holds_the_image_and_its_patches(place):
    assert train(place, "-o", "made", "--valid", "0", "--steps", "2", "--record", "1").code == 0
    listed = run("show", "made/step-1.npz", "--list", cwd=place).out.decode()
    assert "(batch 4, channel 3, row 16, column 16)" in listed and "encoder.embed.cls.grad" in listed
    assert run("explore", "made", "-o", "page.html", cwd=place).code == 0


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("shapes", "-o", "new"), 3, "shapes: a folder, and a gpt2 model learns from a text file (--family vit from"),
        (("shapes", "-o", "shapes/new", "--family", "vit"), 2, "--output: shapes/new is in the folder of the images"),
        (("shapes", "-o", "new", "--family", "vit", "--tokens", "chars"), 2, "--tokens: vit does not have this option"),
        (("shapes", "-o", "new", "--family", "vit", "--block", "8"), 2, "--block: vit does not have this option"),
        (("shapes", "-o", "new", "--family", "vit", "--size", "10"), 2, "size 10 is not divisible by patch 4"),
        (
            ("shapes", "-o", "new", "--family", "vit", "--valid", "0", "--sample", "a"),
            2,
            "--sample: a vit model labels images, and",
        ),
        (
            ("shapes", "-o", "new", "--from", "{story}"),
            3,
            "shapes: a gpt2 model does not learn from images (expected vit)",
        ),
        (("text.txt", "-o", "new", "--family", "vit"), 3, "text.txt: a vit model learns from a folder of images"),
        (("text.txt", "-o", "new", "--size", "8"), 2, "--size: gpt2 does not have this option (families that do: vit)"),
        (("nowhere", "-o", "new", "--family", "vit"), 4, "nowhere: No such file or directory"),
    ],
)
def test_what_is_refused(place, words, code, problem):
    (place / "text.txt").write_text("a text\n" * 40)
    done = run("train", *(word.format(story=DATA / "story") for word in words), cwd=place)
    assert (done.code, done.out) == (code, b"") and done.err.startswith(f"attnkit train: {problem}"), done.err
    assert not (place / "new").exists()
