#!/usr/bin/env bash
# Which parts of the model say "bear" and not "fox"? The state of the last token reads as the word itself until layer 1
# brings back the bear; by heads, that are head 3 of layer 1 and head 1 of layer 2, the two that 30-heads-off.sh turns
# off, and the feed-forward networks after them say what the heads have found. All parts add up to the difference of
# the two logits.
# Lecture: interpretability
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
tale="Once upon a time there was a small bear who lived by the sea. Every evening the"
attnkit encode --model data/story "$tale" --trace "$dir/run.npz" -o "$dir/x.npz"
attnkit lens "$dir/run.npz" --model data/story --position -1 -f table
echo
attnkit lens "$dir/run.npz" --model data/story --direct " bear" --minus " fox" --by head -f table
