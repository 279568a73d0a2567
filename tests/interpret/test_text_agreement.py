"""Two models on a text: errors of stages, KL of predictions, and the tensors whose rounding costs most."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit import formats, model
from attnkit.checkpoints import open_checkpoint
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.interpret.text_agreement import TokenText, compare_on_text
from tests.gguf_models import convert, load_tiny, quantize_rows, tokenizer_keys
from tests.places import DATA, ROOT, folder
from tests.process import run

IDS = np.array([[1, 5, 7, 9, 33, 12, 8]])
TEXT = [TokenText(IDS)]


def write_folder(place, name="wide", **changed):
    """Write the folder of a tiny model, with tensors changed by functions."""
    config, tensors = load_tiny(name)
    place.mkdir(exist_ok=True)
    (place / "config.json").write_text(json.dumps(config))
    tensors = {key: changed.get(key, lambda array: array)(array) for key, array in tensors.items()}
    safetensors.numpy.save_file(tensors, place / "model.safetensors")
    return place


@pytest.fixture
def models(tmp_path):
    """The paths of a Llama and of its file with matrices in Q8_0 and Q4_0."""
    kinds = {True: "Q4_0", False: "Q8_0"}
    content = convert("wide", quantize=lambda name, array: quantize_rows(name, array, kinds["ffn" in name]))
    (tmp_path / "m.gguf").write_bytes(content)
    return str(write_folder(tmp_path / "dir")), str(tmp_path / "m.gguf")


def logits(path, ids=IDS):
    checkpoint = open_checkpoint(path)
    core = model.Model(checkpoint.config, checkpoint.params)
    return model.head_logits(core, model.run(core, checkpoint.config.plan("decoder"), ids, model.Context()))[0]


def divergence(a, b):
    """KL(A‖B) for each row of logits, as its definition has it."""
    p, q = (np.exp(one - one.max(-1, keepdims=True)) for one in (a.astype(np.float64), b.astype(np.float64)))
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    return (p * np.log(p / q)).sum(-1)


def test_kl_is_that_of_the_logits(models):
    a, b = map(open_checkpoint, models)
    report = compare_on_text(a, b, TEXT)
    expected = divergence(logits(models[0]), logits(models[1]))
    assert np.allclose(report["kl"], expected, rtol=1e-6, atol=1e-12) and expected.mean() > 1e-4
    assert not report.same and report.labels["token"] == [str(id) for id in IDS[0]]
    choices = np.mean(logits(models[0]).argmax(-1) == logits(models[1]).argmax(-1))
    assert f"the same first choice after {choices:.1%} of 7 tokens" in report.lines[1]
    losses = [-np.log(np.exp(one[:-1]) / np.exp(one[:-1]).sum(-1, keepdims=True))[np.arange(6), IDS[0, 1:]]
              for one in map(logits, models)]  # fmt: skip
    assert report.lines[2] == "perplexity of the text {:.5g} with A, {:.5g} with B".format(
        *(np.exp(np.mean(one, dtype=np.float64)) for one in losses)
    )


def test_the_error_of_a_stage_is_the_norm_of_the_change_by_the_norm(models):
    a, b = map(open_checkpoint, models)
    report = compare_on_text(a, b, TEXT)
    tables = [one.params["decoder.embed"]["table"][IDS[0]].astype(np.float64) for one in (a, b)]
    at = report.labels["stage"].index("decoder.embed")
    difference = tables[1] - tables[0]
    assert np.isclose(report["relative"][at], np.linalg.norm(difference) / np.linalg.norm(tables[0]), rtol=1e-6)
    assert np.isclose(report["largest"][at], np.abs(difference).max(), rtol=1e-6)
    cosine = (tables[0] * tables[1]).sum() / np.linalg.norm(tables[0]) / np.linalg.norm(tables[1])
    assert np.isclose(report["cosine"][at], cosine, rtol=1e-6)
    assert report.labels["stage"] == [
        "decoder.embed",
        *(f"decoder.{number}.{part}.residual" for number in (0, 1) for part in ("self", "ffn")),
        "decoder.norm",
    ]


def test_a_model_is_the_same_as_itself(models):
    a = open_checkpoint(models[0])
    report = compare_on_text(a, open_checkpoint(models[0]), TEXT, scans=True)
    assert report.same and report["kl"].tolist() == [0] * 7 and not len(report["tensor_kl"])
    assert report["relative"].tolist() == [0] * 6


def test_the_scan_replaces_one_tensor_at_a_time(models, tmp_path):
    """Its KL is that of a folder in which this tensor alone is the one of the file."""
    a, b = map(open_checkpoint, models)
    report = compare_on_text(a, b, TEXT, scans=True)
    names = report.labels["tensor"]
    assert len(names) == 16 and [*report["tensor_kl"]] == sorted(report["tensor_kl"], reverse=True)
    kinds = dict(zip(names, report.labels["stored"], strict=True))
    assert kinds["model.layers.1.mlp.up_proj.weight"] == "Q4_0" and kinds["lm_head.weight"] == "Q8_0"
    for name in ("model.layers.1.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight", "lm_head.weight"):
        rounded = np.ascontiguousarray(b.params.weights.tensor(name))
        one = write_folder(tmp_path / name, **{name: lambda array, rounded=rounded: rounded})
        expected = divergence(logits(models[0]), logits(str(one)))
        at = names.index(name)
        assert np.isclose(report["tensor_kl"][at], expected.mean(), rtol=1e-5)
        assert np.isclose(report["tensor_largest"][at], expected.max(), rtol=1e-5)


def test_a_tied_table_is_replaced_at_both_its_places(tmp_path):
    """GPT-2 computes logits with its table of embeddings."""
    first = str(write_folder(tmp_path / "a", "gpt2"))
    second = str(write_folder(tmp_path / "b", "gpt2", **{"transformer.wte.weight": lambda array: array * 1.25}))
    [name] = [name for name in load_tiny("gpt2")[1] if name.endswith("wte.weight")]
    second = str(write_folder(tmp_path / "b", "gpt2", **{name: lambda array: array * 1.25}))
    report = compare_on_text(open_checkpoint(first), open_checkpoint(second), TEXT, scans=True)
    assert report.labels["tensor"] == [name]
    assert np.isclose(report["tensor_kl"][0], report["kl"].mean(), rtol=1e-9)
    assert np.isclose(report["kl"].mean(), divergence(logits(first), logits(second)).mean(), rtol=1e-5)


def test_an_encoder_has_stages_and_no_predictions(tmp_path):
    (tmp_path / "m.gguf").write_bytes(convert("bert-mlm"))
    report = compare_on_text(open_checkpoint(folder("bert-mlm")), open_checkpoint(str(tmp_path / "m.gguf")), TEXT)
    assert report.same and "kl" not in report and report.lines == ()


def test_models_of_other_shapes_are_refused(models, tmp_path):
    a = open_checkpoint(models[0])
    with pytest.raises(DataError, match=r"not of the architecture of .*: decoder.embed has table \(330, 24\)"):
        compare_on_text(a, open_checkpoint(folder("llama")), TEXT)
    with pytest.raises(DataError, match="not of the architecture of"):
        compare_on_text(a, open_checkpoint(folder("t5")), TEXT)


@pytest.fixture
def translators(tmp_path):
    """A model that translates, the same one with another matrix in its decoder, and two pairs of sentences."""
    shutil.copytree(DATA / "fr-en", tmp_path / "other")
    tensors = safetensors.numpy.load_file(tmp_path / "other" / "model.safetensors")
    tensors["model.decoder.layers.1.fc1.weight"] *= np.float16(1.5)
    safetensors.numpy.save_file(tensors, tmp_path / "other" / "model.safetensors")
    (tmp_path / "pairs.tsv").write_text("je suis ici\tI am here\n\ntu es\tyou are\n")
    return str(DATA / "fr-en"), str(tmp_path / "other"), tmp_path / "pairs.tsv"


def trace_logits(source, target, folder, path):
    """The logits of the tokens of a target after a source."""
    attnkit.decode(source, model=folder, score=target, trace=str(path))
    return formats.load(str(path))["logits"][:-1]  # of the tokens before the end


def test_encoder_decoders_are_compared_on_the_targets_of_pairs(translators, tmp_path):
    *folders, pairs = translators
    report = attnkit.diff(*folders, text=str(pairs))
    scores = [attnkit.score(str(pairs), model=one) for one in folders]
    perplexities = [float(one["perplexity"]) for one in scores]
    assert report.lines[2] == "perplexity of the text {:.5g} with A, {:.5g} with B".format(*perplexities)
    assert (
        len(report["kl"]) == len(report.labels["token"]) == scores[0]["tokens"] and perplexities[0] != perplexities[1]
    )
    assert report.labels["token"].count("<pad>") == 2  # from which decoding starts
    changed = [name for name, figure in zip(report.labels["stage"], report["relative"], strict=True) if figure]
    assert changed == ["decoder.1.ffn.residual"] and "encoder.1.ffn.residual" in report.labels["stage"]
    expected = []
    for source, target in (("je suis ici", "I am here"), ("tu es", "you are")):
        ran = [trace_logits(source, target, one, tmp_path / "run.npz") for one in folders]
        expected += divergence(*ran).tolist()
    np.testing.assert_allclose(report["kl"], expected, rtol=1e-4, atol=1e-9)


def test_the_scan_of_an_encoder_decoder_names_the_tensor(translators):
    *folders, pairs = translators
    report = attnkit.diff(*folders, text=str(pairs), scan=True)
    assert report.labels["tensor"] == ["model.decoder.layers.1.fc1.weight"]
    np.testing.assert_allclose(report["tensor_kl"], [report["kl"].mean()], rtol=1e-9)


def test_a_recurrent_encoder_decoder_has_the_stages_of_its_cells(tmp_path):
    (tmp_path / "pairs.tsv").write_text("je suis\tI am\n")
    report = attnkit.diff(folder("seq2seq"), folder("seq2seq"), text=str(tmp_path / "pairs.tsv"))
    assert report.same and len(report["kl"]) == 3
    assert report.labels["stage"] == ["encoder.embed", "encoder.0.rnn.state", "decoder.embed", "decoder.cross.output",
                                      "decoder.0.rnn.state", "decoder.readout.output"]  # fmt: skip


def test_pairs_are_read_by_the_languages_of_the_options(tmp_path):
    nllb, pairs = str(ROOT / "tests" / "transcripts" / "inputs" / "nllb"), tmp_path / "pairs.tsv"
    pairs.write_text("a cat\tun chat\n")
    options = {"source_language": "eng_Latn", "target_language": "fra_Latn"}
    report = attnkit.diff(nllb, nllb, text=str(pairs), **options)
    perplexity = float(attnkit.score(str(pairs), model=nllb, **options)["perplexity"])
    assert report.lines[2] == f"perplexity of the text {perplexity:.5g} with A, {perplexity:.5g} with B"


def test_errors_of_pairs(translators, tmp_path):
    *folders, pairs = translators
    np.save(tmp_path / "ids.npy", IDS[0])
    with pytest.raises(UsageError, match=r"ids\.npy: an encoder-decoder model reads the pairs of --text"):
        attnkit.diff(*folders, ids=str(tmp_path / "ids.npy"))
    pairs.write_text("je suis ici\n")
    with pytest.raises(DataError, match=r"pairs\.tsv: line 1: 1 column \(expected source, tab, target\)"):
        attnkit.diff(*folders, text=str(pairs))
    whisper = str(ROOT / "tests" / "transcripts" / "inputs" / "whisper")
    with pytest.raises(UsageError, match=r"pairs\.tsv: a whisper model reads a sound \(expected models of texts\)"):
        attnkit.diff(whisper, whisper, text=str(pairs))
    pairs.write_text("je suis ici\tI am here\n")
    with pytest.warns(AttnkitWarning, match="other ids"), pytest.raises(DataError, match="not of the architecture of"):
        attnkit.diff(folders[0], str(DATA / "story"), text=str(pairs))


def diff(cwd, *arguments):
    return run("diff", *arguments, cwd=cwd)


def test_the_tool(models, tmp_path):
    (tmp_path / "ids.json").write_text(json.dumps(IDS[0].tolist()))
    done = diff(tmp_path, *models, "--ids", "ids.json", "--scan")
    text = done.out.decode()
    assert done.code == 1 and "decoder.1.ffn.residual" in text and "KL(A‖B) " in text
    assert "model.layers.0.mlp.gate_proj.weight     Q4_0" in text and "replaced alone: 16 tensors" in text
    record = json.loads(diff(tmp_path, *models, "--ids", "ids.json", "-f", "json").out)
    assert record["tensors"]["same"]["data"] is False and record["tensors"]["kl"]["shape"] == [7]
    rows = diff(tmp_path, *models, "--ids", "ids.json", "-f", "csv").out.decode().splitlines()
    assert rows[0] == "stage,relative,largest,cosine" and len(rows) == 7
    costs = diff(tmp_path, *models, "--ids", "ids.json", "--scan", "-f", "csv").out.decode().splitlines()
    assert costs[0] == "tensor,stored,kl,largest" and len(costs) == 17
    assert diff(tmp_path, models[0], models[0], "--ids", "ids.json").code == 0
    assert diff(tmp_path, *models, "--ids", "ids.json", "--atol", "10").code == 0
    assert diff(tmp_path, *models, "--ids", "ids.json", "-o", "f.svg").code == 1


def test_a_text_is_split_by_the_tokenizer_of_a(tmp_path):
    (tmp_path / "m.gguf").write_bytes(convert("gpt2", tokenizer_keys("gpt2")))
    (tmp_path / "t.txt").write_text("The cat sat\non the mat.\n")
    done = diff(tmp_path, folder("gpt2"), "m.gguf", "--text", "t.txt", "--atol", "1e-5")
    assert done.code == 0, done.err
    assert "KL(A‖B)" in done.out.decode() and "other ids" not in done.err
    keys = tokenizer_keys("gpt2")
    keys["tokenizer.ggml.merges"] = keys["tokenizer.ggml.merges"][:3]
    (tmp_path / "m.gguf").write_bytes(convert("gpt2", keys))
    other = diff(tmp_path, folder("gpt2"), "m.gguf", "--text", "t.txt", "--atol", "1e-5")
    first = (
        "both models read those of A. B: 20 tokens, expected 12; the first that differs is 51, expected 277 (token 0)"
    )
    assert other.code == 1 and f"the tokenizers of the models give other ids for the text; {first}" in other.err


FAULTS = {
    "scan alone": (["--scan"], 2, "--scan: needs two models and --text FILE"),
    "text and ids": (["--text", "t.txt", "--ids", "ids.json"], 2, "t.txt: cannot be combined with --ids"),
    "no text": (["--text", "none.txt"], 4, "none.txt: No such file"),
    "a batch": (["--ids", "batch.json"], 3, "(expected those of one text)"),
    "an id beyond": (["--ids", "beyond.json"], 3, "67"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_wrong_use(name, models, tmp_path):
    files = {"t.txt": "a", "ids.json": "[1, 2]", "batch.json": "[[1, 2], [3, 4]]", "beyond.json": "[1, 670]"}
    for file, content in files.items():
        (tmp_path / file).write_text(content)
    arguments, code, problem = FAULTS[name]
    done = diff(tmp_path, *models, *arguments)
    assert (done.code, done.out) == (code, b"") and problem in done.err, done.err


def test_a_text_needs_two_models(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    done = diff(tmp_path, "a.json", "a.json", "--text", "a.json")
    assert done.code == 2 and "a.json: needs two models" in done.err
