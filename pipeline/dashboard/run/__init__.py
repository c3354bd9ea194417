"""One run: folded again on demand, as a picture of plain data, and its page."""
