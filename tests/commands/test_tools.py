"""The tools as functions: what each adds to the arithmetic it calls, record in, record out."""

from pathlib import Path

import numpy as np
import pytest

import attnkit
from attnkit import formats, model
from attnkit.cli import pipeline
from attnkit.errors import DataError, FileError, UsageError
from tests.commands.records import CAT, of, read_back

RNG = np.random.default_rng(2017)
X = RNG.standard_normal((2, 5, 8))


class TestCommon:
    def test_only_keeps_these_tensors_and_their_labels(self):
        record = attnkit.attend(attnkit.embed("a b", dim=4), keep="weights", only="weights")
        assert list(record) == ["weights"] and set(record.labels) == {"query", "key"}
        with pytest.raises(DataError, match="no tensor 'y'"):
            attnkit.attend(of(CAT), only="y")

    @pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
    def test_dtype_converts_before(self, dtype):
        record = attnkit.layernorm(attnkit.embed("a b", dim=4), dtype=dtype)
        assert record["x"].dtype.name == dtype

    def test_arrays_lists_and_numbers_of_python_are_taken_as_they_are(self):
        assert np.array_equal(attnkit.attend(CAT)["x"], attnkit.attend(of(CAT))["x"])
        assert attnkit.layernorm([[2, 4, 6, 8]])["x"].shape == (1, 4)
        assert np.array_equal(attnkit.mask(size=3, causal=True)["x"], attnkit.mask(size="3", causal=True)["x"])
        assert attnkit.posenc(size=4, dim=6)["x"].shape == (4, 6)
        with pytest.raises(UsageError, match="heads: expected a whole number of at least 1, got 0"):
            attnkit.attend(CAT, heads=0)
        assert list(of(CAT, mask=[1])) == ["x", "mask"] and len(of(CAT)) == 1
        assert repr(of(CAT)) == "<Record: x (3, 4) float64>"

    def test_a_file_of_python_is_that_of_the_command_line(self, here):
        formats.save(attnkit.embed("a b", dim=4), "r.npz")
        np.save("x.npy", CAT)
        for number in "12":
            formats.save(attnkit.attend("r.npz", partial=True), f"part{number}.npz")
        for item, line in (
            ("r.npz", "layernorm r.npz"),
            (Path("x.npy"), "layernorm x.npy"),
            ("r.npz:table", "layernorm r.npz:table"),
            (["part1.npz", Path("part2.npz")], "merge part1.npz part2.npz"),
        ):
            (shell,) = list(pipeline.chain_stages(pipeline.parse_stages(f"{line} -f json")).items)
            record = getattr(attnkit, line.split()[0])(item)
            assert record.history == shell.history and record["x"].tobytes() == shell["x"].tobytes()
        (entry,) = attnkit.layernorm(Path("x.npy")).history
        assert entry["command"] == "attnkit layernorm x.npy" and [*entry["files"]] == ["x.npy"]
        assert np.array_equal(attnkit.attend("x.npy", memory=Path("x.npy"))["x"], attnkit.attend(CAT, memory=CAT)["x"])
        with pytest.raises(FileError, match="nosuch: No such file"):
            attnkit.attend("nosuch")
        formats.save(of(CAT), "stream.json")
        Path("stream.json").write_text(Path("stream.json").read_text() * 2)
        with pytest.raises(DataError, match=r"stream\.json: 2 records \(expected 1\)"):
            attnkit.attend("stream.json")

    def test_one_part_of_python_is_merged_as_one_of_a_pipe(self):
        part = attnkit.attend(of(CAT), partial=True)
        one, listed = attnkit.merge(part), attnkit.merge([part])
        assert one.history == listed.history and np.array_equal(one["x"], part["x"])

    def test_a_flag_of_the_command_line_is_named(self):
        with pytest.raises(UsageError, match="decode takes no 'lines' from Python: it is for the command line"):
            attnkit.decode(of(CAT), lines=True)

    def test_names_of_whole_models_are_names_of_the_package(self):
        assert model.CachedDecoder is model.whole_models.CachedDecoder
        with pytest.raises(AttributeError, match="has no attribute 'missing'"):
            model.missing  # noqa: B018

    def test_a_star_import_has_every_name(self):
        names: dict[str, object] = {}
        exec("from attnkit.model import *", names)
        assert {"attention", "tiled_attention", "merge_partial_attention", "weight_stats", "KVCache"} <= {*names}

    def test_integers_compute_in_float64(self):
        assert attnkit.layernorm(of([[1, 2]]))["x"].dtype == np.float64

    def test_nothing_is_written_into_an_input(self):
        x = X.copy()
        record = of(x)
        attnkit.decode(
            attnkit.ffn(attnkit.layernorm(attnkit.attend(attnkit.posenc(record))), hidden=2),
            params={"w": np.ones((8, 2))},
        )
        assert np.array_equal(x, X) and list(record) == ["x"] and record.history == []

    def test_history_names_what_is_not_a_default(self):
        record = attnkit.attend(attnkit.embed("it's", dim=4), heads=2, causal=True, window="-1,0")
        assert [entry["command"] for entry in record.history] == [
            """attnkit embed 'it'"'"'s' --dim 4 --seed 0""",
            "attnkit attend --heads 2 --causal --window -1,0",
        ]
        assert {entry["version"] for entry in record.history} == {attnkit.__version__}

    @pytest.mark.parametrize("texts", ["", ("", "")])
    def test_a_text_without_words_is_empty_at_every_stage(self, texts):
        none = attnkit.embed(texts, dim=4)
        shape = (2, 0) if texts else (0,)
        assert none["x"].shape == (*shape, 4) and none.labels["vocab"] == []
        assert none.labels["token"] == ([[], []] if texts else [])
        out = attnkit.attend(attnkit.mask(attnkit.posenc(none), causal=True), heads=2, seed=1)
        out = attnkit.ffn(attnkit.layernorm(out), hidden=8)
        for given in ({}, {"seed": 1, "top_k": 2}, {"top_p": 0.5, "min_p": 0.1}, {"temperature": 2.0}):
            assert attnkit.decode(out, **given)["next"].shape == shape
        assert attnkit.decode(out, emit="text") == ("\n" if texts else "")
        assert read_back(out).labels["token"] == none.labels["token"]

    @pytest.mark.parametrize("pool", ["cls", "pooler"])
    def test_a_text_without_words_has_no_first_token(self, pool):
        folder = Path(__file__).parents[1] / "references" / "models" / "bert"
        with pytest.raises(DataError, match=r"x \(0,\d+\) has no tokens"):
            attnkit.encode(of(np.zeros((0,), np.int64)), model=folder, pool=pool)

    @pytest.mark.parametrize("shape", [(0, 4), (2, 0, 4), (1, 4)])
    def test_empty_and_single_inputs_flow(self, shape):
        record = of(np.ones(shape))
        for tool, given in (
            ("posenc", {}),
            ("mask", {"causal": True}),
            ("attend", {"heads": 2}),
            ("layernorm", {}),
            ("ffn", {"hidden": 3}),
        ):
            record = getattr(attnkit, tool)(record, **given)
            assert record["x"].shape == shape
        assert formats.round_trip(record, "json")["x"].shape == shape
