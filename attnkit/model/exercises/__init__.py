"""Arithmetic on paper: the steps of an exercise, common slips, and marks.

worked_steps.py   the Transformer as small formulas, each of the steps before
worked_slips.py   what is often computed in place of a step
marking.py        whether an answer is right, rounded, or a slip
"""
