"""A table of bad CSV: {name: (content, parts of the message)}, read by tests/formats and by the tools as processes."""

BAD = {
    # C1
    "ragged": (b"1,2\n3,4\n5\n", "line 3 column 1: 1 field, but line 1 has 2"),
    "ragged below a heading": (b"a,b\n1,2,3\n", "line 2 column 5: 3 fields, but line 1 has 2"),
    "ragged blanks": (b"1 2\n1 2 3\n", "line 2 column 5: 3 fields, but line 1 has 2"),
    # C2
    "word": (b"a,b\n1,2\n3,cat\n", "line 3 column 3: 'cat' is not a number"),
    "word in the first column": (b"a,b\n1,2\ncat,3\n", "line 3 column 1: 'cat' is not a number"),
    "word after letters of two bytes": ("é,1,2\né,1,x\n".encode(), "line 2 column 5: 'x' is not a number"),
    "empty field": (b"1,2\n3,\n", "line 2 column 3: empty, expected a number"),
    "two commas": (b"1,2,3\n3,,4\n", "line 2 column 3: empty, expected a number"),
    "true among numbers": (b"1,2\n3,true\n", "line 2 column 3: 'true' among numbers"),
    "number among booleans": (b"true,false\nfalse,0\n", "line 2 column 7: '0' among true and false"),
    "out of range": (b"1,2\n3,1e999\n", "line 2 column 3: number '1e999' is out of range"),
    "underscore": (b"1,2\n1_0,2\n", "line 2 column 1: '1_0' is not a number"),
    "hexadecimal": (b"1,2\n0x1F,2\n", "line 2 column 1: '0x1F' is not a number"),
    "NUL": (b"1,2\n3,4\x005\n", "line 2 column 3: '4\\x005' is not a number"),
    # C3
    "blanks below commas": (
        b"1,2\n3 4\n",
        "line 2 column 1: 1 field, but line 1 has 2, separated by commas, not blanks",
    ),
    "commas below tabs": (b"1\t2\n3,4\n", "line 2 column 1: 1 field, but line 1 has 2, separated by tabs, not commas"),
    "decimal commas": (
        b"1,5\t2,3\n",
        "line 1 column 1: '1,5' is not a number (expected a decimal point); tr , . < FILE replaces decimal commas",
    ),
    "decimal commas between blanks": (
        b"1,5 2,5\n3 4\n",
        "line 1 column 1: '1,5' is not a number (expected a decimal point); tr , . < FILE replaces decimal commas",
    ),
    "one decimal comma between blanks": (
        b"1 2,5\n3 4\n",
        "line 1 column 3: '2,5' is not a number (expected a decimal point); tr , . < FILE replaces decimal commas",
    ),
    "decimal commas below": (
        b"1 2\n3,5 4\n",
        "line 2 column 1: '3,5' is not a number (expected a decimal point); tr , . < FILE replaces decimal commas",
    ),
    "commas below semicolons": (
        b"1,5;2\n3,4\n",
        "line 2 column 1: 1 field, but line 1 has 2, separated by semicolons, not commas",
    ),
    # C4
    "quote not closed": (b'word,a\n"The,1\n2,3\n', "line 2 column 1: the quote is not closed"),
    "quote inside": (b'word,a\nTh"e",1\n', "line 2 column 3: a quote inside a field"),
    "text after a quote": (b'word,a\n"The"x,1\n', "line 2 column 6: a quote inside a field"),
    # C5
    "empty line": (b"1,2\n\n3,4\n", "line 2 column 1: an empty line between rows"),
    "heading alone": (b"token,head,x\n", "line 1 column 1: no rows of indices and numbers below the heading"),
    "long line": (b"1 " * (1 << 25) + b"1 2 3", "line 1 column 67108865: the line is longer than 64 MB"),
    "invalid UTF-8": (b"a,b\nx,1\n\xff,2\n", "line 3 column 1: invalid UTF-8"),
    # C6
    "indices out of order": (
        b"head,query,x\n0,0,1\n1,0,2\n0,1,3\n1,1,4\n",
        "the indices of head, query do not count every element in order",
    ),
    "huge index": (
        b"head,query,x\n0,0,1\n0,99999999999999,1\n",
        "the indices of head, query do not count every element in order",
    ),
}
