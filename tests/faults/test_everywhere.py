"""The same few bad inputs in every place that takes a file: operands, flags, stages of a pipeline."""

import pytest

from attnkit import cli
from tests.places import MODELS, ROOT
from tests.registry import place_of

TOOLS = {name: cli.find_tool(name) for name in cli.TOOLS}
TENSORS = {
    "empty": (b"", "empty input"),
    "cut": (b"\x93NUMPY\x01\x00v\x00{'descr", "truncated header"),
    "array cut": (b"PK\x03\x04abc", "truncated ZIP archive"),
    "header cut": (b"\x08\0\0\0\0\0\0\0{", "truncated header"),
    "JSON cut": (b"[[1,2", "line 1 column 6"),
    "ragged": (b"[[1,2],[3]]", "row 1 has 1 element"),
    "pickle": (b"\x80\x04\x95\x05\0\0\0\0\0\0\0]\x94.", "object arrays (pickle) are never loaded"),
    "text": (b"hello", "not a tensor file (looks like text)"),
    "noise": (bytes(range(255, 127, -1)), "not a tensor file"),
}
WORDS = {
    "not UTF-8": (b"a\n\xff", "not UTF-8 text (byte 2)"),
    "empty": (b"", "no words"),
    "no words": (b"\n\n", "no words"),
    "twice": (b"a\na\n", "word 'a' occurs twice"),
    "JSON cut": (b'{"a": 0', "not a vocabulary"),
    "hole": (b'{"a": 0, "b": 2}', "its ids are not 0 to 1"),
    "no number": (b'{"a": "0"}', "its ids are not 0 to 0"),
    "half": (b'{"a": 0.5}', "its ids are not 0 to 0"),
    "null": (b'{"a": null}', "its ids are not 0 to 0"),
}
TOKENIZERS = {
    "empty": (b"", "empty file"),
    "cut": (b'{"model": {', "not a tokenizer.json"),
    "not UTF-8": (b"\xff", "not UTF-8 text (byte 0)"),
    "text": (b"hello", "not a tokenizer.json"),
}
IMAGES = {"cut": (b"\x89PNG\r\n\x1a\n", "not a PNG or JPEG that can be read"), "text": TENSORS["text"]}
BAD = {
    "tensor": TENSORS,
    "tensors": TENSORS,
    "words": WORDS,
    "tokenizer": TOKENIZERS,
    "image": IMAGES,
    "audio": TENSORS,
}
BAD |= {
    "memory": TENSORS,
    "index": TENSORS | {"empty": (b"", "empty file")},
    "attended": TENSORS,
    "ids": TENSORS,
    "targets": TENSORS,
    "patches": TENSORS,
    "means": TENSORS,
    "lines": {"empty": (b"", "empty input"), "not UTF-8": (b"a\n\xff", "not UTF-8 text (byte 2)")},
    "model": {"a file": (b"", "not a folder")},
    "messages": {
        "empty": (b"", "no messages"),
        "cut": (b'{"role": 0', "line 1 column 11"),
        "text": (b"hello", "not JSON"),
        "not UTF-8": (b"\xff", "not UTF-8 text (byte 0)"),
    },
    "template": {"cut": (b"{% if", "chat template"), "not UTF-8": (b"\xff", "not UTF-8 text (byte 0)")},
}
FLAGS = [
    (name, flag.replace("_", "-").strip("-"), found.load)
    for name, tool in TOOLS.items()
    for flag, found in tool.flags.items()
    if found.load
]
GPT2, VIT, MARIAN, SEQ2SEQ, LLAMA = (str(MODELS / name) for name in ("gpt2", "vit", "marian", "seq2seq", "llama"))
WHISPER = str(ROOT / "tests" / "transcripts" / "inputs" / "whisper")
TONE = str(ROOT / "tests" / "transcripts" / "inputs" / "tone.wav")
SWEEP = ["--model", WHISPER, "--score", "t", "--patch", "encoder.*.residual"]
BESIDE = {
    "embed --vocab": ["a", "--dim", "2"],
    "embed --tokenizer": ["a", "--dim", "2"],
    "embed --table": ["a"],
    "embed --ids": ["--dim", "2"],
    "embed --model": ["a"],
    "embed --image": ["--model", VIT],
    "encode --model": ["a"],
    "encode --ids": ["--model", GPT2],
    "encode --image": ["--model", VIT],
    "encode --audio": ["--model", WHISPER],
    "decode --audio": ["--model", WHISPER],
    "encode --tokenizer": ["a", "--model", GPT2],
    "encode --patch": ["a", "--model", GPT2],
    "decode --vocab": ["good.json", "--table", "good.json"],
    "decode --ids": ["--model", GPT2],
    "decode --messages": ["--model", LLAMA, "--chat"],
    "decode --template": ["a", "--model", LLAMA, "--chat"],
    "decode --image": ["--model", VIT],
    "decode --memory": ["--model", MARIAN],
    "encode --mean": ["a", "--model", GPT2, "--ablate", "decoder.0.self"],
    "decode --mean": ["a", "--model", GPT2, "--ablate", "decoder.0.self"],
    "diff --ids": ["good.json", "--model", GPT2],
    "diff --image": ["good.json", "--model", VIT],
    "diff --audio": ["good.json", "--model", WHISPER],
    "diff --text": [GPT2, GPT2],
    "scan --model": ["a", "--score", " a", "--ablate", "heads"],
    "scan --audio": [*SWEEP, "--against-audio", TONE],
    "scan --against-audio": [*SWEEP, "--audio", TONE],
    "scan --mean": ["a", "--model", GPT2, "--score", " a", "--ablate", "heads"],
    "decode --cache-in": ["--model", GPT2],
    "decode --tokenizer": ["a", "--model", GPT2],
    "decode --patch": ["a", "--model", GPT2, "--max-tokens", "0"],
    "attend --past-key": ["good.json", "--past-value", "good.json"],
    "attend --past-value": ["good.json", "--past-key", "good.json"],
    "rnn --memory": ["good.json", "--model", SEQ2SEQ, "--layer", "decoder.rnn"],
    "heads --model": [],
    "rnn --lengths": ["good.json", "--hidden", "2"],
    "rnn --state-in": ["good.json", "--hidden", "2"],
    "conv --add": ["good.json", "--model", place_of("lfm2"), "--layer", "decoder.0.shortconv"],
    "conv --state-in": ["good.json", "--filters", "2", "--size", "2", "--padding", "causal"],
    "recall --beta": ["good.json", "--rule", "delta"],
    "recall --decay": ["good.json", "--rule", "gated-delta"],
    "ffn --add": ["good.json", "--hidden", "2"],
    "linear --add": ["good.json", "--params", "weights.json"],
    "layernorm --mean": ["good.json", "--kind", "batch", "--variance", "good.json"],
    "layernorm --variance": ["good.json", "--kind", "batch", "--mean", "good.json"],
    "posenc --cos": ["good.json", "--kind", "rotary", "--sin", "good.json"],
    "posenc --sin": ["good.json", "--kind", "rotary", "--cos", "good.json"],
    "posenc --table": ["good.json", "--kind", "learned"],
    "loss --weights": ["good.json", "--target", "0"],
    "score --source": ["good.json", "--references", "good.json", "--by", "length:10"],
}
NAMED = {"patches": "encoder.0.norm1={}", "targets": "./{}"}  # where a bare name is not a file
WEIGHTS = b'{"w":[[1,0],[0,1]]}'
OLD = {"history": "old.svg", "explore": "old.html"}  # which write text and a page
WITHOUT_TENSORS = {
    "check",
    "cost",
    "embed",
    "encode",
    "engines",
    "exercise",
    "golden",
    "grad",
    "run",
    "sample",
    "scan",
    "score",
    "train",
}  # as operands
READING = {
    "mask": ["--causal"],
    "ffn": ["--hidden", "2"],
    "conv": ["--filters", "2", "--size", "1"],
    "rnn": ["--hidden", "2"],
    "linear": ["--params", "weights.json"],
    "near": ["--index", "good.json", "--top", "1"],
    "lens": ["--model", GPT2],
    "decode": ["--table", "good.json"],
    "loss": ["--target", "0"],
}


