"""BART, mBART, M2M-100: states, logits and texts as transformers computes them.

What the numbers are, and how they were made: tests/references/make_translators.py.
"""

import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit import formats
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import DataError
from attnkit.records import Record
from attnkit.training.data import SentencePair, encode_pairs
from tests.drawing import assert_near, draw_tensors, drawn_models, keep_folders, write_model
from tests.places import DATA, REFERENCES, arrays
from tests.process import run
from tests.tokenizers.translation_folders import NLLB, write_folder

TABLE = drawn_models("translators")
GENERATING = [name for name, one in TABLE.items() if one["texts"]]
EXACT, SINGLE = 1e-10, 2e-6  # of the largest number


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return keep_folders(tmp_path_factory.mktemp, "translators")


def frozen(name, key):
    return arrays("translators")[f"{name}/{key}"]


@pytest.mark.parametrize(("name", "at"), [(name, at) for name in GENERATING for at in range(len(TABLE[name]["texts"]))])
def test_texts_are_those_of_transformers_token_for_token(folder, name, at):
    text, place = TABLE[name]["texts"][at], folder(name)
    options = dict(text["options"])
    start, forced = TABLE[name]["config"]["decoder_start_token_id"], options.pop("forced_bos_token_id", None)
    ours = {
        "beam": options.get("num_beams"),
        "length_penalty": f"average:{options['length_penalty']}" if "length_penalty" in options else None,
        "no_repeat_ngram": options.get("no_repeat_ngram_size"),
        "min_tokens": options.get("min_new_tokens"),
    }
    checkpoint = open_checkpoint(place)
    checkpoint.config = replace(checkpoint.config, special=replace(checkpoint.config.special, forced_bos=forced))
    source = Record({"ids": frozen(name, "source")[0]})
    written = attnkit.decode(source, model=checkpoint, dtype="float64", max_tokens=11, emit="ids", **ours)
    assert [start, *written["x"].tolist()] == text["ids"]


def test_a_batch_is_what_its_texts_are_alone(folder):
    place, mask = folder("mbart"), frozen("mbart", "batch.mask")
    batch = Record({"ids": frozen("mbart", "batch.source"), "mask": mask[:, None] == 1})
    options = {"model": place, "beam": 2, "max_tokens": 6, "emit": "ids"}
    together = attnkit.decode(batch, **options)["x"]
    for row, ids, real in zip(together, frozen("mbart", "batch.source"), mask == 1, strict=True):
        alone = attnkit.decode(Record({"ids": ids[real]}), **options)["x"]
        np.testing.assert_array_equal(row[: len(alone)], alone)


@pytest.mark.parametrize("name", [name for name in TABLE if name not in ("bart-bare", "bart-untied")])
def test_the_tensors_that_a_configuration_requires_are_those_that_transformers_saves(name):
    shapes = published_tensors(TABLE[name]["config"]).shapes
    assert shapes == {key: tuple(shape) for key, shape in TABLE[name]["shapes"].items()}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_labels_are_those_of_transformers(folder, dtype):
    """The head reads the last token of the decoder, which reads the source after its start token."""
    place, mask = folder("bart-labels", np.dtype(dtype).type), frozen("bart-labels", "batch.mask")
    exact, single = (frozen("bart-labels", f"batch.logits.{kind}") for kind in ("f64", "f32"))
    tolerance = EXACT if dtype == "float64" else 2 * np.abs(single - exact).max() / np.abs(exact).max()
    one = attnkit.decode(model=place, ids=frozen("bart-labels", "source"), dtype=dtype)
    assert_near(one["logits"], frozen("bart-labels", "logits.f64"), tolerance)
    assert one.labels["label"] == ["no", "maybe", "yes"] and one["next"][0] == one["logits"][0].argmax()
    batch = Record({"x": frozen("bart-labels", "batch.source"), "mask": mask[:, None] == 1})
    rows = attnkit.decode(model=place, ids=batch, dtype=dtype)
    assert_near(rows["logits"], exact, tolerance)


