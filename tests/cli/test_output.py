"""NPY, NPZ and JSON between stages: x is the same whatever carries it, and what a format does not hold is said."""

import io
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from attnkit import formats
from attnkit.cli import main
from tests import process

pytestmark = pytest.mark.slow

TABLE = np.arange(20.0, dtype=np.float32).reshape(5, 4) / 7
SIX = ["posenc", "mask --causal", "attend --heads 2 --seed 1", "layernorm", "decode --table T.npy"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("T.npy", TABLE[1:4])
    np.save("b.npy", TABLE)
    np.save("a.npy", TABLE[:3])
    return tmp_path


def bash(line, stdin=b"", **env):
    """The exit code, standard output and standard error of a line of bash."""
    return process.bash(line, stdin=stdin, env={"ATTNKIT_FORMAT": ""} | env)


def here(capfdbinary, line):
    """The same of a command line of attnkit, in this process."""
    capfdbinary.readouterr()
    code = main.main(shlex.split(line))
    out, err = capfdbinary.readouterr()
    return code, out, err.decode()


def records(data):
    return list(formats.read(formats.Source.of(data)))


def xs(data):
    return [(record["x"].dtype.name, record["x"].tolist()) for record in records(data)]


def piped(stages, each):
    """Stages joined by a shell, each told its format, or not."""
    return " | ".join(
        f"attnkit {one}" + f" -f {format}" * bool(format) for one, format in zip(stages, each, strict=True)
    )


EMBED = 'embed "The cat sat" --dim 4 --dtype float32'
FORMATS = {
    "npy": ["npy", "npy", "", "npy", "npy", "npy"],
    "npy, no more said": ["npy", "", "", "", "", ""],
    "npz": ["npz"] * 6,
    "json": ["json"] * 6,
    "nothing said": [""] * 6,
    "mixed": ["json", "npz", "npz", "npy", "json", "npy"],
    "mixed again": ["npy", "json", "safetensors", "npz", "npy", ""],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "unbuffered"), [*((name, "") for name in FORMATS), ("nothing said", "1"), ("mixed", "1")]
)
def test_the_six_tools_in_any_format(name, unbuffered):
    stages, each = [EMBED, *SIX], FORMATS[name]
    code, out, err = bash(piped(stages, each), PYTHONUNBUFFERED=unbuffered)
    assert code == 0, err
    line = " | ".join(f"{one}" + f" -f {format}" * bool(format) for one, format in zip(stages, each, strict=True))
    assert process.run("run", line, env={"ATTNKIT_FORMAT": ""}) == (0, out, err)
    assert xs(out) == xs(process.run("run", " | ".join(stages), env={"ATTNKIT_FORMAT": ""}).out)


NARROW = ["layernorm", "posenc", "attend --causal", "ffn --hidden 2"]
WIDE = {
    "mask --causal": "mask",
    "attend --keep weights": "weights",
    "attend --steps -q": "q, k, v, scores, scaled, capped, masked, weights, heads",
    "attend --weights stats": "weights.lse, weights.entropy, weights.max, weights.argmax, weights.span",
    "attend --partial": "lse",
    "layernorm --keep mean": "mean",
    "ffn --hidden 2 --steps -q": "hidden, activated",
    "posenc --kind alibi": "bias",
    "posenc --kind rotary --alone": "sin",
}


@pytest.mark.parametrize("stage", [*NARROW, *WIDE, "decode --table T.npy"])
def test_npy_goes_on_as_npz_where_it_does_not_hold_the_record(stage, capfdbinary):
    code, out, err = here(capfdbinary, f"{stage} a.npy")
    assert (code, err) == (0, "")
    assert out.startswith(b"\x93NUMPY" if stage in NARROW else b"PK\x03\x04")
    [whole] = records(here(capfdbinary, f"{stage} a.npy -f json")[1])
    [record] = records(out)
    assert {name: array.tolist() for name, array in record.arrays().items()} == {
        name: array.tolist() for name, array in whole.arrays().items()
    }
    assert stage in NARROW or record.history == whole.history  # with the SHA-256 of a.npy
    code, out, err = here(capfdbinary, f"run '{stage} a.npy | peek -q' -o r.npz")
    assert (code, err) == (0, "")
    assert xs(Path("r.npz").read_bytes()) == [(record["x"].dtype.name, record["x"].tolist())]


