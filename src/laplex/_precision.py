"""Whether the user lets torch multiply float32 matrices with fewer digits."""

from __future__ import annotations

import torch


def allows_tf32() -> bool:
    """Whether float32 matrices may be multiplied in TF32."""
    matmul = torch.backends.cuda.matmul
    known: str | None = getattr(matmul, "fp32_precision", None)  # from torch 2.9 on; mixed with the older, that raises
    return bool(matmul.allow_tf32) if known is None else known == "tf32"
