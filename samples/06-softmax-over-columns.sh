#!/usr/bin/env bash
# "Following words cannot influence previous words", drawn the other way round: keys are
# rows and queries are columns, so the softmax runs down a column. −∞ is a masked score.
# Lecture: masks
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

attnkit softmax data/column-scores.json --axis 0 -f table

echo
echo "The notes print .46 for key 0 and query 4: it is .4652, so .47; the others agree to 2 places."
