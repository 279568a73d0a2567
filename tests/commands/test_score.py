"""The tool score: perplexities of transformers, digits that sacrebleu prints, classes of lengths, bad input."""

import json
import logging
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit.errors import AttnkitNote, AttnkitWarning, DataError, FileError, UsageError
from attnkit.generation.translation_scores import score_translations
from tests import process
from tests.places import MODELS

TESTS = Path(__file__).parent.parent
LIGHTHOUSE = TESTS.parent / "samples" / "data" / "lighthouse.txt"
FROZEN = json.loads((TESTS / "references" / "perplexities.json").read_text(encoding="utf-8"))
TRANSLATIONS = TESTS / "references" / "translations"
HYPOTHESES = TRANSLATIONS / "hypotheses.txt"
REFERENCES = [TRANSLATIONS / "references-1.txt", TRANSLATIONS / "references-2.txt"]


def lines_of(path):
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


# perplexity


def window_cases():
    """Every case in float64, and the first of each model in float32, to the tolerance of each."""
    for number, case in enumerate(FROZEN["windows"]):
        name = f"{case['model']}-{case['window']}-{case['stride']}"
        yield pytest.param(case, "float64", 1e-7, id=f"{name}-float64")
        if case["model"] not in [one["model"] for one in FROZEN["windows"][:number]]:
            yield pytest.param(case, "float32", 1e-5, id=f"{name}-float32")


@pytest.mark.parametrize(("case", "dtype", "tolerance"), [*window_cases()])
@pytest.mark.filterwarnings("ignore::attnkit.errors.AttnkitNote")
def test_perplexity_is_the_sliding_window_figure_of_transformers(case, dtype, tolerance):
    sizes = {name: case[name] for name in ("window", "stride")}
    result = attnkit.score(LIGHTHOUSE, model=str(MODELS / case["model"]), dtype=dtype, **sizes)
    assert float(result["perplexity"]) == pytest.approx(case["perplexity"], rel=max(tolerance, 1e-6))
    assert float(result["loss"]) == pytest.approx(case["loss"], rel=tolerance)
    assert int(result["tokens"]) == case["tokens"]
    size = LIGHTHOUSE.stat().st_size
    assert int(result["bytes"]) == size
    assert float(result["bits_per_byte"]) == pytest.approx(
        case["loss"] * case["tokens"] / math.log(2) / size, rel=tolerance
    )
    assert {name: int(result[name]) for name in ("window", "stride", "bos") if name in result} == {
        name: case[name] for name in ("window", "stride", "bos") if name in case
    }
    if "usual" in case:  # with a start token before the first window alone
        assert abs(float(result["perplexity"]) / case["usual"] - 1) > 1e-3


def test_the_history_states_the_window_and_the_stride_of_a_model(tmp_path):
    made = str(tmp_path / "score.json")
    done = process.run("score", "--model", str(MODELS / "llama"), str(LIGHTHOUSE), "--window", "64", "-o", made)
    assert done.code == 0
    script = process.run("history", made).out
    assert b"--window 64 --stride 32" in script
    assert process.run("history", made, "--replay").out == b"1 command run again: identical bit for bit\n"


def test_default_window_is_all_positions_and_half_of_them_the_stride():
    model = str(MODELS / "gpt2")  # 64 positions
    default, same = attnkit.score(LIGHTHOUSE, model=model), attnkit.score(LIGHTHOUSE, model=model, window=64, stride=32)
    assert default["perplexity"] == same["perplexity"]
    assert default.history == same.history and "--window 64 --stride 32" in default.history[0]["command"]


def test_one_window_is_decode_score():
    result = attnkit.score(["The light went out."], model=str(MODELS / "gpt2"))
    scored = attnkit.decode("The light went out.\n", model=str(MODELS / "gpt2"), max_tokens=0)["x"]
    assert result["tokens"] == len(scored)
    assert float(result["loss"]) == pytest.approx(-float(scored.mean()), rel=1e-6)
    assert float(result["perplexity"]) == pytest.approx(math.exp(-float(scored.mean())), rel=1e-6)


