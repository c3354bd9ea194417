"""The pages: what each shows, of what it is built, and the text that is safe to show."""
