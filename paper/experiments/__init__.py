"""Experiments on data that the user brings: one module an experiment, run as ``python -m paper experiment NAME``.

    record.py      results in a JSON file that grows run by run, so that an experiment goes on where it stopped
    data.py        features, packed images and folders of images
    features.py    `python -m paper experiment features`: what enters the head of a frozen image network
    networks.py    those networks
    jobs.py        processes side by side
    training.py    one run: a head, a recipe and a seed give accuracies
    methods.py     the heads that are compared, with what each may start from
    heads.py       `python -m paper experiment heads`: accuracy against parameters
    head_tables.py its table and plot, with the paper's figures beside ours
    compress.py    `python -m paper experiment compress`: a trained weight replaced by LAPLEX, and by its truncated SVD
    projection.py  `python -m paper experiment projection`: flattened images projected to few numbers, then a linear head
    projection_maps.py, projection_training.py, projection_tables.py, flat_images.py
                   its projections, its runs, its tables and plot, its images
    density.py     `python -m paper experiment density`: likelihoods of Gaussians over flattened images
    density_data.py, density_runs.py, density_tables.py
                   its images, its fits, its tables and plot
    rff.py         `python -m paper experiment rff`: errors of random Fourier features against their number
    published.py   the paper's own figures
    report.py      Markdown tables and plots in general
    options.py     what several experiments refuse

An experiment is a module with ``ABOUT``, ``add_options``, ``prepare`` and ``run``: see ``paper.commands.experiment``.
"""