@pytest.mark.parametrize("stage", WIDE)
@pytest.mark.parametrize("asked", ["-f npy", "-o x.npy"])
def test_what_a_stage_was_asked_for_is_not_lost(stage, asked, capfdbinary):
    Path("x.npy").write_bytes(b"old")
    code, out, err = here(capfdbinary, f"{stage} a.npy {asked}")
    names = WIDE[stage].split(", ")
    assert (code, out) == (3, b"") and Path("x.npy").read_bytes() == b"old"
    assert err.startswith(f"attnkit {stage.split()[0]}: npy holds only x and would lose {names[0]}"), err
    assert err.endswith("; use -f npz\n") and err.count("\n") == 1
    line = f"run '{stage} a.npy -f npy | layernorm'"
    assert here(capfdbinary, line) == (3, b"", err)  # the stage that writes is blamed
    code, out, err = here(capfdbinary, f"{stage} a.npy {asked} --only x")
    assert (code, err) == (0, "")


NOTE = "npy holds only x; left out: {} (-f npz keeps all)\n"


def test_what_travels_along_is_left_out_and_a_note_says_so(capfdbinary):
    for embed, left in (
        ('embed "The cat sat" --dim 4', "ids, table, labels"),
        ('embed "The cat" "sat" --dim 4', "ids, mask, table, labels"),
        ('embed "The cat sat" --one-hot', "ids, labels"),
    ):
        code, out, err = here(capfdbinary, f"{embed} -f npy")
        assert (code, err) == (0, "attnkit embed: note: " + NOTE.format(left))
        assert np.array_equal(np.load(io.BytesIO(out)), records(here(capfdbinary, embed)[1])[0]["x"])
        assert here(capfdbinary, f"{embed} -o e.npy") == (0, b"", err) and Path("e.npy").read_bytes() == out
        assert here(capfdbinary, f"{embed} -o e.npy -q") == (0, b"", "") and Path("e.npy").read_bytes() == out
        assert here(capfdbinary, f"{embed} -f npy --only x") == (0, out, "")
    here(capfdbinary, "embed 'The cat sat' --dim 4 -o e.npz")
    here(capfdbinary, "mask --causal e.npz -o m.npz")
    for stage, left in (
        ("attend m.npz", "ids, table, mask, labels, history"),  # an earlier stage's mask
        ("show m.npz", "ids, table, mask, labels, history"),
        ("peek m.npz -q", ""),
        ("decode e.npz", "ids, table, logits, next, labels, history"),
        ("posenc --size 2 --dim 4", ""),
    ):
        code, out, err = here(capfdbinary, f"{stage} -f npy")
        assert (code, err) == (0, f"attnkit {stage.split()[0]}: note: {NOTE.format(left)}" if left else ""), stage
        assert out.startswith(b"\x93NUMPY")
    code, _, err = here(capfdbinary, "decode e.npz --steps -q -f npy")
    assert code == 3 and "would lose logits" in err
    code, _, err = here(capfdbinary, "show m.npz --name x,mask -f npy")
    assert code == 3 and "would lose mask" in err


def test_a_model_writes_x_and_leaves_its_company_behind(capfdbinary):
    story, fr_en = (
        Path(__file__).parents[2] / "samples/data/story",
        Path(__file__).parents[2] / "samples/data/fr-en",
    )
    code, out, err = here(capfdbinary, f"decode --model {story} 'One day' --max-tokens 3 -f npy")
    assert (code, records(out)[0]["x"].shape) == (0, (3,)) and "note: npy holds only x; left out: ids" in err
    for flags in ("--top 3", "--steps -q", "--top 3 --max-tokens 2 -q", "--steps --top 2 -q --temperature 1"):
        code, out, err = here(capfdbinary, f"decode --model {story} 'One day' {flags} -f npy")
        assert (code, out) == (3, b"") and "npy holds only x and would lose ids, candidates.ids" in err, flags
        assert err.endswith("; use -f npz\n") and err.count("\n") == 1
        assert here(capfdbinary, f"decode --model {story} 'One day' {flags} -f npy --only x")[0] == 0
    code, out, err = here(capfdbinary, f"encode --model {fr_en} 'le chat noir' -f npy")
    assert (code, len(records(out))) == (0, 1) and "note: npy holds only x; left out: " in err and "memory" in err
    code, out, err = here(capfdbinary, f"decode --model {fr_en} 'le chat noir' --beam 3 --best 2 -f npy")
    assert (code, out) == (3, b"") and "npy holds only x and would lose " in err and "scores" in err


def test_the_note_comes_once_a_stream():
    code, out, err = bash("attnkit embed --lines --dim 2 -f npy", b"a b\nc\nd e f\n")
    assert (code, err) == (0, "attnkit embed: note: " + NOTE.format("ids, table, labels"))
    assert [record["x"].shape for record in records(out)] == [(2, 2), (1, 2), (3, 2)]


