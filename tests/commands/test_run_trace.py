"""run --trace: what every stage of a pipeline computes, as one record named by stage."""

from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit import model as nn
from attnkit.errors import AttnkitError, DataError
from attnkit.inputs import convolution_stage, recurrent_layers
from attnkit.interpret.comparison import are_traces
from attnkit.interpret.gradients.pipeline import gather_tensors
from attnkit.records import Tensor
from tests import process
from tests.places import MODELS

ROOT = Path(__file__).parent.parent
STORY = ROOT.parent / "samples" / "data" / "story"
LINE = 'embed "The cat sat" --dim 8 | posenc | attend --heads 2 --seed 1 | layernorm | ffn --hidden 4 | attend'


@pytest.fixture
def trace(tmp_path):
    """A function from a pipeline to its result and its trace."""

    def run(line, *inputs, name="run.npz", **options):
        path = str(tmp_path / name)
        result = attnkit.run(line, *inputs, trace=path, **options)
        return result, formats.load(path)

    return run


def test_a_trace_has_what_every_stage_computes_in_order(trace):
    result, traced = trace(LINE)
    stages = [name.split(".")[0] for name in traced]
    assert stages == sorted(stages) and set(stages) == set("123456")
    assert {"1.embed.table", "3.attend.weights", "5.ffn.hidden", "6.attend.weights"} <= {*traced}
    assert traced["3.attend.weights"].shape == (2, 3, 3) and traced["6.attend.weights"].shape == (1, 3, 3)
    assert traced.labels["query"] == traced.labels["token"] == ["The", "cat", "sat"]
    np.testing.assert_array_equal(traced["6.attend.x"], result["x"])


def test_each_x_of_a_trace_is_that_of_the_pipeline_up_to_its_stage(trace):
    _, traced = trace(LINE)
    stages = LINE.split(" | ")
    for number in range(1, len(stages) + 1):
        x = attnkit.run(" | ".join(stages[:number]))["x"]
        np.testing.assert_array_equal(traced[f"{number}.{stages[number - 1].split()[0]}.x"], x)


def test_labels_of_a_trace_are_in_the_order_of_the_axes():
    axes = tuple("hgfedcba")
    tensor = Tensor(np.zeros((1,) * 8), axes, {axis: [axis] for axis in sorted(axes)})
    assert [*gather_tensors({"x": tensor}).labels] == [*axes]


@pytest.mark.parametrize(
    "line",
    [
        'embed "a b c" --dim 4 --dtype float16',
        'embed "a b" "a b" --lines --dim 4 | attend --partial | merge --dtype float16',
    ],
)
def test_x_of_a_trace_has_the_dtype_that_an_option_asks_for(line, trace):
    result, traced = trace(line)
    x = traced[[*traced][-1]]
    assert x.dtype == result["x"].dtype == np.float16 and x.tobytes() == result["x"].tobytes()


@pytest.mark.parametrize("line", [LINE, 'embed "a b c" --dim 8 | attend --keep weights | attend --weights topk:2'])
def test_the_result_is_the_same_with_a_trace(line, trace):
    with_trace, plain = trace(line)[0], attnkit.run(line)
    assert formats.encode(with_trace, "npz") == formats.encode(plain, "npz")


def test_every_stage_is_computed_once(trace, monkeypatch):
    # the arithmetic of each tool counts its calls: attention, norm, network, convolution and recurrent layers
    calls = []

    def count(owner, name):
        function = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: calls.append(name) or function(*args, **kwargs))

    count(nn, "multi_head_attention")
    count(nn, "layer_norm")
    count(nn, "feed_forward")
    count(convolution_stage, "convolve")
    count(recurrent_layers, "run_stack")
    _, traced = trace(
        'embed "The cat sat" --dim 8 | attend --heads 2 | layernorm | ffn --hidden 4 | conv --filters 4 --size 2 | '
        "rnn --cell gru --hidden 3"
    )
    assert calls == ["multi_head_attention", "layer_norm", "feed_forward", "convolve", "run_stack"]
    assert {"2.attend.weights", "3.layernorm.variance", "4.ffn.hidden", "5.conv.windows", "6.rnn.state"} <= {*traced}


