"""The benchmark: claims with bars (`suites`), measured behind a correctness gate, saved with machine and commit.

`laplex bench` and `python -m laplex.bench` run it; the second needs nothing but torch.
"""
