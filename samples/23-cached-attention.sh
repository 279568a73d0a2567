#!/usr/bin/env bash
# A decoder that keeps its keys and values: the first three words in one pass, the fourth
# by itself over what is past. It gets the row that the full pass gives it.
# Lecture: gpt
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

attnkit embed "The cat sat down" --dim 6 --dtype float64 | attnkit posenc -o "$dir/all.npz"
attend() { attnkit attend "$@" --causal --heads 2 --seed 1; }

attend "$dir/all.npz" --only x -o "$dir/full.npz"

attnkit show "$dir/all.npz" --slice 0:3 -f npz > "$dir/first.npz"
attnkit show "$dir/all.npz" --slice 3:4 -f npz > "$dir/last.npz"
attend "$dir/first.npz" --keep present -o "$dir/past.npz"
attend "$dir/last.npz" --past-key "$dir/past.npz:present_key" --past-value "$dir/past.npz:present_value" \
  --only x -o "$dir/cached.npz"

attnkit show "$dir/full.npz"
echo
attnkit show "$dir/cached.npz"
attnkit show "$dir/full.npz" --slice 3:4 -f npz > "$dir/row.npz"
attnkit diff --atol 1e-12 "$dir/cached.npz" "$dir/row.npz" > "$dir/verdict" && echo "the last row of the full pass"
