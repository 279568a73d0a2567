"""Recorders: what a program computes, written to a file meanwhile.

recording.py      a recording in progress; `record` and `tap`
torch_modules.py  what the modules of a torch model read and return
digests.py        hashes and a few numbers in place of tensors
onnx_models.py    every intermediate of an ONNX model
"""

from attnkit.recorders.onnx_models import record_onnx
from attnkit.recorders.recording import record, tap

__all__ = ["record", "record_onnx", "tap"]
