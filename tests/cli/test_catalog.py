"""attnkit help --json against the parser: from what it says, a program writes command lines that are accepted."""

import functools
import itertools
import json
import re
import shlex

import pytest

from attnkit import cli, errors, help
from attnkit.cli import catalog, parser
from attnkit.cli.causes import convert_option
from attnkit.errors import UsageError
from tests.process import bash, run

CATALOG = catalog.describe_tools([*cli.TOOLS])
TOOLS = {tool["name"]: tool for tool in CATALOG["tools"]}
# metavar of a text with a syntax of its own -> a value
SYNTAX = {
    "A:B": "0:1",
    "DATE": "2024-07-26",
    "L,R": "1,0",
    "LAYER[:HEADS]": "encoder.0.self",
    "LOW,HIGH|each": "0,1",
    "NAME=A:B": "tokens=1:2",
    "NAME[INDEX]": "x[0]",
    "N[,M]": "2",
    "N[,…]|same|same-lower|causal": "1",
    "N|all": "all",
    "SLICE": "0",
    "STEPS": "1",
    "T,T,…": "0,0.5",
    "T[,S]": "3",
    "[B,]I,J": "0,0",
    "[B,][H,]QUERY,KEY": "0,0",
    "gnmt:A|average:A": "gnmt:0.6",
    "input-x-gradient|integrated:N": "integrated:2",
    "length:N": "length:2",
    "transformers|vllm|llama.cpp|NAMES": "vllm",
    "WxH": "64x48",
}


def value_of(option):
    """A value of an option that is not its default, from its description."""
    described = option.get("items", option)
    if "enum" in described:
        return next(one for one in described["enum"] if one != option["default"])
    if option["type"] in ("integer", "number"):
        least = described.get("minimum", described.get("exclusiveMinimum", 0) + 0.5)
        values = [least, least + 1, least + 0.25] if option["type"] == "number" else [int(least), int(least) + 1]
        return next(str(one) for one in values if one != option["default"] and one <= described.get("maximum", 9e9))
    return SYNTAX.get(option["metavar"], "x")


class Line:
    """A command line of a tool, written from its description alone."""

    def __init__(self, tool, words):
        self.tool, self.words = tool, words
        self.options = {flag: option for option in tool["options"] for flag in option["flags"]}
        names = {word.partition("=")[0] for word in words}
        defaults = {f"{flag}={option['default']}" for flag, option in self.options.items() if flag not in names}
        self.met = {*words, *self.arguments()} | defaults

    def arguments(self):
        """The words, each with a value where its option takes one."""
        for word in self.words:
            has_value = "=" in word or self.options[word]["type"] == "boolean"
            yield word if has_value else f"{word}={value_of(self.options[word])}"

    def meets(self, term):
        """Whether one of the flags of a term is passed, or is the default."""
        return not self.met.isdisjoint(term)

    def conflicts(self):
        """Whether it breaks a rule that excludes options."""
        rows = [rule["terms"] for rule in self.tool["constraints"] if rule["rule"] == "exclusive"]
        sources = [rule for rule in self.tool["constraints"] if rule["rule"] == "agree"]
        names = {word.partition("=")[0] for word in self.words}
        repeats = any(rule["source"] in names and names & {*rule["options"]} for rule in sources)
        return repeats or any(sum(map(self.meets, row)) > 1 for row in rows)

    def missing(self):
        """The flags of which it needs one, for the first rule that it does not meet; None if it meets all."""
        for rule in self.tool["constraints"]:
            if rule["rule"] == "requires" and self.meets(rule["terms"][0]) and not self.meets(rule["terms"][1]):
                return rule["terms"][1]
            if rule["rule"] == "one_of" and not any(map(self.meets, rule["terms"])):
                return list(itertools.chain(*rule["terms"]))
        return None

    def completed(self):
        """The shortest line with these words that meets all rules, or None."""
        waiting = [self]
        for line in waiting:
            needed = [] if line.conflicts() else line.missing()
            if needed is None:
                return line
            waiting += [Line(self.tool, [*line.words, flag]) for flag in needed if len(line.words) < 6]
        return None


def parse(line):
    """Parse a line; "" or the problem of its error."""
    try:
        assert parser.parse(cli.find_tool(line.tool["name"]), [*line.arguments()]) is not None
        return ""
    except UsageError as error:
        return str(error)


@functools.cache
def flags_of_parser(name):
    """The flags of the command of a tool, as Typer has them."""
    command, context = parser.open_command(cli.find_tool(name))
    return sorted(flag for one in command.get_params(context) for flag in one.opts if flag.startswith("-"))


