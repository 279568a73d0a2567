"""What an error says to type, where a user types what PyTorch, transformers, nanoGPT or Unix call it."""

import re

import numpy as np
import pytest
import typer

import attnkit
from attnkit import help as pages
from attnkit.cli import TOOLS, find_tool, hints, options, parser, synonyms
from attnkit.errors import UsageError
from tests import process

GPT2 = process.TESTS / "references/models/gpt2"
OWNERS = hints.list_owners()


def refused(*arguments, code=2, **settings):
    """The one line on standard error of a command line that is refused, after the tool's name."""
    run = process.run(*arguments, **settings)
    assert (run.code, run.out, run.err.count("\n")) == (code, b"", 1), run
    return run.err.removesuffix("\n").removeprefix("attnkit").removeprefix(f" {arguments[0]}").removeprefix(": ")


def takes(tool, flag, value):
    """Whether a tool has a flag that takes a value, "" for a placeholder."""
    option = hints.list_flags(find_tool(tool))[flag]
    try:
        return option.is_flag == (value == "") or value == "" or options.convert(option, value) is not None
    except UsageError:
        return False


def test_what_a_table_says_to_type_exists():
    for known in [*synonyms.OPTIONS, *synonyms.TOOLS]:
        check_exists(known)


def check_exists(known):
    """Check that the tools and flags of a line that a table says to type exist."""
    first, *words = known.split()
    if first == "attnkit":
        first, *words = words
    pairs = [*zip([first, *words], [*words, ""], strict=True)]
    flags = [(hints.SHORT.get(flag, flag), value) for flag, value in pairs if flag.startswith("-")]
    if first in TOOLS:
        assert all(flag in OWNERS and first in OWNERS[flag] for flag, _ in flags)
    for flag, value in flags:
        plain = value if re.fullmatch("[a-z0-9]+", value) else ""
        tools = [first] if first in TOOLS else OWNERS.get(flag, [])
        assert flag == "--help" or flag == "--version" or any(takes(tool, flag, plain) for tool in tools)
    assert all(tool in TOOLS or tool in ("TOOL", "--version") for tool in re.findall(r"attnkit (\S+)", known))
    if first == "help":
        assert words[0] in pages.list_topics()
    assert (
        first in TOOLS
        or flags
        or first == "help"
        or first in ("completion", "COLUMNS=70", "NO_COLOR=1", "the", "--version")
    )


@pytest.mark.parametrize("value", synonyms.VALUES)
def test_a_value_that_a_table_says_to_type_is_a_choice_of_an_option(value):
    choices = (option.choices for tool in TOOLS for option in hints.list_flags(find_tool(tool)).values())
    assert any(value.split()[0] in words for words in choices)


def test_no_name_from_elsewhere_is_a_tool_here():
    assert not {*TOOLS} & {*" ".join(synonyms.TOOLS.values()).split()}


@pytest.mark.parametrize("word", ["--top_k", "--max_tokens", "--no_numbers", "--kv_heads", "--chrf_word_order"])
def test_underscores_are_hyphens_in_every_option(word):
    flag = word.replace("_", "-")
    [*tools] = OWNERS[flag]
    chosen = find_tool(tools[0])
    name = word.removeprefix("--")
    command = parser.Command(chosen)
    context = typer.Context(command, **command.context_settings)
    is_flag = chosen.options[name].is_flag
    values, _, _ = command.make_parser(context).parse_args([word] if is_flag else [word, "3"])
    assert values[name] == (True if is_flag else "3")


def test_a_line_with_underscores_is_that_with_hyphens_in_the_shell_and_in_run():
    line = ["decode", "Once", "--model", str(GPT2), "--top{}k=3", "--max{}tokens", "2", "--emit", "ids"]
    hyphens, underscores = ([word.format(sign) for word in line] for sign in "-_")
    expected = process.run(*hyphens)
    assert expected.code == 0 and process.run(*underscores) == expected
    assert process.run("run", " ".join(underscores)) == expected


