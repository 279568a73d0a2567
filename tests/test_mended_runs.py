"""Whole models asked for what cannot be, or given what belongs elsewhere: it is said, or it is done right."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit import pipelines, tensors
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.recipes import recipe
from attnkit.tensors.record import Record

ROOT = Path(__file__).parent.parent
STORY, FRENCH = (str(ROOT / "samples" / "data" / name) for name in ("story", "fr-en"))
MODELS = ROOT / "tests" / "references" / "models"
SOURCE, TARGET = "le chat noir dort", "the black cat sleeps"


def run(line, folder, status=0):
    """A shell pipeline of attnkit: what it prints, and what it says on standard error."""
    program = f'attnkit() {{ "{sys.executable}" -m attnkit "$@"; }}; set -o pipefail; '
    done = subprocess.run(["bash", "-c", program + line], cwd=folder, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert status == 0 or not done.stdout
    return done.stdout, done.stderr


def broken(folder, *missing):
    """A copy of the translator without some of its files."""
    shutil.copytree(FRENCH, folder / "bad")
    for name in missing:
        (folder / "bad" / name).unlink()


def ran(text):
    """The record that a pipeline makes, in this process."""
    [record] = pipelines.chained(pipelines.stages(text)).items
    return record


@pytest.mark.parametrize("tool", ["decode", "encode", "embed"])
def test_a_vocabulary_without_its_pieces_is_refused(tmp_path, tool):
    broken(tmp_path, "source.spm")
    _, said = run(f"attnkit {tool} --model bad '{SOURCE}'", tmp_path, 3)
    assert said.startswith(f"attnkit {tool}: bad: no source.spm: vocab.json alone does not cut text")


@pytest.mark.parametrize("asked", ["", "--emit text", "--score the", "--beam 2"])
def test_a_translator_without_the_pieces_of_its_target_is_refused(tmp_path, asked):
    broken(tmp_path, "target.spm")
    _, said = run(f"attnkit decode --model bad '{SOURCE}' {asked}", tmp_path, 4)
    assert said.startswith("attnkit decode: bad/target.spm: No such file")


def test_ids_need_no_pieces_of_the_target(tmp_path):
    broken(tmp_path, "target.spm")
    whole = attnkit.decode(SOURCE, model=FRENCH)["ids"]
    ours = attnkit.decode(SOURCE, model=str(tmp_path / "bad"), emit="ids")
    np.testing.assert_array_equal(ours["x"], whole)
    prefix = attnkit.decode(SOURCE, model=str(tmp_path / "bad"), ids=whole[:2])
    np.testing.assert_array_equal(prefix["ids"], whole[2:])


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_translation_goes_on_from_its_cache_as_in_one_run(tmp_path, first):
    file = str(tmp_path / "c.npz")
    begun = attnkit.decode(SOURCE, model=FRENCH, max_tokens=first, cache_out=file)
    rest = attnkit.decode(None, model=FRENCH, cache_in=file)
    whole = attnkit.decode(SOURCE, model=FRENCH)
    assert [*begun["ids"], *rest["ids"]] == whole["ids"].tolist()
    assert rest.labels["text"] == whole.labels["text"] == [TARGET]
    assert attnkit.decode("", model=FRENCH, cache_in=file).labels["text"] == [TARGET]  # no TEXT is none
    with pytest.raises(UsageError, match="the cache has its source"):
        attnkit.decode("le chien", model=FRENCH, cache_in=file)


def test_the_last_token_of_a_limit_is_a_forced_end():
    ids = attnkit.decode(SOURCE, model=FRENCH, max_tokens=2)["ids"]
    assert ids[-1] == 0 and len(ids) == 2


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [(FRENCH, SOURCE, TARGET), (str(MODELS / "marian"), "Le chat", "The cat"), (str(MODELS / "t5"), "The cat", "sat")],
)
def test_the_printed_pipeline_of_a_translation_computes_its_score(tmp_path, name, source, target):
    trace = str(tmp_path / "run.npz")
    attnkit.decode(source, model=name, score=target, trace=trace)
    text = recipe(open_checkpoint(name).config, name, "all").replace("memory.npz", str(tmp_path / "memory.npz"))
    encoder, decoder = re.split(r"(?<!\\)\n", text)
    encoder, _, file = encoder.replace("\\\n", "").replace("TEXT", source).rpartition(" -o ")
    tensors.save(ran(encoder), file)
    ours, whole = ran(decoder.replace("\\\n", "").replace("TEXT", target)), tensors.load(trace)
    np.testing.assert_array_equal(ours["logits"], whole["logits"])
    assert ours.labels["token"] == whole.labels["token"]


def test_the_target_of_a_batch_begins_with_the_start_in_every_row():
    config = open_checkpoint(FRENCH).config
    both = attnkit.embed(["the cat", "the black cat"], model=FRENCH, layer="decoder.embed")
    assert (both["ids"][:, 0] == config.special.start).all() and both["mask"].sum(axis=-1).tolist() == [[4], [5]]
    ids = np.array([5, 6])
    np.testing.assert_array_equal(attnkit.embed(None, ids=ids, model=FRENCH, layer="decoder.embed")["ids"], ids)


LOST = {
    f"attnkit embed --model {STORY} 'Once upon' | attnkit posenc --model {STORY} | attnkit decode --model {STORY}": (
        "x (2, 64) is not looked at: the run begins again from ids; --layer head decodes x"
    ),
    f"attnkit encode --model {STORY} 'Once upon' --layers 0:1 | attnkit decode --model {STORY}": "--layer head decodes",
    f"attnkit encode --model {STORY} Once --ablate decoder.0.self:1 | attnkit decode --model {STORY}": "not looked at",
    f"attnkit embed --model {FRENCH} 'le chat' | attnkit layernorm | attnkit encode --model {FRENCH}": (
        "x (3, 64) is not looked at: the run begins again from ids; --layers A:B goes on from x"
    ),
    f"attnkit embed --model {FRENCH} 'le chat' | attnkit layernorm | attnkit decode --model {FRENCH}": (
        "the run begins again from ids; encode --model makes a memory"
    ),
    f"attnkit encode --model {FRENCH} 'le chat' | attnkit layernorm | attnkit decode --model {FRENCH}": (
        "the run begins again from the memory; --memory :x looks at x"
    ),
}


@pytest.mark.parametrize("line", LOST)
def test_work_on_x_is_not_dropped_without_a_word(tmp_path, line):
    _, said = run(f"{line} -f json", tmp_path)
    assert LOST[line] in said and said.count("\n") == 1 and ": warning: x (" in said
    assert run(f"{line} -f json -q", tmp_path)[1] == ""


@pytest.mark.parametrize(
    "line",
    [
        f"attnkit embed --model {STORY} Once | attnkit mask --causal | attnkit decode --model {STORY}",
        f"attnkit embed --model {FRENCH} le | attnkit encode --model {FRENCH} | attnkit decode --model {FRENCH}/",
        f"attnkit encode --model {STORY} Once | attnkit decode --model {STORY}",
        f"attnkit decode --model {STORY} Once --max-tokens 2 | attnkit decode --model {STORY}",
        f"attnkit encode --model {FRENCH} le | attnkit layernorm | attnkit decode --model {FRENCH} --memory :x",
    ],
)
def test_nothing_is_said_where_no_work_is_lost(tmp_path, line):
    assert run(f"{line} -f json", tmp_path)[1] == ""


FOREIGN = {
    f"attnkit encode --model {STORY} 'Once upon a' | attnkit decode --model {FRENCH}": "token 'Once' at [0] is id 357",
    f"attnkit embed 'le chat' --dim 64 | attnkit decode --model {FRENCH}": "which this model spells '</s>'",
    f"attnkit embed --model {FRENCH} 'le chat' | attnkit decode --model {STORY}": "token '▁le' at [0] is id 351",
    f"attnkit embed --model {FRENCH} 'le chat' | attnkit encode --model {STORY}": "token '▁le' at [0] is id 351",
    f"attnkit encode --model {FRENCH} 'le chat' | attnkit decode --model {STORY}": "has a memory, and a gpt2 model",
}


@pytest.mark.parametrize("line", FOREIGN)
def test_ids_of_another_model_are_refused(tmp_path, line):
    _, said = run(line, tmp_path, 3)
    assert FOREIGN[line] in said and said.count("\n") == 1


def test_a_memory_of_another_model_is_refused():
    record = attnkit.encode("le chat", model=FRENCH)
    words = ["▁a", *record.labels["token"][1:]]
    other = record.put({}, labels={"token": words, "source": words})
    with pytest.raises(DataError, match=r"token '▁a' at \[0\] is id 351, which this model spells '▁le'"):
        attnkit.decode(other, model=FRENCH)


def test_ids_without_labels_and_padding_are_taken():
    ids = attnkit.embed("Once upon", model=STORY)["ids"]
    assert attnkit.decode(Record({"ids": ids}), model=STORY, max_tokens=2).labels["text"] == ["Once upon a time"]
    batch = attnkit.embed(["Once", "Once upon a"], model=STORY)
    assert attnkit.decode(batch, model=STORY, max_tokens=2)["ids"].shape == (2, 2)


def test_a_decoder_without_words_runs_from_files(tmp_path):
    name = MODELS / "transformer"
    for file, size in (("source", 5), ("target", 3)):
        tensors.save(attnkit.posenc(None, size=size, dim=16, dtype="float32"), str(tmp_path / f"{file}.npz"))
    run(f"attnkit encode --model {name} < source.npz > memory.npz", tmp_path)
    memory, target = (tensors.load(str(tmp_path / f"{file}.npz")) for file in ("memory", "target"))
    whole = attnkit.decode(target.put({"memory": memory["memory"]}), model=str(name))["x"]
    decode = f"attnkit decode --model {name}"
    for line in (
        f"{decode} --memory memory.npz < target.npz",
        f"{decode} --memory memory.npz target.npz",
        f"{decode} --memory - target.npz < memory.npz",
        f"attnkit run 'show target.npz -f npz | decode --model {name} --memory memory.npz'",
    ):
        run(f"{line} --format npz > made.npz", tmp_path)
        np.testing.assert_array_equal(tensors.load(str(tmp_path / "made.npz"))["x"], whole)
    _, said = run(f"{decode} < memory.npz", tmp_path, 3)
    assert "x is the memory itself" in said
    run(f"{decode} --memory - < memory.npz", tmp_path, 2)


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        (f"--model {STORY} Once --stop ''", "--stop: an empty text"),
        (f"--model {FRENCH} le --ids empty.json --max-tokens 0", "nothing to score; --score TEXT"),
        (f"--model {STORY} Once --max-tokens 0", "nothing to score; --score TEXT"),
    ],
)
def test_what_asks_for_nothing_is_a_usage_error(tmp_path, asked, problem):
    (tmp_path / "empty.json").write_text("[]")
    assert problem in run(f"attnkit decode {asked}", tmp_path, 2)[1]


def test_all_of_an_encoder_alone_ends_with_its_head(tmp_path):
    image = str(MODELS / "vit.png")
    for name, given, whole in (
        ("bert-mlm", "the [MASK] sat", lambda model: attnkit.decode("the [MASK] sat", model=model)),
        ("vit", image, lambda model: attnkit.decode(None, image=image, model=model)),
    ):
        model = str(MODELS / name)
        text = recipe(open_checkpoint(model).config, model, "all").replace("\\\n", "")
        made = ran(text.replace("TEXT", given).replace("IMAGE", given))
        np.testing.assert_array_equal(made["logits"], whole(model)["logits"])
    assert "--layer head" not in recipe(open_checkpoint(str(MODELS / "bert")).config, "DIR", "all")


def test_a_warning_is_one_from_python_too():
    states = attnkit.layernorm(attnkit.encode("Once", model=STORY))
    with pytest.warns(AttnkitWarning, match="is not looked at"):
        attnkit.decode(states, model=STORY, max_tokens=1)
