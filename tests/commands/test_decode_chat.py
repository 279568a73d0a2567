"""decode --chat: a question, a system message and earlier messages to a prompt, and the answer alone."""

import json
import shutil

import numpy as np
import pytest

import attnkit
from attnkit.errors import AttnkitWarning, DataError, UsageError
from tests.places import DATA, MODELS
from tests.process import bash, on_a_terminal, run

# the messages as they are, a line each; the llama below begins them with its start token
PLAIN = "{% for m in messages %}{{ m.content | trim }}{{ '\\n' if not loop.last }}{% endfor %}"
MARKED = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}{{ tail }}"


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    return add_template(DATA / "story", tmp_path_factory.mktemp("chat") / "story", PLAIN)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return add_template(MODELS / "llama", tmp_path_factory.mktemp("chat") / "llama", MARKED)


def add_template(source, folder, template):
    shutil.copytree(source, folder)
    (folder / "chat_template.jinja").write_text(template)
    return str(folder)


def test_the_answer_is_what_the_prompt_is_continued_by(story):
    whole = attnkit.decode("One day\nOnce upon a time", model=story, max_tokens=6)
    answer = attnkit.decode(" Once upon a time ", model=story, chat=True, system="One day", max_tokens=6)
    assert np.array_equal(answer["ids"], whole["ids"]) and np.array_equal(answer["x"], whole["x"])
    assert answer.labels["prompt"] == ["One day\nOnce upon a time"]
    assert answer.labels["prompt"][0] + answer.labels["text"][0] == whole.labels["text"][0]
    assert attnkit.decode("Once upon a time", model=story, chat=True, max_tokens=2, emit="text") == " there was"


def test_a_terminal_shows_the_answer_alone(story, tmp_path):
    line = f"attnkit decode --model {story} --chat 'Once upon a time' --max-tokens 3"
    assert on_a_terminal(line, tmp_path) == " there was a\n"
    steps = on_a_terminal(f"{line} --beam 2 --steps", tmp_path)
    assert "was" in steps and "Once" not in steps


def test_special_tokens_in_the_prompt_are_whole_and_not_added_again(llama, tmp_path):
    attnkit.decode("the cat", model=llama, chat=True, max_tokens=2, trace=str(tmp_path / "run.npz"))
    tokens = attnkit.formats.load(str(tmp_path / "run.npz")).labels["token"]
    assert tokens[:1] == ["<s>"] and tokens.count("<s>") == 1
    assert tokens[:-1].count("</s>") == 1 and "".join(tokens).startswith("<s><0x5B>user<0x5D>▁the▁cat</s>")


def test_generation_ends_at_each_eos_of_the_generation_config(llama, tmp_path):
    folder = tmp_path / "llama"
    shutil.copytree(llama, folder)
    ids = attnkit.decode("the cat", model=llama, chat=True, max_tokens=4)["ids"].tolist()
    at = next(at for at, id in enumerate(ids) if at and id not in ids[:at])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, ids[at]]}))
    assert attnkit.decode("the cat", model=str(folder), chat=True)["ids"].tolist() == ids[: at + 1]


def test_messages_of_a_file_of_standard_input_and_of_python(story, tmp_path):
    messages = [{"role": "user", "content": "One day"}, {"role": "assistant", "content": "the fox"}]
    lines = "".join(json.dumps(one) + "\n" for one in messages)
    (tmp_path / "chat.jsonl").write_text(lines)
    (tmp_path / "chat.json").write_text(json.dumps(messages, indent=2))
    asked = attnkit.decode("Once upon a time", model=story, chat=True, messages=messages, max_tokens=3)
    assert asked.labels["prompt"] == ["One day\nthe fox\nOnce upon a time"]
    for name in ("chat.jsonl", "chat.json"):
        flags = ["--chat", "--messages", tmp_path / name, "--emit", "prompt"]
        assert (
            run("decode", "--model", story, "Once upon a time", *flags).out == b"One day\nthe fox\nOnce upon a time\n"
        )
    done = run("decode", "--model", story, "--chat", "--messages", "-", "--emit", "prompt", stdin=lines.encode())
    assert done.out == b"One day\nthe fox\n"  # the last message, of the assistant, is continued


def test_a_line_is_a_chat_of_its_own(story):
    line = f"printf 'Once upon a time\\nOne day\\n' | attnkit decode --model {story} --chat --emit"
    assert bash(f"{line} text --max-tokens 3 --lines").out == b" there was a\n the fox found\n"
    assert bash(f"{line} text --max-tokens 3 --batch").out == b" there was a\n the fox found\n"
    assert bash(f"{line} prompt").out == b"Once upon a time\nOne day\n"  # one message of two lines


