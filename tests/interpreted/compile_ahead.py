"""Compile ahead on a machine without a GPU, and count what Triton compiled; test_first_call.py runs this file."""

import contextlib
from pathlib import Path

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from laplex._triton import launch, warm_up


class Launcher:
    def __init__(self, source, metadata):
        pass


class Driver:
    """What Triton asks a GPU's driver for; programs are compiled for it, and loading one does nothing."""

    launcher_cls = Launcher

    class utils:
        load_binary = staticmethod(lambda name, kernel, shared, device: (object(), 1, 32, 0, 1024))
        get_device_properties = staticmethod(lambda device: {"max_shared_mem": 1 << 18})

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


driver.set_active(Driver())
torch.cuda.device = lambda device: contextlib.nullcontext()
launch.can_start_early = lambda device: True

DEVICE, ASKED = torch.device("cuda", 0), warm_up.Request(torch.float32, 3)
programs = warm_up.survey(DEVICE, ASKED, [(12000, 13000), (20000, 21000), (60000, 70000)])
warm_up.compile_all(programs, lambda done, total: None)
compiled = len(list(Path(knobs.cache.dir).rglob("*.cubin")))
assert compiled == len(programs) == len(launch.compiled) > 4, (compiled, len(programs), len(launch.compiled))
for pairs in ([(12345, 12346), (16384, 16384)], [(20001, 20480), (65536, 65536)]):  # odd, even, powers of two
    for variant, numbers in warm_up.survey(DEVICE, ASKED, pairs).items():
        given = *variant.dtypes, *numbers, *variant.flags
        binary = variant.program.warmup(*given, grid=(1, 1, 1), **launch._options(variant))
        assert binary is launch.compiled[variant].binary, variant
assert len(list(Path(knobs.cache.dir).rglob("*.cubin"))) == compiled
