"""Facts about the machine that a figure depends on."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

_PACKAGES: Final = ("ontrack", "numba", "scipy", "POT", "pm4py", "ek", "aiokafka")
_STEAL: Final = 7  # the place of steal among the ticks of /proc/stat


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


def circumstances() -> dict[str, Any]:
    """Return what else a run of all benches should say: the load, the system, who took part."""
    return {
        "load": load(),
        "system": f"{platform.system()} {platform.release()}",
        "versions": {name: _version(name) for name in _PACKAGES},
    }


def load() -> list[float]:
    """Return the mean number of runnable processes of the last 1, 5 and 15 minutes."""
    return [round(each, 1) for each in os.getloadavg()]


def stolen(before: Sequence[int] | None, after: Sequence[int] | None) -> float | None:
    """Return the share of processor time that the host gave to others between two readings."""
    if before is None or after is None or len(before) <= _STEAL:
        return None
    spent = [end - begin for begin, end in zip(before, after, strict=True)]
    # guest and guest_nice, the last two, are in user and nice already.
    total = sum(spent[: _STEAL + 1])
    return spent[_STEAL] / total if total > 0 else None


def processor_ticks() -> tuple[int, ...] | None:
    """Return the ticks that all processors spent on each kind of work so far (Linux)."""
    listing = Path("/proc/stat")
    if not listing.is_file():
        return None
    return tuple(int(each) for each in listing.read_text().splitlines()[0].split()[1:])


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


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
