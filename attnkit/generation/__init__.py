"""Text in, text out: prompts, generation, scoring, labels.

options           the options of decode, by what they are for
task              a task of decode: its input, options, result and view; each file below with a result has one
prompts           what a text is generated after; chat: the messages of a chat as a prompt
text_generation   generate texts, token by token or by beam search, or score them; text_views: what is shown of them
transcription     the text of a sound, at once or window by window; frame_labels: the text that labels of frames spell
fallback          a sound read again at other temperatures
words             from logits to words; zero_shot: an image compared with labels
score_gradients   the gradients of the log-probabilities of given tokens
output_head       the output head alone; decoder_stack: a decoder without a vocabulary
kv_cache_file     keys and values as a record
labels            labels of texts, tokens and spans; label_views: what is shown of them
reranking         documents sorted by a query; answer_prompts: how rerankers that generate text read both
perplexity        how improbable a model finds a text; translation_scores: BLEU and chrF; length_classes: by length
ranking_scores    nDCG, recall and MRR of rankings
generation_cost   what the texts of a pipeline cost
"""
