"""Every test of the solver runs on both kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ontrack.solver import kernels

NEEDS_NUMBA = pytest.mark.skipif(not kernels.installed(), reason="numba is not installed")


@pytest.fixture(
    scope="module", autouse=True, params=["numpy", pytest.param("numba", marks=NEEDS_NUMBA)]
)
def kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    # Of a whole module, because hypothesis wants a fixture to hold for all its examples.
    name: str = request.param
    before = "numpy" if kernels.compiled() is None else "numba"
    assert kernels.use(name) == name  # type: ignore[arg-type]
    yield name
    kernels.use(before)  # type: ignore[arg-type]
