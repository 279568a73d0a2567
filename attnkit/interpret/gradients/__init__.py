"""Gradients of a pipeline: its stages are undone from the last to the first.

pipeline.py     the chain rule over all stages, whose nodes are walked in reverse, and the names of the gradients
stages.py       the gradients of one stage, by what it read
attribution.py  input × gradient and integrated gradients of tokens, of a text or a pipeline; attribution_view shows it
check.py        the same derivative by a finite difference

The nodes of each tool stand in attnkit.interpret.stage_nodes. Tensors that a tool passes on unchanged need none.
"""
