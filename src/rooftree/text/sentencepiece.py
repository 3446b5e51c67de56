"""SentencePiece vocabularies in the ``tokenizers`` library's terms: merges for scores, U+2581 for spaces."""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

SPACE = "\u2581"


def merges_from_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The merges by which BPE builds the pieces, best first.

    SentencePiece's BPE joins, again and again, the two neighbours whose joint text is the piece with the
    highest score, the leftmost such pair first. A ranked list says the same when every way to cut a piece in
    two comes at the piece's rank. Pieces of equal score keep the order of the mapping.

    Args:
        scores: each ordinary piece with its score, in the order of ids.
    """
    return [
        (left, right)
        for piece in sorted(scores, key=scores.__getitem__, reverse=True)
        for cut in range(len(piece) - 1, 0, -1)
        if (left := piece[:cut]) in scores and (right := piece[cut:]) in scores
    ]


def bpe_normalizer(*, add_space_prefix: bool) -> normalizers.Normalizer:
    """Spaces to U+2581; with a prefix, one more before each stretch of text between special tokens."""
    replace = normalizers.Replace(" ", SPACE)
    return normalizers.Sequence([normalizers.Prepend(SPACE), replace]) if add_space_prefix else replace


def bpe_decoder(*, add_space_prefix: bool) -> decoders.Decoder:
    """U+2581 to spaces, ``<0xNN>`` to bytes; with a prefix, one space less at the beginning of a text."""
    steps: list[decoders.Decoder] = [
        decoders.Replace(SPACE, " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if add_space_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def unigram_normalizer(charsmap: bytes, *, remove_extra_spaces: bool) -> normalizers.Normalizer:
    """SentencePiece's character map, and runs of spaces to one, none at the ends, where that is asked."""
    steps: list[normalizers.Normalizer] = []
    if charsmap:
        steps.append(normalizers.Precompiled(charsmap))
    if remove_extra_spaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    return normalizers.Sequence(steps)


def unigram_pre_tokenizer(*, add_space_prefix: bool) -> pre_tokenizers.PreTokenizer:
    """Spaces to U+2581, without splitting the text there: a piece may hold several words."""
    scheme = "always" if add_space_prefix else "never"
    return pre_tokenizers.Metaspace(SPACE, scheme, False)
