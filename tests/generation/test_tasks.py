"""The tasks of decode: what each reads, adds and shows, and the words that hidden states become."""

import numpy as np
import pytest

from attnkit import callbacks
from attnkit.checkpoints import open_checkpoint
from attnkit.commands.decode import choose_task
from attnkit.display import Style
from attnkit.display.blocks import drawn_in
from attnkit.errors import UsageError
from attnkit.generation.options import (
    Choices,
    DecodeOptions,
    Inspection,
    Labelling,
    Length,
    OutputMatrix,
    Search,
    SpeechOptions,
)
from attnkit.generation.words import apply_output_matrix
from attnkit.model.formulas.sampling import Sampling
from attnkit.records import Record
from tests.places import FRENCH, MODELS, ROOT, STORY
from tests.sound_files import make_syllables

INPUTS = ROOT / "tests" / "transcripts" / "inputs"
SOUND = SpeechOptions(Record({"x": make_syllables(1.0, 9)}))
TIMED, TWO, FOUR = SOUND._replace(timestamps=True), Length(max_tokens=2), Length(max_tokens=4)
TOP, STEPS, LIKELIER = Choices(top=2), Choices(steps=True), Sampling(temperature=2.0, top_k=2)
EYE, STATES = Record({"x": np.eye(3)}), Record({"x": np.zeros((2, 16)), "memory": np.ones((3, 16))})
GRAY, CAT, SOME_IDS = np.zeros((32, 32, 3), np.uint8), ("the cat",), Record({"ids": np.array([2, 3, 5])})
MATRIX = OutputMatrix(table=EYE)
SCORES, CHOICES = ["token", "id", "logprob"], ["step", "rank", "token"]
WORDS = ["position", "token", "rank"]

# task, model, options, input -> what it reads, the kinds and titles of its blocks, the first heads of its cells
VIEWS = [
    ("TextGeneration", STORY, {"length": TWO}, CAT, "prompt", ["Text"], None),
    ("TextGeneration", STORY, {"score": " a"}, CAT, "prompt", ["TextTable"], SCORES),
    ("TextGeneration", STORY, {"choices": TOP}, CAT, "prompt", ["TextTable next word"], CHOICES),
    ("TextGeneration", STORY, {"choices": STEPS, "length": TWO}, CAT, "prompt", ["Text"], CHOICES),
    ("TextGeneration", STORY, {"score": " a", "inspection": Inspection(attribute="gradient")}, CAT, "prompt",
     ["Words", "TextTable", "Text"], None),
    ("TextGeneration", STORY, {"emit": "probs", "length": TWO}, CAT, "prompt", ["TensorView x"], None),
    ("TextGeneration", FRENCH, {}, ("le chat",), "prompt", ["Text"], None),
    ("OutputHead", "bert-mlm", {}, ("the [MASK] sat",), "text", ["Candidates word at each position"], WORDS),
    ("OutputHead", "vit", {"image": GRAY}, None, "states", ["Candidates class"], WORDS),
    ("OutputHead", STORY, {"layer": "head"}, Record({"x": np.zeros((2, 64), np.float32)}), "states",
     ["Candidates next word"], WORDS),
    ("InputLabels", "bert-sequence", {}, CAT, "text", ["Text"], ["label", "score"]),
    ("InputLabels", "bert-question", {"labelling": Labelling(question="who?")}, CAT, "text", ["TextTable"],
     ["label", "score", "start"]),
    ("InputLabels", "bert-question", {"ids": SOME_IDS}, None, "text", ["TensorView x"], None),
    ("InputLabels", "bert-sequence", {"emit": "logits"}, CAT, "text", ["TensorView x"], None),
    ("FrameLabels", "wav2vec2", {"speech": SOUND}, None, "states", ["Text"], None),
    ("FrameLabels", "wav2vec2", {"speech": SOUND, "choices": TOP}, None, "states", ["Candidates label of each frame"],
     WORDS),
    ("FrameLabels", "wav2vec2", {"speech": SOUND, "emit": "ids"}, None, "states", ["TensorView x"], None),
    ("Transcription", "whisper", {"speech": TIMED, "length": FOUR}, None, "prompt", ["Text"], ["start", "end", "text"]),
    ("Transcription", "whisper", {"speech": SOUND, "length": FOUR}, None, "prompt", ["Text"], None),
    ("Transcription", "whisper", {"speech": TIMED, "length": TWO, "choices": TOP}, None, "prompt",
     ["TextTable step 0", "TextTable step 1"], CHOICES),
    ("Transcription", "whisper", {"speech": TIMED, "length": TWO, "emit": "ids"}, None, "prompt", ["TensorView x"],
     None),
    ("DecoderStack", "transformer", {}, STATES, "states", ["TensorView x"], None),
    ("ImageAgainstLabels", "clip", {"image": GRAY, "labelling": Labelling(labels=("a", "b"))}, None, "text",
     ["Candidates label"], WORDS),
    ("StatesToWords", None, {"matrix": MATRIX}, EYE, "states", ["Candidates next word"], WORDS),
    ("StatesToWords", None, {"matrix": MATRIX, "emit": "logits"}, EYE, "states", ["TensorView x"], None),
    ("StatesToWords", None, {"matrix": MATRIX, "choices": STEPS, "sampling": LIKELIER}, EYE, "states",
     ["TensorView logits", "TensorView scaled", "TensorView filtered", "TensorView x", "Candidates next word"], WORDS),
]  # fmt: skip


