"""Tests run side by side, so each keeps to one thread; so do the processes they start."""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import torch

torch.set_num_threads(1)
