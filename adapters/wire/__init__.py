"""The wire: one sub-package for each dialect, and ``schema``, the names and shapes that server and client share."""
