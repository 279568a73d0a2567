"""Examples to start from: functions of Python and programs in C, still empty."""

import textwrap
from collections.abc import Mapping, Sequence

from attnkit.checking.cases import draw_case, find_optional
from attnkit.checking.definition import Argument, Definition, describe_axes
from attnkit.errors import UsageError

IMPORTS = {"torch": "import torch", "numpy": "import numpy as np", "jax": "import jax.numpy as jnp"}
TEMPLATES = (*IMPORTS, "c")
KINDS = {"mask": "True = may attend", "ids": "whole numbers"}  # of what an argument draws


def write_template(name: str, definition: Definition, language: str) -> str:
    """The text of an example: one of TEMPLATES.

    UsageError for a stage that is no function of its arguments.
    """
    if definition.drive:
        raise UsageError(f"{name} is no function of arrays: {definition.expects}", "--template")
    return write_c(name, definition) if language == "c" else write_python(name, definition, language)


def write_python(name: str, definition: Definition, library: str) -> str:
    """A file of Python with a function that is to be filled in."""
    arguments = find_parameters(definition)
    optional = find_optional(definition)
    stated = [one for one in arguments if one not in optional and one not in definition.defaults]
    later = [f"{one}={definition.defaults.get(one)!r}" for one in arguments if one not in stated]
    function = next(one for one in definition.functions.split() if one.islower())
    lines = describe_arguments(definition, arguments)
    body = "\n".join(
        [f'"""Return {describe_axes(definition.answer) if definition.answer else "a number"}.', "", *lines]
    )
    return (
        f'"""{name}: {definition.summary}.\n\nattnkit check {name} THIS_FILE.py verifies it.\n"""\n\n'
        f"{IMPORTS[library]}\n\n\n"
        f"def {function}({', '.join([*stated, *later])}):\n"
        f"{textwrap.indent(body, '    ')}\n"
        '    """\n'
        "    raise NotImplementedError\n"
    )


def find_parameters(definition: Definition) -> dict[str, Argument]:
    """The arguments of a function: no joined ones, a dictionary for its parts."""
    arguments = definition.arguments
    held = {part for one in arguments.values() for part in one.collects}
    return {name: one for name, one in arguments.items() if name not in held and not one.joins}


def describe_arguments(definition: Definition, arguments: Mapping[str, Argument]) -> list[str]:
    """A line for each argument: its name and its shape."""
    turned = {
        name for ways in definition.conventions.values() for name in next(iter(ways.values())).send if name in arguments
    }
    most = max(map(len, arguments))
    lines = []
    for name, one in arguments.items():
        axes = " ".join(reversed(one.axes.split())) if name in turned and one.role == "parameter" else one.axes
        shape = describe_axes(axes) if axes else "a number"
        kind = KINDS.get(one.draw.partition(" ")[0], "")
        if one.collects:
            shape, kind = "a dictionary", ", ".join([*one.collects.values()][:2]) + ", …"
        lines.append(f"{name.ljust(most)}  {shape}{', ' * bool(kind)}{kind}")
    return lines


def find_sent(definition: Definition, name: str) -> list[str]:
    """The arguments that a program reads, in their order.

    Every case has all of them, or all but the last ones; UsageError otherwise.
    """
    drawn = [[*draw_case(definition, case, 0, "float32").given] for case in definition.cases]
    sent = [[one for one in definition.arguments if one in given] for given in drawn]
    longest: Sequence[str] = max(sent, key=len)
    if any(one != longest[: len(one)] for one in sent):
        raise UsageError(
            f"{name} has inputs that only some cases have: read them by name, --send npz|json", "--template"
        )
    return [*longest]


def write_c(name: str, definition: Definition) -> str:
    """A program in C that reads tensors as NPY on standard input, and writes one."""
    sent = find_sent(definition, name)
    arguments = {one: definition.arguments[one] for one in sent}
    lines = "\n".join(f"   {line}" for line in describe_arguments(definition._replace(conventions={}), arguments))
    reads = "\n".join(f"    Array {one} = read_array();" for one in sent)
    return C.format(
        name=name,
        summary=definition.summary,
        lines=lines,
        reads=reads,
        answer=describe_axes(definition.answer) if definition.answer else "a number",
    )


C = """/* {name}: {summary}.

{lines}

   Build it with cc -O2 mine.c -o mine -lm; attnkit check {name} --send npy -- ./mine verifies it.
   An input that a case lacks has the data NULL. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {{
    int axes;
    long shape[8];
    float *data; /* of any dtype, as float; rows one after another */
}} Array;

static long count(Array a) {{
    long numbers = 1;
    for (int i = 0; i < a.axes; i++) numbers *= a.shape[i];
    return numbers;
}}

static Array read_array(void) {{
    Array a = {{0}};
    unsigned char head[10];
    if (fread(head, 1, 10, stdin) < 10) return a;
    int length = head[8] | head[9] << 8;
    char *header = calloc(length + 1, 1);
    if (fread(header, 1, length, stdin) < (size_t)length) exit(1);
    char kind = strstr(header, "'descr': '")[11];
    int width = atoi(strstr(header, "'descr': '") + 12);
    for (char *at = strchr(strstr(header, "'shape'"), '(') + 1; *at != ')';) {{
        if (*at >= '0' && *at <= '9') a.shape[a.axes++] = strtol(at, &at, 10);
        else at++;
    }}
    a.data = malloc(sizeof(float) * (count(a) + 1));
    for (long i = 0; i < count(a); i++) {{
        unsigned char raw[8] = {{0}};
        if (fread(raw, 1, width, stdin) < (size_t)width) exit(1);
        float f;
        double d;
        int32_t n;
        int64_t m;
        memcpy(&f, raw, 4), memcpy(&d, raw, 8), memcpy(&n, raw, 4), memcpy(&m, raw, 8);
        a.data[i] = kind == 'f' ? (width == 4 ? f : d) : kind == 'i' ? (width == 4 ? n : m) : raw[0];
    }}
    free(header);
    return a;
}}

static void write_array(Array a) {{
    char header[118], shape[64] = "";
    for (int i = 0; i < a.axes; i++) sprintf(shape + strlen(shape), "%ld,", a.shape[i]);
    int written = sprintf(header, "{{'descr': '<f4', 'fortran_order': False, 'shape': (%s)}}", shape);
    memset(header + written, ' ', 118 - written);
    header[117] = '\\n';
    fwrite("\\x93NUMPY\\x01\\x00\\x76\\x00", 1, 10, stdout);
    fwrite(header, 1, 118, stdout);
    fwrite(a.data, sizeof(float), count(a), stdout);
}}

int main(void) {{
{reads}
    Array answer = {{0}}; /* {answer} */

    fprintf(stderr, "not implemented\\n");
    return 1;

    write_array(answer);
    return 0;
}}
"""
