#!/usr/bin/env bash
# Where does the model keep the hero of a tale? Two tales differ in one word. Each cell is one run of the tale of the
# robot with one state of the tale of the bear put in its place, and what share of the difference between "bear" and
# "robot" as the next word this restores. After the attention of layer 0 the hero is at its own word, after that of
# layer 1 at the last word: there it is read. Head by head, it is head 3 of layer 1 that brings it over, the head of
# 30-heads-off.sh and 40-kinds-of-heads.sh. Set to 0 it takes most of the word with it.
# Lecture: interpretability
set -euo pipefail
cd "$(dirname "$0")"
export COLUMNS=80
bear="Once upon a time there was a small bear who lived by the sea. Every evening the"
ask=(attnkit scan --model data/story "$bear" --score " bear" --minus " robot" -f table)
"${ask[@]}" --against "${bear/bear/robot}" --patch 'decoder.*.self.residual' --positions --precision 2
echo
"${ask[@]}" --against "${bear/bear/robot}" --patch 'decoder.*.self.heads' --heads
echo
"${ask[@]}" --ablate heads
