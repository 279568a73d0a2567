"""Run cases of the doors of this package: python -m tests.fuzz --cases 100000 --seed 1

`--only NAME` and `--case N` draw one case again: bytes are written to standard output, and a command line is shown.
`--scale` instead measures how the time of each reader of files grows from n to 2n on 1 MB of hostile input.
"""

import argparse
import importlib
import pkgutil
import resource
import sys
import tempfile
import time

import tests.fuzz
from tests.fuzz import files, runner


def find_doors(scratch: str) -> dict[str, runner.Door]:
    """The doors of all modules of this package, by name."""
    names = [one.name for one in pkgutil.iter_modules(tests.fuzz.__path__)]
    modules = [importlib.import_module(f"tests.fuzz.{name}") for name in names if not name.startswith(("_", "test_"))]
    return {name: door for one in modules if hasattr(one, "doors") for name, door in one.doors(scratch).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="doors whose name contains this")
    parser.add_argument("--case", type=int, help="show this one case")
    parser.add_argument("--scale", action="store_true", help="measure how time grows with hostile input")
    options = parser.parse_args()
    if options.scale:
        return files.growth()
    if sys.platform == "linux":  # a case that asks for more must not take the machine
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    with tempfile.TemporaryDirectory() as scratch:
        doors = {name: door for name, door in find_doors(scratch).items() if options.only in name}
        if options.case is not None:
            turns = {name: runner.draw_case(door, name, options.seed, options.case) for name, door in doors.items()}
            case = turns.get(options.only, next(iter(turns.values())))
            sys.stdout.buffer.write(case if isinstance(case, bytes) else f"{case!r}\n".encode())
            return 0
        start = time.perf_counter()
        outcomes, escapes = runner.run(doors, options.cases, options.seed)
    for name, counts in outcomes.items():
        row = f"{counts.total():7} cases: {counts['accepted']:6} accepted {counts['refused']:6} refused"
        print(f"{name:36} {row}")
    print(f"{options.cases} cases, {len(escapes)} escapes, {time.perf_counter() - start:.0f} s")
    return bool(escapes)


if __name__ == "__main__":
    sys.exit(main())
