"""attnkit help: topics and tools, Markdown on a pipe, plain text on a terminal."""

import collections
import inspect
import itertools
import os
import re
import subprocess
import sys
import tomllib

import pytest

from attnkit import help
from attnkit.checkpoints import gpt2
from attnkit.cli import TOOLS, find_tool, main, parser
from attnkit.formats import npy
from attnkit.help.practice import list_practice
from tests import transcripts
from tests.places import ROOT

TOPICS = help.list_topics()
CHAPTERS = help.list_chapters()
CONTENTS = "\n| | chapter | about |\n|---|---|---|\n" + "".join(
    f"| {chapter.number} | `{chapter.name}` | {chapter.title} |\n" for chapter in CHAPTERS
)


def run(*arguments, **options):
    command = ["attnkit", "help", *arguments]
    return subprocess.run(command, capture_output=True, cwd=ROOT, **options)


def on_a_terminal(topic, **settings):
    """What a terminal shows of a page."""
    return transcripts.on_a_terminal(f"attnkit help {topic}", ROOT, **settings)


def test_alone_it_lists_every_tool_and_topic(capfd):
    assert main.main(["help"]) == 0
    shown = capfd.readouterr().out
    for name, what in {**TOOLS, **TOPICS}.items():
        assert re.search(rf"^  {name} +{re.escape(what)}$", shown, re.MULTILINE)
    assert set(TOPICS) >= {"architecture", "checkpoints", "contributing", "faults", "lecture", "operators"}


@pytest.mark.parametrize("tool", ["attend", "run"])
def test_a_tool_is_its_own_help(tool, capfd):
    assert main.main(["help", tool]) == 0
    first = capfd.readouterr().out
    assert main.main([tool, "--help"]) == 0
    assert first == capfd.readouterr().out + in_the_lecture(tool) != ""


