"""Evaluation on recorded runs: one experiment a file, injected faults, statistics, figures."""
