"""Callbacks belong to one run: two threads do not disturb each other, and a call leaves nothing behind."""

import os
import re
import sys
import threading

import numpy as np
import pytest

import attnkit
from attnkit import callbacks, formats
from attnkit.callbacks import Callbacks, use_callbacks
from attnkit.checkpoints import open_checkpoint
from attnkit.cli import find_tool
from attnkit.cli.stage import Stage, running, running_stage
from attnkit.display import Style, format_table
from attnkit.errors import DataError, UsageError
from attnkit.libraries import call_library, silence_libraries
from attnkit.records import Record
from tests import process
from tests.places import MODELS

IDS = Record({"ids": np.array([1, 2, 3])})
X = np.arange(24.0).reshape(2, 3, 4)
WAIT = 60  # seconds for another thread


def in_threads(*functions):
    """What each function returns, or the error it raises; every function runs in a thread of its own."""
    results = [None] * len(functions)

    def call(place, function):
        try:
            results[place] = function()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=call, args=each) for each in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def repeat(function, times=20):
    return lambda: [function() for _ in range(times)]


def hidden_size(name, stack):
    return open_checkpoint(str(MODELS / name)).config.stack(stack).hidden


def test_callbacks_hold_in_their_thread_and_block_alone():
    barrier, events = threading.Barrier(2), {"a": [], "b": []}

    def run(name):
        with use_callbacks(Callbacks(on_progress=events[name].append)):
            barrier.wait(WAIT)
            callbacks.current().on_progress(name)
            barrier.wait(WAIT)
        return callbacks.current() == Callbacks()

    assert in_threads(lambda: run("a"), lambda: run("b")) == [True, True]
    assert events == {"a": ["a"], "b": ["b"]}


def test_an_error_in_a_block_restores_the_callbacks_before():
    before = callbacks.current()
    with pytest.raises(DataError), use_callbacks(Callbacks(on_progress=print)):
        raise DataError("wrong")
    assert callbacks.current() is before


def test_a_running_stage_is_that_of_its_thread():
    barrier = threading.Barrier(2)

    def run(name):
        with running(Stage(find_tool(name), {})):
            barrier.wait(WAIT)
            return running_stage().tool.name

    assert in_threads(lambda: run("attend"), lambda: run("ffn")) == ["attend", "ffn"]
    assert running_stage() is None


def test_progress_of_two_models_in_two_threads_goes_to_two_callers():
    layers = {"gpt2": [], "bert": []}

    def run(name):
        with use_callbacks(Callbacks(on_progress=layers[name].append)):
            return attnkit.encode(IDS, model=str(MODELS / name))["x"].shape

    shapes = in_threads(repeat(lambda: run("gpt2"), 5), repeat(lambda: run("bert"), 5))
    assert all(len(one) == 5 for one in shapes), shapes
    assert {name.partition(".")[0] for name in layers["gpt2"]} == {"decoder"}
    assert {name.partition(".")[0] for name in layers["bert"]} == {"encoder"}
    assert all(5 * layers[name][: len(layers[name]) // 5] == layers[name] for name in layers)


def test_the_first_layer_that_is_not_finite_is_that_of_its_own_run():
    def failure(name, stack, size):
        patch = {f"{stack}.1.ffn.hidden": np.full((3, size), np.nan)}
        with pytest.raises(DataError) as caught:
            attnkit.encode(IDS, model=str(MODELS / name), patch=patch, check_finite=True)
        return str(caught.value)

    gpt2, bert = in_threads(
        repeat(lambda: failure("gpt2", "decoder", hidden_size("gpt2", "decoder")), 5),
        repeat(lambda: failure("bert", "encoder", hidden_size("bert", "encoder")), 5),
    )
    assert all("first in decoder.1.ffn" in message for message in gpt2), gpt2
    assert all("first in encoder.1.ffn" in message for message in bert), bert


def test_side_files_of_two_threads_hold_each_its_own_trace(tmp_path):
    def run(name):
        path = str(tmp_path / f"{name}.npz")
        attnkit.encode(IDS, model=str(MODELS / name), trace=path)
        record = formats.load(path)
        return {tensor.partition(".")[0] for tensor in record}, record.history[-1]["command"]

    gpt2, bert = in_threads(repeat(lambda: run("gpt2"), 5), repeat(lambda: run("bert"), 5))
    assert all(rooms <= {"decoder", "head", "logits"} and "gpt2" in command for rooms, command in gpt2), gpt2
    assert all(rooms <= {"encoder", "head", "logits"} and "bert" in command for rooms, command in bert), bert


def test_steps_in_two_threads_show_each_its_own_count_of_candidates():
    def run(top):
        rows, tool, style = [], find_tool("decode"), Style(width=100)
        flags = {"model_": str(MODELS / "gpt2"), "steps": True, "max_tokens": 1, "top_k": 9, "top": top}
        with use_callbacks(Callbacks(on_table=lambda table: rows.append(format_table(table(style), style)))):
            Stage(tool, tool.defaults | flags).apply(IDS)
        return [len(re.findall(r"^\d+ ", table, re.MULTILINE)) for table in rows]

    assert in_threads(repeat(lambda: run(3), 5), repeat(lambda: run(7), 5)) == [[[3]] * 5, [[7]] * 5]


def test_a_library_that_runs_in_two_threads_leaves_them_standard_error():
    barrier, before = threading.Barrier(2), os.fstat(2)

    def run():
        with call_library("", ""):
            barrier.wait(WAIT)
            inside = os.path.samestat(os.fstat(2), before)
            barrier.wait(WAIT)
        return inside

    assert in_threads(run, run) == [True, True]
    assert os.path.samestat(os.fstat(2), before)


def test_a_command_discards_what_a_library_writes_to_standard_error(capfd):
    with silence_libraries(), call_library("", ""):
        os.write(2, b"panicked")
    os.write(2, b"error")
    assert capfd.readouterr().err == "error"


HELD = """
import gc, sys, weakref, attnkit, numpy as np
from attnkit.checkpoints import open_checkpoint
from attnkit.cli.stage import running_stage
from attnkit import callbacks
from attnkit.records import Record
from tests import process

model = open_checkpoint(sys.argv[1])
record = attnkit.encode(Record({"ids": np.array([1, 2, 3])}), model=model, trace=sys.argv[2])
attnkit.decode(Record({"ids": np.array([1, 2])}), model=model, max_tokens=2)
attended = attnkit.attend(np.arange(24.0).reshape(2, 3, 4), heads=2)
gone = [weakref.ref(one) for one in (model, model.params, record, attended, attended["x"])]
del model, record, attended
gc.collect()
print([one() for one in gone], running_stage(), callbacks.current() == callbacks.Callbacks())
"""


def test_nothing_holds_a_call_or_its_model_once_it_returned(tmp_path):
    """In an interpreter without the garbage of other tests."""
    done = process.run_command([sys.executable, "-c", HELD, MODELS / "gpt2", tmp_path / "t.npz"])
    assert done == (0, b"[None, None, None, None, None] None True\n", "")


def test_a_side_output_without_a_caller_is_refused():
    with pytest.raises(UsageError, match=r"trace\.npz"):
        callbacks.current().write_side_output("trace.npz", Record({}))
