"""Probabilities of a next token after the samplers of transformers and of llama.cpp, in their own orders, frozen.

    pip install torch==2.13.0 transformers==5.23.0 numpy==2.4.6
    pip install llama-cpp-python==0.3.36 numpy==2.4.6
    python tests/references/make_sampling.py transformers
    python tests/references/make_sampling.py llama.cpp

writes sampling.json: for each engine a list of the probabilities of every word of LOGITS, as each of CASES leaves them
after the ids of EARLIER.
transformers computes in float64, llama.cpp in float32. The same bytes come out of every run.
"""

import json
import sys
from pathlib import Path

HERE = Path(__file__).parent / "sampling.json"
LOGITS = [[3.0, 2.0, 1.0, 0.0, -1.0], [2.0, 1.9, 1.8, 1.7, 1.6, 1.5], [-1.0, 0.5, 4.0, 2.5, 2.25, -3.0, 3.5, 1.0]]
CASES = [
    {"temperature": temperature, "top_k": k, "top_p": p, "min_p": m, "repetition_penalty": penalty}
    for temperature in (2.0, 0.5)
    for k, p, m in ((None, 0.9, None), (None, 0.7, None), (3, 0.7, None), (None, None, 0.1), (4, 0.9, 0.2))
    for penalty in (None, 1.3)
]
EARLIER = {"short": [0, 2, 0, 4], "long": [1, *[0, 2] * 40]}  # the 64 last of the long ones lack the word 1


def transformers(logits: list[float], earlier: list[int], case: dict) -> list[float]:
    import torch
    from transformers.generation import logits_process as them

    temperature, k, p, m, penalty = case.values()
    scores, ids = torch.tensor([logits], dtype=torch.float64), torch.tensor([earlier])
    processors = [
        *([them.RepetitionPenaltyLogitsProcessor(penalty)] if penalty else []),
        them.TemperatureLogitsWarper(temperature),
        *([them.TopKLogitsWarper(k)] if k else []),
        *([them.TopPLogitsWarper(p)] if p else []),
        *([them.MinPLogitsWarper(m)] if m else []),
    ]
    for process in processors:
        scores = process(ids, scores)
    return torch.softmax(scores, -1)[0].tolist()


def llama_cpp(logits: list[float], earlier: list[int], case: dict) -> list[float]:
    import llama_cpp as them

    temperature, k, p, m, penalty = case.values()
    chain = them.llama_sampler_chain_init(them.llama_sampler_chain_default_params())
    for sampler in [
        *([them.llama_sampler_init_penalties(len(logits), 64, penalty, 0.0, 0.0)] if penalty else []),
        *([them.llama_sampler_init_top_k(k)] if k else []),
        *([them.llama_sampler_init_top_p(p, 1)] if p else []),
        *([them.llama_sampler_init_min_p(m, 1)] if m else []),
        them.llama_sampler_init_temp(temperature),
        them.llama_sampler_init_dist(0),
    ]:
        them.llama_sampler_chain_add(chain, sampler)
    for word in earlier:
        them.llama_sampler_accept(chain, word)
    data = (them.llama_token_data * len(logits))(*[(id, logit, 0.0) for id, logit in enumerate(logits)])
    array = them.llama_token_data_array(data, len(logits), -1, False)
    them.llama_sampler_apply(chain, them.ctypes.byref(array))
    found = {array.data[at].id: array.data[at].p for at in range(array.size)}
    return [found.get(id, 0.0) for id in range(len(logits))]


if __name__ == "__main__":
    engine = {"transformers": transformers, "llama.cpp": llama_cpp}[sys.argv[1]]
    rows = [
        {"logits": logits, "earlier": name, **case, "probs": [round(p, 9) for p in engine(logits, earlier, case)]}
        for logits in LOGITS
        for name, earlier in EARLIER.items()
        for case in CASES
        if case["repetition_penalty"] or name == "short"
    ]
    frozen = json.loads(HERE.read_text()) if HERE.exists() else {}
    text = json.dumps(frozen | {"earlier": EARLIER, sys.argv[1]: rows}, sort_keys=True).replace("}, {", "},\n{")
    HERE.write_text(text + "\n", encoding="utf-8")
