"""The kernels, one file a backend, the same functions in the same order in each: plan, scan."""
