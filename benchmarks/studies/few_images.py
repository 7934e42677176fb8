"""How much caution EM needs with few images: held-out likelihoods over powers of the inflation, and over the shrinkage.

    python -m benchmarks.studies.few_images --out DIR      writes DIR/few-images.json

The constants of `inflation` and `shrinkage` in `laplex.density` were chosen from these figures, and from those of
`benchmarks.studies.shrinkage`. The images are those that come with laplex, with every fourth number of each.
"""

import argparse
import json
from pathlib import Path

from benchmarks.report import conditions
from benchmarks.studies.shrinkage import part
from laplex import density

COUNTS, RANK, FUNCTIONS, ROUNDS = (29, 58, 117, 414), 200, 2, 20
POWERS = (0.0, 0.5, 1.0, 1.5)  # of the inflation; a fit uses 1
SHARES = (0.0, 0.25, 1.0, 4.0)  # multiples of the odds of the shrinkage; a fit uses 1


def held_out(train: density.Examples, others: density.Examples, power: float, share: float) -> float:
    """The mean log-likelihood of other images after a fit."""
    em = density.EM(train, density.start(train, RANK, functions=FUNCTIONS), ROUNDS)
    em.inflation **= power
    em.shrinkage = part(em.shrinkage, share)
    for _ in em:
        pass
    return density.evaluate(em.model(), others).log_likelihood


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder of few-images.json")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    fitted, other = (one.values[:, ::4].contiguous() for one in density.images.bundled())
    head = {**conditions("cpu"), "rank": RANK, "rounds": ROUNDS}
    results = []
    for count in COUNTS:
        train = density.Examples(fitted[:count])
        others = density.Examples(other, mean=train.mean)
        for power, share in [*((power, 1.0) for power in POWERS), *((1.0, share) for share in SHARES if share != 1)]:
            likelihoods = held_out(train, others, power, share)
            results.append(
                {"images": count, "inflation_power": power, "shrinkage_share": share, "held_out": likelihoods}
            )
            print(results[-1], flush=True)
            (given.out / "few-images.json").write_text(json.dumps(head | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
