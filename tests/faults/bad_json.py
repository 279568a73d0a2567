# ruff: noqa: E501 - a case of a table is a line
"""A table of bad JSON: {name: (content, parts of the message)}, read by tests/formats and by the tools as processes."""

import json


def record(**tensor):
    """A record of one tensor, x, described by these keys."""
    return json.dumps({"tensors": {"x": tensor}}).encode()


BAD = {
    # J1
    "empty record": (b"{", "line 1 column 2: unexpected end of input"),
    "spaces alone": (b" \n\t ", "line 2 column 3: unexpected end of input, expected a JSON document"),
    "mark alone": (b"\xef\xbb\xbf", "line 1 column 1: unexpected end of input"),
    "open": (b"[[1,2", "line 1 column 6: unexpected end of input"),
    "trailing comma": (b"[1,\n2,]", "line 2 column 2: trailing comma"),
    "two commas": (b"[1,,2]", "line 1 column 4: unexpected ',', expected a value"),
    "comment": (b"[1, // one\n2]", "line 1 column 5: unexpected '/', expected a value"),
    "hash comment": (b"# one\n[1]", "line 1 column 1: unexpected '#', expected a value"),
    "01": (b"[01]", "line 1 column 2: bad number 01"),
    "+1": (b"[1, +1]", "line 1 column 5: bad number +1"),
    "hexadecimal": (b"[0x1F]", "line 1 column 2: bad number 0x1F"),
    "1.": (b"[1.]", "line 1 column 2: bad number 1."),
    ".5": (b"[.5]", "line 1 column 2: bad number .5; write 0.5"),
    "-.25": (b"[1, -.25]", "line 1 column 5: bad number -.25; write -0.25"),
    "Arabic digits": ("[٣]".encode(), "line 1 column 2: "),
    "single quotes": (b"{'tensors': {}}", "line 1 column 2: unexpected \"'\", expected a key in double quotes"),
    "two marks": (b"\xef\xbb\xbf\xef\xbb\xbf[1]", "line 1 column 1: "),
    "control character": (b'{"ten\nsors": 1}', "line 1 column 6: unexpected control character in string"),
    "invalid UTF-8": (b'{"\xff": 1}', "line 1 column 3: invalid UTF-8"),
    "lone surrogate": (b'{"labels":{"\\ud800":[]},"tensors":{"x":[1]}}', "line 1 column 13: no low surrogate"),
    "deep": (b"[" * 10_000, "nested deeper than 64"),
    # J2
    **{word: (f"[1, {word}]".encode(), f"line 1 column 5: {word} is not JSON; write the string") for word in ("NaN", "Infinity", "-Infinity")},
    "1e999": (b"[1e999]", "line 1 column 2: number 1e999 is out of range"),
    "other string": (b'[1, "nan"]', 'element [1] is "nan", expected a number'),
    # J3
    "null": (b"[[1,2,null],[3,4,5]]", "element [0][2] is null, expected a number"),
    "true among numbers": (b"[1.5,true]", "element [1] is true, expected a number"),
    "number among booleans": (b"[true,1.5]", "element [1] is 1.5, expected true or false"),
    "string": (b'[[1],["1"]]', 'element [1][0] is "1", expected a number'),
    "object": (b"[1,{}]", "element [1] is an object, expected a number"),
    # J4
    "ragged": (b"[[1,2],[3]]", "row 1 has 1 element, row 0 has 2"),
    "ragged inside": (b"[[[1,2],[3]]]", "row [0][1] has 1 element, row [0][0] has 2"),
    "ragged depth": (b"[[1,2],3]", "element [1] is a number, element [0] is nested 1 deep"),
    # J6
    "too large beside a small one": (b"[[18446744073709551616,1]]", "element [0][0] is 18446744073709551616, outside int64"),
    "key twice": (b'{"tensors":{"x":{"data":[1],"data":[2]}}}', 'duplicate key "data"'),
    "tensor twice": (b'{"tensors":{"x":[1],"x":[2]}}', 'duplicate key "x"'),
    # J13
    "no tensors": (b"{}", 'key "tensors" is missing'),
    "tensors empty": (b'{"tensors":{}}', 'key "tensors" is empty'),
    "string for a tensor": (b'"hello"', 'the value is "hello", expected a number'),
    "data missing": (record(shape=[1]), 'tensor "x": key "data" is missing'),
    "shape differs": (record(shape=[2, 2], data=[1, 2, 3]), 'tensor "x": key "shape" is (2, 2), but the data have shape (3,)'),
    "shape no list": (record(shape=3, data=[1, 2, 3]), 'tensor "x": key "shape" is not a list'),
    "shape negative": (record(shape=[-3], data=[1, 2, 3]), 'tensor "x": invalid shape (-3)'),
    "shape too large": (record(shape=[2**70, 0], data=[]), 'tensor "x": invalid shape (1.1805916207174113e+21, 0)'),
    "dtype unknown": (record(dtype="complex64", data=[1]), 'tensor "x": dtype complex64 not supported'),
    "dtype a number": (record(dtype=7, data=[1]), 'tensor "x": dtype 7 not supported'),
    "dtype too small": (record(dtype="uint8", data=[1, 256]), 'tensor "x": element [1] is 256, outside uint8'),
    "dtype of whole numbers": (record(dtype="int64", data=[1, 2.5]), 'tensor "x": element [1] is 2.5, '),
    "float16 too small": (record(dtype="float16", data=[65520]), 'tensor "x": element [0] is 65520, outside float16'),
    "axes of another rank": (record(axes=["token"], data=[[1]]), "tensor 'x': 1 axis names for shape (1, 1)"),
    "unknown key": (record(dtpye="float32", data=[1]), 'unknown key "dtpye" (expected dtype, shape, axes, data)'),
    # J15
    "prototype": (b'{"__proto__": {}}', 'unknown key "__proto__" (expected tensors, labels, history)'),
    "2 MB key": (b'{"' + b"k" * 2_000_000 + b'":1}', 'unknown key "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"'),
    "150,000 keys": (b'{"labels":{' + b",".join(b'"%d":[]' % i for i in range(150_000)) + b"}}", "more than 100000 keys"),
}  # fmt: skip
