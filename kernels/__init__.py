"""Triton kernels: the same attention as in :mod:`course`, one idea a file, for a GPU.

Each file reads from top to bottom: Triton functions, their launcher, the autograd function, and
the function that ``course.attention`` or ``course.linear`` calls for ``impl="triton"``. Importing
this package loads no Triton; its modules do.
"""
