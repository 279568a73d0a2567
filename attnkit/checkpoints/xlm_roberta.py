"""XLM-RoBERTa: RoBERTa with a tokenizer of its own."""

from attnkit.checkpoints import roberta

VARIANT_OF = roberta
TOKENIZER = "XLMRobertaTokenizer"
HAS_OWN_MODULES = False  # but those of RoBERTa
read_config, map_layers = roberta.read_config, roberta.map_layers