def test_a_trace_leaves_the_bits_of_attention_in_tiles(trace):
    # 4 heads of 300 x 300 scores are computed in tiles, whose heads round otherwise than those of all scores at once
    x = np.random.default_rng(1).standard_normal((300, 16)).astype(np.float32)
    line = "attend --heads 4 --seed 1 --partial"
    (result, traced), plain = trace(line, x), attnkit.run(line, x)
    assert result["x"].tobytes() == plain["x"].tobytes() and result["lse"].tobytes() == plain["lse"].tobytes()
    mixed = traced["1.attend.weights"] @ traced["1.attend.v"]
    np.testing.assert_allclose(traced["1.attend.x"], mixed, atol=1e-5)
    assert not np.array_equal(traced["1.attend.x"], mixed)


def test_a_trace_has_the_input_and_not_what_merely_travels(trace):
    record = attnkit.run('embed "The cat" --dim 4 | mask --causal')
    _, traced = trace("attend | layernorm", record)
    assert {"0.input.x", "0.input.ids", "0.input.mask", "1.attend.x", "2.layernorm.x"} <= {*traced}
    assert not {"1.attend.mask", "1.attend.ids", "2.layernorm.mask"} & {*traced}


def test_what_keep_adds_is_there_once(trace):
    _, traced = trace('embed "The cat" --dim 4 | attend --keep weights,present')
    assert [name for name in traced if "weights" in name] == ["2.attend.weights"]
    assert "2.attend.present_key" in traced


def test_a_summary_of_weights_is_not_computed_in_full(trace):
    _, traced = trace('embed "The cat" --dim 4 | attend --weights topk:1')
    assert [name.split(".", 2)[2] for name in traced if name.startswith("2.")] == ["weights.top", "weights.keys", "x"]


@pytest.mark.parametrize("name", ["gpt2", "llama", "openai-gpt"])
def test_layers_of_a_model_have_the_names_and_numbers_of_its_own_trace(name, tmp_path, trace):
    from attnkit.checkpoints import open_checkpoint
    from attnkit.interpret.model_summary import shell_pipeline

    folder, theirs = str(MODELS / name), str(tmp_path / "own.npz")
    ids = tmp_path / "ids.json"
    ids.write_text("[5, 8, 2, 7]")
    line = shell_pipeline(open_checkpoint(folder).config, folder, "all").replace('"TEXT"', f"--ids {ids}")
    _, ours = trace(line.replace("\\\n", ""))
    attnkit.decode(None, ids=np.array([5, 8, 2, 7]), model=folder, max_tokens=0, trace=theirs)
    own = formats.load(theirs)
    shared = [each for each in own if each in ours]
    assert {each.rpartition(".")[2] for each in own} - {each.rpartition(".")[2] for each in shared} <= {
        "output",
        "capped",
    }
    assert len(shared) > 0.75 * len(own)
    for each in shared:
        assert ours.axes_of(each) == own.axes_of(each)
        np.testing.assert_allclose(ours[each], own[each], rtol=1e-5, atol=1e-6, err_msg=each)


def test_a_layer_that_runs_twice_is_named_by_its_stage(trace):
    layer = f"attend --model {MODELS / 'gpt2'} --layer decoder.0.self"
    _, traced = trace(f"embed --model {MODELS / 'gpt2'} 'The cat' | {layer} | {layer} --residual")
    assert {"2.attend.weights", "3.attend.weights", "decoder.0.self.output", "decoder.0.self.residual"} <= {*traced}


def test_a_translation_has_the_words_of_both_texts(trace):
    folder = ROOT.parent / "samples" / "data" / "fr-en"
    result, traced = trace(f'encode --model {folder} "le chat noir" | decode --model {folder} --emit text')
    assert result == "the black cat"
    source = ["▁le", "▁chat", "▁noir", "</s>"]
    assert traced.labels["source"] == traced.labels["1.query"] == source
    assert traced.axes_of("encoder.0.self.weights") == ("head", "1.query", "1.key")
    assert traced.axes_of("decoder.0.cross.weights") == ("head", "query", "source")
    assert traced.labels["query"][1:] == ["▁the", "▁black", "▁cat", "</s>"]


