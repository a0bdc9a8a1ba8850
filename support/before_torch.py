"""What PyTorch reads from the environment when it is loaded; import this before torch. A user's own settings
stay."""
import os

# Tensors that grow with every token would leave gaps in a GPU's memory.
if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
