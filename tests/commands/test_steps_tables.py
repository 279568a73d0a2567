"""The tables of --steps on standard error: whose they are, and of which heads."""

from tests import process

STDIN = process.run("embed", "The cat", "--dim", "8", "-f", "json")[1]


def tables(*flags, stdin=STDIN):
    code, _, err = process.run("attend", "--heads", "8", "--seed", "1", "--steps", *flags, stdin=stdin)
    return code, err if isinstance(err, str) else err.decode()


def test_the_tables_of_a_stage_begin_with_its_command():
    for tool, *flags in (["posenc"], ["layernorm"], ["ffn", "--hidden", "2"], ["attend"]):
        _, _, err = process.run(tool, *flags, "--steps", stdin=STDIN)
        assert err.splitlines()[0].startswith(f"attnkit {tool} ")


def test_two_heads_of_many_are_shown_and_the_others_counted():
    code, err = tables()
    assert code == 0 and err.count("… 6 more heads; --show-head N or all shows them") == err.count("head 0")
    assert "head 1" in err and "head 2" not in err


def test_one_head_or_all_on_request():
    _, err = tables("--show-head", "5")
    assert "head 5" in err and "head 0" not in err and "… 7 more heads" in err
    _, err = tables("--show-head", "all")
    assert "head 7" in err and "more heads" not in err
