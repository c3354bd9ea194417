"""The monitor's operators: pure steps ``(params, state, input) -> (state, output)``.

No clock, no I/O, no logging, no randomness; a state is never changed in place, so any earlier
state can be resumed from (import-linter and one contract suite hold this).
"""
