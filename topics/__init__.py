"""What travels on the topics: events in, verdicts out, and the knowledge runs are compared with.

Pydantic models at the edge; no broker, no numerics (import-linter holds this).
"""
