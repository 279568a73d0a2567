"""Settings of OpenBLAS and of the allocator that make arithmetic fast.

Those of OpenBLAS are set before NumPy loads it.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ctypes import CDLL

FEW_ADDRESSES = 1 << 30  # bytes
AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}  # what the loops for SkylakeX need
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # what glibc's malloc.h calls them


def tune_blas() -> None:
    """Set the threads and the loops of OpenBLAS, where the user has not.

    NumPy loads it later.

    Its threads wait actively for work for at most half a millisecond: longer waits take processor time from all
    others. Each of them takes 40 MB of addresses, and where they are not left it ends the process, so that a process
    of few (ulimit -v) has one.
    """
    import resource

    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "20")  # 2^20 cycles
    if 0 <= resource.getrlimit(resource.RLIMIT_AS)[0] < FEW_ADDRESSES:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if loops := faster_loops():
        os.environ.setdefault("OPENBLAS_CORETYPE", loops)


def faster_loops(path: str = "/proc/cpuinfo") -> str:
    """The loops of OpenBLAS for a processor for which it chooses slower ones, or "".

    OpenBLAS in NumPy's wheels (0.3.31) takes a Zen 5 for a processor with AVX2 alone. Its loops for AVX-512 are up to
    twice as fast there. They are right for every processor of AMD with AVX-512.
    """
    try:
        with open(path) as file:
            first = file.read(4096).partition("\n\n")[0]
    except OSError:
        return ""
    facts = {key.strip(): value for key, _, value in (line.partition(":") for line in first.splitlines())}
    is_amd = facts.get("vendor_id", "").strip() == "AuthenticAMD"
    return "SkylakeX" if is_amd and AVX512.issubset(facts.get("flags", "").split()) else ""


def tune_allocator(library: "CDLL") -> None:
    """Set the allocator of glibc for large tensors.

    glibc keeps freed memory for the next tensor, because fresh memory is mapped slowly, page by page. A C library
    without mallopt is left as it is.
    """
    if hasattr(library, "mallopt"):
        library.mallopt(TRIM_THRESHOLD, 1 << 28)
        library.mallopt(MMAP_THRESHOLD, 1 << 22)  # larger tensors are in large pages, which are mapped fast
