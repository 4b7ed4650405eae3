"""One module a step; ``revision`` is its number."""
