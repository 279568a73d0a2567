"""Bad folders of models, through the real process: one line, the right exit code, nothing on standard output."""

import json
import os
import pty
import shutil
import struct
import zlib

import pytest

from tests.places import MODELS

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def without(file):
    return lambda folder: (folder / file).unlink()


def holding(file, content):
    return lambda folder: (folder / file).write_text(content)


def saying(**changes):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


# what is done to a copy of a good folder -> exit code, the file at fault, words of the message
FOLDERS = {
    "no folder": ("gpt2", shutil.rmtree, 4, "model", "o such f"),
    "no config": ("gpt2", without("config.json"), 4, "model", "no config.json"),
    "config cut": ("gpt2", holding("config.json", '{"model_type": '), 3, "model/config.json", "line 1 column 16"),
    "config no object": ("gpt2", holding("config.json", "[]"), 3, "model/config.json", "not a JSON object"),
    "config pointer": ("gpt2", holding("config.json", POINTER), 3, "model/config.json", "Git LFS pointer"),
    "no model_type": ("gpt2", saying(model_type=None), 3, "model/config.json", "model_type"),
    "unknown family": ("gpt2", saying(model_type="mamba"), 3, "model/config.json", "'mamba' is not known"),
    "ill-typed size": ("gpt2", saying(n_embd="16"), 3, "model/config.json", "n_embd"),
    "heads do not divide": ("gpt2", saying(n_head=3), 3, "model/config.json", "n_head"),
    "another width": ("gpt2", saying(n_embd=32), 3, "model/model.safetensors", "(expected (300, 32))"),
    "layers without end": ("gpt2", saying(n_layer=10**9), 3, "model/config.json", "n_layer 1000000000, and only 28"),
    "more layers": ("gpt2", saying(n_layer=3), 3, "model/model.safetensors", "h.2.ln_1.weight"),
    "no weights": ("gpt2", without("model.safetensors"), 4, "model", "model.safetensors"),
    "weights pointer": ("gpt2", holding("model.safetensors", POINTER), 3, "model/model.safetensors", "Git LFS pointer"),
    "weights empty": ("gpt2", holding("model.safetensors", ""), 3, "model/model.safetensors", "empty"),
    "shard missing": (
        "gpt2-scaled",
        lambda folder: sorted(folder.glob("model-*.safetensors"))[0].unlink(),
        4,
        "model/model-00001",
        "o such f",
    ),
    "shard pointer": (
        "gpt2-scaled",
        lambda folder: sorted(folder.glob("model-*.safetensors"))[1].write_text(POINTER),
        3,
        "model/model-00002",
        "Git LFS pointer",
    ),
}


@pytest.fixture
def broken(attnkit, request):
    """A copy of a good folder with something done to it, as `model`."""
    name, change, *rest = FOLDERS[request.param]
    shutil.copytree(MODELS / name, attnkit.folder / "model")
    change(attnkit.folder / "model")
    return rest


@pytest.mark.slow
@pytest.mark.parametrize("broken", FOLDERS, indirect=True)
@pytest.mark.parametrize(
    "line",
    ["encode --model model --ids ids.json", "decode --model model --ids ids.json", "show model"],
    ids=lambda line: line.split()[0],
)
def test_a_bad_folder_is_said_in_a_line(attnkit, refused, broken, line):
    code, file, *words = broken
    attnkit.file("ids.json", b"[1, 2, 3]")
    refused(attnkit(*line.split()), code, f"{line.split()[0]}: {file}", *words)


@pytest.mark.parametrize("tool", ["encode", "decode"])
def test_a_prompt_longer_than_the_positions(attnkit, refused, tool):
    positions = json.loads((MODELS / "gpt2" / "config.json").read_text())["n_positions"]
    attnkit.file("ids.json", json.dumps([1] * (positions + 1)).encode())
    run = attnkit(tool, "--model", str(MODELS / "gpt2"), "--ids", "ids.json")
    refused(run, 3, f"{tool}: ", f"{positions + 1} tokens, and this gpt2 model has {positions} positions")


@pytest.mark.parametrize("tool", ["embed", "encode", "decode"])
def test_a_terminal_in_place_of_text(attnkit, refused, tool):
    leader, terminal = pty.openpty()
    try:
        run = attnkit(tool, "--model", str(MODELS / "gpt2"), stdin=terminal)
    finally:
        os.close(leader)
        os.close(terminal)
    refused(run, 2, f"{tool}: no input, and standard input is a terminal: give TEXT, or pipe it in")


@pytest.fixture
def panicking(attnkit):
    """A folder of BERT whose tokenizer.json puts a second text into a single one: the library panics on a text."""
    folder = attnkit.folder / "model"
    shutil.copytree(MODELS / "bert-mlm", folder)
    settings = json.loads((folder / "tokenizer.json").read_text())
    settings["post_processor"]["single"] = [{"Sequence": {"id": "B", "type_id": 0}}]
    (folder / "tokenizer.json").write_text(json.dumps(settings))
    return "model/tokenizer.json"


@pytest.mark.parametrize("line", ["embed --dim 4 --tokenizer model/tokenizer.json", "embed --model model",
                                  "encode --model model"])  # fmt: skip
def test_a_panic_of_the_tokenizers_library(attnkit, refused, panicking, line):
    refused(attnkit(*line.split(), "the cat"), 3, f"{line.split()[0]}: {panicking}: cannot tokenize the text: ")


