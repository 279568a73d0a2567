#!/usr/bin/env bash
# What BLEU and chrF see: four translations of the same five sentences, and a score for each class
# of sentence lengths. BLEU counts words in a row, chrF letters in a row.
# Lecture: recurrence
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat > "$work/correct" <<'TEXT'
The cat sleeps in the house.
Where is the lighthouse?
The old keeper opened the door of the tower because he had heard a ship in the fog.
We walked along the beach.
Nobody had lit the lamp that night, and the captain could not see the rocks until the bells rang.
TEXT

score() { attnkit score --references "$work/correct" "$@" --precision 1 -f csv; }

echo 'the same words'
score < "$work/correct"
echo 'other forms of the words: chrF falls less than BLEU'
sed 's/sleeps/sleep/; s/opened/opens/; s/walked/walk/; s/rang/ring/; s/heard/hears/; s/ship/ships/' "$work/correct" | score
echo 'the words of each sentence in reverse: BLEU is near 0'
while read -ra words; do
  line=
  for word in "${words[@]}"; do line="$word${line:+ $line}"; done
  echo "$line"
done < "$work/correct" | score
echo 'the first seven words of each sentence alone: short, but right'
cut -d' ' -f1-7 "$work/correct" | score

echo
echo 'and by length: what is cut off is the end of the long sentences'
cut -d' ' -f1-7 "$work/correct" \
  | attnkit score --references "$work/correct" --by length:6 --only '*_by_length' --precision 1 -f table