def test_loss_is_exact_and_a_note_says_where_the_weights_matter():
    text = [LIGHTHOUSE.read_text(encoding="utf-8")[:200]]
    with pytest.warns(AttnkitNote, match=r"each token weighted alike, the perplexity is [\d.]+: exp\(loss\)") as caught:
        result = attnkit.score(text, model=str(MODELS / "gpt2"), window=2, stride=1)
    assert f" {math.exp(float(result['loss'])):.6g}: " in str(caught[0].message)


def test_a_note_says_which_tokens_no_window_predicts():
    text = [LIGHTHOUSE.read_text(encoding="utf-8")[:400]]
    model = str(MODELS / "gpt2")
    whole = attnkit.score(text, model=model, window=16, stride=15)
    with pytest.warns(AttnkitNote) as caught:
        result = attnkit.score(text, model=model, window=16, stride=16)
    skipped = int(whole["tokens"] - result["tokens"])
    assert skipped == int(whole["tokens"]) // 16
    assert f"the first tokens of {skipped} windows are not predicted" in str(caught[0].message)


@pytest.mark.parametrize("case", FROZEN["targets"], ids=lambda case: case["model"])
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-7), ("float32", 1e-5)])
def test_perplexity_of_targets_is_that_of_transformers(case, dtype, tolerance):
    pairs = ["\t".join(pair) for pair in FROZEN["pairs"]]
    result = attnkit.score(pairs, model=str(MODELS / case["model"]), dtype=dtype)
    assert float(result["perplexity"]) == pytest.approx(case["perplexity"], rel=max(tolerance, 1e-6))
    assert int(result["tokens"]) == case["tokens"]
    assert int(result["bytes"]) == sum(len(target.encode()) for _, target in FROZEN["pairs"])
    assert int(result["sentences"]) == 3


def test_perplexity_of_a_recurrent_translator_is_that_of_decode_score():
    model, source, target = str(MODELS / "seq2seq"), "je suis étudiant", "I am a student"
    tokens = attnkit.decode([source], model=model, score=target)["x"]
    result = attnkit.score([f"{source}\t{target}"], model=model)
    assert float(result["loss"]) == pytest.approx(-tokens.mean(), rel=1e-6)
    assert int(result["tokens"]) == len(tokens)


def test_perplexity_of_pairs_by_source_length():
    pairs = ["\t".join(pair) for pair in FROZEN["pairs"]]
    model = str(MODELS / "marian")
    result = attnkit.score(pairs, model=model, by="length:5")
    assert result.labels["length"] == ["1-5", "6-10"]
    assert result["sentences_by_length"].tolist() == [2, 1]
    for at, part in enumerate((pairs[:2], pairs[2:])):
        alone = attnkit.score(part, model=model)
        assert result["perplexity_by_length"][at] == pytest.approx(float(alone["perplexity"]), rel=1e-12)
        assert result["tokens_by_length"][at] == alone["tokens"]
    assert result["tokens_by_length"].sum() == result["tokens"]


def test_bytes_are_those_of_utf8():
    assert int(attnkit.score(["été"], model=str(MODELS / "gpt2"))["bytes"]) == 6


