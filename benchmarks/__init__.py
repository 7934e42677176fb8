"""Our own benchmarks: every promise of the project is a row with a bar, measured after its answer was checked.

    python -m benchmarks --suite cpu        the CPU suite; `--suite gpu` for a CUDA device
    python -m benchmarks.markdown           the tables and plots of README and documentation, from the committed results

`suites` and `suites_gpu` declare the rows, `paper.methods.products` holds what laplex is compared with, and `results/`
the JSON behind every published figure. The suites need torch and numpy; celerite2 and matplotlib are used if installed.
Nothing here ships with the package, and only laplex's public names are imported, except by some scripts in `studies/`:
those tune laplex's internal constants, so they must set them. `python -m benchmarks.compare` times two versions.
"""
