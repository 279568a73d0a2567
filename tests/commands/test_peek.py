"""The tool peek, in the shell and in Python."""

from tests import process

ENV = {"COLUMNS": "80"}


def shell(line, stdin=b"", check=True, **env):
    """What a line of bash writes to standard output."""
    code, out, err = process.bash(line, stdin=stdin, env=ENV | env)
    assert not check or code == 0, err
    return out


def test_peek_passes_every_byte_and_shows_the_record():
    for data in (b"[[1,  2],\n [3, 4]]\n\n[5]\n", shell("attnkit embed 'a b' --dim 2 -f npz")):
        done = process.run("peek", stdin=data, env=ENV)
        assert done.out == data
        assert "token" in done.err or "model" in done.err
        assert process.run("peek", "-q", stdin=data, env=ENV).err == ""
