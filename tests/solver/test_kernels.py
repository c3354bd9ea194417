"""The compiled kernel against numpy, and the switch between them."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ontrack.solver import fast_step, kernels
from ontrack.solver.converged import finalise, solve
from ontrack.solver.frontier import Frontier, frontier
from ontrack.solver.objective import column_mass, diagnostic_loss
from ontrack.solver.problem import Coupling, SolverParams, empty_coupling
from ontrack.solver.streaming import Advance, advance
from tests.solver.one_step import step
from tests.solver.problems import Problem, problems, sealed, solver_params

needs_numba = pytest.mark.skipif(not kernels.installed(), reason="numba is not installed")
CLOSE = 1e-12
SINGLE = 1e-5
"""Where one of both works in float32: plans, losses, costs and leakages."""


@pytest.fixture(scope="module", autouse=True)
def kernel() -> Iterator[None]:
    """In place of the fixture of this folder: these tests choose for themselves."""
    before = "numpy" if kernels.compiled() is None else "numba"
    yield
    kernels.use(before)  # type: ignore[arg-type]


def assert_same_coupling(left: Coupling, right: Coupling, close: float = CLOSE) -> None:
    np.testing.assert_allclose(left.plan, right.plan, rtol=0, atol=close)
    np.testing.assert_allclose(left.u, right.u, rtol=10 * close)
    np.testing.assert_allclose(left.v, right.v, rtol=10 * close)


def assert_same_mask(left: Frontier, right: Frontier) -> None:
    np.testing.assert_array_equal(left.marginal, right.marginal)
    np.testing.assert_array_equal(left.satisfied, right.satisfied)
    np.testing.assert_array_equal(left.active, right.active)
    np.testing.assert_array_equal(left.lookahead, right.lookahead)


def assert_same_advance(left: Advance, right: Advance) -> None:
    """Equal but for float32; within that of the tolerance, one may take an iteration more."""
    assert_same_mask(left.mask, right.mask)
    assert_same_coupling(left.coupling, right.coupling, SINGLE)
    np.testing.assert_allclose(left.losses, right.losses, rtol=0, atol=SINGLE)
    np.testing.assert_allclose(left.newest_cost, right.newest_cost, rtol=0, atol=SINGLE)
    np.testing.assert_array_equal(left.reading.flags, right.reading.flags)
    np.testing.assert_allclose(left.reading.leakages, right.reading.leakages, rtol=0, atol=SINGLE)
    np.testing.assert_allclose(left.reading.coverage, right.reading.coverage, rtol=0, atol=SINGLE)
    for k in range(len(left.losses)):
        ours, others = left.reading.match_cost(k, 1e-3), right.reading.match_cost(k, 1e-3)
        np.testing.assert_allclose(ours, others, rtol=0, atol=1e2 * SINGLE)
    assert left.inner_residual == pytest.approx(right.inner_residual, abs=SINGLE)


def event(problem: Problem, params: SolverParams, before: Coupling, steps: int) -> Advance:
    return advance(
        params,
        problem.arrays,
        before,
        problem.padded_cost[:, :steps],
        problem.distance_at(steps),
        problem.ages[steps - 1, :steps],
        problem.mu[:steps],
    )


# ------------------------------------------------------------------ both kernels do the same


@needs_numba
@settings(max_examples=30, deadline=None)
@given(problem=problems(), params=solver_params)
def test_every_event_of_a_stream_is_the_same_on_both_kernels(
    problem: Problem, params: SolverParams
) -> None:
    """Each kernel goes on from its own coupling, as it does in a run."""
    by_numpy = by_numba = empty_coupling(problem.arrays)
    for steps in range(1, problem.steps + 1):
        kernels.use("numpy")
        slow = event(problem, params, by_numpy, steps)
        kernels.use("numba")
        fast = event(problem, params, by_numba, steps)
        assert_same_advance(fast, slow)
        by_numpy, by_numba = slow.coupling, fast.coupling


@needs_numba
@settings(max_examples=30, deadline=None)
@given(
    problem=problems(steps_max=30, size_max=30),
    seed=st.integers(0, 2**32 - 1),
    ahead=st.sampled_from([None, 0.0, 1.0]),
)
def test_from_any_coupling_parts_and_whole_are_the_same_on_both_kernels(
    problem: Problem, seed: int, ahead: float | None
) -> None:
    params, arrays = SolverParams(), problem.arrays
    rng = np.random.default_rng(seed)
    shape = (arrays.count, problem.steps - 1, arrays.width)
    plan = rng.uniform(0, 1 / max(shape[1], 1), shape) * arrays.nu[:, None, :]
    before = Coupling(plan, rng.uniform(0.1, 9, shape[:2]), rng.uniform(0.1, 9, arrays.nu.shape))
    inputs = problem.padded_cost, problem.distance, problem.ages[-1], problem.mu
    parts, wholes = [], []
    for name in ("numpy", "numba"):
        kernels.use(name)  # type: ignore[arg-type]
        mask = frontier(column_mass(plan), arrays, params, ahead)
        coupling, told = step(params, arrays, before, *inputs, mask.marginal)
        losses = diagnostic_loss(
            inputs[0], inputs[1], coupling.plan, problem.mu, mask.marginal, arrays, params
        )
        parts.append((coupling, losses, mask, told.linear_cost[:, -1]))
        wholes.append(advance(params, arrays, before, *inputs, ahead))
    assert_same_mask(parts[1][2], parts[0][2])
    np.testing.assert_allclose(parts[1][1], parts[0][1], rtol=0, atol=CLOSE)
    assert_same_advance(wholes[1], wholes[0])
    for whole in wholes:
        assert_same_mask(whole.mask, parts[0][2])
        assert_same_coupling(whole.coupling, parts[0][0], SINGLE)
        np.testing.assert_allclose(whole.losses, parts[0][1], rtol=0, atol=SINGLE)
        np.testing.assert_allclose(whole.newest_cost, parts[0][3], rtol=0, atol=SINGLE)


@needs_numba
@settings(max_examples=30, deadline=None)
@given(problem=problems(), params=solver_params)
def test_a_converged_solve_is_the_same_on_both_kernels(
    problem: Problem, params: SolverParams
) -> None:
    arrays = problem.arrays
    inputs = problem.padded_cost, problem.distance
    made = []
    for name in ("numpy", "numba"):
        kernels.use(name)  # type: ignore[arg-type]
        masses = problem.ages[-1], problem.mu, arrays.nu * 0.7
        made.append((solve(params, arrays, *inputs, *masses), finalise(params, arrays, *inputs)))
    for slow, fast in zip(*made, strict=True):
        assert_same_coupling(fast.coupling, slow.coupling)
        np.testing.assert_allclose(fast.losses, slow.losses, rtol=0, atol=CLOSE)
        np.testing.assert_allclose(fast.linear_cost, slow.linear_cost, rtol=0, atol=CLOSE)
        assert fast.residual == pytest.approx(slow.residual, abs=CLOSE)
        assert (fast.outer_iterations, fast.inner_iterations, fast.converged) == (
            slow.outer_iterations,
            slow.inner_iterations,
            slow.converged,
        )


@needs_numba
@settings(max_examples=10, deadline=None)
@given(problem=problems(steps_max=5))
def test_a_run_that_numpy_began_goes_on_with_the_compiled_kernel(problem: Problem) -> None:
    """Structure terms that are the other kernel's, of distances in float64, are not used."""
    params, arrays = SolverParams(), problem.arrays
    kernels.use("numpy")
    before = empty_coupling(arrays)
    for steps in range(1, problem.steps):
        before = event(problem, params, before, steps).coupling
    kernels.use("numba")
    plain = Coupling(before.plan, before.u, before.v)
    one, two = (event(problem, params, each, problem.steps) for each in (before, plain))
    assert one.reading.numbers.tobytes() == two.reading.numbers.tobytes()


