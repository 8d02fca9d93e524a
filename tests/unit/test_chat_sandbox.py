"""Chat templates cannot reach Python, run for ever or fill the memory; honest ones work."""

import resource
import time

import jinja2
import pytest

from kvasir.tokenizer.sandbox import Sandbox


def grow(start: str, step: str) -> str:
    """A template that replaces ``x`` sixty times."""
    loop = "{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"
    return f"{{% set ns = namespace(x={start}) %}}" + loop.replace("STEP", step)


def recurse(body: str, depth: int) -> str:
    return "{% macro f(n) %}" + body + "{% endmacro %}{{ f(" + str(depth) + ") }}"


HOSTILE = {
    "long range": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": "{% for i in range(9**5) %}{% for j in range(9**5) %}{% endfor %}{% endfor %}",
    "macro recursion": recurse("{{ f(n) }}", 1),
    "macro tree": recurse("{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}", 40),
    "macro without output": recurse("{% if n and f(n - 1) and f(n - 1) %}{% endif %}1", 60),
    "big product": "{{ 'a' * 10**10 }}",
    "big list": "{{ [1] * 10**9 }}",
    "big power": "{{ 9 ** (9 ** 9) }}",
    "negative power": "{{ 9 ** -(10**9) }}",
    "squaring": grow("3", "ns.x * ns.x"),
    "doubling text": grow("'abcdefgh'", "ns.x ~ ns.x"),
    "doubling sum": grow("'ab'", "ns.x + ns.x"),
    "doubling list": grow("['ab']", "ns.x + ns.x"),
    "doubling tree": grow("[]", "[ns.x, ns.x]"),
    "doubling dict": grow("1", "dict(a=ns.x, b=ns.x)"),
    "doubling format": grow("'ab'", "'{0}{0}'.format(ns.x)"),
    "doubling percent": grow("'ab'", "'%s%s' % (ns.x, ns.x)"),
    "doubling capture": grow("'ab'", "ns.x").replace(
        "{% set ns.x = ns.x %}", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"
    ),
    "big output": "{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}",
    "captured output": "{% set y %}{% for i in range(99999) %}"
    + "x" * 1000
    + "{% endfor %}{% endset %}",
    "replace": "{% set x = 'a' * 100000 %}{{ x | replace('a', x) }}",
    "replace method": "{% set x = 'a' * 100000 %}{{ x.replace('a', x) }}",
    "replace nothing": "{% set x = 'a' * 100000 %}{{ x.replace('', x) }}",
    "join": "{% set x = 'a' * 100000 %}{{ x | join(x) }}",
    "join method": "{% set x = 'a' * 100000 %}{{ x.join(x) }}",
    "format width": "{{ '%1000000000d' % 1 }}",
    "format computed width": "{{ '%*d' % (1000000000, 1) }}",
    "indent": "{{ 'a' | indent(10**9, first=true) }}",
    "tojson indent": "{{ [1] | tojson(indent=10**9) }}",
    "pad": "{{ 'a'.ljust(10**9) }}",
    "zeros": "{{ 'a'.zfill(10**9) }}",
    "tabs": "{{ '\\t'.expandtabs(10**9) }}",
    "center": "{{ 'a' | center(10**9) }}",
    "format method": "{{ '{:>1000000000}'.format(1) }}",
    "format method, computed": "{{ '{:>{}}'.format(1, 10**9) }}",
    "number to bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "lorem ipsum": "{{ lipsum(n=10**9) }}",
    "class": "{{ ''.__class__.__mro__ }}",
    "class by item": "{{ ''['__class__']['__mro__'] }}",
    "class by filter": "{{ '' | attr('__class__') }}",
    "class by map": "{{ [''] | map(attribute='__class__.__mro__') | list }}",
    "globals of a function": "{{ raise_exception.__globals__['sys'].modules }}",
    "globals of a macro": "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
    "self": "{{ self._TemplateReference__context.environment }}",
    "change of a message": "{% set _ = messages.append(1) %}",
    "list that grows": "{% set l = [1] %}{% for x in l %}{% set _ = l.append(x) %}{% endfor %}",
    "list in itself": "{% set l = [] %}{% set _ = l.append(l) %}{{ l }}",
    "change of its own list beyond append and pop": "{% set l = [2, 1] %}{{ l.sort() }}",
    "include": "{% include 'other' %}",
    "import": "{% import 'other' as other %}",
    "extends": "{% extends 'other' %}",
    "recursive loop": "{% for i in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "print of a function": "{{ range }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_template_is_stopped_soon(name: str) -> None:
    start, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sandbox = Sandbox()
    with pytest.raises((jinja2.TemplateError, OverflowError, RecursionError)):
        sandbox.render(sandbox.load(HOSTILE[name]), {"messages": [{"role": "user"}]})
    assert time.process_time() - start < 4
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert grown < 300 << 10, f"{grown} KiB"


HARMLESS = {
    "{{ '{:>5}|{}'.format(1, 'x') }}": "    1|x",
    "{{ '%05d' % 12 }}": "00012",
    "{{ raise_exception.__globals__ }}": "",
    "{% for a, b in {'k': [1, 2]}.items() %}{{ a }}{{ b[-1] }}{{ loop.last }}{% endfor %}": (
        "k2True"
    ),
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i > 3 %}{% break %}{% endif %}"
    "{{ i ~ '/' ~ loop.length }} {% endfor %}": "0/9 1/9 3/9 ",
    "{% set ns = namespace(n=0) %}{% for i in [3, 4] %}{% set ns.n = ns.n + i %}{% endfor %}"
    "{{ ns.n }}": "7",
    "{% macro m(x, y='-') %}{{ x }}{{ y }}{% endmacro %}{{ m(1) }}{{ m(2, y=3) }}": "1-23",
    "{{ {'b': 'é<', 'a': [none, 1.5]} | tojson }}": '{"b": "é<", "a": [null, 1.5]}',
    "{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true) }}": '{\n  "a": 2,\n  "b": 1\n}',
    "{{ 'a,b'.split(',')[1] | upper }}{{ ['x', 'y'] | join('+') }}": "Bx+y",
    "{{ [{'r': 1}, {'r': 2}] | selectattr('r', 'equalto', 2) | list | length }}": "1",
    "{{ [{'r': 'u'}, {'r': 'v'}] | map(attribute='r') | join }}": "uv",
    "{{ [{'r': 'u'}, {'r': 'v'}] | join(', ', attribute='r') }}": "u, v",
    "{% set x, y = 1, 2 %}{{ (x, y) }}{{ [x] + [y] }}{{ 'ab' * 2 }}": "(1, 2)[1, 2]abab",
    "{% generation %}{{ 'said' }}{% endgeneration %}": "said",
    "{{ 'a\nb' | indent(2) }}{{ ' c ' | trim | default('d') }}": "a\n  bc",
    "{% set l = [1, 2] %}{% set _ = l.append(3) %}{{ l.pop(0) ~ l }}": "1[2, 3]",
    "{{ missing }}{{ missing is defined }}{{ none }}": "FalseNone",
    "{%- if true %}\n  x\n{%- endif %}\n": "  x",
}


@pytest.mark.parametrize("source", HARMLESS)
def test_ordinary_templates_render(source: str) -> None:
    sandbox = Sandbox()
    assert sandbox.render(sandbox.load(source), {}) == HARMLESS[source]


def test_budgets_are_of_one_render() -> None:
    sandbox = Sandbox()
    template = sandbox.load("{% for i in range(60000) %}{{ i }}{% endfor %}")
    lengths = {len(sandbox.render(template, {})) for _ in range(12)}
    assert lengths == {10 + 90 * 2 + 900 * 3 + 9000 * 4 + 50000 * 5}


def test_long_conversations_fit() -> None:
    template = (
        "{% for m in messages %}{{ '<' + m['role'] + '>' ~ m.content | trim }}\n"
        "{% if not loop.last %}{{ ', ' }}{% endif %}{% endfor %}"
    )
    messages = [{"role": "user", "content": " word" * 200}] * 5000
    sandbox = Sandbox()
    assert len(sandbox.render(sandbox.load(template), {"messages": messages})) > 5000 * 999