@pytest.mark.slow
@pytest.mark.parametrize(("tool", "flag", "load"), FLAGS, ids=[f"{tool} --{flag}" for tool, flag, _ in FLAGS])
def test_files_of_flags(attnkit, main, refused, tool, flag, load):
    attnkit.file("weights.json", WEIGHTS)
    line = [tool, *BESIDE.get(f"{tool} --{flag}", ["good.json"]), f"--{flag}"]
    named = NAMED.get(load, "{}")
    place = "./" if load == "targets" else ""
    for content, problem in BAD[load].values():
        old = OLD.get(tool, "old.json")
        run = main(*line, named.format(attnkit.file("bad", content)), "-o", attnkit.file(old, b"old"))
        refused(run, 4 if load == "model" else 3, f"{tool}: {place}bad: ", problem)
        assert (attnkit.folder / old).read_bytes() == b"old"
    refused(main(*line, named.format("missing")), 4, f"{tool}: {place}missing: ", "o such f")
    refused(
        main(*line, named.format(".")),
        4,
        f"{tool}: {place}.: ",
        "no config.json" if load in ("model", "index") else "Is a directory",
    )
    if load in ("tensor", "attended"):
        refused(main(*line, "good.json:y"), 3, f"{tool}: good.json: no tensor 'y' (it has x)")


