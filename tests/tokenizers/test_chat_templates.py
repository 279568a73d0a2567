"""Chat templates: rendered and tokenized as transformers does, by folders of every kind, and hostile ones."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import attnkit
from attnkit.checkpoints.checkpoint import open_tokenizer
from attnkit.errors import AttnkitNote, DataError, FileError, UsageError
from attnkit.tokenizers import chat_renderer, chat_template
from attnkit.tokenizers.chat_template import load_chat_templates
from tests import process
from tests.places import MODELS, REFERENCES, STORY

CHATS = REFERENCES / "chats"
FROZEN = json.loads((CHATS / "chats.json").read_text())
CASES = [(name, number) for name, rows in FROZEN["chats"].items() for number in range(len(rows))]
QUESTION = [{"role": "user", "content": "hello"}]


DATE = datetime.fromtimestamp(FROZEN["seconds"], UTC).replace(tzinfo=None).isoformat()  # of the references


def render_chat(template, messages, variables, name, date=DATE):
    return chat_template.render_chat(template, messages, variables, name, date)


def special():
    return load_chat_templates(str(CHATS), "chat").special


def render(template, messages, variables, most=1 << 20):
    continues = messages[-1]["role"] == "assistant"
    return chat_renderer.render_messages(template, messages, variables, continues, DATE, most)


class TestFrozen:
    @pytest.mark.parametrize(("name", "number"), CASES)
    def test_text_or_problem(self, name, number):
        row, template = FROZEN["chats"][name][number], FROZEN["templates"][name]
        try:
            text = render(template, row["messages"], special() | row["variables"])["text"]
        except Exception as error:
            assert chat_renderer.describe_failure(error) == row["problem"]
        else:
            assert text == row["text"]

    @pytest.mark.parametrize(("folder", "key"), [(CHATS, "ids"), (MODELS / "llama", "llama")])
    def test_ids_without_special_tokens_added_twice(self, folder, key):
        tokenizer = open_tokenizer(str(folder))
        rows = [row for rows in FROZEN["chats"].values() for row in rows if "text" in row]
        assert len(rows) > 40
        for row in rows:
            assert tokenizer.encode(row["text"], with_special=False).ids == row[key], row["text"]

    @pytest.mark.parametrize("name", FROZEN["templates"])
    def test_in_a_process_of_its_own(self, name):
        row = FROZEN["chats"][name][0]
        rendered = render_chat(FROZEN["templates"][name], row["messages"], special() | row["variables"], "t.jinja")
        assert rendered.text == row["text"]
        assert [*rendered.ignored] == []


def write(path, **files):
    """Write files of a model's folder, of which `config` is tokenizer_config.json, and read its templates."""
    names = {"jinja": "chat_template.jinja", "config": "tokenizer_config.json", "legacy": "chat_template.json"}
    for name, content in files.items():
        (path / names[name]).write_text(content if name == "jinja" else json.dumps(content))
    return load_chat_templates(str(path), "chat")


NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


class TestFolders:
    def test_a_text_in_the_configuration_of_the_tokenizer(self, tmp_path):
        found = write(tmp_path, config={"chat_template": "A", "bos_token": {"content": "<s>"}, "eos_token": None})
        assert (found.select(False), found.special) == ("A", {"bos_token": "<s>"})
        assert found.name == str(tmp_path / "tokenizer_config.json") and found.files == (found.name,)

    def test_a_file_replaces_the_configuration_which_replaces_the_older_file(self, tmp_path):
        found = write(tmp_path, legacy={"chat_template": "A"})
        assert (found.select(False), found.name) == ("A", str(tmp_path / "chat_template.json"))
        assert write(tmp_path, config={"chat_template": "B"}).select(False) == "B"
        found = write(tmp_path, jinja="C")
        assert (found.select(False), found.name) == ("C", str(tmp_path / "chat_template.jinja"))

    def test_the_template_for_tools(self, tmp_path):
        found = write(tmp_path, config={"chat_template": NAMED})
        assert (found.select(False), found.select(True)) == ("D", "T")
        more = tmp_path / "additional_chat_templates"
        more.mkdir()
        (more / "tool_use.jinja").write_text("U")
        (more / "notes.txt").write_text("no template")
        found = write(tmp_path, jinja="C")
        assert found.texts == {"default": "C", "tool_use": "U"} and found.select(True) == "U"

    def test_no_template_or_no_default(self, tmp_path):
        with pytest.raises(DataError, match=r"no chat template in the folder \(looked for .*--template FILE is one"):
            write(tmp_path, config={"bos_token": "<s>"}).select(False)
        with pytest.raises(
            DataError, match=r"tokenizer_config.json: no chat template is the default \(rag, tool_use\)"
        ):
            write(tmp_path, config={"chat_template": [NAMED[1], {"name": "rag", "template": "R"}]}).select(False)

    @pytest.mark.parametrize("value", [7, {"default": "A"}, ["A"], [{"name": "default"}], [{"template": "A"}]])
    def test_a_value_that_is_no_template(self, value, tmp_path):
        with pytest.raises(DataError, match="chat_template is neither a text nor a list of objects with a name"):
            write(tmp_path, config={"chat_template": value})


