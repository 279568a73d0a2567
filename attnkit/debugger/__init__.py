"""The numerical debugger: where an implementation differs from a model, and why.

dumps.py    the tensors that a program has written, by name, each read when it is needed
"""
