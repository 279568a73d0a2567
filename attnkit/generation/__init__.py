"""Text in, text out: prompts, generation, scoring, labels.

options           options of text generation; prompts: what a text is generated after
text_generation   generate or score texts, from the input to one record of them all
generate          token by token and beam search
score_gradients   the gradients of the log-probabilities of given tokens
output_head       the output head alone, and a decoder without a vocabulary
kv_cache_file     keys and values as a record
labels            labels of texts, tokens and spans; perplexity: how good a model is
"""
