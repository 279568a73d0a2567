"""What a model costs by the table is what NumPy multiplies, and what its arrays hold, to the last number."""

import json
import subprocess
import sys

import pytest

from attnkit.checkpoints import open_checkpoint
from attnkit.errors import UsageError
from attnkit.interpret import cost
from attnkit.model import Config, StackConfig
from tests.drawing import write_model
from tests.places import MODELS, ROOT
from tests.registry import FOLDERS, TOWERS, drawn_names, place_of
from tests.traits import telling_models

LONG = 420  # tokens, whose scores are computed in tiles
CASES = ((7, 0, 1, False), (6, 9, 2, False), (12, 0, 2, True), (5, 1, 1, False), (13, 0, 2, False))
LONG_CASES = ((LONG, 0, 1, False), (LONG, 4, 1, False))
TRAINED = ("gpt2", "llama", "mistral", "t5", "lstm", "bert")


def list_cases(number, folder, is_telling):
    """The cases that a model can run: tokens, generated, texts, is_masked; of the later ones each model has one.

    A model that computes nothing which no other does has one of all.
    """
    config = open_checkpoint(folder).config
    longest = min(filter(None, (cost.longest_text(config, stack) for stack in config.stacks)), default=0)
    rest = CASES[2 + number % 3 :][:1] + (LONG_CASES if number % 4 == 0 else ())
    for tokens, generated, texts, is_masked in CASES[:2] + rest if is_telling else CASES[number % len(CASES) :][:1]:
        if config.patches or (config.sound and generated):
            tokens = cost.default_tokens(config, generated)
        is_writer = config.decoder is not None and config.head and not config.classes
        if (
            (is_writer or not generated)
            and not (is_masked and config.encoder)
            and tokens + generated <= (longest or LONG + 9)
        ):
            yield [folder, tokens, generated, texts, is_masked]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Cases, and what each of them really multiplies."""
    kinds = ("decoders", "recall", "shortconv", "state_spaces", "translators", "vision", "sounds", "waves")
    drawn = [name for kind in kinds for name in drawn_names(kind)]
    names = ("story", *FOLDERS, *drawn, *TOWERS)
    cases = [
        case
        for number, name in enumerate(names)
        for case in list_cases(number, place_of(name), name in telling_models())
    ]
    cases += [[str(MODELS / name), 9, -1, 2, False] for name in TRAINED]
    file = tmp_path_factory.mktemp("counting") / "cases.json"
    file.write_text(json.dumps(cases))
    command = [sys.executable, "-m", "tests.counting", str(file)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, check=False, text=True)
    assert run.returncode == 0, run.stderr
    return list(zip(cases, json.loads(run.stdout), strict=True))


@pytest.mark.slow
def test_the_table_counts_every_product_of_every_family_to_the_last_flop(measured):
    wrong = []
    for (folder, tokens, generated, texts, is_masked), given in measured:
        model = cost.count_model(open_checkpoint(folder))
        phases = {"prompt": cost.count_forward(model, tokens, texts)}
        if generated:
            run = cost.Workload(tokens, max(generated, 0), texts, generated < 0)
            phases = dict(zip(("prompt", "generation"), cost.count_phases(model, run).values(), strict=False))
        flops = {name: sum(stage.flops for stage in stages) for name, stages in phases.items()}
        expected = {"prompt": given.get("prompt", given["flops"])}
        expected |= (
            {"generation": given["flops"] - given["prompt"]}
            if given["flops"] > given.get("prompt", given["flops"])
            else {}
        )
        if flops != expected:
            wrong.append((folder.rsplit("/", 1)[-1], tokens, generated, texts, is_masked, flops, expected))
    assert wrong == []
    assert len(measured) > 140


@pytest.mark.slow
def test_the_weights_and_the_cache_have_the_bytes_of_their_arrays(measured):
    for (folder, tokens, generated, texts, _), given in measured:
        model = cost.count_model(open_checkpoint(folder))
        assert given["itemsize"] * model.parameters == given["weights"], folder
        if generated > 0:
            source = cost.source_tokens(model.config, tokens)
            read = 1 if source else tokens
            assert given["itemsize"] * cost.count_cache(model, read + generated - 1, source, texts) == given["cache"], (
                folder
            )


@pytest.mark.slow
def test_every_parameter_belongs_to_one_stage(measured):
    for folder in dict.fromkeys(folder for (folder, *_), _ in measured):
        model = cost.count_model(open_checkpoint(folder))
        config = model.config
        stages = cost.count_forward(model, cost.default_tokens(config))
        unused = 0 if config.is_head_pooled and config.pooling == "pooler" else model.own_size("pooler", "w", "b")
        assert sum(stage.parameters for stage in stages) == model.parameters - unused, folder


def test_a_pass_over_a_prompt_by_hand():
    """One layer of width 4 with two heads, hidden 8 and ten words; three tokens, then two more, one of them read."""
    config = Config("gpt2", 4, decoder=StackConfig(1, 2, 8, 2, 2, vocab=10, causal=True), norm_first=True)
    shapes = {layer: {} for layer in config.layer_names()}
    shapes["decoder.0.self"] = dict.fromkeys(("wq", "wk", "wv", "wo"), (4, 4))
    shapes["decoder.0.ffn"] = {"w1": (4, 8), "w2": (8, 4)}
    shapes["head"] = {"w": (4, 10)}
    phases = cost.count_generation(cost.ModelShapes(config, shapes, {}), 3, 2)
    flops = {name: {stage.name: stage.flops for stage in stages if stage.flops} for name, stages in phases.items()}
    projections = ("q", "k", "v", "output")
    assert flops["prompt"] == {
        **{f"decoder.0.self.{name}": 2 * 3 * 4 * 4 for name in projections},
        "decoder.0.self.scores": 2 * 2 * 3 * 3 * 2,  # heads, queries, keys, width of a head
        "decoder.0.self.heads": 2 * 2 * 3 * 3 * 2,
        "decoder.0.ffn.hidden": 2 * 3 * 4 * 8,
        "decoder.0.ffn.output": 2 * 3 * 8 * 4,
        "logits": 2 * 1 * 4 * 10,
    }
    assert flops["generation"] == {
        **{f"decoder.0.self.{name}": 2 * 4 * 4 for name in projections},
        "decoder.0.self.scores": 2 * 2 * 4 * 2,  # one query, four keys
        "decoder.0.self.heads": 2 * 2 * 4 * 2,
        "decoder.0.ffn.hidden": 2 * 4 * 8,
        "decoder.0.ffn.output": 2 * 8 * 4,
        "logits": 2 * 4 * 10,
    }


@pytest.mark.parametrize(("rope", "passes"), [({}, [(3, 4)]), ({"rope_type": "dynamic"}, None)])
def test_generation_is_one_group_of_passes_unless_rotations_change(rope, passes):
    config = open_checkpoint(str(MODELS / ("llama-dynamic" if rope else "llama"))).config
    prompt = 3 if passes else 100
    found = list(cost.generation_passes(config, prompt, 4, 1))
    if passes:
        assert [(one.past, one.tokens) for one in found] == passes
    else:
        assert [(one.past, one.tokens) for one in found] == [(0, length) for length in range(101, 105)]


def test_a_published_model_has_the_parameters_and_the_cache_that_its_authors_state():
    """Llama 3 8B: 8,030,261,248 parameters, and 128 KiB of keys and values a token in 16 bits."""
    stack = StackConfig(32, 32, 14336, 8, 128, vocab=128256, causal=True, final_norm=True)
    config = Config("llama", 4096, decoder=stack, norm="rms", norm_first=True)
    names = {"self": ("wq", "wk", "wv", "wo"), "ffn": ("w1", "w2", "w3"), "embed": ("table",), "head": ("w",)}
    shapes = {}
    for layer in config.layer_names():
        own = names.get(layer.rpartition(".")[2], ("gamma",))
        shapes[layer] = {name: config.parameter_shape(layer, name) for name in own}
    model = cost.ModelShapes(config, shapes, {layer: frozenset(own) for layer, own in shapes.items()})
    assert model.parameters == 8_030_261_248
    assert 2 * cost.count_cache(model, 1) == 128 * 1024
    flops = sum(stage.flops for stage in cost.count_generation(model, 1, 2)["generation"])
    scores = 2 * 2 * 32 * 32 * 2 * 128  # two products of two keys, of 32 heads in 32 layers
    tables = 128256 * 4096 + 65 * 4096  # embeddings and norms are no products
    assert flops == 2 * (model.parameters - tables) + scores


def test_the_encoder_of_a_sound_reads_all_its_positions_whatever_the_text(tmp_path):
    """Whisper of 50 positions and width 24, of which the second convolution makes each from three states before."""
    model = cost.count_model(open_checkpoint(str(write_model("whisper", tmp_path, kind="sounds"))))
    for run in (cost.Workload(7), cost.Workload(50, generate=1)):
        stages = {stage.name: stage for stages in cost.count_phases(model, run).values() for stage in stages}
        assert stages["encoder.conv2"].flops == 2 * 50 * 3 * 24 * 24
        assert stages["encoder.0.self.q"].flops == stages["decoder.0.cross.k"].flops == 2 * 50 * 24 * 24
        assert stages["decoder.0.self.q"].flops == 2 * (1 if run.generate else 7) * 24 * 24
    with pytest.raises(UsageError, match="7 tokens, and a sound of this model has 50"):
        cost.count_phases(model, cost.Workload(7, generate=1))
    assert [cost.default_tokens(model.config, generated) for generated in (0, 1)] == [40, 50]
