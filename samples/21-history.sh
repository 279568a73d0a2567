#!/usr/bin/env bash
# A record knows the commands that made it, the seeds in use included: history prints them
# as a script, and --replay runs them and compares the result.
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

attnkit embed "The cat sat" --dim 4 | attnkit posenc | attnkit mask --causal \
  | attnkit attend --heads 2 --seed 7 | attnkit layernorm > "$dir/out.json"

attnkit history "$dir/out.json" | grep -v '^#'
echo
attnkit history "$dir/out.json" --replay

echo
echo "the script itself makes the same bytes:"
attnkit history "$dir/out.json" > "$dir/again.sh"
sh "$dir/again.sh" | cmp "$dir/out.json" - && echo "equal"