def test_the_page_of_a_tool_is_what_its_declaration_says():
    pages = {path.stem: path.read_text() for path in (help.PAGES / "tools").iterdir()}
    assert pages == {name: parser.write_page(find_tool(name)) for name in TOOLS}

    page = help.read_page("output")
    assert page == parser.write_output_page(page) and "-f, --format FORMAT" in page


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_a_page_is_what_typer_shows(option, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    assert main.main(["attend", option]) == 0
    page = capfd.readouterr().out
    assert main.main(["attend", "-q", option]) == 0
    assert page == capfd.readouterr().out != ""


def test_no_page_loads_numpy():
    code = """
import sys
from attnkit.cli import TOOLS, find_tool
from attnkit.cli import main

tools = [[name, "--help"] for name in TOOLS]
pages = [["help", *words.split()] for words in ("attend", "performance", "lecture", "lecture 3")]
for arguments in ([], ["--version"], *tools, *pages):
    assert main.main(arguments) == 0
    assert not {"numpy", "typer"} & {*sys.modules}, arguments
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"}
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_tool_that_is_an_idea_too_ends_with_its_chapter(capfd):
    assert main.main(["help", "softmax"]) == 0
    assert capfd.readouterr().out.endswith(
        "\n\nIn the lecture: attnkit help lecture logits (from a state to a word, and temperature)\n"
    )


def in_the_lecture(word):
    """The line that names the chapter of a word, "" for a word that has none."""
    chapter = help.find_chapter(word)
    return f"\nIn the lecture: attnkit help lecture {chapter.name} ({chapter.title})\n" if chapter else ""


@pytest.mark.parametrize("topic", TOPICS)
def test_a_pipe_gets_the_markdown(topic):
    done = run(topic, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    assert (done.returncode, done.stderr) == (0, b"")
    page = (ROOT / "attnkit" / "help" / f"{topic}.md").read_bytes()
    if topic == "lecture":
        page += CONTENTS.encode()
    assert done.stdout == page + in_the_lecture(topic).encode()


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("topic", TOPICS)
def test_a_terminal_gets_text_that_fits(topic, width):
    shown = on_a_terminal(topic, COLUMNS=str(width), TERM="xterm")
    title = help.read_page(topic).partition("\n")[0].removeprefix("# ")
    assert shown.startswith(f"\x1b[1m{title}\x1b[0m\n\n")
    examples = [line for line in shown.splitlines() if line.startswith("    ")]
    prose = [line for line in shown.splitlines() if not line.startswith("    ")]
    assert not any(re.match(r"#|\||```", line) or "`" in line for line in prose)
    assert any(line.startswith("    $ attnkit ") or "| attnkit" in line for line in examples)
    for line in prose:  # names are not cut, and rows of tables that hold several long ones need more
        assert (
            len(line) <= width or line.startswith("\x1b[1m") or re.search(r"\S  +\S", line) or " " not in line.strip()
        )


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_a_chapter_by_its_number_its_name_and_each_of_its_words(chapter, capfd):
    page = chapter.path.read_text()
    assert page.startswith(f"# {chapter.number} {chapter.name}: {chapter.title}\n\nWords: {chapter.words[0]}")
    assert chapter.number == CHAPTERS.index(chapter) + 1
    for word in (str(chapter.number), chapter.name, *chapter.words):
        assert help.find_chapter(word) == chapter
    for arguments in (
        ["lecture", str(chapter.number)],
        ["lecture", chapter.name],
        ["lecture", *chapter.words[0].split()],
    ):
        assert main.main(["help", *arguments]) == 0
        assert capfd.readouterr().out == page + list_practice(chapter.name)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_a_chapter_fits_a_terminal(chapter):
    shown = on_a_terminal(f"lecture {chapter.name}", COLUMNS="80", TERM="dumb")
    assert shown.startswith(f"{chapter.number} {chapter.name}: {chapter.title}\n\nWords: ")
    assert [line for line in shown.splitlines() if len(line) > 80 and not line.startswith("    ")] == []


def test_no_two_chapters_explain_one_word():
    folded = [{re.sub("[ -]|s$", "", word) for word in (chapter.name, *chapter.words)} for chapter in CHAPTERS]
    words = [word for one in folded for word in one]
    assert sorted(words) == sorted(set(words))


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.name)
def test_every_idea_of_a_chapter_has_a_command_and_what_to_notice(chapter):
    _, *ideas = chapter.read().split("\n## ")
    for idea in ideas:
        title, _, rest = idea.partition("\n")
        assert "```console\n$ " in rest and "\nNotice: " in rest, title


def test_an_idea_is_found_before_what_is_spelled_alike(capfd):
    assert main.main(["help", "Dot_Product"]) == main.main(["help", "dot", "products"]) == 0
    attention = help.find_chapter("attention").read()
    assert capfd.readouterr().out == 2 * (attention + list_practice("attention"))


@pytest.mark.parametrize(
    ("word", "chapter"),
    [
        ("residual", "norms"),
        ("multi-head", "heads"),
        ("gpt", "gpt"),
        ("bert", "transfer"),
        ("bahdanau", "alignment"),
        ("complexity", "path"),
        ("parallel", "path"),
        ("path", "path"),
        ("temperature", "logits"),
        ("one-hot", "tokens"),
        ("bottleneck", "recurrence"),
        ("sqrt", "scale"),
        ("variance", "scale"),
        ("why multi-head", "heads"),
        ("why softmax", "logits"),
        ("d_k", "scale"),
        ("query key value", "attention"),
        ("one hot encoding", "tokens"),
        ("add & norm", "norms"),
        ("Encoder & Decoder Stacks", "layers"),
        ("scaled dot-product", "attention"),
        ("learned positional encoding", "positions"),
        ("weight tying", "logits"),
        ("linear layer", "logits"),
        ("tokenization", "tokens"),
        ("unnormalized attention", "masks"),
    ],
)
def test_an_idea_is_answered_with_its_chapter(word, chapter, capfd):
    assert main.main(["help", word]) == 0
    assert re.match(rf"# \d+ {chapter}: ", capfd.readouterr().out)


@pytest.mark.parametrize(
    ("word", "command"),
    [("quiz", "exercise"), ("exercises", "exercise"), ("handout", "run FILE --steps -o sheet.html")],
)
def test_what_a_lesson_needs_is_answered_with_its_command(word, command, capfd):
    assert main.main(["help", word]) == 0
    assert capfd.readouterr().out.startswith(f"attnkit {command}: ")


def shown_section(phrase, capfd):
    """The page and the heading that `attnkit help PHRASE` prints, of one section alone; ("", "") for another answer."""
    try:
        main.main(["help", *phrase.split()])
    except SystemExit:
        return "", ""
    page = capfd.readouterr().out
    chapter = re.match(r"# \d+ (\w+): ", page)
    headings = re.findall("^## (.*)$", page, re.MULTILINE)
    whole = re.search(r"^The whole (?:chapter|page): `attnkit help (.*)`$", page, re.MULTILINE)
    if whole:
        return whole[1], headings[0]
    return (f"lecture {chapter[1]}", "") if chapter else ("", "")


def test_phrases_of_lecture_notes_open_the_section_that_explains_them(capfd):
    """A word of the index itself opens its whole chapter, with the section in it."""
    listed = tomllib.loads((ROOT / "tests" / "phrases.toml").read_text())
    phrases = [(page, heading, one) for page, own in listed.items() for heading, some in own.items() for one in some]
    found = [help.find_section(one) for _, _, one in phrases]
    missed = [
        given for given, one in zip(phrases, found, strict=True) if one is None or (one.page, one.heading) != given[:2]
    ]
    assert len({one for _, _, one in phrases}) == len(phrases) >= 200
    assert len(missed) <= len(phrases) * 0.05, missed
    for page, heading, one in [given for given in phrases if given not in missed][::40]:
        assert shown_section(one, capfd) in ((page, heading), (page, ""))


def test_the_index_names_sections_that_exist_and_no_word_twice():
    index = tomllib.loads((help.PAGES / "index.toml").read_text())
    headings = {(one.page, one.heading) for one in help.list_sections()}
    assert {(page, heading) for page, own in index.items() for heading in own} <= headings
    words = ["".join(help.fold_words(one)) for own in index.values() for some in own.values() for one in some]
    assert [one for one, count in collections.Counter(words).items() if count > 1] == []


@pytest.mark.parametrize(
    ("words", "heading"),
    [
        ("nn.MultiheadAttention in_proj_weight average_attn_weights key_padding_mask", "Modules of PyTorch"),
        ("AdamW clip_grad_norm_ get_batch", "Optimizers, schedules and batches"),
        ("encode_iterable train_bpe", "Tokenizers"),
        ("requires_grad", "Arrays of PyTorch and JAX"),
    ],
)
def test_names_of_torch_and_of_trainers_open_the_page_of_python(words, heading, capfd):
    for word in words.split():
        assert main.main(["help", word]) == 0
        page = capfd.readouterr().out
        assert page.startswith("# python: ") and page.split("## ")[1].startswith(f"{heading}\n")


def test_a_phrase_without_a_word_of_the_index_lists_three_sections(capfd):
    assert main.main(["help", "harmless", "keys", "of", "a", "config"]) == 0
    first, _, *lines = capfd.readouterr().out.splitlines()
    assert first == "The sections with most words of 'harmless keys of a config':"
    assert len(lines) == 3 and all(re.match("- `attnkit help [a-z ]+`: .", line) for line in lines)
    assert main.main(["help", "lecture", "future", "words"]) == 0
    assert capfd.readouterr().out.startswith("# 8 masks: padding, later words, and the product of both\n\n## The look-")


def test_every_word_of_the_index_opens_a_chapter_or_a_section_before_an_option():
    words = [word for one in help.list_sections() for word in one.words]
    assert len(words) > 400
    assert [word for word in words if not (help.find_chapter(word) or help.find_indexed(word))] == []


@pytest.mark.parametrize(
    ("phrase", "first", "heading", "option"),
    [
        ("attention heads", "# 9 heads: ", "Two heads point at two words", "--heads H: "),
        ("bidirectional", "# 17 transfer: ", "BERT: a word that is masked", "--bidirectional: "),
        ("context length", "# 18 gpt: ", "Longer texts", "--size T[,S]: "),
        ("bidirectional LSTM", "# recurrence: ", "Texts, lengths and directions", ""),
        ("attention sinks", "# operators: ", "norms of queries and keys, and sinks", ""),
        ("softmax function", "# 13 logits: ", "Softmax", ""),
    ],
)
def test_an_option_comes_after_the_section_of_its_idea(phrase, first, heading, option, capfd):
    assert main.main(["help", *phrase.split()]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith(first) and f"\n\n## {heading}\n" in shown
    assert f"`\n\n{option}" in shown if option else "\n--" not in shown


def test_a_phrase_that_begins_with_a_tool_lists_its_sections(capfd):
    assert main.main(["help", "heads", "learn", "different", "things"]) == 0
    assert "`attnkit help lecture interpretability`: Which kinds of heads" in capfd.readouterr().out


def test_a_flag_with_its_dashes_is_the_option_alone(capfd):
    assert main.main(["help", "--bidirectional"]) == 0
    assert capfd.readouterr().out.startswith("--bidirectional: ")


def test_an_idea_that_is_an_option_too_ends_with_the_option(capfd):
    assert main.main(["help", "one-hot"]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith(help.find_chapter("tokens").read())
    assert "\n--one-hot: " in shown


@pytest.mark.parametrize("setting", [{"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}])
def test_no_bold_where_none_is_wanted(setting):
    shown = on_a_terminal("faults", **setting)
    assert "\x1b" not in shown and shown.startswith("faults: bad input")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["operator"], "no tool or topic 'operator'; did you mean operators?"),
        (["atend"], "no tool or topic 'atend'; did you mean attend?"),
        (["../setup"], "no tool or topic '../setup'; attnkit help lists both"),
        (["lecture", "tokkens"], "no chapter 'tokkens'; did you mean tokens?"),
        (["lecture", "99"], "no chapter '99'; attnkit help lecture lists them"),
        (["attend", "zzz"], "no tool or topic 'attend zzz'; did you mean attend?"),
        (["zzz", "qqq"], "no tool or topic 'zzz qqq'; attnkit help lists both"),
    ],
)
def test_what_is_no_topic(arguments, problem):
    done = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.decode()) == (2, b"", f"attnkit help: {problem}\n")


@pytest.mark.parametrize(
    ("stream", "problem"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
def test_a_page_that_cannot_be_written(stream, problem):
    line = f'"{sys.executable}" -m attnkit help faults {stream}'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (4, f"attnkit help: <stdout>: write error: {problem}\n")


def paths_of_the_architecture():
    """The paths that its page names, without those of files to write, whose names are in capitals."""
    named = re.findall(r"`((?:[\w.]+/)+[\w.]*|\w+\.(?:py|md))`", help.read_page("architecture"))
    return sorted({path for path in named if not re.search(r"\b[A-Z]+(\.\w+|/)$", path)})


def test_every_path_on_the_page_of_the_architecture_exists():
    paths, outside = paths_of_the_architecture(), ("attnkit/", "tests/", "samples/", "README")
    assert len(paths) > 100
    assert [
        path for path in paths if not (ROOT / ("" if path.startswith(outside) else "attnkit") / path).exists()
    ] == []


def test_the_page_of_the_architecture_names_a_file_of_every_room():
    rooms = {path.name for path in (ROOT / "attnkit").iterdir() if (path / "__init__.py").exists()}
    assert {path.split("/")[0] for path in paths_of_the_architecture()} >= rooms


def test_the_tables_that_the_architecture_names_are_where_it_says():
    page = " ".join(help.read_page("architecture").split())
    named = re.findall(r"\b([A-Z]{4,})(?:, [^.`]*?)? in `([\w/]+\.py)`", page)
    named += [(name, path) for path, name in re.findall(r"in `([\w/]+\.py)` add it to ([A-Z]{4,})", page)]
    named += [(name, path) for path, name in re.findall(r"in `([\w/]+\.py)`, [^.]*? table ([A-Z]{4,})", page)]
    assert len(named) >= 5
    for name, path in named:
        file = ROOT / path if path.startswith("tests/") else ROOT / "attnkit" / path
        assert re.search(rf"^{name}\b.* = ", file.read_text(), re.MULTILINE), f"{name} in {path}"


def test_the_functions_that_the_architecture_names_are_those_of_its_examples():
    named = dict(re.findall(r"`(\w+)\((\w+(?:, \w+)*)\)`", help.read_page("architecture")))
    assert set(named) == {"read", "encode", "read_config", "map_layers"}
    for name, parameters in named.items():
        function = getattr(npy if name in ("read", "encode") else gpt2, name)
        required = [one.name for one in inspect.signature(function).parameters.values() if one.default is one.empty]
        assert required == parameters.split(", ")


def test_the_page_of_contributing_lists_every_script_of_references():
    listed = re.findall(r"`(make_\w+\.py)`", help.read_page("contributing"))
    assert sorted(listed) == sorted(path.name for path in (ROOT / "tests" / "references").glob("make_*.py"))


def test_the_list_of_faults_has_those_that_tests_name():
    listed = re.findall(r"^- ([A-Z][0-9]+):", help.read_page("faults"), re.MULTILINE)
    files = [path for room in ("faults", "formats") for path in (ROOT / "tests" / room).glob("*.py")]
    places = [re.findall(r"^ *#( [NZSPGWRJCMIT][0-9]+(?:[,:].*)?)$", path.read_text(), re.MULTILINE) for path in files]
    places.append(re.findall("^##( .*)$", (ROOT / "tests/transcripts/faults.md").read_text(), re.MULTILINE))
    named = {number for place in itertools.chain(*places) for number in re.findall(r"\b[NZSPGWRJCMIT][0-9]+\b", place)}
    assert len(listed) == len(set(listed))
    assert named == set(listed)


def examples(tool):
    """The examples in the help of a tool, but those of files that a reader has to bring."""
    text = inspect.getdoc(find_tool(tool).function)
    lines = re.findall(r"^ +(attnkit .*)$", text.partition("Example")[2], re.MULTILINE)
    return [line for line in lines if not re.search(r"\bDIR\b|\.txt\b|my-gpt|part1\.npz", line)]


@pytest.mark.parametrize("tool", ["embed", "attend", "decode", "loss", "grad", "near"])
def test_the_examples_in_the_help_of_a_tool_run(tmp_path, tool):
    assert examples(tool)
    for example in examples(tool):
        done = subprocess.run(["bash", "-o", "pipefail", "-c", example], capture_output=True, cwd=tmp_path, text=True)
        assert done.returncode == 0, f"{example}\n{done.stderr}"
