"""attnkit run: a whole pipeline in one process."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnkit import formats
from attnkit.cli import operands, options, output, pipeline
from attnkit.cli.output_format import DISPLAY_FORMATS, FIGURE_FORMATS, Result
from attnkit.cli.stage import PythonForm, Records, Stage
from attnkit.cli.tool import make_item, named_files, tool
from attnkit.errors import FileError, UsageError
from attnkit.record import Record


def read_pipeline(call: Stage) -> str:
    """Read the text of the pipeline: the argument, or the file of -f."""
    file = call.extra.get("file")
    if file is None:
        if len(call.operands) != 1:
            raise UsageError("one pipeline in quotes, or -f FILE: attnkit run 'embed \"The cat\" --dim 4 | posenc'")
        return call.operands[0]
    with formats.open_source(file) as source:
        return operands.read_text(source)


def run_pipeline(call: Stage, upstream: Records | None) -> Records:
    """Run the pipeline: return the results of the last stage, whose output flags apply where run has none."""
    calls = pipeline.parse_stages(read_pipeline(call))
    if call.extra.get("file") and call.operands:
        calls[0].operands = call.operands
    call.extra["last"] = last = calls[-1]
    last.common |= call.common
    save = call.extra.get("save")
    if save:
        make_folder(save)
    counts = [0] * len(calls)

    def after_stage(at: int, done: Stage, result: Result) -> None:
        counts[at] += 1
        if save:
            save_result(save, at, counts[at], done, result)
        steps = bool(call.extra.get("steps"))
        if steps and call.common["format"] in FIGURE_FORMATS:
            from attnkit.cli import figures

            figures.collect(call, done, result, is_last=done is last)
        elif done is not last or call.common["format"] not in DISPLAY_FORMATS:
            output.show_aside(done, result, with_command=steps)

    flow = pipeline.chain_stages(calls, after_stage)
    call.common |= last.common | {"format": output.format_for(last, flow.format)}
    format, items = last.format.settle(call.common["format"], flow.items)
    call.common["format"] = format
    for name in ("only", "dtype"):
        call.common.pop(name, None)  # the last stage applies it
    call.format.is_noted = True  # the last stage prints the notes
    return Records(format, pipeline.convert_all(last, items, format))


def make_folder(name: str) -> None:
    """Create the folder of --save."""
    try:
        Path(name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write {name}: {error.strerror}") from None


def save_result(folder: str, at: int, count: int, call: Stage, result: Result) -> None:
    """Write one result of a stage to the folder of --save: 1-embed.npz, and 1-embed-2.npz for the second record."""
    name = f"{at + 1}-{call.tool.name}" + (f"-{count}" if count > 1 else "")
    if isinstance(result, Record):
        path, data = Path(folder, f"{name}.npz"), formats.encode(result, "npz")
    else:
        path, data = Path(folder, f"{name}.txt"), [(result + "\n").encode()]
    with formats.open_sink(str(path)) as sink:
        sink.write(data)


def read_values(call: Stage, inputs: Sequence[Any]) -> Records:
    """Run the pipeline of a caller in Python, on a record where it is given one."""
    if not inputs or not isinstance(inputs[0], str | os.PathLike):
        raise UsageError("one pipeline: attnkit.run('posenc | attend', record)")
    if isinstance(inputs[0], os.PathLike):
        with formats.open_source(os.fspath(inputs[0])) as source:
            text = operands.read_text(source)
    else:
        text = inputs[0]
    calls = pipeline.parse_stages(text)
    call.extra["last"] = last = calls[-1]
    last.common |= {name: call.common.pop(name) for name in ("only", "dtype", "check_finite") if name in call.common}
    if last.common.get("output"):
        raise UsageError("Python writes no result to a file: attnkit.formats.save(record, FILE)", "--output")
    record = inputs[1] if len(inputs) > 1 else None
    if record is None:
        if calls[0].count_stdin():
            raise UsageError(f"{calls[0].tool.name} needs a record or an array: attnkit.run(pipeline, record)")
        return pipeline.chain_stages(calls)
    if paths := named_files(calls[0].tool, record):
        calls[0].operands = paths
        return pipeline.chain_stages(calls)
    return pipeline.chain_stages(calls, upstream=Records("json", iter([make_item(calls[0].tool, record)])))


def present_last(result: Result, call: Stage) -> Any:
    """Return the result of the last stage as its tool returns it from Python."""
    last = call.extra["last"]
    return last.tool.python.present(result, last)


@tool(
    operand="PIPELINE",
    reader=run_pipeline,
    view=lambda record, call, look: output.render(call.extra["last"], record, look),
    status=lambda record, call: call.extra["last"].tool.status(record, call.extra["last"]),
    extra={
        "file": options.Option(
            "read the pipeline from a file; `#!/usr/bin/env -S attnkit run -f` makes it a command",
            "FILE",
            str,
            short="-f",
        ),
        "steps": options.switch(
            "show a table after every stage: in the figure of -o FILE.html, .svg …, else on standard error"
        ),
        "save": options.Option("write every stage's record to a folder, as 1-embed.npz, 2-posenc.npz …", "DIR", str),
    },
    check_finite=lambda parameters: False,
    python=PythonForm(
        inputs={"pipeline": "Path", "record": "TensorLike | None"},
        reader=read_values,
        result="Any",
        present=present_last,
    ),
)
def run(result: Any) -> Any:
    """Run a whole pipeline in one process: 'embed "The cat" --dim 4 | posenc | attend'.

    Stages are separated by |, with quotes and # comments as in a shell, and pass tensors on in memory. The
    result is, byte for byte, that of the same stages in a pipe of a shell. With -f FILE an argument is the
    INPUT of the first stage.

    \b
    Example:
      attnkit run 'embed "The cat sat" --dim 8 | posenc | mask --causal | attend --heads 2' --steps -o out.npz
    """
    return result
