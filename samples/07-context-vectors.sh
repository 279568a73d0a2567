#!/usr/bin/env bash
# A context vector is a weighted sum of the embeddings, here by weights that are given. The
# notes leave the embeddings open; here a column for each word shows its share, and the last
# one that the shares sum to 1.
# Lecture: attention
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

attnkit attend data/python-executes-quickly.json --weights-from data/python-weights.json --keep weights -f table