@needs_numba
@pytest.mark.parametrize(
    "spoil",
    [
        lambda array: array.astype(np.int32),
        lambda array: array.astype(np.complex64),
        lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
        lambda array: np.frombuffer(b"0" + array.tobytes(), array.dtype, array.size, offset=1),
    ],
    ids=["whole numbers", "complex", "scattered", "not aligned"],
)
def test_the_compiled_step_refuses_what_is_no_line_of_the_declared_numbers(
    spoil: Callable[[Any], Any],
) -> None:
    """It takes addresses, so what it is given is looked at before."""
    kernels.use("numba")
    from ontrack.solver import compiled

    given: list[Any] = []

    def advance_and_remember(*arguments: Any) -> int:
        given[:] = arguments
        return compiled.advance(*arguments)

    problem = next_problem()
    coupling = event(problem, SolverParams(), empty_coupling(problem.arrays), 1).coupling
    inputs = problem.padded_cost, problem.distance, problem.ages[1], problem.mu
    watched: Any = SimpleNamespace(advance=advance_and_remember)
    fast_step.advance(watched, SolverParams(), problem.arrays, coupling, *inputs, 0.3)
    places = [place for place, each in enumerate(given) if isinstance(each, np.ndarray)]
    assert len(places) == 13
    for place in places:
        arguments = list(given)
        arguments[place] = spoil(given[place])
        spoiled = arguments[place]
        layout = spoiled.flags
        if spoiled.dtype == given[place].dtype and layout.c_contiguous and layout.aligned:
            continue  # a byte is aligned anywhere, and one number is contiguous
        with pytest.raises(TypeError, match=r"expected a contiguous array, Data\("):
            compiled.advance(*arguments)
    assert compiled.advance(*given) > 0


