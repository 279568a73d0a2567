"""Freeze a small ViT that PyTorch trains, and one of attnkit's: python tests/references/make_image_training.py

Made with torch 2.13.0, transformers 5.23.0 and Pillow 13.0.0. The pictures are those of samples/data/shapes.py. The
initial weights and the batches are attnkit's own, of a recipe that the test repeats; the model of transformers, its
gradients, clipping, AdamW and the schedule are PyTorch's. image_training.npz has `losses`, that of each step, and
GRADIENT.NAME of tensors in the first. image_classifier is the folder that attnkit wrote after these steps, with
picture.png, of another size and with transparency; `logits` are what transformers makes of it, whose processor lays it
on white by do_convert_rgb.
"""

import runpy
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))

from attnkit.training.folder import model_files, write_folder  # noqa: E402
from attnkit.training.images import find_images  # noqa: E402
from attnkit.training.initial_model import prepare_model  # noqa: E402
from attnkit.training.loop import Monitor, Run  # noqa: E402
from attnkit.training.recipe import Recipe  # noqa: E402
from attnkit.training.reports import Origin  # noqa: E402
from attnkit.training.trainer import Trainer  # noqa: E402

SHAPES = HERE.parent.parent / "samples" / "data" / "shapes.py"
RECIPE = Recipe(
    family="vit", layers=1, heads=2, dim=8, size=12, batch=4, warmup=3, lr=0.01, clip=0.5, weight_decay=0.1, steps=12,
    valid="0",
)  # fmt: skip
GRADIENTS = (
    "classifier.weight", "classifier.bias", "vit.embeddings.cls_token", "vit.embeddings.position_embeddings",
    "vit.embeddings.patch_embeddings.projection.weight", "vit.embeddings.patch_embeddings.projection.bias",
)  # fmt: skip
FOLDER = HERE / "image_classifier"


def draw_pictures(folder: Path, each: int) -> str:
    """Draw pictures of shapes to a folder; return its name."""
    runpy.run_path(str(SHAPES))["draw_folder"](folder, each, 0)
    return str(folder)


def train_by_torch(trainer: Trainer) -> dict[str, np.ndarray]:
    """The losses of the steps of a trainer that PyTorch does, and gradients of the first."""
    import torch
    from transformers import ViTForImageClassification

    state, recipe = trainer.state.fetch(), trainer.recipe
    with tempfile.TemporaryDirectory() as folder:
        write_folder(folder, model_files(trainer.raw, state.parameters))
        model = ViTForImageClassification.from_pretrained(folder, attn_implementation="eager")
    tensors, options = dict(model.named_parameters()), state.optimizer.options
    decaying = [one for name, one in tensors.items() if one.ndim > 1 and not name.endswith("cls_token")]
    others = [one for name, one in tensors.items() if one.ndim == 1 or name.endswith("cls_token")]
    optimizer = torch.optim.AdamW(
        [{"params": decaying, "weight_decay": options.weight_decay}, {"params": others, "weight_decay": 0}],
        lr=options.lr, betas=options.betas, eps=options.eps,
    )  # fmt: skip
    frozen = {"losses": np.zeros(recipe.steps)}
    for number in range(1, 1 + recipe.steps):
        plan = trainer.plan(number)
        pixels, labels = torch.from_numpy(plan.batch.ids), torch.from_numpy(plan.batch.targets)
        optimizer.zero_grad()
        loss = model(pixel_values=pixels, labels=labels).loss
        loss.backward()
        if number == 1:
            frozen |= {f"GRADIENT.{name}": tensors[name].grad.numpy().copy() for name in GRADIENTS}
        torch.nn.utils.clip_grad_norm_(list(tensors.values()), recipe.clip)
        for group in optimizer.param_groups:
            group["lr"] = options.lr * plan.factor
        optimizer.step()
        frozen["losses"][number - 1] = loss.item()
    return frozen


def label_by_transformers(folder: Path) -> np.ndarray:
    """The logits of the picture in a folder by its model and processor."""
    import torch
    from PIL import Image
    from transformers import ViTForImageClassification, ViTImageProcessorPil

    processor = ViTImageProcessorPil.from_pretrained(folder, do_convert_rgb=True)
    with Image.open(folder / "picture.png") as picture:
        pixels = processor(picture, return_tensors="pt")
    with torch.no_grad():
        return ViTForImageClassification.from_pretrained(folder).eval()(**pixels).logits[0].numpy()


def main() -> None:
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        images = find_images(draw_pictures(Path(folder) / "shapes", 4))
        model = prepare_model(RECIPE, images, "shapes")
        frozen = train_by_torch(Trainer(RECIPE, model))
        run = Run(RECIPE, model, Origin("attnkit train", "shapes", "", ""), str(Path(folder) / "made"))
        run.train(Monitor())
        FOLDER.mkdir(exist_ok=True)
        for name in ("config.json", "model.safetensors", "preprocessor_config.json"):
            (FOLDER / name).write_bytes((Path(folder) / "made" / name).read_bytes())
    pixels = np.random.default_rng(1).integers(0, 256, (9, 20, 4), np.uint8)
    Image.fromarray(pixels).save(FOLDER / "picture.png")
    np.savez_compressed(HERE / "image_training.npz", **frozen, logits=label_by_transformers(FOLDER))


if __name__ == "__main__":
    main()
