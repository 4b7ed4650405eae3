"""Sessions as files: exported, brought in again, and erased."""
