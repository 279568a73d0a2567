#!/usr/bin/env bash
# A record is JSON for jq and NPZ for NumPy. Both read what the tools write, and write
# what the tools read.
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
dir=$(mktemp -d)
trap 'rm -r "$dir"' EXIT

echo "jq reads a record:"
attnkit embed "The cat sat" --dim 4 | attnkit attend \
  | jq -c '.labels.token, .tensors.x.shape, [.history[].command]'

echo
echo "jq writes one, as a bare list:"
jq -cn '[range(3) | [., . * .]]' | attnkit attend -f table

echo
echo "NumPy reads an NPZ and writes another, with a mask of its own:"
attnkit embed "The cat sat" --dim 4 -o "$dir/words.npz"
python3 - "$dir" <<'END'
import sys
import numpy as np

words = np.load(f"{sys.argv[1]}/words.npz")
print(words["x"].dtype, words["x"].shape, words["ids"])
np.savez(f"{sys.argv[1]}/masked.npz", x=words["x"], mask=np.tri(3, dtype=bool))
END
attnkit attend "$dir/masked.npz" --keep weights | attnkit show --name weights

echo
echo "NPY goes to NumPy and back:"
attnkit show "$dir/words.npz:x" -f npy -q > "$dir/x.npy"
python3 - "$dir" <<'END'
import sys
import numpy as np

np.save(f"{sys.argv[1]}/back.npy", np.load(f"{sys.argv[1]}/x.npy").T.T)
END
attnkit diff "$dir/x.npy" "$dir/back.npy"
