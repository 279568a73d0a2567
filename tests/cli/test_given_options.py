"""What a command line gives: the formats of answers and records, and options that come more than once."""

import json
import shlex

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.cli import main
from tests.process import ROOT

STORY = str(ROOT / "samples/data/story")
ANSWERS = {
    "heads": "heads run",
    "lens": f"lens run --model {STORY} --top 1",
    "near": "near query --index query --top 1",
    "score": "score text.txt --references text.txt",
    "scan": f"scan --model {STORY} 'the fox looked' --score ' at' --ablate heads",
}
PASSING = {
    "rollout": "rollout run",
    "attend": "attend query",
    "peek": "peek run -q",
    "loss": "loss query --target 0,1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    trace = attnkit.encode("the fox looked", model=STORY, keep="*")
    query = attnkit.embed("a b", dim=4)
    for suffix in ("npz", "safetensors", "json"):
        formats.save(trace, str(folder / f"run.{suffix}"))
        formats.save(query, str(folder / f"query.{suffix}"))
    np.save(folder / "query.npy", query["x"])
    (folder / "text.txt").write_text("the fox looked at the stars\n" * 4)
    return folder


def written(line, capfdbinary):
    """What a command line of attnkit writes to a pipe."""
    assert main.main(shlex.split(line)) == 0
    out, err = capfdbinary.readouterr()
    assert err == b""
    return out


def named(line, suffix):
    """A command line with the files of a format."""
    return " ".join(f"{word}.{suffix}" if word in ("run", "query") else word for word in line.split(" "))


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "json"])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_json_on_a_pipe_whatever_the_format_of_its_input(name, suffix, folder, monkeypatch, capfdbinary):
    monkeypatch.chdir(folder)
    line = named(ANSWERS[name], suffix)
    answer = json.loads(written(line, capfdbinary))
    [asked] = formats.read(formats.Source.of(written(f"{line} -f npz", capfdbinary)))
    assert {key: one["data"] for key, one in answer["tensors"].items()} == {
        key: json.loads(b"".join(formats.encode(attnkit.Record({"x": asked[key]}), "json")))["tensors"]["x"]["data"]
        for key in asked
    }
    piped = json.loads(written(f"run {shlex.quote(line)}", capfdbinary))
    assert (piped["tensors"], piped["history"]) == (answer["tensors"], answer["history"])


@pytest.mark.parametrize(("suffix", "magic"), [("npz", b"PK\x03\x04"), ("json", b'{"tensors"')])
@pytest.mark.parametrize("name", PASSING)
def test_a_record_that_passes_through_keeps_its_format(name, suffix, magic, folder, monkeypatch, capfdbinary):
    monkeypatch.chdir(folder)
    assert written(named(PASSING[name], suffix), capfdbinary).startswith(magic)


def test_an_answer_to_an_array_names_its_file_in_its_history(folder, monkeypatch, capfdbinary):
    monkeypatch.chdir(folder)
    [entry] = json.loads(written("near query.npy --index query.npz", capfdbinary))["history"]
    assert sorted(entry["files"]) == ["query.npy", "query.npz"]


def test_attnkit_format_is_that_of_answers_too(folder, monkeypatch, capfdbinary):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ATTNKIT_FORMAT", "npz")
    assert written("near query.json --index query.json", capfdbinary).startswith(b"PK")


@pytest.mark.parametrize(("name", "key"), [("engines", "engines"), ("exercise", "exercises"), ("sample", "samples")])
def test_a_report_is_json_by_name_and_by_suffix(name, key, tmp_path, monkeypatch, capfdbinary):
    numpy = {"engine": "numpy", "version": "2.0.0", "install": None, "devices": []}
    monkeypatch.setattr("attnkit.backends.choice.list_engines", lambda: [numpy])  # without starting JAX
    report = written(f"{name} -f json", capfdbinary)
    assert [*json.loads(report)] == [key]
    assert (written(name, capfdbinary) == report) is (name == "engines")  # the others are lists: a line for each
    written(f"{name} -o {tmp_path}/report.json", capfdbinary)
    assert (tmp_path / "report.json").read_bytes() == report
    assert written(f"{name} -f table", capfdbinary) == written(f"{name} -f markdown", capfdbinary) != report
    assert main.main([name, "-f", "npz"]) == 2
    assert b"which npz cannot hold (expected json, table, svg, png, pdf or html)" in capfdbinary.readouterr().err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("attend query.json --heads 1 --heads 2", "attend query.json --heads 2"),
        ("attend query.json --causal --causal", "attend query.json --causal"),
        ("attend query.json --heads x --heads 2", "attend query.json --heads 2"),
        ("attend query.json -f npz --format json", "attend query.json -f json"),
        ("embed 'the cat' --dim 2 --seed 1 --seed 3 --dim 4", "embed 'the cat' --dim 4 --seed 3"),
        ("show query.npz --precision 1 --precision 6", "show query.npz --precision 6"),
        ("mask query.json --window 1,1 --window 0,0", "mask query.json --window 0,0"),
    ],
)
def test_of_an_option_given_twice_the_last_one_counts(given, meant, folder, monkeypatch, capfdbinary):
    monkeypatch.chdir(folder)
    assert written(given, capfdbinary) == written(meant, capfdbinary)


def test_a_list_given_in_several_options_has_the_names_of_all(folder, monkeypatch, capfdbinary):
    monkeypatch.chdir(folder)
    line = "attend query.json --keep q --keep weights,k"
    assert [*json.loads(written(line, capfdbinary))["tensors"]][-3:] == ["q", "k", "weights"]


