"""Text in, text out: prompts, generation, scoring, labels.

options           options of text generation; prompts: what a text is generated after
text_generation   generate texts, token by token or by beam search, or score them: from the input to one record
score_gradients   the gradients of the log-probabilities of given tokens
output_head       the output head alone, and a decoder without a vocabulary
kv_cache_file     keys and values as a record
labels            labels of texts, tokens and spans; perplexity: how good a model is
"""
