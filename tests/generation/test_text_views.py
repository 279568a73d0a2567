"""What is shown of texts and of their words, from records made by hand."""

import math

import numpy as np
import pytest

from attnkit.display import Style
from attnkit.errors import AttnkitWarning, DataError
from attnkit.generation.options import Choices, DecodeOptions
from attnkit.generation.text_views import list_choices, list_scores, score_cells, step_cells, view_generation
from attnkit.generation.words import list_candidates, replace_words, round_to_dtype, word_cells
from attnkit.inputs.output_matrix import OutputLogits
from attnkit.records import Record, Tensor

STYLE = Style(precision=2)
TWO = ("batch", "token")


def shown(record, **options):
    return view_generation(record, DecodeOptions(**options), STYLE)


def scored(ranks=([2, 1], [0, 3])):
    """Two texts of two tokens and of one, after padding; log-probabilities of 1/2, 1/4 and 1/8."""
    x = np.log([[1 / 2, 1 / 4], [1, 1 / 8]])
    tensors = {"x": x, "ids": np.array([[7, 8], [0, 9]]), "rank": np.array(ranks)}
    return Record({}).with_tensors({name: Tensor(one, TWO) for name, one in tensors.items()})


def chosen():
    """The candidates of two steps of a text, and of one of another."""
    ids = np.array([[[5, 6], [7, 8]], [[6, 5], [0, 0]]])
    numbers = {"ids": ids, "logits": ids / 2, "probs": ids / 16, "filtered": np.where(ids == 6, 0, ids / 8)}
    tensors = {f"candidates.{name}": Tensor(one, (*TWO, "rank")) for name, one in numbers.items()}
    tensors |= {"x": Tensor(np.log([[1 / 2, 1 / 4], [1 / 8, 1]]), TWO), "ids": Tensor(np.array([[5, 8], [6, 0]]), TWO)}
    tensors["mask"] = Tensor(np.array([[[True, True]], [[True, False]]]), ("batch", "all queries", "key"))
    return Record({}).with_tensors(tensors)


def test_a_text_follows_its_dim_prompt_and_its_score():
    labels = {"text": ["Once upon", "Hi there"], "prompt": ["Once", "No"]}
    record = Record({}).with_tensors({"x": Tensor(np.zeros((2, 1)), TWO)}, labels)
    texts = [block.text for block in view_generation(record, DecodeOptions(), STYLE._replace(color=True)).blocks]
    assert texts == ["\x1b[2mOnce\x1b[0m upon", "Hi there"]  # the second text does not begin with its prompt
    ranked = record.with_tensors({"scores": Tensor(np.array([-0.5, -1.25]), ("batch",))})
    assert [block.text for block in shown(ranked).blocks] == ["-0.50  Once upon", "-1.25  Hi there"]
    alone = Record({"x": np.zeros(1), "scores": np.zeros(1)}, {"text": ["Once"]})
    assert [block.text for block in shown(alone).blocks] == ["Once"]


@pytest.mark.parametrize(("emit", "names"), [(None, ["texts"]), ("text", ["texts"]), ("ids", ["x"]), ("probs", ["x"])])
def test_a_tensor_that_is_asked_for_is_shown_in_place_of_the_text(emit, names):
    record = Record({"x": Tensor(np.zeros(1), ("token",), formula="log p")}, {"text": ["Once"]})
    assert [getattr(block, "title", "texts") for block in shown(record, emit=emit).blocks] == names
    without = Record({"x": Tensor(np.zeros(1), ("token",), formula="log p")})
    assert [block.title for block in shown(without).blocks] == ["x"]


def test_scores_have_a_table_for_each_text_without_its_padding():
    first, second = list_scores(scored().with_tensors({}, {"token": [["a", "b"], ["[PAD]", "c"]]}), STYLE)
    assert [row[:2] + row[-1:] for row in first.rows] == [["a", "7", "2"], ["b", "8", "1"]]
    assert [row[:2] + row[-1:] for row in second.rows] == [["c", "9", "3"]]
    assert "sum -2.08" in first.footer and "mean -1.04" in first.footer
    spelled = scored(([2, 1], [4, 3])).with_tensors({}, {"token": [["a", "b"], ["[PAD]", "c"]]})
    assert [row[0] for row in list_scores(spelled, STYLE)[1].rows] == ["[PAD]", "c"]  # a token that has a rank
    assert [[row[0] for row in table.rows] for table in list_scores(scored(), STYLE)] == [["7", "8"], ["0", "9"]]
    assert len(shown(scored()).blocks) == 2


def test_scores_as_cells():
    heads, rows = score_cells(scored().with_tensors({}, {"token": [["a", "b"], ["[PAD]", "c"]]}))
    assert heads == ["batch", "token", "id", "logprob", "probability", "rank"]
    assert [[*row[:3], row[-1]] for row in rows] == [[0, "a", 7, 2], [0, "b", 8, 1], [1, "c", 9, 3]]
    assert [row[4] for row in rows] == pytest.approx([1 / 2, 1 / 4, 1 / 8])
    single = Record({"x": np.log([0.5]), "ids": np.array([7]), "rank": np.array([2])})
    heads, [row] = shown(single, choices=Choices(steps=True)).cells()
    assert heads == ["token", "id", "logprob", "probability", "rank"] and [row[0], row[1], row[4]] == ["7", 7, 2]


