"""Tests run side by side, so each keeps to one thread; so do the processes they start."""

import os
import tempfile

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="trustmix-tests-")

import torch

torch.set_num_threads(1)
from hypothesis import settings

settings.register_profile("patient", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("patient")
