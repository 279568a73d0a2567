"""Text in, text out: prompts, generation, scoring, labels.

options           options of text generation; prompts: what a text is generated after
text_generation   generate or score text, from input to record
generate          token by token and beam search; scoring: log-probabilities of given tokens
output_head       the output head alone, and a decoder without a vocabulary
batching          texts computed one by one as one padded batch
kv_cache_file     keys and values as a record
labels            labels of texts, tokens and spans; perplexity and translation_scores: how good a model is
"""