def problem(template, messages=QUESTION, **variables):
    with pytest.raises(DataError) as caught:
        render_chat(template, messages, variables, "t.jinja")
    assert str(caught.value).startswith("t.jinja: chat template: ")
    return str(caught.value).removeprefix("t.jinja: chat template: ")


class TestHostile:
    @pytest.mark.linux
    def test_memory_has_a_limit(self):
        assert problem("{{ 'a' * 10000000000 }}") == "it needs too much memory"
        doubled = "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
        assert problem(doubled) == "it needs too much memory"

    def test_time_has_a_limit_in_one_operation_too(self, tmp_path, monkeypatch):
        """Of five seconds, as the message says; of one in this test."""
        source = Path(chat_template.RENDERER).read_text()
        assert "\nSECONDS = 5 " in source
        (tmp_path / "renderer.py").write_text(source.replace("\nSECONDS = 5 ", "\nSECONDS = 1 "))
        monkeypatch.setattr(chat_template, "RENDERER", str(tmp_path / "renderer.py"))
        assert problem("{{ 1.5 | round(1000000000, 'ceil') }}") == "it computes for more than 5 seconds"

    def test_loops_have_a_limit(self):
        assert problem("{% for i in range(100001) %}{% endfor %}").startswith("Range too big")
        assert problem("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}") == "it calls itself without end"

    def test_a_prompt_has_a_limit_that_grows_with_the_messages(self):
        long = "{% for i in range(1200) %}{{ messages[0].content * 1000 }}{% endfor %}"
        assert problem(long, [{"role": "user", "content": "a"}]).startswith("it writes more than 1,04")
        text = "a" * 300_000
        assert (
            len(render_chat("{{ messages[0].content * 5 }}", [{"role": "user", "content": text}], {}, "").text)
            == 1_500_000
        )

    @pytest.mark.parametrize(
        "template",
        [
            "{{ ''.__class__.__mro__ }}",
            "{{ messages.append(1) }}",
            "{{ dict.mro() }}",
            "{{ raise_exception.__globals__.os }}",
            "{% set ns = namespace(__class__=1) %}",
            "{% set ns = namespace() %}{% set ns._a = 1 %}",
            "{{ strftime_now.__globals__.os }}",
            "{{ lipsum.__globals__.os }}",
            "{% include '/etc/passwd' %}",
        ],
    )
    def test_the_sandbox_holds(self, template):
        assert problem(template)

    def test_errors_are_one_line(self):
        assert problem("{{ raise_exception('roles\nmust alternate') }}") == "roles must alternate"
        assert problem("a\n{% for %}").startswith("line 2: ")
        assert problem("{{ tools[0].x }}") == "None has no element 0"
        assert problem("{{ '\\ud800' }}").startswith("'utf-8' codec can't encode")
        assert problem("{{ messages[0].content + 1 }}") == 'can only concatenate str (not "int") to str'

    def test_a_last_message_without_text_is_not_continued(self):
        with pytest.raises(DataError, match="--messages: the last message is of the assistant and has no text"):
            render_chat("", [*QUESTION, {"role": "assistant", "tool_calls": []}], {}, "t.jinja")
        answer = {"role": "assistant", "content": "well"}
        assert problem("{{ messages[0].content }}", [*QUESTION, answer]).startswith("it leaves out the last message")

    def test_messages_that_are_not_json(self):
        deep = QUESTION
        for _ in range(300):
            deep = [deep]
        with pytest.raises(
            DataError, match="--chat: messages and variables that are not JSON: Recursion limit reached"
        ):
            render_chat("", [{"role": "user", "content": deep}], {}, "t.jinja")
        with pytest.raises(DataError, match="--chat: messages and variables that are not JSON: "):
            render_chat("", [{"role": "user", "content": "\ud800"}], {}, "t.jinja")

    def test_roles_without_effect(self):
        template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content | upper }}{% endif %}{% endfor %}"
        chat = [{"role": "critic", "content": "bad"}, *QUESTION, {"role": "critic", "content": "worse"}]
        assert render_chat(template, chat, {}, "t.jinja") == ("HELLO", ["critic"], False)
        assert render(template, chat, {}) == {"text": "HELLO", "ignored": ["critic"], "is_dated": False}

    def test_a_text_has_at_most_the_characters_allowed(self):
        assert render("{{ messages[0].content }}", QUESTION, {}, most=5)["text"] == "hello"
        with pytest.raises(ValueError, match="it writes more than 4 characters"):
            render("{{ messages[0].content }}", QUESTION, {}, most=4)

    def test_a_line_of_a_statement_alone_leaves_nothing(self):
        """No line end after it and no space before it, as transformers sets Jinja."""
        template = "a\n  {% for one in messages %}\n  {{ one.content }}\n  {% endfor %}\nb"
        assert render(template, QUESTION, {})["text"] == "a\n  hello\nb"

    def test_json_and_the_date_in_a_template(self):
        text = "{{ messages[0] | tojson(separators=(',', ':'), sort_keys=true) }}{{ strftime_now('%Y') }}"
        expected = '{"content":"hello","role":"user"}' + DATE[:4]
        assert render(text, QUESTION, {}) == {"text": expected, "ignored": [], "is_dated": True}

    def test_a_chat_that_ends_with_a_question_is_not_continued(self):
        chat = [*QUESTION, {"role": "assistant", "content": "well"}, *QUESTION]
        template = "{% for one in messages %}{{ one.content }}{% endfor %}{{ add_generation_prompt }}"
        assert render_chat(template, chat, {}, "t.jinja").text == "hellowellhelloTrue"

    def test_a_chat_that_is_continued_from_an_empty_text(self):
        chat = [*QUESTION, {"role": "assistant", "content": ""}]
        assert render("{{ messages[1].content }}", chat, {})["text"] == ""


