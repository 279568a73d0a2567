"""The tools with --engine: records, histories, errors in one line, and what happens without JAX."""

import sys

import numpy as np
import pytest

import attnkit
from attnkit.backends import choice
from attnkit.backends.jax.mesh import parse_mesh
from attnkit.cli.main import main
from attnkit.errors import UsageError
from attnkit.records import Record
from tests.places import arrays
from tests.registry import place_of


def errors(capfd, *arguments):
    """The exit code and the error of a command line."""
    code = main([*arguments])
    return code, capfd.readouterr().err.strip()


def test_an_engine_that_is_not_installed_names_the_extra(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "jax", None)
    choice._make_engine.cache_clear()
    line = "attnkit encode: --engine jax: needs the jax library: pip install '.[jax]' in a clone of attnkit"
    folder = "tests/references/models/bert-sentences"
    assert errors(capfd, "encode", "--model", folder, "a", "--engine", "jax") == (2, line)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--engine", "torch"], "--engine: expected one of: numpy, jax, got 'torch'"),
        (["--mesh", "data=2"], "--mesh: needs --engine jax"),
        (["--compute", "bfloat16"], "--compute: needs --engine jax"),
    ],
)
def test_options_of_no_engine(flags, problem, capfd):
    code, line = errors(capfd, "encode", "--model", "tests/references/models/bert-sentences", "a", *flags)
    assert (code, line) == (2, f"attnkit encode: {problem}")


def test_the_variable_chooses_the_engine(monkeypatch, capfd):
    monkeypatch.setenv("ATTNKIT_ENGINE", "torch")
    code, line = errors(capfd, "encode", "--model", "tests/references/models/bert-sentences", "a")
    assert (code, line) == (2, "attnkit encode: ATTNKIT_ENGINE: 'torch' (expected numpy or jax)")
    assert errors(capfd, "mask", "--size", "2", "--causal", "-f", "json")[0] == 0  # a tool that no engine computes


def test_a_replay_computes_on_the_engine_of_the_record(monkeypatch, capfd, tmp_path):
    attnkit.formats.save(attnkit.run("embed 'a b' --dim 4 | attend --seed 1"), file := str(tmp_path / "x.npz"))
    monkeypatch.setenv("ATTNKIT_ENGINE", "jax")
    assert main(["history", file, "--replay"]) == 0, capfd.readouterr().err
    assert "engine" not in attnkit.history(attnkit.formats.load(file))


def test_devices_that_jax_does_not_have_are_an_error_of_the_command_line(monkeypatch, capfd):
    jax = pytest.importorskip("jax")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    choice._make_engine.cache_clear()
    monkeypatch.setattr(jax, "process_count", lambda: (_ for _ in ()).throw(AssertionError()))
    monkeypatch.setattr(jax, "devices", lambda: (_ for _ in ()).throw(AssertionError()))
    problem = "JAX_PLATFORMS=cuda: JAX does not start: it has no devices of cuda"
    assert (
        errors(capfd, "attend", "samples/data/three-words.json", "--engine", "jax")[1] == f"attnkit attend: {problem}"
    )
    assert errors(capfd, "engines") == (2, f"attnkit engines: {problem}")


@pytest.mark.parametrize("text", ["data=0", "rows=2", "data=2,data=2", "data", "", "data=²"])
def test_a_mesh_is_written_in_one_way(text):
    with pytest.raises(UsageError, match="--mesh: expected data=N,model=N,seq=N"):
        parse_mesh(text)


def test_engines_lists_a_table_where_one_is_wanted(capfd, tmp_path):
    assert main(["engines", "-f", "table"]) == main(["engines", "-o", str(tmp_path / "e.svg")]) == 0
    assert capfd.readouterr().out.startswith("engine  version  device  count  memory of each\n")
    assert "memory of each" in (tmp_path / "e.svg").read_text()


def test_engines_lists_numpy_first():
    listed = attnkit.engines()
    assert listed.startswith('{"engines":[{"engine":"numpy","version":') and '"engine":"jax"' in listed


@pytest.fixture(scope="module")
def with_jax():
    return pytest.importorskip("jax")


def test_encode_and_decode_give_the_records_of_numpy(with_jax):
    folder = "tests/references/models/bert-sentences"
    ours, theirs = (attnkit.encode(["a b", "c"], model=folder, engine=name) for name in ("jax", "numpy"))
    assert [*ours] == [*theirs] and ours.labels == theirs.labels
    np.testing.assert_allclose(ours["x"], theirs["x"], atol=1e-5)
    assert "--engine jax" in ours.history[-1]["command"]
    folder = "tests/references/trained/gpt2"
    ours, theirs = (attnkit.decode("a", model=folder, max_tokens=6, engine=name) for name in ("jax", "numpy"))
    assert ours["ids"].tolist() == theirs["ids"].tolist() and ours.labels == theirs.labels
    ours, theirs = (attnkit.decode("a", model=folder, score=" the cat", engine=name) for name in ("jax", "numpy"))
    np.testing.assert_allclose(ours["x"], theirs["x"], atol=1e-5)


def test_a_trace_and_an_ablation_of_a_generation(with_jax, tmp_path):
    folder, traces = "tests/references/trained/gpt2", []
    for name in ("jax", "numpy"):
        path = str(tmp_path / f"{name}.npz")
        attnkit.decode("a", model=folder, score=" the cat", trace=path, ablate=("decoder.0.self:1",), engine=name)
        traces.append(next(iter(attnkit.formats.read(attnkit.formats.open_source(path)))))
    assert [*traces[0]] == [*traces[1]] and traces[0].labels == traces[1].labels
    for name in traces[1]:
        assert traces[0][name].shape == traces[1][name].shape
        finite = np.isfinite(traces[1][name])
        np.testing.assert_allclose(traces[0][name][finite], traces[1][name][finite], atol=1e-4)