TYPES = {"string": str, "boolean": bool, "integer": int, "number": (int, float), "array": list}


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_each_default_has_the_type_of_its_option(tool):
    given = [option for option in tool["options"] if option["default"] is not None]
    assert [one["flags"] for one in given if not isinstance(one["default"], TYPES[one["type"]])] == []


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_the_flags_are_those_of_the_parser(tool):
    described = sorted(flag for option in tool["options"] for flag in option["flags"])
    assert sorted([*described, "--help", "-h"]) == flags_of_parser(tool["name"])


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_every_option_makes_a_line_that_the_parser_accepts(tool):
    refused = {}
    for option in tool["options"]:
        line = Line(tool, [option["flags"][0]]).completed()
        problem = parse(line) if line else "no line"
        if problem:
            refused[option["flags"][0]] = (line and line.words, problem)
    assert not refused


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_every_rule_is_one_of_the_parser(tool):
    for rule in tool["constraints"]:
        if rule["rule"] == "exclusive":
            for first, second in itertools.combinations(rule["terms"], 2):
                assert "cannot be combined with" in parse(Line(tool, [first[0], second[0]])), rule
        if rule["rule"] == "requires" and not Line(tool, []).meets(rule["terms"][1]):
            assert re.search("needs|cannot be combined", parse(Line(tool, [rule["terms"][0][0]]))), rule
        if rule["rule"] == "one_of":
            assert "needs" in parse(Line(tool, []))


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_choices_bounds_and_defaults_are_those_of_the_parser(tool):
    own = cli.find_tool(tool["name"])
    for option in tool["options"]:
        described = option.get("items", option)
        name = option["name"] if option["name"] in own.options else f"{option['name']}_"
        inside = [*described.get("enum", ())]
        inside += [str(described[bound]) for bound in ("minimum", "maximum") if bound in described]
        beyond = {"minimum": -1, "maximum": 1, "exclusiveMinimum": 0}
        outside = ["no-such-word"] * ("enum" in described)
        outside += [str(described[bound] + step) for bound, step in beyond.items() if bound in described]
        for value in inside:
            convert_option(own, name, value)
        for value in outside:
            with pytest.raises(UsageError):
                convert_option(own, name, value)
        default = False if option["type"] == "boolean" else None
        stated = own.defaults.get(name, default)
        if isinstance(stated, tuple) and option["type"] == "string":
            found = convert_option(own, name, option["default"]) if stated else option["default"]
            assert found == (stated or None)
            continue
        assert option["default"] == ([*stated] if isinstance(stated, tuple) else default if stated is None else stated)


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS)
def test_every_tool_has_an_example_of_flags_that_there_are(tool):
    stages = [words for line in tool["examples"] for words in split_stages(line)]
    assert any(words[:2] == ["attnkit", tool["name"]] for words in stages)
    for words in stages:
        if words[0] == "attnkit":
            known = {flag for option in TOOLS[words[1]]["options"] for flag in option["flags"]}
            assert {word.partition("=")[0] for word in words[2:] if re.match("--?[a-z]", word)} <= known


def split_stages(line):
    """The stages of a line of a shell, each as its words."""
    words = shlex.split(line, comments=True)
    return [list(part) for is_bar, part in itertools.groupby(words, lambda word: word in ("|", "&&")) if not is_bar]


def test_all_tools_or_those_that_are_named():
    every = json.loads(run("help", "--json").out)
    assert every == json.loads(json.dumps(CATALOG)) and [*TOOLS] == [*cli.TOOLS]
    two = json.loads(run("help", "mask", "attend", "--json").out)
    assert two == every | {"tools": [TOOLS["mask"], TOOLS["attend"]]}
    done = run("help", "atend", "--json")
    assert (done.code, done.out, done.err) == (2, b"", "attnkit help: no tool 'atend'; did you mean attend?\n")


def test_the_exit_codes_are_those_of_the_errors_and_of_the_page():
    kinds = [errors.AttnkitError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {kind.exit_code for kind in kinds} | {0, 141} == {*errors.EXIT_CODES}
    rows = "".join(f"| {code} | {meaning} |\n" for code, meaning in errors.EXIT_CODES.items())
    assert f"|---|---|\n{rows}\n" in help.read_page("scripts")


def test_the_skill_is_what_the_code_makes_and_fits_two_screens():
    skill = help.read_skill()
    assert skill == catalog.write_skill(skill)
    assert len(skill.splitlines()) <= 100
    head = re.match(r"---\nname: attnkit\ndescription: (.*)\n---\n", skill)
    assert head and len(head[1]) <= 1024
    assert bash("attnkit help skill").out.decode() == skill
