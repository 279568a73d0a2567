"""Change the package in one place, and see whether a test of its room notices: python -m tests.mutation --mutants 200

Each mutant is one changed operator, constant, comparison, index, argument or default of one function. A fork of a
process that has collected the tests gives the live function its changed code, and runs the tests of its room and of
tools that execute it, the cheapest first, until one fails. Written are, by room, how many mutants a test noticed, how
many survived, and how many are in functions that no test executes in its own process; then each survivor, with its
tests. `--seed` draws others.

Which tests execute a function is recorded once for each file of tests, in the folder `--records`.
"""

import argparse
import ast
import collections
import functools
import gc
import hashlib
import itertools
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest

from tests import process
from tests.places import ROOT

ROOMS = ("model", "formats", "checkpoints", "generation", "inputs", "tokenizers", "debugger")
OPERATORS = (
    *((ast.Add, ast.Sub), (ast.Sub, ast.Add), (ast.Mult, ast.Div), (ast.Div, ast.Mult), (ast.FloorDiv, ast.Mult)),
    *((ast.Mod, ast.FloorDiv), (ast.Pow, ast.Mult), (ast.LShift, ast.RShift), (ast.RShift, ast.LShift)),
    *((ast.BitAnd, ast.BitOr), (ast.BitOr, ast.BitAnd), (ast.And, ast.Or), (ast.Or, ast.And), (ast.USub, ast.UAdd)),
    *((ast.Lt, ast.LtE), (ast.LtE, ast.Lt), (ast.Gt, ast.GtE), (ast.GtE, ast.Gt), (ast.Eq, ast.NotEq)),
    *((ast.NotEq, ast.Eq), (ast.Is, ast.IsNot), (ast.IsNot, ast.Is), (ast.In, ast.NotIn), (ast.NotIn, ast.In)),
)
OTHER = dict(OPERATORS)
PAIRS = (("min", "max"), ("any", "all"), ("argmin", "argmax"), ("minimum", "maximum"))
OTHER_NAME = {name: other for pair in PAIRS for name, other in (pair, pair[::-1])}
SYMMETRIC = {
    *("min", "max", "minimum", "maximum", "array_equal", "logical_and", "logical_or", "cast", "suppress", "vdot"),
    *("add", "isclose", "shares_memory", "swapaxes", "gap", "largest_gap", "cosine"),
}
NO_EFFECT = {"strict", "stacklevel", "copy"}  # keyword arguments that change no result
TEXTS = (ast.JoinedStr, ast.FormattedValue)
NO_CODE = {"annotation", "returns", "decorator_list", "type_params", "type_comment"}  # fields that no call executes
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

TOOLS = (
    "tests/commands",
    "tests/faults",
    "tests/test_transcripts.py",
)  # which run tools in their process: of all rooms
CACHE, OWN = type(functools.cache(len)), ("attnkit", "tests.")
MEMORY = 4 << 30  # bytes that the tests of a mutant may allocate
HANGS = 20  # seconds that a test of a mutant may wait, beside 20 times its own
SURVIVED, NOTICED, UNCHANGED = range(3)  # exit codes of a mutant's process
OUTCOMES = ("survived", "noticed", "not tried", "not reached")


class Mutant(NamedTuple):
    """One change: the value of a field of a node, in the function that begins at a line of a file."""

    path: Path
    function: tuple[int, str]
    node: ast.AST
    field: str
    value: Any
    shown: ast.AST
    default: int | str | None = None

    def apply(self):
        setattr(self.node, self.field, self.value)

    def __str__(self):
        """The change in one line; it leaves the tree as it was."""
        kept, before = getattr(self.node, self.field), ast.unparse(self.shown)
        self.apply()
        after = ast.unparse(self.shown)
        setattr(self.node, self.field, kept)
        line = getattr(self.node, "lineno", self.function[0])
        return f"{self.path.relative_to(ROOT)}:{line}: {before.splitlines()[0]}  ->  {after.splitlines()[0]}"


def edits(node):
    """The changes of one node: other values of its fields."""
    return *operators(node), *constants(node), *calls(node)


def operators(node):
    match node:
        case ast.BinOp(left=left, right=right) if is_text(left) or is_text(right):
            pass
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, "operand", ast.UnaryOp(ast.Not(), operand)
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) | ast.UnaryOp(op=op) if type(op) in OTHER:
            yield node, "op", OTHER[type(op)]()
        case ast.Compare(ops=ops):
            for at, op in enumerate(ops):
                yield node, "ops", [*ops[:at], OTHER[type(op)](), *ops[at + 1 :]]


