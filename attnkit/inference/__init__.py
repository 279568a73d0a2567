"""Models and records: inputs, prompts, text generation, scoring, hooks. No command line, no stdout.

text_inputs       texts and ids to padded inputs of a model; image_processor: images
options           options of text generation; prompts: what a text is generated after
text_generation   generate or score text, from input to record
generate          token by token and beam search; scoring: log-probabilities of given tokens
head              the head alone, and a decoder without a vocabulary
batching          texts computed one by one as one padded batch
detokenizer       ids to token strings and text
kv_cache_file     keys and values as a record
layers            one layer of a model as the parameters of a tool; the context of a run
tracer            intermediates of a run traced, patched, ablated; intermediates: their axes, formulas, labels
edits             what --patch and --ablate put in cells of intermediates; head_means: the means of heads
sweeps            many runs with one patch each, batched; scanning: what they restore of a logit
masking           which mask and bias attention uses
operands          one tensor of a record with its mask
model_summary     what a checkpoint folder holds; model_pipeline: a model as a pipeline of tools
callbacks         what a run reports to its caller
"""