@pytest.mark.slow
@pytest.mark.parametrize("tool", sorted(set(TOOLS) - WITHOUT_TENSORS))
def test_operands(attnkit, main, refused, tool):
    attnkit.file("weights.json", WEIGHTS)
    for content, problem in TENSORS.values():
        name = attnkit.file("bad", content)
        old = OLD.get(tool, "old.json")
        for operands in [["bad"], ["bad:x"]] if tool != "diff" else [["bad", "good.json"], ["good.json", "bad"]]:
            run = main(tool, *operands, *READING.get(tool, []), "-o", attnkit.file(old, b"old"))
            refused(run, 3, f"{tool}: {name}: ", problem)
            assert (attnkit.folder / old).read_bytes() == b"old"


@pytest.mark.slow
@pytest.mark.parametrize("tool", sorted(set(TOOLS) - WITHOUT_TENSORS - {"diff", "explore", "history"}))
def test_stages_of_a_pipeline(attnkit, main, refused, tool):
    attnkit.file("weights.json", WEIGHTS)
    flags = " ".join(READING.get(tool, []))
    for content, problem in TENSORS.values():
        attnkit.file("bad", content)
        run = main("run", f"{tool} bad {flags} -f json | layernorm | show", "-o", attnkit.file("old.json", b"old"))
        refused(run, 3, f"{tool}: bad: ", problem)
        if tool not in ("merge", "rollout", "heads", "lens", "mel"):  # which take parts, traces and sounds alone
            run = main("run", f"layernorm good.json | {tool} {flags} -f json | attend --mask bad")
            refused(run._replace(err=last_line(run.err)), 3, "attend: bad: ", problem)
        assert (attnkit.folder / "old.json").read_bytes() == b"old"


def last_line(text):
    """The last line: peek shows on standard error what goes through it."""
    return text.splitlines(keepends=True)[-1]


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["attend", "--model=:"], "attend: --model: expected DIR, got ':', a tensor of the input"),
        (["attend", "--params=:x"], "attend: --params: expected FILE, got ':x', a tensor of the input"),
        (["decode", "--vocab=:x"], "decode: --vocab: expected FILE, got ':x', a tensor of the input"),
        (["show", "--precision", "1000000000000"], "show: --precision: expected a whole number of at least 0 and of"),
    ],
)
def test_values_that_no_option_has(attnkit, main, refused, command, problem):
    place, _, rest = problem.partition(": ")
    refused(main(*command, attnkit.file("x.json", b"[[1,2]]")), 2, f"{place}: ", rest)


@pytest.mark.parametrize(
    ("content", "code", "problem"),
    # T6
    {
        "not UTF-8": (b"layernorm \xff", 3, "./bad: not UTF-8 text (byte 10)"),
        "empty": (b"", 2, "an empty stage"),
        "tensor": (b"[[1,2]]", 2, "no tool '[[1,2]]'"),
        "101 stages": (b"softmax |" * 100 + b"softmax", 2, "more than 100 stages; -o FILE writes a result"),
        "many empty stages": (b"posenc" + b" |" * 60_000, 2, "an empty stage"),
        "too long": (b"|" * 131_073, 2, "a pipeline of 131,073 characters (limit 131,072)"),
    }.values(),
)
def test_files_of_pipelines(attnkit, main, refused, content, code, problem):
    attnkit.file("bad", content)
    refused(main("run", "./bad"), code, "run: ", problem)


def test_no_flag_is_left_out():
    assert {load for _, _, load in FLAGS} == set(BAD)
