"""Classifiers without layers by name: boosted trees, random forests, logistic regression, any other of scikit-learn.

Further keys of `[model]` are parameters of the classifier, such as `n_estimators`. The seed and the number of threads
are set by the client.
"""

from typing import Any

from trustmix.errors import TrustmixError
from trustmix.imports import require_extra
from trustmix.models.classifier import ClassifierModel
from trustmix.models.registry import MODELS
from trustmix.registry import did_you_mean


@MODELS.register("gradient-boosting")
def gradient_boosting(
    shape: tuple[int, ...],  # noqa: ARG001 - the interface of models
    classes: int,
    *,
    min_samples_leaf: int = 5,
    **options: Any,
) -> ClassifierModel:
    """Boosted trees of scikit-learn (`HistGradientBoostingClassifier`); leaves are small, as clients' data are.

    Examples
    --------
    >>> gradient_boosting((4,), 3, max_iter=20).classifier.max_iter
    20
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    return ClassifierModel(HistGradientBoostingClassifier(min_samples_leaf=min_samples_leaf, **options), classes)


@MODELS.register("random-forest")
def random_forest(shape: tuple[int, ...], classes: int, **options: Any) -> ClassifierModel:  # noqa: ARG001
    """A random forest of scikit-learn.

    Examples
    --------
    >>> random_forest((4,), 3, n_estimators=20).classifier.n_estimators
    20
    """
    from sklearn.ensemble import RandomForestClassifier

    return ClassifierModel(RandomForestClassifier(**options), classes)


@MODELS.register("logistic-regression")
def logistic_regression(
    shape: tuple[int, ...],  # noqa: ARG001 - the interface of models
    classes: int,
    *,
    max_iter: int = 1000,
    **options: Any,
) -> ClassifierModel:
    """A logistic regression of scikit-learn on standardised columns.

    Examples
    --------
    >>> logistic_regression((4,), 3, C=0.1).classifier.steps[-1][0]
    'logisticregression'
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=max_iter, **options))
    return ClassifierModel(pipeline, classes)


@MODELS.register("xgboost")
def xgboost(shape: tuple[int, ...], classes: int, **options: Any) -> ClassifierModel:  # noqa: ARG001
    """Boosted trees of XGBoost (`XGBClassifier`).

    Examples
    --------
    >>> xgboost((4,), 3, n_estimators=20).classifier.n_estimators
    20
    """
    library = require_extra("xgboost", "model.name = xgboost", "boosting")
    return ClassifierModel(library.XGBClassifier(**{"n_jobs": 1, **options}), classes)


@MODELS.register("lightgbm")
def lightgbm(
    shape: tuple[int, ...],  # noqa: ARG001 - the interface of models
    classes: int,
    *,
    min_child_samples: int = 5,
    **options: Any,
) -> ClassifierModel:
    """Boosted trees of LightGBM (`LGBMClassifier`); leaves are small, as clients' data are.

    Examples
    --------
    >>> lightgbm((4,), 3, n_estimators=20).classifier.n_estimators
    20
    """
    library = require_extra("lightgbm", "model.name = lightgbm", "boosting")
    fixed = {"n_jobs": 1, "verbosity": -1, "deterministic": True, "force_row_wise": True}
    model = library.LGBMClassifier(min_child_samples=min_child_samples, **{**fixed, **options})
    return ClassifierModel(model, classes)


@MODELS.register("sklearn")
def sklearn_classifier(
    shape: tuple[int, ...],  # noqa: ARG001 - the interface of models
    classes: int,
    *,
    classifier: str,
    **options: Any,
) -> ClassifierModel:
    """Any classifier of scikit-learn by the name of its class.

    Parameters
    ----------
    shape, classes
        As of every model.
    classifier
        The name of a class, such as "ExtraTreesClassifier".
    options
        Its parameters.

    Raises
    ------
    TrustmixError
        If scikit-learn has no such classifier, or it has no probabilities or takes no weights of samples.

    Examples
    --------
    >>> sklearn_classifier((4,), 3, classifier="ExtraTreesClassifier", max_depth=3).classifier
    ExtraTreesClassifier(max_depth=3)
    """
    from sklearn.utils import all_estimators

    known = dict(all_estimators(type_filter="classifier"))
    if classifier not in known:
        raise TrustmixError(f'scikit-learn has no classifier "{classifier}".{did_you_mean(classifier, known)}')
    return ClassifierModel(known[classifier](**options), classes)
