"""Texts of a batch, worked by hand: blocks of lines, packs, lengths, and the tokens that make a vector."""

from types import SimpleNamespace

import numpy as np
import pytest

from attnkit.errors import DataError
from attnkit.inputs import encoding, packed_texts
from attnkit.inputs.attention_inputs import AttentionInputs
from attnkit.inputs.recurrent_layers import find_texts
from attnkit.records import Record


def numbers(*shape):
    return Record({"x": np.zeros(shape)})


def texts_of(*lengths):
    return [SimpleNamespace(inputs=np.zeros(length, int)) for length in lengths]


@pytest.mark.parametrize(
    ("rows", "packs"), [(4, [[1], [2, 0]]), (5, [[1, 2], [0]]), (6, [[1, 2, 0]]), (1, [[1], [2], [0]])]
)
def test_packs_begin_with_the_longest_text(rows, packs):
    assert packed_texts.split_packs(texts_of(1, 3, 2), rows) == packs


def test_a_text_is_packed_if_the_model_has_a_position_for_each_token():
    core = SimpleNamespace(config=SimpleNamespace(positions=SimpleNamespace(size=5, first=2)))
    texts = [one for length in (0, 1, 3, 4) for one in texts_of(length)]
    assert [packed_texts.is_packable(SimpleNamespace(core=core, **vars(one))) for one in texts] == [
        *(False, True, True, False)
    ]


def test_lines_are_computed_together_up_to_a_number_of_characters(monkeypatch):
    monkeypatch.setattr(packed_texts, "CHARACTERS", 6)
    monkeypatch.setattr(packed_texts, "LINES", 3)
    lines = ["abc", "def", "g", "h", "i", "j", "klmnopq"]
    found = [[line[0] for line in some] for some in packed_texts.read_lines(iter([iter(lines)]))]
    assert found == [["abc", "def"], ["g", "h", "i"], ["j", "klmnopq"], []]


def test_a_batch_with_a_text_of_padding_alone_is_not_split():
    core = SimpleNamespace(config=SimpleNamespace(text_length=0))

    def split(*mask):
        mask = np.array(mask, bool)
        base = Record({"ids": np.array([[5, 6, 7], [8, 9, 4]]), "mask": mask[:, None]})
        encoded = encoding.Encoding(*[None] * len(encoding.Encoding._fields))
        encoded = encoded._replace(core=core, base=base, inputs=np.array([[5, 6, 7], [8, 9, 4]]))
        return [one.inputs.tolist() for one in encoding.split_batch(encoded)]

    assert split([1, 1, 1], [0, 1, 1]) == [[5, 6, 7], [9, 4]]
    assert split([1, 1, 1], [0, 0, 0]) == []


def test_the_vector_of_a_text_is_that_of_its_end_its_largest_id_or_its_last_token():
    def until(pooling, ids, order=None):
        config = SimpleNamespace(vector_pooling=pooling, special=SimpleNamespace(eos=(9,)))
        base = Record({} if ids is None else {"ids": np.array([ids])})
        real = np.ones((1, 4), bool)
        order = None if order is None else np.array([order])
        return encoding.until_end(config, base, real, order).astype(int).tolist()

    assert until("end", [3, 9, 9, 1]) == [[1, 1, 0, 0]]
    assert until("largest", [3, 4, 9, 1]) == [[1, 1, 1, 0]]
    assert until("end", [3, 9, 5, 1], [2, 3, 0, 1]) == [[1, 1, 1, 1]]  # 5 1 3 9
    assert until("last", None, [0, 3, 1, 2]) == [[1, 1, 0, 0]]  # the last token comes second
    assert until("last", None) == until("mean", None) == [[1, 1, 1, 1]]
    with pytest.raises(DataError, match="the record has no ids, by which the end of a text is found"):
        until("end", None)


def test_operands_have_the_batch_of_the_largest():
    inputs = AttentionInputs(*[None] * len(AttentionInputs._fields))
    inputs = inputs._replace(query=numbers(2, 3, 4), key=numbers(3, 4), value=numbers(3, 4))
    assert inputs.batch == 2
    assert inputs._replace(query=numbers(2, 1, 3, 4)).batch == 0


def test_lengths_of_texts_are_whole_numbers_up_to_their_tokens():
    found = find_texts(numbers(2, 3, 1), Record({"x": np.array([3.0, 1.0])}))
    assert found.lengths.tolist() == [3, 1] and found.is_batch
    assert find_texts(numbers(3, 1), None).x.shape == (1, 3, 1)
    for lengths in ([3, 4], [3], [2.5, 1]):
        with pytest.raises(DataError, match=r"^--lengths: "):
            find_texts(numbers(2, 3, 1), Record({"x": np.array(lengths)}))
