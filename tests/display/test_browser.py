"""Pages in a real Chromium: every view by click and by keyboard, at two widths, in both themes, legible throughout."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import attnkit
from attnkit.display import TensorView
from attnkit.display.figures import (
    FigureOptions,
    Section,
    heatmap_section,
    render_figure,
    statistics_section,
    tensor_section,
)
from attnkit.records import Record, Tensor
from tests.display.test_explore import make_run
from tests.drawing import draw_tensors
from tests.places import STORY

pytestmark = pytest.mark.slow

SAID = "document.getElementById('readout').textContent"
LONG = "donaudampfschifffahrt" * 20


def write_model(folder, layers, heads):
    """Write a model of the family of GPT-2 with the tokenizer of the sample."""
    folder.mkdir()
    size = 4 * heads
    sizes = {"n_layer": layers, "n_head": heads, "n_embd": size, "n_positions": 300, "torch_dtype": "float32"}
    config = json.loads(Path(STORY, "config.json").read_text()) | sizes
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(Path(STORY, "tokenizer.json"), folder)
    shapes = {"wte.weight": (config["vocab_size"], size), "wpe.weight": (300, size)}
    norms = ["ln_f", *(f"h.{layer}.ln_{at}" for layer in range(layers) for at in (1, 2))]
    shapes |= {f"{norm}.{part}": (size,) for norm in norms for part in ("weight", "bias")}
    products = {"attn.c_attn": (size, 3 * size), "attn.c_proj": (size, size)}
    products |= {"mlp.c_fc": (size, 4 * size), "mlp.c_proj": (4 * size, size)}
    for layer in range(layers):
        for name, shape in products.items():
            shapes |= {f"h.{layer}.{name}.weight": shape, f"h.{layer}.{name}.bias": shape[1:]}
    safetensors.numpy.save_file(draw_tensors("gpt2", shapes), folder / "model.safetensors")
    return folder


def explore_many_tokens(folder):
    model = write_model(folder / "model", layers=12, heads=12)
    kept = "decoder.positions,decoder.*.weights,decoder.*.ffn.residual,decoder.norm"
    return attnkit.explore(attnkit.encode(ids=np.arange(300), model=model, keep=kept), model=model)


def explore_many_layers(folder):
    model = write_model(folder / "model", layers=30, heads=9)
    traces = [folder / f"{animal}.npz" for animal in ("fox", "bear")]
    for trace in traces:
        attnkit.encode(f"the {trace.stem} looked at the stars", model=model, trace=trace)
    return attnkit.explore(traces, model=model)


def explore_training(folder):
    make_run(folder, (2, 10, 30))
    return attnkit.explore(folder)


def explore_picture(folder):
    names = ["cls", "reg0", *(f"r{row}c{column}" for row in range(2) for column in range(3))]
    weights = np.full((2, 8, 8), 1 / 8, np.float32)
    tensors = {"encoder.0.self.weights": Tensor(weights, ("head", "query", "key"))}
    record = Record(tensors | {"box": np.array([0.0, 0, 1, 1])}, dict.fromkeys(("token", "query", "key"), names))
    return attnkit.explore([record], over=np.full((40, 120, 3), 200, np.uint8))


PAGES = {  # and the views that are tested on each
    "300 tokens": (explore_many_tokens, ["heads", "text", "lens"]),
    "two texts": (explore_many_layers, ["heads", "difference", "lens", "stages"]),
    "training": (explore_training, ["training"]),
    "image": (explore_picture, ["picture"]),
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of explore by name, each written when it is first opened."""
    written = {}

    def find(name):
        if name not in written:
            folder = tmp_path_factory.mktemp("page")
            written[name] = folder / "page.html"
            written[name].write_text(PAGES[name][0](folder))
        return written[name]

    return find


def change(browser, method, value):
    """Change the window or the theme of the system, and wait until the page draws itself anew."""
    browser.run("document.querySelector('#view > section').isOld = true")
    method(value)
    browser.wait("!document.querySelector('#view > section').isOld")


def look(browser, view, width):
    """Wait for a view and look for its faults."""
    browser.wait(f"document.body.dataset.shown.includes('view={view}')")
    assert browser.run(f"AUDIT.faults({width})") == [], (view, width)