def test_choices_have_a_table_for_each_step_with_the_tokens_that_could_be_chosen():
    tables = list_choices(chosen(), STYLE)
    assert [table.title for table in tables] == ["batch 0: step 0", "batch 0: step 1", "batch 1: step 0"]
    assert [[row[0] for row in table.rows] for table in tables] == [["5"], ["7", "8"], ["5"]]  # 6 is filtered out
    assert [row[2:] for row in tables[1].rows] == [["3.50", "0.44"], ["4.00", "0.50"]]
    assert [table.footer for table in tables] == [
        "chosen: 5 (log-probability -0.69)", "chosen: 8 (log-probability -1.39)", "chosen: 6 (log-probability -2.08)",
    ]  # fmt: skip
    words = [["a", "b"], ["c", "d"], ["b", "a"], ["<pad>", "<pad>"]]
    named = chosen().with_tensors({}, {"candidates.ids": words, "token": [["a", "d"], ["b", "<pad>"]]})
    tables = shown(named, choices=Choices(top=2)).blocks
    assert [[row[1] for row in table.rows] for table in tables] == [["a"], ["c", "d"], ["a"]]
    assert tables[2].footer == "chosen: b (log-probability -2.08)"


def test_the_only_choice_is_of_the_next_word():
    names = ("ids", "logits", "probs", "filtered")
    tensors = {f"candidates.{name}": Tensor(np.array([[3, 4]]), ("token", "rank")) for name in names}
    record = Record({}).with_tensors(tensors | {"x": Tensor(np.zeros(1), ("token",)), "ids": np.array([4])})
    [table] = list_choices(record, STYLE)
    assert (table.title, table.footer) == ("next word", "chosen: 4 (log-probability 0.00)")
    heads, rows = step_cells(record)
    assert heads == ["step", "rank", *names] and rows == [[0, 0, 3, 3, 3, 3], [0, 1, 4, 4, 4, 4]]


def test_choices_as_cells():
    words = [["a", "b"], ["c", "d"], ["b", "a"], ["<pad>", "<pad>"]]
    heads, rows = step_cells(chosen().with_tensors({}, {"candidates.ids": words}))
    assert heads == ["batch", "step", "rank", "token", "ids", "logits", "probs", "filtered"]
    assert [row[:5] for row in rows[:3]] == [[0, 0, 0, "a", 5], [0, 0, 1, "b", 6], [0, 1, 0, "c", 7]]
    assert [row[:5] for row in rows[3:]] == [[0, 1, 1, "d", 8], [1, 0, 0, "b", 6], [1, 0, 1, "a", 5]]
    assert rows[3][5:] == [4.0, 0.5, 1.0]
    assert step_cells(chosen())[0] == ["batch", "step", "rank", "ids", "logits", "probs", "filtered"]


def words_of(tokens):
    x = np.array([[[0.25, 0.5, 0.25], [0.125, 0.125, 0.75]], [[1.0, 0, 0], [0, 0.25, 0.75]]])
    record = Record(
        {"x": Tensor(x, ("batch", "token", "vocab"), formula="softmax(logits)")}, {"vocab": ["a", "b", "c"]}
    )
    return record.with_tensors({}, {"token": tokens})


def test_likely_words_are_those_of_each_position_but_padding():
    first, second = list_candidates(words_of([["The", "cat"], ["sat", "[PAD]"]]), ("next word", "position"), 2)
    assert first.ids.tolist() == [[1, 0], [2, 0]] and first.probs.tolist() == [[0.5, 0.25], [0.75, 0.125]]
    assert second.ids.tolist() == [[0, 1]] and second.probs.tolist() == [[1.0, 0.0]]
    assert (first.rows, second.rows) == (["The", "cat"], ["sat"])
    assert [first.title, first.formula, first.corner] == ["batch 0", "softmax(logits)", "position"]
    heads, rows = word_cells([first, second])
    assert heads == ["batch", "position", "token", "rank", "id", "word", "probability"]
    assert rows[:3] == [[0, 0, "The", 0, 1, "b", 0.5], [0, 0, "The", 1, 0, "a", 0.25], [0, 1, "cat", 0, 2, "c", 0.75]]
    assert rows[-1] == [1, 0, "sat", 1, 1, "b", 0.0]


def test_likely_words_of_one_text_and_of_one_position():
    text = Record({"x": np.array([[0.25, 0.75], [0.5, 0.5]])})
    [one] = list_candidates(text, ("next word", "position"), 5)
    assert (one.title, one.rows, one.words, one.ids.tolist()) == ("next word", ["0", "1"], None, [[1, 0], [0, 1]])
    assert word_cells([one]).rows[0] == [0, "0", 0, 1, "", 0.75]
    [place] = list_candidates(Record({"x": np.array([0.25, 0.75])}), ("class", "image"), 1)
    assert (place.rows, place.ids.tolist(), place.corner) == (["0"], [[1]], "image")


def test_words_of_another_number_than_the_logits_are_refused():
    output = OutputLogits(Record({}), np.zeros((2, 3)), ["a", "b"], len)
    with pytest.raises(DataError) as error:
        replace_words(output, None)
    assert str(error.value) == "labels of axis 'vocab': 2 words for 3 logits"
    with pytest.raises(DataError) as error:
        replace_words(output, ["a"])
    assert str(error.value) == "--vocab: 1 word for 3 logits"
    assert replace_words(output, ["a", "b", "c"])[2:4] == (["a", "b", "c"], None)
    assert replace_words(output._replace(words=["a", "b", "c"]), None).join is len


def test_a_number_beyond_the_dtype_of_the_result_is_named():
    numbers = np.array([[1.0, 70000.0], [math.inf, -80000.0]])
    with pytest.warns(AttnkitWarning) as warned:
        rounded = round_to_dtype(numbers, np.dtype(np.float16), "logits")
    assert rounded.tolist() == [[1.0, math.inf], [math.inf, -math.inf]]
    said = "logits exceed the range of float16 at [0][1] and are written as infinity; --dtype float32 avoids this"
    assert [str(one.message) for one in warned] == [said]
