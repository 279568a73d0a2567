"""What a model computes, as a graph: every intermediate with its inputs.

A node is data: a site, its kind, the sites that it reads, and its options. One description serves every reader that
looks at a model instead of running it fast: comparison with another implementation, whose slips are nodes with other
options or inputs, gradients, costs and names.

nodes.py   Node, Kind and what they are computed with; graph.py: the nodes of something, and their values
kinds.py   KINDS, the table of all kinds
functions.py  what values call of the library whose arrays they compute with: NumPy, or JAX
steps.py   a step that is computed and undone by its nodes, with the state of its layer
embeddings.py linear.py convolutions.py attention.py networks.py recurrence.py recall.py short_convolution.py
           connector.py head.py   kinds and nodes
"""
