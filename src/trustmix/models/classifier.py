"""Any classifier with `fit` and `predict_proba` as a model: scikit-learn's, and those of XGBoost and LightGBM.

The module maps inputs to logits, the logarithms of the probabilities of all classes of the federation, also of classes
that the classifier has not seen. It has no parameters; its state is the classifier in the format of skops, which
contains no pickle and is loaded with an explicit list of types.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from trustmix.errors import StorageError, TrustmixError
from trustmix.imports import require_extra
from trustmix.models.tree_validation import validate_trees

FLOOR = 1e-4
"""The smallest probability of a class: what an unseen one has, and one that no tree voted for."""
MIN_WEIGHT = 0.01
"""Classes to which a teacher gives less are not learned from that sample."""
TRIAL_ROWS = 40
"""Samples of a trial: enough for classifiers that split them once more themselves."""

TRUSTED = (
    "collections.OrderedDict",
    "lightgbm.basic.Booster",
    "lightgbm.sklearn.LGBMClassifier",
    "sklearn.calibration._CalibratedClassifier",
    "sklearn.calibration._SigmoidCalibration",
    "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.tree._tree.Tree",
    "xgboost.core.Booster",
    "xgboost.sklearn.XGBClassifier",
)
"""Types that a state may contain besides those that skops trusts itself: plain data of classifiers."""

Rows = npt.NDArray[np.float64]


class ClassifierModel(nn.Module):
    """A classifier as a module from inputs to logits; before the first fit all classes are equally probable.

    Parameters
    ----------
    classifier
        An object with `fit(x, y, sample_weight=...)`, `predict_proba(x)`, `get_params` and `set_params`, or a
        `sklearn.pipeline.Pipeline` that ends in one.
    classes
        C, the number of classes of the federation.

    Raises
    ------
    TrustmixError
        If the classifier lacks one of these methods, or its `fit` takes no sample_weight.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> model = ClassifierModel(GaussianNB(), classes=3)
    >>> model.fit(torch.tensor([[0.0], [0.1], [2.0], [2.1]]), torch.tensor([0, 0, 2, 2]))
    >>> model(torch.tensor([[0.0], [2.0]])).argmax(1).tolist()
    [0, 2]
    """

    prediction_batch = 10_000
    """Samples predicted at a time: a call costs far more than a sample."""

    def __init__(self, classifier: Any, classes: int) -> None:
        super().__init__()
        validate_classifier(classifier)
        self.classifier = classifier
        self.unfitted = classifier
        """The classifier with the parameters that it was given; a fit may change those of a copy, as XGBoost's does."""
        self.classes = classes
        self.seen: list[int] = []
        """The classes that the classifier has seen, in the order of the columns of its probabilities."""

    def fit(
        self, inputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None, seed: int = 0
    ) -> None:
        """Fit the classifier anew; what it learned before is forgotten.

        Parameters
        ----------
        inputs
            (n, ...): samples.
        labels
            (n,): class indices.
        weights
            (n,): how much each sample counts; all alike if None.
        seed
            Becomes the `random_state` of the classifier and of its parts.
        """
        from sklearn.base import clone

        x, y = to_rows(inputs), labels.cpu().numpy()
        seen, codes = np.unique(y, return_inverse=True)
        if len(seen) > 1:
            fitted = clone(self.unfitted)
            fitted.set_params(**{key: seed for key in fitted.get_params() if key.endswith("random_state")})
            weight = np.ones(len(x)) if weights is None else weights.double().cpu().numpy()
            with _one_thread():
                fitted.fit(x, codes, **{_weight_name(fitted): weight})
            self.classifier = fitted
        self.seen = seen.tolist()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs (n, ...) to the logarithms of probabilities (n, C), none below that of `FLOOR`, as float32."""
        found = np.full((len(inputs), self.classes), 1 / self.classes if not self.seen else 0.0)
        if len(self.seen) == 1:
            found[:, self.seen[0]] = 1
        elif self.seen and len(inputs):
            with _one_thread():
                found[:, self.seen] = self.classifier.predict_proba(to_rows(inputs))
        probabilities = torch.from_numpy(found).clamp_min(FLOOR)
        logits = (probabilities / probabilities.sum(1, keepdim=True)).log()
        return logits.to(inputs.device, torch.float32)

    def features(self, inputs: torch.Tensor) -> torch.Tensor:
        """What densities are fitted on (n, D), float32: the values of the inputs themselves."""
        return torch.from_numpy(to_rows(inputs)).to(inputs.device, torch.float32)

    def get_extra_state(self) -> torch.Tensor:
        """The classifier as bytes; none before the first fit.

        Raises
        ------
        TrustmixError
            If the classifier consists of types that are not known to hold plain data.
        """
        if not self.seen:
            return torch.zeros(0, dtype=torch.uint8)
        skops = _skops()
        data = skops.dumps({"classifier": self.classifier if len(self.seen) > 1 else None, "seen": self.seen})
        validate_types(data, type(self.classifier).__name__)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Go on from what `get_extra_state` returned."""
        if not len(state):
            self.seen = []
            return
        skops, data = _skops(), state.cpu().numpy().tobytes()
        validate_types(data, type(self.classifier).__name__)
        try:
            found = skops.loads(data, trusted=list(TRUSTED))
            fitted, seen = found["classifier"], [int(cls) for cls in found["seen"]]
        except Exception as error:  # a file of another program may raise anything
            raise StorageError(f"The state of a classifier cannot be read ({error}).") from error
        if fitted is not None and type(fitted) is not type(self.classifier):
            raise StorageError(
                f"The state is of a {type(fitted).__name__}; the model is a {type(self.classifier).__name__}."
            )
        validate_trees(fitted)
        self.classifier, self.seen = self.classifier if fitted is None else fitted, seen


