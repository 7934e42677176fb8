"""Products with one long side."""
