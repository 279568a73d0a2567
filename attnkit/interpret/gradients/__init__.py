"""Gradients of a pipeline: the stages that ran, each with its adjoint, from the last back to the first.

stages.py     a stage that ran, and what its adjoint returns
embedding.py attention.py layers.py encoding.py merging.py output.py   the adjoints of the tools
traces.py     the gradients of the intermediates of a whole model, as a trace names them
pipeline.py   the chain rule over all stages, and the names of the gradients
attribution.py pipeline_attribution.py   input × gradient and integrated gradients of tokens: of a text, of a pipeline
check.py      the same derivative by a finite difference
models.py     the gradients of a whole model that scores a text

An adjoint of a tool takes a stage and the gradients of the tensors that it computed, and adds those of the tensors it
read, of the files that its flags name, and of its parameters. Tensors that a tool passes on unchanged need none.
"""
