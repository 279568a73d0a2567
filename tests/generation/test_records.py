"""Whole models asked for what cannot be, or given what belongs elsewhere: it is said, or it is done right."""

import re
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import attnkit
from attnkit import formats
from attnkit.checkpoints import open_checkpoint
from attnkit.cli import pipeline
from attnkit.errors import AttnkitWarning, DataError, UsageError
from attnkit.interpret.model_summary import shell_pipeline
from attnkit.records import Record, Tensor
from tests import process
from tests.places import MODELS, ROOT

STORY, FRENCH = (str(ROOT / "samples" / "data" / name) for name in ("story", "fr-en"))
SOURCE, TARGET = "le chat noir dort", "the black cat sleeps"


def run(line, folder, status=0):
    """A shell pipeline of attnkit: what it prints, and what it says on standard error."""
    code, out, err = process.bash(line, cwd=folder)
    assert code == status, err
    assert status == 0 or not out
    return out.decode(), err


def broken(folder, *missing):
    """A copy of the translator without some of its files."""
    shutil.copytree(FRENCH, folder / "bad")
    for name in missing:
        (folder / "bad" / name).unlink()


def ran(text):
    """The record that a pipeline makes, in this process."""
    [record] = pipeline.chain_stages(pipeline.parse_stages(text)).items
    return record


@pytest.mark.parametrize("tool", ["decode", "encode", "embed"])
def test_a_vocabulary_without_its_pieces_is_refused(tmp_path, tool):
    broken(tmp_path, "source.spm")
    _, said = run(f"attnkit {tool} --model bad '{SOURCE}'", tmp_path, 3)
    assert said.startswith(f"attnkit {tool}: bad: no source.spm: vocab.json alone cannot split text into tokens")


@pytest.mark.parametrize("asked", ["", "--emit text", "--score the", "--beam 2"])
def test_a_translator_without_the_pieces_of_its_target_is_refused(tmp_path, asked):
    broken(tmp_path, "target.spm")
    _, said = run(f"attnkit decode --model bad '{SOURCE}' {asked}", tmp_path, 4)
    assert said.startswith("attnkit decode: bad/target.spm: No such file")


def test_ids_need_no_pieces_of_the_target(tmp_path):
    broken(tmp_path, "target.spm")
    whole = attnkit.decode(SOURCE, model=FRENCH)["ids"]
    ours = attnkit.decode(SOURCE, model=str(tmp_path / "bad"), emit="ids")
    np.testing.assert_array_equal(ours["x"], whole)
    prefix = attnkit.decode(SOURCE, model=str(tmp_path / "bad"), ids=whole[:2])
    np.testing.assert_array_equal(prefix["ids"], whole[2:])


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_translation_goes_on_from_its_cache_as_in_one_run(tmp_path, first):
    file = str(tmp_path / "c.npz")
    begun = attnkit.decode(SOURCE, model=FRENCH, max_tokens=first, cache_out=file)
    rest = attnkit.decode(None, model=FRENCH, cache_in=file)
    whole = attnkit.decode(SOURCE, model=FRENCH)
    assert [*begun["ids"], *rest["ids"]] == whole["ids"].tolist()
    assert rest.labels["text"] == whole.labels["text"] == [TARGET]
    assert attnkit.decode("", model=FRENCH, cache_in=file).labels["text"] == [TARGET]  # no TEXT is none
    with pytest.raises(UsageError, match="the cache contains its source"):
        attnkit.decode("le chien", model=FRENCH, cache_in=file)


def test_the_last_token_of_a_limit_is_a_forced_end():
    ids = attnkit.decode(SOURCE, model=FRENCH, max_tokens=2)["ids"]
    assert ids[-1] == 0 and len(ids) == 2


