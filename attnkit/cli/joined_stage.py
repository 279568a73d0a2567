"""A stage that many processes compute together."""

import warnings

from attnkit.backends.choice import join_processes
from attnkit.callbacks import SILENT, use_callbacks
from attnkit.cli import output
from attnkit.cli.stage import Stage


def write_joined(call: Stage) -> int:
    """Join the processes of a stage, and write its results in process 0 alone."""
    with join_processes(call.engine_values()) as is_first, warnings.catch_warnings():
        if is_first:
            return output.write(call)
        warnings.simplefilter("ignore")
        call.extra.pop("save", None)  # of `run`
        with use_callbacks(SILENT):
            return output.discard(call)