def test_the_value_of_an_option_keeps_its_underscores():
    run = process.run("mask", "--size", "1", "--causal", "--title", "--my_title", "--only", "x", "-f", "html")
    assert b"--my_title" in run.out


@pytest.mark.parametrize(
    "hint", ["decode TEXT --model DIR", "show FILE --stats", "posenc --kind rotary", "near --index FILE"]
)
def test_a_tool_of_another_library_is_answered_with_the_own_one(hint):
    name = synonyms.TOOLS[hint].split()[0]
    assert refused(name) == f"no tool {name!r}; did you mean attnkit {hint}?"
    assert refused("run", f"embed a --dim 2 | {name}").endswith(f"did you mean attnkit {hint}?")
    assert f"\nattnkit {hint}: " in "\n" + process.run("help", name).out.decode()


def test_help_explains_options_by_their_names_here_and_elsewhere():
    assert process.run("help", "top_k").out.startswith(b"--top-k K: sample from the K most probable tokens (decode)\n")
    assert process.run("help", "--top-k").out == process.run("help", "top_k").out
    lines = process.run("help", "d_model").out.decode().partition("`attnkit help lecture tokens`\n\n")[2].splitlines()
    owners = [re.findall(r"^--dim .*\((\w+)\)$", line) for line in lines]
    assert owners == [["embed"], ["posenc"], ["encode"], ["train"]]
    assert process.run("help", "attend", "heads").out == b"--heads H: number of heads (attend)\n"
    assert process.run("help", "dtype").out.endswith(b"(all tools)\n")
    assert process.run("help", "top", "k").out == process.run("help", "top_k").out
    assert refused("help", "zzz") == "no tool or topic 'zzz'; attnkit help lists both"


def test_keywords_of_another_library_are_answered_in_python():
    with pytest.raises(UsageError, match=r"^attend takes no 'num_heads'; did you mean heads\?$"):
        attnkit.attend(np.ones((2, 4)), num_heads=2)
    with pytest.raises(UsageError, match=r"did you mean kind='rms'\?$"):
        attnkit.layernorm(np.ones((2, 4)), rms=True)


def test_a_command_line_without_an_error_imports_no_table():
    code = "import sys; from attnkit.cli.main import main; main(['mask', '--size', '2', '--causal']);"
    code += "print({'attnkit.cli.hints', 'attnkit.cli.synonyms'} & {*sys.modules})"
    run = process.run_command([process.sys.executable, "-c", code])
    assert run.out.endswith(b"set()\n")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("attend --no-causal", "it is off without --causal"),
        ("attend --no-softcap", "it is off without --softcap"),
        ("mask --no-window", "it is off without --window"),
        ("decode --no-temperature", "it is off without --temperature"),
        ("attend --no-scale", "the default of --scale is 1/√d_k, and --scale 1 switches it off"),
        ("layernorm --no_eps", "the default of --eps is 1e-05, and --eps 0 switches it off"),
        ("train --no-valid", "the default of --valid is 5%, and --valid 0 switches it off"),
        ("ffn --no-activation", "the default of --activation is relu, and --activation identity switches it off"),
        ("posenc --no-base", "the default of --base is 10000"),
        ("embed --no-seed", "the default of --seed is 0"),
        ("decode --no-top-p", "it is off without --top-p"),
        ("mask --no-chunk", "it is off without --chunk"),
        ("conv --no-activation", "it is off without --activation"),
        ("rnn --no-hidden", "--hidden has no default"),
        ("embed --no-dim", "--dim has no default"),
        ("attend --no-memory", "--memory has no default"),
        ("show --no-output", "--output has no default"),
    ],
)
def test_how_an_option_is_switched_off(line, hint):
    tool, flag = line.split()
    assert refused(tool, flag) == f"no such option: {flag}; {hint}"


@pytest.mark.parametrize(("name", "value"), hints.OFF.items())
def test_the_value_that_switches_an_option_off_is_one_that_it_takes(name, value):
    valued = [tool for tool in OWNERS[f"--{name}"] if not hints.list_flags(find_tool(tool))[f"--{name}"].is_flag]
    assert valued and all(takes(tool, f"--{name}", value) for tool in valued)
