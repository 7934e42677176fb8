"""What an installed laplex must do, without the checkout, pytest or any extra: `make dist` runs this on the wheel."""

import subprocess
import sys
from importlib import import_module, resources
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

import laplex

CHECKOUT = Path(__file__).parents[1].resolve()
FILES = ("py.typed", "density/photographs.npz")


def main() -> None:
    assert not Path(laplex.__file__).resolve().is_relative_to(CHECKOUT / "src"), "this is the checkout, not the wheel"
    assert laplex.__version__ == version("laplex")
    import_module("laplex._core")  # the compiled core is in the wheel
    for name in FILES:
        assert resources.files("laplex").joinpath(name).is_file(), f"{name} is missing"
    for name in ("paper", "benchmarks"):
        assert find_spec(name) is None, f"{name} belongs to the checkout, not into the wheel"

    torch.manual_seed(0)
    a, b, x = torch.randn(300, requires_grad=True), torch.randn(200), torch.randn(4, 200)
    y = laplex.linear(x, a, b, tau=0.5)
    want = x.double() @ laplex.reference.kernel(a.detach().double(), b.double(), 0.5).mT
    assert torch.allclose(y.double(), want, rtol=1e-5, atol=1e-5)
    y.square().sum().backward()
    assert bool(a.grad.isfinite().all())

    examples = laplex.density.Examples(torch.rand(40, 60))
    model = laplex.density.fit(examples, 8, rounds=4, progress=lambda done, total: None).model
    assert bool(model.log_prob(examples.values).isfinite().all())

    laplex_command = [sys.executable, "-m", "laplex"]
    for arguments in (["--version"], ["doctor"], ["fit", "--help"]):
        subprocess.run([*laplex_command, *arguments], check=True, stdout=subprocess.DEVNULL)
    print(f"laplex {laplex.__version__}: the installed wheel works")


if __name__ == "__main__":
    main()
