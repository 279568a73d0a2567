"""What tools and models compute from, as arrays: records, texts, images, layers.

text_inputs       texts and ids to padded inputs of a model; text_columns: lines of two columns
packed_texts      texts that are encoded together; late_interaction: texts with a vector for each token
image_processor   images; patches: the tokens of an image; sound_inputs: samples and spectrograms
picture_prompts   pictures in a prompt: tiles, the tokens in their place, and what these are
detokenizer       ids to token strings and text
layers            one layer of a model, or weights in a file, as the parameters of a tool; the context of a run
mixers            a layer of a model that mixes tokens and carries a state, as a stage
torch_parameters  the names and layouts of PyTorch's modules
operands          one tensor of a record, with its mask as keys
padding           the padding of a batch; source_states: the last states of a recurrent encoder
intermediates     axes, formulas and labels of the intermediates of attention
answers           the numbers of an answer to an exercise; exercise_numbers: those of the exercise

What single tools compute from:
attention_inputs position_inputs mask_rules softmax_stage convolution_stage recurrent_layers recall_stage encoding
output_matrix targets vector_index
"""
