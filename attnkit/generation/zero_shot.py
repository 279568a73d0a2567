"""Label an image by texts: how alike their vectors are in the common space."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attnkit import model
from attnkit.errors import UsageError
from attnkit.generation.options import DecodeOptions
from attnkit.generation.task import Input, ModelTask
from attnkit.generation.words import choose_by_logits, view_words
from attnkit.inputs import encoding
from attnkit.inputs.output_matrix import OutputLogits
from attnkit.model.dtypes import Array
from attnkit.model.hooks import no_hook
from attnkit.records import Record

if TYPE_CHECKING:
    from attnkit import display


class ImageAgainstLabels(ModelTask):
    """Compare an image with labels, by a model of images and texts."""

    def run_model(self, source: Input) -> Record | str:
        """Logits of the labels, and the one chosen by them."""
        output, formula = compare_with_labels(self.options)
        result = choose_by_logits(output, formula, self.options)
        return result if isinstance(result, str) else result.with_tensors({}, {"function": [output.function]})

    def view(self, record: Record, style: "display.Style") -> "display.ResultView":
        """The most probable labels, or x."""
        return view_words(record, self.options, ("label", "image"), style)


def compare_with_labels(options: DecodeOptions) -> tuple[OutputLogits, str]:
    """Logits of an image for each label, by cosines of vectors, and their formula.

    UsageError for a model without a space of texts and images.
    """
    checkpoint, similarity, labels = options.checkpoint, options.checkpoint.similarity, options.labelling.labels
    if similarity is None:
        family = checkpoint.config.family
        raise UsageError(f"needs a model of texts and images, which this {family} model is not", "--labels")
    image = compute_vectors(options, "vision", None)
    texts = compute_vectors(options, "text", labels)["x"]
    logits: Array = similarity.logits(image["x"] @ texts.T)
    return OutputLogits(image, logits, [*labels], None, "label", similarity.function), similarity.formula


def compute_vectors(options: DecodeOptions, tower: str, texts: Sequence[str] | None) -> Record:
    """Vectors of length 1 of texts, or of the image without them, in the common space."""
    is_text = texts is not None
    given = encoding.EncodingInputs(options.checkpoint.tower(tower), batch=is_text)
    given = given._replace(tokenizer=options.tokenizer) if is_text else given._replace(image=options.image)
    encoded = encoding.prepare_encoding(texts, given, encoding.VectorOptions(pool="folder"))
    x = model.run(encoded.core, encoded.steps, encoded.inputs, encoding.make_context(encoded, dtype=options.dtype))
    return encoding.make_pooled(encoded, x, normalize=True, hook=no_hook)
