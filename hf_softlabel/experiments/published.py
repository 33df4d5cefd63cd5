"""Figures that the two papers print, so that a report can stand beside them.

Same Target, Different Basins (Gheibi and Ghazizadeh, 2026, arXiv:2605.20642): CIFAR-10H, ResNet-18 from scratch, 200
epochs. Soft-Label Training Preserves Epistemic Uncertainty (Singh et al., 2025): the averages of its abstract.
"""

from __future__ import annotations

from functools import partial

from .tables import Published as P

# By the decimals that are printed; P has four.
P1, P2, P3 = (partial(P, digits=digits) for digits in (1, 2, 3))

BASINS = "Same Target, Different Basins"
EPISTEMIC = "Soft-Label Training Preserves Epistemic Uncertainty"
BASINS_SCALE = "ResNet-18 of full width, 8,000 training images, 200 epochs, 5 to 10 seeds"

# Table 1: soft NLL by votes per example, 5 seeds; raw one-sided p against soft labels.
SWEEP = {
    "soft": {5: P(0.5860), 10: P(0.5785), 25: P(0.5388), 50: P(0.5628)},
    "sls": {5: P(0.5599, p=0.031), 10: P(0.5485, p=0.031), 25: P(0.5169, p=0.063), 50: P(0.5291, p=0.094)},
    "multipass": {5: P(0.5649, p=0.063), 10: P(0.5371, p=0.031), 25: P(0.5117, p=0.031), 50: P(0.5241, p=0.031)},
    "deterministic_control": {
        5: P(0.5555, p=0.031),
        10: P(0.5388, p=0.031),
        25: P(0.5077, p=0.031),
        50: P(0.5231, p=0.031),
    },
}
SWEEP_SEEDS = 5
# Section 5.1 and Figure 4: soft NLL of SLS that holds a label for so many epochs, 5 seeds.
RESAMPLING = {1: P(0.5027), 5: P(0.5458), 10: P(0.6054), 50: P(0.6689)}
# Table 2, 10 seeds; two-sided p of SLS against soft labels from the text.
MAIN = {
    "label_smoothing": {
        "soft_nll": P(0.6263, 0.0204),
        "accuracy": P(0.8590, 0.0088),
        "ece_equal_mass": P(0.0598, 0.0059),
        "entropy_correlation": P(0.2117, 0.0218),
    },
    "majority": {
        "soft_nll": P(0.7284, 0.0401),
        "accuracy": P(0.8570, 0.0107),
        "ece_equal_mass": P(0.0704, 0.0058),
        "entropy_correlation": P(0.2902, 0.0219),
    },
    "mixup": {
        "soft_nll": P(0.5526, 0.0129),
        "accuracy": P(0.8824, 0.0046),
        "ece_equal_mass": P(0.0977, 0.0063),
        "entropy_correlation": P(0.2499, 0.0145),
    },
    "sls": {
        "soft_nll": P(0.5052, 0.0263, 0.6953),
        "accuracy": P(0.8695, 0.0105, 0.6250),
        "ece_equal_mass": P(0.0186, 0.0039, 0.9219),
        "entropy_correlation": P(0.3946, 0.0192, 0.3750),
    },
    "soft": {
        "soft_nll": P(0.5096, 0.0233),
        "accuracy": P(0.8687, 0.0081),
        "ece_equal_mass": P(0.0185, 0.0040),
        "entropy_correlation": P(0.3909, 0.0190),
    },
}
# Table 3: 5 seeds but for soft labels, which are Table 2's; two-sided p against SLS from the text.
FAMILY = {
    "soft": MAIN["soft"],
    "sls": {
        "soft_nll": P(0.5035, 0.0335),
        "accuracy": P(0.8710, 0.0129),
        "ece_equal_mass": P(0.0193, 0.0045),
        "entropy_correlation": P(0.3956, 0.0159),
    },
    "deterministic_control": {
        "soft_nll": P(0.4921, 0.0162),
        "accuracy": P(0.8724, 0.0050),
        "ece_equal_mass": P(0.0209, 0.0022),
        "entropy_correlation": P(0.3963, 0.0160),
    },
    "multipass": {
        "soft_nll": P(0.4942, 0.0123, 0.4375),
        "accuracy": P(0.8714, 0.0063),
        "ece_equal_mass": P(0.0191, 0.0044),
        "entropy_correlation": P(0.4000, 0.0287),
    },
    "shuffled_sls": {
        "soft_nll": P(2.2973, 0.0024),
        "accuracy": P(0.1199, 0.0128),
        "ece_equal_mass": P(0.0293, 0.0099),
        "entropy_correlation": P(-0.0058, 0.0556),
    },
}
# Table 4; SLS is that of the 10-seed comparison.
HESSIAN = {
    "sls": {
        "lambda_max": P1(104.9, 8.8),
        "trace": P1(1633.9, 50.6),
        "lambda_max_high": P1(314.0, 57.3),
        "trace_high": P1(3496.8, 360.3),
    },
    "soft": {
        "lambda_max": P1(242.2, 36.2),
        "trace": P1(4946.0, 943.2),
        "lambda_max_high": P1(780.6, 103.3),
        "trace_high": P1(10779.6, 1811.9),
    },
    "deterministic_control": {
        "lambda_max": P1(101.6, 8.1),
        "trace": P1(1581.6, 61.2),
        "lambda_max_high": P1(314.6, 30.4),
        "trace_high": P1(3481.8, 250.7),
    },
    "multipass": {
        "lambda_max": P1(103.8, 4.3),
        "trace": P1(1571.4, 72.4),
        "lambda_max_high": P1(302.2, 29.6),
        "trace_high": P1(3438.4, 339.5),
    },
    "shuffled_sls": {
        "lambda_max": P1(18.4, 13.3),
        "trace": P1(33.9, 26.0),
        "lambda_max_high": P1(20.5, 18.1),
        "trace_high": P1(38.8, 44.9),
    },
}
# Table 4's second row of SLS, of the 5-seed comparison.
HESSIAN_ABLATION = "λ max 107.8 ± 9.9, trace 1642.9 ± 25.7; on the slice 310.3 ± 22.0 and 3480.4 ± 255.2"
# Table 5, 10 seeds.
SCORING = {
    "sls": {"kl": P(0.3515, 0.0260), "soft_brier": P(0.1553, 0.0110)},
    "soft": {"kl": P(0.3558, 0.0228), "soft_brier": P(0.1548, 0.0096)},
    "majority": {"kl": P(0.5746, 0.0397), "soft_brier": P(0.1943, 0.0152)},
    "label_smoothing": {"kl": P(0.4726, 0.0204), "soft_brier": P(0.1786, 0.0094)},
    "mixup": {"kl": P(0.3988, 0.0123), "soft_brier": P(0.1500, 0.0049)},
}
# Section 5.2: smooth ECE, 10 seeds.
SMOOTH_ECE = {"sls": P3(0.019), "soft": P3(0.019), "majority": P3(0.082)}
# Table 6: lambda_max by votes per example, 5 seeds: on the eval split, and on the high-disagreement slice.
HESSIAN_SWEEP = {
    "sls": {
        5: (P1(114.0, 4.5), P1(478.7, 76.6)),
        10: (P1(114.1, 8.0), P1(369.1, 52.2)),
        25: (P1(97.5, 4.0), P1(277.8, 35.8)),
        50: (P1(98.9, 1.2), P1(312.4, 45.8)),
    },
    "soft": {
        5: (P1(241.4, 36.6), P1(1203.1, 158.2)),
        10: (P1(243.6, 47.9), P1(849.7, 296.3)),
        25: (P1(267.1, 43.7), P1(876.1, 235.4)),
        50: (P1(218.4, 20.0), P1(626.4, 38.3)),
    },
}
# Tables 7 to 9: AUROC by OOD set, detector and delivery. CIFAR-100's SLS and its p against soft labels are Table 8's:
# one-sided, since .0186 is 19 of the 1,024 signs of 10 seeds, and a two-sided p has an even number of them.
OOD_NOTES = {
    "cifar100": "The paper's p (its Table 8) are one-sided; its 5-seed SLS (Table 9) has energy 0.8163, MSP 0.8003 "
    "and KNN 0.8019.",
}
OOD = {
    "svhn": {
        "energy": {
            "soft": P(0.8634, 0.0429),
            "multipass": P(0.8858, 0.0255),
            "deterministic_control": P(0.8890, 0.0253),
            "sls": P(0.8788, 0.0261),
        },
        "msp": {
            "soft": P(0.8364, 0.0432),
            "multipass": P(0.8553, 0.0182),
            "deterministic_control": P(0.8643, 0.0193),
            "sls": P(0.8520, 0.0183),
        },
        "odin": {
            "soft": P(0.8650, 0.0429),
            "multipass": P(0.8871, 0.0242),
            "deterministic_control": P(0.8921, 0.0233),
            "sls": P(0.8812, 0.0254),
        },
        "entropy": {
            "soft": P(0.8527, 0.0445),
            "multipass": P(0.8714, 0.0212),
            "deterministic_control": P(0.8793, 0.0233),
            "sls": P(0.8660, 0.0208),
        },
        "margin": {
            "soft": P(0.8112, 0.0436),
            "multipass": P(0.8323, 0.0126),
            "deterministic_control": P(0.8419, 0.0136),
            "sls": P(0.8326, 0.0177),
        },
        "knn": {
            "soft": P(0.7974, 0.0284),
            "multipass": P(0.7836, 0.0250),
            "deterministic_control": P(0.7788, 0.0354),
            "sls": P(0.7741, 0.0295),
        },
    },
    "cifar100": {
        "energy": {
            "soft": P(0.8096),
            "multipass": P(0.8185),
            "deterministic_control": P(0.8183),
            "sls": P(0.8185, p=0.0186),
        },
        "odin": {"soft": P(0.8107), "sls": P(0.8189, p=0.0186)},
        "entropy": {"soft": P(0.8082), "sls": P(0.8132, p=0.0801)},
        "msp": {
            "soft": P(0.7972),
            "multipass": P(0.8032),
            "deterministic_control": P(0.8006),
            "sls": P(0.8029, p=0.0654),
        },
        "knn": {
            "soft": P(0.8009),
            "multipass": P(0.8053),
            "deterministic_control": P(0.8050),
            "sls": P(0.8031, p=0.3125),
        },
        "margin": {"soft": P(0.7779), "sls": P(0.7833, p=0.0801)},
    },
}
# Figures 7, 9, 11 and 12, and their text.
GRADIENT_VARIANCE = P3(0.939)
BARRIER = P2(2.05)
CKA = {"sls": P3(0.920), "soft": P3(0.887)}
GRADCAM = {"sls": (P3(0.901), P3(0.861)), "soft": (P3(0.804), P3(0.756))}
# Section 5.1: per-seed Spearman correlations of the sparse target's JS distance and the gain, over methods and K.
SPARSE_CORRELATION = (0.05, 0.16)
# Figure 8: epochs by which SLS is earlier than soft labels.
EARLIER_95, EARLIER_BEST = 35.7, 47.2
# The other paper's abstract: averages over its data sets, soft against majority labels.
KL_REDUCTION, CORRELATION_GAIN = 0.32, 0.61
