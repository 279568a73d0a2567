#!/usr/bin/env bash
# Why several heads: a head is one softmax for each query, so it can point at one place, or spread over several. Here
# "it" looks for two words, its noun and its verb, with two columns for each. Two heads find one word each; one head
# has to split its weight between both, and a value of each arrives at half its size.
# Lecture: heads
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
echo '[[8, 0, 8, 0]]' > q.json # it: asks for a noun with the first two columns, for a verb with the last two
echo '[[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]' > k.json # robot, obeyed, the
echo '[[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]]' > v.json

for heads in 1 2; do
  echo "heads: $heads"
  attnkit attend q.json --key k.json --value v.json --heads $heads --keep weights | attnkit show --only weights,x --precision 2
  echo
done

echo 'Eight heads of 64 columns multiply as many numbers as one head of 512; they cost no more, and are not faster.'
