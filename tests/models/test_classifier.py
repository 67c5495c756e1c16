"""Classifiers of scikit-learn and of boosting libraries as models: logits, soft labels, states without pickles."""

import io
import zipfile
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier

from trustmix import StorageError, TrustmixError
from trustmix.models import MODELS, ClassifierModel, ModelFactory, as_model, validate_model
from trustmix.models.classifier import FLOOR, MIN_WEIGHT, soft_rows

X, Y = (torch.as_tensor(part) for part in load_iris(return_X_y=True))
NAMES = ["gradient-boosting", "random-forest", "logistic-regression", "xgboost", "lightgbm"]
FEW: dict[str, dict[str, Any]] = {
    "gradient-boosting": {"max_iter": 5},
    "random-forest": {"n_estimators": 8},
    "xgboost": {"n_estimators": 5},
    "lightgbm": {"n_estimators": 5},
}


def build(name: str, classes: int = 3, client: str = "0") -> ClassifierModel:
    model = ModelFactory(name, options=FEW.get(name, {}), shape=(4,), classes=classes, client=client)()
    assert isinstance(model, ClassifierModel)
    return model


@pytest.mark.parametrize("name", NAMES)
def test_every_named_classifier_is_restored_from_its_state_to_the_same_logits(name: str) -> None:
    library = name if name in ("xgboost", "lightgbm") else "sklearn"
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'trustmix[sklearn,boosting]'")
    model, again = build(name), build(name)
    model.fit(X, Y, seed=7)
    again.load_state_dict(model.state_dict())
    assert torch.equal(model(X), again(X))
    assert float((model(X).argmax(1) == Y).double().mean()) > 0.9
    again.fit(X, Y, seed=7)
    assert torch.equal(model(X), again(X))
    assert name in MODELS


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_to_two_classes_after_one_to_three_is_that_of_a_new_model(name: str) -> None:
    library = name if name in ("xgboost", "lightgbm") else "sklearn"
    pytest.importorskip(library, reason=f"{library} is not installed: pip install 'trustmix[sklearn,boosting]'")
    model, restored, new = build(name), build(name), build(name)
    model.fit(X, Y, seed=7)
    restored.load_state_dict(model.state_dict())
    for each in (model, restored, new):
        each.fit(X[Y < 2], Y[Y < 2], seed=8)
    assert torch.equal(model(X), new(X))
    assert torch.equal(restored(X), new(X))


def test_logits_are_the_logarithms_of_the_classifiers_probabilities() -> None:
    model = ClassifierModel(GaussianNB(), 3)
    model.fit(X, Y)
    expected = np.maximum(GaussianNB().fit(X.numpy(), Y.numpy()).predict_proba(X.numpy()), FLOOR)
    torch.testing.assert_close(
        model(X).double().exp(), torch.from_numpy(expected / expected.sum(1, keepdims=True)), atol=1e-6, rtol=1e-4
    )


def test_a_class_that_the_client_has_not_seen_is_the_least_probable_and_columns_are_not_mixed_up() -> None:
    model = build("logistic-regression", classes=5)
    own = Y != 0
    model.fit(X[own], Y[own] + 2)  # classes 3 and 4 of five
    found = model(X[own])
    assert float((found.argmax(1) == Y[own] + 2).double().mean()) > 0.9
    assert torch.all(found[:, :3].exp() < 2 * FLOOR)
    torch.testing.assert_close(found.exp().sum(1), torch.ones(len(found)))


def test_a_client_with_one_class_predicts_that_class_and_keeps_it_in_its_state() -> None:
    model, again = (build("logistic-regression") for _ in range(2))
    model.fit(X[:50], Y[:50] + 1)
    again.load_state_dict(model.state_dict())
    for one in (model, again):
        assert one(X).argmax(1).unique().tolist() == [1]


def test_a_classifier_that_was_never_fitted_finds_all_classes_equally_probable() -> None:
    model, again = build("random-forest"), build("random-forest")
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(X[:5]).exp(), torch.full((5, 3), 1 / 3))


