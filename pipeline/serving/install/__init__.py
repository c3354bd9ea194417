"""``ontrack init``: our hooks in a host's settings file, put in and taken out again."""
