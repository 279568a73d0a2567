"""attnkit mel: the log-mel spectrogram of a sound."""

from typing import Annotated

import typer

from attnkit import callbacks, formats, options
from attnkit.cli.calls import tool
from attnkit.inputs.sound_inputs import find_samples
from attnkit.model.formulas.spectrogram import Spectrogram, log_mel, pad_sound
from attnkit.model.intermediates import INTERMEDIATES, step_names
from attnkit.records import Record, Tensor

STEPS = step_names("mel")
COPIES = 4  # of the mels: before the logarithm, after it, clamped and scaled


@tool(sections={"Frames": "sample_rate seconds window hop mels", "Results": "keep steps"})
def mel(
    record: Record,
    *,
    sample_rate: Annotated[
        int, typer.Option(min=1, metavar="N", help="samples a second; a sound of another rate is resampled")
    ] = 16000,
    seconds: Annotated[
        float | None,
        typer.Option(
            click_type=options.range_above_0(86400),
            metavar="S",
            help="cut the sound, or add silence, to this many seconds, at most a day: 30 as Whisper",
        ),
    ] = None,
    window: Annotated[int, typer.Option(min=2, max=1 << 14, metavar="W", help="samples of a frame")] = 400,
    hop: Annotated[int, typer.Option(min=1, metavar="N", help="samples from one frame to the next")] = 160,
    mels: Annotated[int, typer.Option(min=1, max=1 << 10, metavar="M", help="number of mel filters")] = 80,
    keep: Annotated[tuple[str, ...], options.names("add these steps to the record", (*STEPS, "all"))] = (),
    steps: options.Steps = False,
) -> Record:
    """Compute the log-mel spectrogram of a sound.

    The spectrogram has the power of each band of frequencies in each frame.

    The input is a WAV file; FLAC, Ogg and MP3 need `pip install '.[audio]'`; a record with the samples as x (T)
    will do. Frames of W samples are centered at every hop, multiplied by a Hann window and Fourier-transformed; their
    power is weighted by Slaney's mel filters; then come the logarithm to base 10, at most 8 below the largest, and
    (clamped + 4) / 4. x (frame, mel) is then what Whisper reads, and the transpose of transformers' input_features.
    Several channels are averaged, and a sound of another rate is resampled, with a note.

    \b
    Example:
      attnkit mel speech.wav --seconds 30 -o spectrogram.npz
    """
    sound = Spectrogram(sample_rate, window, hop, mels)
    samples = find_samples(record, sample_rate)
    listener, returned = callbacks.current().on_intermediates, STEPS if steps or "all" in keep else keep
    names = STEPS if listener else returned
    count = samples.size if seconds is None else round(seconds * sample_rate)
    numbers = COPIES * mels + window * len({"frames", "windowed", "power"} & {*names})  # of a frame
    formats.check_memory(8 * (count + count // hop * numbers), f"the spectrogram of {count} samples", "--seconds")
    if seconds is not None:
        samples = pad_sound(samples, count)
    arrays = log_mel(samples, sound, names)
    rows = INTERMEDIATES["mel"]
    tensors = {
        name: Tensor(arrays[name], rows[name].axes, formula=rows[name].formula) for name in STEPS if name in arrays
    }
    formula = "(clamped + 4) / 4" if "clamped" in returned else "log₁₀ of the mel filters' sums, clamped and scaled"
    tensors["x"] = Tensor(arrays["output"], ("frame", "mel"), formula=formula)
    rest = record.without([*STEPS, "sample_rate"])
    if listener:
        listener(rest.with_tensors(tensors))
    return rest.with_tensors({name: one for name, one in tensors.items() if name in (*returned, "x")})
