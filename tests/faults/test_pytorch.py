"""Bad PyTorch files given to the tools as processes: one line, exit code 3, and nothing is executed."""

import numpy as np
import pytest

from tests.faults.bad_pytorch import BAD, DATA, STATE, archive, tensor


@pytest.mark.slow
@pytest.mark.parametrize(("content", "parts"), [(case[0], case[1:]) for case in BAD.values()], ids=BAD)
def test_refused(reject, content, parts):
    reject(content, *parts)


@pytest.mark.parametrize("name", ["os.system, protocol 2", "eval, protocol 4", "exec inside, protocol 5"])
def test_nothing_is_executed(attnkit, refused, name):
    content, *parts = BAD[name]
    refused(attnkit("show", attnkit.file("x.bin", content)), 3, "show: x.bin: data.pkl: at byte", *parts)
    refused(attnkit("attend", "good.json", "--params", "x.bin"), 3, "attend: x.bin: data.pkl: at byte", *parts)
    assert not (attnkit.folder / "canary").exists()


def test_an_input_an_operand_and_a_table(attnkit):
    attnkit.file("w.pt", archive({"w": tensor(), "v": tensor((3,), (2,))}))
    run = attnkit("show", "w.pt:w", "-f", "json")
    assert (run.code, run.err) == (0, "") and b'"data":[[0.0,1.0,2.0],[3.0,4.0,5.0]]' in run.out
    assert b"v (3) float32" in attnkit("show", "w.pt").out
    run = attnkit("show", "w.pt", "-o", "w.npz")
    assert run.code == 0
    with np.load(attnkit.folder / "w.npz") as stored:
        assert stored["v"].tolist() == [0, 2, 4]
    weights = {name: tensor((2, 2), (2, 1), count=4) for name in ("wq", "wk", "wv", "wo")}
    attnkit.file("attend.pth", archive(weights, [("data/0", DATA[:16])]))
    attnkit.file("attend.json", b'{"wq":[[0,1],[2,3]],"wk":[[0,1],[2,3]],"wv":[[0,1],[2,3]],"wo":[[0,1],[2,3]]}')
    both = [attnkit("attend", "good.json", "--params", file, "-f", "npy").out for file in ("attend.pth", "attend.json")]
    assert both[0] and both[0] == both[1]


def test_passing_one_through(attnkit):
    run = attnkit("peek", stdin=STATE)
    assert (run.code, run.out) == (0, STATE) and "30 tensors" in run.err
