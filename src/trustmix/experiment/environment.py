"""The software and hardware of a run, in environment.json of its directory: an entry for each process that ran it."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
import torch

from trustmix import records, storage

ENVIRONMENT_FORMAT = 1
"""The version of environment.json."""
LIBRARIES = (
    *("trustmix", "torch", "numpy", "scikit-learn", "safetensors", "transformers"),
    *("xgboost", "xgboost-cpu", "lightgbm", "flwr"),
)
"""Libraries that decide numbers, where they are installed."""


def describe_environment() -> dict[str, str]:
    """Describe this process: versions, system and hardware, without names of users, hosts or paths.

    Returns
    -------
    dict of str to str
        Facts by name.

    Examples
    --------
    >>> {"python", "trustmix", "torch", "system", "cores", "memory"} <= set(describe_environment())
    True
    """
    found = {"python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    hardware = {"system": f"{platform.system()} {platform.machine()}", "cores": str(os.cpu_count() or "unknown")}
    memory = f"{psutil.virtual_memory().total / 1e9:.0f} GB"
    return found | hardware | {"memory": memory, "device": device, "threads": str(torch.get_num_threads())}


def append_environment(folder: Path) -> None:
    """Add this process to environment.json; an entry that is there already is not repeated.

    Parameters
    ----------
    folder : Path
        The run directory.
    """
    entries, here = read_environments(folder), describe_environment()
    if here not in entries:
        record = {"format": ENVIRONMENT_FORMAT, "environments": [*entries, here]}
        storage.write_json(folder / "environment.json", record)


def read_environments(folder: Path) -> list[dict[str, str]]:
    """Read environment.json.

    Parameters
    ----------
    folder : Path
        The run directory.

    Returns
    -------
    list of dict
        The environments in which the run was started or resumed; empty for runs that did not record them.

    Raises
    ------
    StorageError
        If the file is damaged or of a newer format.
    """
    file = folder / "environment.json"
    if not file.exists():
        return []
    found = records.validate_record(storage.read_json(file), ENVIRONMENT_FORMAT, str(file))
    records.validate_types({"environments": list[dict[str, str]]}, found, str(file))
    return list(found.get("environments", []))