@pytest.mark.parametrize("name", PAGES)
def test_every_view_is_reached_by_click_and_by_keys_fits_and_is_legible(browser, pages, name):
    browser.resize(1280)
    browser.prefer("dark")
    browser.open(pages(name))
    browser.run("AUDIT.watchCanvases()")
    change(browser, browser.prefer, "light")
    for view in PAGES[name][1]:
        browser.click(f"#tab-{view}")
        look(browser, view, 1280)
    change(browser, browser.resize, 390)
    change(browser, browser.prefer, "dark")
    views = browser.run("fittingViews(readState()).map(one => one.id)")
    for view in PAGES[name][1]:
        browser.run("document.activeElement.blur()")  # a digit in a field is of its number
        browser.press(str(1 + views.index(view)))
        look(browser, view, 390)
        assert browser.walk() == [], view
    assert browser.problems() == []


def hidden_sides(browser):
    """The sides at which the frame of the cell that the keys are at is out of sight."""
    return browser.run(
        """(() => {
            const frame = document.querySelector(".frame");
            if (!frame.checkVisibility({ visibilityProperty: true })) return ["all"];
            const [cell, wide] = [frame, frame.closest(".wide")].map((one) => one.getBoundingClientRect());
            const end = document.getElementById("readout").getBoundingClientRect().top;
            const across = { left: wide.left - cell.left, right: cell.right - wide.right };
            const sides = { ...across, top: -cell.top, bottom: cell.bottom - end };
            return Object.entries(sides).filter(([, beyond]) => beyond > 1);
        })()"""
    )


def test_a_head_is_opened_read_and_closed_by_keys(browser, pages):
    browser.resize(390)
    browser.prefer("light")
    browser.open(pages("two texts"), "#view=text&layer=29")
    browser.press("Tab", "ArrowLeft", "Enter")
    browser.wait("document.body.dataset.shown.includes('view=heads')")
    browser.run("AUDIT.watchCanvases(); document.querySelector('[data-key=head-29-0]').focus()")
    browser.press("ArrowRight", "Enter")
    look(browser, "heads", 390)
    assert browser.run("document.activeElement.dataset.key") == "map"
    browser.press("ArrowDown", "ArrowDown", "ArrowRight")
    assert hidden_sides(browser) == []
    browser.press("Enter")
    browser.wait("document.body.dataset.shown.includes('token=2')")
    said = browser.run(SAID)
    browser.press("ArrowRight", "ArrowLeft")
    assert browser.run(SAID) == said != ""  # the frame is where it was
    assert browser.walk() == []
    browser.run("document.querySelector('[data-key=choice-layer]').focus()")
    browser.press("Escape")
    browser.wait("document.activeElement.dataset.key === 'head-29-1'")

    browser.run("go({view: 'lens', layer: 0}).then(() => document.querySelector('[data-key=lens]').focus())")
    browser.press(*["ArrowRight"] * 29)  # beyond the edge of the window
    assert hidden_sides(browser) == [] and "after decoder.28: " in browser.run(SAID)
    browser.press("ArrowDown", *["ArrowLeft"] * 29)
    assert hidden_sides(browser) == [] and "after embedding: " in browser.run(SAID)
    assert browser.problems() == []


def draw_figures():
    """A page of figures: 12 heads of 300 tokens, a table, bars, and words without a break."""
    rng = np.random.default_rng(0)
    options = FigureOptions()
    maps = TensorView(LONG, rng.random((12, 300, 300)), ("head", "query", "key"), [None] * 3, formula=LONG)
    matrix = TensorView(LONG, rng.normal(size=(2, 40)), ("token", "model"), [[LONG, "b"], None])
    sections = [
        heatmap_section(maps, options),
        tensor_section(matrix, options),
        statistics_section({LONG: matrix.array}, options),
        Section(LONG, [LONG], description=LONG, notes=[LONG]),
    ]
    return render_figure(sections, options, "html", "attnkit show")


def test_figures_in_html_fit_are_legible_and_scroll_by_keys(browser, tmp_path):
    (tmp_path / "figures.html").write_bytes(draw_figures())
    browser.prefer("dark")
    for width in (1280, 390):
        browser.resize(width)
        browser.load(tmp_path / "figures.html")
        assert browser.run(f"AUDIT.faults({width})") == []
    assert browser.walk() == [] == browser.problems()
    browser.prefer("light")
    assert browser.run("AUDIT.faults(390)") == []
