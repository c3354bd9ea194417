"""Asking the gate: what it promises, how it is asked over HTTP, and who answers in its place."""
