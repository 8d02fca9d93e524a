"""The formats of the families. The order is that in which they are tried on a chat template."""

from __future__ import annotations

from kvasir.toolcalls.format import ContentPart, Literals, Parameter, Reasoning, ToolFormat

_OBJECT = '{~"name":~"$name",~"arguments":~$args~}'

_PYTHON = Literals(
    assign="=", end=")", quotes=("'", '"'), has_escapes=True, words=("True", "False", "None")
)
_DSML = Parameter(
    '<｜DSML｜parameter name="',
    '" string="',
    "</｜DSML｜parameter>",
    as_text='true">',
    as_json='false">',
)

_ALL = (
    ToolFormat(
        name="qwen3-coder",
        call="<tool_call>~<function=$name>~$args~</function>~</tool_call>",
        arguments=Parameter("<parameter=", ">\n", "\n</parameter>"),
    ),
    ToolFormat(
        name="glm-4.5",
        call="<tool_call>$name~$args~</tool_call>",
        arguments=Parameter("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"),
    ),
    ToolFormat(
        name="glm-4.7",
        call="<tool_call>$name~$args~</tool_call>",
        arguments=Parameter("<arg_key>", "</arg_key><arg_value>", "</arg_value>"),
    ),
    ToolFormat(
        name="seed-oss",
        call="<seed:tool_call>~<function=$name>~$args~</function>~</seed:tool_call>",
        arguments=Parameter("<parameter=", ">", "</parameter>"),
    ),
    ToolFormat(
        name="minicpm5",
        call='<function name="$name">~$args~</function>',
        arguments=Parameter('<param name="', '">', "</param>"),
    ),
    ToolFormat(
        name="minimax-m2",
        open="<minimax:tool_call>~",
        call='<invoke name="$name">~$args~</invoke>',
        close="~</minimax:tool_call>",
        arguments=Parameter('<parameter name="', '">', "</parameter>"),
    ),
    ToolFormat(
        name="deepseek-v3.2",
        open="<｜DSML｜function_calls>~",
        call='<｜DSML｜invoke name="$name">~$args~</｜DSML｜invoke>',
        close="~</｜DSML｜function_calls>",
        arguments=_DSML,
    ),
    ToolFormat(
        name="deepseek-v4",
        open="<｜DSML｜tool_calls>~",
        call='<｜DSML｜invoke name="$name">~$args~</｜DSML｜invoke>',
        close="~</｜DSML｜tool_calls>",
        arguments=_DSML,
    ),
    ToolFormat(
        name="hunyuan-3",
        open="<tool_calls:opensource>~",
        call=("<tool_call:opensource>$name<tool_sep:opensource>~$args~</tool_call:opensource>"),
        close="~</tool_calls:opensource>",
        arguments=Parameter(
            "<arg_key:opensource>",
            "</arg_key:opensource>\n<arg_value:opensource>",
            "</arg_value:opensource>",
        ),
    ),
    ToolFormat(name="hermes", call=f"<tool_call>~{_OBJECT}~</tool_call>"),
    ToolFormat(
        name="phi-4-mini",
        open="<|tool_call|>~[~",
        call=_OBJECT,
        between="~,~",
        close="~]~<|/tool_call|>",
    ),
    ToolFormat(
        name="apertus",
        open="<|tools_prefix|>~[~",
        call='{~"$name":~$args~}',
        between="~,~",
        close="~]~<|tools_suffix|>",
    ),
    ToolFormat(
        name="apriel",
        open="<tool_calls>~[~",
        call=_OBJECT,
        between="~,~",
        close="~]~</tool_calls>",
    ),
    ToolFormat(name="minimax-m1", open="<tool_calls>~", call=_OBJECT, close="~</tool_calls>"),
    ToolFormat(name="functionary-v3.1", call="<function=$name>~$args~</function>"),
    ToolFormat(name="gigachat3", call=f"<|function_call|>~{_OBJECT}", between=None),
    ToolFormat(
        name="gigachat3-header",
        open="<|message_sep|>~function call<|role_sep|>~",
        call=_OBJECT,
        between=None,
    ),
    ToolFormat(name="granite", open="<|tool_call|>~[~", call=_OBJECT, between="~,~", close="~]"),
    ToolFormat(
        name="nemotron",
        open="<TOOLCALL>~[~",
        call=_OBJECT,
        between="~,~",
        close="~]~</TOOLCALL>",
    ),
    ToolFormat(
        name="mistral-v3",
        open="[TOOL_CALLS]~[~",
        call='{~"name":~"$name",~"arguments":~$args,~"id":~"$id"~}',
        between="~,~",
        close="~]",
        id_form="$9",
    ),
    ToolFormat(
        name="mistral-v11",
        call="[TOOL_CALLS]$name[CALL_ID]$id[ARGS]~$args",
        between="",
        id_form="$9",
    ),
    ToolFormat(name="mistral-v13", call="[TOOL_CALLS]$name[ARGS]~$args", between="", id_form="$9"),
    ToolFormat(
        name="deepseek-v3",
        open="<｜tool▁calls▁begin｜>",
        call=(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$name~```json~$args~```<｜tool▁call▁end｜>"
        ),
        close="~<｜tool▁calls▁end｜>",
    ),
    ToolFormat(
        name="deepseek-v3.1",
        open="<｜tool▁calls▁begin｜>",
        call="<｜tool▁call▁begin｜>$name<｜tool▁sep｜>~$args~<｜tool▁call▁end｜>",
        close="~<｜tool▁calls▁end｜>",
    ),
    ToolFormat(
        name="harmony",
        call="<|channel|>commentary to=functions.$name~<|constrain|>json<|message|>~$args",
        starts=("~to=functions.$name<|channel|>commentary~json<|message|>~$args",),
        between=None,
    ),
    ToolFormat(
        name="solar-open",
        open="<|tool_calls|>",
        call=(
            "<|tool_call:begin|>$id<|tool_call:name|>$name<|tool_call:args|>~$args<|tool_call:end|>"
        ),
        id_form="$9",
    ),
    ToolFormat(
        name="gemma-4",
        call="<|tool_call>call:$name{$args}<tool_call|>",
        arguments=Literals(
            assign=":", end="}", quotes=('<|"|>',), has_bare_keys=True, is_sorted=True
        ),
    ),
    ToolFormat(
        name="functiongemma",
        call="<start_function_call>call:$name{$args}<end_function_call>",
        arguments=Literals(
            assign=":", end="}", quotes=("<escape>",), has_bare_keys=True, is_sorted=True
        ),
    ),
    ToolFormat(
        name="lfm2",
        open="<|tool_call_start|>[",
        call="$name($args)",
        between=",~",
        close="]<|tool_call_end|>",
        arguments=_PYTHON,
    ),
    ToolFormat(
        name="olmo-3",
        open="<function_calls>~",
        call="$name($args)",
        between="~",
        close="~</function_calls>",
        arguments=_PYTHON,
    ),
    ToolFormat(
        name="kimi-k2",
        open="<|tool_calls_section_begin|>",
        call=(
            "<|tool_call_begin|>functions.$name:$index"
            "<|tool_call_argument_begin|>~$args~<|tool_call_end|>"
        ),
        close="~<|tool_calls_section_end|>",
        id_form="functions.$name:$index",
    ),
    ToolFormat(
        name="command-r7b",
        open="<|START_ACTION|>~[~",
        call='{~"tool_call_id":~"$index",~"tool_name":~"$name",~"parameters":~$args~}',
        between="~,~",
        close="~]~<|END_ACTION|>",
    ),
    ToolFormat(
        name="llama3-json",
        call='{~"name":~"$name",~"parameters":~$args~}',
        between=None,
        at_start=True,
    ),
    ToolFormat(
        name="llama3-pythonic",
        open="[",
        call="$name($args)",
        between=",~",
        close="]",
        at_start=True,
        arguments=_PYTHON,
    ),
    ToolFormat(
        name="generic",
        call='{~"tool_call":~{~"name":~"$name",~"arguments":~$args~}~}',
        between=None,
        at_start=True,
    ),
)
# "<tool_call>" alone opens calls of four formats: which one a template writes is seen in the rest.

FORMATS: dict[str, ToolFormat] = {one.name: one for one in _ALL}

REASONING = (
    Reasoning(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        (
            ContentPart("<|channel|>final<|message|>"),
            ContentPart("<|channel|>commentary<|message|>", "<|end|>"),
        ),
        "<|start|>assistant",
    ),
    Reasoning(
        "<|think|>", "<|end|>", (ContentPart("<|content|>", "<|end|>"),), "<|begin|>assistant"
    ),
    Reasoning("<|channel>thought", "<channel|>"),
    Reasoning("<think:opensource>", "</think:opensource>"),
    Reasoning("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    Reasoning("<think>", "</think>"),
    Reasoning("[THINK]", "[/THINK]"),
    Reasoning("<seed:think>", "</seed:think>"),
    Reasoning("<|START_THINKING|>", "<|END_THINKING|>"),
)
