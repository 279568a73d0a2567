"""The tool recall: sources, weights, rules, heads, padding, states in files, one token explained, gradients, costs."""

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.errors import DataError, UsageError
from attnkit.inputs.recall_stage import PARAMETERS
from attnkit.model.formulas.recall import RULES, Memory, linear_attention, retnet_decay
from attnkit.records import Record, Tensor
from tests.commands.records import of, read_back

RNG = np.random.default_rng(2024)
X = RNG.standard_normal((3, 7, 6))
LENGTHS = np.array([7, 2, 5])
MASK = Tensor((np.arange(7) < LENGTHS[:, None])[:, None], ("batch", "all queries", "key"))
SIZES = {"query": 6, "key": 6, "value": 6, "keys": 4, "values": 8, "heads": 4, "steps": 4, "out": 5}


def weights(**sizes):
    own = SIZES | sizes
    return {name: RNG.standard_normal([own[axis] for axis in axes]) / 2 for name, axes in PARAMETERS.items()}


def heads(x, count):
    """(B, T, D) -> (B, H, T, K)"""
    return np.moveaxis(x.reshape(*x.shape[:-1], count, -1), -2, 1)


def test_queries_keys_and_values_by_hand():
    """A layer of gated delta networks: two heads of keys, each for two heads of values, one after the other."""
    params = weights()
    record = attnkit.recall(of(X), rule="gated-delta", heads=4, key_heads=2, feature="unit", scale=0.5, params=params)

    def project(letter):
        return X @ params[f"w{letter}"] + params[f"b{letter}"]

    q, k = (heads(project(letter), 2) for letter in "qk")
    q, k = (one / np.sqrt((one * one).sum(-1, keepdims=True) + 1e-6) for one in (q, k))
    q, k = (np.stack([one[:, 0], one[:, 0], one[:, 1], one[:, 1]], axis=1) for one in (q * 0.5, k))
    beta = 1 / (1 + np.exp(-(X @ params["wbeta"] + params["bbeta"])))
    step = np.log1p(np.exp(X @ params["wdt"] + params["dt_bias"]))
    decay = np.exp(-np.exp(params["A_log"]) * step)
    v = heads(project("v"), 4)
    memory = Memory(q, k, v, np.moveaxis(decay, 2, 1)[..., None], np.moveaxis(beta, 2, 1), True)
    read = linear_attention(memory)["output"] + params["D"][:, None, None] * v
    expected = np.moveaxis(read, 1, 2).reshape(3, 7, 8) @ params["wo"] + params["bo"]
    np.testing.assert_allclose(record["x"], expected, rtol=0, atol=1e-12)


def test_mamba2_takes_its_strength_and_its_decay_from_one_step():
    params = weights()
    found = attnkit.recall(of(X[0]), rule="mamba2", heads=4, key_heads=1, params=params, keep="beta,decay")
    step = np.log1p(np.exp(X[0] @ params["wdt"] + params["dt_bias"])).T
    np.testing.assert_allclose(found["beta"], step)
    np.testing.assert_allclose(found["decay"], np.exp(-step * np.exp(params["A_log"])[:, None]))
    given = attnkit.recall(of(X[0]), rule="mamba2", heads=4, key_heads=1, params=params, beta=step)
    np.testing.assert_allclose(given["x"], found["x"])


def test_a_decay_for_each_row_of_the_state_by_weights_and_as_it_is_given():
    params = weights(steps=8)
    found = attnkit.recall(of(X), rule="decay", heads=4, key_heads=2, params=params, keep="decay")
    assert found["decay"].shape == (3, 4, 7, 2)
    assert found.axes_of("decay") == ("batch", "head", "token", "key_dim")
    given = attnkit.recall(of(X), rule="decay", heads=4, key_heads=2, params=params, decay=found["decay"])
    np.testing.assert_allclose(given["x"], found["x"], rtol=0, atol=1e-14)


def test_retnet_has_a_fixed_factor_for_each_head():
    record = attnkit.recall(of(X[0]), rule="retnet", heads=2, keep="decay")
    assert record["decay"].tolist() == [[0.96875] * 7, [0.984375] * 7]
    assert retnet_decay(3)[2] == 1 - 1 / 128


def test_divided_by_the_sum_of_keys_is_an_average_of_values():
    """With features of elu, and equal keys, a query reads the mean of the values up to its own."""
    v = np.array([[1.0], [2.0], [6.0]])
    same = np.ones((3, 2))
    found = attnkit.recall(of(same), value=v, feature="elu", divide=True)
    np.testing.assert_allclose(found["x"].ravel(), [1, 1.5, 3])
    zero = attnkit.recall(of(np.zeros((2, 2))), divide=True)["x"]
    assert (zero == 0).all()