def test_an_npy_of_several_tensors_is_refused_by_its_name(trace):
    with pytest.raises(DataError, match=r"run.npy: npy holds one tensor, but the record has .*; name it \.npz"):
        trace('embed "The cat" --dim 4 | attend', name="run.npy")


def test_records_that_are_merged_have_numbers(trace):
    _, traced = trace('embed "The cat" "The cat" --lines --dim 4 | attend --heads 2 --partial | merge --join')
    assert {"1.embed.part1.x", "1.embed.part2.x", "2.attend.part1.weights", "2.attend.part2.lse"} <= {*traced}
    assert [name for name in traced if name.startswith("3.")] == ["3.merge.x"]


def test_a_stream_has_a_trace_for_each_record(tmp_path):
    path = str(tmp_path / "run.npz")
    results = attnkit.run('embed "The cat" "sat" --lines --dim 4 | attend', trace=path)
    with formats.open_source(path) as source:
        traces = list(formats.read(source))
    assert [one["2.attend.x"].shape[0] for one in traces] == [len(one["x"]) for one in results] == [2, 1]
    assert "embed 'The cat'" in traces[0].history[-1]["command"].replace("'\"'\"'", "'")
    with pytest.raises(DataError, match="safetensors holds one record"):
        attnkit.run('embed "The cat" "sat" --lines --dim 4', trace=str(tmp_path / "run.safetensors"))
    assert not (tmp_path / "run.safetensors").exists()


def test_trace_only_selects_by_pattern(trace):
    _, traced = trace(LINE, trace_only=("*.weights", "5.*"))
    assert [*traced] == ["3.attend.weights", "5.ffn.hidden", "5.ffn.activated", "5.ffn.x", "6.attend.weights"]


def test_a_trace_is_made_again_from_its_history(tmp_path):
    first = process.run("run", LINE, "--trace", "a.npz", "-o", "x.npz", cwd=tmp_path)
    assert (first.code, first.err) == (0, "")
    again = process.run("history", "a.npz", "--replay", cwd=tmp_path)
    assert (again.code, again.out) == (0, b"1 command run again: identical bit for bit\n")
    script = process.run("history", "a.npz", cwd=tmp_path).out.decode()
    assert "attnkit run 'embed" in script and "| attend'" in script and "--trace /dev/fd/3" in script


def test_a_script_says_that_its_pipeline_reads_standard_input(tmp_path):
    process.run("run", "layernorm | attend", "--trace", "a.npz", "-o", "x.npz", stdin=b"[[1,2],[3,5]]", cwd=tmp_path)
    script = process.run("history", "a.npz", cwd=tmp_path).out.decode()
    assert "# attnkit run read standard input: give it the same again" in script
    again = process.run("history", "a.npz", "--replay", stdin=b"[[1,2],[3,5]]", cwd=tmp_path)
    assert again.out == b"1 command run again: identical bit for bit\n"


@pytest.mark.parametrize("line", ["attnkit run 'embed a |'", "attnkit run 'no such'", "attnkit run 'run \"embed a\"'"])
def test_a_history_with_a_wrong_pipeline_is_refused(line):
    record = attnkit.run('embed "a" --dim 2')
    record.history[:] = [{"command": line, "version": "1"}]
    for replay in (False, True):
        with pytest.raises(DataError, match="its history has a command that attnkit"):
            attnkit.history(record, replay=replay)


