"""Dashboard: what the monitor says of a fleet and of each run, for people."""