def test_the_target_of_a_batch_begins_with_the_start_in_every_row():
    config = open_checkpoint(FRENCH).config
    both = attnkit.embed(["the cat", "the black cat"], model=FRENCH, layer="decoder.embed")
    assert (both["ids"][:, 0] == config.special.start).all() and both["mask"].sum(axis=-1).tolist() == [[4], [5]]
    ids = np.array([5, 6])
    np.testing.assert_array_equal(attnkit.embed(None, ids=ids, model=FRENCH, layer="decoder.embed")["ids"], ids)


def test_a_memory_of_another_model_is_refused():
    record = attnkit.encode("le chat", model=FRENCH)
    words = ["▁a", *record.labels["token"][1:]]
    other = record.with_tensors({}, {"token": words, "source": words})
    with pytest.raises(DataError, match=r"token '▁a' at \[0\] is id 390, which this model spells '▁le'"):
        attnkit.decode(other, model=FRENCH)


def test_ids_without_labels_and_padding_are_taken():
    ids = attnkit.embed("Once upon", model=STORY)["ids"]
    assert attnkit.decode(Record({"ids": ids}), model=STORY, max_tokens=2).labels["text"] == ["Once upon a time"]
    batch = attnkit.embed(["Once", "Once upon a"], model=STORY)
    assert attnkit.decode(batch, model=STORY, max_tokens=2)["ids"].shape == (2, 2)


@pytest.mark.slow
def test_a_decoder_without_words_runs_from_files(tmp_path):
    name = MODELS / "transformer"
    for file, size in (("source", 5), ("target", 3)):
        formats.save(attnkit.posenc(None, size=size, dim=16, dtype="float32"), str(tmp_path / f"{file}.npz"))
    run(f"attnkit encode --model {name} < source.npz > memory.npz", tmp_path)
    memory, target = (formats.load(str(tmp_path / f"{file}.npz")) for file in ("memory", "target"))
    whole = attnkit.decode(target.with_tensors({"memory": memory["memory"]}), model=str(name))["x"]
    decode = f"attnkit decode --model {name}"
    for line in (
        f"{decode} --memory memory.npz < target.npz",
        f"{decode} --memory memory.npz target.npz",
        f"{decode} --memory - target.npz < memory.npz",
        f"attnkit run 'show target.npz -f npz | decode --model {name} --memory memory.npz'",
    ):
        run(f"{line} --format npz > made.npz", tmp_path)
        np.testing.assert_array_equal(formats.load(str(tmp_path / "made.npz"))["x"], whole)
    _, said = run(f"{decode} < memory.npz", tmp_path, 3)
    assert "x is the memory itself" in said
    run(f"{decode} --memory - < memory.npz", tmp_path, 2)


def test_all_of_an_encoder_alone_ends_with_its_head(tmp_path):
    image = str(MODELS / "vit.png")
    for name, given, whole in (
        ("bert-mlm", "the [MASK] sat", lambda model: attnkit.decode("the [MASK] sat", model=model)),
        ("vit", image, lambda model: attnkit.decode(None, image=image, model=model)),
    ):
        model = str(MODELS / name)
        text = shell_pipeline(open_checkpoint(model).config, model, "all").replace("\\\n", "")
        made = ran(text.replace("TEXT", given).replace("IMAGE", given))
        np.testing.assert_array_equal(made["logits"], whole(model)["logits"])
    assert "--layer head" not in shell_pipeline(open_checkpoint(str(MODELS / "bert")).config, "DIR", "all")


def test_a_warning_is_one_from_python_too():
    states = attnkit.layernorm(attnkit.encode("Once", model=STORY))
    with pytest.warns(AttnkitWarning, match="is ignored"):
        attnkit.decode(states, model=STORY, max_tokens=1)


BESIDE = [f"encode --model {STORY} 'Once upon' --trace", f"decode --model {STORY} Once --max-tokens 2 --cache-out"]


