"""A stage that many processes compute together."""

import os
import warnings
from collections.abc import Callable

from attnkit.backends.choice import join_processes
from attnkit.callbacks import SILENT, use_callbacks
from attnkit.cli import output
from attnkit.cli.stage import Stage
from attnkit.errors import AttnkitError
from attnkit.formats import atomic


def write_joined(
    call: Stage, describe: Callable[[BaseException], tuple[int, str]], report: Callable[[BaseException, str], int]
) -> int:
    """Join the processes of a stage; write its results in process 0, and none in the others, once all have them.

    describe  returns the exit code and the line of an error
    report    writes it to standard error
    """

    def end(error: AttnkitError) -> None:
        atomic.remove_temporaries()
        os._exit(report(error, f"attnkit {call.tool.name}"))

    group = join_processes(call.engine_values(), end)
    with group.working(describe), warnings.catch_warnings():
        if group.is_first:
            return output.write(call)
        warnings.simplefilter("ignore")
        call.extra.pop("save", None)  # of `run`
        with use_callbacks(SILENT):
            return output.discard(call)
