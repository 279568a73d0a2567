#!/usr/bin/env bash
# A pipeline in a file is a command: layer.attnkit runs in one process, without encoding
# anything between its stages, and gives the bytes that the shell's pipe gives.
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

attnkit embed "The cat sat" --dim 6 --dtype float64 -o "$dir/x.json"

attnkit layernorm "$dir/x.json" --keep residual | attnkit attend --heads 2 --seed 1 --add :residual \
  | attnkit layernorm --keep residual | attnkit ffn --hidden 24 --seed 2 --add :residual > "$dir/pipe.json"
./layer.attnkit "$dir/x.json" > "$dir/run.json"
cmp "$dir/pipe.json" "$dir/run.json" && echo "the shell's pipe and the file: the same bytes"

echo
./layer.attnkit "$dir/x.json" --only x --format table
echo
echo "and what every stage made, in a folder:"
./layer.attnkit "$dir/x.json" --save "$dir/stages" > "$dir/run.json"
ls "$dir/stages"
