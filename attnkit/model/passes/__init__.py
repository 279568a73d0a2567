"""Passes over the steps of a plan, and generation by many passes.

transformer.py          a whole pass: one text or a batch, or many texts without padding
output_head.py          hidden states to logits, and pooled vectors
incremental_decoder.py  one token after the cache: transformer.run over the whole text, up to rounding
recorded_pass.py        a pass that can be undone; model_gradients.py: gradients of all parameters
pictures.py             rows of a text made of pictures
model_graph.py          the nodes of all steps, from token ids, pixels or sounds to logits
generation.py           one token after another; beams.py: several texts at once
"""
