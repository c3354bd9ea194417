"""Tool contracts and tasks: taken over from others' schemas, and checked."""
