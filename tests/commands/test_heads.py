"""The tool heads: traces, streams and batches of texts, the weights of models; the same in shell, run and Python."""

from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.errors import DataError, UsageError
from attnkit.interpret.head_scores import score_records
from attnkit.records import Record, Tensor
from tests import process
from tests.places import STORY

ROOT = Path(__file__).parent.parent
TEXTS = ["Once upon a time there was a fox.", "the fox looked at the fox", "the", "Every evening the bear read a book."]
FROZEN = np.load(ROOT / "references" / "interpretability.npz")


@pytest.fixture(scope="module")
def records():
    return [attnkit.encode(text, model=STORY, keep="*.self.weights") for text in TEXTS]


@pytest.mark.parametrize(("model", "hint"), [("lstm", ""), ("seq2seq", "a decoder that attends")])
def test_a_recurrent_model_has_no_heads_of_self_attention(model, hint, tmp_path):
    folder = str(ROOT / "references" / "models" / model)
    for arguments in ([], ["je suis un chat"]):
        ran = process.run("heads", "--model", folder, *arguments)
        assert ran.code == 2 and f"this {model} model has no heads of self-attention" in ran.err and hint in ran.err


def test_the_alignments_of_a_recurrent_decoder_are_a_head(tmp_path):
    folder, file = str(ROOT / "references" / "models" / "seq2seq"), str(tmp_path / "run.npz")
    memory = attnkit.encode("je suis un chat", model=folder)
    attnkit.decode(memory, model=folder, score="I am a cat", trace=file)
    record = formats.load(file)
    table = attnkit.heads(record)
    assert table.labels["head"] == ["decoder.cross:0"]
    weights = record["decoder.cross.weights"][0]
    entropy = -(weights * np.log(weights)).sum(axis=-1).mean()
    assert table["x"][0, table.labels["score"].index("entropy")] == pytest.approx(entropy)
    assert table["x"][0, table.labels["score"].index("largest")] == weights.max()


