#!/usr/bin/env bash
# A stream: a record for each line of a text, through every tool one by one. Here the
# two different words of a line that attend to each other most, by chance of their vectors.
# The text is data/lighthouse.txt, a tale written for these samples.
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

attnkit embed --lines --dim 16 --dtype float64 < data/lighthouse.txt \
  | attnkit posenc | attnkit attend --keep weights \
  | jq -r '
      .labels.token as $word
      | [.tensors.weights.data[0] | to_entries[] | .key as $i | .value | to_entries[]
         | select($word[.key] != $word[$i] and all($word[.key, $i]; test("^\\w+$")))
         | {share: .value, from: $word[$i], to: $word[.key]}]
      | max_by(.share)
      | if . then "\(.from) → \(.to)  \(.share * 100 | round)%" else "\($word[0]), alone" end' \
  | nl > "$dir/pairs"

sed -n 1,12p "$dir/pairs"
echo "   …"
echo "$(($(wc -l < "$dir/pairs"))) records"