def test_unknown_tokens_are_warned_of(tmp_path):
    (tmp_path / "text").write_text("the cat sat on the mat\n" * 20)
    sizes = ["--layers", "1", "--heads", "1", "--dim", "8", "--block", "8", "--steps", "1", "--tokens", "chars"]
    assert process.run("train", str(tmp_path / "text"), "-o", str(tmp_path / "gpt"), *sizes).code == 0
    known = attnkit.score(["the cat"], model=str(tmp_path / "gpt"))
    assert int(known["tokens"]) == 7
    with pytest.warns(AttnkitWarning, match="text: 2 of 11 tokens are not in the vocabulary, and are read as unknown"):
        attnkit.score(["the 日本 cat"], model=str(tmp_path / "gpt"))
    for tool, flags in (("decode", {"max_tokens": 1}), ("encode", {}), ("embed", {})):
        with pytest.warns(AttnkitWarning, match="^2 of 6 tokens are not in the vocabulary, and are read as unknown$"):
            getattr(attnkit, tool)("the 日本", model=str(tmp_path / "gpt"), **flags)
    with pytest.raises(UsageError, match="'日' is not in the vocabulary"):
        attnkit.scan("the cat", model=str(tmp_path / "gpt"), score="日", ablate="heads")
    with pytest.warns(AttnkitWarning, match="1 of 7 tokens is not in the vocabulary"):
        attnkit.score(["un 日\tI 日本 am"], model=str(MODELS / "marian"))


def test_stream_of_the_stage_before(tmp_path):
    """A text from a file, a pipe, a FIFO and the stage before is the same text."""
    command = f"attnkit score --model {MODELS / 'gpt2'}"
    (tmp_path / "text").write_text("Once upon a time\n")
    results = [
        process.bash(line, cwd=tmp_path)
        for line in (
            f"{command} < text",
            f"cat text | {command}",
            f"{command} - < text",
            f"mkfifo pipe && (cat text > pipe & {command} pipe)",
        )
    ]
    values = [json.loads(done.out)["tensors"] for done in results]
    assert all(value == values[0] for value in values)


# translations


def printed(*arguments):
    """Return name, digits and signature of what the command of sacrebleu prints."""
    command = [sys.executable, "-m", "sacrebleu", *map(str, arguments), "-m", "bleu", "chrf", "-w", "4", "-f", "text"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"NO_COLOR": "1"})
    rows = []
    for line in done.stdout.strip().splitlines():
        title, _, rest = line.strip().partition(" = ")
        name, _, signature = title.partition("|")
        rows.append((name, rest.split()[0], signature))
    return rows


def scored(result):
    digits = [f"{float(result[name]):.4f}" for name in ("bleu", "chrf")]
    return list(zip(result.labels["metric"], digits, result.labels["signature"], strict=True))


@pytest.mark.parametrize("order", [0, 2])
@pytest.mark.parametrize("count", [1, 2])
def test_scores_are_those_that_sacrebleu_prints(count, order):
    references = REFERENCES[:count]
    result = attnkit.score(HYPOTHESES, references=",".join(map(str, references)), chrf_word_order=order)
    expected = printed(*references, "-i", HYPOTHESES, "--chrf-word-order", order)
    assert scored(result) == expected
    frozen = {(1, 0): ["64.4507", "77.5575"], (2, 0): ["69.0764", "80.0467"], (1, 2): ["64.4507", "77.8284"]}
    assert [digits for _, digits, _ in expected] == frozen.get((count, order), [row[1] for row in expected])


def test_parts_in_memory_change_nothing(monkeypatch):
    whole = attnkit.score(HYPOTHESES, references=str(REFERENCES[0]))
    monkeypatch.setattr("attnkit.generation.translation_scores.PART", 7)
    parts = attnkit.score(HYPOTHESES, references=str(REFERENCES[0]))
    assert all(whole[name] == parts[name] for name in whole)


def test_classes_of_lengths_are_scored_as_texts_of_their_own():
    hypotheses, (first, second) = lines_of(HYPOTHESES), map(lines_of, REFERENCES)
    result = attnkit.score(hypotheses, references=[first, second], by="length:10")
    counts = [len(line.split()) for line in first]
    assert result.labels["length"] == ["1-10", "11-20", "21-30", "31-40", "41-50"]
    for at, low in enumerate(range(1, 50, 10)):
        chosen = [one for one, count in enumerate(counts) if low <= count < low + 10]
        parts = [[lines[one] for one in chosen] for lines in (hypotheses, first, second)]
        alone = attnkit.score(parts[0], references=parts[1:])
        assert result["sentences_by_length"][at] == len(chosen) == alone["sentences"]
        for name in ("bleu", "chrf"):
            assert result[f"{name}_by_length"][at] == pytest.approx(float(alone[name]), rel=1e-12)


