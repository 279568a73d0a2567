"""Which flags exclude or need each other: the same tables for the command line, for Python and in the help."""

import itertools

import numpy as np
import pytest

import attnkit
from attnkit.cli import TOOLS, find_tool, main
from attnkit.errors import UsageError

X = np.ones((2, 4))


@pytest.mark.parametrize("name", TOOLS)
def test_every_term_of_a_table_names_flags_and_values_that_exist(name):
    tool = find_tool(name)
    known = tool.options
    for term in itertools.chain(*tool.rules.exclusive, *tool.rules.requires, *tool.rules.one_of):
        flag, equals, values = term.partition("=")
        assert not any(one.endswith("_") for one in flag.split("|")), f"{term}: is written without it, and never met"
        names = [one if one in known else f"{one}_" for one in flag.split("|")]
        assert set(names) <= set(known), term
        if equals:
            option = known[names[-1]]  # whose values are all words, or some words of its metavar
            assert set(values.split("|")) <= set(option.choices or option.metavar.split("|")), term


@pytest.mark.parametrize(
    ("arguments", "call", "message"),
    [
        (
            ["attend", "--params", "a.npz", "--seed", "1"],
            lambda: attnkit.attend(X, params={"wq": X}, seed=1),
            "--params: cannot be combined with --seed",
        ),
        (
            ["attend", "--layer", "encoder.0"],
            lambda: attnkit.attend(X, layer="encoder.0"),
            "--layer: needs --model DIR",
        ),
        (["attend", "--seed", "0", "--model", "d"], lambda: attnkit.attend(X, seed=0, model="d"), "--model: cannot be"),
        (["embed", "a"], lambda: attnkit.embed("a"), "needs --model DIR, --dim D, --one-hot or --table FILE"),
        (
            ["posenc", "--rotary-dim", "2"],
            lambda: attnkit.posenc(X, rotary_dim=2),
            "--rotary-dim: needs --kind rotary",
        ),
        (
            ["posenc", "--kind", "t5", "--base", "10", "--table", "t"],
            lambda: attnkit.posenc(X, kind="t5", base=10, table=X),
            "--base: needs --kind sinusoidal or rotary",
        ),
        (["posenc", "--heads", "2"], lambda: attnkit.posenc(X, heads=2), "--heads: needs --kind rotary, alibi or t5"),
        (
            ["posenc", "--kind", "rotary", "--base", "10", "--cos", "c", "--sin", "s"],
            lambda: attnkit.posenc(X, kind="rotary", base=10, cos=X, sin=X),
            "--base: cannot be combined with --cos",
        ),
        (
            ["ffn", "--params", "w", "--seed", "1"],
            lambda: attnkit.ffn(X, params={"w1": X.T, "w2": X}, seed=1),
            "--seed: cannot be combined with --params",
        ),
        (
            ["ffn", "--model", "d", "--seed", "1"],
            lambda: attnkit.ffn(X, model="d", seed=1),
            "--seed: cannot be combined with --model",
        ),
        (
            ["embed", "a", "--one-hot", "--seed", "1"],
            lambda: attnkit.embed("a", one_hot=True, seed=1),
            "--seed: needs --dim D",
        ),
        (
            ["embed", "a", "--table", "t", "--seed", "1"],
            lambda: attnkit.embed("a", table=X, seed=1),
            "--seed: cannot be combined with --table",
        ),
        (
            ["attend", "--align", "bottom-right"],
            lambda: attnkit.attend(X, align="bottom-right"),
            "--align: needs --causal, --window L,R or --model DIR",
        ),
        (
            ["attend", "--offset", "2"],
            lambda: attnkit.attend(X, offset=2),
            "--offset: needs --causal, --window L,R, --partial or --model DIR",
        ),
        (
            ["mask", "--lengths", "l", "--align", "bottom-right"],
            lambda: attnkit.mask(X, lengths=np.array(1), align="bottom-right"),
            "--align: needs --causal, --window L,R, --prefix N or --chunk",
        ),
        (
            ["mask", "--causal", "--pad-id", "0"],
            lambda: attnkit.mask(X, causal=True, pad_id=0),
            "--pad-id: needs --padding",
        ),
        (
            ["mask", "--causal", "--fill", "-1e9"],
            lambda: attnkit.mask(X, causal=True, fill="-1e9"),
            "--fill: needs --as additive",
        ),
        (
            ["mask", "--causal", "--polarity", "ignore"],
            lambda: attnkit.mask(X, causal=True, polarity="ignore"),
            "--polarity: needs --with FILE",
        ),
        (
            ["layernorm", "--kind", "rms", "--beta", "b"],
            lambda: attnkit.layernorm(X, kind="rms", beta=np.ones(4)),
            "--kind rms: cannot be combined with --beta",
        ),
        (
            ["decode", "--beam", "2", "--emit", "probs", "--model", "d"],
            lambda: attnkit.decode("a", beam=2, emit="probs", model="d"),
            "--beam: cannot be combined with --emit logits or probs",
        ),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else None,
)
def test_the_command_line_and_python_refuse_the_same(arguments, call, message, capfd):
    assert main.main(arguments) == 2
    assert capfd.readouterr().err.startswith(f"attnkit {arguments[0]}: {message}")
    with pytest.raises(UsageError) as caught:
        call()
    assert str(caught.value).startswith(message)


def test_a_flag_at_its_default_excludes_nothing():
    assert attnkit.posenc(X, max_distance=128, heads=1, interleaved=False)["x"].shape == (2, 4)
    assert attnkit.mask(X, causal=True, fill="-inf", polarity="attend")["mask"].shape == (2, 2)


def test_the_help_states_the_tables(capfd):
    assert main.main(["attend", "--help"]) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "--params, --model and --seed are mutually exclusive" in shown
    assert "--partial cannot be combined with --emit, --residual, --add, --concat or --strict" in shown
    assert "--layer needs --model" in shown
