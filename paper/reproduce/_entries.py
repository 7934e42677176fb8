"""The entries: one for each table and figure of the paper that reports a result, and for claims of its text that fail.

``LABELS_WITHOUT`` names the figures and tables that have no entry, with the reason. Figures and tables have the numbers
that a reader of the paper sees.
"""

from __future__ import annotations

from paper.entry import Entry

CPU, BOTH = ("cpu",), ("cuda", "cpu")
TENTH = "Each figure counts as reproduced if it is at most a tenth worse than the paper's, as exceeded if it is more \
than a tenth better; the entry has the worst of them."
FEATURES = "an .npz file of features of a frozen network (x_train, y_train, x_test, y_test)"
IMAGES = "images of ImageNette: folders train and val, or packed *train*.npz and *val*.npz"
PHOTOGRAPHS = "photographs, 1024 x 1024: DIV2K_train_HR and DIV2K_valid_HR, or packed photos*.npz"

LABELS_WITHOUT = {
    "Figure 2": "a drawing of the theorem; the entry theorem-1 checks what it says",
    "Figure 7": "a drawing of the Gram matrix; the entry gram measures it",
    "Table 5": "settings, no results; the entry heads-recipe uses them",
}

OPERATOR = (
    Entry(
        name="runtime",
        title="Time and memory of one product up to n = 2^29",
        section="Operator",
        source="Figure 15, Figure 1",
        claim="A product of one vector takes 0.34 ms up to n = 2^19, and 704 ms and 41 GB at 2^29; one FFT is faster "
        "at every n, and a dense matrix no longer fits beyond 2^16.",
        criterion="Our whole call, sorting included, at 2^19 and 2^29, and the most memory that it allocates at 2^29, "
        "inputs and result counted. " + TENTH,
        devices=BOTH,
        data="",
        minutes={"cuda": 2.0, "cpu": 2.0},
        of_gpu=True,
    ),
    Entry(
        name="batch8",
        title="Eight vectors at once: forward, forward and backward, memory",
        section="Operator",
        source="Figure 8",
        claim="With 8 vectors a forward pass takes about 1 ms below n = 2^17; at 2^20 forward and backward take 71 ms, "
        "and a forward pass holds 320 MB.",
        criterion="Our whole calls at 2^16 (forward) and at 2^20 (both ways, memory). " + TENTH,
        devices=BOTH,
        data="",
        minutes={"cuda": 1.0, "cpu": 2.0},
        of_gpu=True,
    ),
    Entry(
        name="batch8-against-dense",
        title="Eight vectors at once, against the dense matrix",
        section="Operator",
        source="Figure 3",
        claim="At n = 2^14 LAPLEX is 65 times faster forward, 430 times forward and backward, and holds 100 times "
        "less memory than a dense matrix that is formed and multiplied.",
        criterion="The same three ratios, whole call against whole call in the same run. " + TENTH,
        devices=BOTH,
        data="",
        minutes={"cuda": 1.0, "cpu": 2.0},
        of_gpu=True,
    ),
    Entry(
        name="batch-scaling",
        title="Time over the number of vectors",
        section="Operator",
        source="Figure 10",
        claim="At n = 2^14 the dense product hardly depends on the number B of vectors, LAPLEX grows with B from "
        "about 8 on, and LAPLEX is faster throughout, B = 1 to 256.",
        criterion="Reproduced if our whole call is faster than the dense one at every B, forward and both ways; "
        "exceeded if moreover B = 256 takes less than 32 times as long as B = 8, which growth with B would give.",
        devices=BOTH,
        data="",
        minutes={"cuda": 0.5, "cpu": 2.0},
        of_gpu=True,
    ),
    Entry(
        name="asymmetric",
        title="One short side of 1024 anchors",
        section="Operator",
        source="Figure 11",
        claim="With n = 1024 a product takes at most 1.1 ms up to k = 2^17 and 7 ms at 2^20, the mirrored case about "
        "as much; at 2^18 it is 37 to 47 times faster than dense.",
        criterion="Our whole call at k = 2^17 and 2^20, and the smaller of the two ratios at 2^18. " + TENTH,
        devices=BOTH,
        data="",
        minutes={"cuda": 0.7, "cpu": 2.0},
        of_gpu=True,
    ),
    Entry(
        name="fft",
        title="Arbitrary anchors against a Toeplitz product by FFT",
        section="Operator",
        source="Figure 5, Figure 14",
        claim="LAPLEX on irregular anchors takes 4 times as long as a Toeplitz product by FFT on a uniform grid at "
        "n = 2^20, and all curves rise alike.",
        criterion="The ratio of our whole call, sorting included, to a whole Toeplitz product. " + TENTH,
        devices=BOTH,
        data="",
        minutes={"cuda": 2.0, "cpu": 2.0},
        of_gpu=True,
    ),
    Entry(
        name="cpu",
        title="On the CPU, against the dense matrix",
        section="Operator",
        source="Figure 13",
        claim="At n = 2^14 on a CPU a product takes about 6 ms, 108 times less than the dense one.",
        criterion="Our whole call, and its ratio to the dense one in the same run. " + TENTH,
        devices=CPU,
        data="",
        minutes={"cpu": 2.0},
    ),
    Entry(
        name="cpu-fft",
        title="On the CPU, against FFTs",
        section="Operator",
        source="Figure 17",
        claim="At n = 2^18 on one CPU thread LAPLEX takes 64 ms, a Toeplitz product by FFT 6 ms, one FFT 0.65 ms.",
        criterion="Our whole call at 2^18, and its ratio to the Toeplitz product in the same run, with the threads "
        "that the verdict names. " + TENTH,
        devices=CPU,
        data="",
        minutes={"cpu": 2.0},
    ),
    Entry(
        name="gram",
        title="Weighted Gram matrix over the inner dimension",
        section="Gram",
        source="Figure 12",
        claim="With n = 1024 and k = 2^17 the Gram matrix takes 1.45 ms and 33 MB, the dense one 216 ms and 1 GB: "
        "149 times more time.",
        criterion="Our whole call, its peak memory, and its ratio to the dense one. " + TENTH,
        devices=BOTH,
        data="",
        minutes={"cuda": 0.5, "cpu": 2.0},
        of_gpu=True,
    ),
    Entry(
        name="accuracy",
        title="Errors against float64",
        section="Accuracy",
        source="Figure 9",
        claim="In float32 the relative error is about 1.5e-7 in the Euclidean norm and below 5e-7 at its largest, for "
        "n = 2^10 to 2^14; the dense product is at least twice as wrong at 2^14.",
        criterion="Our largest errors over these sizes, and the ratio to the dense error at 2^14. " + TENTH,
        devices=BOTH,
        data="",
        minutes={"cuda": 0.3, "cpu": 1.0},
    ),
    Entry(
        name="toeplitz-accuracy",
        title="Errors on a uniform grid, beside the Toeplitz product by FFT",
        section="Accuracy",
        source="Figure 16, Figure 14",
        claim="On a uniform grid LAPLEX has the smallest float32 error at every size: 4.2e-7 at its largest at "
        "n = 2^14, where the FFT has 4.4e-7 and dense 1.1e-6.",
        criterion="Reproduced if our error is the smallest at every size, and at most a tenth above the paper's at "
        "2^14; exceeded if it is more than a tenth below the paper's.",
        devices=BOTH,
        data="",
        minutes={"cuda": 0.3, "cpu": 1.0},
    ),
    Entry(
        name="rounding",
        title="Does the error of the portable path stay at one rounding?",
        section="Accuracy",
        source="Appendix D.2, Appendix D.6",
        claim="A scan adds about one rounding an element, whatever n is: so the paper says of its CUDA program. "
        "Its portable path, by logcumsumexp, it calls numerically stable; that one it describes in full.",
        criterion="Reproduced if the float32 error of that path stays below ten roundings (1.2e-6) for anchors that "
        "spread over 1 to 10 000 tau; laplex is measured beside it.",
        devices=BOTH,
        data="",
        minutes={"cuda": 0.2, "cpu": 0.5},
    ),
    Entry(
        name="differentiability",
        title="Which arguments have gradients",
        section="Gradients",
        source="Table 3",
        claim="LAPLEX takes irregular anchors and has gradients for x and both anchors; FFT products have them for x "
        "alone, and a Toeplitz product is right on a grid only.",
        criterion="Every cell is tried and compared with float64. Reproduced if all come out as in the table; exceeded "
        "if laplex also has exact gradients for tau and phases, and second derivatives.",
        devices=BOTH,
        data="",
        minutes={"cuda": 0.2, "cpu": 0.2},
    ),
    Entry(
        name="rff-value",
        title="Random Fourier features: error and time over their number",
        section="Random features",
        source="Figure 6",
        claim="The error of D random features falls as the root of D; where they take as long as LAPLEX (D = 16) it "
        "is 72 %, and below 10 % (D = 1024) they take 75 times as long.",
        criterion="Reproduced if the median error falls by the root of D (exponent 0.4 to 0.6), and features with an "
        "error below a tenth take 75 times as long as laplex, or at most a tenth less, on every device that was run; "
        "exceeded if more than a tenth longer than that on each.",
        devices=BOTH,
        data="",
        minutes={"cuda": 1.0, "cpu": 2.0},
    ),
    Entry(
        name="rff-gradient",
        title="Random Fourier features: gradients of anchors",
        section="Random features",
        source="Figure 18",
        claim="Their gradients improve less than their values: on the side of x 26 times from D = 1 to 2048 where "
        "values improve 57 times, on the other side not at all; some draws are 10 to 100 times worse than the median.",
        criterion="Reproduced if from the least to the most features the gradient on the side of x improves less than "
        "the value, the other one less than twice, and a draw is over ten times worse than its median for gradients, "
        "not for values; laplex's own gradients must be exact to 1e-6.",
        devices=BOTH,
        data="",
        minutes={"cuda": 1.0, "cpu": 2.0},
    ),
    Entry(
        name="theorem-1",
        title="Theorem 1 as it is printed",
        section="Theory",
        source="Theorem 1",
        claim="K x is the sum of an upper and a lower triangular product, of sums over the intervals between "
        "neighbouring row anchors.",
        criterion="Reproduced if the printed formulas, in float64, with the strict upper triangle that the appendix "
        "names, give K x for random anchors; laplex is measured beside them.",
        devices=CPU,
        data="",
        minutes={"cpu": 0.1},
    ),
    Entry(
        name="full-rank",
        title="Is a random K of full rank?",
        section="Theory",
        source="Abstract",
        claim="A LAPLEX layer is typically a matrix of full rank.",
        criterion="Reproduced if K with n = k random anchors has full rank in most draws at each size; the rank is "
        "laplex.rank, and for the smallest size also the numerical one.",
        devices=CPU,
        data="",
        minutes={"cpu": 0.2},
    ),
)

