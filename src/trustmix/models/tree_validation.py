"""Trees in the state of a classifier: indices that point outside are refused before a prediction follows them.

scikit-learn follows the indices of a fitted tree without a check, so a file that another party wrote could make it read
foreign memory or walk in a circle.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from trustmix.errors import StorageError

Indices = npt.NDArray[np.integer[Any]]


def validate_trees(classifier: Any) -> None:
    """Check all trees of a classifier.

    Parameters
    ----------
    classifier
        A fitted classifier of any library; those without trees of scikit-learn pass.

    Raises
    ------
    StorageError
        If a tree has a child that does not come after it, or splits by a feature that the inputs do not have.

    Examples
    --------
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> validate_trees(DecisionTreeClassifier().fit([[0.0], [1.0]], [0, 1]))
    """
    for tree, features in _trees(classifier, 0, set()):
        if type(tree).__name__ == "Tree":
            split = np.flatnonzero((tree.children_left != -1) | (tree.children_right != -1))
            children, used = (tree.children_left[split], tree.children_right[split]), tree.feature[split]
            _validate(split, children, used, tree.node_count, features)
        else:
            nodes = tree.nodes
            split = np.flatnonzero(nodes["is_leaf"] == 0)
            categorical = nodes[split][nodes["is_categorical"][split] != 0]
            children, used = (nodes["left"][split], nodes["right"][split]), nodes["feature_idx"][split]
            _validate(split, children, used, len(nodes), features)
            if (categorical["bitset_idx"] >= len(tree.raw_left_cat_bitsets)).any():
                raise StorageError("A tree of the classifier has categories that are not in its state.")


def _trees(value: Any, features: int, visited: set[int]) -> Iterator[tuple[Any, int]]:
    """The trees inside a value, each with the number of features of the object that it is a part of."""
    if id(value) in visited:
        return
    visited.add(id(value))
    if type(value).__name__ in ("Tree", "TreePredictor"):
        yield value, features
    elif isinstance(value, dict):
        for part in value.values():
            yield from _trees(part, features, visited)
    elif isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == object):
        for part in np.ravel(value) if isinstance(value, np.ndarray) else value:
            yield from _trees(part, features, visited)
    elif type(value).__module__.partition(".")[0] == "sklearn" and hasattr(value, "__dict__"):
        own = getattr(value, "n_features_in_", features)
        yield from _trees(vars(value), int(own), visited)


def _validate(split: Indices, children: tuple[Indices, Indices], used: Indices, nodes: int, features: int) -> None:
    if any((side <= split).any() or (side >= nodes).any() for side in children):
        raise StorageError("A tree of the classifier has children that do not come after their parent.")
    if (used < 0).any() or (used >= features).any():
        raise StorageError(f"A tree of the classifier splits by a feature that is not one of its {features}.")
