#!/usr/bin/env bash
# Sinusoidal positions: sines in the even columns, cosines in the odd ones, each pair with
# a wavelength of its own; then the same added to the embeddings of three words.
# Lecture: positions
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

attnkit posenc data/three-words.json --alone -f table
echo
attnkit posenc data/three-words.json -f table

cat <<'END'

The notes print .34 for the cosine of 1: it is .5403, so "cat" has 1.1403 there and not .94.
The notes print [.1, .2, .3, .4] for The: at position 0 both cosines are 1 and belong to it as well.
The notes print [1.34, .94, .01, 1.79] for cat: .01 is the encoding alone, without the .7 it is added to.
The notes print (2i+1)/d as the exponent of the cosine: a sine and its cosine share the exponent 2i/d.
END
