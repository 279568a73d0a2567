"""Transcribe a sound with times, window by window.

Each begins at the last time of the one before.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from attnkit import callbacks
from attnkit.errors import UsageError
from attnkit.generation.options import DecodeOptions, TextModel, check_options, refuse_options
from attnkit.generation.prompts import Prompt, begin_transcription, encode_features, make_detokenizer
from attnkit.generation.task import Input
from attnkit.generation.text_generation import (
    Generation,
    TextGeneration,
    generate_after,
    generation_record,
    require_texts,
)
from attnkit.inputs import layers
from attnkit.inputs.sound_inputs import SoundWindows, exceeds_window, is_sound_batch, open_windows
from attnkit.model import GeneratedText
from attnkit.model.formulas.time_tokens import Segment, split_segments
from attnkit.records import Labels, Record, Tensor

if TYPE_CHECKING:
    from attnkit import display
    from attnkit.display.cells import Cells


class Transcription(TextGeneration):
    """Write the text of a sound, which is read at once or window by window."""

    def run_model(self, source: Input) -> Record | str:
        """The text, with the times of its segments if it is read in windows."""
        audio = self.options.speech.audio
        if audio is not None and reads_windows(audio, self.options):
            if is_sound_batch(audio):
                flag = "--timestamps" if self.options.speech.timestamps else "--audio"
                raise UsageError("a batch of sounds is read at once: times and long sounds need a single one", flag)
            return transcribe(audio, self.options)
        return super().run_model(source)

    def view(self, record: Record, style: "display.Style") -> "display.ResultView":
        """The segments as lines, or what is shown of generated texts."""
        from attnkit import display

        options, is_choice = self.options, self.options.choices.asks_for_next_word and "candidates.ids" in record
        if not options.speech.timestamps or options.emit or is_choice or "segment" not in record.labels:
            return super().view(record, style)
        return display.ResultView([display.Text("\n".join(segment_lines(record)))], lambda: segment_cells(record))


def reads_windows(audio: Record, options: DecodeOptions) -> bool:
    """Whether the text of a sound has times, or is longer than one window."""
    config = options.config
    if config.sound is None or options.score is not None or options.length.max_tokens == 0:
        return False
    if options.length.max_tokens is None and options.choices.asks_for_next_word:
        return False
    return options.speech.timestamps or (config.time_tokens is not None and exceeds_window(audio, config.sound))


def transcribe(audio: Record, options: DecodeOptions) -> Record | str:
    """Generate the text of a sound by windows: its tokens and segments, or lines.

    Each window begins at the last time of the text before it, or after the window if that ended with a single time, as
    transformers reads long sounds without a fallback. UsageError for options that concern one window.
    """
    check_options(options)
    core, detokenizer = layers.complete_model(options.checkpoint), make_detokenizer(options)
    inspection, search = options.inspection, options.search
    refuse_options(
        "a sound that is read at once, without times",
        best=search.best, cache_out=options.cache.cache_out, trace=inspection.tracing.trace, stop=options.stop,
    )  # fmt: skip
    sound, times = core.config.sound, core.config.time_tokens
    if sound is None or sound.spectrogram is None or times is None:
        raise UsageError("the model has no tokens of times", "--timestamps")
    windows = open_windows(audio, sound.samples, sound.spectrogram)
    shows_times = options.speech.timestamps
    options = options._replace(speech=options.speech._replace(timestamps=True))
    tracer = None if inspection.edits.is_empty else options.tracer()
    texts: list[Generation] = []
    segments: list[Segment] = []
    prompt, frame = Prompt([]), 0
    while frame < windows.frames:
        memory = encode_features(options, windows.read(frame))
        begin = prompt.ids or begin_transcription(options, memory)
        prompt = Prompt(begin, len(begin), memory)
        most = options.length.max_tokens or core.config.positions.size - len(
            begin
        )  # as transformers, whose last has a position
        limited = options._replace(length=options.length._replace(max_tokens=most))
        text_model = TextModel(core, limited, detokenizer)
        where = f"the window at {windows.seconds(frame):g} seconds"
        text = generate_after(text_model, prompt, False, tracer, where)
        text = without_end(text, core.config.special.eos)
        found, advance = split_segments(text.sequences[0].ids, times.first, min(windows.frames - frame, windows.size))
        texts.append(cut_generation(text, sum(len(one.ids) for one in found)))
        found = [one._replace(start=frame + one.start, end=frame + one.end) for one in found]
        report(found, not segments, windows, text_model, prompt, shows_times)
        segments += found
        frame += advance
    if tracer:
        tracer.check()
    record = generation_record([prompt], [join_generations(texts)], text_model, is_batch=False)
    record = add_segments(record, segments, windows, text_model, prompt)
    if options.emit != "text":
        return record
    return "\n".join(segment_lines(record) if shows_times and require_texts(record) else require_texts(record))


def without_end(text: Generation, eos: tuple[int, ...]) -> Generation:
    """A generation without its end token."""
    ids = text.sequences[0].ids
    return cut_generation(text, len(ids) - (ids[-1:] != () and ids[-1] in eos))


def cut_generation(text: Generation, count: int) -> Generation:
    """The first tokens of the best text, with what was kept of them."""
    best = text.sequences[0]
    cut = best._replace(ids=best.ids[:count], logprobs=best.logprobs[:count])
    return Generation([cut], None if text.scores is None else text.scores[:count], text.candidates[:count])


def join_generations(texts: list[Generation]) -> Generation:
    """Texts one after another as one."""
    best = [text.sequences[0] for text in texts]
    scores = [text.scores for text in texts if text.scores is not None]
    return Generation(
        [
            GeneratedText(
                tuple(id for one in best for id in one.ids),
                tuple(logprob for one in best for logprob in one.logprobs),
                best[-1].finish_reason,
                sum(one.score for one in best),
            )
        ],
        np.concatenate(scores) if scores else None,
        [step for text in texts for step in text.candidates],
    )


def add_segments(
    record: Record, segments: list[Segment], windows: SoundWindows, text_model: TextModel, prompt: Prompt
) -> Record:
    """Add the times and texts of segments, in seconds, and the whole text."""
    tensors = {
        name: Tensor(np.array([windows.seconds(getattr(one, name)) for one in segments]), ("segment",))
        for name in ("start", "end")
    }
    labels: dict[str, Labels] = {}
    if text_model.detokenizer.can_decode:
        labels["segment"] = [words_of(one.ids, text_model, prompt) for one in segments]
        labels["text"] = [words_of([id for one in segments for id in one.ids], text_model, prompt).strip()]
    kept = {axis: names for axis, names in record.labels.items() if axis != "prompt"}
    return Record({}).with_tensors({**record.tensors, **tensors}, {**kept, **labels})


def words_of(ids: Any, text_model: TextModel, prompt: Prompt) -> str:
    """The text of tokens that are no times."""
    times = text_model.core.config.time_tokens
    words = [id for id in ids if times is None or id < times.first]
    return text_model.detokenizer.text([*prompt.ids, *words])


def report(
    segments: list[Segment],
    is_first: bool,
    windows: SoundWindows,
    text_model: TextModel,
    prompt: Prompt,
    shows_times: bool,
) -> None:
    """Show the segments of a window, or how far it reached."""
    options = text_model.options
    on_text, decodes = callbacks.current().on_text, text_model.detokenizer.can_decode
    if on_text is None or not decodes or options.choices.keeps_candidates or options.emit not in (None, "text"):
        at, total = windows.seconds(segments[-1].end), windows.seconds(windows.frames)
        callbacks.current().on_progress(f"{at:.0f} of {total:.0f} seconds")
        return
    for at, one in enumerate(segments):
        text = words_of(one.ids, text_model, prompt)
        if shows_times:
            line = segment_line(windows.seconds(one.start), windows.seconds(one.end), text)
            on_text(line if is_first and not at else f"\n{line}", False)
        else:
            on_text(text.lstrip() if is_first and not at else text, False)


def segment_lines(record: Record) -> list[str]:
    """The segments of a record as lines: begin, end, text."""
    rows = zip(record["start"].tolist(), record["end"].tolist(), record.labels["segment"], strict=True)
    return [segment_line(start, end, str(text)) for start, end, text in rows]


def segment_cells(record: Record) -> "Cells":
    """The begin, the end and the text of each segment of a sound as cells."""
    from attnkit.display.cells import Cells

    rows = zip(record["start"], record["end"], record.labels["segment"], strict=True)
    return Cells(["start", "end", "text"], [[start, end, str(text).strip()] for start, end, text in rows])


def segment_line(start: float, end: float, text: str) -> str:
    """A segment as a line.

    >>> segment_line(1.5, 3661.04, " Hello")
    '[00:01.50 --> 1:01:01.04]  Hello'
    """
    return f"[{clock(start)} --> {clock(end)}]  {text.strip()}"


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds, after hours if there are any.

    >>> clock(61.5), clock(59.999), clock(3600.0)
    ('01:01.50', '01:00.00', '1:00:00.00')
    """
    hundredths = round(100 * seconds)
    hours, minutes, rest = hundredths // 360000, hundredths // 6000 % 60, hundredths % 6000
    return f"{hours}:" * bool(hours) + f"{minutes:02}:{rest // 100:02}.{rest % 100:02}"