def soft_rows(inputs: torch.Tensor, teacher: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Samples with soft labels as weighted samples with hard labels: one row for each class that is probable enough.

    Parameters
    ----------
    inputs
        (n, ...): samples.
    teacher
        (n, C): probabilities.

    Returns
    -------
    tuple of torch.Tensor
        Inputs (m, ...), labels (m,) and weights (m,); the weights of the rows of one sample add up to 1.

    Examples
    --------
    >>> _, labels, weights = soft_rows(torch.zeros(2, 1), torch.tensor([[0.75, 0.25], [0.999, 0.001]]))
    >>> labels.tolist(), weights.tolist()
    ([0, 1, 0], [0.75, 0.25, 1.0])
    """
    kept = torch.where(teacher >= MIN_WEIGHT, teacher, torch.zeros_like(teacher))
    kept = kept / kept.sum(1, keepdim=True)
    rows, labels = kept.nonzero(as_tuple=True)
    return inputs[rows], labels, kept[rows, labels]


def to_rows(inputs: torch.Tensor) -> Rows:
    """Inputs (n, ...) as a table (n, D) of float64."""
    rows: Rows = inputs.detach().cpu().flatten(1).to(torch.float64).numpy()
    return rows


def validate_classifier(classifier: Any) -> None:
    """Raise if an object cannot be a model."""
    from sklearn.utils.validation import has_fit_parameter

    name = type(classifier).__name__
    missing = [part for part in ("fit", "get_params", "set_params") if not hasattr(classifier, part)]
    if missing or not hasattr(classifier, "predict_proba"):
        wanted = ", ".join([*missing, *([] if hasattr(classifier, "predict_proba") else ["predict_proba"])])
        raise TrustmixError(f"{name} lacks {wanted}; a model is a torch module or a classifier with probabilities.")
    if not has_fit_parameter(_last_step(classifier)[1], "sample_weight"):
        raise TrustmixError(f"{name} cannot learn from a teacher: its fit takes no sample_weight; take another one.")


def try_classifier(model: ClassifierModel, inputs: torch.Tensor, label: str) -> None:
    """Fit a copy of a model to a few samples and restore it from its state, to find out early what cannot work.

    Parameters
    ----------
    model
        The model, which is not changed.
    inputs
        (n, ...): a few inputs of the data set.
    label
        The model's name in quotes, for messages.

    Raises
    ------
    TrustmixError
        If the inputs are texts, the classifier cannot be fitted to numbers, or its state cannot be saved.
    """
    if inputs.dtype in (torch.int16, torch.int32):
        raise TrustmixError(f"The model {label} takes numbers, and the inputs are token ids of texts.")
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(TRIAL_ROWS, to_rows(inputs[:1]).shape[1], generator=generator)
    trial, again = ClassifierModel(model.classifier, model.classes), ClassifierModel(model.classifier, model.classes)
    try:
        trial.fit(rows, torch.arange(TRIAL_ROWS) % 2, torch.rand(TRIAL_ROWS, generator=generator))
        expected = trial(rows)
    except Exception as error:  # the classifier may be of any library
        reason = str(error).partition("\n")[0]
        raise TrustmixError(f"The model {label} fails on inputs {tuple(inputs.shape)}: {reason}") from error
    again.load_state_dict(trial.state_dict())
    if not torch.equal(again(rows), expected):
        raise TrustmixError(f"The model {label} predicts something else after its state was saved and restored.")


def validate_types(data: bytes, name: str) -> None:
    """Raise if the bytes of a classifier contain types that are not known to hold plain data."""
    skops = _skops()
    try:
        unknown = sorted(set(skops.get_untrusted_types(data=data)) - set(TRUSTED))
    except Exception as error:  # a file of another program may raise anything
        raise StorageError(f"The state of a {name} cannot be read ({type(error).__name__}: {error}).") from error
    if unknown:
        raise TrustmixError(f"A {name} cannot be saved without pickles: it contains {', '.join(unknown)[:200]}.")


def _last_step(classifier: Any) -> tuple[str, Any]:
    """The name of the last step of a pipeline and that step; of other classifiers no name and the classifier."""
    steps = getattr(classifier, "steps", None)
    return steps[-1] if steps else ("", classifier)


def _weight_name(classifier: Any) -> str:
    step, _ = _last_step(classifier)
    return f"{step}__sample_weight" if step else "sample_weight"


def _one_thread() -> Any:
    """The context of one thread: engines run clients beside each other, and forked workers must not start teams."""
    from threadpoolctl import threadpool_limits

    return threadpool_limits(1)


def _skops() -> Any:
    return require_extra("skops.io", "the state of a classifier", "sklearn")


def as_model(model: Any, classes: int) -> nn.Module:
    """A torch module as it is; a classifier as a `ClassifierModel`.

    Examples
    --------
    >>> from sklearn.naive_bayes import GaussianNB
    >>> as_model(GaussianNB(), classes=3)(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """
    return model if isinstance(model, nn.Module) else ClassifierModel(model, classes)