def test_gates_of_the_record_are_read_by_rules_that_have_them():
    beta, decay = RNG.uniform(0, 1, (2, 7))
    record = of(X[0], beta=beta, decay=decay)
    found = attnkit.recall(record, rule="gated-delta")["x"]
    assert np.array_equal(found, attnkit.recall(of(X[0]), rule="gated-delta", beta=beta, decay=decay)["x"])
    assert np.array_equal(attnkit.recall(record)["x"], attnkit.recall(of(X[0]))["x"])
    ones = {"beta": np.array(1.0), "decay": np.array(1.0)}
    delta = attnkit.recall(of(X[0]), rule="delta")["x"]
    np.testing.assert_allclose(attnkit.recall(of(X[0]), rule="gated-delta", **ones)["x"], delta)


@pytest.mark.parametrize("rule", RULES)
def test_chunks_and_two_halves_give_the_whole(rule, tmp_path):
    options = {"rule": rule, "heads": 2, "seed": 3, "feature": "unit"}
    whole = attnkit.recall(of(X), **options)["x"]
    for size in (1, 3, 64):
        chunks = attnkit.recall(of(X), **options, chunk=size)["x"]
        assert np.abs(chunks - whole).max() <= 1e-12 * np.abs(whole).max()
    for chunk in ({}, {"chunk": 2}):
        state = str(tmp_path / "state.npz")
        first = attnkit.recall(of(X[:, :3]), **options, **chunk, state_out=state)["x"]
        rest = attnkit.recall(of(X[:, 3:]), **options, **chunk, state_in=state, state_out=state)["x"]
        assert np.abs(np.concatenate([first, rest], axis=1) - whole).max() <= 1e-12 * np.abs(whole).max()
        assert formats.load(state)["position"] == 7
    assert list(formats.load(state)) == ["state", "position"]


def test_the_sum_of_keys_is_continued_too(tmp_path):
    options = {"feature": "elu", "divide": True, "heads": 3}
    state = str(tmp_path / "state.npz")
    whole = attnkit.recall(of(X[0]), **options)["x"]
    first = attnkit.recall(of(X[0, :3]), **options, state_out=state)["x"]
    file = formats.load(state)
    assert file["state"].shape == (3, 2, 2)
    np.testing.assert_allclose(file["sum"], np.where(X[0, :3] > 0, X[0, :3] + 1, np.exp(X[0, :3])).sum(0).reshape(3, 2))
    rest = attnkit.recall(of(X[0, 3:]), **options, state_in=state)["x"]
    assert np.array_equal(np.concatenate([first, rest]), whole)


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("rule", RULES)
def test_padding_is_not_written_whichever_side_it_is_on(rule, chunk, tmp_path):
    """A text in a batch reads, and leaves, what it does alone; padding reads 0."""
    options = {"rule": rule, "heads": 2, "seed": 3, "chunk": chunk}
    for side in (1, -1):
        state = str(tmp_path / "state.npz")
        mask = Tensor(MASK.array[..., ::side], MASK.axes)
        batch = attnkit.recall(Record({"x": X[:, ::side], "mask": mask}), **options, state_out=state)["x"]
        states = formats.load(state)["state"]
        for text, length in enumerate(LENGTHS):
            real = slice(0, length) if side == 1 else slice(7 - length, 7)
            alone = attnkit.recall(of(X[text, ::side][real]), **options, state_out=state)["x"]
            np.testing.assert_allclose(batch[text, real], alone, rtol=0, atol=1e-13)
            np.testing.assert_allclose(states[text], formats.load(state)["state"], rtol=0, atol=1e-13)
            assert (np.delete(batch[text], np.r_[real], axis=0) == 0).all()


def test_heads_that_are_split_already_keep_their_axes():
    x = np.moveaxis(X.reshape(3, 7, 2, 3), 2, 1)
    record = attnkit.recall(of(x), rule="delta", keep="states,held")
    assert record["x"].shape == (3, 2, 7, 3)
    assert record["states"].shape == (3, 2, 7, 3, 3)
    flat = attnkit.recall(of(X), rule="delta", heads=2)["x"]
    np.testing.assert_allclose(np.moveaxis(record["x"], 1, 2).reshape(3, 7, 6), flat, rtol=0, atol=1e-13)


def test_intermediates_have_axes_labels_and_formulas_and_an_earlier_recall_loses_them():
    record = attnkit.recall(attnkit.embed("The cat sat", dim=4), rule="delta", heads=2, steps=True)
    assert {name: record.axes_of(name) for name in record if name not in ("x", "ids", "table")} == {
        **dict.fromkeys("qk", ("head", "token", "key_dim")),
        **dict.fromkeys(("v", "held", "error", "written", "read"), ("head", "token", "value_dim")),
        "states": ("head", "token", "key_dim", "value_dim"),
    }
    np.testing.assert_allclose(record["error"], record["v"] - record["held"])
    assert read_back(record).labels_of("read", -2) == ["The", "cat", "sat"]
    again = attnkit.recall(record, keep="states")
    assert "error" not in again
    assert "held" not in again
    # q, k and v of attend are not those of recall
    kept = attnkit.recall(attnkit.attend(of(X[0]), keep="q", heads=2))
    assert kept.axes_of("q") == ("head", "query", "head_dim")