@pytest.mark.parametrize("asked", BESIDE)
@pytest.mark.parametrize(
    ("where", "status"), [("> /dev/full", 4), ("-o missing/out.npz", 4), ("--only nothing > out", 3)]
)
def test_a_run_that_fails_leaves_the_files_beside_its_result(tmp_path, asked, where, status):
    (tmp_path / "beside.npz").write_text("as it was")
    run(f"attnkit {asked} beside.npz {where}", tmp_path, status)
    assert (tmp_path / "beside.npz").read_text() == "as it was"
    assert {path.name for path in tmp_path.iterdir()} <= {"beside.npz", "out"}


def test_a_call_from_python_that_fails_leaves_the_file_of_a_trace(tmp_path):
    file = tmp_path / "beside.npz"
    file.write_text("as it was")
    with pytest.raises(UsageError, match="matches no intermediate"):
        attnkit.decode("Once upon", model=STORY, max_tokens=0, trace=str(file), trace_only="nothing")
    assert file.read_text() == "as it was"


@pytest.mark.slow
@pytest.mark.parametrize("asked", BESIDE)
def test_what_a_run_wrote_beside_its_result_is_replayed(tmp_path, asked):
    run(f"attnkit {asked} beside.npz -o out.npz", tmp_path)
    before = (tmp_path / "beside.npz").read_bytes()
    for file in ("beside.npz", "out.npz"):
        assert "1 command run again: identical bit for bit" in run(f"attnkit history {file} --replay", tmp_path)[0]
    assert (tmp_path / "beside.npz").read_bytes() == before
    [name] = [name for name in formats.load(str(tmp_path / "beside.npz")) if name.startswith("decoder.0.self.k")]
    run(f"attnkit show beside.npz --name {name} -o part.npz", tmp_path)
    assert "2 commands run again: identical bit for bit" in run("attnkit history part.npz --replay", tmp_path)[0]
    (tmp_path / "beside.npz").unlink()
    script = run("attnkit history part.npz", tmp_path)[0]
    assert script.endswith(f"/dev/fd/3 3>&1 > /dev/null \\\n  | attnkit show --name {name}\n")
    shown = run(script, tmp_path)[0]
    assert not (tmp_path / "beside.npz").exists() and shown == run("attnkit show part.npz", tmp_path)[0]


def left_padded(record):
    """The record of a batch with its padding before the tokens."""
    counts = record["mask"].sum(axis=-1)[:, 0]
    ids = np.stack([np.roll(row, len(row) - count) for row, count in zip(record["ids"], counts, strict=True)])
    mask = np.stack([np.roll(row, row.shape[-1] - count) for row, count in zip(record["mask"], counts, strict=True)])
    return Record({"ids": Tensor(ids, ("batch", "token")), "mask": Tensor(mask, ("batch", "all queries", "key"))})


@pytest.mark.parametrize("pad", [lambda record: record, left_padded], ids=["right", "left"])
@pytest.mark.parametrize("emit", [None, "logits"])
def test_the_scores_of_a_padded_batch_stand_where_its_tokens_stand(tmp_path, pad, emit):
    written = ["Once upon", "Once upon a time"]
    batch = pad(attnkit.embed(written, model=STORY))
    made = attnkit.decode(batch, model=STORY, max_tokens=0, emit=emit)
    real = batch["mask"][:, 0]
    kept = real if emit else real[:, 1:] & np.cumsum(real, axis=1)[:, 1:].astype(bool) & (np.cumsum(real, 1)[:, 1:] > 1)
    np.testing.assert_array_equal(made["mask"][:, 0], kept)
    for row, text in enumerate(written):
        alone = attnkit.decode(text, model=STORY, max_tokens=0, emit=emit)
        for name in ("x", "ids"):
            np.testing.assert_array_equal(made[name][row][kept[row]], alone[name])
            assert not made[name][row][~kept[row]].any()
        names = np.array(made.labels["token"][row])
        assert names[kept[row]].tolist() == alone.labels["token"] and set(names[~kept[row]]) <= {"[PAD]"}