def test_a_python_that_does_not_start_is_named(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/none/python")
    with pytest.raises(FileError, match=r"^/none/python: No such file or directory$"):
        render_chat("", QUESTION, {}, "t.jinja")


def test_a_missing_or_old_library(monkeypatch):
    import importlib.metadata

    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.1.5")
    with pytest.raises(UsageError, match=r"needs jinja2 of at least 3.1.6, not 3.1.5: pip install '\.\[text\]'"):
        render_chat("", QUESTION, {}, "t.jinja")

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(UsageError, match=r"t.jinja: needs the jinja2 library: pip install '\.\[text\]'"):
        render_chat("", QUESTION, {}, "t.jinja")


class TestDate:
    """The date that a template writes is in the history, so that a chat can be repeated on another day."""

    TEMPLATE = "{{ strftime_now('%d %b %Y') }} {{ messages[-1].content }}"

    def chat(self, text, **options):
        return attnkit.decode(text, model=STORY, chat=True, max_tokens=1, **options)

    @pytest.mark.parametrize(
        "date, written",
        [("2024-07-26", "26 Jul 2024 one"), ("1999-12-31T23:59", "31 Dec 1999 one")],
    )
    def test_an_option_sets_it(self, date, written, tmp_path):
        (tmp_path / "dated.jinja").write_text(self.TEMPLATE)
        record = self.chat("one", date=date, template=str(tmp_path / "dated.jinja"))
        assert record.labels["prompt"] == [written]
        assert f"--date {date} " in record.history[-1]["command"]

    def test_the_history_states_the_date_of_the_run(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
        (tmp_path / "dated.jinja").write_text(self.TEMPLATE)
        record = self.chat("one", template=str(tmp_path / "dated.jinja"))
        assert record.labels["prompt"] == ["02 Jan 1970 one"]
        assert "--date 1970-01-02T00:00:00" in record.history[-1]["command"]
        file = tmp_path / "chat.json"
        flags = ["--chat", "--max-tokens", "1", "--template", str(tmp_path / "dated.jinja"), "-o", str(file)]
        assert process.run("decode", "--model", STORY, "one", *flags).code == 0
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "864000")
        assert process.run("history", str(file), "--replay").out == b"1 command run again: identical bit for bit\n"

    def test_a_template_without_a_date_has_none_in_its_history(self, tmp_path):
        (tmp_path / "plain.jinja").write_text("{{ messages[-1].content }}")
        record = self.chat("one", template=str(tmp_path / "plain.jinja"))
        assert "--date" not in record.history[-1]["command"]
        with pytest.warns(AttnkitNote, match="the chat template writes no date"):
            self.chat("one", template=str(tmp_path / "plain.jinja"), date="2024-07-26")

    @pytest.mark.parametrize("date", ["today", "2024-13-01", "2024-07-26T12:30Z"])
    def test_another_text_is_refused(self, date):
        with pytest.raises(UsageError, match="date: expected a date as 2024-07-26"):
            self.chat("one", date=date)

    def test_a_variable_that_is_no_time_is_named(self, monkeypatch, tmp_path):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "noon")
        (tmp_path / "plain.jinja").write_text("{{ messages[-1].content }}")
        with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH: 'noon'"):
            self.chat("one", template=str(tmp_path / "plain.jinja"))
