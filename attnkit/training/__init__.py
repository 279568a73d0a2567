"""Training: what changes the parameters of a model, and the data and files for it.

loop.py               a run to its end: steps, reports, saves
trainer.py            one model in training: what each step reads and changes, in NumPy or on an engine
numpy_state.py        a step in NumPy: parameters and gradients in buffers, changed in place
optimizers.py         adamw, adam and sgd, in place and in blocks
schedules.py          factors on the learning rate by step
parameter_groups.py   weight decay, learning rates by layer, frozen parameters, gradual unfreezing
images.py             a folder of labelled images
data.py               texts, sentence pairs and labelled texts as ids, and held-out parts
batches.py            batches of blocks, pairs, masked words and spans, by step
corpus.py             the batch of each step, and the held-out batches, for each kind of model
vocabulary.py         tokenizers trained from a text
families.py           the families of new models: config.json, distributions of parameters, special tokens
initial_model.py      the configuration, the tensors and the tokenizer that a run begins with
folder.py             the folder of a model, each file whole or not at all
options.py            the options of train, in classes
recipe.py             the values of the options of a run, as JSON and back; chosen_recipe.py: those of a run
stop_signals.py       the signals that end a run after it has saved
reports.py            reports, recorded steps and the origin of a model, written and read again
"""
