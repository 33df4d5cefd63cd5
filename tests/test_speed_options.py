"""The options of recipes for speed: `torch_compile` needs a C++ compiler on a CPU, and says so before a run has begun;
evaluation goes in larger batches than training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hf_softlabel.cli import main
from hf_softlabel.config import read_recipe

RECIPES = Path(__file__).parents[1] / "recipes"
TEXT = RECIPES / "synthetic" / "text.yaml"
BUILD = """
import os, sys
from hf_softlabel import VotesError
from hf_softlabel.build import build_trainer
from hf_softlabel.config import parse_recipe
from hf_softlabel.splits import load_splits

def build(*options, compiler):
    os.environ["CXX"] = compiler
    model, data, training = parse_recipe(sys.argv[1], [*sys.argv[2:], *options])
    try:
        build_trainer(model, data, training, load_splits(data, training.seed))
    except VotesError as error:
        return str(error)

for compiler in ("mycc", "mycc -O2"):
    assert build(compiler=compiler) is None, compiler
for compiler in ("no-cc -O2", ""):
    assert f"{compiler!r} is not found" in build(compiler=compiler), compiler
    assert build("--torch_compile_backend", "eager", compiler=compiler) is None, "it compiles no C++"
    assert build("--torch_compile", "false", compiler=compiler) is None
"""
OPEN = """
import os, sys
from hf_softlabel.build import open_run
os.environ["CXX"] = "no-cc"
assert open_run(sys.argv[1])[0].evaluate()["eval_soft_nll"] > 0
"""


@pytest.fixture
def python(tmp_path):
    """Python with these words where the only program is `mycc`; in a process of its own, since `TrainingArguments`
    puts the option into the environment."""
    compiler = tmp_path / "bin" / "mycc"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)

    def run(*words: str | Path) -> subprocess.CompletedProcess:
        inherited = {key: value for key, value in os.environ.items() if key != "CXX"}
        environment = {**inherited, "PATH": str(compiler.parent), "OMP_NUM_THREADS": "1"}
        options = ["--torch_compile", "--use_cpu", "--output_dir", tmp_path / "out"]
        words = [sys.executable, *map(str, [*words, *options])]
        return subprocess.run(words, env=environment, capture_output=True, text=True)

    return run


def test_a_run_without_a_compiler_is_one_clear_line_and_no_directory(python, tmp_path):
    done = python("-m", "hf_softlabel", "train", TEXT)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    line = done.stderr.splitlines()[-1]
    assert "is not found: install " in line and "leave torch_compile out" in line
    assert not (tmp_path / "out").exists()


def test_the_compiler_is_the_one_that_the_environment_names(python):
    done = python("-c", BUILD, TEXT)
    assert done.returncode == 0, done.stderr


def test_a_run_that_was_compiled_elsewhere_is_measured_without_a_compiler(python, tmp_path):
    run = tmp_path / "run"
    assert main(["train", str(TEXT), "--num_train_epochs", "1", "--output_dir", str(run)]) == 0
    config = yaml.safe_load((run / "config.yaml").read_text())
    config |= {"torch_compile": True, "torch_compile_backend": "inductor"}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    done = python("-c", OPEN, run)
    assert done.returncode == 0, done.stderr


def test_recipes_evaluate_in_larger_batches_than_they_train_in_but_small_ones_on_images_not_in_much_larger():
    paths = [path for name in ("cifar10h", "chaosnli", "popquorn") for path in (RECIPES / name).rglob("*.yaml")]
    assert len(paths) > 20
    for path in paths:
        recipe = read_recipe(path)
        training, evaluation = (recipe[f"per_device_{name}_batch_size"] for name in ("train", "eval"))
        assert training < evaluation, path
        if path.parent == RECIPES / "cifar10h" / "small":
            assert evaluation <= 256, f"{path} is for CPUs, where batches that outgrow the cache are slower"
