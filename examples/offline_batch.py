"""Answer many prompts at once, without a server: one line in, one JSON line out, in the same order.

    python examples/offline_batch.py < prompts.txt > answers.jsonl
    printf 'Once upon a time\nWater boils at\n' | python examples/offline_batch.py --max-tokens 32

Each answer is what it would be alone: how many prompts run beside it changes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

from rooftree import LLM, SamplingParams
from rooftree.errors import RooftreeError


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first prompt; the others count on")
    parser.add_argument("--threads", type=int, help="default: the physical cores")
    args = parser.parse_args()
    prompts = [line.rstrip("\n") for line in sys.stdin if line.strip()]
    params = [
        SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature, seed=args.seed + number)
        for number in range(len(prompts))
    ]
    try:
        with LLM(args.model, threads=args.threads) as llm:
            begin = time.monotonic()
            answers = llm.generate(prompts, params, on_progress=show_progress)
            seconds = time.monotonic() - begin
    except RooftreeError as error:
        sys.exit(f"error: {error}")
    for prompt, answer in zip(prompts, answers, strict=True):
        (choice,) = answer.outputs
        line = {"prompt": prompt, "text": choice.text, "finish_reason": choice.finish_reason}
        print(json.dumps(line, ensure_ascii=False))
    tokens = sum(len(answer.outputs[0].token_ids) for answer in answers)
    print(f"{tokens} tokens in {seconds:.2f} s, {tokens / seconds:.0f} per second", file=sys.stderr)


def show_progress(done: int, total: int) -> None:
    """On a terminal, how many answers are whole."""
    if sys.stderr.isatty():
        print(f"\r{done} of {total}", end="\n" if done == total else "", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
