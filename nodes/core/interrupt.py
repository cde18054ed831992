"""How core tells ComfyUI's interrupt from a failure, without importing ComfyUI."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether `error` is the user's stop: up to ComfyUI 0.3.x it is an Exception, later a BaseException."""
    return type(error).__name__ == "InterruptProcessingException"
