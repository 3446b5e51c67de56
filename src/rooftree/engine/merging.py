"""Deltas add up: to a whole answer, or to one larger delta for a reader who was slow."""

from __future__ import annotations

from rooftree.engine.outputs import CompletionOutput, RequestOutput


def merge(total: RequestOutput, delta: RequestOutput) -> None:
    """Add a later delta of the same request to ``total``, taking its lists over."""
    for choice in delta.outputs:
        for known in total.outputs:
            if known.index == choice.index:
                _merge_choice(known, choice)
                break
        else:
            total.outputs.append(choice)
    total.finished = delta.finished
    total.num_cached_tokens = max(total.num_cached_tokens, delta.num_cached_tokens)
    total.error = total.error or delta.error


def _merge_choice(total: CompletionOutput, delta: CompletionOutput) -> None:
    # With the attribute emptied, the local name holds the only reference, so that CPython appends in place
    # instead of copying the whole text for every token.
    text, total.text = total.text, ""
    text += delta.text
    total.text = text
    total.token_ids += delta.token_ids
    if delta.logprobs is not None:
        if total.logprobs is None:
            total.logprobs = delta.logprobs
        else:
            total.logprobs += delta.logprobs
    if delta.finish_reason is not None:
        total.finish_reason = delta.finish_reason
        total.stop_reason = delta.stop_reason


def sort_choices(output: RequestOutput) -> RequestOutput:
    """The same output, its choices in order of index."""
    output.outputs.sort(key=_index)
    return output


def _index(choice: CompletionOutput) -> int:
    return choice.index
