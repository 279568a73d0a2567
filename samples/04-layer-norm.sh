#!/usr/bin/env bash
# Layer normalization makes the mean of a row 0 and its variance 1, each token by itself.
# Batch normalization does the same down a column, each feature over all rows.
# Lecture: norms
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

echo '[[2, 4, 6, 8]]' | attnkit layernorm --keep mean,inverse_std -f table
echo '[[2, 4, 6, 8]]' | attnkit layernorm --keep inverse_std \
  | jq -r '.tensors.inverse_std.data[0][0] | 1 / (. * .) - 1e-5 | . * 1e4 | round / 1e4
      | "\nvariance: 1/inverse_std² − ε = \(.)"'

echo
echo "two houses, down the columns: every feature has a scale of its own"
attnkit layernorm data/houses.json --kind batch -f table
echo
echo "the same along the rows: size drowns rooms and price"
attnkit layernorm data/houses.json -f table
