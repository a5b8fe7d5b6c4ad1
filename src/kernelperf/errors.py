"""The errors that kernelperf raises, by what the caller can do about them."""


class KernelperfError(Exception):
    """Base of every error that kernelperf raises on purpose."""


class UnusableInput(KernelperfError):
    """A file, option or declaration can't be used; the message names it, the place and the remedy."""


class NotMeasurable(KernelperfError):
    """The evidence can't answer the question: no kernels, no ops, or times that can't be right."""


class NotDeterminable(NotMeasurable):
    """The evidence can't know, however whole it is: a CUDA graph hides the ops, or only a GPU could tell.

    A test that raises it neither passes nor fails: it skips with the reason, and is counted.
    """