def test_labels_of_texts_and_pairs(folder, tmp_path):
    place = write_folder(tmp_path / "bart", "bart")
    shapes = TABLE["bart-labels"]["shapes"] | {"model.shared.weight": [330, 24]}
    raw = TABLE["bart-labels"]["config"] | {"vocab_size": 330}
    (place / "config.json").write_text(json.dumps(raw))
    safetensors.numpy.save_file(draw_tensors("bart", shapes), place / "model.safetensors")
    first = attnkit.decode("the cat", model=str(place), pair="the rain")
    ids = attnkit.encode("the cat", model=str(place), pair="the rain")["ids"]
    again = attnkit.decode(model=str(place), ids=ids)
    np.testing.assert_array_equal(first["logits"], again["logits"])
    ran = run("decode", "--model", str(place), "--emit", "text", "the cat")
    assert ran.code == 0 and ran.out.decode().strip() in ("no", "maybe", "yes")
    for texts in (["the cat"], ["the cat", "a"]):
        record = attnkit.decode(texts, model=str(place), trace=str(tmp_path / "trace.npz"), batch=len(texts) > 1)
        trace = formats.load(str(tmp_path / "trace.npz"))
        np.testing.assert_array_equal(trace["logits"], record["logits"])
        tokens, source = trace.labels["token"], trace.labels["source"]
        tokens, source = (tokens, source) if len(texts) == 1 else (tokens[0], source[0])
        assert tokens == ["</s>", *source[:-1]]


def test_a_cache_continues_a_text(folder, tmp_path):
    source, options = Record({"ids": frozen("m2m_100", "source")[0]}), {"model": folder("m2m_100"), "emit": "ids"}
    whole = attnkit.decode(source, max_tokens=8, **options)["x"]
    first = attnkit.decode(source, max_tokens=5, cache_out=str(tmp_path / "cache.npz"), **options)["x"]
    rest = attnkit.decode(cache_in=str(tmp_path / "cache.npz"), max_tokens=3, **options)["x"]
    np.testing.assert_array_equal(whole, [*first, *rest])


def test_a_text_ends_where_positions_do(folder):
    source, options = Record({"ids": frozen("bart", "source")[0]}), {"model": folder("bart"), "emit": "ids"}
    text = attnkit.decode(source, min_tokens=40, **options)["x"]
    assert len(text) == 23 and text[-1] == 2  # the end that is forced at the last position
    long = Record({"ids": np.tile(frozen("bart", "source")[0], 3)})
    with pytest.raises(DataError, match="33 tokens, and this bart model has 23 positions"):
        attnkit.encode(long, model=folder("bart"))
    assert attnkit.encode(long, model=folder("m2m_100"))["x"].shape == (33, 24)


TRANSLATIONS = json.loads((REFERENCES / "nllb.json").read_text())
FR_EN, STORY = DATA / "fr-en", DATA / "story"


@pytest.mark.parametrize("row", TRANSLATIONS, ids=lambda row: f"{row['source']} {row['target']} {row['beams']}")
def test_translations_between_languages_are_those_of_transformers(row):
    options = {"source_language": row["source"], "target_language": row["target"], "dtype": "float64"}
    search = {"max_tokens": 12, "no_repeat_ngram": 2, "beam": row["beams"]}
    written = attnkit.decode(row["text"], model=NLLB, **options, **search)
    assert [2, *written["ids"].tolist()] == row["ids"]
    assert written.labels["text"] == [row["written"]]
    memory = attnkit.encode(row["text"], model=NLLB, source_language=row["source"], dtype="float64")
    again = attnkit.decode(memory, model=NLLB, target_language=row["target"], dtype="float64", **search)
    np.testing.assert_array_equal(again["ids"], written["ids"])
    pairs = f"{row['text']}\t{row['text']}"
    assert abs(float(attnkit.score([pairs], model=NLLB, **options)["loss"]) - row["loss"]) < 1e-6
    scored = attnkit.decode(row["text"], model=NLLB, score=row["text"], **options)
    assert scored.labels["token"][0] == row["target"]
    assert abs(-scored["x"].mean() - row["loss"]) < 1e-6