@settings(deadline=None, max_examples=50)
@given(arrays(np.float64, st.tuples(st.integers(1, 8), st.integers(2, 6)), elements=st.floats(0, 1)))
def test_soft_labels_become_rows_whose_weights_add_up_to_one_for_each_sample(raw: Any) -> None:
    teacher = torch.from_numpy((raw + 1e-9) / (raw + 1e-9).sum(1, keepdims=True))
    inputs, labels, weights = soft_rows(torch.arange(len(raw)).double().unsqueeze(1), teacher)
    assert len(inputs) == len(labels) == len(weights) == int((teacher >= MIN_WEIGHT).sum())
    sums = torch.zeros(len(raw)).double().index_add_(0, inputs[:, 0].long(), weights)
    torch.testing.assert_close(sums, torch.ones(len(raw)).double())


def test_a_fit_to_soft_labels_is_the_weighted_fit_of_scikit_learn() -> None:
    teacher = torch.softmax(torch.randn(150, 3, generator=torch.Generator().manual_seed(0)), 1)
    model = ClassifierModel(LogisticRegression(max_iter=1000), 3)
    model.fit(*soft_rows(X, teacher))
    rows = np.repeat(X.numpy(), 3, 0)
    expected = LogisticRegression(max_iter=1000).fit(rows, np.tile(np.arange(3), 150), teacher.numpy().flatten())
    np.testing.assert_allclose(model(X).exp().numpy(), expected.predict_proba(X.numpy()), atol=0.01)


class Unknown(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of the user's own, which skops does not know."""

    def fit(self, x: Any, y: Any, sample_weight: Any = None) -> "Unknown":
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, x: Any) -> Any:
        return np.full((len(x), len(self.classes_)), 1 / len(self.classes_))


def unknown(shape: tuple[int, ...], classes: int) -> Unknown:
    return Unknown()


@pytest.mark.parametrize(
    ("build_it", "sentence"),
    [
        (lambda: as_model(KNeighborsClassifier(), 3), "KNeighborsClassifier cannot learn from a teacher"),
        (lambda: as_model(object(), 3), "object lacks fit, get_params, set_params, predict_proba"),
    ],
)
def test_what_cannot_be_a_model_is_refused_in_a_sentence(build_it: Any, sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        build_it()


def test_a_classifier_that_cannot_be_saved_without_pickles_is_refused_before_it_learns() -> None:
    factory = ModelFactory(source=f"{__name__}:unknown", shape=(4,), classes=3)
    with pytest.raises(TrustmixError, match=r"A Unknown cannot be saved without pickles: it contains .*Unknown"):
        validate_model(factory, X[:2])


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("sklearn", {"classifier": "RandomForestClasifier"}, 'Did you mean "RandomForestClassifier"'),
        ("sklearn", {"classifier": "RidgeClassifier"}, "RidgeClassifier lacks predict_proba"),
        ("random-forest", {"n_estimators": -3}, 'The model "random-forest" fails on inputs'),
        ("random-forest", {"trees": 3}, 'The model "random-forest" could not be built'),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(name: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TrustmixError, match=sentence):
        validate_model(ModelFactory(name, options=options, shape=(4,), classes=3), X[:2])


def test_token_ids_are_refused() -> None:
    with pytest.raises(TrustmixError, match='"random-forest" takes numbers, and the inputs are token ids'):
        validate_model(ModelFactory("random-forest", shape=(4,), classes=3), torch.zeros(2, 4, dtype=torch.int32))


def test_a_state_with_foreign_types_or_garbage_is_refused_and_nothing_of_it_is_run() -> None:
    model = build("logistic-regression")
    model.fit(X, Y)
    data = bytes(model.state_dict()["_extra_state"].numpy())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w") as archive:
        for name, content in parts.items():
            foreign = content.replace(b"sklearn.linear_model._logistic", b"subprocess")
            archive.writestr(name, foreign.replace(b'"LogisticRegression"', b'"Popen"'))
    for bad, sentence in ((changed.getvalue(), "subprocess.Popen"), (b"no zip", "cannot be read")):
        state = {"_extra_state": torch.frombuffer(bytearray(bad), dtype=torch.uint8)}
        with pytest.raises((TrustmixError, StorageError), match=sentence):
            build("logistic-regression").load_state_dict(state)