@needs_numba
@settings(max_examples=20, deadline=None)
@given(problem=problems(steps_max=5))
def test_the_compiled_kernel_takes_arrays_of_any_layout_and_writes_to_none(
    problem: Problem,
) -> None:
    kernels.use("numba")
    params, arrays = SolverParams(), problem.arrays
    before = empty_coupling(arrays)
    for steps in range(1, problem.steps):
        before = event(problem, params, before, steps).coupling
    inputs = problem.padded_cost, problem.distance, problem.ages[-1], problem.mu
    plain = advance(params, arrays, before, *inputs)
    guarded = Coupling(*(sealed(part) for part in (before.plan, before.u, before.v)))
    scattered = [np.repeat(array, 2, axis=-1)[..., ::2] for array in inputs]
    for array in scattered:
        array.setflags(write=False)
    assert_same_advance(advance(params, arrays, guarded, *scattered), plain)


@needs_numba
@pytest.mark.parametrize("where", ["cost", "distance", "age"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_by_every_compiled_function(where: str, value: float) -> None:
    kernels.use("numba")
    problem = next_problem()
    params, arrays = SolverParams(), problem.arrays
    before = event(problem, params, empty_coupling(arrays), 1).coupling
    inputs = {
        "cost": problem.padded_cost.copy(),
        "distance": problem.distance.copy(),
        "age": problem.ages[-1].copy(),
    }
    inputs[where][..., 0] = value
    rest = inputs["cost"], inputs["distance"], inputs["age"], problem.mu
    for call in (
        lambda: advance(params, arrays, before, *rest),
        lambda: solve(params, arrays, *rest, arrays.nu),
    ):
        with pytest.raises(ValueError, match="must be finite"):
            call()


def next_problem() -> Problem:
    from tests import reference as twin

    rng = np.random.default_rng(1)
    reference = twin.Reference(3, [(0, 1), (1, 2)])
    return Problem((reference,), (rng.uniform(0, 1, (2, 3)),), [(0, 1)], 2, np.ones((2, 2)))


# ------------------------------------------------------------------ its functions


@needs_numba
@settings(max_examples=30, deadline=None)
@given(st.floats(-760, 720))
@example(0.0)
@example(-745.0)
@example(-746.0)
@example(-1e300)
@example(709.5)
@example(1e300)
def test_the_compiled_exponential_is_numpys(x: float) -> None:
    from ontrack.solver import compiled

    with np.errstate(all="ignore"):
        expected = np.exp(x)
    # The smallest positive double is the unit in the last place of what is subnormal.
    np.testing.assert_allclose(compiled.exp(x), expected, rtol=1e-15, atol=5e-324)


@needs_numba
@settings(max_examples=30, deadline=None)
@given(st.floats(1e-300, 1e300))
@example(1e-300)
@example(1.0)
@example(np.nextafter(1.0, 0.0))
@example(np.nextafter(1.0, 2.0))
def test_the_compiled_logarithm_is_numpys(x: float) -> None:
    from ontrack.solver import compiled

    np.testing.assert_allclose(compiled.log(x), np.log(x), rtol=1e-15, atol=1e-16)


@needs_numba
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 90), st.integers(0, 2**32 - 1))
def test_the_compiled_steps_functions_are_numpys_for_rows_of_any_length(
    size: int, seed: int
) -> None:
    both, exact, added = loops()
    rng = np.random.default_rng(seed)
    x, a = rng.uniform(-80, 20, size), np.exp(rng.uniform(-80, 20, size))
    for kind, function, close in ((np.float32, both, 1e-6), (np.float64, exact, 1e-14)):
        given_ = [array.astype(kind) for array in (x, x, a, a)]
        beyond = [np.append(array, kind(7.0)) for array in given_]
        function(*(array[:size] for array in beyond))
        exponents, argument = given_[0].astype(float), given_[2].astype(float)
        np.testing.assert_allclose(beyond[1][:size], np.exp(exponents), rtol=close)
        np.testing.assert_allclose(beyond[3][:size], np.log(argument), rtol=close, atol=close)
        assert all(array[size] == 7.0 for array in beyond)
    single = x.astype(np.float32)
    assert added(single) == pytest.approx(single.astype(float).sum(), abs=1e-3)


