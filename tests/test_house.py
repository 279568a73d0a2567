"""The layout of the package: which room may import which, and the places where every tool is registered."""

import ast
import collections
import functools
import graphlib
import os
import re
import subprocess
import sys
import tomllib

import pytest

from attnkit.checkpoints.checkpoint import FAMILIES
from attnkit.cli import TOOLS, find_tool, main
from attnkit.cli.options import COMMON
from attnkit.errors import flag_name, with_article
from tests.chromium import PROGRAMS
from tests.places import ROOT

PACKAGE, TESTS = ROOT / "attnkit", ROOT / "tests"
PAGES = [ROOT / "README.md", *sorted((PACKAGE / "help").glob("*.md")), PACKAGE / "help" / "skill" / "SKILL.md"]
OTHERS = {
    "--no-deps",
    "--json",
    "--haeds",
    "--cases",
    "--check",
    "--hypothesis-profile",
    "--mutants",
    "--room",
}  # of pip, help, a misspelled example, the fuzzer, ruff, pytest, tests/mutation.py

# the rooms from the bottom up: each may import those of the lines before its own, not its siblings
FLOORS = (
    ("errors",),
    ("model",),
    ("records", "libraries", "help"),
    ("formats", "tokenizers", "display"),
    ("callbacks", "recorders"),
    ("checkpoints",),
    ("options",),
    ("inputs",),
    ("interpret", "backends"),
    ("generation", "debugger"),
    ("teaching",),
    ("training",),
    ("checking",),
    ("cli",),
    ("commands",),
)
ARROWS = {
    room: {below for lower in FLOORS[:level] for below in lower} for level, floor in enumerate(FLOORS) for room in floor
}
ARROWS["cli"] |= {"__init__"}  # the version
ARROWS["commands"] |= {"__init__"}
ARROWS |= {"__main__": {"cli", "tuning"}, "__init__": {"records"}, "tuning": set()}

# public names of two rooms that are meant to be equal
SHARED = {
    "embed": "a tool, and the operator that it runs",
    "linear": "a tool, and the operator that it runs",
    "softmax": "a tool, and the operator that it runs",
    "encode": "a tool, and in formats a record to bytes",
    "run": "a tool, and in model a transformer's forward pass",
    "main": "the entry point of the process, and of the command line in Python",
}

# the parts of model/ from the bottom up: each may import those of the lines before its own, and its line
MODEL_PARTS = (
    ("dtypes", "rounding", "arrays", "checks", "processor"),
    ("hooks", "intermediates", "parameters", "slips"),
    ("formulas", "reference"),
    ("kernels",),
    ("attention",),
    ("config", "recurrent_config", "kv_cache", "context"),
    ("layers",),
    ("backward",),
    ("graph",),
    ("groups",),
    ("passes",),
    ("exercises",),
    ("whole_models", "__init__"),
)
HEIGHTS = {part: height for height, parts in enumerate(MODEL_PARTS) for part in parts}

# what the core may import besides numpy: no input, no output, no process; and in two files what runs it on all cores
MODEL_IMPORTS = {"collections", "dataclasses", "functools", "hashlib", "importlib", "math", "numpy", "operator", "re"}
MODEL_IMPORTS |= {"inspect", "itertools", "typing"}
CORES = {"machine.py": {"ctypes"}, "threads.py": {"contextlib", "os", "threading"}, "products.py": {"contextlib"}}


@functools.cache
def parse(path):
    return ast.parse(path.read_text())


@functools.cache
def imported_nodes(path):
    """The import statements of a file, wherever in it."""
    return [node for node in ast.walk(parse(path)) if isinstance(node, ast.Import | ast.ImportFrom)]


def imports(path):
    """The modules a file imports, `attnkit.x` for its own."""
    for node in imported_nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "attnkit":
                yield from (f"attnkit.{alias.name}" for alias in node.names)
            else:
                yield node.module


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(PACKAGE.rglob("*.py"))


def target_of(name):
    """The room of an imported module of the package."""
    target = name.split(".")[1] if "." in name else "__init__"
    return "__init__" if target.startswith("__version__") else target


def test_arrows_point_one_way():
    own = [(path, name) for path in FILES for name in imports(path) if name.startswith("attnkit")]
    against = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path, name in own
        if target_of(name) not in ARROWS[room(path)] | {room(path)}
    ]
    assert against == []


def test_the_drawing_on_the_page_of_the_architecture_has_the_rooms_in_this_order():
    (drawing,) = re.findall(r"```text\n(.*?)```", (PACKAGE / "help" / "architecture.md").read_text(), re.DOTALL)
    lines = drawing.splitlines()
    rows = [{max(i for i, line in enumerate(lines) if name in line.split()) for name in floor} for floor in FLOORS]
    assert all(len(row) == 1 for row in rows), "the rooms of a floor are on one line"
    places = [row.pop() for row in rows]
    assert places == sorted(places, reverse=True)