@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_weights_say_what_transformer_lens_says(model):
    """Copying and composition scores of GPT-2, and of Llama, whose queries share keys and values."""
    table = attnkit.heads(model=str(ROOT / "references" / "models" / model))
    np.testing.assert_allclose(table["x"][:, 0], FROZEN[f"{model}.copying"].ravel(), atol=1e-5)
    for mode in "qkv":
        theirs = FROZEN[f"{model}.{mode}"].reshape(8, 8).T  # (head, earlier), 0 where there is none
        np.testing.assert_allclose(np.nan_to_num(table[f"composition.{mode}"]), theirs, atol=1e-5)
    assert np.array_equal(np.isnan(table["composition.q"]), np.arange(8)[:, None] // 4 <= np.arange(8) // 4)


def test_the_copying_score_is_that_of_the_whole_circuit():
    """The eigenvalues of the matrix (vocab, vocab) itself, which is never computed."""
    from attnkit.checkpoints import open_checkpoint

    folder = str(ROOT / "references" / "models" / "llama3")  # of 60 words
    checkpoint = open_checkpoint(folder)
    attention, table = (checkpoint.params[name] for name in ("decoder.1.self", "decoder.embed"))
    width, heads = checkpoint.config.decoder.head_dim, checkpoint.config.decoder.heads
    values, output = attention["wv"][:, :width], attention["wo"][:width]
    circuit = table["table"] @ values @ output @ checkpoint.params["head"]["w"]
    eigenvalues = np.linalg.eigvals(circuit.astype(np.float64))
    copying = attnkit.heads(model=folder)["x"][heads, 0]
    np.testing.assert_allclose(eigenvalues.sum().real / np.abs(eigenvalues).sum(), copying, atol=1e-5)


def test_a_stream_is_the_mean_of_its_texts_and_a_batch_is_its_stream(records):
    stream = attnkit.heads(records)
    each = np.stack([attnkit.heads(record)["x"] for record in records])
    np.testing.assert_allclose(stream["x"][:, :7], each[..., :7].mean(axis=0), rtol=1e-12)
    np.testing.assert_array_equal(stream["x"][:, 7], np.nanmax(each[..., 7], axis=0))
    assert stream["texts"] == 4 and stream["pair"][:, 0].max() == 3
    batch = attnkit.heads(attnkit.encode(TEXTS, model=STORY, batch=True, keep="*.self.weights"))
    np.testing.assert_allclose(batch["x"], stream["x"], atol=1e-6)
    assert batch.labels == stream.labels and np.array_equal(batch["pair"], stream["pair"])
    np.testing.assert_allclose(batch["kind"], stream["kind"], atol=1e-6)


def test_a_trace_of_a_batch_has_no_mask_and_the_same_scores(tmp_path):
    """Its padding is known by the keys that no query attends to; tokens by their labels, not their ids."""
    kept = attnkit.encode(TEXTS, model=STORY, batch=True, keep="*.self.weights", trace=str(tmp_path / "run.npz"))
    trace = attnkit.formats.load(tmp_path / "run.npz")
    assert "mask" in kept and "mask" not in trace and "ids" not in trace
    np.testing.assert_array_equal(attnkit.heads(trace)["x"], attnkit.heads(kept)["x"])


def test_words_of_the_largest_pair(records):
    table = attnkit.heads(records)
    for (text, query, key), pair, head, x in zip(
        table["pair"], table.labels["pair"], table.labels["head"], table["x"], strict=True
    ):
        words = records[text].labels["key"]
        assert pair == f"{words[query]} → {words[key]}"
        layer, _, number = head.rpartition(":")
        assert records[text][f"{layer}.weights"][int(number), query, key] == np.float32(x[7])


def test_sorted_rows(records):
    whole, top = attnkit.heads(records), attnkit.heads(records, sort="entropy", top=3)
    order = np.argsort(-whole["x"][:, 5], kind="stable")[:3]
    assert top.labels["head"] == [whole.labels["head"][at] for at in order]
    assert top.labels["kind"] == [whole.labels["kind"][at] for at in order]
    for name in ("x", "kind", "pair"):
        np.testing.assert_array_equal(top[name], whole[name][order])
    assert attnkit.heads(model=STORY, sort="q")["x"][-4:, 1].tolist() == pytest.approx([np.nan] * 4, nan_ok=True)


def test_records_are_read_one_at_a_time():
    """No record is held while the next is read, beyond the first two."""
    alive = []

    class Marked(Record):
        def __del__(self):
            alive.remove(self["number"].item())

    def stream():
        for number in range(20):
            alive.append(number)
            assert len(alive) <= 5, alive
            weights = Tensor(np.eye(4)[None], ("head", "query", "key"))
            yield Marked({"weights": weights, "number": np.array(number)})

    assert score_records(stream())["texts"] == 20


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"sort": "copying"}, "--sort: copying: these heads have previous, first"),
        ({"model": STORY}, "needs a trace or a model, not both"),
    ],
)
def test_refused_options(records, values, problem):
    with pytest.raises(UsageError, match=problem):
        attnkit.heads(records[0], **values)
    with pytest.raises(UsageError, match="needs a trace or a model"):
        attnkit.heads()


def test_a_record_without_weights_is_refused(records):
    with pytest.raises(DataError, match="no weights of attention; encode or decode --trace FILE"):
        attnkit.heads(records[0].select(["x"]))
    with pytest.raises(DataError, match=r"record 2 has weights \(2 heads\), the first decoder.0.self \(4"):
        attnkit.heads([records[0], Record({"weights": np.ones((2, 1, 1))})])


def test_many_heads_have_a_grid_of_their_kinds_first():
    """30 layers of 2 heads: the first attends to the token before, the second evenly."""
    before, even = np.eye(8, k=-1), np.tri(8)
    before[0, 0] = 1
    weights = np.stack([before, even / even.sum(-1, keepdims=True)])
    trace = Record({f"decoder.{n}.self.weights": Tensor(weights, ("head", "query", "key")) for n in range(30)})
    source = b"".join(map(bytes, formats.encode(trace, "npz")))
    shown = process.run("heads", "-f", "table", stdin=source).out.decode()
    lines = shown.splitlines()
    assert lines[:4] == ["kinds of decoder.N.self:H", "layer  0  1", "───────────", "0      p  b"]
    assert lines[32:35] == ["29     p  b", "p previous: 30, b broad: 30", ""]
    assert "kinds of" not in process.run("heads", "--top", "8", "-f", "table", stdin=source).out.decode()
