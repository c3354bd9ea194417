"""BLAS threads: one, since the matrices here are small and processes share the cores."""

from __future__ import annotations

import os

THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def one_blas_thread() -> None:
    """Ask BLAS for a single thread, where the environment does not ask for another number.

    BLAS reads these variables as numpy is imported: later calls have no effect.
    """
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")
