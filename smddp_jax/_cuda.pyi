def gpus() -> object:
    """
    The GPUs of this process, for `_core.use_gpus`; does not look for them yet.
    """

def problem() -> str:
    """
    Why no GPU can be used here, or an empty text. Makes no context on a GPU.
    """

def count() -> int:
    """How many GPUs this process sees; 0 where there is no driver."""

def describe() -> str:
    """Versions of CUDA, and the GPUs, on one line."""
