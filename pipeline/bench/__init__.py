"""What one step costs on this machine: workloads, rivals and the clock, for ``ontrack bench``."""
