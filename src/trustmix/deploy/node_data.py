"""A node's own data: read by the settings of the node's file, matched to the classes and inputs of the server's run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from trustmix.data import Dataset, Labelled, from_arrays, load
from trustmix.data.labels import split_off_test
from trustmix.data.loading import read_npz
from trustmix.data.tables import table_format
from trustmix.data.text import default_tokenizer, tokenizer_fingerprint
from trustmix.deploy.run_info import RunInfo
from trustmix.errors import TrustmixError
from trustmix.federation import Public
from trustmix.transport.refusal import CLASSES, INPUTS, TOKENIZER, NodeRefusal

if TYPE_CHECKING:
    from trustmix.deploy.node import NodeConfig


@dataclass(frozen=True)
class NodeData:
    """A node's own data.

    Parameters
    ----------
    train : Labelled
        Training samples.
    test : Labelled, optional
        Test samples.
    class_names : list of str
        The names of the classes, in the order of the labels.
    names_are_indices : bool
        Whether the names are indices into the server's list of classes.
    """

    train: Labelled
    test: Labelled | None
    class_names: list[str]
    names_are_indices: bool = False

    def class_counts(self) -> dict[str, int]:
        """The number of training samples of each class."""
        counts = torch.bincount(self.train.labels, minlength=len(self.class_names)).tolist()
        return dict(zip(self.class_names, counts, strict=True))

    def relabel(self, class_names: list[str]) -> "NodeData":
        """The same samples with labels that index the server's classes.

        Parameters
        ----------
        class_names : list of str
            The names of all classes of all nodes.

        Returns
        -------
        NodeData

        Raises
        ------
        NodeRefusal
            If the node has a class that is not in the list.

        Examples
        --------
        >>> data = NodeData(Labelled(torch.zeros(2, 1), torch.tensor([0, 1])), None, ["ill", "healthy"])
        >>> data.relabel(["healthy", "ill"]).train.labels.tolist()
        [1, 0]
        """
        known = {str(index) if self.names_are_indices else name: index for index, name in enumerate(class_names)}
        unknown = [name for name in self.class_names if name not in known]
        if unknown:
            raise NodeRefusal(
                CLASSES,
                f'This node has the class "{unknown[0]}", which the server does not know; its classes are '
                f"{', '.join(class_names[:30])}.",
            )
        new = torch.tensor([known[name] for name in self.class_names])
        test = None if self.test is None else Labelled(self.test.inputs, new[self.test.labels])
        return NodeData(Labelled(self.train.inputs, new[self.train.labels]), test, class_names)


def load_node_data(node: "NodeConfig") -> NodeData:
    """Read and validate a node's data.

    Parameters
    ----------
    node : NodeConfig
        A node with `data` or `source`.

    Returns
    -------
    NodeData

    Raises
    ------
    TrustmixError
        If the data are missing or not valid.
    """
    options = dict(node.model_extra or {})
    if node.test and node.source is None:
        options["test"] = node.test
    if node.source is not None:
        dataset = load(source=node.source, **options)
        return NodeData(dataset.train, dataset.test if node.test else None, list(dataset.class_names))
    path = node.folder / str(node.data)
    if not path.exists():
        raise TrustmixError(f"There is no {path}; data names a file or folder beside the node's file.")
    if path.suffix == ".npz":
        if node.model_extra:
            raise TrustmixError(
                f'An npz file has no setting "{next(iter(node.model_extra))}"; remove it from the node\'s file.'
            )
        return _load_npz(path, node.test)
    kind = data_kind(node)
    if kind != "images" and not table_format(path):
        raise TrustmixError(
            f"{path} is no data a node can read: it must be a table, an npz file or a folder of images."
        )
    dataset = load(kind, path=path, **options)
    return NodeData(
        _all_samples(dataset) if not node.test else dataset.train,
        dataset.test if node.test else None,
        list(dataset.class_names),
    )


def data_kind(node: "NodeConfig") -> str:
    """The data set of `trustmix.data` that reads a node's data.

    Parameters
    ----------
    node : NodeConfig
        A node with `data`.

    Returns
    -------
    str
        npz, images, text or table.
    """
    path = node.folder / str(node.data)
    if path.suffix == ".npz":
        return "npz"
    return "images" if path.is_dir() else "text" if "text" in (node.model_extra or {}) else "table"


def load_own_data(node: "NodeConfig", run_info: RunInfo, public: Public) -> NodeData:
    """The node's data as a run needs them: labels that index the server's classes, inputs like the public ones.

    Parameters
    ----------
    node : NodeConfig
        A node with `data` or `source`.
    run_info : RunInfo
        The server's description of the run.
    public : Public
        The public set.

    Returns
    -------
    NodeData

    Raises
    ------
    NodeRefusal
        If a class is not one of the server's, or the inputs are of another shape or type than the public ones.
    TrustmixError
        If the data cannot be read as the server asks.
    """
    _validate_tokenizer(node, run_info)
    return _match_inputs(_load_columns(node, run_info).relabel(run_info.classes), public)


def _validate_tokenizer(node: "NodeConfig", run_info: RunInfo) -> None:
    """Refuse to mix texts of two tokenizers: their numbers have the same form and mean other words."""
    if node.data is None or data_kind(node) != "text" or run_info.tokenizer is None:
        return
    own = str((node.model_extra or {}).get("tokenizer", default_tokenizer("text")))
    found = tokenizer_fingerprint(own)
    if found != run_info.tokenizer:
        raise NodeRefusal(
            TOKENIZER,
            f'The tokenizer "{own}" of this node turns texts into other numbers than that of the server (fingerprint '
            f"{found}, there {run_info.tokenizer}); set tokenizer in the node's file to the same one, same version.",
        )


def _all_samples(dataset: Dataset) -> Labelled:
    """Training and test samples together."""
    parts = (dataset.train, dataset.test)
    return Labelled(torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts]))


def _load_npz(path: Path, test: float) -> NodeData:
    """The data of an npz file; only labels that occur in y_train count as the node's classes."""
    arrays = read_npz(path)
    for name in ("x_train", "y_train"):
        if name not in arrays:
            raise TrustmixError(f"{path} lacks {name}; it has {', '.join(sorted(arrays)) or 'nothing'}.")
    has_names = "classes" in arrays
    present = sorted({int(label) for label in arrays["y_train"]})
    new_label = {label: index for index, label in enumerate(present)}
    names = [str(arrays["classes"][label]) if has_names else str(label) for label in present]
    labels = [new_label[int(label)] for label in arrays["y_train"]]
    parts = {"x_train": arrays["x_train"], "y_train": labels, "classes": names}
    tests = {"x_test": arrays["x_train"], "y_test": labels}
    if "x_test" in arrays and "y_test" in arrays:
        tests = {"x_test": arrays["x_test"], "y_test": [new_label.get(int(label), -1) for label in arrays["y_test"]]}
    dataset = from_arrays(path.stem, {**parts, **tests})
    train, held_out = dataset.train, dataset.test
    if "x_test" not in arrays and test:
        train, held_out = split_off_test(train, len(names), test, path.name)
    known = held_out.labels >= 0
    test_part = held_out[known] if test and bool(known.any()) else None
    return NodeData(train, test_part, names, names_are_indices=not has_names)


