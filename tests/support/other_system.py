"""Makes a process on Linux look like one on an Apple computer to this package.

`pretend` removes what macOS lacks (Linux's system calls, /proc, the proportional set size, a long
double) and changes the answers of `platform` and `sys.platform`. It cannot simulate another
processor's arithmetic, file system or loader.
"""

import importlib
import multiprocessing
import os
import platform
import sys
from typing import Any

from places import ROOT

LIBRARIES = (
    *("numpy", "scipy.sparse", "scipy.linalg", "sklearn.svm", "numba", "llvmlite.binding"),
    *("psutil", "zarr", "h5py", "dask", "distributed", "cryptography.x509", "google_crc32c"),
    *("rich.console", "click", "threadpoolctl", "tempfile", "shutil", "asyncio", "ssl"),
)
"""They ask for the system as they are loaded, and would look for another build of themselves."""

LINUX_ALONE = (
    *("sched_getaffinity", "sched_setaffinity", "posix_fallocate", "posix_fadvise", "fdatasync"),
    *("memfd_create", "copy_file_range", "splice", "eventfd", "pidfd_open", "pipe2", "getrandom"),
    *("getxattr", "setxattr", "listxattr", "removexattr", "setns", "unshare", "O_TMPFILE"),
    *("O_DIRECT", "O_PATH", "O_NOATIME", "O_LARGEFILE", "RWF_NOWAIT"),
)
PACKAGE = os.path.join(ROOT, "bigscreen") + os.sep


def pretend() -> None:
    """Pretend from now on; call this before anything of the package is imported."""
    for name in LIBRARIES:
        importlib.import_module(name)
    import tempfile

    import numpy as np
    import psutil

    sys.platform = "darwin"
    platform.system = lambda: "Darwin"
    platform.machine = lambda: "arm64"
    platform.processor = lambda: "arm"
    for name in LINUX_ALONE:
        if hasattr(os, name):
            delattr(os, name)
    tempfile._O_TMPFILE_WORKS = False
    # As on 64-bit ARM of Apple.
    np.longdouble = np.float64
    psutil.Process.memory_full_info = psutil.Process.memory_info
    del psutil.Process.cpu_affinity
    multiprocessing.set_start_method("spawn", force=True)
    sys.addaudithook(_no_proc)


def _no_proc(event: str, arguments: tuple[Any, ...]) -> None:
    """Hide /proc from the package, but not from psutil, which needs it on the real Linux."""
    if event != "open" or not str(arguments[0]).startswith(("/proc", "/sys")):
        return
    frame = sys._getframe(1)
    while frame is not None and "site-packages" not in frame.f_code.co_filename:
        if frame.f_code.co_filename.startswith(PACKAGE):
            raise FileNotFoundError(2, "no such file or directory", arguments[0])
        frame = frame.f_back
