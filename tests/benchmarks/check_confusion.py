"""Print the table of confusion of `attnkit check`: slips put into right implementations, and what is said of them.

    PYTHONPATH=. python tests/benchmarks/check_confusion.py -o tests/references/check_slips.json

The implementations are those of tests/checking/right_numpy.py and right_torch.py, the slips those of
tests/checking/slipped.py. NumPy has no bfloat16. Without --dtype both float32 and bfloat16 are judged; that takes some
minutes. The page `attnkit help checking` has the totals.
"""

import argparse
import collections
import json
import sys
import warnings

from tests.checking.slipped import OUTCOMES, RIGHT, judge, load, outcome_of, slipped

DTYPES = ("float32", "bfloat16")


def count(dtype, stages, shows):
    """{stage: {library: {outcome: count}}} of all slips, and the right implementations that are said to be wrong."""
    counts = collections.defaultdict(lambda: collections.defaultdict(collections.Counter))
    alarms = []
    for right in RIGHT:
        if (stages and right.stage not in stages) or (dtype == "bfloat16" and right.library == "numpy"):
            continue
        if not judge(right, load(right), dtype).is_right:
            alarms.append(right)
        for one in slipped(right):
            findings = judge(right, load(right, one.source), dtype)
            outcome = outcome_of(one.sentence, findings)
            counts[right.stage][right.library][outcome] += 1
            if shows and outcome in ("unknown", "wrong"):
                names = [cause.slip.name for cause in findings.causes]
                print(f"{outcome}: {right.library} {right.name}: {one.sentence}: {names}", file=sys.stderr)
    return counts, alarms


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*")
    parser.add_argument("--dtype", choices=DTYPES, action="append")
    parser.add_argument("-o", help="write the counts as JSON")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    written = {}
    for dtype in arguments.dtype or DTYPES:
        counts, alarms = count(dtype, arguments.stages, shows=True)
        written[dtype] = counts
        total = collections.Counter()
        print(f"{dtype:16}{'':8}" + "".join(f"{one:>16}" for one in OUTCOMES))
        for stage, by_library in counts.items():
            for library, outcomes in by_library.items():
                total += outcomes
                print(f"{stage:16}{library:8}" + "".join(f"{outcomes[one]:16}" for one in OUTCOMES))
        print(f"{'all':24}" + "".join(f"{total[one]:16}" for one in OUTCOMES))
        print(f"false alarms: {', '.join(f'{one.library} {one.name}' for one in alarms) or 'none'}\n")
    if arguments.o:
        with open(arguments.o, "w", encoding="utf-8") as file:
            json.dump(written, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
