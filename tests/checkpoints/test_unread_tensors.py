"""Tensors that no layer of a model reads: harmless ones are silent, those of layers are refused, others are told."""

import json
import shutil

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit.checkpoints import open_checkpoint
from attnkit.checkpoints.publishing import assemble_checkpoint
from attnkit.errors import AttnkitWarning, DataError
from tests.drawing import drawn_models, write_model
from tests.gguf_models import convert
from tests.places import MODELS, ROOT, STORY, folder
from tests.process import run

SOUND = str(ROOT / "tests" / "transcripts" / "inputs" / "wav2vec2")
# what files hold besides the parameters of a model: model, tensor, shape
HARMLESS = [
    ("gpt2", "transformer.h.0.attn.bias", (1, 1, 8, 8)),
    ("gpt2", "h.0.attn.masked_bias", ()),
    ("gpt2", "score.weight", (2, 24)),
    ("gpt2", "multiple_choice_head.summary.weight", (1, 24)),
    ("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", (4,)),
    ("llama", "model.rotary_emb.inv_freq", (4,)),
    ("llama", "score.weight", (2, 24)),
    ("llama", "mtp.layers.0.self_attn.q_proj.weight", (24, 24)),
    ("bert-mlm", "bert.embeddings.position_ids", (1, 64)),
    ("bert-mlm", "cls.seq_relationship.weight", (2, 24)),
    ("bert-mlm", "bert.pooler.dense.extra", (0, 24)),
    ("bert-sequence", "cls.predictions.transform.dense.weight", (24, 24)),
    ("bert-sequence", "cls.predictions.bias", (99,)),
    ("bert", "classifier.weight", (2, 24)),
    ("roberta", "roberta.embeddings.position_ids", (1, 64)),
    ("roberta", "classifier.dense.weight", (24, 24)),
    ("distilbert", "pre_classifier.weight", (24, 24)),
    ("albert", "sop_classifier.classifier.weight", (2, 24)),
    ("deberta-v2", "mask_predictions.dense.weight", (24, 24)),
    ("t5", "encoder.embed_tokens.weight", None),
    ("t5", "decoder.embed_tokens.weight", None),
    ("t5", "lm_head.weight", None),
    ("t5", "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", (8, 4)),
    ("marian", "model.encoder.embed_positions.weight", (64, 24)),
    ("marian", "model.decoder.version", (1,)),
    ("vit", "vit.embeddings.mask_token", (1, 1, 24)),
    ("vit", "text_model.encoder.layers.0.self_attn.q_proj.weight", (24, 24)),
    ("lstm", "encoder_dp.emb.weight", (9, 8)),
    (SOUND, "quantizer.codevectors", (1, 8, 4)),
    (SOUND, "project_q.weight", (4, 4)),
]
OF_LAYERS = [  # tensors that a layer of the model would compute with
    ("gpt2", "lm_head.bias", (99,)),
    ("gpt2", "transformer.ln_f.scale", (24,)),
    ("gpt2", "h.0.attn.q_norm.weight", (24,)),
    ("llama", "lm_head.bias", (99,)),
    ("llama", "model.norm.bias", (24,)),
    ("llama", "model.layers.0.self_attn.q_proj.bias", (24,)),
    ("llama", "model.layers.1.self_attn.o_proj.bias", (24,)),
    ("llama", "model.layers.0.self_attn.sinks", (4,)),
    ("llama", "model.layers.0.self_attn.q_proj.lora_A.weight", (2, 24)),
    ("llama", "lm_head.lora_B.weight", (99, 2)),
    ("bert-mlm", "cls.predictions.transform.dense.lora_A.weight", (2, 24)),
    ("bert-mlm", "bert.encoder.layer.0.attention.self.distance_embedding.weight", (9, 6)),
    ("t5", "encoder.block.0.layer.0.SelfAttention.q.bias", (24,)),
    ("vit", "vit.embeddings.register_tokens", (1, 2, 24)),
    ("lstm", "rnns.0.weight_hr_l0", (8, 8)),
]


def with_tensors(name, place, **tensors):
    """A copy of a model whose file has further tensors."""
    shutil.copytree(MODELS / name, place, dirs_exist_ok=True)
    file = place / "model.safetensors"
    safetensors.numpy.save_file(safetensors.numpy.load_file(file) | tensors, file)
    return str(place)


