"""Look inside: trace, patch, compare and explain intermediates; their gradients.

tracer            intermediates of a run traced, patched, ablated
edits             what --patch and --ablate put in cells of intermediates
lens              the words in each state, and what each part adds to a logit
head_scores       what each head attends to
comparison        two tensors, records or traces compared
model_sheet       the facts of a model, each with its key in config.json, and what differs between two
model_summary     what a checkpoint folder contains, and a model as a pipeline of tools
gradients/        the gradients of a pipeline
"""
