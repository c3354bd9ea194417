"""The tables of docs/math.md: symbols = names = shapes, and the files where they are."""

import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from ontrack.solver import structure
from ontrack.solver.cost import CostWeights
from ontrack.solver.frontier import coverage, frontier
from ontrack.solver.objective import (
    column_mass,
    diagnostic_loss,
    linear_cost,
    linearise,
    objective,
    row_leakage,
    row_mass,
)
from ontrack.solver.problem import SolverParams, empty_coupling
from tests import reference as twin
from tests.solver.one_step import step
from tests.solver.problems import pack

ROOT = Path(__file__).resolve().parents[2]
SECTION = (ROOT / "docs" / "math.md").read_text(encoding="utf-8").partition("## Symbols")[2]
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]]
    for line in SECTION.partition("\n## ")[0].splitlines()
    if re.match(r"\| [^s|-]", line)  # no head, no rule
]
SHAPES = {name.strip("`"): shape for _, name, shape, *_ in ROWS if "(" in shape}
NUMBERS = {name.strip("`"): text for _, name, text, *_ in ROWS if re.match(r"\d", text)}


def shapes_of_a_step() -> dict[str, tuple[int, ...]]:
    """Take three steps beside two references of three and five nodes: K = 2, t = 3, M = 5."""
    params = SolverParams()
    chains = [[(i, i + 1) for i in range(size - 1)] for size in (3, 5)]
    references = pack(tuple(twin.Reference(len(c) + 1, c) for c in chains))
    hops = structure.hops_from_edges(3, [(0, 1)])
    distance, age = structure.distances(hops), np.ones(3)
    cost, mu = np.full((2, 3, 5), 0.5), np.full(3, 1 / references.mean_size)
    marginal = frontier(np.zeros((2, 5)), references, params).marginal
    coupling = empty_coupling(references)
    for t in (1, 2, 3):
        part = cost[:, :t], distance[:t, :t], age[:t], mu[:t], marginal
        coupling, _ = step(params, references, coupling, *part)
    gradient = linearise(distance, coupling.plan, references)
    solved = cost, distance, coupling.plan, mu, marginal, references, params
    arrays = {
        "cost": cost,
        "distance": distance,
        "references.structure": references.structure,
        "hops": hops,
        "coupling.plan": coupling.plan,
        "coupling.u": coupling.u,
        "coupling.v": coupling.v,
        "row_mass(...)": row_mass(coupling.plan),
        "column_mass(...)": column_mass(coupling.plan),
        "linearise(...)": gradient,
        "linear_cost(...)": linear_cost(cost, gradient, age, params),
        "mu": mu,
        "references.nu": references.nu,
        "marginal": marginal,
        "age": age,
        "coverage(...)": coverage(column_mass(coupling.plan), references),
        "objective(...)": objective(*solved),
        "diagnostic_loss(...)": diagnostic_loss(*solved),
        "row_leakage(...)": row_leakage(coupling.plan, mu),
    }
    return {name: np.shape(array) for name, array in arrays.items()}


def test_the_shapes_of_the_table_are_those_of_a_step() -> None:
    sizes = {"K": 2, "t": 3, "M": 5}
    written = {
        name: tuple(sizes[letter] for letter in re.findall(r"[KtM]", shape.partition(")")[0]))
        for name, shape in SHAPES.items()
    }
    assert written == shapes_of_a_step()


def test_the_defaults_of_the_table_are_those_of_the_code() -> None:
    owners = {"CostWeights": CostWeights(), "SolverParams": SolverParams()}
    assert len(NUMBERS) > 10
    for name, text in NUMBERS.items():
        owner, _, field = name.partition(".")
        assert getattr(owners[owner], field) == pytest.approx(float(Fraction(text))), name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_symbol_is_in_the_file_that_the_table_names(row: list[str]) -> None:
    file, *more = re.findall(r"`([^`]+)`", row[3])
    words = set(re.findall(r"\w+", (ROOT / file).read_text(encoding="utf-8")))
    name = row[1].strip("`").removesuffix("(...)").removeprefix("references.")
    assert {*name.removeprefix("coupling.").split("."), *more} - words == set()
