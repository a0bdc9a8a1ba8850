"""What PyTorch reads from the environment when it is loaded; import this before torch. A user's own settings
stay."""
import os

# Tensors that grow with every token would leave gaps in a GPU's memory.
if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
# OpenMP's threads wait actively, by default for 300,000 rounds, which is some milliseconds: a step can take
# many times as long beside as many other processes as there are cores. After a shorter wait they sleep.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
