"""The numerical debugger: where an implementation differs from a model, and why.

dumps.py     what an implementation wrote, in the files of many tools; module_tree.py: the JSON of transformers
"""
