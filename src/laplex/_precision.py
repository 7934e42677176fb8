"""Whether the user lets torch multiply float32 matrices with fewer digits."""

from __future__ import annotations

import torch


def allows_tf32() -> bool:
    """Whether float32 matrices may be multiplied in TF32."""
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")  # ``allow_tf32`` raises if this one was set
