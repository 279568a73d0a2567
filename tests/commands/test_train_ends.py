"""Runs that are killed, stopped or out of disk space: the folder opens, and going on gives the bits of a whole run."""

import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from attnkit.checkpoints import open_checkpoint
from tests import process
from tests.commands.test_train import SMALL, TEXT, TINY, files_of, run, start

PAIRS = "".join(f"{a} {b}\t{b} {a}\n" for a in ("un", "le", "la") for b in ("chat", "chien", "oiseau", "livre"))
RECIPES = {  # tests/training/test_trainer.py stops those of the other optimizers and families
    "adamw with dropout": "--steps 30 --every 1 --dropout 0.2 --schedule cosine --warmup 9",
    "patience": "--patience 3 --every 4 --lr 0.05 --steps 2000",
    "pairs": "--steps 30 --every 3 --family marian --valid 10% --schedule inverse_sqrt --smoothing 0.1 --dropout 0.1",
}


def flags_of(name):
    return [*SMALL, *RECIPES[name].split()]


def folder_of(path, name):
    path.mkdir()
    (path / "tales.txt").write_text(PAIRS if "marian" in RECIPES[name] else TEXT)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_random_ends(tmp_path, name):
    flags = ("-o", "model", *flags_of(name))
    assert run("train", "tales.txt", *flags, cwd=folder_of(tmp_path / "whole", name)).code == 0
    parts, draw = folder_of(tmp_path / "parts", name), random.Random(name)
    stop = (signal.SIGTERM, signal.SIGINT)[list(RECIPES).index(name) % 2]
    for number in (signal.SIGKILL, stop, signal.SIGKILL):
        is_saved = Path(parts, "model", "state.safetensors").exists()
        child = start(parts, *(("--resume", "model") if is_saved else flags))
        for _ in range(draw.randint(1, 3)):
            child.stdout.readline()
        time.sleep(draw.random() / 50)
        child.send_signal(number)
        child.communicate(timeout=60)
        assert child.returncode in (-signal.SIGKILL, 143, 130, 0)
        assert open_checkpoint(str(parts / "model")).params.unused() == []
    assert run("train", "tales.txt", "--resume", "model", cwd=parts).code == 0
    assert files_of(parts / "model") == files_of(tmp_path / "whole" / "model")


@pytest.mark.slow
def test_a_run_killed_before_its_first_save_begins_again(tmp_path):
    (tmp_path / "tales.txt").write_text(TEXT)
    flags = ("-o", "gpt", *SMALL, "--every", "1", "--steps", "3")
    assert run("train", "tales.txt", *flags, cwd=tmp_path).code == 0
    whole = files_of(tmp_path / "gpt")
    for kept in range(1, len(whole)):  # renamed in the order of `Run.save`
        names = ("training.json", "training.jsonl", "config.json", "model.safetensors", "tokenizer.json")[:kept]
        for name in set(whole) - set(names):
            (tmp_path / "gpt" / name).unlink(missing_ok=True)
        (tmp_path / "gpt" / ".model.safetensors.attnkit-0123abcd").write_bytes(b"unfinished")
        done = run("train", "tales.txt", "--resume", "gpt", cwd=tmp_path)
        assert (done.code, done.err) == (4, "attnkit train: gpt/state.safetensors: No such file or directory\n")
        assert run("train", "tales.txt", *flags, cwd=tmp_path).code == 0
        assert files_of(tmp_path / "gpt") == whole


@pytest.mark.linux
@pytest.mark.parametrize("blocks", [4, 16])
def test_a_full_disk_at_any_file_leaves_the_last_save(tmp_path, blocks):
    (tmp_path / "tales.txt").write_text(TEXT)
    assert run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "4", cwd=tmp_path).code == 0
    before = files_of(tmp_path / "gpt")
    line = f"ulimit -f {blocks}; trap '' XFSZ; attnkit train tales.txt --resume gpt --steps 8"
    done = process.run_command(["bash", "-c", line], env={"PATH": process.ALONE}, cwd=tmp_path)
    assert (done.code, done.out) == (4, b"")
    assert re.fullmatch(r"attnkit train: gpt/[\w.]+: write error: File too large\n", done.err)
    assert files_of(tmp_path / "gpt") == before
    assert run("train", "tales.txt", "--resume", "gpt", "--steps", "8", cwd=tmp_path).code == 0
    resumed = files_of(tmp_path / "gpt")
    assert run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "8", cwd=tmp_path).code == 0
    assert files_of(tmp_path / "gpt") == resumed


