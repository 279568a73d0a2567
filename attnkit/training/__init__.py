"""Training: what changes the parameters of a model, and the data and files that it needs.

loop.py               a run to its end: steps, reports, saves
trainer.py            one model in training: what each step reads and changes, in NumPy or on an engine
numpy_state.py        a step in NumPy: parameters and gradients in buffers, changed in place
optimizers.py         adamw, adam and sgd, in place and in blocks
schedules.py          factors on the learning rate by step
parameter_groups.py   weight decay, learning rates by layer, frozen parameters, gradual unfreezing
data.py               texts, sentence pairs and labelled texts as ids, and held-out parts
batches.py            batches of blocks, pairs, masked words and spans, by step
corpus.py             the batch of each step, and the held-out batches, for each kind of model
vocabulary.py         tokenizers trained from a text
configs.py            config.json of a new model
initial_model.py      the configuration, the tensors and the tokenizer that a run begins with
folder.py             the folder of a model, each file whole or not at all
recipe.py             the options of a run, as JSON and back
state.py              what a resumed run needs to continue with the same bits
reports.py            the numbers of some steps, and the steps that a run recorded
random_draws.py       random numbers by seed, purpose and step
"""
