"""The small models of the samples: made by `attnkit train` of texts and pictures, by one script each."""

import hashlib
import json
import random
import re
import runpy
import subprocess
import sys

import pytest

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.cli.pipeline import join_continued_lines, parse_stages
from attnkit.training.chosen_recipe import choose_recipe
from attnkit.training.images import find_images
from attnkit.training.reports import read_origin
from tests.places import DATA

GRAMMAR = DATA / "french_english.py"
MODELS = pytest.mark.parametrize("name", ["story", "fr-en"])
KEPT = {
    "je suis étudiant": "I am a student",
    "elle porte un chapeau rouge": "she carries a red hat",
    "le petit chat noir dort dans le jardin": "the small black cat sleeps in the garden",
}


def written_by(command):
    """What a line of Python's command line writes to standard output, as bytes."""
    script, *flags = command.split()
    return subprocess.run([sys.executable, DATA / script, *flags], capture_output=True, check=True).stdout


def pairs(*flags):
    lines = written_by(" ".join([GRAMMAR.name, *flags])).decode().splitlines()
    return [tuple(line.split("\t")) for line in lines]


def recipe_of(line):
    """The recipe, the text and the folder of a command line."""
    [stage] = parse_stages(line)
    values = {name: value for name, value in stage.parameters.items() if value not in (None, False, ())}
    text, digest = stage.operands[0], "0" * 64
    output = values.pop("output", None) or stage.common.get("output")
    values.pop("sample", None)
    return choose_recipe(values, values.pop("resume", None), text, digest), text, output


@MODELS
def test_the_script_is_how_the_model_was_made(name):
    script = join_continued_lines((DATA / f"{name}.sh").read_text())
    [line] = re.findall(r"^attnkit train .*$", script, re.MULTILINE)
    [(grammar, text)] = re.findall(r"^python3 (.*) > (\S+)$", script, re.MULTILINE)
    origin, recipe = read_origin(str(DATA / name))
    assert recipe_of(line) == recipe_of(origin.command) == (recipe, text, name)
    assert hashlib.sha256(written_by(grammar)).hexdigest() == origin.digest
    assert origin.text == text


@MODELS
def test_the_folder_is_that_of_a_trained_model_without_its_state(name):
    tokenizer = {"story": ["tokenizer.json"], "fr-en": ["source.spm", "target.spm", "vocab.json"]}[name]
    files = {"config.json", "model.safetensors", "tokenizer_config.json", "training.json", "training.jsonl", *tokenizer}
    assert {path.name for path in (DATA / name).iterdir()} == files
    assert sum(path.stat().st_size for path in (DATA / name).iterdir()) < 1_000_000
    assert json.loads((DATA / name / "config.json").read_text())["torch_dtype"] == "float16"


def test_the_script_is_how_the_model_of_images_was_made():
    script = join_continued_lines((DATA / "shapes.sh").read_text())
    [line] = re.findall(r"^attnkit train .*$", script, re.MULTILINE)
    origin, recipe = read_origin(str(DATA / "shapes"))
    assert recipe_of(line) == recipe_of(origin.command) == (recipe, "pictures", "shapes")
    files = {"config.json", "model.safetensors", "preprocessor_config.json", "training.json", "training.jsonl"}
    assert {path.name for path in (DATA / "shapes").iterdir()} == files
    assert sum(path.stat().st_size for path in (DATA / "shapes").iterdir()) < 200_000


@pytest.mark.parametrize("name", ["delta", "attention"])
def test_the_script_is_how_both_models_of_recall_were_made(name):
    script = join_continued_lines((DATA / "recall.sh").read_text()).replace("$name", name)
    line = re.findall(r"^ *(attnkit train .*)$", script, re.MULTILINE)[-1].replace('"', "")
    grammar = re.findall(r"^python3 (.*) > recall.txt$", script, re.MULTILINE)[0]
    origin, recipe = read_origin(str(DATA / f"recall-{name}"))
    assert recipe_of(line) == recipe_of(origin.command) == (recipe, "recall.txt", f"recall-{name}")
    assert hashlib.sha256(written_by(grammar)).hexdigest() == origin.digest
    assert sum(path.stat().st_size for path in (DATA / f"recall-{name}").iterdir()) < 100_000
    config = open_checkpoint(str(DATA / f"recall-{name}")).config
    mixers = {"delta": ("recall", "recall"), "attention": ()}[name]
    assert (config.width, config.stack("decoder").layers, config.stack("decoder").mixers) == (32, 2, mixers)


def test_what_is_asked_for_was_told_last():
    for line in written_by("recall.py 2-8 50 3").decode().splitlines():
        told, asked = ([(part[at], part[at + 1]) for at in range(0, len(part), 2)] for part in parts_of(line))
        assert len(told) == len(asked) and {*map(told.count, told)} <= {1, 2}
        assert dict(told) == dict(asked) and len(told) == 2 * len(dict(told))


