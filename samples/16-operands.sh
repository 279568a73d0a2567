#!/usr/bin/env bash
# An operand may be a file, another pipeline, standard input or a FIFO: each is read once,
# to its end, and the result is the same to the byte.
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

memory() { attnkit embed "the cat sat" --dim 4 | attnkit posenc; }
look() { attnkit attend "$dir/x.npz" --memory "$1" --only x -f npy; }
attnkit embed "le chat" --dim 4 -o "$dir/x.npz"

memory > "$dir/memory.json"
look "$dir/memory.json" > "$dir/file.npy"
look <(memory) > "$dir/pipeline.npy"
memory | look - > "$dir/stdin.npy"
mkfifo "$dir/fifo"
memory > "$dir/fifo" &
look "$dir/fifo" > "$dir/fifo.npy"
wait

for way in pipeline stdin fifo; do
  cmp "$dir/file.npy" "$dir/$way.npy" && echo "$way: the same bytes as from a file"
done
attnkit show "$dir/file.npy"
