"""Shells over the pure fold: embedded driver, Faust worker, command line."""
