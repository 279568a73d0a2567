"""Settings of tokenizers: the ids and texts of transformers 5.23, frozen by references/make_tokenizer_settings.py."""

import json
import lzma
import shutil

import pytest

from attnkit.checkpoints.checkpoint import open_tokenizer
from tests.places import MODELS, REFERENCES

FROZEN = json.loads(lzma.decompress((REFERENCES / "tokenizer_settings.json.xz").read_bytes()))
FILES = ("config.json", "tokenizer_config.json", "tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
FILES += ("spiece.model", "tokenizer.model", "source.spm", "target.spm")


def write_folder(place, kind, settings):
    """Write the files of a kind of tokenizer, with the settings of a case in them."""
    for name in FILES:
        made, source = kind["files"].get(name), MODELS / kind["source"] / name
        if made is not None:
            (place / name).write_text(made, encoding="utf-8")
        elif source.exists() and name not in kind["without"] and not (kind["files"].get("tokenizer.json")):
            shutil.copyfile(source, place / name)
    for name, stated in settings.items():
        there = json.loads((place / name).read_text()) if (place / name).exists() else {}
        (place / name).write_text(json.dumps(there | stated))


@pytest.mark.parametrize("name", FROZEN)
def test_ids_and_texts_are_those_of_transformers(name, tmp_path):
    kind = FROZEN[name]
    assert sum(len(case["rows"]) for case in kind["cases"]) == 300
    for number, case in enumerate(kind["cases"]):
        place = tmp_path / str(number)
        place.mkdir()
        write_folder(place, kind, case["settings"])
        tokenizer = open_tokenizer(str(place))
        for text, ids, decoded in case["rows"]:
            assert tokenizer.encode(text).ids == ids, (case["settings"], text)
            assert tokenizer.decode(ids) == decoded, (case["settings"], text)
