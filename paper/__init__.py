"""The paper "LAPLEX: The FFT of Learnable Laplace Kernels", compared with what this library measures.

python -m paper list                every entry: its source in the paper, its data, its device and its time
python -m paper run NAME ...        measures entries, and writes a JSON file for each
python -m paper report              one HTML page of all results, committed and fresh
python -m paper experiment NAME     one of the experiments on your own data
"""
