#!/bin/sh
# Every route of a running `rooftree serve`, with curl: sh examples/curl.sh [http://127.0.0.1:8000]
# Set ROOFTREE_API_KEY if the server asks for a key.
set -eu
url=${1:-http://127.0.0.1:8000}

call() {
    printf '\n== %s\n' "$*"
    path=$1
    shift
    curl --silent --show-error --fail-with-body --no-buffer \
        -H "Authorization: Bearer ${ROOFTREE_API_KEY:-none}" \
        -H 'Content-Type: application/json' "$url$path" "$@"
    echo
}

call /health
call /version
call /v1/models
call /v1/completions -d '{"prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}'
call /v1/completions -d '{"prompt": ["One, two,", "Red, green,"], "max_tokens": 4, "temperature": 0, "logprobs": 2}'
call /v1/chat/completions -d '{"messages": [{"role": "user", "content": "Name three colours."}],
    "max_tokens": 32, "seed": 7, "n": 2, "stop": ["\n\n"]}'
call /v1/chat/completions -d '{"messages": [{"role": "user", "content": "Count to five."}],
    "max_tokens": 16, "temperature": 0, "stream": true, "stream_options": {"include_usage": true}}'
call /tokenize -d '{"prompt": "Hello, world!"}'
call /detokenize -d '{"tokens": [1, 2, 3]}'
call /metrics | grep -E '^(== |rooftree:num_requests|rooftree:generation_tokens_total)'
