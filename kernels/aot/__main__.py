"""The child process: answers a line of JSON for each line of JSON it reads.

``{"list": [[module, dtype, width], …]}`` → names of the cases; ``{"row": {…}}`` → the whole row.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from course.kernels.aot.cases import cases
from course.kernels.aot.compiling import compile_case
from course.kernels.aot.rules import Row


def main() -> None:
    """Answer requests on stdin until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a compiler that fails prints the whole program to stdout
    import triton  # noqa: F401 - now, so that no time limit counts it

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if "list" in request:
            answer: Any = [_listed(*wanted) for wanted in request["list"]]
        else:
            row = Row(**request["row"])
            (case,) = [c for c in cases(row.module, row.dtype, row.width) if c.name == row.name]
            answer = compile_case(case, row)._asdict()
        print(json.dumps(answer, default=dict), file=answers, flush=True)


def _listed(module: str, dtype: str, width: int) -> Any:
    # Names and what is declared of each, or the reason why there are none.
    try:
        found = [(case.name, case.tensor_cores) for case in cases(module, dtype, width)]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        return f"ValueError: expected one case of each name, got {sorted(names)}"
    return found


if __name__ == "__main__":
    main()
