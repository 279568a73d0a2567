"""What tools and models compute from, as arrays: records, texts, images, layers.

text_inputs       texts and ids to padded inputs of a model; image_processor: images
detokenizer       ids to token strings and text
layers            one layer of a model, or weights in a file, as the parameters of a tool; the context of a run
operands          one tensor of a record, with its mask as keys
attention_inputs position_inputs softmax_stage recurrent_layers targets output_matrix encoding
                  what single tools compute from
"""
