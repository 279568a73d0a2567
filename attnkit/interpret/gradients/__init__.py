"""Gradients of a pipeline: its stages are undone from the last to the first.

stages.py       a stage that ran, and the gradients that its adjoint adds up
tools.py        the adjoint of each tool
pipeline.py     the chain rule over all stages, and the names of the gradients
attribution.py  input × gradient and integrated gradients of tokens: of a text, of a pipeline
check.py        the same derivative by a finite difference

Tensors that a tool passes on unchanged need no adjoint.
"""
