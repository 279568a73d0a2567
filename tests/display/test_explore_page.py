"""The page in a real Chromium: what it shows, that it loads nothing, keys, addresses, widths, and what it saves."""

import base64
import io
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import attnkit
from attnkit import formats
from attnkit.display import numbers
from attnkit.display.explore import payload
from attnkit.records import Record, Tensor
from tests.display.test_explore import STORY, make_run
from tests.pictures import contrast

pytestmark = pytest.mark.slow

WORDS = ["<script>window.ran = 1</script>", "cat", "‮cat", "a" * 300, "</script>", "mat"]
SOURCE = ["le", "chat", "noir", "dort"]
NAMES = {
    "decoder.0.self.weights": ("head", "query", "key"),
    "decoder.0.cross.weights": ("head", "query", "source"),
    "decoder.1.self.weights": ("head", "query", "key"),
    "decoder.1.cross.weights": ("head", "query", "source"),
}


def make_record(seed):
    """A trace of two layers of three heads, with hostile words."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, axes in NAMES.items():
        weights = np.exp(rng.normal(size=(3, 6, 6 if axes[-1] == "key" else 4)) * 2)
        tensors[name] = Tensor((weights / weights.sum(-1, keepdims=True)).astype(np.float32), axes)
    history = [{"command": "attnkit encode '<b>x</b>'", "version": "0", "files": {}}]
    return Record(tensors, {"token": WORDS, "query": WORDS, "key": WORDS, "source": SOURCE}, history)


@pytest.fixture
def write_page(tmp_path):
    def write(*records, **options):
        path = tmp_path / "page.html"
        path.write_text(attnkit.explore([*records], **options))
        return path

    return write


def check_layout(browser):
    """What holds of every view: it fits and is legible, all has a name, no error, no request."""
    for width in (320, 2560):
        browser.resize(width)
        browser.run("showState()")
        assert browser.run(f"AUDIT.faults({width})") == []
    browser.resize(1000)
    browser.run("showState()")
    assert browser.problems() == []


def read_picture(browser, kind):
    """The bytes of the picture that the buttons save."""
    script = f"""pictureFile(APP.picture, '{kind}').then(file => new Promise(done => {{
        const reader = new FileReader();
        reader.onload = () => done(reader.result.split(',')[1]);
        reader.readAsDataURL(file);
    }}))"""
    return base64.b64decode(browser.run(script))


def test_every_view_of_a_trace(browser, write_page):
    record = make_record(0)
    page = write_page(record)
    browser.resize(1000)
    browser.open(page)
    assert browser.run("document.querySelectorAll('.head').length") == 12
    assert browser.run("window.ran") is None and "attnkit encode '<b>x</b>'" in browser.run("document.body.innerText")
    check_layout(browser)

    values = "weightsOf(PAYLOAD.traces[0].attention[{}]).then(one => [...one.values])"
    for at, name in enumerate(NAMES):
        assert browser.run(values.format(at)) == record[name].astype(float).ravel().tolist()

    for address in (
        "view=nope&layer=99&head=-7&token=1e9",
        "by=x&range=y&trace=3&token=999999&view=text",
        "%",
        "head=2",
    ):
        browser.run(f"location.hash = '#{address}'; showState()")
    assert browser.problems() == []

    browser.open(page, "#view=text&layer=3&head=2&token=1")
    rows = browser.run("[...document.querySelectorAll('#view tbody tr')].map(r => [...r.cells].map(c => c.innerText))")
    weights = record["decoder.1.cross.weights"][2, 1]
    order = np.argsort(-weights)
    assert [row[0] for row in rows] == [SOURCE[at] for at in order]
    assert [row[2] for row in rows] == read_row(weights[order])
    assert browser.run("document.querySelector('.token.chosen').innerText") == "cat"
    check_layout(browser)
    svg = ET.fromstring(read_picture(browser, "svg"))
    texts = {one.text for one in svg.iter("{http://www.w3.org/2000/svg}text")}
    assert {*SOURCE, "<script>window.ran = 1</scrip…"} <= texts and svg.get("viewBox").startswith("-12 -12 ")
    browser.open(page, "#layer=1&head=0")
    texts = {one.text for one in ET.fromstring(read_picture(browser, "svg")).iter("{http://www.w3.org/2000/svg}text")}
    assert {"query ↓", "source →", "0", "1\u2003weight"} <= texts

    browser.open(page, "#view=heads&layer=0&head=1&token=2")
    check_layout(browser)
    shown = browser.run("document.getElementById('view').innerText")
    browser.open(page, browser.run("location.hash"))
    assert browser.run("document.getElementById('view').innerText") == shown != ""
    assert read_picture(browser, "png").startswith(b"\x89PNG\r\n\x1a\n")


def test_the_keyboard_reaches_every_view_and_reads_a_weight(browser, write_page):
    record = make_record(1)
    browser.resize(1000)
    browser.open(write_page(record))
    for _ in range(20):
        browser.press("Tab")
        if browser.run("document.activeElement.className") == "head":
            break
    browser.press("ArrowRight", "ArrowDown", "Enter")
    browser.wait("document.body.dataset.shown.includes('head=')")
    assert browser.run("document.activeElement.dataset.key") == "map"
    browser.press("ArrowDown", "ArrowRight", "ArrowRight")
    said = browser.run("document.getElementById('readout').textContent")
    state = browser.run("readState()")
    assert (state["layer"], state["head"]) == (1, 1)
    weight = record["decoder.0.cross.weights"][1, 1, 2]
    assert float(said.rpartition(": ")[2]) == float(f"{weight:.4g}")
    browser.press("Escape")
    browser.wait("document.activeElement.dataset.key === 'head-1-1'")
    browser.run("document.querySelector('[data-key=choice-colours]').focus()")
    browser.press("ArrowDown")
    browser.wait("document.body.dataset.shown.includes('range=each')")
    assert browser.run("document.activeElement.dataset.key") == "choice-colours"
    browser.run("document.activeElement.blur()")
    browser.press("2")
    browser.wait("document.body.dataset.shown.includes('view=text')")
    assert browser.run("document.getElementById('readout').textContent") == ""  # it was of the other view
    browser.run("document.querySelector('.token.chosen').focus()")
    browser.press("Home", "Enter")
    browser.wait("document.body.dataset.shown.includes('token=0')")
    assert browser.run("document.activeElement.dataset.index") == "0"
    assert browser.problems() == []


def test_two_traces_rounded_to_8_bits_and_in_the_dark(browser, write_page, monkeypatch):
    monkeypatch.setattr(payload, "EXACT", 0)
    monkeypatch.setattr(payload, "LARGEST", 2)
    a, b = make_record(2), make_record(3)
    browser.resize(1000)
    a, b = (
        Record(one.tensors, one.labels | {"query": ["Ġdog", *WORDS[1:5], word]})
        for one, word in ((a, "Ġcat"), (b, "Ġmat"))
    )
    a, b = (
        one.with_tensors({"embed": Tensor(np.full((6, 3), at, np.float32), ("query", "model"))})
        for at, one in enumerate((a, b))
    )
    browser.open(write_page(a, b, title="Two"), "#view=difference&layer=1&head=2")
    assert browser.run("document.title") == "Two"
    assert "query 0 '·dog', model 0" in browser.run("document.getElementById('view').innerText")
    texts = {one.text for one in ET.fromstring(read_picture(browser, "svg")).iter("{http://www.w3.org/2000/svg}text")}
    assert {"·dog", "·cat / ·mat", "query ↓"} <= texts and any(one.endswith("\u2003A − B") for one in texts)
    check_layout(browser)
    known = """Promise.all([PAYLOAD.traces[0], PAYLOAD.traces[1], PAYLOAD.difference].map(async one => {
        const weights = await weightsOf(one.attention[1]);
        return [0, 1, 2].map(head => [0, 1, 2, 3, 4, 5].map(query => weights.row(head, query)));
    }))"""
    x, y = a["decoder.0.cross.weights"], b["decoder.0.cross.weights"]
    for shown, weights in zip(browser.run(known), (x, y, x - y), strict=True):
        values, errors = (
            np.array([[[one[key] for one in row] for row in head] for head in shown]) for key in ("value", "error")
        )
        assert np.all(np.abs(values - weights) <= errors * 1.001 + 1e-9) and (errors == 0).sum() == 2 * 18 < errors.size
    browser.prefer("dark")
    assert browser.run("color('background')") == "#16181c"
    browser.run("setTheme('light')")
    assert browser.run("color('background')") == "#ffffff"


def test_numbers_that_are_not_finite_or_huge_and_words_from_right_to_left(browser, write_page):
    weights = np.array(
        [[[0.25, 0.75, np.inf], [0.5, np.nan, 0.5], [0, 0, 0]], [[4e30, 1, 12345], [1, 0, 0], [1, 2, 3]]]
    )
    words = ["اب", "b", "שלום" * 9]
    record = Record(
        {"weights": Tensor(weights.astype(np.float32), ("head", "query", "key"))}, {"query": words, "key": words}
    )
    browser.resize(1000)
    browser.open(write_page(record), "#head=0")
    peaks = (
        "weightsOf(PAYLOAD.traces[0].attention[0]).then(one => [0, 1].map(head => colorPeak(one, head, readState())))"
    )
    assert browser.run(peaks) == [1, float(np.float32(4e30))]
    texts = [one.text for one in ET.fromstring(read_picture(browser, "svg")).iter("{http://www.w3.org/2000/svg}text")]
    assert {"0.25", "inf", "NaN", "\u2068اب\u2069", "b"} <= {*texts} and all(
        one.count("\u2068") == one.count("\u2069") for one in texts
    )
    browser.open(write_page(record), "#head=1")
    texts = {one.text for one in ET.fromstring(read_picture(browser, "svg")).iter("{http://www.w3.org/2000/svg}text")}
    assert {"4e30", "1e4", "2.00"} <= texts
    inks = browser.run("Object.values(PAYLOAD.look.maps).flat().map(one => [one, contrastingInk(one)])")
    assert min(contrast(*pair) for pair in inks) >= 4.5
    browser.open(write_page(record), "#view=text&token=2&head=0")
    assert "nothing: its weights are 0" in browser.run("document.getElementById('view').innerText")
    assert browser.run("[2e-5, 0, 0.5].map(formatFixed)") == ["< 0.0001", "0.0000", "0.5000"]
    for theme in ("light", "dark"):
        browser.run(f"setTheme('{theme}')")
        ink, glow, ground = (browser.run(f"color('{name}')") for name in ("ink", "glow", "background"))
        assert contrast(ink, glow) >= 4.5 and contrast(ink, ground) >= 4.5 and contrast(glow, ground) >= 2
    assert browser.problems() == []


def read_tables(browser):
    """The cells of the tables of a view, row by row, without their heads."""
    rows = "[...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.innerText))"
    return browser.run(f"[...document.querySelectorAll('#view table')].map(table => {rows})")


def test_a_cell_of_attention_written_out_by_hand(browser, write_page):
    x = np.array([[1, 0], [0, 1], [1, 2]], np.float64)
    record = attnkit.attend(Record({"x": x}), causal=True, steps=True)
    page = write_page(record)
    browser.resize(1000)
    browser.open(page, "#view=stages&token=2&key=1&dim=1")
    lines = browser.run("[...document.querySelectorAll('.step p')].map(p => p.innerText)")
    assert lines == [
        "scores[0,2,1] = q · k = 2.0000",
        "scaled[0,2,1] = 2.0000 × 0.7071 (1/√2) = 1.4142",
        "masked[0,2,1] = 1.4142: the mask allows this key",
        "weights[0,2,1] = exp(1.4142 − 3.5355) / 1.1790 = 0.1017",
        "heads[0,2,1] = sum of weight × v[1] over the keys = 1.7981",
    ]
    browser.resize(1000, 400)
    browser.open(page, "#head=0&token=2&key=1&dim=1")
    browser.run("document.querySelector('[data-key=as-numbers]').click()")
    browser.wait("scrollY > 0 && document.getElementById('cell').getBoundingClientRect().top < 100")
    _, dot, row, values = read_tables(browser)
    assert dot == [["0", "1.0000", "0.0000", "0.0000"], ["1", "2.0000", "1.0000", "2.0000"], ["sum", "", "", "2.0000"]]
    assert [cells[2:] for cells in row[:3]] == [["0.0591", "0.0501"], ["0.1199", "0.1017"], ["1.0000", "0.8482"]]
    assert [cells[3] for cells in values] == ["0.0000", "0.1017", "1.6964", "1.7981"]
    check_layout(browser)
    svg = ET.fromstring(read_picture(browser, "svg"))
    assert {*lines} <= {one.text for one in svg.iter("{http://www.w3.org/2000/svg}text")}
    browser.open(page, "#view=heads&head=0")
    browser.run("document.querySelector('[data-key=map]').focus()")
    browser.press("ArrowDown", "ArrowDown", "ArrowRight", "Enter")
    browser.run("document.querySelector('[data-key=as-numbers]').click()")
    browser.wait("document.querySelector('.step') !== null")
    assert browser.run("document.querySelector('.step p').innerText") == lines[0]
    browser.open(page, "#view=stages&token=0&key=2")
    assert "masked[0,0,2] = -inf: the mask is causal: key 2 is after query 0" in browser.run("document.body.innerText")


def test_the_numbers_of_a_cell_of_a_model_are_those_of_show_and_its_words_those_of_lens(browser, tmp_path):
    trace = tmp_path / "fox.npz"
    attnkit.encode("the fox looked", model=STORY, trace=trace)
    record, page = formats.load(str(trace)), tmp_path / "page.html"
    page.write_text(attnkit.explore(trace, model=STORY, tokens="raw"))
    browser.resize(1000)
    browser.open(page, "#view=stages&layer=2&head=3&token=4&key=3")
    facts, dot, row, _ = read_tables(browser)
    shown = [read_row(record[f"decoder.2.self.{name}"][3, at]) for name, at in (("q", 4), ("k", 3))]
    assert [[cells[at] for cells in dot[:-1]] for at in (1, 2)] == shown
    for name, column in (("masked", 1), ("weights", 3)):
        assert [cells[column] for cells in row[:-1]] == read_row(record[f"decoder.2.self.{name}"][3, 4])
    assert facts[0][3:6] == [format(float(one), ".4g") for one in norm_and_range(record["decoder.2.self.q"])]
    check_layout(browser)

    browser.press("3")
    browser.wait("document.querySelector('[data-key=lens]') !== null")
    kept = attnkit.lens(record, model=STORY, top=5)
    words = np.array(kept.labels["ids"]).reshape(kept["x"].shape)
    browser.open(page, "#view=lens&token=3&layer=2")
    (likeliest,) = read_tables(browser)
    assert [cells[0] for cells in likeliest] == words[2, 3].tolist()
    assert [cells[1] for cells in likeliest] == read_row(kept["x"][2, 3])
    browser.run("document.querySelector('[data-key=lens]').focus()")
    browser.press("ArrowLeft", "ArrowUp")
    said = browser.run("document.getElementById('readout').textContent")
    assert said.startswith(
        f"2 {record.labels['token'][2]}, after decoder.0: {words[1, 2, 0]} {kept['x'][1, 2, 0]:.4f}, "
    )
    browser.press("Enter")
    browser.wait("location.hash.includes('token=2')")
    check_layout(browser)
    svg = ET.fromstring(read_picture(browser, "svg"))
    assert {*words[..., 0].ravel()} <= {one.text for one in svg.iter("{http://www.w3.org/2000/svg}text")}


def read_row(row):
    """The numbers of a row, as `show` prints them."""
    return [format(one, numbers.number_format(row, 4)) for one in row.tolist()]


def norm_and_range(array):
    return np.linalg.norm(array.astype(float)), array.min(), array.max()


def test_a_slider_over_the_steps_of_a_training_run(browser, tmp_path):
    make_run(tmp_path, (2, 10, 30))
    page = tmp_path / "page.html"
    page.write_text(attnkit.explore(tmp_path))
    browser.resize(1000)
    browser.open(page, "#view=training")
    assert read_tables(browser) == [[["decoder.0.self.wq", "2", "1", "1", "0"]]]
    browser.run("document.querySelector('[data-key=step]').focus()")
    browser.press("ArrowRight", "ArrowRight")
    browser.wait("document.querySelector('output').value === 'step 30'")
    assert read_tables(browser) == [[["decoder.0.self.wq", "30", "15", "15", "0"]]]
    assert browser.run("document.activeElement.dataset.key") == "step"
    browser.run("document.querySelector('[data-key=training]').focus()")
    browser.press("ArrowRight", "ArrowRight")
    assert browser.run("document.getElementById('readout').textContent").startswith(
        "step 10, loss 2, held out loss 3.5"
    )
    check_layout(browser)
    texts = {one.text for one in ET.fromstring(read_picture(browser, "svg")).iter("{http://www.w3.org/2000/svg}text")}
    assert {"loss", "held-out loss", "2", "10", "30", "decoder.0.self.wq"} <= texts
    browser.press("1")
    browser.wait("document.querySelector('.head') !== null")
    shown = browser.run("weightsOf(chosen(readState()).layer).then(one => [...one.values])")
    weights = formats.load(str(tmp_path / "step-30.npz"))["decoder.0.self.weights"][0]
    assert shown == weights.astype(float).ravel().tolist()
    check_layout(browser)


def test_attention_over_the_picture_of_an_image(browser, tmp_path):
    """The map is of the chosen query over the patches in the box; a click on the picture chooses the patch there."""
    Image = pytest.importorskip("PIL.Image")
    names = ["cls", "reg0", *(f"r{row}c{column}" for row in range(2) for column in range(3))]
    weights = np.exp(np.random.default_rng(3).normal(size=(2, 8, 8)))
    weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
    box = np.array([0.25, 0.0, 0.75, 1.0])
    tensors = {"encoder.0.self.weights": Tensor(weights, ("head", "query", "key")), "box": Tensor(box, ("edge",))}
    record = Record(tensors, {"query": names, "key": names, "token": names})
    pixels = np.full((40, 120, 3), 255, np.uint8)
    path = tmp_path / "page.html"
    path.write_text(attnkit.explore([record], over=pixels))
    browser.resize(1000)
    browser.open(path, "#view=picture&head=1&token=1")
    check_layout(browser)
    browser.open(path, "#view=picture&head=1&token=1")
    [place] = browser.run("APP.picture.places.slice(1)")
    assert place["width"] / place["height"] == pytest.approx(0.5 * 3)
    saved = np.asarray(Image.open(io.BytesIO(read_picture(browser, "png"))).convert("RGB")).astype(int)
    row = weights[1, 1, 2:].reshape(2, 3)
    colors = browser.run("PAYLOAD.look.maps.viridis")
    for (i, j), weight in np.ndenumerate(row):
        x, y = place["x"] + (j + 0.5) * place["width"] / 3, place["y"] + (i + 0.5) * place["height"] / 2
        expected = bytes.fromhex(colors[round(float(weight / row.max()) * 64)][1:])
        drawn = saved[int(2 * (y + 12)), int(2 * (x + 12))]  # at twice the size, in a margin
        assert np.abs(drawn - (0.6 * np.array(list(expected)) + 0.4 * 255)).max() <= 2
    beside = saved[int(2 * (place["y"] + 17)), int(2 * (place["x"] - place["width"] / 4 + 12))]
    assert beside.tolist() == [255, 255, 255]  # the grey of white

    click = """(() => {{ const c = document.querySelector('[data-key=map]'), b = c.getBoundingClientRect();
        c.dispatchEvent(new MouseEvent('click', {{clientX: b.left + {}, clientY: b.top + {}}})); }})()"""
    browser.run(click.format(place["x"] + place["width"] * 5 / 6, place["y"] + place["height"] * 3 / 4))
    browser.wait("document.body.dataset.shown.includes('token=7')")
    browser.run("document.querySelector('[data-key=map]').focus()")
    browser.press("ArrowLeft", "ArrowUp")
    said = browser.run("document.getElementById('readout').textContent")
    assert said.startswith("r0c1: ") and float(said.partition(": ")[2]) == float(f"{weights[1, 7, 3]:.4g}")
    browser.press("Enter")
    browser.wait("document.body.dataset.shown.includes('token=3')")
    browser.run("document.querySelector('[data-key=token-0]').click()")
    browser.wait("document.body.dataset.shown.includes('token=0')")
    browser.run("document.querySelector('[data-key=patches-0]').click()")
    browser.wait("document.body.dataset.shown.includes('head=0')")
    svg = ET.fromstring(read_picture(browser, "svg"))
    images = [one.get("href")[:10] for one in svg.iter("{http://www.w3.org/2000/svg}image")]
    assert images == ["data:image"] * 2 and svg.find(".//*[@opacity='0.6']") is not None
    assert read_picture(browser, "png").startswith(b"\x89PNG\r\n\x1a\n")
    assert browser.problems() == []

    path.write_text(attnkit.explore([record.select(["encoder.0.self.weights"])]))
    browser.open(path, "#view=picture")
    assert "--over PICTURE" in browser.run("document.querySelector('main').innerText")
    check_layout(browser)