def _load_columns(node: "NodeConfig", run_info: RunInfo) -> NodeData:
    """The node's data; the features of a table are in the server's order, and all are columns that the node allows."""
    is_table = node.data is not None and bool(table_format(Path(node.data)))
    if run_info.columns and is_table:
        allowed = (node.model_extra or {}).get("columns", run_info.columns)
        refused = [column for column in run_info.columns if column not in allowed]
        if refused:
            raise TrustmixError(
                f'The server asks for the column "{refused[0]}", which columns in the node\'s file does not list.'
            )
        node = node.model_copy(update={"columns": run_info.columns})
    return load_node_data(node)


def _match_inputs(own: NodeData, public: Public) -> NodeData:
    """The node's data with texts as long as the public ones; inputs of another shape or type are refused."""
    shape, dtype = tuple(public.inputs.shape[1:]), public.inputs.dtype
    inputs = own.train.inputs
    if inputs.ndim == 2 and inputs.dtype == dtype and not dtype.is_floating_point:
        own = NodeData(_pad_tokens(own.train, shape[0]), own.test and _pad_tokens(own.test, shape[0]), own.class_names)
    if tuple(own.train.inputs.shape[1:]) != shape or own.train.inputs.dtype != dtype:
        raise NodeRefusal(
            INPUTS,
            f"Inputs here are {tuple(inputs.shape[1:])} ({inputs.dtype}), those of the public set {shape} ({dtype}); "
            "they must be alike.",
        )
    return own


def _pad_tokens(samples: Labelled, width: int) -> Labelled:
    """Token sequences cut or padded to a width."""
    inputs = samples.inputs[:, :width]
    return Labelled(pad(inputs, (0, width - inputs.shape[1]), value=-1), samples.labels)
