#!/usr/bin/env bash
# Why √d_k: the dot product of two random vectors of d numbers is a sum of d products, so its variance is d
# and its standard deviation √d. Divided by √d the scores keep the standard deviation 1 at every width. 200 random
# queries and 200 random keys of each width.
# Lecture: scale
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

words=$(seq -s ' ' 200)
echo 'd,std of q·k,std of q·k/√d'
for d in 4 16 64 256 1024; do
  attnkit embed "$words" --dim $d --seed 1 -o "$work/q.npz"
  attnkit embed "$words" --dim $d --seed 2 -o "$work/k.npz"
  attnkit attend "$work/q.npz" --memory "$work/k.npz" --keep scores,scaled --only scores,scaled -o "$work/s.npz"
  attnkit show "$work/s.npz" --stats -f csv | awk -F, -v d=$d 'NR > 1 { s = s sprintf(",%.2f", $5) } END { print d s }'
done

cat <<'END'

√4 = 2, √16 = 4, √64 = 8, √256 = 16, √1024 = 32: four times the width, twice the spread.
END