def constants(node):
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value) as operand):
            yield operand, "value", value - 1
        case ast.Constant(value=bool(value)):
            yield node, "value", not value
        case ast.Constant(value=int(value)):
            yield node, "value", value + 1
        case ast.Constant(value=float(value)):
            yield node, "value", 2 * value or 1.0
        case ast.Slice():
            yield from ((node, bound, None) for bound in ("lower", "upper") if getattr(node, bound))


def calls(node):
    match node:
        case ast.Call(func=func, args=args, keywords=keywords):
            for one in keywords:
                if one.arg and one.arg not in NO_EFFECT:
                    yield node, "keywords", [other for other in keywords if other is not one]
            name = getattr(func, "attr", getattr(func, "id", ""))
            first = args[:2]
            is_fixed = any(isinstance(one, ast.Starred) or is_text(one) for one in first)
            if len({*map(ast.dump, first)}) == 2 and name not in SYMMETRIC and not is_fixed:
                yield node, "args", [*first[::-1], *args[2:]]
        case ast.Name(id=name) if name in OTHER_NAME:
            yield node, "id", OTHER_NAME[name]
        case ast.Attribute(attr=name) if name in OTHER_NAME:
            yield node, "attr", OTHER_NAME[name]


def is_text(node):
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def start(node):
    """The first line of a function, as its code has it, and its name."""
    decorators = getattr(node, "decorator_list", [])
    return min(one.lineno for one in (node, *decorators)), getattr(node, "name", "<lambda>")


def find_mutants(path, tree):
    """All mutants of the functions of a module."""

    def visit(node, owner, parent):
        if owner:
            for one, field, value in edits(node):
                small = one is not node or isinstance(one, ast.Constant | ast.Slice | ast.Name)
                shown = parent if small and not isinstance(parent, FUNCTIONS) else node
                yield Mutant(path, owner, one, field, value, shown)
        if isinstance(node, FUNCTIONS):
            yield from defaults(node, owner)
        for field, child in children(node):
            if isinstance(node, ast.UnaryOp) and isinstance(child, ast.Constant) and isinstance(node.op, ast.USub):
                continue
            inside = start(node) if isinstance(node, FUNCTIONS) and field == "body" else owner
            yield from visit(child, inside, node)

    def defaults(node, owner):
        arguments = node.args
        first = len(arguments.posonlyargs + arguments.args) - len(arguments.defaults)
        names = [one.arg for one in (arguments.posonlyargs + arguments.args)[first:]]
        named = [(at, name, value) for at, (name, value) in enumerate(zip(names, arguments.defaults, strict=True))]
        named += [
            (one.arg, one.arg, value) for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        ]
        for place, name, value in named:
            for one, field, other in edits(value) if value else ():
                if isinstance(one, ast.Constant):
                    shown = ast.keyword(name, value)
                    yield Mutant(path, owner or start(node), one, field, other, shown, None if owner else place)

    return list(visit(tree, None, tree))


def children(node):
    """The nodes in a node that its code executes, each with the name of its field; texts and defaults are left out."""
    for field, value in ast.iter_fields(node):
        if field in NO_CODE or isinstance(node, ast.arguments):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, TEXTS) and not is_inert(child):
                yield field, child


def is_inert(node):
    """Whether a node is a docstring, or a keyword argument that changes no result."""
    return (isinstance(node, ast.Expr) and is_text(node.value)) or getattr(node, "arg", None) in NO_EFFECT


def find_codes(code, found=None):
    """The code objects in the code of a module, by first line, qualified name and which of these it is."""
    found = {} if found is None else found
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            key = one.co_firstlineno, one.co_qualname
            found[*key, sum(other[:2] == key for other in found)] = one
            find_codes(one, found)
    return found


def live_functions(folder):
    """All functions of this process whose source is in a folder, by file, first line and qualified name."""
    gc.unfreeze()
    found = collections.defaultdict(list)
    for one in gc.get_objects():
        if type(one) is types.FunctionType and one.__code__.co_filename.startswith(str(folder)):
            code = one.__code__
            found[code.co_filename, code.co_firstlineno, code.co_qualname].append(one)
    gc.freeze()
    return found


