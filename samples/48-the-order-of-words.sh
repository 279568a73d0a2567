#!/usr/bin/env bash
# Why attention needs positions: it sees a set of words, not a sequence. "dog bites man" and "man bites dog" give
# the same vector for "dog", until positions are added to the embeddings.
# Lecture: positions
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf 'dog\nbites\nman\n' > "$work/vocab.txt"

dog() { # the output for dog: attend over the embeddings that stand on standard input
  attnkit attend | attnkit show --slice dog,: --precision 3 -f table | tail -n +2
}
sentence() { attnkit embed "$1" --vocab "$work/vocab.txt" --dim 4 --seed 1; }

echo 'the output for "dog" in "dog bites man" and in "man bites dog", without positions: the same numbers'
sentence 'dog bites man' | dog
sentence 'man bites dog' | dog

echo
echo 'with positions: other numbers'
sentence 'dog bites man' | attnkit posenc | dog
sentence 'man bites dog' | attnkit posenc | dog
