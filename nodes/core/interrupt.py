"""The user's stop: core's own, and how ComfyUI's is told from a failure without importing ComfyUI."""


class RunCancelled(BaseException):
    """The user stopped the run. Not an Exception, so that no handler takes it for a failed frame."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether `error` is the user's stop: up to ComfyUI 0.3.x it is an Exception, later a BaseException."""
    return type(error).__name__ == "InterruptProcessingException"