@pytest.mark.linux
def test_a_disk_that_is_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        (tmp_path / "tales.txt").write_text(TEXT)
        flags = ("tales.txt", "-o", "disk/gpt", *TINY, "--steps")
        assert run("train", *flags, "4", cwd=tmp_path).code == 0
        before = files_of(disk / "gpt")
        filler = disk / "filler"
        with pytest.raises(OSError, match="No space"):
            filler.write_bytes(bytes(1 << 20))
        resumed = ("train", "tales.txt", "--resume", "disk/gpt", "--steps", "8")
        done = run(*resumed, cwd=tmp_path)
        assert done.code == 4
        assert re.fullmatch(r"attnkit train: disk/gpt/[\w.]+: write error: No space left on device\n", done.err)
        assert files_of(disk / "gpt") == before
        filler.unlink()
        assert run(*resumed, cwd=tmp_path).code == 0
        after = files_of(disk / "gpt")
        assert run("train", *flags, "8", cwd=tmp_path).code == 0
        assert files_of(disk / "gpt") == after
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_reports_that_cannot_be_written_end_the_run_after_a_save(tmp_path):
    (tmp_path / "tales.txt").write_text(TEXT)
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    done = process.bash("attnkit train tales.txt -o gpt --steps 8 " + " ".join(TINY) + " > /dev/full", cwd=tmp_path)
    assert (done.code, done.err) == (4, "attnkit train: <stdout>: write error: No space left on device\n")
    assert run("train", "tales.txt", "--resume", "gpt", cwd=tmp_path).code == 0
    resumed = files_of(tmp_path / "gpt")
    assert run("train", "tales.txt", "-o", "gpt", *TINY, "--steps", "8", cwd=tmp_path).code == 0
    assert files_of(tmp_path / "gpt") == resumed


@pytest.mark.slow
def test_two_runs_do_not_write_one_folder(tmp_path):
    (tmp_path / "tales.txt").write_text(TEXT)
    child = start(tmp_path, "-o", "gpt", *TINY, "--steps", "1000000")
    try:
        child.stdout.readline()
        for flags in (["-o", "gpt"], ["--resume", "gpt"]):
            done = run("train", "tales.txt", *flags, "--steps", "1", cwd=tmp_path)
            assert (done.code, done.out) == (4, b"")
            assert done.err == "attnkit train: gpt: another run of attnkit train writes this folder\n"
        done = run("train", "tales.txt", "--resume", "gpt", "-o", "copy", "--steps", "1", cwd=tmp_path)
        assert done.code == 0, "it reads the folder alone"
        assert child.poll() is None
    finally:
        child.kill()
        child.communicate()
    assert run("train", "tales.txt", "--resume", "gpt", "--steps", "1", cwd=tmp_path).code == 0


def tensors_of(folder):
    checkpoint = open_checkpoint(str(folder))
    return {name: np.array(checkpoint.tensor(name)) for name in checkpoint.tensors()}


@pytest.mark.parametrize("optimizer", ["adamw --weight-decay 0.5", "adam --weight-decay 0.5", "sgd --momentum 0.9"])
def test_frozen_tensors_keep_their_bits_through_a_resumed_run(tmp_path, optimizer):
    (tmp_path / "tales.txt").write_text(TEXT)
    flags = (*SMALL[2:], "--layers", "2", "--every", "4", "--valid", "0")
    assert run("train", "tales.txt", "-o", "first", *flags, "--steps", "4", cwd=tmp_path).code == 0
    before = tensors_of(tmp_path / "first")
    tuned = ["--from", "first", "--freeze", "decoder.embed*,decoder.0", "--optimizer", *optimizer.split()]
    tuned += ["--batch", "4", "--block", "16", "--every", "4", "--valid", "0", "--warmup", "0", "--lr", "0.01"]
    for steps in ("4", "9"):
        more = [*tuned, "-o", "tuned"] if steps == "4" else ["--resume", "tuned"]
        assert run("train", "tales.txt", *more, "--steps", steps, cwd=tmp_path).code == 0
        after = tensors_of(tmp_path / "tuned")
        kept = {name for name in before if before[name].tobytes() == after[name].tobytes()}
        assert kept == {name for name in before if ".h.0." in name or ".wte." in name}
    with np.load(state_as_npz(tmp_path)) as state:
        moments = {name for name in state.files if name.startswith("optimizer.") and state[name].any()}
    assert not any(name.endswith(frozen) for name in moments for frozen in kept)


def state_as_npz(folder):
    assert run("show", "tuned/state.safetensors", "-o", "state.npz", cwd=folder).code == 0
    return folder / "state.npz"


def test_layers_join_from_the_last_one_on_also_in_a_resumed_run(tmp_path):
    (tmp_path / "tales.txt").write_text(TEXT)
    flags = (*SMALL[2:], "--layers", "2", "--valid", "0", "--every", "2", "--warmup", "0", "--unfreeze-every", "2")
    assert run("train", "tales.txt", "-o", "gpt", *flags, "--steps", "1", cwd=tmp_path).code == 0
    last, changed = tensors_of(tmp_path / "gpt"), []
    for steps in ("2", "4", "6"):
        assert run("train", "tales.txt", "--resume", "gpt", "--steps", steps, cwd=tmp_path).code == 0
        after = tensors_of(tmp_path / "gpt")
        names = {name for name in last if last[name].tobytes() != after[name].tobytes()}
        changed.append({re.sub(r"transformer\.(h\.\d|\w+).*", r"\1", name) for name in names})
        last = after
    assert changed == [
        {"h.1", "ln_f", "wte"},  # the table is the head too
        {"h.0", "h.1", "ln_f", "wte"},
        {"h.0", "h.1", "ln_f", "wte", "wpe"},
    ]