@pytest.mark.parametrize("pad", [lambda record: record, left_padded], ids=["right", "left"])
def test_the_trace_of_a_batch_is_one_record_as_of_encode(tmp_path, pad):
    batch = pad(attnkit.embed(["Once upon", "Once upon a time"], model=STORY))
    files = [str(tmp_path / f"{name}.npz") for name in ("decode", "encode", "alone")]
    attnkit.decode(batch, model=STORY, max_tokens=0, trace=files[0])
    attnkit.encode(batch, model=STORY, trace=files[1])
    attnkit.decode("Once upon", model=STORY, max_tokens=0, trace=files[2])
    ours, whole, alone = map(formats.load, files)
    assert [*ours] == [*whole]
    real = batch["mask"][:, 0]
    for name in whole:
        assert ours[name].shape == whole[name].shape and ours.tensors[name].axes == whole.tensors[name].axes
        part = ours[name][0]
        for at, axis in enumerate(ours.axes_of(name)[1:]):
            part = part.compress(real[0], at) if axis in ("token", "query", "key") else part
        np.testing.assert_array_equal(part, alone[name])
    np.testing.assert_allclose(ours["decoder.norm"][real], whole["decoder.norm"][real], atol=2e-5)
    assert np.array(ours.labels["query"])[real].tolist() == ["Once", "Ġupon", "Once", "Ġupon", "Ġa", "Ġtime"]


def test_traces_of_several_texts_and_of_a_cache(tmp_path):
    trace, cache = str(tmp_path / "t.npz"), str(tmp_path / "c.npz")
    attnkit.decode(["le chat", "le chat noir dort"], model=FRENCH, score="the cat", trace=trace)
    found = formats.load(trace)
    assert found.tensors["decoder.0.cross.weights"].axes == ("batch", "head", "query", "source")
    assert found.labels["source"] == [
        ["▁le", "▁chat", "</s>", "<pad>", "<pad>"],
        ["▁le", "▁chat", "▁noir", "▁dort", "</s>"],
    ]
    attnkit.decode("Once upon", model=STORY, max_tokens=1, cache_out=cache)
    for more in (" time", [" time", " time there was"]):
        attnkit.decode(more, model=STORY, cache_in=cache, max_tokens=0, emit="logits", trace=trace)
        found = formats.load(trace)
        assert found.labels["token"] == (["Ġa", "Ġtime"] if isinstance(more, str) else found.labels["token"])
        shape = found["decoder.0.self.weights"].shape
        assert shape[0] == (1 if isinstance(more, str) else 2) and shape[-1] > shape[-2]
    with pytest.raises(DataError, match="a batch without rows"):
        attnkit.decode(Record({"ids": np.zeros((0, 3), int)}), model=STORY, max_tokens=0, emit="logits")


def test_every_text_of_a_batch_is_drawn_as_it_is_alone():
    both = attnkit.decode(["Once", "One day"], model=STORY, temperature=2.0, seed=3, max_tokens=4)
    for row, text in enumerate(["Once", "One day"]):
        alone = attnkit.decode(text, model=STORY, temperature=2.0, seed=3, max_tokens=4)
        np.testing.assert_array_equal(both["ids"][row], alone["ids"])


def test_a_mask_without_a_token_is_told():
    batch = attnkit.embed(["le chat", "le chat noir"], model=FRENCH)
    mask = batch["mask"].copy()
    mask[1] = False
    ids = Tensor(
        np.where(batch["mask"].reshape(batch["ids"].shape), batch["ids"], 0), batch.axes_of("ids")
    )  # padding is no id of the other model
    empty = Record({"ids": ids, "mask": Tensor(mask, batch.axes_of("mask"))})
    for model in (FRENCH, STORY):
        with pytest.warns(AttnkitWarning, match=r"1 row of the mask allows no key: .* \(first \[1\]\[0\]\)"):
            states = attnkit.encode(empty, model=model)
    for given in (empty, states if "memory" in states else empty):
        with pytest.raises(DataError, match="row 1 of the source has no token"):
            attnkit.decode(given, model=FRENCH)