def test_variables_and_another_template(llama, tmp_path):
    (tmp_path / "own.jinja").write_text("{{ a + 1 }} {{ b }} {{ bos_token }} {{ messages[0].content }}")
    flags = {"template": str(tmp_path / "own.jinja"), "variable": ("a=1", "b=x=y,z")}
    assert attnkit.decode("the cat", model=llama, chat=True, emit="prompt", **flags) == "2 x=y,z <s> the cat"
    prompt = attnkit.decode("the cat", model=llama, chat=True, emit="prompt", variable=("tail=[a]",))
    assert prompt == "<s>[user] the cat</s>[a]"


def test_the_score_of_an_answer(story):
    scored = attnkit.decode("Once upon a time", model=story, chat=True, score=" there was a")
    generated = attnkit.decode("Once upon a time", model=story, chat=True, max_tokens=3)
    assert np.array_equal(scored["ids"], generated["ids"])
    assert np.allclose(scored["x"], generated["x"], rtol=1e-5, atol=1e-6)


def test_the_history_names_the_template_and_can_be_replayed(story, tmp_path):
    out = tmp_path / "answer.npz"
    run("decode", "--model", story, "--chat", "Once upon a time", "--max-tokens", 3, "-o", out)
    shown = run("history", out).out.decode()
    assert "--chat" in shown and run("history", out, "--replay").code == 0
    assert "chat_template.jinja" in json.dumps(attnkit.formats.load(str(out)).history)


def test_a_message_that_the_template_leaves_out_is_named(story, tmp_path):
    (tmp_path / "users.jinja").write_text("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.warns(AttnkitWarning, match="the chat template leaves out a message of the role 'system'"):
        flags = {"system": "Be kind.", "template": str(tmp_path / "users.jinja"), "emit": "prompt"}
        assert attnkit.decode("Hi", model=story, chat=True, **flags) == "Hi"


FAULTS = [
    (["--chat", "Hi", "--tokenizer", "words", "--template", "users.jinja"], 2, "words: a model takes a tokenizer that"),
    (["--system", "a", "Hi"], 2, "--system: needs --chat"),
    (["--emit", "prompt", "Hi"], 2, "--emit prompt: needs --chat"),
    (["--chat", "--ids", "-"], 2, "--chat: cannot be combined with --ids"),
    (["--chat", "Hi", "--emit", "prompt", "--top", "2"], 2, "--emit prompt: cannot be combined with --top"),
    (["--chat", "Hi", "--variable", "a"], 2, "--variable: expected NAME=VALUE, got 'a'"),
    (["--chat", "Hi", "--variable", "messages=[]"], 2, "--variable: expected NAME=VALUE, got 'messages=[]'"),
    (["--chat", "Hi", "--messages", "none.jsonl"], 4, "none.jsonl: No such file"),
    (["--chat", "Hi", "--messages", "bad.jsonl"], 3, "bad.jsonl: line 2 column 1: "),
    (["--chat", "Hi", "--messages", "empty.jsonl"], 3, "empty.jsonl: "),
    (["--chat", "Hi", "--messages", "roles.jsonl"], 3, "roles.jsonl: message 1 is not one of a chat (expected"),
    (["--chat", "Hi", "--messages", "system.jsonl", "--system", "a"], 2, "--system: the messages of --messages have a"),
    (["--chat", "Hi", "--template", "raise.jinja"], 3, "raise.jinja: chat template: unknown role: user"),
]


@pytest.mark.parametrize(("arguments", "code", "problem"), FAULTS)
def test_faults(arguments, code, problem, story, tmp_path):
    for name, text in {
        "bad.jsonl": '{"role": "user", "content": "a"}\nb\n',
        "empty.jsonl": "",
        "users.jinja": "{{ messages[0].content }}",
        "roles.jsonl": '{"content": "a"}\n',
        "system.jsonl": '{"role": "system", "content": "a"}\n',
        "raise.jinja": "{{ raise_exception('unknown role: ' + messages[0].role) }}",
    }.items():
        (tmp_path / name).write_text(text)
    done = run("decode", "--model", story, *arguments, cwd=tmp_path)
    assert (done.code, done.out) == (code, b"")
    assert done.err.startswith(f"attnkit decode: {problem}") and done.err.count("\n") == 1


def test_models_without_a_chat():
    with pytest.raises(DataError, match=r"story: no chat template in the folder \(looked for chat_template.jinja, .*"):
        attnkit.decode("Hi", model=str(DATA / "story"), chat=True)
    with pytest.raises(UsageError, match="--chat: needs a decoder that generates text"):
        attnkit.decode("le chat", model=str(DATA / "fr-en"), chat=True)
    with pytest.raises(UsageError, match="--chat: needs a decoder that generates text"):
        attnkit.decode("the cat", model=str(MODELS / "bert-mlm"), chat=True)
    with pytest.raises(UsageError, match="--chat: needs TEXT or --messages FILE, got a record"):
        attnkit.decode(attnkit.embed("One day", model=str(DATA / "story")), model=str(DATA / "story"), chat=True)