class Module:
    """A module of the package: its syntax tree, its mutants, and its functions in this process."""

    def __init__(self, path, live):
        self.path, self.live = path, live
        self.tree = ast.parse(path.read_text())
        self.codes = self.compiled()
        self.mutants = find_mutants(path, self.tree)

    def compiled(self):
        return find_codes(compile(self.tree, str(self.path), "exec", dont_inherit=True))

    def install(self):
        """Give the live functions the code of the changed tree; the number of functions that have new code."""
        new, count = self.compiled(), 0
        for key, code in self.codes.items():
            for one in self.live.get((str(self.path), *key[:2]), ()):
                if one.__code__ == code != new.get(key, code):
                    one.__code__ = new[key]
                    count += 1
        return count

    def change(self, mutant):
        """Apply a mutant to the live functions; the number of functions that are changed."""
        mutant.apply()
        if mutant.default is None:
            return self.install()
        found = [one for key, some in self.live.items() for one in some if key[0] == str(self.path)]
        found = [one for one in found if (one.__code__.co_firstlineno, one.__code__.co_name) == mutant.function]
        value = ast.literal_eval(mutant.shown.value)
        for one in found:
            if isinstance(mutant.default, str):
                one.__kwdefaults__ = one.__kwdefaults__ | {mutant.default: value}
            else:
                at = mutant.default
                one.__defaults__ = (*one.__defaults__[:at], value, *one.__defaults__[at + 1 :])
        return len(found)

    def watch(self, reached):
        """Make each live function add its place to a set when it is called."""
        name = "_reached_"
        for node in ast.walk(self.tree):
            if isinstance(node, FUNCTIONS):
                line, title = start(node)
                call = ast.parse(f"{name}({f'{self.path.relative_to(ROOT)}:{line}:{title}'!r})").body[0]
                if isinstance(node, ast.Lambda):
                    node.body = ast.BoolOp(ast.Or(), [call.value, node.body])
                else:
                    node.body.insert(bool(ast.get_docstring(node)), call)
        ast.fix_missing_locations(self.tree)
        self.install()
        for some in self.live.values():
            for one in some:
                one.__globals__[name] = reached.add


