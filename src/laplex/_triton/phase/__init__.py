"""Products with phases: ``launch`` chooses the way; ``stacks``, ``spread`` and ``collect`` are the ways."""
