"""Measurements of a running server, printed as tables with the machine, the versions, the command and the seed."""