def altered(folder, changes, source=STORY):
    """A copy of a model in which some weights, named by how their names end, have another value at a place."""
    shutil.copytree(source, folder / "copy")
    file = folder / "copy" / "model.safetensors"
    arrays = {name: array.copy() for name, array in load_file(file).items()}
    for end, (place, value) in changes.items():
        [name] = [name for name in arrays if name.endswith(end)]
        arrays[name][place] = value
    save_file(arrays, file)
    return str(folder / "copy")


def test_layers_that_are_not_read_are_told(tmp_path):
    model = altered(tmp_path, {})
    config = tmp_path / "copy" / "config.json"
    config.write_text(config.read_text().replace('"n_layer": 3', '"n_layer": 1'))
    said = "2 layers of the files are not read, which the configuration leaves out: transformer.h.1, transformer.h.2"
    for line in (f"attnkit encode --model {model} Once", f"attnkit decode --model {model} Once --max-tokens 2"):
        assert said in run(f"{line} -f json", tmp_path)[1]
        assert run(f"{line} -f json -q", tmp_path)[1] == ""
    shown = "".join(run(f"attnkit show {model}", tmp_path)[0].split())  # whose columns break names
    assert "notread–24of40tensors:transformer.h.1.attn.c_attn.bias," in shown and "and21more" in shown
    assert "not read" not in run(f"attnkit show {STORY}", tmp_path)[0]


def test_buffers_are_no_tensors_that_are_not_read():
    assert open_checkpoint(str(MODELS / "bert-old")).params.unused() == [
        "cls.seq_relationship.bias",
        "cls.seq_relationship.weight",
    ]
    for name in ("gpt2", "marian", "marian-native", "t5", "llama", "vit"):
        params = open_checkpoint(str(MODELS / name)).params
        assert params.unused() == [] and params.unread.beyond == {}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_named(tmp_path, value):
    model = altered(tmp_path, {"h.1.mlp.c_fc.weight": ((3, 4), value)})
    flaw = f"parameter decoder.1.ffn.w1 is {value} at [3][4]"
    with pytest.warns(AttnkitWarning, match=re.escape(f", first in decoder.1.ffn: {flaw}")):
        attnkit.encode("Once upon", model=model)
    for asked in ({}, {"beam": 2}, {"temperature": 1.0}):
        with pytest.raises(DataError, match=re.escape(f", first in decoder.1.ffn: {flaw}")):
            attnkit.decode("Once upon", model=model, **asked)
    with pytest.warns(AttnkitWarning, match=re.escape(f": {flaw}")):
        attnkit.ffn(attnkit.embed("Once", model=STORY), model=model, layer="decoder.1.ffn")
    with pytest.warns(AttnkitWarning, match=re.escape("wq of --params is nan at [0][0]")):
        weights = {name: np.full((4, 4), np.nan) for name in ("wq", "wk", "wv", "wo")}
        attnkit.attend(attnkit.embed("Once", dim=4), params=weights)


def test_a_result_beyond_its_dtype_names_the_layer(tmp_path):
    large = {f"h.1.mlp.c_proj.{end}": (..., 3e38) for end in ("weight", "bias")}
    model = altered(tmp_path, large, str(MODELS / "gpt2"))
    with pytest.warns(AttnkitWarning, match=r"first in decoder.1.ffn: outside the range of float32"):
        attnkit.encode(None, ids=np.array([1, 2]), model=model, layers=":2")