def test_length_of_the_source():
    result = attnkit.score(["a b", "c", "d"], references=["a b", "c", "e"], by="length:2", source=["x", "", "x y z"])
    assert result.labels["length"] == ["0", "1-2", "3-4"]
    assert result["sentences_by_length"].tolist() == [1, 1, 1]
    assert result["chrf_by_length"].tolist() == [100, 100, 0]


def test_translate_and_score_in_one_pipe(tmp_path):
    """What decode --lines prints is a line for each source, in a shell and in `run`."""
    model, pairs = MODELS / "marian", [source for source, _ in FROZEN["pairs"]]
    (tmp_path / "source").write_text("\n".join([*pairs[:2], "", pairs[2]]) + "\n")
    (tmp_path / "target").write_text("I am a student\nthe cat sleeps\n\na cat\n")
    stages = [f"decode --model {model} --lines --emit text --max-tokens 4", "score --references target --only chrf"]
    pipe = process.bash("cat source | " + " | ".join(f"attnkit {stage}" for stage in stages), cwd=tmp_path)
    whole = process.bash(f"attnkit run '{' | '.join(stages)}' < source", cwd=tmp_path)
    assert pipe.code == 0, pipe.err
    assert json.loads(pipe.out)["tensors"] == json.loads(whole.out)["tensors"]


def test_two_files_of_one_pipe(tmp_path):
    line = f"attnkit score <(cat {HYPOTHESES}) --references <(cat {REFERENCES[0]}),{REFERENCES[1]} --only bleu"
    both = attnkit.score(HYPOTHESES, references=[lines_of(path) for path in REFERENCES])
    assert json.loads(process.bash(line).out)["tensors"]["bleu"]["data"] == float(both["bleu"])
    done = process.run("score", str(HYPOTHESES), "--references", "-", stdin=REFERENCES[0].read_bytes())
    assert f"{json.loads(done.out)['tensors']['bleu']['data']:.4f}" == "64.4507"


def test_tokenized_text_is_warned_of():
    with pytest.warns(AttnkitWarning, match=r"100 lines end in ' \.': the metrics expect text that is not split"):
        attnkit.score(["a b ."] * 100, references=["a b."] * 100)


# displays


@pytest.mark.parametrize("kept", ["bleu", "chrf", "sentences", "bleu_by_length"])
def test_parts_of_a_result_are_shown(kept):
    arguments = ["score", str(HYPOTHESES), "--references", str(REFERENCES[0]), "--by", "length:10", "--only", kept]
    for format in ("table", "csv", "svg", "json"):
        done = process.run(*arguments, "-f", format)
        assert done.code == 0 and done.out, (format, done.err)


# bad input


