"""A state with trees that point outside is refused; trees as they were fitted are not."""

from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.tree import DecisionTreeClassifier

from trustmix import StorageError
from trustmix.models.tree_validation import validate_trees

INPUTS = np.random.default_rng(0).normal(size=(200, 3))
LABELS = (INPUTS[:, 0] + INPUTS[:, 1] * INPUTS[:, 2] > 0).astype(int) + (INPUTS[:, 2] > 1)


@pytest.mark.parametrize(
    "classifier",
    [
        DecisionTreeClassifier(max_leaf_nodes=9),
        RandomForestClassifier(5),
        ExtraTreesClassifier(5),
        GradientBoostingClassifier(n_estimators=3),
        HistGradientBoostingClassifier(max_iter=3, categorical_features=[2]),
        make_pipeline(PolynomialFeatures(3), RandomForestClassifier(5)),
    ],
    ids=lambda classifier: type(classifier).__name__,
)
def test_fitted_trees_pass(classifier: Any) -> None:
    inputs = INPUTS.copy()
    inputs[:, 2] = np.abs(inputs[:, 2]).round()
    validate_trees(classifier.fit(inputs, LABELS))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("left_child", 10**6, "do not come after"),
        ("right_child", 0, "do not come after"),
        ("feature", 3, "not one of its 3"),
        ("feature", -5, "not one of its 3"),
    ],
)
def test_a_forged_tree_is_refused(name: str, value: int, sentence: str) -> None:
    forest = RandomForestClassifier(2, random_state=0).fit(INPUTS, LABELS)
    tree = forest.estimators_[1].tree_
    state = tree.__getstate__()
    state["nodes"][name][0] = value
    tree.__setstate__(state)
    with pytest.raises(StorageError, match=sentence):
        validate_trees(forest)


@pytest.mark.parametrize(("name", "value"), [("left", 10**6), ("right", 0), ("feature_idx", 3)])
def test_a_forged_tree_of_histograms_is_refused(name: str, value: int) -> None:
    boosted = HistGradientBoostingClassifier(max_iter=2).fit(INPUTS, LABELS)
    nodes = boosted._predictors[1][0].nodes
    nodes[name][0] = value
    with pytest.raises(StorageError):
        validate_trees(boosted)


def test_categories_that_are_not_there_are_refused() -> None:
    inputs = np.column_stack([INPUTS[:, :2], LABELS.astype(float)])
    boosted = HistGradientBoostingClassifier(max_iter=2, categorical_features=[2]).fit(inputs, LABELS)
    nodes = boosted._predictors[0][0].nodes
    nodes["bitset_idx"][nodes["is_categorical"] == 1] = 99
    with pytest.raises(StorageError, match="categories"):
        validate_trees(boosted)
