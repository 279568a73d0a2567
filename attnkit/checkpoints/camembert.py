"""CamemBERT: RoBERTa with a tokenizer of its own."""

from attnkit.checkpoints import roberta

VARIANT_OF = roberta
TOKENIZER = "CamembertTokenizer"
HAS_OWN_MODULES = False  # but those of RoBERTa
read_config, map_layers = roberta.read_config, roberta.map_layers