def in_a_fork(action):
    """How an action ends in a process of its own: its exit code, or -N where signal N has ended it."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = NOTICED
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for one in range(3):
            os.dup2(nothing, one)
        code = action()
    finally:
        os._exit(code)


def is_noticed(module, mutant, tests):
    """NOTICED, SURVIVED or UNCHANGED: whether one of the tests, pairs of a call and its seconds, fails for a mutant.

    A test that needs ten times as long, or too much memory, fails.
    """

    def action():
        if not module.change(mutant):
            return UNCHANGED
        used = int(Path("/proc/self/statm").read_text().split()[5]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
        for test, seconds in tests:
            signal.setitimer(signal.ITIMER_PROF, 2 + 10 * seconds)  # ends this process
            if not test():
                return NOTICED
        return SURVIVED

    code = in_a_fork(action)
    return code if code in (SURVIVED, UNCHANGED) else NOTICED


class Runner:
    """A plugin of pytest that collects the tests of a room, and runs some of them for each of its mutants."""

    def __init__(self, options):
        self.options, self.failed, self.skipped, self.conftest = options, False, False, None
        self.rows, self.counts = [], collections.Counter()

    def pytest_collection(self):
        """Have Hypothesis stop at the first case that fails."""
        phases = [one for one in hypothesis.Phase if one.name not in ("shrink", "explain")]
        hypothesis.settings.register_profile("mutation", hypothesis.settings(), phases=phases)
        hypothesis.settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report):
        self.failed |= report.failed
        self.skipped |= report.skipped

    def passes(self, item, following=None, limit=600):
        """Run a test; whether it passes in some seconds. One that waits for longer ends its process."""
        self.failed, self.conftest.HANGS = False, limit
        item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
        return not self.failed

    def pytest_runtestloop(self, session):
        self.conftest = session.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
        folder = ROOT / "attnkit" / self.options.room
        live = live_functions(folder)
        modules = {path: Module(path, live) for path in sorted(folder.rglob("*.py"))}
        tests = self.reach(session.items, modules)
        drawn = [mutant for module in modules.values() for mutant in module.mutants]
        drawn = random.Random(self.options.seed).sample(drawn, min(self.options.mutants, len(drawn)))
        for number, mutant in enumerate(drawn):
            place = f"{mutant.path.relative_to(ROOT)}:{mutant.function[0]}:{mutant.function[1]}"
            self.judge(modules[mutant.path], mutant, tests.get(place, ()))
            self.tell(f"mutant {number + 1} of {len(drawn)}")
        print(file=sys.stderr)
        return True

    def tell(self, text):
        """Show on a terminal what is done."""
        print(f"\r{self.options.room}: {text:60}", end="", file=sys.stderr, flush=True)

    def judge(self, module, mutant, tests):
        """Count whether the tests of its function notice a mutant; others than noticed ones get a row."""
        tests = sorted(tests, key=lambda one: one[0])
        spent = itertools.accumulate(seconds for seconds, _ in tests)
        some = [
            one for one, seconds in zip(tests, spent, strict=True) if one is tests[0] or seconds < self.options.seconds
        ]
        after = [item for _, item in some[1:]] + [None]
        calls = [
            (functools.partial(self.passes, item, after[at], HANGS + 20 * seconds), seconds)
            for at, (seconds, item) in enumerate(some)
        ]
        outcome = OUTCOMES[is_noticed(module, mutant, calls)] if calls else "not reached"
        self.counts[outcome] += 1
        if outcome != "noticed":
            self.rows.append(f"{outcome} by {len(some)} of {len(tests)} tests: {mutant}")

    def reach(self, items, modules):
        """The tests that execute each function, with their seconds; recorded for each file of tests."""
        package = hashlib.sha256(b"".join(path.read_bytes() for path in modules)).digest()
        files = collections.defaultdict(list)
        for item in items:
            files[item.path].append(item)
        found = collections.defaultdict(list)
        for number, (path, some) in enumerate(files.items()):
            name = hashlib.sha256(package + path.read_bytes() + str(path).encode()).hexdigest()[:16]
            record = Path(self.options.records, f"{name}.json")
            if not record.exists():
                self.tell(f"file {number + 1} of {len(files)}: {path.name}")
                in_a_fork(functools.partial(self.record, some, modules, record))
            if not record.exists():
                raise RuntimeError(f"{path}: its tests ended their process")
            recorded = json.loads(record.read_text())
            for item in some:
                seconds, places = recorded.get(item.nodeid, (0, ()))
                for place in places:
                    found[place].append((seconds, item))
        return found

    def record(self, items, modules, record):
        """Write which functions each test that passes executes, each as if it were the first."""
        from tests import registry  # after conftest.py has set what NumPy is imported with

        reached, found = set(), {}
        for module in modules.values():
            module.watch(reached)
        gc.unfreeze()
        held = (process.server, registry.place_of, registry._temporary)  # which end what they hold
        caches = [one for one in gc.get_objects() if type(one) is CACHE and one.__module__.startswith(OWN)]
        caches = [one for one in caches if one not in held]
        for item in items:
            for one in caches:
                one.cache_clear()
            reached.clear()
            before = sum(os.times()[:4])
            self.skipped = False
            if self.passes(item) and not self.skipped:
                found[item.nodeid] = round(sum(os.times()[:4]) - before, 3), sorted(reached)
        part = record.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(found))
        part.rename(record)
        return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="files of tests beside those of the room")
    parser.add_argument("--mutants", type=int, default=50, help="of each room")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", choices=ROOMS, help="[default: each]")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for one mutant")
    parser.add_argument("--records", default=f"{tempfile.gettempdir()}/attnkit-mutation")
    options = parser.parse_args()
    if not options.room:
        for room in ROOMS:
            subprocess.run(
                [sys.executable, "-m", "tests.mutation", *sys.argv[1:], "--room", room], cwd=ROOT, check=True
            )
        return
    os.makedirs(options.records, exist_ok=True)
    runner = Runner(options)
    with tempfile.TemporaryDirectory() as scratch:
        settings = [
            "-n",
            "0",
            "-s",
            "-p",
            "no:terminal",
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow",
            "--assert=plain",
            f"--basetemp={scratch}/tests",
        ]
        pytest.main(
            [*settings, f"tests/{options.room}", f"attnkit/{options.room}", *TOOLS, *options.tests], plugins=[runner]
        )
    counts = runner.counts
    share = counts["noticed"] / max(1, counts.total() - counts["not tried"])
    words = ("noticed", "survived", "not reached", "not tried")
    print(
        f"{options.room}: {counts.total()} mutants, {', '.join(f'{counts[one]} {one}' for one in words)} ({share:.1%})"
    )
    print(*(f"  {row}" for row in sorted(runner.rows)), sep="\n")


if __name__ == "__main__":
    main()
