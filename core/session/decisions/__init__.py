"""What each command becomes: one small pure function for each, grouped by what they are about."""
