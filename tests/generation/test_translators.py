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
from attnkit import formats, model
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import DataError
from attnkit.inputs import layers
from attnkit.interpret.model_summary import shell_pipeline
from attnkit.records import Record
from attnkit.training.data import SentencePair, encode_pairs
from tests.drawing import assert_near, draw_tensors, drawn_models, keep_folders, write_model
from tests.places import DATA, REFERENCES, arrays
from tests.process import run
from tests.tokenizers.translation_folders import NLLB, write_folder

TABLE = drawn_models("translators")
GENERATING = [name for name, one in TABLE.items() if one["texts"]]
UNLABELLED = [name for name in TABLE if name != "bart-labels"]
EXACT, SINGLE = 1e-10, 2e-6  # of the largest number


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return keep_folders(tmp_path_factory.mktemp, "translators")


def frozen(name, key):
    return arrays("translators")[f"{name}/{key}"]


def compute(core, source, ids, dtype, mask=None, hook=model.hooks.no_hook):
    """The logits of a target, or its states where there is no head."""
    padding = None if mask is None else mask[:, None] == 1
    positions = None if mask is None else model.token_positions(padding)
    context = model.Context(mask=padding, positions=positions, dtype=dtype, hook=hook)
    memory = model.run(core, core.config.plan("encoder"), source, context)
    decoding = model.Context(memory=memory, memory_mask=padding, dtype=dtype, hook=hook)
    x = model.run(core, core.config.plan("decoder"), ids, decoding)
    return model.head_logits(core, x) if core.config.head else x


@pytest.mark.parametrize("name", UNLABELLED)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_states_and_logits_are_those_of_transformers(folder, name, dtype):
    kind, tolerance = ("f64", EXACT) if dtype == "float64" else ("f32", SINGLE)
    core, kept = layers.core_model(open_checkpoint(folder(name, np.dtype(dtype).type))), {}
    keep = lambda where: lambda array: kept.setdefault(where, array)  # noqa: E731
    logits = compute(core, frozen(name, "source"), frozen(name, "ids"), dtype, hook=keep)
    assert_near(logits, frozen(name, f"logits.{kind}"), tolerance)
    batch = {key: frozen(name, f"batch.{key}") for key in ("source", "ids", "mask")}
    assert_near(compute(core, **batch, dtype=dtype), frozen(name, f"batch.logits.{kind}"), tolerance)
    if dtype == "float32":
        return
    last = "norm" if core.config.norm_first else None
    for stack, depth in (("encoder", 2), ("decoder", 3)):
        first = "embed_norm" if core.config.embed_norm else "positions"
        sites = [first, *(f"{at}.ffn.residual" if last else f"{at}.norm{depth}" for at in range(depth))]
        for at, site in enumerate([*sites[:-1], last or sites[-1]]):
            assert_near(kept[f"{stack}.{site}"], frozen(name, f"{stack}.{at}"), EXACT)


def choices(**fields):
    return lambda config: replace(config, **fields)


def positions(**fields):
    return lambda config: replace(config, positions=replace(config.positions, **fields))


def stacks(**fields):
    return lambda config: replace(
        config, encoder=replace(config.encoder, **fields), decoder=replace(config.decoder, **fields)
    )


