"""Freeze a layer as four kernels of OpenBLAS compute it, in three dtypes: tests/references/kernels.npz.

Made with OpenBLAS 0.3.31 of NumPy 2.4.6 on a processor with AVX-512. A process for each kernel computes the pipeline of
`tests/rounding_pairs.py`: `python tests/references/make_kernels.py`.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent.parent
CODE = "import sys; sys.path.insert(0, {root!r}); import numpy as np; from tests.rounding_pairs import *; "
CODE += "np.savez({path!r}, **{{dtype: compute_layer(dtype) for dtype in DTYPES}})"


def compute(kernel):
    """What a process with a kernel computes, by dtype."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/out.npz"
        environment = os.environ | {"OPENBLAS_CORETYPE": kernel, "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-c", CODE.format(root=str(ROOT), path=path)], env=environment, check=True)
        with np.load(path) as arrays:
            return {f"{kernel}/{name}": arrays[name] for name in arrays}


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from attnkit.formats import save
    from attnkit.records import Record
    from tests.rounding_pairs import KERNELS

    kernels = {name: one for kernel in KERNELS for name, one in compute(kernel).items()}
    save(Record(kernels), str(ROOT / "tests" / "references" / "kernels.npz"))