@pytest.mark.parametrize(("line", "problem"), [
    ("decode --model {nllb} --target-language xx_Xxxx a", r"--target-language: the model has no language 'xx_Xxxx'"),
    ("decode --model {nllb} --source-language fra a", r"no language 'fra' \(expected one of fra_Latn"),
    ("decode --model {frEn} --target-language fr a", "--target-language: the model has no languages"),
    ("decode --model {frEn} --source-language fr a", "--source-language: the tokenizer has no languages"),
    ("decode --model {story} --target-language fr a", "--target-language: the model has no languages"),
    ("decode --target-language fr", "--target-language: needs --model"),
    ("encode --model {frEn} --source-language fr a", "--source-language: the tokenizer has no languages"),
    ("encode --model {nllb} --source-language eng_Latn --ids {ids}", "--source-language: needs TEXT"),
    ("decode --model {nllb} --target-language= a", "--target-language: expected the name of a language, got ''"),
    ("train {text} --from {nllb} -o out", "nllb: its tokenizer puts a language beside every text, and pairs"),
    ("embed --model {nllb} --target-language fra_Latn a", "encoder.embed embeds a source: --source-language names"),
    ("decode --model {nllb} --target-language fra_Latn --ids {ids} a", "--ids: cannot be combined with --target-lang"),
    ("decode --model {nllb} --target-language fra_Latn --cache-in c.npz", "cannot be combined with"),
    ("scan --model {story} --target-language fr --score a --ablate heads a", "translates no text"),
    ("score --model {story} --target-language fr {text}", "--target-language: needs --references, or a model"),
    ("score --references {text} --source-language fr {text}", "--source-language: needs --model"),
])  # fmt: skip
def test_languages_that_are_refused(tmp_path, line, problem):
    (tmp_path / "ids.json").write_text("[5, 6]")
    (tmp_path / "text.txt").write_text("a\n")
    names = {"nllb": NLLB, "frEn": FR_EN, "story": STORY, "ids": tmp_path / "ids.json", "text": tmp_path / "text.txt"}
    ran = run(*line.format(**names).split())
    assert ran.code in (2, 3) and not ran.out
    assert re.search(problem, ran.err) and ran.err.count("\n") == 1


