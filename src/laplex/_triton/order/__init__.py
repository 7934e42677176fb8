"""The sorted order of targets and sources on a GPU."""
