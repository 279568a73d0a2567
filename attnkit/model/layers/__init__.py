"""What the steps of a plan compute: the kernel of each group, with its parameters.

A function here is (model, layer, x, context) -> the result of a step without its residual. groups.py lists them.

embeddings.py         of ids and patches, and absolute positions
attention.py          with the masks, rotations and biases of a layer
networks.py           norms, projections, feed-forward networks and experts
convolutions.py       over frames
connector.py          from the patches of a picture to rows of a text
recurrent_layers.py   over tokens; recurrent_decoder.py: with attention inside the recurrence
"""
