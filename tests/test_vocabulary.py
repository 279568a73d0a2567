"""The vocabulary: plain technical English, one meaning a public name, docstrings in the imperative."""

import ast
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "attnkit"
FILES = sorted(PACKAGE.rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((PACKAGE / "help").rglob("*.md"))]

# phrase -> what to write instead
PHRASES = {
    r"nobody|somebody|anybody|whoever": "name the caller, the user or the callback",
    r"parted by|parted": "comma-separated, separated",
    r"go(es)? (with|together)": "needs, requires, cannot be combined with",
    r"stands?|stood": "is, is placed, precedes, follows",
    r"looks? (at|into|upon)": "attends to, reads, shows",
    r"lies?": "is, is stored",
    r"said|told|asked": "requested, stated, specified",
    r"is due": "is expected, is required",
    r"com(e|es|ing) by": "get, arrive",
    r"one or (another|the other)": "are mutually exclusive",
    r"voices?": "detokenizer",
    r"beginnings?": "prompt, start",
    r"bends?": "activation function, changes",
    r"behind": "after, before",
    r"is of one": "needs a single, belongs to one",
    r"one vector a": "one vector for each",
    r"(word|row|text|name|one) a line": "per line",
    r"attends? to nothing": "may not attend to any key, a fully masked row",
    r"to whom": "which keys a query may attend to",
    r"for eyes": "for people",
    r"x alone": "only x",
    r"(there is|one of) x,": "it has x,",
    r"exclude each other": "are mutually exclusive",
    r"carr(y|ies) (no|none)": "has no",
    r"goes on (from|at|with)": "continues",
    r"in place of (x|the model's|text|the keys)": "instead of",
}
PROSE = re.compile(rf"\b({'|'.join(PHRASES)})\b".replace(" ", r"\s+"), re.IGNORECASE)

# identifiers that say nothing about their value, and words that no identifier contains
NAMES = {"found", "given", "asked", "said", "shown", "made", "kept", "wanted", "how", "told", "seen", "what"}
PARTS = {"nobody", "somebody", "asked", "said", "told", "spoken", "spelled", "voice", "voices", "begun", "beginning"}

# words that no docstring of a function begins with: its first word is a verb in the imperative
OPENERS = {
    "The", "A", "An", "What", "Whether", "Where", "Which", "Who", "How", "One", "Each", "Every", "All", "Only", "Its",
    "This", "These", "Those", "No", "Any",
}  # fmt: skip

# public names of two rooms that are meant to be equal
SHARED = {
    "embed": "a tool, and the operator that it runs",
    "linear": "a tool, and the operator that it runs",
    "softmax": "a tool, and the operator that it runs",
    "encode": "a tool, and in formats a record to bytes",
    "run": "a tool, and in model a transformer's forward pass",
    "main": "the entry point of the process, and of the command line in Python",
}


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def prose_hits(path: Path, text: str, line: int) -> list[str]:
    """Find every forbidden phrase of a text that starts at this line of a file."""
    return [f"{place(path, line + text.count(chr(10), 0, m.start()))}: {m[0]!r}" for m in PROSE.finditer(text)]


def is_vague(name: str) -> bool:
    """Decide whether an identifier is a bare participle or contains a forbidden word."""
    return name in NAMES or not PARTS.isdisjoint(re.findall("[a-z]+", name.lower()))


def code_hits(path: Path) -> list[str]:
    """Find the forbidden words of a module: identifiers, docstrings, comments and strings."""
    hits: list[str] = []
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.NAME:
                hits += [f"{place(path, token.start[0])}: {token.string}"] if is_vague(token.string) else []
            elif token.type != tokenize.ENCODING:
                hits += prose_hits(path, token.string, token.start[0])
    return hits


def public_definitions(path: Path) -> list[ast.FunctionDef | ast.ClassDef]:
    """List the functions and classes of a module's top level whose names have no underscore in front."""
    nodes = ast.parse(path.read_text()).body
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]


def public_functions(path: Path) -> list[ast.FunctionDef]:
    """List the public functions of a module and the public methods, properties aside, of its public classes."""
    functions = []
    for node in public_definitions(path):
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        functions += [
            member
            for member in members
            if isinstance(member, ast.FunctionDef) and member.name[0] != "_" and not is_property(member)
        ]
    return functions


def is_property(function: ast.FunctionDef) -> bool:
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def docstring_hits(path: Path) -> list[str]:
    """Find the public functions whose docstring does not begin with a verb."""
    return [
        f"{place(path, node.lineno)}: {node.name}: {first!r}"
        for node in public_functions(path)
        if (first := (ast.get_docstring(node) or "What").split()[0].strip(",:")) in OPENERS
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_code_uses_plain_technical_english(path):
    hits = code_hits(path)
    assert not hits, "\n".join(hits)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_docstrings_of_functions_begin_with_a_verb(path):
    hits = docstring_hits(path)
    assert not hits, "\n".join(hits)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_use_plain_technical_english(path):
    hits = prose_hits(path, path.read_text(), 1)
    assert not hits, "\n".join(hits)


def test_a_public_name_has_one_meaning():
    homes: dict[str, dict[str, str]] = defaultdict(dict)
    for path in FILES:
        for node in public_definitions(path):
            homes[node.name].setdefault(room(path), place(path, node.lineno))
    same = {"model", "backends"}  # a formula, and the same one on arrays of another library
    several = {name: rooms for name, rooms in homes.items() if len({*rooms} - same) + bool({*rooms} & same) > 1}
    hits = [f"{name}: {' and '.join(rooms.values())}" for name, rooms in several.items() if name not in SHARED]
    assert not hits, "\n".join(hits)


def test_no_exception_outlives_its_reason():
    rooms: dict[str, set[str]] = defaultdict(set)
    for path in FILES:
        for node in public_definitions(path):
            rooms[node.name].add(room(path))
    assert [name for name in SHARED if len(rooms[name]) < 2] == []


@pytest.mark.parametrize(
    ("text", "is_forbidden"),
    [
        ("numbers parted\n    by commas", True),
        ("Nobody listens", True),
        ("it goes with --trace", True),
        ("a standard understanding of relay", False),
        ("comma-separated", False),
    ],
)
def test_phrases_are_matched_as_words_over_line_ends(text, is_forbidden):
    assert bool(prose_hits(PACKAGE / "x.py", text, 1)) is is_forbidden


def test_identifiers_are_matched_by_their_words():
    assert [name for name in ("found", "founder", "is_found", "asked_for", "given", "begun_at") if is_vague(name)] == [
        "found",
        "asked_for",
        "given",
        "begun_at",
    ]
