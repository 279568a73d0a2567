"""Random rankings with judgments, and what trec_eval makes of them, frozen.

    pip install pytrec-eval-terrier==0.5.10 numpy==2.4.6
    python tests/references/make_rankings.py

writes rankings.json: `rows`, the documents of each query, best first; `judgments`, lines of query, row and grade, some
of them negative; and for each cutoff the scores of each query.
"""

import json
import pathlib

import numpy as np
import pytrec_eval

QUERIES, DOCUMENTS, RANKS = 12, 40, 15
CUTOFFS = (1, 5, 10, 15)
rng = np.random.default_rng(7)
rows = [rng.permutation(DOCUMENTS)[:RANKS].tolist() for _ in range(QUERIES)]
judgments = [
    [query, int(row), int(rng.integers(-1, 4))]
    for query in range(QUERIES)
    for row in sorted(rng.permutation(DOCUMENTS)[: rng.integers(1, 9)])
]
judged: dict[str, dict[str, int]] = {}
for query, row, grade in judgments:
    judged.setdefault(str(query), {})[str(row)] = grade
run = {str(query): {str(row): float(-rank) for rank, row in enumerate(one)} for query, one in enumerate(rows)}
scores = {}
for cutoff in CUTOFFS:
    first = {query: dict(list(one.items())[:cutoff]) for query, one in run.items()}
    found = pytrec_eval.RelevanceEvaluator(judged, {f"ndcg_cut.{cutoff}", f"recall.{cutoff}", "recip_rank"}).evaluate(
        first
    )
    names = {"ndcg": f"ndcg_cut_{cutoff}", "recall": f"recall_{cutoff}", "mrr": "recip_rank"}
    scores[cutoff] = {name: [found[str(at)][key] for at in range(QUERIES)] for name, key in names.items()}
content = {"rows": rows, "judgments": judgments, "scores": scores}
(pathlib.Path(__file__).parent / "rankings.json").write_text(json.dumps(content) + "\n")