@pytest.mark.slow
def test_a_file_of_many_tensors_is_shown_as_a_list(tmp_path):
    attnkit.encode("Once upon", model=STORY, trace=str(tmp_path / "t.npz"))
    shown = run("attnkit show t.npz", tmp_path)[0]
    for said in (
        "decoder.0.self.weights",
        "(head 4, query 2, key 2)",
        "min",
        "max",
        "55 tensors",
        "t.npz:NAME shows one",
    ):
        assert said in shown
    assert len(shown.splitlines()) < 2 * 55 + 10
    assert run("attnkit show t.npz:decoder.norm", tmp_path)[0].startswith("decoder.norm (token 2, model 64)")
    assert run("attnkit show t.npz --only decoder.norm", tmp_path)[0].startswith("decoder.norm (token 2, model 64)")
    assert f"{STORY}:decoder.NAME shows one" in " ".join(run(f"attnkit show {STORY}:decoder", tmp_path)[0].split())
    assert "wq (model 64, heads 64)" in run(f"attnkit show {STORY}:decoder.0.self", tmp_path)[0]


ABLATED = {
    "decoder.0.self": ([0, 1, 2, 3], []),
    "decoder.0.self:1": ([1], []),
    "decoder.0.self:1,2": ([1, 2], []),
    "decoder.0.self:1:3,decoder.1.self": ([1, 2], [0, 1, 2, 3]),
    "decoder.0.self::2,3,decoder.1.self:2:": ([0, 1, 3], [2, 3]),
}


@pytest.mark.parametrize("asked", ABLATED)
def test_heads_are_switched_off_one_by_one_by_ranges_and_by_layers(tmp_path, asked):
    file = str(tmp_path / "t.npz")
    made = attnkit.encode("Once upon", model=STORY, ablate=asked, trace=file, trace_only="*.heads")
    trace = formats.load(file)
    for layer, heads in enumerate(ABLATED[asked]):
        assert [at for at, head in enumerate(trace[f"decoder.{layer}.self.heads"]) if not head.any()] == heads
    assert f"--ablate {asked}" in made.history[-1]["command"]
    _, *more = asked.split(",")
    if not more:
        return
    flags = " ".join(f"--ablate {part}" for part in asked.split(","))
    run(f"attnkit encode --model {STORY} 'Once upon' {flags} -o made.npz", tmp_path)
    np.testing.assert_array_equal(formats.load(str(tmp_path / "made.npz"))["x"], made["x"])


def test_segments_are_taken_by_their_published_name():
    ids, segments = np.array([1, 2, 3, 4]), np.array([0, 0, 1, 1])
    ours, published, none = (
        attnkit.encode(Record({"ids": ids} | named), model=str(MODELS / "bert"))["x"]
        for named in ({"types": segments}, {"token_type_ids": segments}, {})
    )
    np.testing.assert_array_equal(ours, published)
    assert not np.array_equal(ours, none)


@pytest.mark.slow
def test_ids_alone_may_be_of_a_batch_and_of_a_source(tmp_path):
    ids = attnkit.embed("One day", model=STORY)["ids"]
    np.savez(tmp_path / "ids.npz", ids=[ids, ids[::-1]])
    run(f"attnkit decode --model {STORY} < ids.npz -o made.npz", tmp_path)
    wanted = attnkit.decode(None, ids=np.stack([ids, ids[::-1]]), model=STORY)["x"]
    np.testing.assert_array_equal(formats.load(str(tmp_path / "made.npz"))["x"], wanted)
    line = f"attnkit embed --model {FRENCH} '{SOURCE}' --only ids | attnkit decode --model {FRENCH} --emit text"
    assert run(line, tmp_path)[0] == f"{TARGET}\n"
    assert run(f'attnkit run "{line.replace("attnkit ", "")}"', tmp_path)[0] == f"{TARGET}\n"
    np.save(tmp_path / "x.npy", np.zeros(3))
    assert "the record has no ids" in run(f"attnkit decode --model {STORY} < x.npy", tmp_path, 3)[1]


