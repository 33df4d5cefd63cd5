"""Tables of a report: hand-worked means and tests, and the same numbers in every form."""

from __future__ import annotations

import csv
import io
import math
import re

import pytest
from run_directories import write_run

from hf_softlabel.experiments.findings import compared, headline, section_findings
from hf_softlabel.experiments.published import BARRIER, CKA, HESSIAN, MAIN, OOD, SWEEP
from hf_softlabel.experiments.runs import Pair, find_runs
from hf_softlabel.experiments.same_target import best_epoch, epochs_to_95, setting_tables
from hf_softlabel.experiments.setting import settings_of
from hf_softlabel.experiments.soft_vs_hard import relative_change, soft_against_majority
from hf_softlabel.experiments.tables import (
    Column,
    Entry,
    Published,
    Table,
    best_rows,
    comparison_text,
    p_value,
    to_csv,
    to_latex,
    to_markdown,
    value_text,
    with_tests,
)


def small_table(**options) -> Table:
    entries = {
        (0, 0): Entry({0: 0.5, 1: 0.7, 2: 0.6}, paper=Published(0.55, 0.01, digits=3)),
        (1, 0): Entry({1: 0.5, 2: 0.5, 3: 9.0}, paper=Published(0.52, p=0.031)),
        (0, 1): Entry(),
        (1, 1): Entry({0: 100.0}),
        (2, 0): Entry(paper=Published(0.4)),
    }
    columns = (Column("soft NLL", True), Column("λ max_1 & 2", None, 1))
    return Table("t", "Title 5%", "Cells.", "delivery", columns, ("Soft labels", "SLS", "Mixup"), entries, **options)


def test_tests_pair_seeds_and_point_to_the_better_side():
    table = with_tests(small_table(reference="Soft labels", one_sided=True), lambda i, j: (0, j))
    entry = table.entry(1, 0)
    # Seeds 1 and 2 are in both: differences -.2 and -.1.
    assert entry.test.n == 2 and entry.test.mean == pytest.approx(-0.15)
    assert entry.p_better == entry.test.p_less == 0.25 and entry.test.p_two_sided == 0.5
    assert table.entry(1, 1).test is None and table.entry(0, 0).test is None
    assert "needs 5 seeds before any can pass Holm" in " ".join(table.notes)
    assert comparison_text(table, entry) == "p 0.25, Holm 0.25"
    two_sided = with_tests(small_table(reference="Soft labels"), lambda i, j: (0, j))
    assert comparison_text(two_sided, two_sided.entry(1, 0)) == "p 0.5, Holm 0.5"


def test_higher_is_better_turns_the_side():
    columns = (Column("accuracy", False),)
    entries = {(0, 0): Entry(dict.fromkeys(range(5), 0.5)), (1, 0): Entry({s: 0.6 + s / 100 for s in range(5)})}
    table = Table("t", "T", "C", "d", columns, ("a", "b"), entries, reference="a", one_sided=True)
    tested = with_tests(table, lambda i, j: (0, j))
    assert tested.entry(1, 0).p_better == 0.03125
    assert best_rows(tested, 0) == {1}


