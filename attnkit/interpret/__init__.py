"""Look inside: intermediates traced, patched, ablated, compared and explained, and their gradients.

tracer            intermediates of a run traced, patched, ablated
edits             what --patch and --ablate put in cells of intermediates
scanning          many runs with one patch each, batched, and what they restore of a logit
lens              the words in each state; attribution: what each part adds to a logit
head_scores       what each head attends to; head_weights: what its weights say
comparison        two tensors, records or traces compared
model_summary     what a checkpoint folder contains, and a model as a pipeline of tools
gradients/        the gradients of a pipeline
"""
