"""Whether a device and a seed can be used. torch is imported only where needed, so that help works without it."""


def refuse_device(name: str) -> None:
    """Raise ValueError if torch has no such device."""
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or not (index or "0").isdecimal():
        raise ValueError(f"--device must be cpu, cuda or cuda:INDEX, got {name!r}")
    import torch

    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {name}: torch sees {torch.cuda.device_count()} CUDA devices here")


def refuse_seed(seed: int) -> None:
    """Raise ValueError if a seed is negative or too large for a torch generator."""
    from laplex._checks.counts import MOST_SEED

    if not 0 <= seed <= MOST_SEED:
        raise ValueError(f"--seed must be a whole number from 0 to 2^63 - 1, got {seed}")