def test_no_command_imports_a_command():
    for path in sorted((PACKAGE / "commands").rglob("*.py")):
        own = tuple(path.relative_to(PACKAGE).with_suffix("").parts[:2])
        others = {name for name in imports(path) if name.startswith("attnkit.commands")}
        assert {tuple(name.split(".")[1:3]) for name in others} <= {own}, path.name


BY_NAME = {".", "checkpoints", "commands", "commands/run", "help", "model", "model/formulas"}  # folders without a list


@pytest.mark.parametrize("folder", sorted({str(path.parent.relative_to(PACKAGE)) for path in FILES} - BY_NAME))
def test_the_docstring_of_a_folder_lists_its_modules(folder):
    text = ast.get_docstring(parse(PACKAGE / folder / "__init__.py"))
    inside = [path.relative_to(PACKAGE / folder) for path in FILES if path.is_relative_to(PACKAGE / folder)]
    modules = {path.parts[0].removesuffix(".py") for path in inside} - {"__init__"}
    assert [name for name in sorted(modules) if not re.search(rf"\b{name}\b", text)] == []
    listed = re.findall(r"^(\w+)(?:/|\.py)?  ", text, re.MULTILINE)
    assert len(listed) == len(set(listed)) and {*listed} <= modules


def module_name(path):
    """attnkit.model.config for the file of that module, attnkit.model for __init__.py of that folder."""
    return ".".join(("attnkit", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


MODULES = {module_name(path): path for path in FILES}


def imported_modules(path):
    """The modules of the package that a file imports, wherever in the file, for type checkers alone too."""
    for node in imported_nodes(path):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            parts = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [part if part in MODULES else node.module for part in parts]
        yield from (name for name in names if name in MODULES)


CORE = [path for path in FILES if room(path) == "model"]


def height(module):
    """The line of MODEL_PARTS that a module of model/ stands in."""
    return HEIGHTS[[*module.split(".")[2:], "__init__"][0]]


def named_modules(path):
    """The modules that the rows of a table name, to be imported by the first call: Later("layers.attention", ...)."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Later":
            yield f"attnkit.model.{node.args[0].value}"


def test_inside_model_arrows_point_down():
    """Imports inside functions, those for type checkers alone and names in tables are arrows, too."""
    assert {*HEIGHTS} == {path.relative_to(PACKAGE / "model").parts[0].removesuffix(".py") for path in CORE}
    arrows = [
        (module, target)
        for module, path in zip(map(module_name, CORE), CORE, strict=True)
        for target in (*imported_modules(path), *named_modules(path))
        if target.startswith("attnkit.model")
    ]
    assert [f"{module} imports {target}" for module, target in arrows if height(target) > height(module)] == []


def test_the_docstring_of_model_lists_its_parts_in_this_order():
    text = ast.get_docstring(parse(PACKAGE / "model" / "__init__.py")).split("bottom up")[1]
    rows = re.findall(r"^([a-z_/ ]+?)  +\S", text, re.MULTILINE)
    assert [tuple(row.replace("/", "").split()) for row in rows] == [*MODEL_PARTS[:-1]]


def test_a_test_imports_what_there_is():
    """Pytest leaves a file out whose imports fail, as of an extra that is not installed."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for module in re.findall(r"^ *from (attnkit[\w.]*) import ", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert module in MODULES, f"{path.relative_to(TESTS)} imports {module}"


def test_no_modules_import_one_another_in_a_circle():
    """Not for type checkers alone either, nor within functions."""
    graph = {module: set(imported_modules(path)) for module, path in MODULES.items()}
    assert [*graphlib.TopologicalSorter(graph).static_order()]  # CycleError names a circle


def test_the_core_is_pure():
    for path in CORE:
        outside = {name.split(".")[0] for name in imports(path)} - {"attnkit"}
        assert outside <= MODEL_IMPORTS | CORES.get(path.name, set()), path.name
        own = {name for name in imports(path) if name.startswith("attnkit")}
        assert all(name.startswith(("attnkit.model", "attnkit.errors")) for name in own), path.name


def test_no_module_reads_pickles_by_pythons_own_reader():
    readers = {"pickle", "_pickle", "pickletools", "shelve", "marshal"}
    assert [str(path.relative_to(PACKAGE)) for path in FILES if readers & {*imports(path)}] == []


def test_a_public_name_has_one_meaning():
    rooms = collections.defaultdict(set)
    for path in FILES:
        for node in parse(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                rooms[node.name].add({"backends": "model"}.get(room(path), room(path)))  # a formula for other arrays
    assert {name: where for name, where in rooms.items() if (len(where) > 1) != (name in SHARED)} == {}


def test_the_command_line_starts_without_numpy_rich_and_typer():
    code = "import sys, attnkit.cli.main; print(*sorted({'numpy', 'rich', 'typer'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == ""


@pytest.mark.parametrize("tool", ["layernorm", "attend"])
def test_a_stage_imports_no_rich_no_zipfile_no_whole_model_it_does_not_need(tool):
    code = (
        "import sys; from attnkit.cli.main import main; main([*sys.argv[1:], '-f', 'json', '-']);"
        "heavy = {'rich', 'zipfile', 'hashlib', 'ml_dtypes', 'numpy.random'};"
        "unneeded = heavy | {'attnkit.model.config', 'attnkit.model.processor.threads'};"
        "print(*sorted(unneeded & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code, tool], input=b"[[1,2]]", capture_output=True, check=True)
    assert run.stderr.strip() == b""


def test_a_stage_imports_numpy_before_typer():
    code = (
        "import sys; from attnkit.cli.main import main; main(['softmax', '-f', 'json', '-']);"
        "print([name for name in sys.modules if name in ('numpy', 'typer')], file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], input=b"[[1,2]]", capture_output=True, check=True)
    assert run.stderr.strip() == b"['numpy', 'typer']"


# what only whole models, tables and published tokenizers need
WHOLE_MODELS = {"model.config", "model.whole_models", "generation.output_head", "interpret.tracer"}
UNNEEDED = WHOLE_MODELS | {"display", "inputs.detokenizer", "tokenizers.auto", "tokenizers.huggingface"}
LINES = ["embed a --one-hot", "decode --table table.json x.json", "mask --causal x.json"]


@pytest.mark.parametrize("line", LINES)
def test_text_and_words_need_no_whole_model_no_tables_and_no_published_tokenizer(line, tmp_path):
    (tmp_path / "x.json").write_text("[[1,2]]")
    (tmp_path / "table.json").write_text("[[1,2],[3,4]]")
    code = (
        "import sys; from attnkit.cli.main import main; main([*sys.argv[1:], '-f', 'json']);"
        "print(*(name for name in sys.modules if name.startswith(('attnkit.', 'numpy.random'))), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code, *line.split()], cwd=tmp_path, capture_output=True, check=True)
    unneeded = {f"attnkit.{name}" for name in UNNEEDED} | {"numpy.random"}
    loaded = set(run.stderr.decode().split())
    assert run.stdout and "attnkit.cli.tool" in loaded and unneeded & loaded == set()
    assert len(loaded) <= 67


def test_the_modules_of_every_stage_make_few_dataclasses():
    code = (
        "import dataclasses, sys; made = []; process = dataclasses._process_class;"
        "dataclasses._process_class = lambda kind, *rest: made.append(kind) or process(kind, *rest);"
        "from attnkit.cli.main import main; main(['layernorm', '-q', '-f', 'json']);"
        "print(*sorted(one.__name__ for one in made if one.__module__.startswith('attnkit')), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], input=b"[[1,2]]", capture_output=True, check=True)
    assert run.stdout and len(run.stderr.split()) <= 10  # each takes a third of a millisecond, a named tuple a tenth


@pytest.mark.parametrize("name", ["corpus", "explore", "models", "near"])
def test_a_benchmark_runs_beside_a_package_called_tests(name, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()  # some packages install one
    script = ROOT / "tests" / "benchmarks" / f"{name}.py"
    folders = [str(script.parent), str(tmp_path)]  # the first is that of the script, as Python has it
    code = f"import runpy, sys; sys.argv, sys.path[:0] = [{str(script)!r}, '--help'], {folders}; "
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "") and "python tests/benchmarks/" in run.stdout


def test_every_tool_has_its_file_its_row_in_the_readme_and_an_example():
    readme = (ROOT / "README.md").read_text()
    files = {path.stem for path in (PACKAGE / "commands").glob("[a-z]*") if path.name != "__pycache__"}
    assert files == set(TOOLS)
    for name in TOOLS:
        assert re.search(rf"^\| `{name}", readme, re.MULTILINE), f"no row for {name} in the README"
        assert f"attnkit {name}" in find_tool(name).function.__doc__


def without_spaces(text):
    """A text as it was before it was wrapped, which may have been within a word."""
    return "".join(text.split())


def test_every_flag_is_in_the_help_of_its_tool(capfd):
    """With what it does, unless all tools share it: that is on the page of `help output`."""
    shared = without_spaces((PACKAGE / "help" / "output.md").read_text())
    for name in TOOLS:
        assert main.main([name, "--help"]) == 0
        shown, tool = capfd.readouterr().out, find_tool(name)
        assert [one for one in tool.options if not re.search(rf"(?<!\S){flag_name(one)}(?!\S)", shown)] == [], name
        explained = {one: shared if one in COMMON and one not in tool.defaults else shown for one in tool.options}
        hidden = [
            one for one, text in explained.items() if without_spaces(tool.options[one].help) not in without_spaces(text)
        ]
        assert hidden == [], name


def test_every_flag_of_a_page_is_a_flag_of_a_tool():
    known = {"--help", "--version"}
    for name in TOOLS:
        tool = find_tool(name)
        known |= {flag_name(one) for one in tool.options}
    for page in PAGES:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", page.read_text()))
        assert named <= known | OTHERS, f"{page.name} names flags of no tool: {sorted(named - known - OTHERS)}"


def test_pages_hold_no_marks_of_a_merge():
    marked = re.compile(r"^(<{7}|>{7}|={7}$)", re.MULTILINE)
    files = [*PAGES, *(PACKAGE / "help").glob("*.toml"), *(ROOT / "samples").glob("*.*"), ROOT / "pyproject.toml"]
    assert [str(path) for path in files if marked.search(path.read_text(encoding="utf-8"))] == []


DOCSTRING = re.compile(r'(?:\A|:(?:  #.*)?\n)\s*r?"""(.*?)(?:""")?$', re.MULTILINE)  # its first line
WORDINESS = re.compile(r"\bso many\b|(?<!each )(?<!last )(?<!first )\bof which\b|\bwhat\b.*\bwhat\b", re.IGNORECASE)


def test_the_first_line_of_a_docstring_is_short_and_names_its_subject():
    firsts = [(module_name(path), one) for path in FILES for one in DOCSTRING.findall(path.read_text())]
    assert len(firsts) > 3000
    assert [(name, one) for name, one in firsts if len(one) > 80 or WORDINESS.search(one)] == []


def test_plurals_are_built_by_one_function():
    by_hand = re.compile(r"""['"]e?s['"] \* """)
    found = [path.name for path in FILES if path.name != "errors.py" and by_hand.search(path.read_text())]
    assert found == [], "attnkit.errors.counted writes '1 token' and '2 tokens'"


def test_articles_before_a_family_are_written_by_one_function():
    by_hand = re.compile(r"""\ba \{[a-z_.]*family\}""")
    assert [path.name for path in FILES if by_hand.search(path.read_text())] == [], "attnkit.errors.with_article"
    an = {one for one in FAMILIES if with_article(one) == f"an {one}"}
    spelled = {"lstm", "m2m_100", "mbart", "mpnet", "mt5", "xlm-roberta"}  # an "em", an "ell", an "ex"
    assert an == {"albert", "electra", "olmo", "olmo2", "olmo3", "olmoe", "openai-gpt", "opt", "idefics3", *spelled}


def test_the_linters_are_pinned_and_no_part_of_the_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    linters = project["dependency-groups"]["dev"]
    assert {pin.partition("==")[0] for pin in linters} == {"mypy", "ruff"}
    assert all(re.fullmatch(r"\w+==[0-9.]+", pin) for pin in linters)
    assert not [one for one in project["project"]["optional-dependencies"]["test"] if one.startswith(("mypy", "ruff"))]
    lint = (ROOT / ".ci/lint").read_text()
    assert os.access(ROOT / ".ci/lint", os.X_OK) and "lint" not in (ROOT / ".ci/run").read_text()
    assert all(f"-m {command}\n" in lint for command in ("ruff check .", "ruff format --check .", "mypy"))


def test_type_checkers_see_the_annotations():
    assert (PACKAGE / "py.typed").read_bytes() == b""


def test_the_workflow_tests_every_python_and_the_oldest_numpy_with_the_command_of_the_readme():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    pythons = [one.rsplit(maxsplit=1)[1] for one in project["classifiers"] if re.search(r":: 3\.\d+$", one)]
    (line,) = re.findall(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)
    assert re.findall(r"[\d.]+", line) == pythons
    (oldest,) = [one.partition(">=")[2] for one in project["dependencies"] if one.startswith("numpy>=")]
    assert set(re.findall(r'numpy: "(.*)"', workflow)) == {f"{oldest}.*"}
    assert {"run: .ci/run", "run: .ci/lint"} <= {line.strip().removeprefix("- ") for line in workflow.splitlines()}
    assert "[ubuntu-latest, macos-latest]" in workflow
    (browser,) = re.findall(r"apt-get install .* (\S+)$", workflow, re.MULTILINE)
    (pages,) = re.findall(r"-m pytest (.*)$", workflow, re.MULTILINE)
    takes = re.compile(r"^def test_\w+\(browser\b", re.MULTILINE)
    users = {path for path in TESTS.rglob("test_*.py") if takes.search(path.read_text())}
    assert browser in PROGRAMS and {ROOT / page for page in pages.split()} == users
