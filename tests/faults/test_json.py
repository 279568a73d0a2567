"""Bad JSON input: strict RFC 8259, and every complaint says where."""

import json

import pytest

from tests.faults.bad_json import BAD


@pytest.mark.slow
@pytest.mark.parametrize(("content", "parts"), [(case[0], case[1:]) for case in BAD.values()], ids=BAD)
def test_refused(reject, content, parts):
    reject(content, *parts)


SAME = {
    # J8
    "mark": b"\xef\xbb\xbf[[1,2],[3,4]]",
    # J10
    "CR LF": b"[[1,2],\r\n[3,4]]\r\n",
    "CR": b"[[1,2],\r[3,4]]\r",
    "spaces at the ends": b" \t\n[[1,2],[3,4]]  \n\n  ",
    "record": b'{"tensors":{"x":[[1,2],[3,4]]}}',
    "keys in another order": b'{"labels":{},"tensors":{"x":{"data":[[1,2],[3,4]],"shape":[2,2],"dtype":"int64"}}}',
    "exponents": b'{"tensors":{"x":{"dtype":"int64","data":[[1e0,20E-1],[3.0,4]]}}}',
}


@pytest.mark.parametrize("content", SAME.values(), ids=SAME)
def test_other_ways_to_write_the_same_document(attnkit, content):
    expected = attnkit("layernorm", stdin=b"[[1,2],[3,4]]")
    assert attnkit("layernorm", stdin=content) == expected
    assert (expected.code, expected.err) == (0, "")


def test_non_finite_numbers_are_three_strings(attnkit):
    run = attnkit("show", "-f", "json", stdin=b'[1,"NaN","Infinity","-Infinity"]')
    assert (run.code, run.err) == (0, "")
    assert b'"data":[1.0,"NaN","Infinity","-Infinity"]' in run.out


def test_prototype_is_a_tensor_like_any_other(attnkit):
    run = attnkit("layernorm", "-f", "json", stdin=b'{"tensors":{"x":[[1,2]],"__proto__":[1],"constructor":[2]}}')
    assert (run.code, run.err) == (0, "")
    assert list(json.loads(run.out)["tensors"]) == ["x", "__proto__", "constructor"]


# J11: what comes before is a record and has been delivered.
@pytest.mark.parametrize(
    ("tail", "problem"),
    {
        "text": (b"hello", "line 2 column 9: hello is not JSON"),
        "bracket": (b"]", "line 2 column 9: unexpected ']', expected a value"),
        "comma": (b",[1,2]", "line 2 column 9: unexpected ',', expected a value"),
        "cut": (b'{"tensors"', "line 2 column 19: unexpected end of input"),
    }.values(),
)
def test_text_after_a_document(attnkit, refused, tail, problem):
    whole = attnkit("layernorm", stdin=b"[[1,2]]\n[[3,4]]")
    run = attnkit("layernorm", stdin=b"[[1,2]]\n[[3,4]] " + tail)
    assert run.out == whole.out
    assert run.out.count(b"\n") == 2
    refused(run._replace(out=b""), 3, "layernorm: <stdin>: ", problem)
