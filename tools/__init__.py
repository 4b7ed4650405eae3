"""Checks of the repository itself, and the pages that are generated from the code. Nothing here is installed."""