def task_of(name, **options):
    if name is None:
        return choose_task(DecodeOptions(**options))
    place = next(path for path in (INPUTS / name, MODELS / name, ROOT / name) if path.exists())
    return choose_task(DecodeOptions(open_checkpoint(str(place)), **options))


@pytest.mark.parametrize(("kind", "name", "options", "source", "reads", "blocks", "heads"), VIEWS)
@pytest.mark.filterwarnings("ignore::attnkit.errors.AttnkitNote")
def test_the_view_of_a_task(kind, name, options, source, reads, blocks, heads):
    task = task_of(name, **options)
    assert (type(task).__name__, task.reads) == (kind, reads)
    view = task.view(task.run(source), Style(precision=2))
    shown = drawn_in(view.blocks, "terminal")
    assert [f"{type(one).__name__} {getattr(one, 'title', '')}".strip() for one in shown] == blocks
    cells = view.cells and view.cells()
    assert (cells and list(cells.heads[: len(heads or ())])) == heads


@pytest.mark.parametrize(("name", "options", "adds", "aside"), [
    (STORY, {}, False, False),
    (STORY, {"choices": TOP}, True, False),
    (STORY, {"choices": STEPS}, True, False),
    (STORY, {"search": Search(beam=2, best=2)}, True, False),
    (None, {"choices": TOP}, False, False),
    (None, {"choices": STEPS}, True, True),
    (None, {"choices": Choices(keep=("logits",))}, True, False),
])  # fmt: skip
def test_whether_a_task_adds_tensors_and_a_table(name, options, adds, aside):
    task = task_of(name, **options)
    assert (task.adds_tensors, task.has_table_aside) == (adds, aside)
    assert task.top_is_view == (name is None)


LOGITS = np.log([[0.5, 0.25, 0.25]])


@pytest.mark.parametrize(("options", "names", "formula"), [
    ({}, ["x", "logits", "next"], "softmax(logits), logits = x W"),
    ({"emit": "logits"}, ["x"], "x W"),
    ({"emit": "probs"}, ["x"], "softmax(logits), logits = x W"),
    ({"emit": "ids"}, ["x"], "argmax(logits)"),
    ({"emit": "ids", "sampling": Sampling(seed=1)}, ["x"], "drawn"),
    ({"choices": Choices(keep=("probs",))}, ["x", "logits", "next", "probs"], "softmax(logits)"),
    ({"choices": STEPS}, ["x", "logits", "next"], "softmax(logits)"),
    ({"choices": STEPS, "sampling": LIKELIER}, ["x", "logits", "next", "scaled", "filtered"], "softmax(filtered)"),
    ({"choices": Choices(keep=("all",)), "sampling": LIKELIER},
     ["x", "logits", "next", "scaled", "filtered", "probs"], "softmax(filtered)"),
    ({"choices": Choices(keep=("scaled",)), "sampling": LIKELIER}, ["x", "logits", "next", "scaled"],
     "softmax(filtered)"),
])  # fmt: skip
def test_the_steps_from_states_to_words(options, names, formula):
    matrix = OutputMatrix(params={"w": LOGITS})
    made = task_of(None, matrix=matrix, **options).run(Record({"x": np.ones((1, 1))}))
    assert [*made] == names and made.tensor("x").formula == formula
    if "scaled" in made:
        np.testing.assert_allclose(made["scaled"], LOGITS / 2)
    if "filtered" in made:
        np.testing.assert_allclose(made["filtered"], np.where([True, True, False], LOGITS / 2, -np.inf))
    if "probs" in made:
        np.testing.assert_array_equal(made["probs"], made["x"])


def test_a_step_that_there_is_not_is_refused():
    task = task_of(None, matrix=MATRIX, choices=Choices(keep=("scaled",)))
    with pytest.raises(UsageError) as error:
        task.run(EYE)
    assert str(error.value) == "--keep: there is no scaled (it has logits, probs)"


def test_the_operands_of_an_output_matrix_are_told():
    told, params = [], {"w": np.eye(2), "b": np.array([1.0, 2.0])}
    record = Record({"x": np.array([[3.0, 4.0]])})
    with callbacks.use_callbacks(callbacks.Callbacks(on_operands=told.append)):
        output, formula = apply_output_matrix(record, OutputMatrix(params=params), None)
    [operands] = told
    assert operands.record is record and operands.core is None and formula == "x W + b"
    assert operands.logits.tolist() == output.logits.tolist() == [[4.0, 6.0]]
    assert operands.weight is params["w"] and operands.bias is params["b"]
    assert apply_output_matrix(record, OutputMatrix(params=params), "float32")[0].record["x"].dtype == np.float32
