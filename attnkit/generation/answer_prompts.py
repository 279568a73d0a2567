"""The prompts of rerankers that generate text, whose folders do not state them.

The pieces of a prompt are tokenized apart, so that neither text changes the tokens of what is around it. Source: the
model cards of Qwen3-Reranker; the package mxbai-rerank 0.1.6.
"""

from typing import NamedTuple


class PromptPiece(NamedTuple):
    """A part of a prompt, which is tokenized by itself.

    text   with {instruction}, {query} and {document}
    share  how much of the room for all texts it may fill at most; 0: it is never cut
    """

    text: str
    share: float = 0.0


class AnswerPrompt(NamedTuple):
    """The prompt of a reranker that generates text, and the words of its answer.

    yes, no      the words whose logits are subtracted
    function     of the score: sigmoid, or none
    instruction  by default; `form` is how one is written
    most         tokens of the prompt; with_fixed: those of the pieces that are never cut count
    """

    pieces: tuple[PromptPiece, ...]
    yes: str
    no: str
    function: str
    instruction: str
    form: str
    most: int
    with_fixed: bool


PROMPTS = {  # by the names of --reranker
    "qwen3-reranker": AnswerPrompt(
        pieces=(
            PromptPiece(
                "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
                'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
            ),
            PromptPiece("<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}", 1.0),
            PromptPiece("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"),
        ),
        yes="yes",
        no="no",
        function="sigmoid",
        instruction="Given a web search query, retrieve relevant passages that answer the query",
        form="{}",
        most=8192,
        with_fixed=True,
    ),
    "mxbai-rerank-v2": AnswerPrompt(
        pieces=(
            PromptPiece(
                "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
                "<|im_start|>user\n"
            ),
            PromptPiece("{instruction}query: {query}", 0.75),
            PromptPiece("\n", 1.0),
            PromptPiece("document: {document}", 1.0),
            PromptPiece("\n"),
            PromptPiece(
                "You are a search relevance expert who evaluates how well documents match search queries. For each "
                "query-document pair, carefully analyze the semantic relationship between them, then provide your "
                "binary relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:"
            ),
            PromptPiece("<|im_end|>\n<|im_start|>assistant\n"),
        ),
        yes="1",
        no="0",
        function="none",
        instruction="",
        form="instruction: {}\n",
        most=8192,
        with_fixed=False,
    ),
}
