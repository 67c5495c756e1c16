"""Tables of a sweep: values worked out by hand, and every format to the letter."""

import re
from typing import Any

import pytest
from rich.console import Console

from trustmix.sweeps.table_formats import cells_to_csv, runs_to_csv, to_latex, to_markdown, to_rich_table
from trustmix.sweeps.tables import MeanStd, RunResult, pivot, setting_label

OVER: dict[str, list[Any]] = {"rule": ["avg", {"tau": 0.4}], "split.classes_per_client": [2, 3]}


def result(rule: Any, classes: int, seed: int, best: float | None, own: float = 0.5) -> RunResult:
    summary = {"best_accuracy": best, "final_local_accuracy": own, "best_round": 1, "seconds": 2.5}
    return RunResult({"rule": rule, "split.classes_per_client": classes}, seed, summary)


RESULTS = [
    result("avg", 2, 0, 0.2, own=0.9),
    result("avg", 2, 1, 0.4, own=0.8),
    result("avg", 2, 2, 0.6, own=0.7),
    result("avg", 3, 0, 0.5),
    result({"tau": 0.4}, 2, 0, 0.39),
]
"""The first cell: mean 0.4, deviations -0.2, 0, 0.2, so the variance is 0.08 / 2 and the standard deviation 0.2."""


def test_a_value_is_the_mean_and_the_standard_deviation_with_n_minus_1() -> None:
    value = MeanStd.of([0.2, 0.4, 0.6])
    assert [value.mean, value.std, value.n] == pytest.approx([0.4, 0.2, 3])
    assert value.percent() == "40.0 ± 20.0"
    assert MeanStd.of([1.0, 2.0, 4.0, 5.0]).std == pytest.approx((10 / 3) ** 0.5)  # squares 4 + 1 + 1 + 4, by 4 - 1


def test_a_single_seed_shows_no_deviation_and_no_seed_shows_no_value() -> None:
    assert MeanStd.of([0.4734]).percent() == "47.3"
    assert MeanStd.of([]).percent() == "-"
    assert MeanStd.of([None, 0.5]) == MeanStd(0.5, None, 1)


def test_the_last_setting_makes_the_columns_and_the_best_of_each_is_bold_in_markdown() -> None:
    assert to_markdown(pivot(OVER, RESULTS)) == (
        "| rule | classes_per_client=2 | classes_per_client=3 |\n"
        "| --- | ---: | ---: |\n"
        "| AVG | **40.0 ± 20.0** | **50.0** |\n"
        "| tau=0.4 | 39.0 | - |\n"
        "\n"
        "Accuracy of the best round in per cent, mean ± standard deviation over 1 to 3 seeds.\n"
    )


def test_rules_as_columns_need_no_key() -> None:
    over: dict[str, list[Any]] = {"split.classes_per_client": [3, 2], "rule": ["avg"]}
    assert to_markdown(pivot(over, RESULTS)).splitlines()[:4] == [
        "| classes_per_client | AVG |",
        "| --- | ---: |",
        "| 3 | **50.0** |",
        "| 2 | 40.0 ± 20.0 |",
    ]


def test_one_setting_makes_rows_and_one_column() -> None:
    results = [RunResult({"rule": rule}, 0, {"best_accuracy": best}) for rule, best in (("uwa", 0.25), ("suwa", 0.75))]
    assert to_markdown(pivot({"rule": ["uwa", "suwa", "alone"]}, results)) == (
        "| rule | accuracy |\n| --- | ---: |\n| UWA | 25.0 |\n| sUWA | **75.0** |\n| alone | - |\n"
        "\nAccuracy of the best round in per cent.\n"
    )


def test_three_settings_make_a_row_for_every_pair_and_keys_that_look_alike_stay_whole() -> None:
    over = {"data.name": ["digits"], "model.name": ["mlp", "cnn"], "rule": ["avg"]}
    table = pivot(
        over, [RunResult({"data.name": "digits", "model.name": "cnn", "rule": "avg"}, 0, {"best_accuracy": 1})]
    )
    assert list(table.row_keys) == ["data.name", "model.name"]
    assert table.rows == [["digits", "mlp"], ["digits", "cnn"]]
    assert [row[0].percent() for row in table.values] == ["-", "100.0"]


def test_latex_is_a_booktabs_tabular_with_the_key_over_its_values() -> None:
    assert to_latex(pivot(OVER, RESULTS)) == (
        "% Accuracy of the best round in per cent, mean +- standard deviation over 1 to 3 seeds. Needs booktabs.\n"
        "\\begin{tabular}{lrr}\n"
        "\\toprule\n"
        "& \\multicolumn{2}{c}{classes\\_per\\_client} \\\\\n"
        "\\cmidrule(lr){2-3}\n"
        "rule & 2 & 3 \\\\\n"
        "\\midrule\n"
        "AVG & \\textbf{40.0 $\\pm$ 20.0} & \\textbf{50.0} \\\\\n"
        "tau=0.4 & 39.0 & - \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
    )


def test_a_terminal_shows_the_best_in_bold() -> None:
    console = Console(force_terminal=True, width=100, color_system="standard", no_color=True, record=True)
    console.print(to_rich_table(pivot(OVER, RESULTS)))
    styled = console.export_text(styles=True)
    assert re.search(r"\x1b\[1m *40\.0 ± 20\.0\x1b\[0m", styled)
    assert not re.search(r"\x1b\[1m *39\.0", styled)


def test_nothing_is_bold_where_there_is_nothing_to_compare() -> None:
    assert "**" not in to_markdown(pivot({"rule": ["avg"], "split.classes_per_client": [2, 3]}, RESULTS))


def test_the_long_form_has_one_line_per_combination_in_fractions() -> None:
    header, *lines = cells_to_csv(OVER, RESULTS).splitlines()
    assert header == "rule,split.classes_per_client,accuracy_mean,accuracy_std,n,final_local_accuracy_mean"
    rule, classes, mean, std, n, own = lines[0].split(",")
    assert (rule, classes, n) == ("avg", "2", "3")
    assert [float(mean), float(std), float(own)] == pytest.approx([0.4, 0.2, 0.8])
    assert lines[1:] == ["avg,3,0.5,,1,0.5", "tau=0.4,2,0.39,,1,0.5", "tau=0.4,3,,,0,"]


def test_runs_are_written_one_per_line_with_their_summary() -> None:
    header, first, *others = runs_to_csv(OVER, RESULTS).splitlines()
    assert header.startswith("rule,split.classes_per_client,seed,best_accuracy,best_round,final_accuracy,")
    assert first == "avg,2,0,0.2,1,,0.9,,,2.5,,,"
    assert len(others) == 4


def test_rules_have_the_names_of_the_registry_and_other_words_are_left_alone() -> None:
    names = [setting_label("rule", rule) for rule in ("avg", "uwa", "suwa", "most-confident", "unknown")]
    assert names == ["AVG", "UWA", "sUWA", "most confident", "unknown"]
    assert setting_label("model.kind", "avg") == "avg"
