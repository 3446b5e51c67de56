"""Chat templates in the styles that published models use, written for these tests."""

from __future__ import annotations

CHATML = """{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if message.tool_calls is defined %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('One tool call at a time, please.') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + call.arguments | tojson + '}' }}
    {%- else %}
        {{- message['content'] | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

MISTRAL = """{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- raise_exception('This model takes no system message.') }}
    {%- elif (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Turns must go user, assistant, user, assistant.') }}
    {%- elif message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('Roles are user and assistant.') }}
    {%- endif %}
{%- endfor %}"""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- if '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
        {{- content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if not loop.first or content %}
                {{- '\\n' }}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' + tool_call.function.name + '", "arguments": ' }}
            {{- tool_call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {%- endgeneration %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

# Loops over parts and nothing else.
PARTS = """{% for message in messages %}<{{ message['role'] }}>
{%- for part in message['content'] %}{{ part['text'] }}{% endfor %}</>{% endfor %}"""

# Takes texts and parts, as templates of models that also see pictures do.
TEXT_OR_PARTS = """{% for message in messages %}<{{ message.role }}>
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}
{%- endif %}</>{% endfor %}"""

# Takes both too, but reads only the first part of a system message.
FIRST_PART = """{% if messages[0].role == 'system' %}
{%- if messages[0].content is string %}{{ messages[0].content }}
{%- else %}{{ messages[0].content[0].text }}{% endif %}
{%- set messages = messages[1:] %}{% endif %}
{%- for message in messages %}<{{ message.role }}>
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}</>{% endfor %}"""

# Tells an answer from a tool call by whether its content is null, and adds the arguments as text.
NULL_MEANS_CALL = """{% for message in messages %}
{%- if message['role'] == 'assistant' and message['content'] is none %}
{%- for call in message['tool_calls'] %}[{{ call['function']['name'] + ' ' + call['function']['arguments'] }}]
{%- endfor %}
{%- else %}<{{ message['role'] }}>{{ message['content'] }}</>{% endif %}{% endfor %}"""
