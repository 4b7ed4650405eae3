"""What each event does to the state: one small total function for each, grouped as decisions/ is."""
