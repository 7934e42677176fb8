"""Products over tiles of the sorted order."""
