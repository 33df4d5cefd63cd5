"""The options of recipes for speed: evaluation goes in larger batches than training."""

from __future__ import annotations

from pathlib import Path

from hf_softlabel.config import read_recipe

RECIPES = Path(__file__).parents[1] / "recipes"


def test_recipes_evaluate_in_larger_batches_than_they_train_in_but_small_ones_on_images_not_in_much_larger():
    paths = [path for name in ("cifar10h", "chaosnli", "popquorn") for path in (RECIPES / name).rglob("*.yaml")]
    assert len(paths) > 20
    for path in paths:
        recipe = read_recipe(path)
        training, evaluation = (recipe[f"per_device_{name}_batch_size"] for name in ("train", "eval"))
        assert training < evaluation, path
        if path.parent == RECIPES / "cifar10h" / "small":
            assert evaluation <= 256, f"{path} is for CPUs, where batches that outgrow the cache are slower"
