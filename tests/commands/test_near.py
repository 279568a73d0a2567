"""The tool near: sentences and words, indices of every format, streams; the same in shell, run and Python."""

import json
import sys
import tempfile

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.errors import AttnkitWarning, DataError, FileError, UsageError
from attnkit.records import Record, Tensor
from tests import process

VECTORS = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
WORDS = [f"word {at}" for at in range(20)]
INDEX = Record({"x": Tensor(VECTORS, ("batch", "model")), "ids": np.zeros((20, 3), int)}, {"batch": WORDS})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for suffix in ("npz", "npy", "json", "safetensors"):
        formats.save(INDEX if suffix != "npy" else Record({"x": VECTORS}), f"index.{suffix}")
    np.savez("numpy.npz", VECTORS)
    return tmp_path


@pytest.mark.parametrize("file", ["index.npz", "index.npy", "index.json", "index.safetensors", "numpy.npz"])
def test_an_index_of_any_format(folder, file):
    result = attnkit.near(VECTORS[3] * 5, index=file, top=2)
    assert result["rows"][0] == 3 and result["x"].shape == (2,)
    assert result["x"][0] == pytest.approx(1)
    has_labels = file not in ("index.npy", "numpy.npz")
    assert result.labels == ({"rows": [WORDS[at] for at in result["rows"]]} if has_labels else {})
    [(name, digest)] = result.history[-1]["files"].items()
    assert name == file and len(digest) == 64
    again = attnkit.near(VECTORS[3] * 5, index=attnkit.formats.load(file), top=2)
    assert np.array_equal(again["rows"], result["rows"])


def test_queries_of_any_shape():
    one = attnkit.near(VECTORS[5], index=INDEX, top=3)
    rows = attnkit.near(
        Record({"x": Tensor(VECTORS[:6], ("batch", "model"))}, {"batch": list("abcdef")}), index=INDEX, top=3
    )
    cube = attnkit.near(VECTORS[:6].reshape(2, 3, 4), index=INDEX, top=3)
    assert one["x"].shape == (3,) and one.axes_of("x") == ("rank",)
    assert rows["x"].shape == cube["x"].shape == (6, 3)
    assert rows.axes_of("rows") == ("batch", "rank") and cube.axes_of("x") == ("query", "rank")
    assert np.array_equal(rows["x"], cube["x"]) and np.array_equal(rows["x"][5], one["x"])
    assert rows.labels["rows"] == cube.labels["rows"] and rows.labels["rows"][5] == one.labels["rows"]
    assert rows.labels["batch"] == list("abcdef")


def test_tokens_of_a_batch_keep_their_words():
    record = attnkit.embed(["a cat", "a dog"], dim=4, batch=True)
    result = attnkit.near(record, index=record["table"], top=1, metric="euclidean")
    assert result.labels["query"] == ["a", "cat", "a", "dog"] and result["x"].tolist() == [[0.0]] * 4
    assert result["rows"].ravel().tolist() == record["ids"].ravel().tolist()


def test_words_by_meaning_from_the_record_itself():
    done = process.bash("attnkit embed 'The cat sat' --dim 4 | attnkit near --index :table --top 1 --only x,rows")
    assert done.code == 0
    assert json.loads(done.out)["labels"]["rows"] == [["The"], ["cat"], ["sat"]]


