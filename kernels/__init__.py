"""Triton kernels: the same attention as in :mod:`course`, one idea a file, for a GPU.

Each of ``softmax``, ``linear``, ``taylor`` and ``step`` reads from top to bottom: Triton functions,
their launcher, the autograd function, and the function that is called for ``impl="triton"``.
``shared`` holds what they have in common, ``runtime`` says whether they can run and launches them,
``aot`` compiles them for GPUs that are not here. Importing this package loads no Triton; its
modules do.
"""
