"""Dumps of a tiny torch model, frozen: what tests/debugger/test_dumps.py and tests/recorders read.

    pip install torch==2.13.0 transformers==5.23.0 numpy==2.4.6
    python tests/references/make_dumps.py

dumps/recorded.npz and bfloat16.npz are what attnkit records. debugger/ and debugger_files/ are written by
transformers.model_addition_debugger_context, with printed tensors and with files. vllm/, sglang/ and sglang_passes/
have the files and names of vLLM's intermediate logging, of SGLang's dumper and of its forward hooks.
"""

import functools
import pathlib
import shutil

import torch
from transformers import model_addition_debugger_context

from attnkit.recorders import record, tap

HERE = pathlib.Path(__file__).parent / "dumps"


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x + tap("scaled", self.fc(self.norm(x)) * 2) * mask[:, :, None], None


class Tiny(torch.nn.Module):
    """Two calls of one block between a table and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, 4)
        self.layers = torch.nn.ModuleList([Block()])
        self.head = torch.nn.Linear(4, 11, bias=False)

    def forward(self, input_ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embed(input_ids)
        for _ in range(2):
            x, _ = self.layers[0](x, mask=mask)
        return {"logits": self.head(x), "hidden": x}


def save(value, path: str) -> None:
    """As save_tensors of vLLM's intermediate logging."""
    if isinstance(value, torch.Tensor):
        torch.save(value, f"{path}_cpu.pt")
    elif isinstance(value, tuple | list):
        for number, one in enumerate(value):
            save(one, f"{path}_{number}")
    elif isinstance(value, dict):
        for key, one in value.items():
            save(one, f"{path}_{key}")


def write_vllm(model: Tiny, run) -> None:
    folder, calls = HERE / "vllm" / "run" / "step_0", {}
    folder.mkdir(parents=True)

    def before(name, module, args):
        calls[name] = calls.get(name, -1) + 1
        place = folder / (f"{name}_{calls[name]}" if calls[name] else name)
        place.mkdir()
        with open(folder / "module_calls.txt", "a") as file:
            file.write(f"{place.name}\n")
        save(args, str(place / "inputs"))

    def after(name, module, args, output):
        save(output, str(folder / (f"{name}_{calls[name]}" if calls[name] else name) / "outputs"))

    handles = []
    for name, module in model.named_modules():
        if name and not isinstance(module, torch.nn.ModuleList):
            handles.append(module.register_forward_pre_hook(functools.partial(before, name)))
            handles.append(module.register_forward_hook(functools.partial(after, name)))
    run()
    for handle in handles:
        handle.remove()


def write_sglang(model: Tiny, run) -> None:
    folder, passes, index = HERE / "sglang", {}, 0
    folder.mkdir()

    def dump(name, value, step=0, rank=0, **tags):
        nonlocal index
        index += 1
        tags = {"step": step, "rank": rank, "dump_index": index, "name": name, "recompute_status": "disabled", **tags}
        meta = {**tags, "world_size": 2, "sglang_parallel_info": {"tp_rank": rank, "scale": 0.5}, "dims": None}
        torch.save({"value": value, "meta": meta}, folder / ("___".join(f"{k}={v}" for k, v in tags.items()) + ".pt"))

    def after(name, module, args, output):
        passes[name] = output[0] if isinstance(output, tuple) else output
        for number, one in enumerate(args):
            dump(f"non_intrusive__{name}.inputs.{number}", one)
        dump(f"non_intrusive__{name}.output", passes[name], **({"layer_id": 0} if "layers" in name else {}))

    handles = [
        module.register_forward_hook(functools.partial(after, name))
        for name, module in model.named_modules()
        if name and not isinstance(module, torch.nn.ModuleList)
    ]
    dump("rids", ["a", "b"])
    run()
    for handle in handles:
        handle.remove()
    dump("q", torch.ones(2), layer_id=3)
    dump("q", torch.ones(2), rank=1, layer_id=3)
    dump("q", torch.zeros(2), step=1, layer_id=3)
    place = HERE / "sglang_passes" / "TP0_PP0_Rank0_pid7"
    place.mkdir(parents=True)
    for number in range(2):
        torch.save({name: one + number for name, one in passes.items()}, place / f"Pass{number:05d}.pt")


def main() -> None:
    for name in ("debugger", "debugger_files", "vllm", "sglang", "sglang_passes"):
        shutil.rmtree(HERE / name, ignore_errors=True)
    torch.manual_seed(0)
    model = Tiny().eval()
    run = functools.partial(model, torch.tensor([[3, 1, 4, 1, 5]]), mask=torch.tensor([[1.0, 1, 1, 1, 0]]))
    with torch.no_grad():
        with record(HERE / "recorded.npz", model):
            run()
        write_vllm(model, run)
        write_sglang(model, run)
        for folder, use_repr in (("debugger", True), ("debugger_files", False)):
            with model_addition_debugger_context(model, str(HERE / folder), do_prune_layers=False, use_repr=use_repr):
                model.forward(*run.args, **run.keywords)
        half = Tiny().bfloat16().eval()
        with record(HERE / "bfloat16.npz", half):
            half(*run.args, mask=run.keywords["mask"].bfloat16())


if __name__ == "__main__":
    main()
