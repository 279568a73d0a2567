#!/usr/bin/env bash
# Attention over a long text, a part of its keys at a time: four processes, two of them at once, each
# with a quarter of the words of a tale. A part gives for every query the average over its own keys,
# and lse, the logarithm of the sum of their exponentials: enough to merge the parts exactly.
# Then what the matrix of 840 queries and 840 keys would show, without the matrix: which words each one attends to.
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
export dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT
tr '\n' ' ' < data/lighthouse.txt | attnkit embed --dim 64 --dtype float64 | attnkit posenc --only x -o "$dir/text.npz"

part() {
  attnkit show "$dir/text.npz" --slice "$1:$(($1 + 210))" -f npz \
    | attnkit attend "$dir/text.npz" --memory - --causal --offset "-$1" --partial -o "$dir/part$1.npz"
}
export -f part
seq 0 210 630 | xargs -P 2 -I{} bash -c 'part {}'

attnkit merge "$dir"/part*.npz --join -o "$dir/merged.npz"
attnkit attend "$dir/text.npz" --causal -o "$dir/whole.npz"
echo "parts and whole:"
attnkit diff "$dir/merged.npz" "$dir/whole.npz" --only x --atol 1e-12 -f json \
  | jq -r '"differing: \(.tensors.differing.data[0])"'

echo
echo "the last words, and where they look:"
attnkit attend "$dir/text.npz" --causal --weights topk:3 -f json | jq -r '.labels.key as $words
  | [.labels.query, .tensors["weights.keys"].data[0], .tensors["weights.top"].data[0]] | transpose | .[-8:][]
  | "\(.[0]): \([.[1:] | transpose[] | "\(.[0]) \($words[.[0]]) \(.[1] * 100 | round)%"] | join(", "))"'