TRAPS = [  # model, what goes wrong, and the change that does so
    ("bart", "positions begin at row 0", positions(first=0)),
    ("bart", "positions begin after the padding token plus one more", positions(first=1)),
    ("bart", "no norm of the embeddings", choices(embed_norm=False)),
    ("bart", "norms before sub-layers", choices(norm_first=True)),
    ("bart", "ReLU", choices(activation="relu")),
    ("bart", "embeddings are scaled", choices(embed_scale=24**0.5)),
    ("bart-untied", "embeddings are not scaled", choices(embed_scale=1.0)),
    ("mbart", "norms after residuals", choices(norm_first=False)),
    ("mbart", "no norm at the end", stacks(final_norm=False)),
    ("mbart", "no norm of the embeddings", choices(embed_norm=False)),
    ("m2m_100", "positions begin at 0", positions(first=0)),
    ("m2m_100", "the period of a pair is that of the paper", positions(base=10000.0)),
    ("m2m_100", "sines and cosines in turn", positions(layout="paper")),
    ("m2m_100", "embeddings are not scaled", choices(embed_scale=1.0)),
    ("m2m_100", "GELU", choices(activation="gelu")),
    ("m2m_100", "no norm at the end", stacks(final_norm=False)),
    ("m2m_100-padding", "positions begin at 2, whatever the padding token", positions(first=2)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mistake", "change"), TRAPS, ids=[f"{name}: {mistake}" for name, mistake, _ in TRAPS])
def test_a_mistake_changes_the_logits(folder, name, mistake, change):
    checkpoint, exact = open_checkpoint(folder(name)), frozen(name, "logits.f64")
    wrong = model.Model(change(checkpoint.config), checkpoint.params)
    logits = compute(wrong, frozen(name, "source"), frozen(name, "ids"), "float64")
    assert np.abs(logits - exact).max() > 1e-4 * np.abs(exact).max()


def test_the_bias_of_the_logits_counts(folder):
    core = layers.core_model(open_checkpoint(folder("bart")))
    params = {**core.params, "head": {"w": core.params["head"]["w"]}}
    logits = compute(model.Model(core.config, params), frozen("bart", "source"), frozen("bart", "ids"), "float64")
    exact = frozen("bart", "logits.f64")
    np.testing.assert_allclose(exact - logits, np.broadcast_to(core.params["head"]["b"], exact.shape), atol=1e-12)
    assert np.abs(exact - logits).max() > 0.1


@pytest.mark.parametrize("name", GENERATING)
def test_the_printed_pipeline_has_the_bits_of_the_model(folder, name, tmp_path):
    place, kept, memory = folder(name, np.float32), {}, None
    core, path = layers.core_model(open_checkpoint(place)), tmp_path / "memory.npz"
    for stack, key in (("encoder", "source"), ("decoder", "ids")):
        ids, plan = frozen(name, key)[0], core.config.plan(stack)
        context = model.Context(memory=memory, hook=lambda where: lambda array: kept.setdefault(where, array))
        x = model.run(core, plan, ids, context)
        lines = {
            part: shell_pipeline(core.config, place, part).replace("\\\n", "").replace("memory.npz", str(path))
            for part in (stack, f"{stack}.0")
        }
        embed, _, rest = lines[stack].partition(' "TEXT"')
        formats.save(Record({"x": ids}), str(tmp_path / "ids.npz"))
        np.testing.assert_array_equal(attnkit.run(f"{embed} --ids {tmp_path}/ids.npz {rest}")["x"], x)
        before = kept[f"{stack}.{'embed_norm' if core.config.embed_norm else 'positions'}"]
        *_, end = model.layer_steps(core.config, stack, 0)
        after = kept[f"{end.layer}.residual" if end.adds_residual else end.layer]
        np.testing.assert_array_equal(attnkit.run(lines[f"{stack}.0"], Record({"x": before}))["x"], after)
        memory = x
        formats.save(Record({"x": memory}), str(path))


@pytest.mark.parametrize("name", GENERATING)
def test_padding_does_not_change_a_source(folder, name):
    place, mask = folder(name, np.float32), frozen(name, "batch.mask")
    batch = Record({"ids": frozen(name, "batch.source"), "mask": mask[:, None] == 1})
    whole = attnkit.encode(batch, model=place)["x"]
    for row, states, real in zip(frozen(name, "batch.source"), whole, mask == 1, strict=True):
        alone = attnkit.encode(model=place, ids=row[real])["x"]
        assert_near(states[real], alone, 1e-6)


@pytest.mark.parametrize("name", ["bart", "m2m_100"])
def test_gradients_agree_with_finite_differences(folder, name):
    source = frozen(name, "source")[0]
    record = attnkit.grad(f"encode --model {folder(name)} | softmax", Record({"ids": source}), check=True, of="x[3,1]")
    assert record["check"][2] < 1e-6
    assert record["encoder.embed.table"][source].any() and record["encoder.1.norm2.gamma"].any()
    if name == "bart":
        used = np.flatnonzero(record["encoder.positions.table"].any(axis=1))
        np.testing.assert_array_equal(used, np.arange(2, 2 + len(source)))


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


def test_gradients_of_labels_agree_with_finite_differences(folder):
    mask = np.array([[[True, True, True]], [[True, True, False]]])
    states = Record({"x": np.random.default_rng(1).standard_normal((2, 3, 24)), "mask": mask})
    line = f"decode --model {folder('bart-labels')} --layer head --emit logits"
    record = attnkit.grad(line, states, check=True, of="x[1,2]")
    assert record["check"][2] < 1e-6
    used = record["0.input.x"].any(axis=-1)
    np.testing.assert_array_equal(used, [[False, False, False], [False, True, False]])


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


def test_the_pipeline_of_a_classifier_reads_the_shifted_source(folder, tmp_path):
    place, source = folder("bart-labels", np.float32), frozen("bart-labels", "source")[0]
    ids = {"source": source, "shifted": np.array([2, *source[:-1]])}
    for name, one in ids.items():
        formats.save(Record({"x": one}), str(tmp_path / f"{name}.npz"))
    lines = shell_pipeline(open_checkpoint(place).config, place, "all").replace("\\\n", "").split("\n")
    encoder, decoder = (
        line.replace('"TEXT"', f"--ids {tmp_path}/source.npz").replace("shifted", f"{tmp_path}/shifted")
        .replace("memory.npz", f"{tmp_path}/memory.npz")
        for line in lines
    )  # fmt: skip
    formats.save(attnkit.run(encoder.rpartition(" -o ")[0]), f"{tmp_path}/memory.npz")
    np.testing.assert_array_equal(attnkit.run(decoder)["logits"], attnkit.decode(model=place, ids=source)["logits"])


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
