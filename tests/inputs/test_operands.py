"""The operands that tools make of records, files and seeds, worked by hand: shapes, names, rows and refusals."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from attnkit import model
from attnkit.checkpoints.config_reader import ConfigReader
from attnkit.errors import AttnkitError, AttnkitWarning, DataError
from attnkit.formats.streams import Source
from attnkit.inputs import (
    answers,
    attention_inputs,
    convolution_stage,
    detokenizer,
    encoding,
    layers,
    mask_rules,
    operands,
    output_matrix,
    patches,
    recurrent_layers,
    sound_inputs,
    source_states,
    targets,
    text_columns,
    text_inputs,
)
from attnkit.inputs.image_processor import ImageProcessor, crop_center, new_processor
from attnkit.inputs.recurrent_layers import RecurrentOptions, Texts
from attnkit.model.config import PatchConfig
from attnkit.model.formulas import recurrent
from attnkit.model.formulas.convolution import Convolution
from attnkit.model.formulas.recurrent import RecurrentLayer
from attnkit.records import Record, Tensor
from attnkit.tokenizers import Tokenizer, Tokens
from tests.registry import open_model


def of_shape(*shape):
    return np.arange(float(np.prod(shape))).reshape(shape)


def shapes(arrays):
    return {name: one.shape for name, one in arrays.items()}


# Sounds


@pytest.mark.parametrize(
    ("x", "axes", "rate", "expected"),
    [
        ([1, 2], None, None, [1, 2]),
        ([[1.0, 2.0], [3.0, 6.0]], ("channel", "sample"), 16, [2, 4]),
        ([[1, 2], [2, 6]], ("channel", "sample"), 16, [1.5, 4]),
        ([[1.0, 2.0]], ("channel", "sample"), 16, [1, 2]),
        ([[1.0, 2.0], [3.0, 6.0]], ("frame", "mel"), 16, [[1, 2], [3, 6]]),
    ],
)
def test_samples_of_a_sound_are_the_mean_of_its_channels(x, axes, rate, expected):
    record = Record({"x": Tensor(np.array(x), axes)} | ({} if rate is None else {"sample_rate": np.array([rate])}))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert sound_inputs.find_samples(record, 16).tolist() == expected
    two = axes == ("channel", "sample") and len(x) > 1
    assert [str(one.message) for one in said] == ["the 2 channels of the sound are averaged"] * two


@pytest.mark.parametrize("rates", [[8, 16], [16, 16]])
def test_a_sound_of_several_rates_is_refused(rates):
    record = Record({"x": np.zeros(4), "sample_rate": np.array(rates)})
    with pytest.raises(DataError, match=r"a sound of several sample_rates \(expected 16\)"):
        sound_inputs.find_samples(record, 16, "--audio")


def test_the_mean_of_channels_is_computed_in_float64():
    two = np.full((2, 1), 3e38, np.float32)
    with pytest.warns(AttnkitWarning, match="2 channels"):
        found = sound_inputs.find_samples(Record({"x": Tensor(two, ("channel", "sample"))}), 16)
    assert found.dtype == np.float32 and found == two[0]


def test_a_window_of_a_sound_is_shown_with_zeros_after_it():
    heard = sound_inputs.Spectrogram()
    sound = np.sin(np.arange(5 * heard.hop))
    windows = sound_inputs.open_windows(Record({"x": sound}), 4 * heard.hop, heard)
    assert (windows.frames, windows.size) == (5, 4)
    whole = sound_inputs.log_mel(sound, heard)["output"]
    np.testing.assert_allclose(windows.read(0), whole[:4])
    np.testing.assert_allclose(windows.read(3), np.vstack([whole[3:], np.zeros((2, heard.mels))]))
    short = sound_inputs.open_windows(Record({"x": sound}), 9 * heard.hop, heard)
    assert (short.frames, short.size, len(short.samples)) == (9, 9, 9 * heard.hop)
    reader = SimpleNamespace(samples=4, spectrogram=heard)
    longer = [sound_inputs.exceeds_window(Record({"x": np.zeros(size)}), reader) for size in (4, 5, ())]
    assert longer == [False, True, False]


# Weights that are drawn


def test_weights_of_attention_are_drawn_for_grouped_heads():
    q, k, v = of_shape(3, 8), of_shape(5, 6), of_shape(5, 7)
    drawn = attention_inputs.random_attention_weights(q, k, v, 4, 2, 5)
    assert shapes(drawn) == {"wq": (8, 8), "wk": (6, 4), "wv": (7, 4), "wo": (8, 8)}
    rng = np.random.default_rng(5)
    for name, (rows, columns) in shapes(drawn).items():
        np.testing.assert_array_equal(drawn[name], model.random_weight(rng, rows, columns), name)
    for wrong in (np.ones((1, 2, 3, 4)), np.ones(4), np.ones((3, 6))):
        with pytest.raises(DataError):
            attention_inputs.random_attention_weights(wrong, k, v, 4, 2, 5)


def test_weights_of_a_score_are_drawn_for_the_width_of_a_head():
    q, k = of_shape(3, 8), of_shape(5, 6)
    additive = attention_inputs.score_parameters(q, k, "additive", (4, 2), 1)
    assert shapes(additive) == {"wa": (2, 2), "ua": (3, 2), "va": (2,)}
    assert shapes(attention_inputs.score_parameters(q, k, "general", (4, 2), 1)) == {"w": (2, 3)}
    split = attention_inputs.score_parameters(of_shape(1, 4, 3, 5), of_shape(1, 2, 3, 6), "general", (4, 2), 1)
    assert shapes(split) == {"w": (5, 6)}
    with pytest.raises(AttnkitError, match=r"additive needs wa \(2, A\), ua \(3, A\), va \(A\); --params"):
        attention_inputs.score_parameters(q, k, "additive", (4, 2), None)
    with pytest.raises(AttnkitError, match=r"general needs w \(2, 3\); --params"):
        attention_inputs.score_parameters(q, k, "general", (4, 2), None)


@pytest.mark.parametrize(
    ("chosen", "first", "later"),
    [
        ({"cell": "tanh", "hidden": 3}, {"input": (3, 2), "hidden": (3, 3)}, {"input": (3, 3)}),
        ({"cell": "gru", "hidden": 3, "bidirectional": True}, {"input": (9, 2), "hidden": (9, 3)}, {"input": (9, 6)}),
        ({"cell": "lstm", "hidden": 3, "projection": 2, "peepholes": True},
         {"input": (12, 2), "hidden": (12, 2), "peephole": (3, 3), "projection": (2, 3)}, {"input": (12, 2)}),
    ],
)  # fmt: skip
def test_weights_of_recurrent_layers_are_drawn(chosen, first, later):
    options = RecurrentOptions(layers=2, **chosen)
    layers = recurrent_layers.find_recurrent_weights(of_shape(4, 2), options).layers
    assert shapes(layers[0].forward) == first and shapes(layers[1].forward) == first | later
    assert (layers[0].reverse is not None) == options.bidirectional
    reverse = recurrent_layers.find_recurrent_weights(
        of_shape(4, 2), options._replace(reverse=True, bidirectional=False)
    )
    assert reverse.layers[0].forward is None and shapes(reverse.layers[0].reverse) == first
    rng = np.random.default_rng(0)
    rows, columns = first["input"]
    np.testing.assert_array_equal(layers[0].forward["input"], model.random_weight(rng, columns, rows).T)


# States in files


def states_file(**changes):
    return {"hidden": of_shape(2, 3), "cell": 10 + of_shape(2, 3), "position": np.array(4)} | changes


def lstm(*directions):
    parameters = {"input": of_shape(12, 2), "hidden": of_shape(12, 3)}
    return RecurrentLayer(*(parameters if is_there else None for is_there in directions))


def test_states_of_a_file_belong_to_layers_in_order_forward_first():
    one = Texts(np.zeros((1, 2, 2)), None, False)
    states, position = recurrent_layers.read_state_file(states_file(), "lstm", [lstm(1), lstm(0, 1)], one)
    assert position == 4
    (first, nothing), (none, second) = states
    assert nothing is none is None
    assert first.hidden.tolist() == [[0, 1, 2]] and second.hidden.tolist() == [[3, 4, 5]]
    assert first.cell.tolist() == [[10, 11, 12]] and second.cell.tolist() == [[13, 14, 15]]
    record = recurrent_layers.states_record(states, one, position)
    for name, array in states_file().items():
        np.testing.assert_array_equal(record[name], array)
    assert record.axes_of("hidden") == ("layer", "model") and record.axes_of("cell") == ("layer", "hidden")
    batch = recurrent_layers.states_record(states, one._replace(is_batch=True), 0)
    assert batch.axes_of("hidden") == ("layer", "batch", "model") and batch["hidden"].shape == (2, 1, 3)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden": of_shape(2, 1, 3)}, r"hidden \(2, ?1, ?3\): expected \(2, ?3\)"),
        ({"cell": of_shape(2, 4)}, r"cell \(2, ?4\): expected \(2, ?3\)"),
        ({"cell": np.zeros((2, 3), int)}, "cell is int64: expected floats"),
        ({"other": np.zeros(1)}, "other is not one of: hidden, cell, position"),
        ({"position": np.array(-1)}, "one whole number of at least 0"),
        ({"position": np.array(1.0)}, "one whole number of at least 0"),
        ({"position": np.array([1])}, "one whole number of at least 0"),
    ],
)
def test_states_of_another_shape_are_refused(changes, problem):
    one = Texts(np.zeros((1, 2, 2)), None, False)
    with pytest.raises(DataError, match=problem):
        recurrent_layers.read_state_file(states_file(**changes), "lstm", [lstm(1), lstm(1)], one)


@pytest.mark.parametrize(
    ("hidden", "cell", "problem"),
    [
        (np.ones((4, 3)), "gru", r"weight_hh_l0 \(4, ?3\): expected \(G·hidden, hidden\) with G 1, 3 or 4"),
        (np.ones((3, 9)), "gru", "it is transposed"),
        (np.ones(9), "gru", "expected .G·hidden, hidden."),
        (
            np.ones((12, 3)),
            "gru",
            r"PyTorch's layout of an LSTM \(4 blocks of rows: i f g o\), but --cell gru is a GRU",
        ),
        (np.ones((3, 3)), "lstm", r"layout of an RNN without gates \(1 block of rows\), but --cell lstm is an LSTM"),
    ],
)
def test_blocks_of_rows_are_those_of_the_cell(hidden, cell, problem):
    with pytest.raises(DataError, match=problem):
        recurrent_layers.check_blocks({"hidden": hidden}, cell, 0, "torch")
    recurrent_layers.check_blocks({"hidden": np.ones((9, 3))}, "gru", 0, "torch")


def test_what_is_kept_of_a_cell():
    expand = recurrent_layers.expand_names
    gates = ("input_gate", "forget_gate", "candidate", "output_gate")
    assert expand(("all",), "lstm", False, True) == (*gates, "cell", "state")
    assert expand(("cell", "gates"), "lstm", False, True) == (*gates, "cell")
    assert expand((), "lstm", True, True) == (*gates, "cell") and expand((), "tanh", True, False) == ("state",)
    for names, cell, problem in (
        (("gates",), "tanh", "a cell tanh has no gates"),
        (("x", "cell"), "gru", "no x and no cell"),
    ):
        with pytest.raises(AttnkitError, match=problem):
            expand(names, cell, False, True)


# Ids, texts and targets


def test_texts_are_padded_on_the_right():
    tokens, ids = [["a"], ["b", "c"]], [[5], [6, 7]]
    padded = text_inputs.pad_batch(tokens, ids, 9, "-", False)
    assert padded.ids.tolist() == [[5, 9], [6, 7]] and padded.tokens == [["a", "-"], ["b", "c"]]
    assert padded.mask.tolist() == [[[True, False]], [[True, True]]]
    one = text_inputs.pad_batch(tokens[1:], ids[1:], 9, "-", False)
    assert one.ids.tolist() == [6, 7] and one.tokens == ["b", "c"] and one.mask is None
    assert text_inputs.pad_batch(tokens[1:], ids[1:], 9, "-", True).mask.tolist() == [[[True, True]]]


def test_a_vocabulary_is_as_long_as_the_model():
    tokenizer = Tokenizer(lambda text: Tokens([text]), lambda: ["a", "b", "c"])
    sizes = {size: text_inputs.vocabulary_of(None, "source", tokenizer, size) for size in (2, 3, 4)}
    assert sizes == {2: ["a", "b"], 3: ["a", "b", "c"], 4: ["a", "b", "c", ""]}


@pytest.mark.parametrize(
    ("ids", "special", "expected"),
    [
        ([5, 1], {"bos": 5, "eos": (0,)}, [1, 0]),
        ([1], {"bos": 5, "eos": (0, 7)}, [1, 0]),
        ([1, 7], {"eos": (0, 7)}, [1, 7]),
        ([5, 1], {"bos": 5, "start": 3}, [5, 1]),
        ([3, 1], {"bos": 5, "start": 3}, [1]),
    ],
)
def test_a_target_ends_once(ids, special, expected):
    special = model.SpecialTokens(**special)
    assert text_inputs.with_eos(ids, special) == expected
    first = special.bos if special.start is None else special.start
    words = text_inputs.decoder_input(Tokens([str(one) for one in ids], ids), special, [*"abcde"])
    assert words.ids == [*([] if first is None else [first]), *expected]
    assert words.spellings == ["abcde"[one] if one < 5 else str(one) for one in words.ids]


@pytest.mark.parametrize(
    ("target", "shape", "expected"),
    [
        ([1, 2], (2, 3), [1, 2]),
        ([2], (3, 3), [-100, -100, 2]),
        ([-100, 2], (3, 3), [-100, -100, 2]),
        (2, (3,), 2),
        ([2], (1, 2, 3), [[-100, 2]]),
        ([[1, 2], [0, -100]], (2, 2, 3), [[1, 2], [0, -100]]),
        ("a b", (2, 3), [0, 1]),
        ("c", (3, 3), [-100, -100, 2]),
        ("0, 2", (2, 3), [0, 2]),
        ([2], (3,), 2),
    ],
)
def test_targets_belong_to_the_last_rows(target, shape, expected):
    target = target if isinstance(target, str) else np.array(target)
    assert targets.find_targets(target, shape, ["a", "b", "c"], -100).tolist() == expected


@pytest.mark.parametrize(
    ("target", "shape", "problem"),
    [
        ([0, 1, 2], (2, 3), "3 targets for 2 rows of logits"),
        (np.zeros(0, int), (2, 3), "0 targets for 2 rows"),
        ([[0], [1]], (2, 2, 3), r"targets \(2, 1\): expected \(2, 2\)"),
        ([0, 1], (2, 2, 3), r"targets \(2,\): expected \(2, 2\)"),
        ([3], (2, 3), "3"),
        ("d", (2, 3), "target 'd' is not in the vocabulary"),
    ],
)
def test_targets_of_other_rows_are_refused(target, shape, problem):
    target = target if isinstance(target, str) else np.array(target)
    with pytest.raises(AttnkitError, match=problem):
        targets.find_targets(target, shape, ["a", "b", "c"], -100)


def test_what_a_loss_compares_with():
    assert targets.expected_distribution(np.array([1, -100]), 4, -100, 0.2).tolist() == pytest.approx(
        np.array([[0.05, 0.85, 0.05, 0.05], [0, 0, 0, 0]])
    )
    is_distribution = targets.is_distribution
    rows = np.array([[0.25, 0.75], [0.5, 0.509]])
    assert is_distribution(rows) and not is_distribution(rows + np.array([[0, 0], [0, 0.002]]))
    assert not is_distribution(np.ones((2, 1))) and not is_distribution(np.array([[0, 1]]))
    assert not is_distribution(np.array([[-0.1, 1.1]])) and not is_distribution(np.zeros((0, 2)))
    assert targets.target_words(np.array([[1, -100], [0, 1]]), ["a", "b"], -100) == {"target": [["b", ""], ["a", "b"]]}
    assert (
        targets.target_words(np.zeros((1, 1, 1), int), ["a"], -100) == targets.target_words(np.array([0]), [], 0) == {}
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a\tb\nc", "line 2: 1 column"),
        ("a\tb\tc", r"line 1: 3 columns \(expected source, tab, target\)"),
        ("a\t ", "line 1: no target after the tab"),
        ("\n\tb", "line 2: no source before the tab"),
        ("\n\n", "no pairs"),
    ],
)
def test_lines_of_two_columns(text, problem):
    with pytest.raises(DataError, match=problem):
        text_columns.parse_pairs(text, "pairs.tsv")


# Logits and text


def test_the_output_matrix_is_a_table_or_weights():
    table = Record({"x": Tensor(of_shape(2, 3), ("row", "model"), {"row": ["a", "b"]})})
    record, find = Record({"x": np.zeros(3)}, {"vocab": ["c", "d"]}), output_matrix.find_output_matrix
    matrix, bias, words, formula = find(record, table, None)
    assert (matrix.shape, bias, words, formula) == ((3, 2), None, ["a", "b"], "x tableᵀ")
    assert find(record, Record({"x": of_shape(2, 3)}), None)[2] == ["c", "d"]
    assert find(record, Record({"x": of_shape(4, 3)}), None)[2] == []
    assert find(Record({"x": np.zeros(3), "table": of_shape(5, 3)}), None, None)[0].shape == (3, 5)
    matrix, bias, words, formula = find(record, None, {"w": of_shape(3, 2), "b": np.ones(2)})
    assert (matrix.shape, bias.tolist(), words, formula) == ((3, 2), [1, 1], ["c", "d"], "x W + b")
    assert find(record, None, {"w": of_shape(3, 2)})[1::2] == (None, "x W")
    for given, problem in (((None, {"b": np.ones(2)}), "it has b"), ((None, {}), "it has nothing"),
                           ((None, {"w": np.ones(2), "c": np.ones(2)}), "it has w, c"),
                           ((Record({"x": np.ones(3)}), None), "not vocab × model"),
                           ((None, None), "no table")):  # fmt: skip
        with pytest.raises(AttnkitError, match=problem):
            find(record, *given)


def test_rows_of_ids_are_lines_without_padding():
    join, words = detokenizer.join_rows, ["[PAD]", "a", "b"]
    ids = np.array([[1, 2, 0], [2, 0, 0]])
    labels = [["a", "b", "[PAD]"], ["b", "[PAD]", "[PAD]"]]
    assert join(ids, words, labels, None) == "a b\nb"
    assert join(ids, words, ["x", "y", "z"], None) == "a b [PAD]\nb [PAD] [PAD]", "labels that all rows share"
    assert join(np.array(2), words, None, None) == "b"
    decode = lambda ids: "".join("?ab"[one] for one in ids if one)  # noqa: E731
    assert join(ids, words, None, decode) == "ab\nb"
    guesses = np.array([[False, False, True], [False] * 3])
    assert join(ids, words, None, decode, guesses) == "ab [PAD]\nb"
    found = detokenizer.Detokenizer(Tokenizer(None, lambda: words, decode=decode), 4, skipped=1)
    assert found.words() == [*words, ""] and found._replace(size=2).words() == words[:2]
    assert found.token_strings([2, 3, 0]) == ["b", "3", "[PAD]"] and found.text([1, 2, 1]) == "ba"
    assert found.padding == "[PAD]" and found.can_decode
    nothing = detokenizer.Detokenizer(None, 2)
    assert (nothing.words(), nothing.token_strings([1]), nothing.text([1]), nothing.can_decode) == (
        None,
        ["1"],
        "",
        False,
    )


# Masks of a record


def test_a_mask_belongs_to_rows_of_x_or_of_the_memory():
    x, memory, mask = of_shape(2, 3), of_shape(4, 3), np.ones((1, 4), bool)
    record = Record({"x": x, "memory": memory, "mask": mask})
    assert operands.has_mask_for(record, "x") and not operands.has_mask_for(record, "memory")
    assert operands.has_mask_for(Record({"x": memory, "memory": memory, "mask": mask}), "memory")
    assert not operands.has_mask_for(Record({"q": x, "mask": mask}), "q")
    assert operands.has_mask_for(Record({"q": memory, "mask": mask}), "q")
    for other in ({"q": memory}, {"q": memory, "mask": np.array(True)}, {"q": memory[0], "mask": mask[..., :3]}):
        assert not operands.has_mask_for(Record(other), "q")


def test_a_mask_of_equal_rows_is_one_row():
    reduce, keys = operands.reduce_to_one_row, np.zeros((2, 3, 4))
    rows = np.array([[[True, True, False]] * 2, [[True, False, False]] * 2])
    assert reduce(Record({"mask": rows}), keys)["x"].tolist() == rows[:, :1].tolist()
    assert reduce(Record({"mask": np.tri(3, dtype=bool)}), keys[0]) is None
    assert reduce(Record({"mask": np.array([True, False, True])}), keys[0])["x"].tolist() == [[True, False, True]]
    padded = operands.select_mask(Record({"mask": rows[:, 0]}), "mask", keys)
    assert padded["x"].shape == (2, 1, 3) and padded.tensors["x"].axes == ("batch", "all queries", "key")
    assert operands.select_mask(Record({"mask": rows[:, :1]}), "mask", keys).tensors["x"].axes == (
        "batch",
        "all queries",
        "key",
    )
    assert not operands.select_mask(Record({"mask": rows[:1, :1]}), "mask", keys).tensors["x"].axes


# Images


def processor(**settings):
    return ImageProcessor(ConfigReader(settings, "preprocessor_config.json"), (4, 4))


def test_an_image_is_cut_from_the_center():
    image = of_shape(5, 4, 1)
    assert crop_center(image, (2, 2))[..., 0].tolist() == [[5, 6], [9, 10]]
    assert crop_center(image, (3, 6))[..., 0].tolist() == [[0, *row, 0] for row in image[1:4, :, 0].tolist()]
    assert crop_center(of_shape(2, 3, 1), (5, 3))[:, 0, 0].tolist() == [0, 0, 0, 3, 0]


@pytest.mark.parametrize(
    ("settings", "given", "box"),
    [
        ({"size": {"height": 4, "width": 8}}, (9, 9), [0, 0, 1, 1]),
        (
            {"size": {"height": 4, "width": 8}, "do_center_crop": True, "crop_size": 2},
            (9, 9),
            [0.375, 0.25, 0.625, 0.75],
        ),
        (
            {"do_resize": False, "do_center_crop": True, "crop_size": {"height": 2, "width": 4}},
            (8, 4),
            [0, 0.375, 1, 0.625],
        ),
        ({"do_resize": False, "do_center_crop": True, "crop_size": 4}, (2, 8), [0.25, -0.5, 0.75, 1.5]),
    ],
)
def test_the_part_of_an_image_that_is_read(settings, given, box):
    assert processor(**settings).box(given, "p.png").tolist() == box


@pytest.mark.parametrize("image", [np.zeros((2, 2, 3)), np.zeros((2, 2), np.uint8), np.zeros((2, 2, 4), np.uint8),
                                   np.zeros((0, 2, 3), np.uint8), np.zeros((2, 0, 3), np.uint8)])  # fmt: skip
def test_what_is_no_image(image):
    with pytest.raises(DataError, match="is no image"):
        processor(do_resize=False, do_center_crop=False).fit(image, "p.png")
    with pytest.raises(DataError, match="is no picture"):
        patches.check_picture(image, "p.png")
    assert processor(do_resize=False, do_center_crop=False).fit(np.zeros((1, 2, 3), np.uint8), "p.png").shape == (
        1,
        2,
        3,
    )


def test_pixels_are_normalized_as_the_file_says():
    image = np.full((1, 1, 3), 51, np.uint8)
    for settings, expected in (
        ({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.25, 0.2]}, [0.2, 0, -0.5]),
        ({"image_mean": [0.1] * 3, "image_std": [0.5] * 3, "do_rescale": False}, [101.8] * 3),
        ({"do_normalize": False}, [0.2] * 3),
        ({"do_normalize": False, "rescale_factor": 0.5}, [25.5] * 3),
    ):
        np.testing.assert_allclose(processor(**settings).normalize(image).ravel(), expected, rtol=1e-5, atol=1e-6)


def test_the_box_of_patches_leaves_out_what_no_patch_covers():
    """Patches of 2 × 3 cover 4 × 6 of 5 × 8 pixels, in a box that is half of the picture."""
    cut = PatchConfig(5, 8, 2, 3)
    found = patches.describe_image(cut, (3, 5, 8), np.array([0.25, 0.5, 0.75, 1.0]))
    assert found["box"].tolist() == pytest.approx([0.25, 0.5, 0.25 + 0.5 * 6 / 8, 0.5 + 0.5 * 4 / 5])
    assert found.labels["token"] == patches.name_patches(cut, 5, 8) and len(found.labels["token"]) == 4 + cut.has_class
    assert patches.describe_image(cut, (2, 3, 4, 6), None).labels["token"] == [patches.name_patches(cut, 4, 6)] * 2


# Hidden states as records


def test_states_of_an_encoder_are_a_memory_of_its_decoder():
    both, one = (SimpleNamespace(encoder=True, decoder=is_there) for is_there in (True, None))
    base = Record({"mask": np.ones((2, 1, 3), bool)}, {"token": ["a", "b", "c"]})
    make = encoding.make_states
    assert [*make(both, base, of_shape(2, 3, 4), "encoder", True)] == ["x", "mask", "memory", "memory_mask"]
    made = make(both, base, of_shape(2, 3, 4), "encoder", True)
    assert made.axes_of("memory") == ("batch", "source", "model") and made.labels["source"] == ["a", "b", "c"]
    assert made.axes_of("memory_mask") == ("batch", "all queries", "source")
    assert made.tensors["x"].formula == "hidden states of the encoder"
    for config, is_whole in ((both, False), (one, True)):
        assert "memory" not in make(config, base, of_shape(2, 3, 4), "encoder", is_whole)
    rows = Record({"mask": np.ones((2, 3, 3), bool)})
    assert "memory_mask" not in make(both, rows, of_shape(2, 3, 4), "encoder", True)
    assert make(both, Record({}), of_shape(3, 4), "encoder", True).axes_of("memory") == ("source", "model")


def test_a_prompt_needs_its_folder():
    modules = encoding.SentenceModules(prompts={"query": "q: ", "doc": "d: "}, prompt="doc")

    def find(prompt, *arguments):
        return encoding.find_prompt(encoding.VectorOptions(prompt=prompt), *arguments)

    assert find(None, modules, "folder") == "d: "
    assert find("query", modules, "folder") == "q: "
    assert find(None, modules, "mean") == ""
    assert find(None, encoding.SentenceModules(), "folder") == ""
    for name, some, pool, problem in (("query", modules, "mean", "no other --pool"),
                                      ("x", modules, "folder", "it has query, doc"),
                                      ("x", encoding.SentenceModules(), "folder", "nor others")):  # fmt: skip
        with pytest.raises(AttnkitError, match=problem):
            find(name, some, pool)
    with pytest.raises(AttnkitError, match="the model has layers 0:6"):
        encoding.parse_layers("4:7", 6)
    assert encoding.parse_layers("6:6", 6) == (6, 6)


# States of an encoder beside its memory


def encoder_of(layers):
    return SimpleNamespace(encoder=SimpleNamespace(layers=layers))


def ran(*numbers):
    """The context of a run of some layers, whose last states are their numbers."""
    states = {f"encoder.{at}.rnn": model.State(np.full((1, 2), float(at))) for at in numbers}
    return SimpleNamespace(final_states=states)


def test_layers_that_ran_follow_the_states_of_those_before_them():
    add = source_states.add_last_states
    first = add(Record({}), encoder_of(3), ran(0, 1), True)
    assert first["memory_state"].tolist() == [[[0, 0], [1, 1]]]
    assert add(first, encoder_of(3), ran(2), True)["memory_state"][0, :, 0].tolist() == [0, 1, 2]
    assert add(first, encoder_of(3), ran(1, 2), True)["memory_state"][0, :, 0].tolist() == [0, 1, 2]
    assert add(first, encoder_of(3), ran(0), True)["memory_state"][0, :, 0].tolist() == [0]
    assert add(Record({}), encoder_of(3), ran(1), False)["memory_state"].tolist() == [[1, 1]]
    assert add(first, encoder_of(3), ran(), True) is first


def test_a_memory_has_the_batch_of_x_and_its_width():
    config = SimpleNamespace(memory_width=4, source_states=SimpleNamespace(parts=1, layers=2, width=3))

    def fields(memory, x, **companions):
        return source_states.memory_fields(
            operands.AttendedTensor({"x": memory}, companions=Record(companions)), config, x
        )

    states = fields(of_shape(2, 5, 4), of_shape(2, 3, 6), memory_state=of_shape(2, 2, 3))["source_states"]
    assert [one.hidden.tolist() for one in states] == [[[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]]]
    one = fields(of_shape(5, 4), of_shape(3, 6), memory_state=of_shape(2, 3))["source_states"]
    assert [state.hidden.tolist() for state in one] == [[[0, 1, 2]], [[3, 4, 5]]]
    for memory, x in (
        (of_shape(5, 4), of_shape(2, 3, 6)),
        (of_shape(1, 5, 4), of_shape(2, 3, 6)),
        (of_shape(5, 3), of_shape(3, 6)),
    ):
        with pytest.raises(DataError, match="expected the same batch, and width 4"):
            fields(memory, x, memory_state=of_shape(2, 3))
    with pytest.raises(DataError, match="a memory and no memory_state"):
        fields(of_shape(5, 4), of_shape(3, 6))
    with pytest.raises(DataError, match=r"memory_state \(2, 3\): expected \(2, 2, 3\)"):
        fields(of_shape(2, 5, 4), of_shape(2, 3, 6), memory_state=of_shape(2, 3))


# Layers


def test_experts_of_a_file_are_softmax_over_the_chosen():
    params = {"router": of_shape(4, 3), "w1": of_shape(3, 4, 5), "w2": of_shape(3, 5, 4), "b1": of_shape(3, 5)}
    experts, config = layers.find_experts(params, 2, False)
    assert (config.count, config.chosen, config.hidden, config.score) == (3, 2, 5, "chosen")
    assert experts.expert(1)["w1"].tolist() == params["w1"][1].tolist() and [*experts.router] == ["router"]
    assert layers.find_experts(params, 3, False)[1].chosen == 3
    for changes, chosen, problem in (
        ({}, 4, "4 of 3 experts"),
        ({"router": of_shape(4)}, 2, r"router \(4,\): expected \(D, E\)"),
        ({"w1": of_shape(2, 4, 5)}, 2, r"w1 \(2, 4, 5\) for a router \(4, 3\): expected 3 experts"),
        ({"b1": of_shape(3, 1, 5)}, 2, r"b1 \(3, 1, 5\) for a router"),
        ({"w3": of_shape(3, 4, 5)}, 2, "only --gated uses"),
        ({"w9": of_shape(3, 4, 5)}, 2, "w9 is not one of"),
    ):
        with pytest.raises(AttnkitError, match=problem):
            layers.find_experts(params | changes, chosen, False)
    with pytest.raises(DataError, match="no w3"):
        layers.find_experts(params, 2, True)


def test_gradients_of_recurrent_weights_have_the_names_of_their_file():
    params = {f"rnn.{name}_l0": of_shape(3, 3) for name in ("weight_ih", "weight_hh")}
    read = recurrent_layers.read_torch(params)
    assert [*read.by_name(read.layers)] == [*params]
    onnx = {"W": of_shape(2, 12, 2), "R": of_shape(2, 12, 3), "B": of_shape(2, 24), "P": of_shape(2, 9)}
    read = recurrent_layers.read_onnx(onnx)
    for name, array in read.by_name(read.layers).items():
        np.testing.assert_array_equal(array, onnx[name], name)
    assert read.layers[0].forward["input"][3:6].tolist() == onnx["W"][0, 6:9].tolist(), "ONNX: i o f c"


@pytest.mark.parametrize(
    ("directions", "names"),
    [((1, 0), ["cell", "state"]), ((0, 1), ["cell", "state"]),
     ((1, 1), ["cell_l0", "state_l0", "cell_l0_reverse", "state_l0_reverse"])],
)  # fmt: skip
def test_intermediates_of_one_direction_have_no_ending(directions, names):
    trace = recurrent.Trace({}, of_shape(1, 2, 3), of_shape(1, 2, 3), None)
    runs = [recurrent.DirectionRun(trace.hidden, None, trace) if one else None for one in directions]
    run, formulas = recurrent.LayerRun(trace.hidden, *runs), {"cell": "c", "state": "h"}
    found = recurrent_layers.describe_runs([run], ("cell", "state"), Record({"x": of_shape(2, 3)}), formulas)
    assert (
        [*found] == names and found[names[0]].axes == ("token", "hidden") and found[names[1]].axes == ("token", "model")
    )
    both = recurrent_layers.describe_runs([run, run], ("state",), Record({"x": of_shape(1, 2, 3)}), formulas)
    assert len(both) == 2 * sum(directions) and {one.array.shape for one in both.values()} == {(1, 2, 3)}


# What is at an edge


def test_edges_of_what_tools_read():
    assert text_inputs.pad_batch([], [], 0, "", True).ids.shape == (0, 0)
    assert text_inputs.ids_to_inputs(Record({"x": np.array([0, 0])}), [], 0).size == 1
    assert text_inputs.ids_to_inputs(Record({"x": np.array([2, 0])}), [], 0).size == 3
    assert text_inputs.ids_to_inputs(Record({"x": np.zeros(0, int)}), [], 0).size == 1
    spans = encoding.text_spans(Record({"ids": np.zeros((2, 3), int), "mask": np.array([[[0, 0, 0]], [[1, 1, 0]]])}))
    assert spans == [slice(0, 0), slice(0, 2)]
    lone = operands.select_mask(Record({"mask": np.ones((1, 3), bool)}), "mask", of_shape(3, 4))
    assert lone["x"].shape == (1, 3)
    longest = b"0.5" + b" " * (answers.LONGEST - 3)
    assert answers.read_answer(Source.of(longest), "x", 1).tolist() == [0.5]
    assert patches.read_box(Record({"box": np.array([0.0, 0, 1 << 20, 1])})).tolist() == [0, 0, 1 << 20, 1]
    with pytest.raises(DataError, match="is no box"):
        patches.read_box(Record({"box": np.array([0.0, 0, (1 << 20) + 1, 1])}))
    for flat in ([0.5, 0, 0.5, 1], [0, 0.5, 1, 0.5], [0.5, 0, 0.25, 1]):
        with pytest.raises(DataError, match="is no box"):
            patches.read_box(Record({"box": np.array(flat)}))
    black, white = (new_processor(1, 1).normalize(np.full((1, 1, 3), level, np.uint8)) for level in (0, 255))
    np.testing.assert_allclose([black.ravel(), white.ravel()], [[-1] * 3, [1] * 3], rtol=1e-6)


@pytest.mark.parametrize("shape", ["D", "11TD", "DT", "1DT"])
def test_states_of_another_shape_do_not_go_on(shape):
    sizes = {"D": open_model("bert").config.width, "T": 2, "1": 1}
    shape = [sizes[axis] for axis in shape]
    with pytest.raises(DataError, match=r"expected \(T, \d+\) or \(B, T, \d+\)"):
        encoding.read_inputs(open_model("bert"), "encoder", 1, Record({"x": np.zeros(shape)}), None)


def test_a_second_text_needs_a_first():
    config = SimpleNamespace(encoder=True, family="bert")
    layers.check_pair(config, None, "")
    layers.check_pair(config, "b", "a")
    for first in ("", [], None, Record({"x": np.zeros(2)})):
        with pytest.raises(AttnkitError, match="a second text needs a first"):
            layers.check_pair(config, "b", first)
    with pytest.raises(AttnkitError, match="a gpt2 model takes one text, not a pair"):
        layers.check_pair(SimpleNamespace(encoder=None, family="gpt2"), "b", "a")


def test_the_rows_of_a_mask_are_those_of_the_batch():
    def check(name, shape, x, has_ids=False):
        record = Record({"x": np.zeros(x)})
        mask_rules.check_batch(record, mask_rules.Rule(name, "", np.ones(shape, bool)), has_ids)

    check("padding", (1, 1, 4), (3, 4, 2))
    check("padding", (3, 1, 4), (3, 4, 2))
    check("lengths", (3, 1, 4), (3, 4, 2))
    check("padding", (3, 1, 4), (3, 4), has_ids=True)
    check("causal", (2, 4, 4), (3, 4, 2))
    for name, rows, x in (("padding", 2, (3, 4, 2)), ("lengths", 1, (3, 4, 2)), ("padding", 3, (3, 4))):
        with pytest.raises(DataError, match="for a batch of"):
            check(name, (rows, 1, 4), x)


def test_a_kernel_needs_an_axis_of_channels_beside_its_own():
    kernel = convolution_stage.Kernel(filters=2, size=(3,))

    def find(x, kernel):
        return convolution_stage.find_convolution(x, kernel, Convolution(), "last", "identity", False)

    assert find(of_shape(5, 4), kernel).weights["w"].shape == (2, 4, 3)
    assert find(of_shape(5, 6, 4), kernel._replace(size=(3, 2))).weights["w"].shape == (2, 4, 3, 2)
    for x, size in ((of_shape(5), (3,)), (of_shape(5, 4), (3, 2))):
        with pytest.raises(DataError, match=f"expected {len(size) + 1} axes or more"):
            find(x, kernel._replace(size=size))


def test_a_residual_is_added_to_the_scaled_result():
    output, x, other = (
        Tensor(np.array([2.0, 4.0]), formula="f"),
        np.array([1.0, 1.0]),
        Record({"x": np.array([0.0, 3.0])}),
    )
    for given, array, formula in (
        ((x, None, 0.5), [2, 3], "0.5 (f) + input"),
        ((x, other, 1.0), [3, 8], "f + input + residual"),
        ((None, other, 0.5), [1, 5], "0.5 (f) + residual"),
        ((None, None, 0.5), [2, 4], "f"),
    ):
        found = layers.add_residuals(output, *given)
        assert (found.array.tolist(), found.formula) == (array, formula)


def test_a_grid_is_two_whole_numbers():
    assert layers.context_from(Record({"grid": np.array([2, 3])})).grid == (2, 3)
    assert layers.context_from(Record({})).grid is None
    for grid in (np.array([2.0, 3.0]), np.array([2, 3, 4])):
        with pytest.raises(DataError, match="expected two whole numbers"):
            layers.context_from(Record({"grid": grid}))
