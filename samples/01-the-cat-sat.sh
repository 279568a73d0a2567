#!/usr/bin/env bash
# Self-attention by hand. Without weights (W_Q = W_K = W_V = I) the queries, keys and
# values are the embeddings themselves: scores, scores / √4, softmax, weighted sum.
# Lecture: attention
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80

attnkit attend data/the-cat-sat.json --keep scores,scaled,weights -f table

cat <<'END'

The notes print [1.2669, .9999, 1.2669, .9999] for The: the weight .4223 of "sat" is added twice.
The notes print [1.2669, .7999, …] for The elsewhere: the same slip, and .5777 + .4223 is no .7999.
The notes print softmax([0,2,2]) and softmax([2,2,4]): those rows were already halved, to [0,1,1] and [1,1,2].
The notes print E_The = [1,0,0,0] and V_sat = [0,1,1,0] once: the embeddings are [1,0,1,0] and [1,1,1,1].
END
