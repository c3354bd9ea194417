"""Alignment of a prefix graph with references: arrays in, arrays out, numpy and scipy only.

``problem`` holds the types, ``objective`` the one copy of the formula, ``streaming`` the step a
new event takes, ``converged`` the cold solve that confirms a verdict or ends a run.
Symbols, names and shapes: docs/math.md.
"""