@pytest.mark.parametrize("how", ["--index <(cat index.npz)", "--index - < index.npz", "--index index.npz:x"])
def test_where_an_index_comes_from(folder, how):
    np.save("query.npy", VECTORS[7])
    done = process.bash(f"attnkit near query.npy {how} --top 1 -f json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["labels"]["rows"] == ["word 7"]


def test_one_vector_is_an_index_as_a_stream_of_one_line_is(folder):
    assert attnkit.near(VECTORS[0], index=VECTORS[0])["rows"].tolist() == [0]
    record = Record({"x": Tensor(VECTORS[0], ("model",))}, {"batch": ["a line"]})
    formats.save(record, "line.npz")
    done = process.run("near", "line.npz", "--index", "line.npz", "-f", "tsv")
    assert done.out == b"query\trank\tcosine\trow\tlabel\n\t0\t1.0\t0\ta line\n"


def test_a_stream_of_queries_and_a_stream_as_index(folder):
    with open("stream.npy", "wb") as file:
        for vector in VECTORS:
            np.save(file, vector)
    done = process.bash("attnkit near stream.npy --index stream.npy --top 1 -f json")
    assert done.code == 0
    assert [json.loads(line)["tensors"]["rows"]["data"] for line in done.out.splitlines()] == [[at] for at in range(20)]


@pytest.mark.parametrize(
    ("query", "index", "options", "error", "problem"),
    [
        (VECTORS[0, :3], VECTORS, {}, DataError, "x (3,): expected vectors of 4, as those of the index (20, 4)"),
        (VECTORS[:0], VECTORS, {}, DataError, "x (0, 4): there are no vectors in it"),
        (VECTORS[0], VECTORS, {"metric": "cosin"}, UsageError, "did you mean cosine?"),
        (VECTORS[0], VECTORS[0, 0], {}, DataError, "x (): expected (N, D), a vector in each row"),
        (VECTORS[0], VECTORS[:0], {}, DataError, "x (0, 4): there are no vectors in it"),
        (VECTORS[0], VECTORS[None, None], {}, DataError, "x (1, 1, 20, 4): expected (N, D), a vector in each row"),
        (VECTORS[0] * np.nan, VECTORS, {}, DataError, "query 0 has nan"),
        (VECTORS[0], np.vstack([VECTORS, VECTORS[:1] * np.inf]), {}, DataError, "row 20 has "),
        (VECTORS[0], "missing.npz", {}, FileError, "No such file"),
        (VECTORS[0], "index.npz:token", {}, DataError, "token"),
    ],
)
def test_bad_input(folder, query, index, options, error, problem):
    with pytest.raises(error) as caught:
        attnkit.near(query, index=index, **options)
    assert problem in str(caught.value) and "\n" not in str(caught.value)


def test_an_index_of_fewer_rows_than_top_has_all_of_them():
    assert attnkit.near(VECTORS[0], index=VECTORS[:3])["rows"].tolist()[0] == 0
    assert attnkit.near(VECTORS[:2], index=VECTORS[:3])["x"].shape == (2, 3)  # the default is 5
    assert attnkit.near(VECTORS[0], index=VECTORS[:3], top=99)["x"].shape == (3,)


STORY, FRENCH = "samples/data/story", "samples/data/fr-en"


def test_words_of_a_model():
    """The rows of the stored table, with the tokens as labels."""
    record = attnkit.embed(" fox", model=STORY)
    result = attnkit.near(record, index=STORY)
    table = attnkit.formats.load(f"{STORY}/model.safetensors")["transformer.wte.weight"].astype(np.float64)
    cosines = table @ table[278] / np.linalg.norm(table, axis=1) / np.linalg.norm(table[278])
    assert result["rows"].tolist() == [np.argsort(-cosines, kind="stable")[:5].tolist()]
    np.testing.assert_allclose(result["x"], [np.sort(cosines)[::-1][:5]], rtol=1e-6)
    assert result.labels["rows"] == [["Ġfox", "Ġrobot", "Ġcat", "Ġbear", "Ġgirl"]]
    files = result.history[-1]["files"]
    assert f"{STORY}/model.safetensors" in files and all(len(digest) == 64 for digest in files.values())


@pytest.mark.parametrize(
    ("model", "layer", "index"),
    [
        (FRENCH, None, FRENCH),  # a scaled embedding
        (FRENCH, "decoder.embed", f"{FRENCH}:decoder.embed"),
        ("tests/references/models/bert", None, "tests/references/models/bert"),  # segments are added
        ("tests/references/models/lstm", None, "tests/references/models/lstm"),
        ("tests/transcripts/inputs/clip", None, "tests/transcripts/inputs/clip:text"),
        ("tests/transcripts/inputs/whisper", "decoder.embed", "tests/transcripts/inputs/whisper:decoder.embed"),
    ],
)
def test_the_rows_of_a_model_are_what_embed_gives(model, layer, index):
    record = attnkit.embed(ids=np.array([5, 8]), model=model, layer=layer)
    result = attnkit.near(record, index=index, top=1, metric="euclidean")
    assert result["x"].tolist() == [[0], [0]] and result["rows"].tolist() == [[5], [8]]


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("whisper", "a whisper model embeds sounds, and has no vectors of words; .*whisper:decoder.embed has those"),
        ("wav2vec2", "a wav2vec2 model embeds sounds, and has no vectors of words$"),
        ("clip:vision", "a clip_vision_model model embeds images, and has no vectors of words$"),
    ],
)
def test_models_without_words(model, problem):
    with pytest.raises(DataError, match=problem):
        attnkit.near(np.ones(4), index=f"tests/transcripts/inputs/{model}")


def test_rows_of_zeros_are_a_warning():
    vectors = np.vstack([VECTORS, np.zeros((2, 4), np.float32)])
    with pytest.warns(AttnkitWarning, match="2 rows of the index are all zeros, with a cosine of 0"):
        result = attnkit.near(VECTORS[0], index=vectors, top=22)
    assert {20, 21} <= set(result["rows"].tolist())
    attnkit.near(VECTORS[0], index=vectors, top=22, metric="dot")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
