#!/usr/bin/env bash
# What was last told? A line tells each key a value, then each a new one, and asks for one key. Two models of two
# layers, 32 wide, have learned such lines of 1 to 4 pairs in the same 1200 steps: one writes a state by the gated
# delta rule, the other attends. The state holds the new value in place of the old. Attention finds both, and has to
# learn which one is later. `bash data/recall.sh` trains them again, in a minute on one core.
# Lecture: state
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for pairs in 1 2 3 4 6 8; do python3 data/recall.py $pairs 100 2; done |
  sed 's/\(? [a-h] .\).*/\1/' > "$work/lines.txt" # up to the first answer
echo 'a line of two pairs; its last word is to be found'
sed -n 101p "$work/lines.txt"
sed 's/ [^ ]*$//' "$work/lines.txt" > "$work/asked.txt"

share=' # of the lines of each number of pairs: how many end with the new value, and how many with the old one
  FNR == NR { line[FNR] = $0; next }
  { for (at = 2; $at != $(NF - 1); at += 2); pairs = (NF - 4) / 4; all[pairs]++ }
  $0 == line[FNR] { new[pairs]++; next }
  $NF == $(at + 1) { old[pairs]++ }
  END { for (pairs = 1; pairs <= 8; pairs++) if (pairs in all) print pairs, new[pairs] + 0, old[pairs] + 0 }'
draw='
  function bar(letter, count, drawn) { while (count-- > 0) drawn = drawn letter; return drawn }
  { print $1, bar("#", int($2 / 5 + 0.5)) bar("-", int($3 / 5 + 0.5)) }'
for model in data/recall-delta data/recall-attention; do
  name=${model#data/recall-}
  attnkit decode --model $model --batch --max-tokens 1 --emit text < "$work/asked.txt" > "$work/found.txt"
  awk "$share" "$work/lines.txt" "$work/found.txt" > "$work/$name.txt"
  echo
  echo "$name, of 1 to 8 pairs: a # is 5 % with the new value, a - 5 % with the old one"
  awk "$draw" "$work/$name.txt"
done

paste -d ' ' "$work/delta.txt" "$work/attention.txt" | awk '{ print "[" $2 "," $5 "]" }' |
  jq -s '{tensors: {x: {dtype: "float32", shape: [6, 2], axes: ["pairs", "model"], data: .}},
          labels: {pairs: ["1", "2", "3", "4", "6", "8"], model: ["delta", "attention"]}}' |
  attnkit show --curves --title "New values found, in percent" -o "$work/recall.svg"
echo
grep -o 'New values found, in percent' "$work/recall.svg" | head -n 1
