"""Look inside: trace, patch, compare and explain intermediates; their gradients.

tracer            intermediates of a run traced, patched, ablated
edits             what --patch and --ablate put in cells of intermediates
lens              the words in each state, and what each part adds to a logit
scan              what layers, heads and positions add to a logit; sweeps: runs that differ by one patch each
head_scores       what each head attends to; head_weights: what its weights do
explanation       one cell of attention in words; mask_explanation: one of a mask; recall_explanation: a token
explored_traces   records as traces of the page of explore; slices: slices of tensors as text
comparison        two tensors, records or traces compared; rounding_report: by three verdicts
weights_comparison  the parameters of two models compared; text_agreement: two models on a text
model_sheet       the facts of a model, each with its key in config.json, and what differs between two
model_summary     what a checkpoint folder contains, and a model as a pipeline of tools; gguf_summary: a GGUF file
tensor_statistics statistics of many large tensors
cost              what a model costs; pipeline_cost, trace_cost, summary_cost: a pipeline, a trace, a summary of weights
simulation        a model as hardware of a narrow dtype would compute it
roofline          how fast this machine is
stage_calls       the stages of a pipeline as they ran
stage_nodes/      the nodes of each stage
gradients/        the gradients of a pipeline
spreadsheet/      a pipeline as a workbook of live formulas
"""
