"""Training: what changes the parameters of a model, and the data and files that it needs.

parameter_buffer.py   named parameters, or their gradients, as views of one contiguous array
optimizers.py         adamw, adam and sgd, in place and in blocks
gradients.py          the norm of all gradients, and clipping by it
schedules.py          factors on the learning rate by step
random_draws.py       random numbers by seed, purpose and step
data.py               texts and sentence pairs as ids, held-out parts
batches.py            batches of blocks, pairs, masked words and spans, by step
corruption.py         masked words of BERT, spans of T5
vocabulary.py         tokenizers trained from a text
configs.py            config.json of a new model
initialization.py     its initial parameters
folder.py             its folder, each file whole or not at all
parameter_groups.py   weight decay, learning rates by layer, frozen parameters, gradual unfreezing
recipe.py             the options of a run, as JSON and back
corpus.py             what a kind of model learns from: the batch of each step, the held-out batches
start.py              what a run starts with: configuration, tensors, tokenizer
step_plan.py          what a step does: its batch, its passes, and what it changes
numpy_state.py        a step in NumPy: parameters and gradients in buffers, changed in place
engine_state.py       a step of an engine, on whose devices the parameters stay
trainer.py            one model in training: what each step learns from and changes
state.py              what a run needs to go on with the same bits
reports.py            the numbers of some steps
inspection.py         activations and gradients of a step as a record; the first that is not finite
run.py                a run to its end: steps, reports, saves
"""