def test_one_token_explained():
    record = attnkit.embed("The cat sat", dim=4)
    steps = attnkit.recall(record, rule="delta", heads=2, steps=True)
    told = attnkit.recall(record, rule="delta", heads=2, explain="1,cat")
    np.testing.assert_allclose(told["before"], steps["states"][1, 0])
    np.testing.assert_allclose(told["after"], told["before"] + np.outer(told["k"], told["written"]), rtol=1e-6)
    np.testing.assert_allclose(told["read"], told["after"].T @ told["q"], rtol=1e-5)
    assert "head 1, token 1 'cat'" in str(told)


def test_a_state_of_a_file_is_the_state_before_the_first_token(tmp_path):
    state = str(tmp_path / "state.npz")
    attnkit.recall(of(X[0, :3]), state_out=state)
    told = attnkit.recall(of(X[0, 3:]), state_in=state, explain="0")
    np.testing.assert_allclose(told["before"], X[0, :3].T @ X[0, :3])


GRADIENTS = {
    **{f"--rule {rule} --seed 1 --heads 2": None for rule in RULES},
    **{f"--rule {rule} --seed 1 --heads 2 --chunk 2": None for rule in ("mamba2", "gated-delta")},
    "--feature elu --divide --scale 0.5": None,
    "--rule decay --params p.npz --heads 4 --key-heads 2 --feature unit": None,
    "--rule gated-delta --params p.npz --heads 4 --key-heads 2 --beta b.npy --decay d.npy": ["beta", "decay"],
    "--rule mamba2 --params p.npz --heads 4 --key-heads 2 --beta b.npy": ["beta"],
    "--rule delta --query y.npy --key y.npy --state-in s.npz": ["query"],
}  # fmt: skip


