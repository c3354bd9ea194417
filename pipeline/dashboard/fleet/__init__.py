"""The fleet: all runs as rows, what they sum up to, and the page that shows them."""
