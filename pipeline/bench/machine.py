"""Facts about the machine that a figure depends on."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any


def machine_facts() -> dict[str, Any]:
    """Return what to quote with every figure; None where the system does not tell."""
    import numpy as np

    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{blas['name']} {blas['version']}",
        "blas_threads": blas_threads(),
        "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE"),
    }


def blas_threads() -> int | None:
    """Ask numpy's own OpenBLAS how many threads it uses; None where it has another BLAS."""
    ask = _openblas_function("get_num_threads")
    return None if ask is None else int(ask())


def _openblas_function(name: str) -> Callable[[], int] | None:
    """Find a function in the OpenBLAS of numpy's wheel, which has its names decorated."""
    import numpy as np

    package = Path(np.__file__).parent
    folders = (package.parent / "numpy.libs", package / ".libs", package / ".dylibs")
    for path in (path for folder in folders for path in folder.glob("*openblas*")):
        library = ctypes.CDLL(str(path))
        for pattern in ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}"):
            found = getattr(library, pattern.format(name), None)
            if found is not None:
                return found  # type: ignore[no-any-return]
    return None


def _cpu() -> str | None:
    """Return the processor's name, from Linux if it tells."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or None