@pytest.mark.slow
def test_a_text_of_one_token_has_an_empty_row_of_scores(tmp_path):
    run(f"printf 'One day\\nOnce\\n' | attnkit decode --model {STORY} --batch --max-tokens 0 -o made.npz", tmp_path)
    made, alone = formats.load(str(tmp_path / "made.npz")), attnkit.decode("One day", model=STORY, max_tokens=0)
    np.testing.assert_array_equal(made["x"], [alone["x"], np.zeros_like(alone["x"])])
    assert made["mask"].tolist() == [[[True] * len(alone["x"])], [[False] * len(alone["x"])]]
    one = attnkit.decode("Once", model=STORY, max_tokens=0)
    assert [one[name].shape for name in ("x", "ids", "rank")] == [(0,)] * 3
    assert attnkit.decode(["Once", "Once"], model=STORY, max_tokens=0)["x"].shape == (2, 0)
    assert "0 tokens" in run(f"attnkit decode --model {STORY} Once --max-tokens 0 -f table", tmp_path)[0]


@pytest.mark.parametrize("emit", [None, "ids", "logits", "probs"])
@pytest.mark.parametrize("limit", [0, 8])
def test_a_batch_whose_rows_are_padded_has_a_mask(emit, limit):
    given = ["One day", "Every evening the bear"]
    made = attnkit.decode(given, model=STORY, max_tokens=limit, emit=emit, stop=["."])
    sizes = [len(attnkit.decode(text, model=STORY, max_tokens=limit, emit=emit, stop=["."])["x"]) for text in given]
    padded = sizes[0] != sizes[1]
    assert padded == ("mask" in made) and (padded or limit)
    if padded:
        assert made.axes_of("mask") == ("batch", "all queries", "key")
        assert made["mask"].dtype == bool and made["mask"].shape == (2, 1, max(sizes))
        assert made["mask"].sum(axis=-1)[:, 0].tolist() == sizes
        assert made.labels["key"] == made.labels["token"]


def test_texts_that_end_apart_have_a_mask():
    given = [SOURCE, "le chien mange"]
    made = attnkit.decode(given, model=FRENCH)
    assert made["mask"].sum(axis=-1)[:, 0].tolist() == [len(attnkit.decode(text, model=FRENCH)["x"]) for text in given]
    beams = attnkit.decode("le chat", model=FRENCH, beam=4, best=4)
    assert beams["mask"].shape == (4, 1, beams["x"].shape[1]) and beams.axes_of("mask")[0] == "beam"
    assert "mask" not in attnkit.decode(["le chat", "le chat"], model=FRENCH)


@pytest.mark.parametrize("tool", ["encode", "embed"])
def test_a_decoder_takes_no_pair(tool):
    with pytest.raises(UsageError, match="a gpt2 model takes one text, not a pair"):
        getattr(attnkit, tool)("the cat", pair="sat on", model=STORY)


@pytest.mark.parametrize("tool", ["encode", "embed"])
def test_a_second_text_goes_with_a_first(tool):
    with pytest.raises(UsageError, match="a second text needs a first"):
        getattr(attnkit, tool)(ids=[1, 2], pair="sat on", model=str(MODELS / "bert-mlm"))


def test_a_record_without_keys_is_no_cache(tmp_path):
    formats.save(attnkit.embed("the cat", dim=4), str(tmp_path / "x.npz"))
    with pytest.raises(DataError, match="no cache: it has no keys"):
        attnkit.decode("the cat", model=STORY, cache_in=str(tmp_path / "x.npz"))


def test_a_guess_that_is_a_special_token_is_seen(tmp_path):
    name = str(MODELS / "bert-mlm")
    made = attnkit.decode("the [MASK] sat", model=name)
    guess = made.labels["vocab"][made["next"][2]]
    assert attnkit.decode("the [MASK] sat", model=name, emit="text") == f"the {guess} sat"


def test_a_causal_mask_is_no_padding_of_a_prompt():
    ids = attnkit.embed("Once upon a", model=STORY)["ids"]
    masked = Record({"ids": Tensor(ids, ("token",)), "mask": Tensor(np.tri(3, dtype=bool), ("query", "key"))})
    plain = attnkit.decode(Record({"ids": ids}), model=STORY, max_tokens=2)
    np.testing.assert_array_equal(attnkit.decode(masked, model=STORY, max_tokens=2)["x"], plain["x"])
