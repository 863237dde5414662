"""Edits of a step's scores: the penalties, biases and forbidden stop tokens of the sequences that ask for any."""

from lightwell.engine.scheduler import Chunk
from lightwell.engine.sequence import Sequence
from lightwell.runtimes.base import ScoreEdits, merged_edits
from lightwell.sampling.edits import Edits, ScoreEditor, needs_edits
from lightwell.units import Tokens


class StepEdits:
    """One editor for each running sequence that needs one, by its row."""

    def __init__(self, rows: int) -> None:
        self._editors: list[ScoreEditor | None] = [None] * rows
        self._seen: list[Tokens] = [0] * rows  # known tokens that the editor has taken in

    def adopt(self, sequence: Sequence) -> None:
        """The row is this sequence's from now on."""
        request, row = sequence.request, sequence.row
        editor = None
        if needs_edits(request.sampling, request.min_tokens, request.stop_tokens):
            answer = sequence.known[len(request.tokens) :]
            editor = ScoreEditor(request.tokens, request.sampling, request.min_tokens, request.stop_tokens, answer)
        self._editors[row], self._seen[row] = editor, len(sequence.known)

    def of(self, chunks: list[Chunk]) -> ScoreEdits | None:
        """The edits of all logit rows of a step; None where no row has any."""
        if not any(self._editors[chunk.sequence.row] for chunk in chunks):
            return None
        rows: list[Edits | None] = []
        for chunk in chunks:
            rows += [None] * chunk.scored
            rows += self._of_draws(chunk)
        return merged_edits(rows)

    def _of_draws(self, chunk: Chunk) -> list[Edits | None]:
        """The draw after the known tokens, then those after each of the proposed ones."""
        sequence, row = chunk.sequence, chunk.sequence.row
        editor = self._editors[row]
        if editor is None:
            return [None] * chunk.draws
        for token in sequence.known[self._seen[row] :]:
            editor.push(token)
        self._seen[row] = len(sequence.known)
        return [editor.columns(chunk.proposed[:count]) for count in range(chunk.draws)]