def test_memory_does_not_grow_with_the_index(folder, suffix):
    """A file of 84 MB, in a process of its own: little more than the libraries."""
    vectors = np.random.default_rng(0).standard_normal((70_000, 300), dtype=np.float32)
    np.save("query.npy", vectors[7])
    formats.save(Record({"x": vectors}), f"large.{suffix}")
    del vectors
    code = (
        "import subprocess, sys, resource; "
        f"subprocess.run([sys.executable, '-m', 'attnkit', 'near', 'query.npy', '--index', 'large.{suffix}', "
        "'--top', '1', '-f', 'csv'], check=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = process.run_command([sys.executable, "-c", code], env=process.FEW_THREADS)
    *_, row, peak = done.out.decode().split("\n")[:-1]
    assert row.split(",")[3] == "7" and int(peak) < 130 << 10


def test_texts_of_an_index_of_lines_are_labels(tmp_path):
    lines = [Record({"x": Tensor(x, ("model",))}, {"batch": [text]}) for x, text in zip(np.eye(2), "ab", strict=True)]
    (tmp_path / "index.npz").write_bytes(b"".join(b"".join(formats.encode(line, "npz")) for line in lines))
    found = attnkit.near(Record({"x": np.array([0.1, 0.9])}), index=str(tmp_path / "index.npz"), top=2)
    assert found.labels["rows"] == ["b", "a"]


def stream_of(path, vectors):
    """Write each vector as a record of its own, labelled with its number."""
    with open(path, "wb") as file:
        for at, x in enumerate(vectors):
            file.writelines(formats.encode(Record({"x": Tensor(x, ("model",))}, {"batch": [f"text {at}"]}), "npz"))


def test_a_stream_is_the_index_of_its_vectors(folder):
    vectors = np.random.default_rng(3).standard_normal((700, 6), dtype=np.float32)
    stream_of("index.npz", vectors)
    one, query = Record({"x": vectors}), Record({"x": vectors[[5, 699]] + np.float32(0.1)})
    for metric in ("cosine", "dot", "euclidean"):
        ours, whole = (attnkit.near(query, index=index, top=3, metric=metric) for index in ("index.npz", one))
        for name in ("x", "rows"):
            np.testing.assert_array_equal(ours[name], whole[name])
        assert ours.labels["rows"] == [[f"text {at}" for at in row] for row in whole["rows"]]


def test_a_stream_has_vectors_of_one_width_and_dtype(folder):
    for second in (np.ones(3, np.float32), np.ones(2)):
        stream_of("index.npz", [np.ones(2, np.float32), second])
        problem = rf"x \({len(second)},\) of record 1, {second.dtype}: expected \(N, 2\), float32"
        with pytest.raises(DataError, match=problem):
            attnkit.near(Record({"x": np.ones(2)}), index="index.npz")


def test_records_without_rows_add_none(folder):
    empty, one = Record({"x": np.empty((0, 2))}), Record({"x": np.eye(2)})
    for records, rows in [([empty, one, empty], 2), ([empty, empty], 0)]:
        with open("index.npz", "wb") as file:
            for record in records:
                file.writelines(formats.encode(record, "npz"))
        if rows:
            assert attnkit.near(one, index="index.npz")["rows"].tolist() == [[0, 1], [1, 0]]
        else:
            with pytest.raises(DataError, match=r"index.npz: there are no vectors in its records"):
                attnkit.near(one, index="index.npz")


@pytest.mark.linux
def test_a_stream_needs_room_for_its_vectors(folder, monkeypatch):
    stream_of("index.npz", np.ones((2, 2)))
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda buffering: open("/dev/full", "wb", buffering))  # noqa: SIM115
    with pytest.raises(FileError, match=r"--index: no room for vectors in .*: No space left on device"):
        attnkit.near(Record({"x": np.ones(2)}), index="index.npz")


@pytest.mark.slow
def test_memory_does_not_grow_with_a_stream(folder):
    """4,000 records of 40 kB, 160 MB: little more than a block and the libraries."""
    stream_of("index.npz", np.random.default_rng(0).standard_normal((4000, 10_000), dtype=np.float32))
    np.save("query.npy", np.ones(10_000, np.float32))
    code = (
        "import subprocess, sys, resource; "
        "subprocess.run([sys.executable, '-m', 'attnkit', 'near', 'query.npy', '--index', 'index.npz', '-f', 'csv'], "
        "check=True); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = process.run_command([sys.executable, "-c", code], env=process.FEW_THREADS)
    assert int(done.out.decode().split("\n")[-2]) < 170 << 10