def test_only_the_last_file_of_output_is_written(folder, tmp_path, monkeypatch, capfdbinary):
    monkeypatch.chdir(folder)
    written(f"attend query.json -o {tmp_path}/a.npy -o {tmp_path}/b.json", capfdbinary)
    assert [one.name for one in tmp_path.iterdir()] == ["b.json"]


class TestTop:
    """decode --model --top without --steps: the candidates of the next word."""

    def test_the_record_is_that_of_one_token_with_its_steps(self):
        asked = attnkit.decode("Every evening the", model=STORY, top=3)
        steps = attnkit.decode("Every evening the", model=STORY, top=3, steps=True, max_tokens=1)
        assert asked.labels == steps.labels and list(asked) == list(steps)
        assert all(np.array_equal(asked[name], steps[name]) for name in asked)
        probs = attnkit.decode("Every evening the", model=STORY, max_tokens=1, emit="probs")["x"][0]
        likeliest = np.argsort(-probs, kind="stable")[:3]
        assert asked["candidates.ids"].tolist() == [likeliest.tolist()]
        assert np.array_equal(asked["candidates.probs"][0], probs[likeliest])

    def test_the_table_is_the_result(self, capfdbinary):
        lines = (
            written(f"decode --model {STORY} 'Every evening the' --top 2 -f table", capfdbinary).decode().split("\n")
        )
        assert lines[0] == "next word" and lines[1].split() == ["id", "token", "logit", "probability"]
        assert [line.split()[1] for line in lines[3:5]] == ["Ġfox", "Ġrobot"]
        assert lines[5].startswith("chosen: Ġfox (log-probability")

    def test_of_several_words_and_texts_each_choice_has_a_table(self, capfdbinary):
        line = f"decode --model {STORY} 'Every evening the' 'Once upon a' --batch --max-tokens 2 --top 1 -f table"
        titles = [row for row in written(line, capfdbinary).decode().split("\n") if "step" in row]
        assert titles == [f"batch {row}: step {step}" for row in "01" for step in "01"]

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            ("--emit text", "--top: needs --steps with --emit text"),
            ("--max-tokens 0", "--top: needs --max-tokens of at least 1 when a model generates text"),
            ("--beam 2", "--beam: cannot be combined with --top"),
            ("--score ' cat'", "--score: cannot be combined with --top"),
        ],
    )
    def test_where_there_are_no_candidates_it_is_refused(self, options, problem, capfd):
        assert main.main(shlex.split(f"decode --model {STORY} 'Every evening the' --top 2 {options}")) == 2
        assert capfd.readouterr().err == f"attnkit decode: {problem}\n"


NOTES = {
    "attend query.npz --precision 2": "attend: note: --precision has no effect on npz",
    "attend query.json --precision 2": "attend: note: --precision has no effect on json",
    "attend query.npz --precision 2 -f csv": "",
    "attend query.npz --precision 2 -f table": "",
    "attend query.npz --precision 2 --steps -f json": "",  # of its tables on standard error
    "attend query.npz --tokens plain --precision 2": "attend: note: --precision and --tokens have no effect on npz",
    "attend query.npz --indent": "attend: note: --indent has no effect on npz",
    "attend query.npz --indent -f table": "attend: note: --indent has no effect on table",
    "attend query.npz --indent -f json": "",
    "peek query.npz --precision 2": "",
    "decode query.npz --top 2": "decode: note: --top has no effect on npz",
    "decode query.npz --top 2 --emit text": "decode: note: --top has no effect on text",
    "decode query.npz --top 2 -f csv": "",
    f"decode --model {STORY} 'the fox' --top 2 -f json": "",
    f"scan --model {STORY} 'the fox' --score ' at' --ablate heads --heatmap": (
        "scan: note: --heatmap has no effect on json"
    ),
    f"decode --model {STORY} 'the fox' --max-tokens 1 --steps --precision 2 -f json": "",
    "diff query.npz query.npz --precision 2": "",
    "diff query.npz query.npz --precision 2 -f json": "diff: note: --precision has no effect on json",
    "near query.npz --index query.npz --precision 2": "near: note: --precision has no effect on json",
    "run 'layernorm query.npz --precision 2 | attend'": "layernorm: note: --precision has no effect on npz",
    "run 'layernorm query.npz | attend' --precision 2": "attend: note: --precision has no effect on npz",
    "run 'layernorm query.npz | show' --precision 2": "",
    "run 'layernorm query.npz --precision 2 | attend' --steps": "",
    "run 'layernorm query.npz | attend' --steps --precision 2": "",
}


@pytest.mark.parametrize("line", NOTES)
def test_an_option_without_an_effect_on_the_result_says_so_once(line, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    assert main.main(shlex.split(line)) == 0
    notes = [row for row in capfd.readouterr().err.split("\n") if ": note: " in row]
    assert notes == [f"attnkit {NOTES[line]}"] * bool(NOTES[line])
    assert main.main([*shlex.split(line), "-q"]) == 0
    assert "note" not in capfd.readouterr().err


def test_a_stream_has_one_note_and_a_file_too(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    (tmp_path / "two.npy").write_bytes((folder / "query.npy").read_bytes() * 2)
    assert main.main(["attend", f"{tmp_path}/two.npy", "--precision", "2", "-o", f"{tmp_path}/two.json"]) == 0
    assert capfd.readouterr().err == "attnkit attend: note: --precision has no effect on json\n"
