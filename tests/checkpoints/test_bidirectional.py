"""`is_causal: false` makes a decoder attend in both directions, as transformers 5.23 does (make_bidirectional.py)."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnkit
from attnkit import model
from attnkit.checkpoints import Checkpoint, open_checkpoint
from attnkit.checkpoints.publishing import published_tensors
from attnkit.errors import AttnkitNote, DataError, UsageError
from attnkit.interpret.model_sheet import describe_model
from attnkit.records import Record
from tests.checkpoints.test_config_keys import FULL, configuration
from tests.drawing import drawn_models, write_model
from tests.places import MODELS, arrays

FROZEN = arrays("bidirectional")
NAMES = [key.partition("/")[0] for key in FROZEN if key.endswith("/batch.ids")]
IGNORED = {"gpt_neo", "openai-gpt"}  # whose layers have masks of their own
DISTANCES = {"bloom", "falcon-rw"}  # ALiBi, whose bias transformers lets grow after the query
UNCLEAR = {"stablelm", "stablelm-parallel"}
READ = [name for name in NAMES if name not in IGNORED | DISTANCES | UNCLEAR]


def write(name: str, folder: Path, **changes: object) -> str:
    """The folder of a model with `is_causal: false`."""
    changes = {"is_causal": False} | changes
    if name in drawn_models():
        return str(write_model(name, folder, np.float64, **changes))
    for path in (MODELS / name).iterdir():
        shutil.copyfile(path, folder / path.name)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | changes))
    return str(folder)


def logits(opened: Checkpoint, ids: np.ndarray, mask: Any = None, counted: bool = False) -> np.ndarray:
    core = model.Model(opened.config, opened.params)
    allowed = None if mask is None else mask[:, None, None, :].astype(bool)
    positions = np.maximum(np.cumsum(mask, axis=1) - 1, 0) if counted else None
    context = model.Context(mask=allowed, dtype=np.float64, positions=positions)
    states = model.run(core, opened.config.plan(opened.config.stacks[0]), ids, context)
    return np.asarray(model.head_logits(core, states))


def close(found: np.ndarray, expected: np.ndarray, part: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=part * np.abs(expected).max())


@pytest.mark.parametrize("name", READ)
def test_every_token_attends_to_all_others(name: str, tmp_path: Path) -> None:
    opened = open_checkpoint(write(name, tmp_path))
    assert opened.config.stacks == ("encoder",) and not opened.config.encoder.causal
    given = {key.partition("/")[2]: one for key, one in FROZEN.items() if key.startswith(f"{name}/")}
    part = 1e-10
    close(logits(opened, given["ids"])[0, [0, -1]], given["eager"], part)
    counted = name.startswith("opt")  # positions of real tokens alone
    batch = logits(opened, given["batch.ids"], given["batch.mask"], counted)
    close(np.stack([batch[0, 4], batch[1, 0]]), given["batch.eager"], part)


def test_a_window_has_keys_on_both_sides_at_its_own_distance(tmp_path: Path) -> None:
    """transformers counts distances up to `sliding_window` here, and below it before a query."""
    causal = configuration(FULL["mistral 5.23.0"], sliding_window=7)
    both = configuration(FULL["mistral 5.23.0"], sliding_window=7, is_causal=False)
    assert ({*causal.decoder.windows}, {*both.encoder.windows}) == ({6}, {7})
    gemma = configuration(FULL["gemma3_text 5.23.0"], use_bidirectional_attention=True, sliding_window=8)
    further = configuration(
        FULL["gemma3_text 5.23.0"], use_bidirectional_attention=True, sliding_window=8, is_causal=None
    )
    assert ({*gemma.encoder.windows}, {*further.encoder.windows}) == ({4, -1}, {5, -1})


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_a_family_with_masks_of_its_own_ignores_the_key_and_says_so(name: str, tmp_path: Path) -> None:
    assert f"{name}/eager" not in FROZEN
    with pytest.warns(AttnkitNote, match=f"config.json: family {name} ignores is_causal false, as transformers does$"):
        opened = open_checkpoint(write(name, tmp_path))
    assert opened.config.stacks == ("decoder",) and opened.config.decoder.causal


REFUSED = [*(DISTANCES | UNCLEAR), "bart 5.23.0", "clip_text_model 5.23.0", "m2m_100 5.23.0", "marian 5.23.0",
           "mbart 5.23.0", "mt5 5.23.0", "t5 5.23.0", "whisper 5.23.0"]  # fmt: skip


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_where_transformers_is_of_two_minds_the_key_is_refused(name: str) -> None:
    """Both kinds of attention differ, or a text with a cache from one without."""
    raw = FULL.get(name) or drawn_models()[name]["config"]
    why = "eager attention and sdpa" if name in UNCLEAR or name.startswith("clip") else "attention in both directions"
    with pytest.raises(DataError, match=rf"^config\.json: is_causal false is not supported by family \S+: {why}"):
        configuration(raw, is_causal=False)
    eager, sdpa = (FROZEN.get(f"{name}/{kind}") for kind in ("eager", "sdpa"))
    assert eager is None or sdpa is None or np.abs(eager - sdpa).max() > 0.1


def test_both_kinds_of_attention_of_transformers_agree_where_the_key_is_read() -> None:
    for name in READ:
        if f"{name}/sdpa" in FROZEN:
            close(FROZEN[f"{name}/sdpa"], FROZEN[f"{name}/eager"], 1e-6)


@pytest.mark.parametrize(("name", "value"), [
    ("bert 5.23.0", True), ("vit 5.23.0", True), ("t5 5.23.0", True), ("bart 5.23.0", True), ("llama 5.23.0", None),
    ("clip_text_model 5.23.0", None), ("bart 5.23.0", None),
])  # fmt: skip
def test_where_sdpa_reads_the_key_and_eager_attention_does_not_it_is_refused(name: str, value: bool | None) -> None:
    """Frozen: the largest change by a value, in either kind of attention."""
    changes = FROZEN[f"{name.split()[0]}/changes"][:, [True, None].index(value)]
    assert min(changes) == 0 < max(changes)
    with pytest.raises(
        DataError, match=r"^config\.json: is_causal (true|null) .*eager attention and sdpa of transformers"
    ):
        configuration(FULL[name], is_causal=value)


@pytest.mark.parametrize("name", ["bert 5.23.0", "t5 5.23.0", "vit 5.23.0", "gemma3 5.23.0"])
def test_encoders_and_wrappers_do_not_read_the_key(name: str) -> None:
    raw = {**FULL[name], "is_encoder_decoder": False} if name.startswith("t5") else FULL[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AttnkitNote)
        assert configuration(raw, is_causal=False) == configuration(raw)


def test_gemma_3_reads_the_key_of_its_text_model() -> None:
    raw = FULL["gemma3 5.23.0"]
    both = configuration(raw, text_config=raw["text_config"] | {"is_causal": False})
    assert both.stacks == ("encoder",) and both.head
    with pytest.raises(DataError, match=r"use_bidirectional_attention true is not supported by family gemma3$"):
        configuration(raw, text_config=raw["text_config"] | {"use_bidirectional_attention": True})
    assert published_tensors(raw | {"text_config": raw["text_config"] | {"is_causal": False}}).config == both


@pytest.mark.parametrize("value", [0, "false", [False]])
def test_another_value_is_named(value: object) -> None:
    with pytest.raises(DataError, match=r"is_causal is .* \(expected true or false\)"):
        configuration(FULL["llama 5.23.0"], is_causal=value)


def test_no_text_is_continued_which_a_cache_would_change(tmp_path: Path) -> None:
    """transformers writes one text with its cache and another without; the head is applied to each token instead."""
    cached, whole = FROZEN["qwen3/greedy"]
    assert (cached != whole).any()
    folder = write("qwen3", tmp_path)
    ids = FROZEN["qwen3/ids"][0]
    with pytest.raises(UsageError, match="a model that generates text"):
        attnkit.decode(Record({"ids": ids}), model=folder, max_tokens=4)
    found = attnkit.decode(ids=ids, model=folder)
    assert found["next"].tolist()[0] == FROZEN["qwen3/eager"][0].argmax()
    assert attnkit.encode(Record({"ids": ids}), model=folder)["x"].shape == (17, 24)


def test_the_sheet_of_a_model_names_the_key(tmp_path: Path) -> None:
    sheet = describe_model(open_checkpoint(write("qwen3", tmp_path)))
    at = sheet.labels["fact"].index("stacks")
    assert (sheet.labels["key"][at], sheet.labels["value"][at]) == ("is_causal", "encoder")
