"""The package can be imported where there is no Unix."""

import subprocess
import sys

WITHOUT_UNIX = """
import importlib, os, pkgutil, signal, sys, warnings

warnings.simplefilter("ignore")  # filelock names the lock that it falls back to
import psutil  # has modules of its own for each system

for module in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[module] = None
for module in ("PIL", "cryptography", "datasets", "flwr", "matplotlib", "opacus", "ray"):
    sys.modules[module] = None
for module in ("mlflow", "tensorboard", "wandb"):
    sys.modules[module] = None
for module, name in ((os, "fork"), (os, "sched_getaffinity"), (os, "sysconf"), (signal, "SIGKILL")):
    delattr(module, name)

import trustmix

names = [module.name for module in pkgutil.walk_packages(trustmix.__path__, "trustmix.", lambda name: None)]
needs_flower = ("trustmix.deploy", "trustmix.transport")
core = [name for name in names if not name.startswith(needs_flower) and not name.endswith("__main__")]
for name in core:
    importlib.import_module(name)
print(len(core))
"""


def test_every_module_of_the_core_can_be_imported_without_unix_and_without_extras() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_UNIX], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 80
