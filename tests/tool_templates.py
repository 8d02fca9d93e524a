"""Chat templates in the manner of the families."""

from __future__ import annotations

from typing import Any

CHATML = (
    "{% if tools %}{{ '<|im_start|>system\n' + tools|tojson + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['content'] %}{{ m['content'] }}{% endif %}"
    "{% for c in m.get('tool_calls', []) %}BEFORE{% endfor %}AFTER{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HERMES = CHATML.replace(
    "BEFORE",
    '{{ \'\n<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' '
    "+ c.function.arguments|tojson + '}\n</tool_call>' }}",
).replace("AFTER", "")
CODER = CHATML.replace(
    "BEFORE",
    "{{ '\n<tool_call>\n<function=' + c.function.name + '>\n' }}"
    "{% for k, v in c.function.arguments.items() %}{{ '<parameter=' + k + '>\n' }}"
    "{{ v if v is string else v|tojson }}{{ '\n</parameter>\n' }}{% endfor %}"
    "{{ '</function>\n</tool_call>' }}",
).replace("AFTER", "")
AS_TEXT = CHATML.replace(
    "BEFORE",
    "{{ ('<｜tool▁calls▁begin｜>' if loop.first else '') + '<｜tool▁call▁begin｜>function"
    "<｜tool▁sep｜>' + c.function.name + '\n```json\n' + c.function.arguments "
    "+ '\n```<｜tool▁call▁end｜>' + ('<｜tool▁calls▁end｜>' if loop.last else '\n') }}",
).replace("AFTER", "")
LLAMA = (
    "{% if tools %}{{ tools|tojson }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.tool_calls %}"
    "{% if m.tool_calls|length != 1 %}{{ raise_exception('one call at most') }}{% endif %}"
    "{% set c = m.tool_calls[0].function %}"
    '{{ \'{"name": "\' + c.name + \'", "parameters": \' + c.arguments|tojson + "}" }}'
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
UNKNOWN = CHATML.replace("BEFORE", "{{ '!!' + c.function.name + '!!' }}").replace("AFTER", "")

Calls = list[tuple[str, dict[str, Any]]]