@needs_numba
@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 60), st.integers(1, 60), st.integers(1, 60)),
    seed=st.integers(0, 2**32 - 1),
)
@example((40, 40, 40), 0)
@example((1, 1, 1), 0)
@example((9, 3, 49), 0)
def test_the_compiled_product_is_numpys_and_does_not_depend_on_what_is_around(
    shape: tuple[int, int, int], seed: int
) -> None:
    rows, depth, width = shape
    rng = np.random.default_rng(seed)
    a = rng.uniform(-1, 1, (rows, depth)).astype(np.float32)
    b = rng.uniform(-1, 1, (depth, width)).astype(np.float32)
    out = np.full((rows + 1, width), 7, np.float32)
    product = products()
    product(a, b, out, 0, rows, depth)
    np.testing.assert_allclose(out[:rows], a.astype(float) @ b.astype(float), atol=1e-5)
    assert (out[rows] == 7).all()
    larger = np.full((rows + 2, depth + 3), np.nan, np.float32)
    larger[:rows, :depth] = a
    deeper = np.concatenate([b, np.full((2, width), np.nan, np.float32)])
    again = np.full((rows + 1, width), 7, np.float32)
    product(larger, deeper, again, rows // 2, rows, depth)
    np.testing.assert_array_equal(again[rows // 2 : rows], out[rows // 2 : rows])


@functools.cache
def loops() -> tuple[Callable[..., None], Callable[..., None], Callable[..., float]]:
    import numba

    from ontrack.solver import compiled_lanes, compiled_rows

    def narrow(row: compiled_lanes.Row) -> None:
        row[1], row[3] = row[0].exp(), row[2].log()

    def wide(row: compiled_lanes.Row) -> None:
        row[1], row[3] = row[0].exp(), row[2].log()

    made = compiled_lanes.loop(4, 0, narrow), compiled_lanes.loop(4, 0, wide, double=True)
    narrow_loop, wide_loop = made
    total = compiled_rows.row_total

    @numba.njit
    def both(x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        narrow_loop(x, y, a, b, x.size)

    @numba.njit
    def exact(x: np.ndarray, y: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        wide_loop(x, y, a, b, x.size)

    @numba.njit
    def added(x: np.ndarray) -> float:
        return total(x, x.size)

    return both, exact, added


@functools.cache
def products() -> Callable[..., None]:
    import numba

    from ontrack.solver.compiled_products import multiply

    def call(a, b, out, first, rows, depth):  # type: ignore[no-untyped-def]
        multiply(a, b, out, first, rows, depth)

    made: Callable[..., None] = numba.njit(call)
    return made


# ------------------------------------------------------------------ the switch


def test_auto_is_numba_where_it_is_installed_and_numpy_where_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kernels.installed():
        assert kernels.use("auto") == "numba"
        assert kernels.compiled() is not None
    monkeypatch.setitem(sys.modules, "numba", None)
    assert kernels.use("auto") == "numpy"
    assert kernels.compiled() is None


@needs_numba
def test_the_same_choice_again_is_never_seen_by_a_thread_that_solves() -> None:
    kernels.use("numba")
    seen: set[object] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add(kernels.compiled())

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(20):
        kernels.use("auto")
        kernels.use("numba")
    done.set()
    reader.join()
    assert seen == {kernels.compiled()}
    assert seen != {None}


def test_asking_for_numba_where_it_is_not_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ValueError, match=r'pip install "ontrack\[fast\]"'):
        kernels.use("numba")
    with pytest.raises(ValueError, match="auto, numpy or numba"):
        kernels.use("fortran")  # type: ignore[arg-type]


@needs_numba
def test_a_numba_that_cannot_be_imported_is_warned_of_and_numpy_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> None:
        raise ImportError("Numba needs NumPy 9.9 or less")

    kernels.use("numpy")
    monkeypatch.setattr(kernels, "_load", broken)
    with pytest.warns(UserWarning, match=r"numpy is used: Numba needs NumPy 9\.9"):
        assert kernels.use("auto") == "numpy"
    with pytest.raises(ImportError, match=r"9\.9"):
        kernels.use("numba")


def test_importing_the_solver_and_using_numpy_imports_no_numba() -> None:
    program = (
        "import sys; from ontrack.solver import kernels, streaming, converged\n"
        "assert kernels.use('numpy') == 'numpy'\n"
        "assert not {'numba', 'llvmlite'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@needs_numba
def test_nothing_is_compiled_after_the_choice() -> None:
    kernels.use("numba")
    from ontrack.solver import compiled, compiled_step

    entries = [compiled.iterate, compiled.frontier, compiled.diagnostic_loss]
    entries.append(compiled_step.advance_at)
    before = [len(each.signatures) for each in entries]
    problem = next_problem()
    coupling = event(problem, SolverParams(), empty_coupling(problem.arrays), 1).coupling
    event(problem, SolverParams(), coupling, 2)
    finalise(SolverParams(), problem.arrays, problem.padded_cost, problem.distance)
    assert before == [1, 1, 1, 1]
    assert [len(each.signatures) for each in entries] == before


@needs_numba
def test_where_no_cache_can_be_kept_a_function_is_compiled_without() -> None:
    from numba import types

    from ontrack.solver import compiled

    # Code that comes from no file has no folder for a cache, like a package that is read-only.
    scope: dict[str, object] = {}
    exec(compile("def twice(x):\n    return 2.0 * x\n", "<nowhere>", "exec"), scope)
    twice = compiled.entry((types.float64,))(scope["twice"])  # type: ignore[type-var]
    assert twice(21.0) == 42.0  # type: ignore[operator]