def test_a_sound_is_transcribed_scored_and_encoded_as_by_numpy(with_jax):
    heard = {"audio": Record({"x": arrays("sounds")["whisper/samples"]}), "model": place_of("whisper")}
    texts = [attnkit.decode(**heard, max_tokens=6, emit="ids", engine=one)["x"].tolist() for one in ("numpy", "jax")]
    assert texts[0] == texts[1]
    states = [attnkit.encode(**heard, engine=one)["x"] for one in ("numpy", "jax")]
    np.testing.assert_allclose(states[1], states[0], rtol=0, atol=1e-5)


def test_a_sound_is_not_split(with_jax):
    with pytest.raises(UsageError, match="a sound is not split"):
        attnkit.encode(audio=Record({"x": np.zeros(4000)}), model=place_of("waves/group"), engine="jax", mesh="seq=2")


def test_run_gives_its_engine_to_the_stages(with_jax):
    line = "embed 'the cat' --dim 4 | attend --heads 2"
    ours, piped = attnkit.run(line, engine="jax"), attnkit.run(f"{line} --engine jax")
    assert ours.history == piped.history and (ours["x"] == piped["x"]).all()
    with pytest.raises(UsageError, match="--engine: no stage of the pipeline computes on an engine"):
        attnkit.run("embed a --dim 4 | posenc", engine="jax")


def test_gradients_of_the_models_of_a_pipeline(with_jax):
    line = "encode 'a b' --model tests/references/models/bert-sentences --pool mean --dtype float64"
    ours, theirs = (attnkit.grad(line, of="x[1]", engine=name) for name in ("jax", "numpy"))
    assert {*ours} == {*theirs} and ours.history[-1]["command"].endswith("--engine jax")
    for name in theirs:
        assert ours.axes_of(name) == theirs.axes_of(name)
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-10, err_msg=name)


def test_a_gradient_of_a_later_stage_adds_to_that_of_an_intermediate(with_jax):
    line = "encode 'a cat' --model tests/references/trained/marian --keep encoder.0.ffn.residual --dtype float64"
    line += " | layernorm --add :encoder.0.ffn.residual"
    ours, theirs = (attnkit.grad(line, of="x[0,1]", engine=name) for name in ("jax", "numpy"))
    assert {*ours} == {*theirs}
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=1e-10, err_msg=name)


@pytest.mark.parametrize(
    ("line", "engine", "problem"),
    [
        ("attend --heads 1 --engine jax", None, "stage 1, attend: numpy computes its gradients"),
        ("attend --heads 1", "jax", "no stage of the pipeline computes on an engine: encode and decode do"),
        ("encode --model samples/data/fr-en --engine jax", None,
         "stage 1, encode: its engine computes its gradients: grad --engine NAME"),
    ],
)  # fmt: skip
def test_the_engine_of_gradients_is_that_of_the_stages(with_jax, line, engine, problem):
    with pytest.raises(UsageError, match=f"--engine: {problem}"):
        attnkit.grad(line, np.eye(2), engine=engine)


@pytest.mark.parametrize("folder", ["tests/references/trained/gpt2", "tests/references/trained/marian"])
def test_gradients_and_attributions_of_a_score(with_jax, folder, tmp_path):
    found = []
    for name in ("jax", "numpy"):
        options = {"model": folder, "score": " sat", "dtype": "float64", "engine": name}
        attnkit.decode("a cat", **options, grad=str(tmp_path / f"{name}.npz"))
        record = next(iter(attnkit.formats.read(attnkit.formats.open_source(str(tmp_path / f"{name}.npz")))))
        shares = attnkit.decode("a cat", **options, attribute="integrated:2")
        found.append({**{key: record[key] for key in record}, **{f"of {key}": shares[key] for key in shares}})
    assert {*found[0]} == {*found[1]}
    for key, array in found[1].items():
        np.testing.assert_allclose(found[0][key], array, rtol=0, atol=1e-9, err_msg=key)


def test_check_compares_the_gradients_of_the_engine(with_jax, capfd, tmp_path):
    place, folder = str(tmp_path / "g.npz"), "tests/references/trained/gpt2"
    arguments = ["decode", "--model", folder, "a", "--score", " b", "--grad", place, "--check", "--engine", "jax"]
    assert main([*arguments, "-o", str(tmp_path / "s.npz")]) == 0
    assert float(capfd.readouterr().err.rpartition(" ")[2]) < 1e-7


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["encode", "--model", "tests/references/models/bert", "--ids", "IDS", "--mesh", "model=3"],
         "--mesh: 4 heads are not divisible by model=3"),
        (["encode", "--model", "tests/references/models/bert", "--ids", "IDS", "--process", "1"],
         "--process: needs --coordinator HOST:PORT"),
    ],
)  # fmt: skip
def test_what_jax_cannot_do_names_what_can(with_jax, arguments, problem, capfd, tmp_path):
    ids = tmp_path / "ids.json"
    ids.write_text("[3, 4, 5]")
    arguments = [str(ids) if one == "IDS" else one for one in arguments]
    assert errors(capfd, *arguments, "--engine", "jax") == (2, f"attnkit {arguments[0]}: {problem}")
