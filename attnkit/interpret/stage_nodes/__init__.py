"""The nodes of every tool of arithmetic: a stage of a pipeline as a graph.

stage_graph.py  a graph of one stage: its nodes, what it reads and what it returns
attention.py    attend, softmax and merge
networks.py     layernorm, ffn, linear, conv and rnn
texts.py        embed, posenc, encode, decode and loss
steps.py        some tools with every step as a node, as a worksheet has them
tools.py        NODES, the table of all tools

The nodes of a stage are made of what its tool prepared to compute with. Where a kernel computes several of them at
once, they are one node, whose kind has the pullback of the kernel.
"""