def test_a_pipeline_of_a_file_has_a_trace_that_needs_no_file(tmp_path):
    (tmp_path / "line.txt").write_text(f"{LINE} # from a file\n")
    attnkit.run(tmp_path / "line.txt", trace=str(tmp_path / "a.npz"))
    attnkit.run(LINE, trace=str(tmp_path / "b.npz"))
    a, b = (formats.load(str(tmp_path / name)) for name in ("a.npz", "b.npz"))
    assert a.history[0]["command"].replace("a.npz", "b.npz") == b.history[0]["command"]
    assert attnkit.diff(a, b).same


def test_a_trace_after_a_pipe_has_the_history_of_both(tmp_path):
    piped = process.bash(
        'attnkit embed "The cat" --dim 4 -f npz | attnkit run "attend | layernorm" --trace a.npz > x.npz; '
        "attnkit history a.npz --replay",
        cwd=tmp_path,
    )
    assert piped.out == b"2 commands run again: identical bit for bit\n", piped.err


def test_a_stage_that_fails_leaves_the_old_trace(tmp_path):
    (tmp_path / "run.npz").write_bytes(b"old")
    done = process.run("run", 'embed "a b" --dim 4 | ffn --params none.npz', "--trace", "run.npz", cwd=tmp_path)
    assert done.code == 4 and done.out == b""
    late = process.run(
        "run", 'embed "a" "b c" --lines --dim 3 | attend --params w.npz', "--trace", "run.npz", cwd=tmp_path
    )
    assert late.code != 0
    assert [path.name for path in tmp_path.iterdir()] == ["run.npz"] and (tmp_path / "run.npz").read_bytes() == b"old"


WRONG = {
    "suffix": ({"trace": "run.txt"}, "no format has the suffix '.txt'"),
    "standard output": ({"trace": "-"}, "expected a file, not standard output"),
    "pattern": (
        {"trace": "run.npz", "trace_only": ("*.wieghts",)},
        "matches no tensor of this pipeline .it has 1.embed.ids",
    ),
    "no file": ({"trace_only": ("*.x",)}, "--trace-only: needs --trace"),
    "folder": ({"trace": "no/run.npz"}, "No such file or directory"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_trace_that_cannot_be_is_refused(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options, message = WRONG[case]
    with pytest.raises(AttnkitError, match=message):
        attnkit.run(LINE, **options)
    assert not list(tmp_path.iterdir())


def test_the_result_and_the_trace_are_two_files(tmp_path):
    done = process.run("run", LINE, "--trace", "a.npz", "-o", "./a.npz", cwd=tmp_path)
    assert (done.code, done.err) == (2, "attnkit run: --trace: a.npz: --output writes the same file\n")


def test_a_history_that_writes_a_folder_is_refused(tmp_path):
    record = attnkit.run('embed "a" --dim 2')
    command = f"attnkit run 'embed a --dim 2' --save {tmp_path / 'folder'}"
    record.history[:] = [{"command": command, "version": "1"}]
    with pytest.raises(DataError, match="writes the folder"):
        attnkit.history(record, replay=True)
    assert not (tmp_path / "folder").exists()


FAMILIES = ("albert", "bert-mlm", "llama", "lstm", "seq2seq", "t5", "modernbert")


@pytest.mark.parametrize("name", FAMILIES)
def test_diff_knows_the_trace_of_every_family(name, tmp_path):
    path = str(tmp_path / "trace.npz")
    attnkit.encode(None, ids=np.array([3, 4, 5]), model=str(MODELS / name), trace=path)
    traced = formats.load(path)
    assert are_traces(traced, traced)


def test_diff_compares_traces_of_pipelines_stage_by_stage(trace):
    _, a = trace(LINE)
    _, b = trace(LINE.replace("--hidden 4", "--hidden 4 --activation gelu"), name="b.npz")
    report = attnkit.diff(a, b)
    assert not report.same and [one.name for one in report.comparisons if one.differing] == ["5.ffn.activated"]
    assert str(report).startswith("the same up to 5.ffn.hidden (18 stages)")
    assert attnkit.diff(a, a).same and are_traces(a, b)
    everything = attnkit.diff(a, b, all=True)
    assert {one.name for one in everything.comparisons if one.differing} > {"5.ffn.x", "6.attend.x"}
