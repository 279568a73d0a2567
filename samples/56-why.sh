#!/usr/bin/env bash
# Why a port computes other numbers: a GPT-2 in plain NumPy makes two mistakes, and `diff --why` names both.
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
data=$PWD/data
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

python3 "$data/port.py" "$data/story" "the fox looked at the stars" mine.npz
attnkit diff --model "$data/story" "the fox looked at the stars" mine.npz --why || test $? = 1