def test_a_panic_where_standard_error_is_closed(attnkit, panicking):
    run = attnkit.shell(f"attnkit embed --dim 4 --tokenizer {panicking} cat 2>&-; echo $?")
    assert run.out == b"3\n"


def png(*chunks):
    """A PNG of these chunks, whatever is in them."""
    made = b"\x89PNG\r\n\x1a\n"
    for kind, body in chunks:
        made += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return made


HEADER = b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0)
IMAGES = {
    "short gamma": png(HEADER, (b"gAMA", b""), (b"IDAT", zlib.compress(bytes(52))), (b"IEND", b"")),
    "short header": png((b"IHDR", b"\0\0\0\1"), (b"IEND", b"")),
    "no size": png((b"IHDR", bytes(13)), (b"IEND", b"")),
    "bomb": png((b"IHDR", struct.pack(">IIBBBBB", 12000, 9000, 8, 2, 0, 0, 0)), (b"IDAT", b""), (b"IEND", b"")),
    "signature": b"\x89PNG",
    "JPEG marks": b"\xff\xd8\xff" + bytes(range(256)),
}


@pytest.mark.parametrize("content", IMAGES.values(), ids=IMAGES)
def test_an_image_that_cannot_be_read(main, refused, attnkit, content):
    attnkit.file("image", content)
    refused(main("encode", "--model", str(MODELS / "vit"), "--image", "image"), 3, "encode: image: ")


PREPARED = [
    {"image_mean": None, "image_std": [0.5, 0.5]}, {"image_mean": 0.5}, {"image_mean": [0, "x", 1]}, {"image_std": []},
    {"image_std": [0, 1, 1]}, {"image_std": [1e-300, 1, 1]}, {"image_std": {"0": 1}}, {"resample": 99},
    {"resample": "bilinear"}, {"rescale_factor": "x"}, {"rescale_factor": 1e400}, {"do_resize": 1}, {"size": {}},
    {"size": "224"}, {"size": [32, 32]}, {"size": {"height": 32}}, {"size": {"longest_edge": 32}},
    {"size": 60_000}, {"size": {"height": 32, "width": 10**12}},
]  # fmt: skip


@pytest.mark.parametrize("changes", PREPARED, ids=str)
def test_settings_of_images(main, refused, attnkit, changes):
    folder = attnkit.folder / "model"
    shutil.copytree(MODELS / "vit", folder)
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}).replace("Infinity", "1e400"))
    run = main("encode", "--model", "model", "--image", str(MODELS / "vit.png"))
    refused(run, 3, "encode: model/preprocessor_config.json: ")


@pytest.mark.parametrize("number", ["2147483648", "9223372036854775808", "1" + "0" * 30, "1" + "0" * 400, "1e400"])
@pytest.mark.parametrize(("file", "key"), [("config.json", "vocab_size"), ("config.json", "n_positions"),
                                           ("generation_config.json", "eos_token_id")])  # fmt: skip
def test_numbers_beyond_those_of_the_machine(main, refused, attnkit, file, key, number):
    folder = attnkit.folder / "model"
    shutil.copytree(MODELS / "gpt2", folder)
    settings = json.loads((folder / file).read_text()) | {key: "NUMBER"}
    (folder / file).write_text(json.dumps(settings).replace('"NUMBER"', number))
    refused(main("decode", "--model", "model", "a cat", "--max-tokens", "1"), 3, f"decode: model/{file}: ")


@pytest.mark.parametrize("banned", ["[[9223372036854775808]]", "[[-1]]", '[["a"]]', "[3]", "3"])
def test_words_never_generated_that_are_no_ids(main, refused, attnkit, banned):
    folder = attnkit.folder / "model"
    shutil.copytree(MODELS / "marian", folder)
    (folder / "generation_config.json").write_text(f'{{"bad_words_ids": {banned}}}')
    refused(main("show", "model"), 3, "show: model/generation_config.json: bad_words_ids is ")


def test_a_rotation_that_cannot_be_computed(main, refused, attnkit):
    folder = attnkit.folder / "model"
    shutil.copytree(MODELS / "llama-yarn", folder)
    saying(rope_theta=1)(folder)
    refused(main("show", "model"), 3, "show: model/config.json: rope_theta 1")


def test_a_file_of_tensors_in_place_of_text(attnkit, refused):
    attnkit.file("states.json", b'{"tensors":{"x":{"dtype":"float32","shape":[0],"data":[]}}}')
    for tool in ("encode", "decode"):
        run = attnkit(tool, "--model", str(MODELS / "t5"), "states.json")
        refused(run, 2, f"{tool}: states.json: a file of tensors (expected TEXT); attnkit {tool} … < states.json")
    run = attnkit("embed", "--dim", "2", "--", "states.json")
    refused(run, 2, "embed: states.json: a file of tensors (expected TEXT)")
    assert attnkit("encode", "--model", str(MODELS / "t5"), "good.json").code == 0
    run = attnkit.shell(f"attnkit decode --model {MODELS / 't5'} <(cat states.json)")
    assert run.code == 2 and "a pipe (expected TEXT); attnkit decode … < /dev/fd/" in run.err
    encode = f"attnkit encode --model {MODELS / 'bert-mlm'} cat"
    piped, named = (
        attnkit.shell(f"{line} --only next -f json").out
        for line in (f"{encode} | attnkit decode --model {MODELS / 'bert-mlm'}",
                     f"attnkit decode --model {MODELS / 'bert-mlm'} <({encode})")
    )  # fmt: skip
    assert json.loads(piped)["tensors"] == json.loads(named)["tensors"]
