"""The tool: reports on a pipe, signals, folders that always open, errors in one line."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

import attnkit
from attnkit import errors as attnkit_errors
from attnkit.checkpoints import open_checkpoint
from tests import process
from tests.process import run

TEXT = "the cat sat on the mat and the dog sat on the log; a cat and a dog sat.\n" * 12
SMALL = ("--layers", "1", "--heads", "2", "--dim", "16", "--batch", "4", "--block", "16")
TINY = (*SMALL, "--every", "4")


@pytest.fixture
def tales(tmp_path):
    (tmp_path / "tales.txt").write_text(TEXT)
    return tmp_path


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def lines_of(done):
    assert (done.code, done.err) == (0, "")
    return [json.loads(line) for line in done.out.splitlines()]


def test_a_pipe_gets_a_line_of_json_for_each_report(tales):
    *reports, made = lines_of(run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "10", cwd=tales))
    assert [report["step"] for report in reports] == [4, 8, 10]
    assert reports[-1]["loss"] < reports[0]["loss"]
    assert {"held_out_loss", "bits_per_byte", "gradient_norm", "learning_rate", "tokens_per_second"} <= set(reports[0])
    assert made == {
        "folder": "gpt",
        "steps": 10,
        "parameters": sum(entry[1].size for entry in tensors(tales / "gpt")),
        "held_out_loss": min(report["held_out_loss"] for report in reports),
    }
    kept = [json.loads(line) for line in (tales / "gpt" / "training.jsonl").read_text().splitlines()]
    speeds = ("tokens_per_second", "seconds")
    assert kept == [{key: value for key, value in one.items() if key not in speeds} for one in reports]


def tensors(folder):
    checkpoint = open_checkpoint(str(folder))
    return [(name, checkpoint.tensor(name)) for name in checkpoint.tensors()]


def test_history_prints_a_command_that_gives_the_same_bytes(tales):
    assert run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "3", "--dropout", "0.1", cwd=tales).code == 0
    before = files_of(tales / "gpt")
    script = run("history", "gpt", cwd=tales)
    assert script.code == 0
    assert script.out.decode().splitlines()[-1] == (
        "attnkit train tales.txt --output gpt --layers 1 --heads 2 --dim 16 --batch 4 --block 16 --dropout 0.1 "
        "--steps 3 --every 4"
    )
    (tales / "gpt" / "model.safetensors").unlink()
    assert process.run_command(["bash", "-s"], script.out, cwd=tales).code == 0
    assert files_of(tales / "gpt") == before
    assert run("history", "gpt", "--replay", cwd=tales).code == 2


def test_decode_continues_a_text_with_the_trained_model(tales):
    assert run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "150", "--lr", "0.01", cwd=tales).code == 0
    done = run("decode", "--model", "gpt", "the c", "--max-tokens", "6", "--emit", "text", cwd=tales)
    assert re.fullmatch(rb"the cat (sat|dog|and|on) ?\w*\n", done.out)


def test_standard_input_is_a_text(tales):
    assert run("train", "-", "-o", "gpt", *TINY, "--steps", "2", stdin=TEXT.encode(), cwd=tales).code == 0
    assert '"command": "attnkit train --output gpt' in (tales / "gpt" / "training.json").read_text()


def test_a_sample_shows_what_the_model_says_by_then(tales):
    *reports, _ = lines_of(run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "4", "--sample", "the", cwd=tales))
    assert all(report["sample"].startswith("the") for report in reports)


def start(folder, *flags):
    """A process of its own that trains without end, and whose signals are those of a terminal."""
    command = ["attnkit", "train", "tales.txt", *flags]
    environment = os.environ | {"PATH": process.ALONE}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_run_goes_on_with_the_same_bits(tales, number, code):
    child = start(tales, "-o", "gpt", *TINY, "--steps", "1000000", "--dropout", "0.1")
    child.stdout.readline()  # the first report
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    done = json.loads((tales / "gpt" / "training.json").read_text())
    assert (child.returncode, done["recipe"]["steps"]) == (code, 1000000)
    assert errors.decode().startswith("attnkit train: stopped after step ")
    assert errors.decode().endswith(" and saved; attnkit train tales.txt --resume gpt goes on\n")
    steps = int(errors.split()[5].replace(b",", b"")) + 5
    assert run("train", "tales.txt", "--resume", "gpt", "-o", "gpt", "--steps", str(steps), cwd=tales).code == 0
    resumed = files_of(tales / "gpt")
    (tales / "gpt").rename(tales / "other")
    assert run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", str(steps), "--dropout", "0.1", cwd=tales).code == 0
    assert files_of(tales / "gpt") == resumed


def test_a_resumed_run_has_its_own_text_and_options(tales):
    assert run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "1", cwd=tales).code == 0
    before = files_of(tales / "gpt")
    (tales / "tales.txt").write_text(TEXT + "more\n")
    done = run("train", "tales.txt", "--resume", "gpt", "--steps", "3", cwd=tales)
    assert (done.code, done.out) == (3, b"")
    assert done.err.startswith("attnkit train: tales.txt: other data than those of gpt (SHA-256 ")
    done = run("train", "tales.txt", "--resume", "gpt", "--lr", "1", cwd=tales)
    assert (done.code, done.err) == (2, "attnkit train: --lr: 1, but 0.001 in --resume\n")
    assert files_of(tales / "gpt") == before


def test_what_a_model_and_a_run_say_may_be_repeated(tales):
    assert run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "1", cwd=tales).code == 0
    assert run("train", "tales.txt", "--resume", "gpt", *TINY, "--family", "gpt2", "--steps", "2", cwd=tales).code == 0
    sizes = ("--family", "gpt2", *SMALL[:6], "--hidden", "64")
    for source in (("--from", "gpt"), ("--config", "gpt/config.json")):
        given = ("train", "tales.txt", *source, "--block", "8", "--batch", "2", "--steps", "1")
        assert run(*given, "-o", "alone", cwd=tales).code == 0
        assert run(*given, *sizes, "-o", "again", cwd=tales).code == 0
        alone, again = files_of(tales / "alone"), files_of(tales / "again")
        assert [name for name in alone if alone[name] != again[name]] == ["training.json"]  # it names the folder
        assert run(*given, "--heads", "4", "-o", "again", cwd=tales).err == (
            f"attnkit train: --heads: 4, but 2 in {source[0]}\n"
        )


def test_a_number_that_is_not_finite_ends_the_run(tales):
    flags = (*SMALL, "--lr", "1e30", "--warmup", "0", "--steps", "9", "--every", "1")
    done = run("train", "tales.txt", "-o", "gpt", *flags, cwd=tales)
    assert done.code == 3
    assert done.err.startswith("attnkit train: step 2: the loss is not finite: decoder.")
    path = done.err.split("attnkit show ")[1].strip()
    assert run("show", path, "--list", cwd=tales).code == 0
    assert open_checkpoint(str(tales / "gpt")).config.family == "gpt2"


@pytest.mark.linux
def test_a_full_disk_leaves_the_last_save(tales):
    assert run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "2", cwd=tales).code == 0
    before = files_of(tales / "gpt")
    line = "ulimit -f 20; trap '' XFSZ; attnkit train tales.txt --resume gpt --steps 6"
    done = process.run_command(["bash", "-c", line], env={"PATH": process.ALONE}, cwd=tales)
    assert done.code == 4
    assert "write error: File too large" in done.err
    assert files_of(tales / "gpt") == before


def test_a_published_model_is_tuned_with_frozen_layers(tales):
    story = Path(__file__).parent.parent.parent / "samples" / "data" / "story"
    (tales / "more.txt").write_text("Once upon a time there was a little fox. The fox looked at the stars. " * 20)
    flags = ("--from", story, "--freeze", "decoder.embed*", "--unfreeze-every", "2", "--layer-decay", "0.5")
    *reports, _ = lines_of(run("train", "more.txt", "-o", "tuned", *flags, "--steps", "6", "--every", "2", cwd=tales))
    assert reports[-1]["held_out_loss"] < reports[0]["held_out_loss"]
    done = run("decode", "--model", "tuned", "Once upon a", "--max-tokens", "1", "--emit", "text", cwd=tales)
    assert done.out == b"Once upon a time\n"


def test_a_translator_has_the_files_of_published_ones_and_can_be_tuned(tales):
    (tales / "pairs.tsv").write_text("le chat dort\tthe cat sleeps\nla fille lit\tthe girl reads\n" * 20)
    sizes = ("--layers", "1", "--heads", "2", "--dim", "16")
    flags = ("--family", "marian", *sizes, "--tokens", "bpe:40", "--lr", "0.02", "--warmup", "5", "--steps", "60")
    stored = ("--dtype", "float16")
    assert run("train", "pairs.tsv", "-o", "made", *flags, *stored, cwd=tales).code == 0
    assert {"source.spm", "target.spm", "vocab.json"} < set(files_of(tales / "made"))
    assert {array.dtype.name for _, array in tensors(tales / "made")} == {"float16"}
    assert run("train", "pairs.tsv", "--from", "made", "-o", "tuned", "--steps", "3", cwd=tales).code == 0
    for name in ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json"):
        assert files_of(tales / "tuned")[name] == files_of(tales / "made")[name]
    for folder in ("made", "tuned"):
        done = run("decode", "--model", folder, "le chat dort", "--emit", "text", cwd=tales)
        assert (done.code, done.out) == (0, b"the cat sleeps\n")


def test_a_model_stored_in_float16_goes_on_with_the_same_bits(tales):
    flags = (*TINY, "--dtype", "float16", "--valid", "0")
    assert run("train", "tales.txt", "-o", "whole", *flags, "--steps", "6", cwd=tales).code == 0
    assert run("train", "tales.txt", "-o", "parts", *flags, "--steps", "3", cwd=tales).code == 0
    assert run("train", "tales.txt", "--resume", "parts", "--steps", "6", cwd=tales).code == 0
    for name in ("model.safetensors", "state.safetensors"):
        assert files_of(tales / "parts")[name] == files_of(tales / "whole")[name]


def test_a_flag_of_zero_is_one(tales):
    flags = (*TINY, "--steps", "1", "--warmup", "0", "--clip", "0")
    report, _ = lines_of(run("train", "tales.txt", "-o", "gpt", *flags, cwd=tales))
    assert report["learning_rate"] == 0.001  # after no warm-up
    assert "--warmup 0 --clip 0" in json.loads((tales / "gpt" / "training.json").read_text())["command"]


def test_python_trains_as_the_command_line_does(tales, monkeypatch):
    flags = {"layers": 1, "heads": 2, "dim": 16, "batch": 4, "block": 16, "steps": 4, "every": 2}
    monkeypatch.chdir(tales)
    made = attnkit.train("tales.txt", output="python", **flags)
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    *reports, last = lines_of(run("train", "tales.txt", "-o", "shell", *words, cwd=tales))
    speed = ("tokens_per_second", "seconds")
    assert [{name: one[name] for name in one if name not in speed} for one in made["reports"]] == [
        {name: one[name] for name in one if name not in speed} for one in reports
    ]
    assert {**last, "folder": "python"} == {name: made[name] for name in made if name != "reports"}
    for name in ("model.safetensors", "state.safetensors", "config.json", "training.jsonl"):
        assert (tales / "python" / name).read_bytes() == (tales / "shell" / name).read_bytes(), name
    with pytest.raises(attnkit_errors.UsageError, match="needs --output DIR or --resume DIR"):
        attnkit.train("tales.txt")
    with pytest.raises(attnkit_errors.UsageError, match="the name of a text file"):
        attnkit.train(output="new")
    with pytest.raises(attnkit_errors.FileError, match="No such file"):
        attnkit.train("none.txt", output="new")


FOX = "The quick brown fox jumps over the lazy dog\n"


def test_no_steps_write_the_untrained_model_of_every_family_with_its_state(tmp_path):
    (tmp_path / "fox.txt").write_text(FOX * 9)
    (tmp_path / "pairs.tsv").write_text("je dors\tI sleep\nmerci\tthanks\n")
    for family in ("gpt2", "llama", "bert", "t5", "lstm", "marian", "transformer", "seq2seq"):
        text = "pairs.tsv" if family in ("marian", "transformer", "seq2seq") else "fox.txt"
        heads = [] if family in ("lstm", "seq2seq") else ["--heads", "2"]
        sizes = ["--layers", "1", *heads, "--dim", "8", "--valid", "0", "--family", family]
        done = run("train", text, "-o", family, *sizes, "--steps", "0", cwd=tmp_path)
        assert done.code == 0, done.err
        assert (tmp_path / family / "training.jsonl").read_text() == ""
        assert json.loads(done.out)["steps"] == 0
        checkpoint = open_checkpoint(str(tmp_path / family))
        assert checkpoint.params.unused() == []
    resumed = run("train", "fox.txt", "--resume", "gpt2", "--steps", "2", cwd=tmp_path)
    assert resumed.code == 0
    sizes = ["--layers", "1", "--heads", "2", "--dim", "8", "--valid", "0", "--family", "gpt2"]
    assert run("train", "fox.txt", "-o", "whole", *sizes, "--steps", "2", cwd=tmp_path).code == 0
    files = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("gpt2", "whole")]
    assert files[0] == files[1]


def test_words_are_held_out_whole(tmp_path):
    (tmp_path / "fox.txt").write_text(FOX * 20)
    options = ["--tokens", "words", "--layers", "1", "--dim", "8", "--steps", "2", "--block", "4", "--valid", "7%"]
    done = run("train", "fox.txt", "-o", "fox", *options, cwd=tmp_path)
    assert done.code == 0 and "held_out_loss" in done.out.decode()
