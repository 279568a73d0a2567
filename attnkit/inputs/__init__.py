"""What tools and models compute from: records, texts, images and layers of a checkpoint, as arrays.

text_inputs       texts and ids to padded inputs of a model; image_processor: images
detokenizer       ids to token strings and text
layers            one layer of a model as the parameters of a tool; the context of a run
masking           which mask and bias attention uses
operands          one tensor of a record with its mask
attention_inputs ffn_weights position_inputs recurrent_weights targets encoding   what the tools compute from
"""