def parts_of(line):
    """The words of a line before and after its question mark, less the point that it begins with."""
    told, asked = line.removeprefix(". ").split(" ? ")
    return told.split(), asked.split()


@pytest.mark.slow
def test_the_pictures_are_those_of_their_script():
    """The digest of a folder is that of the list of its files, as sha256sum prints it."""
    [count] = re.findall(r"^python3 shapes\.py pictures (.*)$", (DATA / "shapes.sh").read_text(), re.MULTILINE)
    script, rng = runpy.run_path(str(DATA / "shapes.py")), random.Random(0)
    listed = hashlib.sha256()
    for shape in script["INSIDE"]:
        for number in range(1, int(count) + 1):
            picture = script["encode_png"](script["draw"](shape, rng))
            listed.update(f"{hashlib.sha256(picture).hexdigest()}  {shape}/{number:04}.png\n".encode())
    assert listed.hexdigest() == read_origin(str(DATA / "shapes"))[0].digest


def test_pictures_that_training_has_never_seen_are_labelled(tmp_path):
    subprocess.run([sys.executable, DATA / "shapes.py", tmp_path, "20", "7"], check=True)
    images, model = find_images(str(tmp_path)), open_checkpoint(str(DATA / "shapes"))
    records = [attnkit.decode(model=model, image=str(tmp_path / path)) for _, path in images.files]
    labels = [record.labels["label"][int(record["next"])] for record in records]
    hits = [label == known for label, (known, _) in zip(labels, images.files, strict=True)]
    assert sum(hits) >= 57


@pytest.mark.parametrize("beam", [1, 4])
def test_sentences_that_training_has_never_seen_are_translated(beam):
    model = str(DATA / "fr-en")
    for french, english in KEPT.items():
        assert attnkit.decode(french, model=model, emit="text", beam=beam) == english
    known = dict(pairs("--pairs", "100", "--held-out", "--seed", "5"))
    record = attnkit.decode(tuple(known), model=model, beam=beam)
    ways = [is_one_way(made, usual) for made, usual in zip(record.labels["text"], known.values(), strict=True)]
    assert sum(ways) >= 97


def is_one_way(made, usual):
    """Whether a sentence is another, but for verbs in -ing: `is singing` for `sings`."""
    verbs = {"carry": "carrying", "eat": "eating", "look for": "looking for", "read": "reading", "run": "running"}
    for plain, going in (verbs | {"sing": "singing", "sleep": "sleeping"}).items():
        third = {"carry": "carries", "look for": "looks for"}.get(plain, f"{plain}s")
        made = re.sub(f"is {going}", third, re.sub(f"(am|are) {going}", plain, made))
    return made == usual


def test_a_tale_is_told_to_its_end():
    tale = attnkit.decode("Once upon a time", model=str(DATA / "story"), emit="text", max_tokens=120)
    [hero] = re.findall(r"there was an? \w+ (\w+) who lived", tale)
    [(thing, finder)] = re.findall(r'"Who has lost a (\w+ \w+)\?" asked the (\w+)\.', tale)
    [owner] = re.findall(r'"It is mine," said the (\w+)\.', tale)
    assert finder == hero and f"the {hero} found a {thing} " in tale
    assert f"So the {hero} gave the {thing} to the {owner}, and the {owner} gave the {hero} " in tale
    assert tale.endswith(f"From that day on the {hero} and the {owner} were friends.")


@pytest.mark.parametrize(("least", "most"), [(2, 2), (2, 12), (40, 45), (60, 60)])
def test_french_sentences_have_as_many_words_as_wanted(least, most):
    lengths = [len(french.split()) for french, _ in pairs("--pairs", "60", "--words", f"{least}:{most}")]
    assert len(lengths) == 60 and least <= min(lengths) and max(lengths) <= most
    assert len(set(lengths)) > (most - least) / 2


def test_a_sentence_decides_its_translation():
    known = {}
    for french, english in pairs("--pairs", "20000", "--words", "2:8"):
        assert known.setdefault(french, english) == english
    varied = pairs("--pairs", "2000", "--varied", "--words", "2:4")
    assert len(set(varied)) > len({french for french, _ in varied})


def test_lines_follow_from_the_seed_and_what_is_held_out_is_never_shown():
    flags = ("--pairs", "500", "--words", "2:6")
    assert pairs(*flags) == pairs(*flags, "--seed", "0") != pairs(*flags, "--seed", "1")
    held_out = {french for french, _ in pairs(*flags, "--held-out")}
    assert not held_out & {french for french, _ in pairs(*flags)}
    assert not any(kept in french for french, _ in pairs("--pairs", "5000", "--words", "2:9") for kept in KEPT)


@pytest.mark.parametrize("words", ["9:2", "1:1", "0:3", "many"])
def test_a_range_of_words_that_no_sentence_has(words):
    done = subprocess.run([sys.executable, GRAMMAR, "--words", words], capture_output=True, text=True)
    assert done.returncode == 2 and "--words" in done.stderr and not done.stdout