def test_without_sacrebleu(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(UsageError, match=r"needs the sacrebleu library: pip install '\.\[score\]'"):
        attnkit.score(["a"], references=["a"])


@pytest.mark.parametrize(
    "value, error, problem",
    [
        ("a\n", FileError, "No such file"),
        (3, UsageError, "text: expected the name of a file or a list of lines, got int"),
        (None, UsageError, "got NoneType"),
        ([1, 2], UsageError, "got list"),
        ([], DataError, "empty"),
    ],
)
def test_inputs_of_python(value, error, problem):
    with pytest.raises(error, match=problem):
        attnkit.score(value, references=["a"])


def test_references_of_python():
    with pytest.raises(UsageError, match="expected a list of lines, or of lists of lines, got list"):
        attnkit.score(["a"], references=[1])
    with pytest.raises(UsageError, match="--source: expected one file, got 2"):
        attnkit.score(["a"], references=["a"], by="length:1", source=[["a"], ["b"]])


@pytest.mark.parametrize("family, text", [("gpt2", "the cat sat\n"), ("marian", "le chat\tthe cat\n")])
def test_a_model_with_nan(tmp_path, family, text):
    shutil.copytree(MODELS / family, tmp_path / "model")
    tensors = safetensors.numpy.load_file(tmp_path / "model" / "model.safetensors")
    name = next(name for name in tensors if ("layer" in name and name.endswith("weight")) or ".mlp." in name)
    tensors[name][:] = np.nan
    safetensors.numpy.save_file(tensors, tmp_path / "model" / "model.safetensors")
    done = process.run("score", "--model", str(tmp_path / "model"), stdin=text.encode())
    assert done.code == 3 and not done.out, done
    assert "the log-probabilities are not finite, first in " in done.err and done.err.count("\n") == 1


def test_a_perplexity_imports_no_sacrebleu():
    code = (
        "import sys, attnkit\n"
        f"attnkit.score(['a b c d'], model={str(MODELS / 'gpt2')!r})\n"
        "assert 'sacrebleu' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_lines_that_are_split_into_tokens_are_warned_about_by_us_alone(monkeypatch):
    lines, logged = ["a b c ."] * 100, []
    monkeypatch.setattr(logging.Logger, "handle", lambda logger, record: logged.append(record))
    with pytest.warns(AttnkitWarning, match=r"^100 lines end in ' \.': the metrics expect text that is not split"):
        assert score_translations(lines, [lines])[0].scores == [pytest.approx(100)]
    assert not logged


RANKINGS = json.loads((TESTS / "references" / "rankings.json").read_text())
JUDGED = attnkit.Record({"x": np.array(RANKINGS["judgments"])})


@pytest.mark.parametrize("cutoff", RANKINGS["scores"])
def test_rankings_are_scored_as_by_trec_eval(cutoff):
    record = attnkit.Record({"x": np.zeros((12, 15)), "rows": np.array(RANKINGS["rows"])})
    scored = attnkit.score(record, relevant=JUDGED, at=int(cutoff))
    for name, expected in RANKINGS["scores"][cutoff].items():
        np.testing.assert_allclose(scored[f"{name}_by_query"], expected, rtol=0, atol=1e-12)
        assert scored[name] == pytest.approx(np.mean(expected), abs=1e-12)
    assert scored["queries"] == 12 and scored.labels["query"] == [str(query) for query in range(12)]


def test_rankings_of_a_stream_are_queries_one_after_another():
    rows = np.array(RANKINGS["rows"])
    whole = attnkit.score(attnkit.Record({"x": np.zeros((12, 15)), "rows": rows}), relevant=JUDGED)
    parts = [rows[:4], *rows[4:6], rows[6:]]
    stream = [attnkit.Record({"x": np.zeros(part.shape), "rows": part}) for part in parts]
    parted = attnkit.score(stream, relevant=JUDGED)
    assert whole["at"] == 15
    assert {name: parted[name].tolist() for name in parted} == {name: whole[name].tolist() for name in whole}


def test_queries_without_a_judgment_are_left_out_with_a_warning():
    rows = np.array([[0, 1], [1, 0], [1, 0]])
    with pytest.warns(AttnkitWarning, match="2 rankings of a query without a judgment are left out"):
        scored = attnkit.score(
            attnkit.Record({"x": np.zeros((3, 2)), "rows": rows}), relevant=attnkit.Record({"x": np.array([[1, 0]])})
        )
    assert (scored["mrr"], scored["recall"], scored["queries"]) == (0.5, 1.0, 1)
    with pytest.raises(UsageError, match="expected a record of rankings or a list of them, got list"):
        attnkit.score([1, 2], relevant=JUDGED)
