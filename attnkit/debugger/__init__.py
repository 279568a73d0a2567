"""The numerical debugger: where an implementation differs from a model, and why.

dumps.py     what an implementation wrote, in the files of many tools; module_tree.py: those of transformers' debugger
model_inputs.py  what the model read: ids, padding, segments, images, sounds
processed_weights.py  dumps of TransformerLens whose weights are processed; token_calls.py: calls for each token
names.py     the site of a model that each name of a dump is; modules.py: the modules of published models
layouts.py   an array of a dump in the layout of its site; matching.py: pairs by value where names say nothing
graphs.py    the model as a graph of nodes, with kinds of nodes that only slips have; pictures.py: its pixels
slips.py     what implementations get wrong, by kind of node: another option or input of a node, in words
state_slips.py  the same of layers that keep a state, and of gates of heads
verdict.py   a row for each site: what it inherits, what it adds, and the slips that explain it
hooks.py     scripts that record what another engine computes, of the folder scripts
hashes.py    two runs of one engine by digests
compare.py   all of these together; report.py: the result as a record, a table and sentences
"""
