"""The HTTP daemon that agents' hosts talk to, and what is written into their settings."""
