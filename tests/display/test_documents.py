"""Pages of help as files: one HTML page, and notebooks whose cells hold what their commands print."""

import html.parser
import json
import re

import pytest

from attnkit import help
from attnkit.cli import main
from tests import process
from tests.rounding import difference
from tests.transcripts import BLOCK

CHAPTERS = help.list_chapters()
EXPECTED = "(expected lecture, a chapter or a topic; attnkit help lists them)"


class Elements(html.parser.HTMLParser):
    """The text, the headings, the links and the unclosed elements of a page, as a browser reads it."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.resources, self.texts = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []
        self.resources += [given["src"]] if "src" in given else []
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        assert tag in ("meta", "rect")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def lecture(tmp_path_factory):
    """The folder with the lecture as lecture.html, lecture.ipynb and lecture.md, which one process each wrote."""
    folder = tmp_path_factory.mktemp("lecture")
    for suffix in ("html", "ipynb", "md"):
        assert process.run("help", "lecture", "-o", f"{folder}/lecture.{suffix}").code == 0
    return folder


def blocks(texts):
    """The blocks of commands of some Markdown, without their fences."""
    return [block for text in texts for block in BLOCK.findall(text)]


def test_the_page_of_the_lecture_has_every_chapter_and_every_block_and_loads_nothing(lecture):
    page = (lecture / "lecture.html").read_text(encoding="utf-8")
    elements = Elements(page)
    shown = "".join(elements.texts)
    assert elements.open == [] and elements.resources == [] and "@import" not in page and "url(" not in page
    assert len(elements.ids) == len({*elements.ids}), "two headings have one place"
    inside = [link[1:] for link in elements.links if link.startswith("#")]
    assert sorted(inside) == sorted(elements.ids) and all(link.startswith(("#", "https://")) for link in elements.links)
    assert [name for name in (f"lecture-{one.name}" for one in CHAPTERS) if name not in elements.ids] == []
    lines = [line for block in blocks(one.read() for one in CHAPTERS) for line in block.splitlines()]
    assert len(lines) > 900
    assert [line for line in lines if not set(line) & set("░▒▓█") and line not in shown and "  " not in line] == []


def test_a_formula_has_its_indices_below_and_its_exponents_above_the_line(lecture):
    page = (lecture / "lecture.html").read_text(encoding="utf-8")
    formulas = re.findall('<p class="formula">(.*)</p>', page)
    assert "Attention(Q, K, V) = softmax(Q Kᵀ / √d<sub>k</sub>) V" in formulas
    assert "h<sub>t</sub> = tanh(W x<sub>t</sub> + U h<sub>t−1</sub>)" in formulas
    assert len(formulas) > 40
    assert [one for one in formulas if re.search(r"[_^.]$|[_^]", one) and "W<sub>i</sub>" not in one] == []


def test_a_heat_map_is_drawn_in_its_shades(lecture):
    page = (lecture / "lecture.html").read_text(encoding="utf-8")
    (picture,) = re.findall('<svg role="img" aria-label="heat map: -1  ░▒▓█ 1".*?</svg>', page)
    rows = {
        y: [(int(x) // 8, int(width) // 8, float(opacity)) for x, at, width, opacity in cells if at == y]
        for cells in [
            re.findall(r'<rect x="(\d+)" y="(\d+)" width="(\d+)" height="18" fill-opacity="([\d.]+)"', picture)
        ]
        for y in ("18", "90")
    }
    assert rows["18"][:2] == [(2, 4, 0.5), (6, 4, 1.0)]  # position 0: sin 0 = 0 in the middle of the range, cos 0 = 1
    assert rows["90"][0] == (6, 4, 0.25)  # position 4: sin 4 = -0.76 is a blank, cos 4 = -0.65 the lightest shade


def test_the_notebook_of_the_lecture_holds_every_command_and_what_it_prints(lecture):
    notebook = json.loads((lecture / "lecture.ipynb").read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    own = [cell for cell in cells if "".join(cell["source"]).startswith("!")]
    rebuilt = [
        ["".join(cell["source"]), "".join("".join(output["text"]) for output in cell["outputs"])] for cell in own
    ]
    expected = [
        [
            "\n".join(f"!{line[2:]}" for line in block.splitlines() if line.startswith("$ ")),
            "".join(line for line in block.splitlines(keepends=True) if not line.startswith("$ ")),
        ]
        for block in blocks([help.read_page("lecture"), *(one.read() for one in CHAPTERS)])
    ]
    assert rebuilt == expected and len(rebuilt) > 90
    prose = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert all(f"# {one.number} {one.name}: {one.title}\n" in prose for one in CHAPTERS)
    folders = [cell for cell in cells if "mkdtemp" in "".join(cell["source"])]
    assert len(folders) == len(CHAPTERS)


def test_python_on_a_page_is_a_cell_for_each_value_that_it_shows(tmp_path):
    assert process.run("help", "python", "-o", f"{tmp_path}/python.ipynb").code == 0
    cells = json.loads((tmp_path / "python.ipynb").read_text(encoding="utf-8"))["cells"]
    own = [cell for cell in cells if cell["cell_type"] == "code"]
    assert not any(">>>" in "".join(cell["source"]) for cell in own)
    (shape,) = [cell for cell in own if "".join(cell["source"]).endswith('record.labels["token"]')]
    assert "".join(shape["source"]).startswith("import numpy as np, attnkit\n")
    assert shape["outputs"][0]["data"] == {"text/plain": ["((3, 8), (2, 3, 3), ['The', 'cat', 'sat'])"]}


def test_a_page_as_markdown_is_what_a_pipe_gets(tmp_path):
    assert process.run("help", "faults", f"--output={tmp_path}/faults.md").code == 0
    assert (
        (tmp_path / "faults.md").read_text() == help.read_page("faults") == process.run("help", "faults").out.decode()
    )


@pytest.mark.parametrize("topic", [one for one in help.list_topics() if one != "lecture"])
def test_every_page_is_a_document(topic, tmp_path):
    path = tmp_path / "page.html"
    path.write_text("an older one")
    assert process.run("help", topic, "-o", str(path)).code == 0
    elements = Elements(path.read_text(encoding="utf-8"))
    assert elements.open == [] and len(elements.ids) == len({*elements.ids})
    assert process.run("help", topic, "-o", f"{tmp_path}/page.ipynb").code == 0
    assert json.loads((tmp_path / "page.ipynb").read_text())["cells"]


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        ("lecture -o page.doc", 2, "page.doc: no page has the suffix '.doc' (expected .html, .ipynb or .md)"),
        ("lecture -o page", 2, "page: no page has the suffix '' (expected .html, .ipynb or .md)"),
        ("lecture -o", 2, "-o: expected FILE.html, FILE.ipynb or FILE.md"),
        ("attend -o page.html", 2, f"-o: 'attend' is no page {EXPECTED}"),
        ("-o page.html", 2, f"-o: no page is named {EXPECTED}"),
        ("faults -o none/page.html", 4, "cannot write none/page.html: No such file or directory"),
        ("faults -o folder.html", 4, "cannot write folder.html: Is a directory"),
    ],
)
def test_what_cannot_be_written(words, code, problem, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.html").mkdir()
    assert main.main(["help", *words.split()]) == code
    assert capfd.readouterr() == ("", f"attnkit help: {problem}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.html"]


@pytest.mark.slow
def test_the_page_of_the_lecture_is_legible_in_a_browser_fits_a_telephone_and_is_walked_by_keys(browser, lecture):
    for theme in ("dark", "light"):
        browser.prefer(theme)
        for width in (1280, 390):
            browser.resize(width)
            browser.load(lecture / "lecture.html")
            assert browser.run(f"AUDIT.faults({width})") == [], (theme, width)
    assert browser.problems() == []
    process.run("help", "lecture", "positions", "-o", f"{lecture}/positions.html")
    browser.load(lecture / "positions.html")
    assert browser.walk() == [] == browser.problems()


@pytest.mark.slow
def test_a_chapter_runs_in_jupyter_and_prints_what_its_cells_hold(tmp_path):
    nbformat, nbclient = (pytest.importorskip(name) for name in ("nbformat", "nbclient"))
    pytest.importorskip("ipykernel")
    assert process.run("help", "lecture", "projections", "-o", f"{tmp_path}/chapter.ipynb").code == 0
    notebook = nbformat.read(tmp_path / "chapter.ipynb", 4)
    nbformat.validate(notebook)
    held = [text_of(cell) for cell in notebook.cells]
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    problems = [difference(one, text_of(cell), "page.md") for one, cell in zip(held, notebook.cells, strict=True)]
    assert [one for one in problems if one] == []
    assert sum(map(bool, held)) >= 4


def text_of(cell):
    """What the outputs of a cell print."""
    return "".join(output.get("text", str(output)) for output in cell.get("outputs", [])).replace("\r\n", "\n")
