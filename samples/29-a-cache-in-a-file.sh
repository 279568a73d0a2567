#!/usr/bin/env bash
# What a decoder has read, it keeps: the keys and values of every token. Written to a file they
# can be inspected, and a later run goes on from there as if it had never stopped.
# Lecture: gpt
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
tale() { attnkit decode --model data/story "$@"; }

tale "Once upon a time" --max-tokens 12 --cache-out "$dir/cache.npz" --emit text
attnkit show "$dir/cache.npz" --list

echo
echo "… and 20 tokens more, from the file and in one run:"
tale --cache-in "$dir/cache.npz" --max-tokens 20 --emit text | tee "$dir/two-runs.txt"
tale "Once upon a time" --max-tokens 32 --emit text | diff "$dir/two-runs.txt" - && echo "the same"
