#!/usr/bin/env bash
# A context vector is a weighted sum of the embeddings. Weights that are given become
# scores by ln, for softmax(ln w) = w. The notes leave the embeddings open; here a column
# for each word shows its share, and the last one that the shares sum to 1.
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

jq -c 'map(map(log))' data/python-weights.json \
  | attnkit attend data/python-executes-quickly.json --scale 0 --bias - --keep weights -f table
