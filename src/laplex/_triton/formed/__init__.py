"""The matrix formed on the GPU: ``launch`` is Python, ``programs`` are Triton."""
