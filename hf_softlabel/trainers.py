"""A thin named subclass of [`VotesTrainer`] for each delivery."""

from __future__ import annotations

from .trainer import VotesTrainer


class SoftLabelTrainer(VotesTrainer):
    """Cross-entropy with the whole vote distribution."""

    delivery_name = "soft"


class SLSTrainer(VotesTrainer):
    """Stochastic label sampling: one label per example, sampled from its votes each epoch."""

    delivery_name = "sls"


class MultipassTrainer(VotesTrainer):
    """One vote per example and epoch, cycling through the real votes. Needs counts."""

    delivery_name = "multipass"


class DeterministicControlTrainer(VotesTrainer):
    """Multipass in another order of the same votes."""

    delivery_name = "deterministic_control"


class ShuffledSLSTrainer(VotesTrainer):
    """SLS with the votes of another example: a control that must fail."""

    delivery_name = "shuffled_sls"


class PosteriorSLSTrainer(VotesTrainer):
    """SLS from the Dirichlet posterior of the votes, for one to five votes per example. Needs counts."""

    delivery_name = "posterior_sls"


class MajorityTrainer(VotesTrainer):
    """The majority label, as nearly everybody trains."""

    delivery_name = "majority"


class LabelSmoothingTrainer(VotesTrainer):
    """The majority label, smoothed."""

    delivery_name = "label_smoothing"


class MixupTrainer(VotesTrainer):
    """Mixup of inputs and targets: pixels, or the embeddings of texts (for encoders)."""

    delivery_name = "mixup"
