"""The nodes of every tool, and the kinds of all of them."""

from collections.abc import Callable, Mapping

from attnkit.interpret.stage_calls import StageCall
from attnkit.interpret.stage_nodes import attention, networks, stage_graph, texts
from attnkit.interpret.stage_nodes.stage_graph import StageGraph
from attnkit.model.graph import kinds
from attnkit.model.graph.nodes import Kind

NODES: dict[str, Callable[[StageCall], StageGraph]] = {
    "embed": texts.embed_nodes,
    "posenc": texts.posenc_nodes,
    "attend": attention.attend_nodes,
    "softmax": attention.softmax_nodes,
    "merge": attention.merge_nodes,
    "layernorm": networks.layernorm_nodes,
    "ffn": networks.ffn_nodes,
    "linear": networks.linear_nodes,
    "conv": networks.conv_nodes,
    "encode": texts.encode_nodes,
    "rnn": networks.rnn_nodes,
    "recall": networks.recall_nodes,
    "decode": texts.decode_nodes,
    "loss": texts.loss_nodes,
}

KINDS: Mapping[str, Kind] = {
    **kinds.KINDS,
    **stage_graph.KINDS,
    **attention.KINDS,
    **networks.KINDS,
    **texts.KINDS,
}