def test_the_environment_chooses_as_a_flag_does():
    code, out, err = bash("attnkit embed 'a b' --dim 2 | attnkit mask --causal | attnkit attend", ATTNKIT_FORMAT="npy")
    assert (code, err) == (0, "attnkit embed: note: " + NOTE.format("ids, table, labels"))
    assert list(records(out)[0]) == ["x", "mask"]


def test_bfloat16_in_npy_is_noted(capfdbinary):
    note = "attnkit posenc: note: npy has no name for bfloat16; reading it takes --dtype bfloat16\n"
    line = "posenc a.npy --dtype bfloat16"
    assert here(capfdbinary, f"{line} -o b.npy") == (0, b"", note)
    assert here(capfdbinary, f"{line} -o b.npy -q") == (0, b"", "")
    assert here(capfdbinary, f"{line} -o b.npz") == (0, b"", "")
    code, _, err = here(capfdbinary, f"run '{line} -f npy | layernorm --dtype bfloat16 -f npy'")
    assert (code, err) == (0, note + note.replace("posenc", "layernorm"))
    assert here(capfdbinary, "show b.npy --dtype bfloat16 -f json")[0] == 0


def test_a_run_hands_on_what_a_pipe_would(capfdbinary):
    line = "posenc a.npy | layernorm --keep mean,residual | ffn --hidden 3 --add :residual"
    code, _, err = bash(f"attnkit {line.replace('| ', '| attnkit ')} -o shell.npz")
    assert (code, err) == (0, "")
    assert here(capfdbinary, f"run '{line}' -o run.npz") == (0, b"", "")
    assert Path("run.npz").read_bytes() == Path("shell.npz").read_bytes()


STREAM = "embed --lines --dim 4 --seed 1 -f {}"
LINES = b"the cat\nsat\non the mat\n"


def test_npz_is_a_stream():
    code, out, err = bash(f"attnkit {STREAM.format('npz')}", LINES)
    assert (code, err) == (0, "")
    ways = [bash(f"attnkit embed --dim 4 --seed 1 -f npz '{line.decode()}'")[1] for line in LINES.splitlines()]
    assert xs(out) == [array for way in ways for array in xs(way)]
    stages = ["posenc", "mask --causal", "attend --keep weights", "layernorm", "decode"]
    code, npz, err = bash(" | ".join(f"attnkit {stage}" for stage in stages), out)
    assert (code, err) == (0, "") and npz.startswith(b"PK")
    json_lines = bash(
        f"attnkit {STREAM.format('json')} | " + " | ".join(f"attnkit {stage}" for stage in stages), LINES
    )[1]
    assert bash("attnkit show -f json", npz)[1] == json_lines
    Path("s.npz").write_bytes(out)
    assert bash("attnkit peek -q", out)[1] == out
    assert bash("attnkit show", out)[1].count(b"x (token") == 3
    assert bash("attnkit diff s.npz s.npz")[0] == 0


def test_a_stream_in_npy_goes_on_as_one_in_npz():
    code, out, err = bash("cat a.npy b.npy | attnkit attend --keep weights")
    assert (code, err) == (0, "")
    assert [record["weights"].shape for record in records(out)] == [(1, 3, 3), (1, 5, 5)]


def test_a_long_stream_of_archives_takes_no_more_memory_than_a_short_one():
    code = (
        "import resource, subprocess, sys;"
        "subprocess.run(['attnkit', 'layernorm'], stdout=subprocess.DEVNULL, check=True);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // (1024 if sys.platform == 'darwin' else 1))"
    )
    archive = b"".join(map(bytes, formats.encode(formats.Record({"x": np.ones((100, 100))}), "npz")))

    def peak(count):
        return int(
            process.run_command([sys.executable, "-c", code], stdin=archive * count, env={"PATH": process.ALONE}).out
        )

    assert peak(800) < peak(20) + 10_000  # KiB, of 64 MB


@pytest.mark.parametrize("format", ["json", "npy", "npz"])
def test_the_records_before_a_bad_one_are_written(format):
    """Of wrong bytes, and of a right record that the tool refuses."""
    good, wide, flat = (
        b"".join(map(bytes, formats.encode(formats.Record({"x": array}), format)))
        for array in (np.ones((2, 4)), np.ones((3, 4)), np.ones(4))
    )
    expected = bash("attnkit posenc", good)[1] + bash("attnkit posenc", wide)[1]
    for bad in (good[: len(good) // 2], flat, b"\x00\x01\x02"):
        code, out, err = bash("attnkit posenc", good + wide + bad)
        assert (code, out, err.count("\n")) == (3, expected, 1)
        Path("old").write_bytes(b"old")
        code, out, err = bash(
            f"attnkit posenc -o old.{format}; attnkit posenc -f {format} -o /dev/fd/1", good + wide + bad
        )
        assert not Path(f"old.{format}").exists()