def numbers(shape):
    """1, 2, 3, … of a shape."""
    return np.arange(1, 1 + np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def table_of(name):
    stored = open_checkpoint(folder(name)).params
    return np.array(stored.weights.tensor(stored.stored_name("encoder.embed", "table")))


@pytest.mark.parametrize(("name", "tensor", "shape"), HARMLESS, ids=lambda value: str(value))
def test_harmless_tensors_are_silent(name, tensor, shape, tmp_path):
    """`show` alone names them, with the reason; those without a shape are copies of the table that they are tied to."""
    array = table_of(name) if shape is None else numbers(shape)
    before = open_checkpoint(str(MODELS / name)).params.unread.harmless
    opened = open_checkpoint(with_tensors(name, tmp_path, **{tensor: array}))
    assert all(opened.params[layer] is not None for layer in opened.layers())
    new = {*opened.params.unread.harmless} - {*before}
    assert new == ({tensor} if shape is not None else set())
    if new:
        shown = "".join(run("show", str(tmp_path)).out.decode().split())  # whose columns break names
        assert f"{len(before) + 1}of{len(opened.tensors())}tensors:" in shown and tensor in shown


@pytest.mark.parametrize(("name", "tensor", "shape"), OF_LAYERS, ids=lambda value: str(value))
def test_tensors_of_layers_are_refused(name, tensor, shape, tmp_path):
    opened = open_checkpoint(with_tensors(name, tmp_path, **{tensor: numbers(shape)}))
    first = opened.layers()[0]
    for read in (opened.params.__getitem__, opened.params.stored, lambda layer: opened.params.part(layer, "table")):
        with pytest.raises(DataError, match="does not read 1 tensor of its layers: ") as raised:
            read(first)
        assert tensor in str(raised.value)


def test_a_model_of_every_reference_is_read_whole():
    for place in sorted(MODELS.iterdir()):
        if (place / "config.json").exists():
            opened = open_checkpoint(str(place))
            for one in opened.towers.values() or [opened]:
                assert (one.params.unread.of_layers, one.params.unread.others) == ([], []), place


TOOLS = (
    "encode --model MODEL --ids IDS",
    "decode --model MODEL --ids IDS --max-tokens 1",
    "decode --model MODEL --layer head STATES",
    "embed --model MODEL --ids IDS",
    "attend --model MODEL --layer decoder.0.self STATES",
    "ffn --model MODEL --layer decoder.0.ffn STATES",
    "layernorm --model MODEL --layer decoder.norm STATES",
    "diff --model MODEL --ids IDS STATES",
    "diff MODEL MODEL",
    "diff MODEL OTHER",
    "near --index MODEL STATES",
)


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    """A folder of files, and what the words of a line stand for."""
    place = tmp_path_factory.mktemp("refused")
    words = {name: numbers((24,)) for name in ("model.layers.0.self_attn.k_proj.bias", "lm_head.bias")}
    words = {"MODEL": with_tensors("llama", place / "model", **words), "OTHER": folder("llama")}
    (place / "ids.json").write_text("[[3, 4, 5]]")
    width = open_checkpoint(folder("llama")).config.width
    (place / "states.json").write_text(json.dumps(np.ones((3, width)).tolist()))
    return words | {"IDS": str(place / "ids.json"), "STATES": str(place / "states.json")}


@pytest.mark.parametrize("line", TOOLS)
def test_every_tool_that_computes_with_the_model_refuses_it(line, refused):
    done = run(*(refused.get(word, word) for word in line.split()))
    said = "family llama does not read 2 tensors of its layers: lm_head.bias, model.layers.0.self_attn.k_proj.bias"
    assert (done.code, done.out) == (3, b""), done.err
    assert said in done.err and done.err.count("\n") == 1


def test_what_is_refused_can_be_looked_at(refused):
    for part in ("", ":lm_head.bias", ":decoder.0.self", ":decoder.0.self.wq"):
        done = run("show", refused["MODEL"] + part)
        assert (done.code, done.err) == (0, "")


def test_a_bias_of_zeros_is_harmless(tmp_path):
    zeros = {"model.layers.0.self_attn.q_proj.bias": np.zeros(24, np.float16), "lm_head.bias": np.zeros((1, 99))}
    opened = open_checkpoint(with_tensors("llama", tmp_path, **zeros))
    assert opened.params["head"] and opened.params.unread.harmless == dict.fromkeys(sorted(zeros), "zeros alone")
    scalar = {"lm_head.bias": np.zeros((), np.float32)}
    assert [*open_checkpoint(with_tensors("llama", tmp_path, **scalar)).params.unread.harmless] == [*scalar]
    with pytest.raises(DataError, match=r"lm_head\.bias"):
        _ = open_checkpoint(with_tensors("llama", tmp_path, **{"lm_head.bias": np.arange(99) / 4})).params["head"]
    norm = {"model.layers.0.self_attn.q_norm.weight": np.zeros(24, np.float32)}  # which makes every query 0
    with pytest.raises(DataError, match="q_norm"):
        open_checkpoint(with_tensors("llama", tmp_path / "norm", **norm)).params["head"]


def test_a_parameter_under_two_of_its_names_is_one(tmp_path):
    """gpt2 with and without its prefix: an equal copy is silent, another is refused."""
    name = "h.0.mlp.c_fc.bias"
    array = open_checkpoint(folder("gpt2")).tensor(f"transformer.{name}")
    assert open_checkpoint(with_tensors("gpt2", tmp_path / "a", **{name: array})).params["head"]
    with pytest.raises(DataError, match=r"transformer\.h\.0\.mlp\.c_fc\.bias"):
        open_checkpoint(with_tensors("gpt2", tmp_path / "b", **{name: array + 1})).params["head"]


def test_tensors_of_shards_that_the_index_leaves_out_count(tmp_path):
    """As in transformers, which reads every tensor of the files that an index names."""
    tensors = safetensors.numpy.load_file(MODELS / "llama" / "model.safetensors")
    shutil.copy(MODELS / "llama" / "config.json", tmp_path)
    names = sorted(tensors)
    for part, kept in enumerate((names[:9], names[9:])):
        safetensors.numpy.save_file({name: tensors[name] for name in kept}, tmp_path / f"{part}.safetensors")
    listed = {name: f"{int(at >= 9)}.safetensors" for at, name in enumerate(names) if name != "lm_head.weight"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    expected = open_checkpoint(folder("llama")).params["head"]["w"]
    np.testing.assert_array_equal(open_checkpoint(str(tmp_path)).params["head"]["w"], expected)
    more = {name: tensors[name] for name in names[9:]} | {"model.norm.bias": numbers((24,))}
    safetensors.numpy.save_file(more, tmp_path / "1.safetensors")
    with pytest.raises(DataError, match=r"1\.safetensors: .*model\.norm\.bias"):
        open_checkpoint(str(tmp_path)).params["head"]


def test_other_tensors_are_told_once(tmp_path):
    model = with_tensors(STORY, tmp_path, **{"loss.weight": numbers((3,)), "extra": numbers((2,))})
    said = "2 tensors of the files are not read, which family gpt2 has no place for: extra, loss.weight"
    for line in (f"encode --model {model} Once", f"decode --model {model} Once --max-tokens 3"):
        done = run(*line.split(), "-f", "json")
        assert done.code == 0 and done.err.count(said) == 1
        assert run(*line.split(), "-f", "json", "-q").err == ""
    with pytest.warns(AttnkitWarning, match="2 tensors"):
        attnkit.encode("Once", model=model)


def test_a_layer_that_predicts_further_tokens_is_silent(tmp_path):
    """DeepSeek-V3 has one after its last, whose number none of the others has; without it, a layer too many is told."""
    further = {f"model.layers.2.{name}.weight": numbers((24, 24)) for name in ("self_attn.q_proj", "enorm")}
    with_tensors("llama", tmp_path, **further)
    assert {*open_checkpoint(str(tmp_path)).params.unread.beyond} == {*further}
    further["model.layers.2.eh_proj.weight"] = numbers((24, 48))
    with_tensors("llama", tmp_path, **further)
    unread = open_checkpoint(str(tmp_path)).params.unread
    assert {*unread.harmless} == {*further} and unread.beyond == {}


def test_experts_beyond_those_of_the_configuration_are_refused():
    raw = drawn_models()["mixtral"]
    count = raw["config"]["num_local_experts"]
    tensors = {name: numbers(shape) for name, shape in raw["shapes"].items()}
    more = {
        name.replace("experts.0.", f"experts.{count}."): one for name, one in tensors.items() if "experts.0." in name
    }
    with pytest.raises(DataError, match=f"tensors? of its layers: .*experts\\.{count}\\."):
        assemble_checkpoint(raw["config"], tensors | more).params["head"]


@pytest.mark.parametrize(("table", "text"), [(True, False), (False, True)])
def test_the_head_of_a_gemma_3_is_tied_where_the_whole_model_says_so(table, text, tmp_path):
    """A text_config that says otherwise does not count, as in transformers (make_ties.py)."""
    whole = drawn_models("ties")["gemma3"]["config"]
    changes = {"tie_word_embeddings": table, "text_config": whole["text_config"] | {"tie_word_embeddings": text}}
    opened = open_checkpoint(str(write_model("gemma3", tmp_path, kind="ties", **changes)))
    assert bool(opened.params.specs["head"]["w"].tied) is table


GGUF = [  # tensors that llama.cpp would not open a file with, and one that it leaves
    ("output.bias", (67,), "lm_head.bias"),
    ("blk.1.attn_k.bias", (32,), "model.layers.1.self_attn.k_proj.bias"),
    ("blk.1.attn_sinks.weight", (4,), "blk.1.attn_sinks.weight"),
    ("rest.weight", (4,), "rest.weight"),
    ("blk.0.attn_rot_embd.weight", (8,), ""),
]


@pytest.mark.parametrize(("name", "shape", "said"), GGUF)
def test_tensors_of_a_gguf_file_that_nothing_reads(name, shape, said, tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(convert("wide", older=lambda stored: stored | {name: numbers(shape)}))
    params = open_checkpoint(str(path)).params
    if not said:
        assert params["head"] and [*params.unread.harmless] == [name]
        return
    with pytest.raises(DataError, match="does not read 1 tensor of its layers: ") as raised:
        params["head"]
    assert said in str(raised.value)


def test_a_vocabulary_of_other_rows_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(convert("wide", {"llama.vocab_size": 66}))
    with pytest.raises(DataError, match=r"llama\.vocab_size is 66 \(expected 67, the rows of token_embd\.weight\)"):
        open_checkpoint(str(path))
