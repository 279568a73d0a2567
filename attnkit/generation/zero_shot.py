"""Label an image by texts: how alike their vectors are in the common space."""

from collections.abc import Sequence

from attnkit import model
from attnkit.errors import UsageError
from attnkit.generation.options import GenerationOptions
from attnkit.inputs import encoding
from attnkit.inputs.output_matrix import OutputLogits
from attnkit.model.dtypes import Array
from attnkit.model.hooks import no_hook
from attnkit.records import Record


def compare_with_labels(labels: Sequence[str], options: GenerationOptions) -> OutputLogits:
    """Logits of an image for each label, by the cosine of their vectors.

    UsageError for a model without a space of texts and images.
    """
    checkpoint, similarity = options.model_, options.model_.similarity
    if similarity is None:
        family = checkpoint.config.family
        raise UsageError(f"needs a model of texts and images, which this {family} model is not", "--labels")
    image = compute_vectors(options, "vision", None)
    texts = compute_vectors(options, "text", labels)["x"]
    logits: Array = similarity.logits(image["x"] @ texts.T)
    return OutputLogits(image, logits, [*labels], None, "label", similarity.function)


def compute_vectors(options: GenerationOptions, tower: str, texts: Sequence[str] | None) -> Record:
    """Vectors of length 1 of texts, or of the image without them, in the common space."""
    is_text = texts is not None
    given = encoding.EncodingInputs(options.model_.tower(tower), batch=is_text)
    given = given._replace(tokenizer=options.tokenizer) if is_text else given._replace(image=options.image)
    encoded = encoding.prepare_encoding(texts, given, encoding.VectorOptions(pool="folder"))
    x = model.run(encoded.core, encoded.steps, encoded.inputs, encoding.make_context(encoded, dtype=options.dtype))
    return encoding.make_pooled(encoded, x, normalize=True, hook=no_hook)