@pytest.mark.parametrize("options", GRADIENTS)
def test_gradients_are_finite_differences(options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sizes = {"steps": 8} if "--rule decay" in options else {}
    np.savez("p.npz", **weights(**sizes))
    np.save("b.npy", RNG.uniform(0.1, 1, (4, 7)))
    np.save("d.npy", RNG.uniform(0.1, 1, 7))
    np.save("y.npy", X[1])
    np.savez("s.npz", state=RNG.standard_normal((1, 6, 6)))
    np.save("x.npy", X[0])
    np.savez("w.npz", w=RNG.standard_normal((5 if "p.npz" in options else 6, 1)))
    record = attnkit.grad(f"recall x.npy {options} | linear --params w.npz", of="x[5,0]", check=True)
    assert float(record["check"][2]) < 1e-6
    for name in GRADIENTS[options] or []:
        assert f"1.recall.{name}" in record


@pytest.mark.filterwarnings("ignore::attnkit.errors.AttnkitWarning")
def test_a_padded_batch_has_no_gradient_at_its_padding():
    record = Record({"x": X, "mask": MASK})
    found = attnkit.grad("recall --rule gated-delta --heads 2 --seed 1", record, check=True)
    assert (found["0.input.x"][1, 2:] == 0).all()
    assert (found["0.input.x"][1, :2] != 0).all()
    assert found["check"][2] < 1e-6


SHARES = {
    16: [(0.42, 0.92), (0.50, 0.88), (0.38, 0.67), (0.17, 0.39)],
    32: [(0.50, 1.00), (0.58, 1.00), (0.56, 0.92), (0.45, 0.76)],
    64: [(0.58, 1.00), (0.50, 1.00), (0.46, 1.00), (0.48, 0.99)],
}  # width -> of 4, 8, 16 and 32 keys


@pytest.mark.parametrize("width", SHARES)
def test_how_many_keys_find_their_second_value_in_a_sum_and_by_the_delta_rule(width):
    """The table of the lecture: each key is written twice, and the value that is nearest by angle counts."""
    for count, expected in zip((4, 8, 16, 32), SHARES[width], strict=True):
        for corrects, share in enumerate(expected):
            found = []
            for seed in range(3):
                rng = np.random.default_rng(seed)
                k, v = rng.normal(size=(count, width)), rng.normal(size=(2 * count, width))
                k /= np.linalg.norm(k, axis=-1, keepdims=True)
                keys, values = np.concatenate([k, k])[None, None], v[None, None]
                read = k @ linear_attention(Memory(keys, keys, values, corrects=bool(corrects)))["state"][0, 0]
                nearest = (read @ (v / np.linalg.norm(v, axis=-1, keepdims=True)).T).argmax(axis=1)
                found.append((nearest == np.arange(count) + count).mean())
            assert round(float(np.mean(found)), 2) == pytest.approx(share, abs=0.011)


def flops(record):
    at = [record.labels["quantity"].index(name) for name in ("FLOPs", "elementwise FLOPs")]
    row = record.labels["stage"].index(next(name for name in record.labels["stage"] if name.endswith("read")))
    return record["x"][0, row, at].tolist()


def test_costs_by_hand():
    """Four tokens, two heads of width 3: each product with a state is 2 · 3 · 3 FLOPs."""
    text = 'embed "a b c d" --dim 6 | recall --heads 2 --seed 1 --rule '
    token = 2 * 4 * 9
    assert flops(attnkit.cost(f"{text}linear", parts=True)) == [token * 4, 0]
    assert flops(attnkit.cost(f"{text}delta", parts=True)) == [token * 6, 2 * 4 * 2 * 3]
    assert flops(attnkit.cost(f"{text}gated-delta", parts=True)) == [token * 6, 2 * 4 * (2 * 3 + 9)]
    # two chunks of 2 tokens: q kᵀ and the read of each other, and two products with the state
    inside = 2 * 2 * (2 * 4 * 3 + 2 * 4 * 3)
    assert flops(attnkit.cost(f"{text}linear --chunk 2", parts=True))[0] == inside + 2 * 2 * (2 * 2 * 9 * 2)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"params": {"wq": np.ones((5, 6))}}, r"wq \(5,6\): expected \(6,6\)"),
        ({"params": {"w": np.ones((5, 6))}}, "parameter 'w' is not one of wq"),
        ({"params": {"wq": np.ones((6, 4))}}, "queries of width 4 and keys of width 6"),
        ({"params": {"wq": np.array(1.0)}}, "wq of rank 0: expected 2"),
        ({"heads": 4}, "d_model 6 is not divisible by heads 4"),
        ({"heads": 3, "key_heads": 2}, "3 heads of values are no multiple of 2"),
        ({"key": X[0, 1:]}, r"\(6,6\): expected the tokens of the queries \(7,6\)"),
        ({"rule": "delta", "beta": np.ones(6)}, r"\(6,\): expected \(1,7\)"),
        ({"rule": "decay", "decay": np.ones((2, 7))}, r"\(2,7\): expected \(1,7\)"),
        ({"state_in": {"state": np.ones((1, 6, 5))}}, r"state \(1,6,5\): expected \(1,6,6\)"),
        ({"state_in": {"hidden": np.ones(2)}}, "no state"),
        ({"state_in": {"state": np.ones((1, 6, 6)), "position": np.array(-1)}}, "position: expected one whole number"),
        ({"state_in": {"state": np.ones((1, 6, 6)), "h": np.ones(1)}}, "h is not one of: state, position"),
    ],
)
def test_what_does_not_fit_is_named(options, problem):
    with pytest.raises(DataError, match=problem):
        attnkit.recall(of(X[0]), **options)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"rule": "gated-delta"}, "gated-delta needs --decay FILE"),
        ({"rule": "mamba2"}, "mamba2 needs --beta FILE"),
        ({"rule": "delta", "divide": True}, "cannot be combined with --rule"),
        ({"rule": "delta", "decay": np.ones(7)}, "needs --rule decay"),
        ({"beta": np.ones(7)}, "needs --rule mamba2"),
        ({"chunk": 2, "steps": True}, "cannot be combined with --steps"),
        ({"explain": "0,0,0"}, "3 indices; expected TOKEN"),
        ({"explain": "7"}, "index 7 is outside axis token of size 7"),
    ],
)
def test_options_that_exclude_one_another(options, problem):
    with pytest.raises(UsageError, match=problem):
        attnkit.recall(of(X[0]), **options)


@pytest.mark.parametrize("shape", [(0, 6), (0, 7, 6), (7, 0), (2, 0, 6), (1, 2, 0, 3)])
@pytest.mark.parametrize("options", [{}, {"chunk": 2}, {"rule": "delta", "chunk": 2}, {"rule": "delta", "steps": True}])
def test_an_empty_input_has_an_empty_result(shape, options):
    assert attnkit.recall(of(np.zeros(shape)), **options)["x"].shape == shape


def test_an_input_without_heads_is_refused():
    with pytest.raises(DataError, match="x of 0 heads: expected 1 or more"):
        attnkit.recall(of(np.zeros((1, 0, 3, 4))))


def test_the_formula_of_x_states_the_division():
    record = attnkit.recall(np.eye(2), divide=True, feature="elu")
    assert record.tensor("x").formula == "Sᵀq / q · Σ k, S ← S + k vᵀ"
