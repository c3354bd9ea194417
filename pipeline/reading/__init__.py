"""Reading recorded runs and people's files: every format, compressed or not, of any size."""
