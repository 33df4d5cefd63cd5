"""The scores as `evaluate` metrics: `load_metric("soft_nll")` here, and the folder `votes_metric` as a Hub Space."""

from __future__ import annotations

from typing import Any

from .votes_metric.votes_metric import VotesMetric


def load_metric(name: str | None = None, **options: Any) -> VotesMetric:
    """The metric that `evaluate.load(<folder or Space>, name)` gives, without copying a script.

    Args:
        name: a score; without it all of them in one metric.
        options: those of [`evaluate.Metric`]: `num_process`, `process_id`, `experiment_id`, `keep_in_memory`, ...
    """
    return VotesMetric(config_name=name, **options)
