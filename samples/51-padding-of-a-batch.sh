#!/usr/bin/env bash
# Two sentences of three and two words make one batch, with a 0 where the shorter one has ended. Its mask blocks the
# padding as a key. As a query padding computes something that nothing reads; --padded-queries blocks it there too.
# Lecture: masks
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo '[[1, 2, 3], [4, 5, 0]]' > "$work/ids.json"

echo 'the padding of the batch: one row of keys for each sentence'
attnkit mask "$work/ids.json" --padding --pad-id 0 --as 01 -f table

echo
echo 'with the later words masked, and padding blocked as a query too'
attnkit mask "$work/ids.json" --padding --padded-queries --pad-id 0 --causal --as 01 -f table
