"""Geometry, OOD detection and representations: plain functions of a model, or two, and batches of (inputs, p)."""

from .barrier import LossBarrier, loss_barrier
from .cka import linear_cka
from .gradcam import GradCamStability, grad_cam, gradcam_stability
from .gradient_variance import GradientVariance, gradient_variance, sampled_gradient_variance
from .hessian import HessianSummary, hessian_summary
from .ood import OODSettings, ood_report

__all__ = [
    "GradCamStability",
    "GradientVariance",
    "HessianSummary",
    "LossBarrier",
    "OODSettings",
    "grad_cam",
    "gradcam_stability",
    "gradient_variance",
    "hessian_summary",
    "linear_cka",
    "loss_barrier",
    "ood_report",
    "sampled_gradient_variance",
]
