"""A projection of many features to few in a scikit-learn pipeline, compared with PCA. Needs laplex[sklearn].

Run it: python examples/projection_in_sklearn.py
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import laplex
from laplex.sklearn import LaplexTransformer

COMPONENTS = 24


def main() -> None:
    digits = load_digits()  # 1797 images of 8 x 8 pixels, which come with scikit-learn
    x, x_test, y, y_test = train_test_split(digits.data, digits.target, random_state=0, test_size=0.3)

    score = {}
    for name, reduce in (("PCA", PCA(COMPONENTS)), ("laplex", LaplexTransformer(COMPONENTS, random_state=0))):
        model = make_pipeline(StandardScaler(), reduce, LogisticRegression(max_iter=2000)).fit(x, y)
        score[name] = model.score(x_test, y_test)
    projection = model[1].projection_
    stored = {"PCA": COMPONENTS * x.shape[1], "laplex": projection.a.numel() + projection.b.numel()}
    for name, accuracy in score.items():
        print(f"{name:7} {COMPONENTS} components from {x.shape[1]} features, {stored[name]:5} numbers: {accuracy:.3f}")

    # The self-check: transform multiplies by the matrix of the definition, and the pipeline learned.
    standard = model[0].transform(x_test)
    dense = laplex.reference.kernel(projection.a, projection.b, projection.tau).numpy()
    difference = np.abs(model[1].transform(standard) - standard @ dense.T).max()
    assert difference < 1e-10, f"transform differs from the dense product by {difference:.1e}"
    assert score["laplex"] > 0.8, f"the pipeline learned too little: {score}"
    assert torch.equal(projection.b.sort().values.unique(), projection.b.sort().values), "two features share a place"
    print("OK")


if __name__ == "__main__":
    main()
