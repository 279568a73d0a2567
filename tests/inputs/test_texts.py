"""What tools read, worked by hand: blocks of lines, packs, prompts, positions, sizes of images, windows of sounds."""

from types import SimpleNamespace

import numpy as np
import pytest

from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.checkpoints.sentence_modules import Pooling, SentenceModules
from attnkit.errors import DataError
from attnkit.inputs import encoding, packed_texts
from attnkit.inputs.attention_inputs import AttentionInputs
from attnkit.inputs.image_processor import Defaults, find_size
from attnkit.inputs.layers import ids_from_x, padding_positions
from attnkit.inputs.position_inputs import Rotation, token_angles
from attnkit.inputs.recurrent_layers import find_texts
from attnkit.inputs.sound_inputs import SoundWindows
from attnkit.records import Record
from attnkit.tokenizers import Tokenizer, Tokens
from tests.registry import load_core


def numbers(*shape):
    return Record({"x": np.zeros(shape)})


def texts_of(*lengths):
    return [SimpleNamespace(inputs=np.zeros(length, int)) for length in lengths]


@pytest.mark.parametrize(
    ("rows", "packs"), [(4, [[1], [2, 0]]), (5, [[1, 2], [0]]), (6, [[1, 2, 0]]), (1, [[1], [2], [0]])]
)
def test_packs_begin_with_the_longest_text(rows, packs):
    assert packed_texts.split_packs(texts_of(1, 3, 2), rows) == packs


def test_a_text_is_packed_if_it_has_no_mask_and_the_model_has_a_position_for_each_token():
    core = SimpleNamespace(config=SimpleNamespace(positions=SimpleNamespace(size=5, first=2)))

    def is_packable(length, **base):
        return packed_texts.is_packable(SimpleNamespace(core=core, base=base, inputs=np.zeros(length, int)))

    assert [is_packable(length) for length in (0, 1, 3, 4)] == [False, True, True, False]
    assert not is_packable(3, mask=np.ones((1, 3), bool))


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


@pytest.mark.parametrize(("ids", "left_out"), [([7, 5, 6, 9], 3), ([9, 5, 6], 3), ([9], 0), ([], 0)])
def test_a_prompt_is_left_out_of_a_vector_without_its_end(ids, left_out):
    encode, words = (lambda *_, **__: Tokens([str(id) for id in ids], ids)), (lambda: [*"0123456789"])
    tokenizer = Tokenizer(encode, words, special={"sep": 9})

    def count(prompt, *poolings):
        return encoding.count_prompt(prompt, SentenceModules(dict(enumerate(poolings))), tokenizer, None)

    assert count("query: ", Pooling(("mean",), False)) == count(
        "query: ", Pooling(("max",), True), Pooling(("mean",), False)
    )
    assert count("query: ", Pooling(("mean",), False)) == left_out
    assert count("query: ", Pooling(("mean",), True)) == count("", Pooling(("mean",), False)) == 0


def test_no_layer_is_the_embeddings_alone():
    config = load_core("gpt2").config

    def layers_of(first, last):
        return [step.layer for step in encoding.select_steps(config, "decoder", first, last)]

    assert layers_of(0, 0) == ["decoder.embed", "decoder.positions"] and layers_of(1, 1) == []
    assert layers_of(1, 2)[-1] == "decoder.norm" and all(one.startswith("decoder.1.") for one in layers_of(1, 2)[:-1])


def test_whole_numbers_alone_are_ids():
    record = ids_from_x(Record({"x": np.array([[3, 1]])}))
    assert [*record] == ["ids"] and record.axes_of("ids") == ("batch", "token")
    assert ids_from_x(Record({"x": np.array([3, 1])})).axes_of("ids") == ("token",)


def test_positions_of_a_padded_batch_begin_after_its_padding():
    mask = np.array([[[False, True, True]], [[True, True, True]]])
    assert padding_positions(mask).tolist()[0][1:] == [0, 1] and padding_positions(mask).tolist()[1] == [0, 1, 2]
    for other in (None, mask[:, 0], np.ones((2, 3, 3), bool), mask.astype(float), np.ones((2, 1, 1), bool)):
        assert padding_positions(other) is None


def test_angles_are_given_for_positions_or_for_tokens():
    x, table = np.zeros((2, 4)), np.arange(6.0).reshape(3, 2)
    cos, sin = Record({"x": table}), Record({"x": -table})
    found = token_angles(x, np.array([2, 0]), 1, 10000.0, Rotation(cos=cos, sin=sin))
    assert [one.tolist() for one in found] == [[[4, 5], [0, 1]], [[-4, -5], [0, -1]]]
    whole = Record({"x": table[None]})
    assert [one.shape for one in token_angles(x, np.array([2, 0]), 1, 10000.0, Rotation(cos=whole, sin=whole))] == [
        (1, 3, 2)
    ] * 2
    with pytest.raises(DataError, match="differ in shape"):
        token_angles(x, np.array([2, 0]), 1, 10000.0, Rotation(cos=cos, sin=Record({"x": table[:2]})))
    cosines, sines = token_angles(x, np.array([0, 1]), 2, 10000.0, Rotation(cos=cos))
    np.testing.assert_allclose([cosines[..., 0], sines[..., 0]], [np.cos([0, 1]), np.sin([0, 1])])


@pytest.mark.parametrize(("given", "size"), [((8, 6), (5, 4)), ((6, 8), (4, 5)), ((6, 6), (4, 4)), ((2, 3), (4, 6))])
def test_the_shortest_edge_of_an_image_keeps_its_proportion(given, size):
    raw = ConfigReader({"size": {"shortest_edge": 4}}, "preprocessor_config.json")
    assert find_size(raw, given, Defaults(), (4, 4), "image.png") == size


def test_windows_of_a_sound_have_whole_frames():
    windows = SoundWindows(np.zeros(12), 8, SimpleNamespace(hop=2, rate=4), 0.0)
    assert (windows.frames, windows.size, windows.seconds(3)) == (6, 4, 1.5)