def test_holm_is_over_a_column_or_over_the_whole_table():
    values = {s: float(s) for s in range(6)}
    better = [{s: v - 0.1 * (k + 1) - 0.001 * s for s, v in values.items()} for k in range(4)]
    entries = {(0, 0): Entry(values), (0, 1): Entry(values)}
    entries |= {(1 + k // 2, k % 2): Entry(row) for k, row in enumerate(better)}
    table = Table("t", "T", "C", "d", (Column("a", True), Column("b", True)), ("r", "x", "y"), entries, reference="r")
    whole = with_tests(table, lambda i, j: (0, j))
    assert [e.holm_two_sided for e in whole.tests] == pytest.approx([4 * 2 / 2**6] * 4)
    columns = with_tests(Table(**{**vars(table), "family_by_column": True}), lambda i, j: (0, j))
    assert [e.holm_two_sided for e in columns.tests] == pytest.approx([2 * 2 / 2**6] * 4)
    assert [e.holm_better for e in columns.tests] == pytest.approx([2 / 2**6] * 4)


def test_missing_cells_are_blank_and_listed():
    table = small_table()
    assert (
        value_text(table.entry(2, 0), table.columns[0]) == "" and value_text(table.entry(0, 1), table.columns[1]) == ""
    )
    assert table.missing() == ["Mixup", "Soft labels / λ max_1 & 2"]
    assert value_text(Entry({0: math.nan}), table.columns[0]) == "undefined"
    assert value_text(Entry({0: 0.5}), table.columns[0]) == "0.5000"
    assert value_text(Entry({0: 0.5, 1: 0.7}), table.columns[0]) == "0.6000 ± 0.1414"  # .2 / sqrt(2)
    assert p_value(0.03125) == "0.03125" and p_value(1.0) == "1" and p_value(1e-6) == "<0.0001"


def test_every_form_has_the_same_numbers():
    table = with_tests(small_table(reference="Soft labels"), lambda i, j: (0, j))
    lines = list(csv.DictReader(io.StringIO(to_csv([table]))))
    assert len(lines) == 6
    markdown, latex = to_markdown(table), to_latex(table)
    for i, row in enumerate(table.rows):
        for j, column in enumerate(table.columns):
            line = next(x for x in lines if (x["row"], x["column"]) == (row, column.title))
            entry = table.entry(i, j)
            if not entry.values:
                assert line["n"] == "0" and line["mean"] == ""
                continue
            mean = f"{float(line['mean']):.{column.digits}f}"
            text = value_text(entry, column)
            assert text.startswith(mean) and text in markdown and text.replace("±", r"$\pm$") in latex
            if line["sd"]:
                assert f"± {float(line['sd']):.{column.digits}f}" in text
            if line["p_two_sided"]:
                shown = f"p {p_value(float(line['p_two_sided']))}, Holm {p_value(float(line['holm_two_sided']))}"
                assert shown in markdown and shown in latex
    # The paper's figures have the paper's digits.
    assert "| 0.550 ± 0.010 |" in markdown and r"0.550 $\pm$ 0.010" in latex and "(p 0.031)" in latex
    assert r"$\lambda$ max\_1 \& 2" in latex and r"5\%" in latex
    assert lines[0]["seeds"] == "0 1 2" and lines[0]["values"] == "0.5 0.7 0.6"


@pytest.fixture
def sweep(tmp_path):
    """Five seeds of the sweep's K = 5 column and of the main comparison, with numbers that can be worked by hand."""
    hessian = {"lambda_max": 100.0, "trace": 1000.0, "lambda_max_converged": True, "trace_converged": True}
    for seed in range(5):
        for place, delivery in enumerate(("soft", "sls", "multipass")):
            write_run(
                tmp_path / f"{delivery}-5-{seed}",
                delivery,
                seed,
                {"soft_nll": 0.6 + seed / 100 - place * (0.02 + seed / 1000)},
                votes_per_example=5,
            )
            scale = 3 - place
            measured = {
                "hessian": {**hessian, "lambda_max": scale * 100.0 + seed, "high_disagreement": hessian},
                "ood": {"svhn": {"energy": {"auroc": 0.8 + place / 100}}},
                "gradient_variance": {"entropy_correlation": 0.9, "label_entropy_correlation": 0.99},
            }
            write_run(
                tmp_path / f"{delivery}-{seed}",
                delivery,
                seed,
                {"soft_nll": 0.5},
                measured,
                history=[1, 0.53, 0.51, 0.52],
            )
        write_run(tmp_path / f"majority-{seed}", "majority", seed, {"kl": 0.4, "entropy_correlation": 0.2})
        write_run(tmp_path / f"held-{seed}", "sls", seed, {"soft_nll": 0.7}, resample_every=5)
    (setting,), _ = settings_of(find_runs(tmp_path).runs, [])
    return setting


def by_key(tables) -> dict[str, Table]:
    assert len({table.key for table in tables}) == len(tables)
    return {table.key: table for table in tables}


def test_the_papers_tables_are_built_from_runs(sweep):
    tables = by_key(setting_tables(sweep))
    assert tables.keys() >= {
        *("sweep", "main", "family", "hessian", "scoring", "calibration", "ood_svhn"),
        *("resampling", "sparse", "dynamics", "gradient_variance"),
    }
    table = tables["sweep"]
    assert [column.title for column in table.columns] == ["K = 5", "K = 10", "K = 25", "K = 50"]
    sls = table.entry(table.rows.index("SLS"), 0)
    # .6 + s/100 - .02 - s/1000 over s = 0 .. 4: .58 + .009 * 2
    assert sls.mean == pytest.approx(0.598) and sls.test.mean == pytest.approx(-0.022)
    assert sls.p_better == 0.03125 and sls.holm_better == pytest.approx(2 * 0.03125)
    assert sls.paper == SWEEP["sls"][5]
    assert table.missing() == ["Deterministic control", "K = 10", "K = 25", "K = 50"]
    notes = " ".join(table.notes)
    assert "smallest one-sided p is 0.03125" in notes
    assert "The paper's 12 tests of 5 seeds cannot pass Holm either" in notes and "0.375; 8 seeds" in notes
    main = tables["main"]
    assert main.entry(main.rows.index("SLS"), 0).paper == MAIN["sls"]["soft_nll"]
    assert "Mixup" in main.missing() and main.entry(main.rows.index("Multipass"), 0).paper is None
    hessian = tables["hessian"]
    row = hessian.rows.index("SLS")
    assert hessian.entry(row, 0).mean == 202 and hessian.entry(row, 0).test.mean == -100
    assert hessian.entry(row, 0).paper == HESSIAN["sls"]["lambda_max"] and hessian.columns[0].digits == 1
    ood = tables["ood_svhn"]
    assert ood.entry(ood.rows.index("Multipass"), 0).mean == pytest.approx(0.82)
    assert ood.entry(ood.rows.index("Multipass"), 0).paper == OOD["svhn"]["energy"]["multipass"]
    probe = tables["resampling"]
    assert probe.rows == ("every epoch", "every 5 epochs", "every 10 epochs", "every 50 epochs")
    assert probe.entry(1, 0).test.mean == pytest.approx(0.2) and probe.entry(1, 0).test.p_two_sided == 0.0625
    assert "every 10 epochs" in probe.missing()
    # Soft labels stand in the family for context and are no part of its tests.
    family = tables["family"]
    assert family.entry(family.rows.index("Soft labels"), 0).test is None
    assert family.entry(family.rows.index("Multipass"), 0).test is not None


def test_another_data_set_has_no_figures_of_the_paper(tmp_path):
    for seed in range(2):
        for delivery in ("soft", "majority"):
            write_run(tmp_path / f"{delivery}-{seed}", delivery, seed, dataset="popquorn", subset="offensiveness")
    (setting,), _ = settings_of(find_runs(tmp_path).runs, [])
    for table in setting_tables(setting):
        assert table.source is None and not any(entry.paper for entry in table.entries.values())
        assert set(table.rows) <= {"Soft labels", "Majority vote"}


def test_dynamics_by_hand(sweep):
    run = sweep.get("soft")[0]
    # The best is .51; .53 is within .51 / .95 = .537.
    assert best_epoch(run) == 3 and epochs_to_95(run) == 2


def test_the_last_epoch_by_hand(tmp_path):
    for seed in range(5):
        for place, delivery in enumerate(("soft", "sls")):
            for k in (None, 5, 10):
                # The best of soft labels is the second of three evaluations; with 10 votes it is the last.
                last = 0.4 if k == 10 else 0.9 + seed / 100 - place * (0.1 + seed / 1000) - (k or 0) / 100
                history = [1.0, 0.5 + place, last]
                write_run(tmp_path / f"{delivery}-{k}-{seed}", delivery, seed, history=history, votes_per_example=k)
    (setting,), _ = settings_of(find_runs(tmp_path).runs, [])
    tables = by_key(setting_tables(setting))
    full, sweep = tables["last_epoch"], tables["last_epoch_sweep"]
    assert full.rows == sweep.rows == ("Soft labels", "SLS") and full.source is None
    # .9 + s/100 - .1 - s/1000 over s = 0 .. 4: .8 + .009 * 2; .05 less with 5 votes.
    assert full.entry(1, 0).mean == pytest.approx(0.818) and full.entry(1, 0).test.mean == pytest.approx(-0.102)
    assert full.entry(1, 0).test.p_two_sided == full.entry(1, 0).holm_two_sided == 0.0625
    assert [column.title for column in sweep.columns] == ["soft NLL, K = 5"]
    assert sweep.entry(1, 0).mean == pytest.approx(0.768)
    assert any("At the last epoch" in sentence for sentence in section_findings(setting, list(tables.values())))


def test_references_stand_beside_the_scores(tmp_path):
    # The constant's mean is .7. On their own seeds the majority is above it, and SLS below.
    constant = {0: 0.6, 1: 0.8}
    losses = {("soft", 0): 0.5, ("soft", 1): 0.5, ("majority", 0): 0.65, ("sls", 1): 0.75}
    write_run(tmp_path / "earlier", "label_smoothing", 0, {"soft_nll": 0.5})  # of a version that kept no references
    for (delivery, seed), loss in losses.items():
        for k in (None, 5):
            # The mean of the training votes is that of runs which had all of them.
            mean = {"soft_nll": constant[seed] if k is None else 9.0, "entropy_correlation": None}
            path, named = tmp_path / f"{delivery}-{k}-{seed}", {"floor": {"soft_nll": 0.3}, "train_mean": mean}
            write_run(path, delivery, seed, {"soft_nll": loss}, references=named, votes_per_example=k)
    (setting,), _ = settings_of(find_runs(tmp_path).runs, [])
    tables = by_key(setting_tables(setting))
    table = tables["references"]
    assert table.rows == ("The votes themselves", "Mean of the training votes") and not table.tests
    assert table.entry(1, 0).values == constant and not table.entry(0, 1).values
    assert value_text(table.entry(1, 3), table.columns[3]) == "undefined" and "**" not in to_markdown(table)
    (sentence,) = [s for s in section_findings(setting, [*tables.values()]) if "mean of the training votes" in s]
    assert sentence.endswith("on the same seeds: Majority vote.") and sentence in headline(setting, [*tables.values()])
    del tables["references"]
    assert sentence not in headline(setting, [*tables.values()])


@pytest.mark.parametrize(("history", "best"), [([1.0, 0.9, 0.8], True), ([0.8], True), ([1.0, 0.8, 0.9], False)])
def test_no_table_of_the_last_epoch_where_it_is_what_was_scored(tmp_path, history, best):
    for delivery in ("soft", "sls"):
        for k in (None, 5):
            options = {"votes_per_example": k, "load_best_model_at_end": best}
            write_run(tmp_path / f"{delivery}-{k}", delivery, 0, history=history, **options)
    (setting,), _ = settings_of(find_runs(tmp_path).runs, [])
    assert not {"last_epoch", "last_epoch_sweep"} & by_key(setting_tables(setting)).keys()


def test_what_was_measured_between_runs(sweep):
    runs = {
        (run.delivery, run.seed): run
        for run in sweep.runs
        if run.votes_per_example is None and run.resample_every == 1
    }
    barrier = {"barrier": 2.0, "reestimated_barrier": 0.5}
    gradcam = {"correlation": 0.9, "high_disagreement": 0.8}
    pairs = [
        Pair(runs["sls", 0], runs["sls", 1], {"cka": 0.9, "gradcam": gradcam}),
        Pair(runs["sls", 0], runs["sls", 2], {"cka": 0.8}),
        Pair(runs["soft", 0], runs["sls", 0], {"cka": 0.7, "barrier": barrier}),
        Pair(runs["soft", 0], runs["sls", 1], {"cka": 0.1, "barrier": barrier}),  # neither one method nor one seed
    ]
    tables = by_key(setting_tables(type(sweep)(sweep.name, sweep.runs, pairs)))
    within, across = tables["within"], tables["across"]
    assert within.unit == "pairs" and within.entry(0, 0).mean == pytest.approx(0.85)
    assert within.entry(0, 0).paper == CKA["sls"] and within.entry(0, 1).mean == 0.9 and not within.tests
    assert across.rows == ("Soft labels and SLS",)
    assert (across.entry(0, 0).mean, across.entry(0, 1).mean, across.entry(0, 2).mean) == (2.0, 0.5, 0.7)
    assert across.entry(0, 0).paper == BARRIER


def test_soft_against_majority_has_the_relative_changes(tmp_path):
    for name, kl in (("chaosnli", 0.2), ("popquorn", 0.3)):
        for seed in range(3):
            scores = {"kl": kl + seed / 100, "entropy_correlation": 0.3, "accuracy": 0.5}
            write_run(tmp_path / f"{name}-soft-{seed}", "soft", seed, scores, dataset=name)
            # 49, 50 and 51% of the majority's: the changes are -51, -50 and -49%.
            doubled = (kl + seed / 100) / (0.49 + seed / 100)
            scores = {"kl": doubled, "entropy_correlation": 0.2, "accuracy": 0.5}
            write_run(tmp_path / f"{name}-majority-{seed}", "majority", seed, scores, dataset=name)
    settings, _ = settings_of(find_runs(tmp_path).runs, [])
    table = soft_against_majority(settings)
    assert table.rows[-1] == "average over settings"
    change = [j for j, column in enumerate(table.columns) if "change" in column.title]
    for row in range(3):
        assert table.entry(row, change[0]).mean == pytest.approx(-50)
        assert table.entry(row, change[1]).mean == pytest.approx(50)
    assert table.entry(2, change[0]).paper.mean == -32 and table.entry(2, change[1]).paper.mean == 61
    assert table.entry(0, 1).test.p_two_sided == 0.25
    # Mean -50, SD 1, t of 2 degrees of freedom 4.303: half the interval is 2.48.
    assert table.notes[2] == (
        "average over settings: soft labels change KL by -50.0% (95% interval -52.5% to -47.5%) and entropy "
        "correlation by +50.0% (95% interval +50.0% to +50.0%)."
    )
    # Relative to a correlation around 0 there is no change.
    assert relative_change({0: 0.2, 1: 0.3}, {0: 0.1, 1: -0.01}) == {}
    assert soft_against_majority([]) is None
    assert best_rows(table, 0) == set()


def test_findings_claim_only_what_passes_holm(sweep):
    tables = setting_tables(sweep)
    text = " ".join(section_findings(sweep, tables))
    assert (
        "Annotator-count sweep: no comparison with Soft labels at K = 5 passes Holm, and with 5 paired seeds" in text
    )
    assert not re.search(r"λ max is lower", text)
    values = dict.fromkeys(range(8), 1.0)
    lower = {s: 0.5 - s / 100 for s in range(8)}
    columns = (Column("soft NLL", True),)
    entries = {
        (0, 0): Entry(values),
        (1, 0): Entry(lower),
        (2, 0): Entry({s: 1.0 + (-1) ** s / (s + 2) for s in range(8)}),
    }
    table = Table("main", "Main", "C", "d", columns, ("Soft labels", "SLS", "Mixup"), entries, reference="Soft labels")
    first, second = compared(with_tests(table, lambda i, j: (0, j)))
    assert first == (
        "Main: soft NLL is lower than that of Soft labels with SLS, by 0.5350 on average (two-sided p 0.007812, "
        "Holm 0.01562; 8 paired seeds)."
    )
    assert "the other comparison with Soft labels shows no significant difference" in second
    assert "does not show that there is none" in second


def test_no_direction_is_claimed_where_ranks_and_mean_point_to_different_sides():
    # Eleven small drops and one rise that is larger than all of them: by ranks lower, by the mean higher.
    first = dict.fromkeys(range(12), 0.5)
    second = {s: 0.5 - (s + 1) / 1000 for s in range(11)} | {11: 1.5}
    entries = {(0, 0): Entry(first), (1, 0): Entry(second)}
    table = Table("main", "Main", "C", "d", (Column("soft NLL", True),), ("Soft labels", "SLS"), entries)
    tested = with_tests(Table(**{**vars(table), "reference": "Soft labels"}), lambda i, j: (0, j))
    test = tested.entry(1, 0).test
    assert test.mean > 0 and test.lower and test.p_two_sided < 0.05
    (sentence,) = compared(tested)
    assert (
        "no direction is claimed" in sentence and "is higher than" not in sentence and "is lower than" not in sentence
    )


def test_an_undefined_score_is_not_the_best_and_a_reference_of_the_paper_alone_is_none(tmp_path):
    for seed in range(2):
        for delivery in ("sls", "multipass"):
            score = {"soft_nll": None} if delivery == "sls" else {"soft_nll": 0.5}
            write_run(tmp_path / f"{delivery}-{seed}", delivery, seed, score)
    (setting,), _ = settings_of(find_runs(tmp_path).runs, [])
    tables = by_key(setting_tables(setting))
    assert "undefined" in to_markdown(tables["main"]) and tables["main"].reference is None
    assert "Wilcoxon" not in tables["main"].caption and "Soft labels" in tables["main"].missing()
    text = " ".join(headline(setting, list(tables.values())))
    assert "undefined" not in text and "The lowest mean" not in text
    only = [table for key, table in tables.items() if key == "main"]
    assert "No test was made" in headline(setting, only)[-1]


def test_the_summary_says_once_that_nothing_passes(sweep):
    sentences = headline(sweep, setting_tables(sweep))
    silent = [sentence for sentence in sentences if "passes Holm" in sentence]
    assert len(silent) == 1 and silent[0].startswith("Nothing passes Holm in: Annotator-count sweep at K = 5 (5 ")
    assert (
        "Main comparison on soft NLL (5 paired seeds)" in silent[0] and "With so few seeds nothing could" in silent[0]
    )


def test_one_seed_makes_no_test_and_says_so(tmp_path):
    for delivery in ("soft", "sls"):
        write_run(tmp_path / delivery, delivery, 0)
    (setting,), _ = settings_of(find_runs(tmp_path).runs, [])
    tables = setting_tables(setting)
    assert not any(table.tests for table in tables)
    assert "No test was made: 1 seed" in section_findings(setting, tables)[-1]
