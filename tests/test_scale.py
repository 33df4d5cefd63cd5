"""Where the sign turns: settings that differ in one number."""

from __future__ import annotations

import csv
import json

import pytest
from run_directories import write_run

from hf_softlabel.experiments.report import build_report, write_report
from hf_softlabel.experiments.runs import find_runs
from hf_softlabel.experiments.scale import memorised, scale_pictures, scale_tables
from hf_softlabel.experiments.setting import settings_of

# Best soft NLL of soft labels and multipass, by training size: multipass is worse at 4,000, better at 1,000.
BEST = {1000: (1.5, 1.4), 2000: (1.2, 1.2), 4000: (0.8, 0.9)}


def make_runs(root, key="train_size", seeds=3, **options):
    for size, (soft, multipass) in BEST.items():
        for delivery, best in (("soft", soft), ("multipass", multipass)):
            for seed in range(seeds):
                score = best + 0.01 * seed
                path = write_run(
                    root / f"{key}{size}-{delivery}-{seed}-{len(options)}",
                    delivery,
                    seed,
                    scores={"soft_nll": score},
                    history=[2.0, score, score + 0.25],
                    **{"votes_per_example": 5, key: size, **options},
                )
                metrics = json.loads((path / "metrics.json").read_text())
                (path / "metrics.json").write_text(json.dumps(metrics | {"train_entropy": 0.3}))
                lines = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
                kept = [json.dumps(line | {"train_loss": 1.0 - 0.2 * i}) + "\n" for i, line in enumerate(lines)]
                (path / "history.jsonl").write_text("".join(kept))


def tables_of(root):
    found = find_runs(root)
    settings, _ = settings_of(found.runs, found.pairs)
    return settings, scale_tables(settings)


def test_a_row_per_size_with_the_best_the_last_and_what_was_memorised(tmp_path):
    make_runs(tmp_path)
    _, (table,) = tables_of(tmp_path)
    assert table.key == "scale_train_size_k5" and table.rows == ("1,000", "2,000", "4,000")
    titles = [column.title for column in table.columns]
    assert titles == [
        *("Soft labels, best checkpoint", "Multipass, best checkpoint", "Soft labels, last epoch"),
        *("Multipass, last epoch", "Soft labels, training loss above its floor"),
        "Multipass, training loss above its floor",
    ]
    assert [table.entry(i, 0).mean for i in range(3)] == pytest.approx([1.51, 1.21, 0.81])
    assert [table.entry(i, 3).mean for i in range(3)] == pytest.approx([1.66, 1.46, 1.16])
    # Hand-worked: the last of 1.0, 0.8, 0.6, less a floor of 0.3.
    assert table.entry(0, 4).mean == pytest.approx(0.3)
    # Each size is tested against soft labels of the same size.
    assert [table.entry(i, 1).test.mean for i in range(3)] == pytest.approx([-0.1, 0, 0.1])
    assert [table.entry(i, 3).test.mean for i in range(3)] == pytest.approx([-0.1, 0, 0.1])
    assert table.entry(0, 0).test is None and table.entry(0, 5).test is None


def test_the_gain_is_drawn_with_its_sign(tmp_path):
    make_runs(tmp_path)
    settings, _ = tables_of(tmp_path)
    (picture,) = scale_pictures(settings)
    best = picture.figure.axes[0]
    means = next(c for c in best.containers if c.get_label() is not None)
    assert list(means.lines[0].get_ydata()) == pytest.approx([0.1, 0, -0.1])
    assert "3 paired seeds" in picture.caption


def test_epochs_and_two_families_have_files_of_their_own(tmp_path):
    make_runs(tmp_path / "runs", "num_train_epochs", train_size=1000)
    make_runs(tmp_path / "runs", "num_train_epochs", train_size=1000, width=0.5)
    _, tables = tables_of(tmp_path / "runs")
    assert [table.key for table in tables if "epochs" in table.key] == [
        "scale_num_train_epochs_k5",
        "scale_num_train_epochs_k5_2",
    ]
    # The width differs too: at each number of epochs there are two.
    assert sum(table.key.startswith("scale_width") for table in tables) == 3
    write_report(build_report(tmp_path / "runs"), tmp_path / "report")
    with (tmp_path / "report" / "tables" / "scale_num_train_epochs_k5_2.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["row"] for row in rows} == {"1,000", "2,000", "4,000"}
    assert "figures/scale_num_train_epochs_k5.png" in (tmp_path / "report" / "report.md").read_text()


def test_settings_that_differ_in_more_are_not_compared(tmp_path):
    for size, rate in ((1000, 0.1), (2000, 0.05)):
        for delivery in ("soft", "sls"):
            write_run(tmp_path / f"{size}{delivery}", delivery, 0, train_size=size, learning_rate=rate)
    assert tables_of(tmp_path)[1] == []


def test_runs_without_a_training_loss_have_no_such_column(tmp_path):
    for size in (1000, 2000):
        for delivery in ("soft", "sls"):
            write_run(tmp_path / f"{size}{delivery}", delivery, 0, train_size=size)
    settings, (table,) = tables_of(tmp_path)
    assert memorised(settings[0].runs[0]) is None
    assert len(table.columns) == 4 and table.missing() == []