@pytest.mark.parametrize(("name", "changes", "problem"), [
    ("bart", {"normalize_before": True}, "normalize_before true is not supported by family bart"),
    ("bart", {"add_final_layer_norm": True}, "add_final_layer_norm true is not supported by family bart"),
    ("mbart", {"normalize_before": False}, "normalize_before false is not supported by family mbart"),
    ("mbart", {"normalize_embedding": False}, "normalize_embedding false is not supported by family mbart"),
    ("bart", {"encoder_attention_heads": 5}, "d_model 24 is not divisible by encoder_attention_heads 5"),
    ("bart", {"max_position_embeddings": 10**9}, r"embed_positions.weight' .* has shape \(25, 24\)"),
    ("bart", {"vocab_size": 10}, r"shared.weight' .* has shape \(67, 24\)"),
    ("m2m_100", {"pad_token_id": -3}, "pad_token_id is '-3' "),
    ("m2m_100", {"d_model": 48}, "has shape"),
    ("mbart", {"activation_function": "swiglu"}, "activation_function 'swiglu' is not supported"),
    ("bart-untied", {"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
    ("mbart", {"encoder_layers": 10**8}, "encoder_layers 100000000, and only"),
])  # fmt: skip
def test_a_wrong_value_is_an_error_that_names_its_key(tmp_path, name, changes, problem):
    write_model(name, tmp_path, np.float32, "translators", **changes)
    with pytest.raises(DataError, match=problem):
        open_checkpoint(str(tmp_path))


def test_positions_begin_after_the_padding_token_of_the_model_not_of_generation(tmp_path):
    write_model("m2m_100-padding", tmp_path, np.float32, "translators")
    (tmp_path / "generation_config.json").write_text('{"pad_token_id": 0}')
    assert open_checkpoint(str(tmp_path)).config.positions.first == 6


def test_a_start_that_bos_stands_for_and_keys_of_older_files(tmp_path):
    """The configuration of bart-large-cnn before transformers 4."""
    older = {"force_bos_token_to_be_generated": True, "normalize_before": False, "normalize_embedding": True}
    older |= {"add_final_layer_norm": False, "static_position_embeddings": False, "extra_pos_embeddings": 2}
    write_model("bart", tmp_path, np.float32, "translators", **older, prefix=" ", classif_dropout=0.0)
    special = open_checkpoint(str(tmp_path)).config.special
    assert (special.start, special.forced_bos, special.forced_eos, special.eos) == (2, 0, 2, (2,))
    write_model("mbart", tmp_path, np.float32, "translators", decoder_start_token_id=..., forced_eos_token_id=...)
    (tmp_path / "generation_config.json").unlink()
    special = open_checkpoint(str(tmp_path)).config.special
    assert (special.start, special.bos, special.forced_eos) == (None, 0, 2)


def test_rules_that_a_folder_asks_for_are_noted_and_shown(tmp_path):
    asked = {"num_beams": 4, "length_penalty": 2.0, "no_repeat_ngram_size": 3, "min_length": 5, "max_length": 9}
    write_model("bart", tmp_path, np.float32, "translators", no_repeat_ngram_size=7)
    for values in (asked, {"num_beams": 4}, {"num_beams": "x", "min_length": None, "no_repeat_ngram_size": True}):
        (tmp_path / "generation_config.json").write_text(json.dumps(values))
        ran = run("decode", "--model", str(tmp_path), "--max-tokens", "2", stdin=b'{"tensors":{"ids":{"shape":[2],'
                  b'"dtype":"int64","data":[8,2]}}}')  # fmt: skip
        flags = "--beam 4 --length-penalty average:2 --no-repeat-ngram 3 --min-tokens 4"
        note = f"attnkit decode: note: the folder asks for {flags}, which decode does only if its own options say so\n"
        assert (ran.code, ran.err) == (0, note if values == asked else "")
        shown = run("show", str(tmp_path), "--facts", env={"COLUMNS": "200"}).out.decode()
        assert ("asks for" in shown, flags in shown) == (values["num_beams"] == 4, values == asked)


def test_pairs_to_train_bart_on_are_the_tokens_that_it_reads(tmp_path):
    tokenizer = open_tokenizer(str(write_folder(tmp_path / "bart", "bart")))
    [pair] = encode_pairs((tokenizer, tokenizer), [(1, "a", "b")], 2, "pairs.tsv")
    assert pair == SentencePair([0, 68, 2], [0, 69, 2])


def test_languages_of_the_other_tools():
    embedded = attnkit.embed("the cat", model=NLLB, source_language="deu_Latn")
    assert embedded.labels["token"][0] == "deu_Latn"
    target = attnkit.embed("the cat", model=NLLB, layer="decoder.embed", target_language="fra_Latn")
    assert target.labels["token"][:2] == ["</s>", "fra_Latn"]
    languages = {"source_language": "eng_Latn", "target_language": "fra_Latn"}
    swept = attnkit.scan("the cat", model=NLLB, ablate="heads", score="the", **languages)
    logits = attnkit.decode("the cat", model=NLLB, max_tokens=2, emit="logits", **languages)["x"]
    assert abs(float(swept["clean"]) - logits[1, embedded["ids"][1]]) < 1e-5  # of the first word after the language
    line = f"embed 'the cat' --model {NLLB} --source-language deu_Latn"
    used = attnkit.grad(f"{line} | softmax", of="x[0,0]")
    assert used["encoder.embed.table"][114].any()


@pytest.mark.parametrize(("options", "is_told"), [({}, True), ({"target_language": "fra_Latn"}, False),
                                                  ({"ids": [115]}, False), ({"ids": [70]}, False)])  # fmt: skip
def test_a_text_whose_language_nothing_states_is_noted(options, is_told):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        attnkit.decode("the cat", model=NLLB, source_language="eng_Latn", max_tokens=1, **options)
    note = "the model itself chooses the language of the target; --target-language L names one"
    assert [str(one.message) for one in told] == [note] * is_told


def test_the_defaults_of_a_folder_are_noted_unless_all_but_those_of_beams_are_stated(tmp_path):
    write_model("bart", tmp_path, np.float32, "translators")
    asked = {"num_beams": 4, "length_penalty": 2.0, "min_length": 5}
    (tmp_path / "generation_config.json").write_text(json.dumps(asked))
    begin = "the folder asks for "
    for options, flags in (
        ({}, "--beam 4 --length-penalty average:2 --min-tokens 4"),
        ({"beam": 2}, "--length-penalty average:2 --min-tokens 4"),
        ({"min_tokens": 1}, None),
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            attnkit.decode(Record({"ids": np.array([8, 2])}), model=str(tmp_path), max_tokens=2, **options)
        said = [str(one.message) for one in told if begin in str(one.message)]
        end = ", which decode does only if its own options say so"
        assert said == ([] if flags is None else [f"{begin}{flags}{end}"])