LEARNING = (
    Entry(
        name="projection-frozen",
        title="Frozen projections of images, with a linear head",
        section="Projections",
        source="Table 4",
        claim="Of projections that know nothing of the data, LAPLEX is the best at m = 1000: 31.6 %, where "
        "CountSketch has 26.0 and Gaussian ones 25.2; PCA is the best at small m.",
        criterion="Reproduced if a random LAPLEX, chosen on held-out train images, is above CountSketch and Gaussian "
        "projections at m = 1000, and PCA above all of these at m = 25; exceeded if its lead is above the paper's.",
        devices=BOTH,
        data=IMAGES,
        minutes={"cuda": 20.0, "cpu": 600.0},
    ),
    Entry(
        name="projection-trained",
        title="Projections trained with the head",
        section="Projections",
        source="Table 1",
        claim="A LAPLEX projection trained with the head is at least as accurate as a trained dense one at every m, "
        "with d + m numbers in place of d m.",
        criterion="Reproduced if trained LAPLEX is at or above trained dense at every m; exceeded if its lead is above "
        "the paper's at every m.",
        devices=BOTH,
        data=IMAGES,
        minutes={"cuda": 20.0, "cpu": 600.0},
    ),
    Entry(
        name="heads",
        title="Classification heads with few parameters",
        section="Heads",
        source="Table 2, Table 6",
        claim="At equal parameters a LAPLEX head is more accurate than a low-rank one at ranks 4, 8 and 16, most of "
        "all at rank 4, and comes within a few points of a dense head at rank 16.",
        criterion="Reproduced if LAPLEX is above low rank at every rank on every data set, each with its best start "
        "and learning rate on validation rows; exceeded if its lead is above the paper's smaller one at every rank.",
        devices=BOTH,
        data=FEATURES,
        minutes={"cuda": 12.0, "cpu": 60.0},
    ),
    Entry(
        name="heads-recipe",
        title="Classification heads, trained as the paper says",
        section="Heads",
        source="Table 2, Table 6",
        claim="Trained for 30 epochs of ImageNet in batches of 128, with a learning rate of 1e-4 for all structured "
        "heads, LAPLEX is more accurate than low rank at equal parameters, at ranks 4, 8 and 16.",
        criterion="Reproduced if, both from random starts under this recipe, LAPLEX is above low rank at every rank on "
        "every data set; exceeded if its lead is above the paper's smaller one at every rank. Epochs and batches are "
        "the paper's. Our sets are smaller: all rates are scaled so that steps times rate, about as far as Adam can "
        "carry an anchor, is that of its 300 300 steps.",
        devices=BOTH,
        data=FEATURES,
        minutes={"cuda": 5.0, "cpu": 40.0},
    ),
    Entry(
        name="heads-curves",
        title="Losses of heads while they are trained",
        section="Heads",
        source="Figure 19",
        claim="Under one schedule LAPLEX heads have a lower training and validation loss than low-rank ones from the "
        "first epochs to the last, at ranks 4, 8 and 16.",
        criterion="Reproduced if, each from its start from data, the validation loss of LAPLEX is below that of low "
        "rank after every epoch at every rank; exceeded if that also holds from random starts. Rates are scaled as in "
        "heads-recipe.",
        devices=BOTH,
        data=FEATURES,
        minutes={"cuda": 3.0, "cpu": 6.0},
    ),
    Entry(
        name="density",
        title="Gaussians over images, beside the empirical ceiling",
        section="Densities",
        source="Table 7",
        claim="With rank 1000 and 1, 2 or 3 components LAPLEX has 63, 73 and 76 % of the log-likelihood of the full "
        "empirical Gaussian; dense models of equal parameters have 12 to 21 %.",
        criterion="Reproduced if our share at rank 1000 with as many values a pixel is at most a tenth below the "
        "paper's, and above dense models of equal parameters where those were run; exceeded if it is a tenth above.",
        devices=BOTH,
        data=IMAGES,
        minutes={"cuda": 5.0, "cpu": 60.0},
    ),
    Entry(
        name="density-adam",
        title="The paper's own model, trained as the paper says",
        section="Densities",
        source="Table 7",
        claim="Trained by Adam for 25 epochs (learning rate 0.002, batches of 64), the model of rank 1000 with 1, 2 or "
        "3 components has 63, 73 and 76 % of the log-likelihood of the full empirical Gaussian.",
        criterion="Our shares at I = 1, 2 and 3, of the same model trained in the same way. " + TENTH,
        devices=BOTH,
        data=IMAGES,
        minutes={"cuda": 3.0, "cpu": 300.0},
    ),
    Entry(
        name="density-samples",
        title="Samples of the fitted Gaussians",
        section="Densities",
        source="Figure 20",
        claim="Samples have smooth patches of colour like those of the empirical Gaussian, found from flat vectors; "
        "the likelihood grows with the number of components at the same rank.",
        criterion="The paper shows samples and gives no numbers for them. Reproduced if samples at rank 1000 have 0.9 "
        "to 1.1 times the variance of the images and, without their noise, 0.7 to 1.3 times their colour (how far the "
        "channels of a pixel are apart), and the likelihood of images that were not fitted grows with the number of "
        "functions at the same rank; whether samples have patches is for the reader to see.",
        devices=BOTH,
        data=IMAGES,
        minutes={"cuda": 5.0, "cpu": 60.0},
    ),
    Entry(
        name="density-reconstructions",
        title="Reconstructions of images that were not fitted",
        section="Densities",
        source="Figure 21",
        claim="The root mean square error of the most likely image falls with the number of components: 0.119, 0.105 "
        "and 0.102 for 1, 2 and 3.",
        criterion="Reproduced if it falls with the number of functions at the same rank and is at most a tenth above "
        "the paper's; exceeded if it is more than a tenth below.",
        devices=BOTH,
        data=IMAGES,
        minutes={"cuda": 5.0, "cpu": 60.0},
    ),
    Entry(
        name="density-photographs",
        title="Gaussians over photographs of 3 145 728 numbers",
        section="Densities",
        source="Figure 4",
        claim="With 14 million parameters LAPLEX of rank 1000 reaches a log-likelihood of 1 266 679, a dense model of "
        "rank 4 only 282 392.",
        criterion="The lead over a dense model of no fewer parameters, in nats a number, because a ratio of "
        "log-likelihoods depends on the unit of a pixel. " + TENTH,
        devices=BOTH,
        data=PHOTOGRAPHS,
        minutes={"cuda": 5.0, "cpu": 15.0},
    ),
)

ENTRIES: tuple[Entry, ...] = OPERATOR + LEARNING
NAMES = tuple(entry.name for entry in ENTRIES)


def entry(name: str) -> Entry:
    """The entry of this name."""
    return next(one for one in ENTRIES if one.name == name)


def labels(one: Entry) -> tuple[str, ...]:
    """The figures, tables and other places of the paper that an entry is about."""
    return tuple(one.source.split(", "))
