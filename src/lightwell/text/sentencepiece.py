"""SentencePiece vocabularies (Llama 2, Gemma) as byte-fallback BPE.

Such a file has a score for each token and no merges. SentencePiece joins, again and again, the neighbours whose
join is the token of highest score; the same order comes out of BPE when every way of making a token from two others
is a merge, ranked by the made token's score.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from tokenizers import Tokenizer, decoders, models, normalizers

SPACE = "▁"


def build(
    ids: Mapping[str, int], scores: Sequence[float], made: Iterable[int], unknown: str | None, *, space_prefix: bool
) -> Tokenizer:
    """A tokenizer of the library from token texts and scores; ``made`` are the ids that merging may produce.

    ``space_prefix``: every stretch of ordinary text is encoded as if a space stood before it.
    """
    model = models.BPE(
        dict(ids), list(rebuild_merges(ids, scores, made)), unk_token=unknown, fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    to_stand_in = [normalizers.Prepend(SPACE)] if space_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*to_stand_in, normalizers.Replace(" ", SPACE)])
    stripped = [decoders.Strip(" ", 1, 0)] if space_prefix else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *stripped]
    )
    return tokenizer


def rebuild_merges(ids: Mapping[str, int], scores: Sequence[float], made: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Every split of a token into two tokens, best score first; then by id, left id and right id."""
    texts = {token: text for text, token in ids.items()}
    for token in sorted((token for token in made if token in texts), key=lambda token: (-scores[token], token)):
        text = texts[token]
        splits = ((text[:at], text[at:]) for at in range(1, len(text)))
        found = [(ids[left], ids[right], left, right) for left, right in splits if left in ids and right in ids]
        yield from ((left, right) for _, _, left, right in sorted(found))
