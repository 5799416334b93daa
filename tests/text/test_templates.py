"""Chat templates: what models bring along is filled in as their authors do, and a hostile one only gets an error."""

from __future__ import annotations

import re
import resource
import time
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from bolt_numba.errors import BoltError, DataError, DTypeError, InvalidModelError

pytest.importorskip("jinja2")
from bolt_numba.text import templates
from bolt_numba.text.templates import ChatTemplate

CHAT = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": " Hi "}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}
GOOD = {
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m.content | trim }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}":
        "<|system|>Be kind.</s>\n<|user|>Hi</s>\n<|assistant|>",
    "{%- if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set s = messages[0].content %}{% endif %}"
    "{{ s ~ '|' ~ rest | length }}": "Be kind.|1",
    "{% set ns = namespace(seen=0) %}{% for m in messages %}{% set ns.seen = ns.seen + 1 %}{% if loop.last %}"
    "{{ loop.index }}/{{ loop.length }}{% endif %}{% endfor %}:{{ ns.seen }}": "2/2:2",
    "{% for m in messages %}{% if m.role == 'user' %}{% break %}{% endif %}{{ m.role.upper() }}{% endfor %}": "SYSTEM",
    "{% macro show(x) %}[{{ x }}]{% endmacro %}{{ show('a') + show('b' * 3) }}": "[a][bbb]",
    "{{ tools[0] | tojson }}{{ tools | tojson(indent=2) | length }}":
        '{"type": "function", "function": {"name": "f", "parameters": {"a": 1}}}123',
    "{{ messages | map(attribute='role') | join(', ') }}{{ messages | selectattr('role', 'in', ['user']) | list }}":
        "system, user[{'role': 'user', 'content': ' Hi '}]",
    "{{ 'a<b'.replace('<', '&lt;').split('&')[1].startswith('lt') }}{{ (messages | last).content.strip() }}": "TrueHi",
    "{% if messages[0].content is string and messages[0].name is not defined %}{{ 7 // 2 % 2 }}{% endif %}": "1",
    "{{ 100 | round }}{{ 1.25 | round(1) }}{{ [100] | tojson }}{{ 100 | tojson(indent=2) }}": "1001.2[100]100",
    "{% set a %}{% filter upper %}x{{ 'y' }}{% endfilter %}{% endset %}{{ a }}{{ strftime_now('%%') }}": "XY%",
}  # fmt: skip


@pytest.mark.parametrize("text", GOOD)
def test_templates_are_filled_in(text: str) -> None:
    assert ChatTemplate(text, {"eos_token": "</s>"})(CHAT, tools=[TOOL]) == GOOD[text]


def test_as_jinja_does_itself() -> None:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    for text in (text for text in GOOD if not any(word in text for word in ("break", "strftime", "tojson"))):
        wanted = plain.from_string(text).render(messages=CHAT, add_generation_prompt=True, eos_token="</s>")
        assert ChatTemplate(text, {"eos_token": "</s>"})(CHAT) == wanted


GROWING = "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = @ %}{% endfor %}{{ ns.x }}"
"""@: what is twice as much."""
GROWN = (
    "ns.x ~ ns.x", "ns.x + ns.x", "[ns.x, ns.x]", "{1: ns.x, 2: ns.x}", "ns.x.replace('a', ns.x)",
    "ns.x | replace('a', ns.x)", "ns.x.join([ns.x, ns.x, ns.x])", "[ns.x, ns.x] | join(ns.x)", "(ns.x | length) ** 9",
    "(ns.x, ns.x)", "ns.x.split('a') + [ns.x]",
)  # fmt: skip
HOSTILE = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}{{ raise_exception.__globals__ }}{{ strftime_now.__globals__['json'] }}",
    "{{ self.__init__.__globals__ }}", "{{ namespace.__init__.__globals__ }}", "{{ cycler }}{{ lipsum() }}",
    "{% include '/etc/passwd' %}", "{% import 'os' as os %}", "{% extends '/etc/passwd' %}",
    "{{ 'a' * 10**10 }}", "{{ [0] * 10000000000 }}", "{{ 10000000000 * 'a' }}", "{{ 2 ** 10 ** 10 }}",
    "{{ 'x' | center(10000000000) }}", "{{ 'x'.center(10000000000) }}", "{{ 'x'.ljust(10000000000) }}",
    "{{ '%10000000000d' % 1 }}", "{{ '%10000000000d' | format(1) }}", "{{ '{:10000000000}'.format(1) }}",
    "{{ 'x' | indent(10000000000) }}", "{{ [[]] | tojson(indent=10000000000) }}", "{{ (1).to_bytes(10000000000) }}",
    "{{ 'a\t'.expandtabs(10000000000) }}", "{{ 'a'.zfill(10000000000) }}", "{{ 'a'.format_map(10000000000) }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}" + "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}" * 40,
    *(GROWING.replace("@", one) for one in GROWN),
    "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x > 1 }}",
    "{% set ns = namespace() %}{% set ns.x = ns %}{% for i in range(99999) %}{{ ns }}{{ [ns.x] * 999 }}{% endfor %}",
    "{% macro f(n) %}{{ f(n - 1) }}{{ f(n - 1) }}{% endmacro %}{{ f(900) }}",
    "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set a = f(n - 1) %}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% set x = 'a' * 9000000 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}{% endfor %}",
    "{% set x = 'a' * 9000000 %}{% set ns = namespace(l=[]) %}{% for i in range(99) %}{% set ns.l = ns.l + [x[1:]] %}"
    "{% endfor %}",
    "{{ 'ab' | map('replace', 'a', 'b' * 9000000) | list | map('replace', 'b', 'b' * 9000000) | list }}",
    "{{ 5 | round(400000000, 'ceil') }}", "{{ 10 | round(-300000000) }}", "{{ ['x\n'] | map(' own', 9) | list }}",
    "{% set ns = namespace(x=3, y=3) %}{% for i in range(23) %}{% set ns.y = ns.x %}{% set ns.x = ns.x * ns.x %}"
    "{% endfor %}{{ ns.x // ns.y // ns.y }}", "{{a}}" * 200000,
    "{{ meter__.spend(-10**15) }}{{ 'a' * 10**10 }}", "{{ 'x\n' | own__indent(10**10) }}",
    "{% set meter__ = namespace(left=0) %}{{ 'a' * 10**10 }}",
    "{" * 100000, "{{ " + "(" * 100000 + "1" + ")" * 100000 + " }}", "{% for %}", "{{ 1 / 0 }}", "{{ undefined_.x }}",
    "{{ [1] | sum(start=[]) }}", "{{ messages.append(1) }}{{ messages[0].update({}) }}", "{{ messages.clear() }}",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_templates_get_an_error_soon(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MOST_SECONDS", 0.3)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    with pytest.raises(InvalidModelError, match="chat template: "):
        ChatTemplate(text, {})([{"role": "user", "content": "a"}])
    assert time.process_time() - began < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300e3  # KiB


def test_damaged_templates_get_an_error_or_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MOST_SECONDS", 0.1)
    random = np.random.default_rng(0)
    whole = [re.split(r"(\W)", text) for text in (*GOOD, *HOSTILE) if len(text) < 2000]
    for _ in range(300):
        parts, others = ([*whole[random.integers(len(whole))]] for _ in range(2))
        first, begin = random.integers(len(parts)), random.integers(len(others))
        end = first + random.integers(3)
        parts[first:end] = others[begin : begin + random.integers(6)]
        with suppress(BoltError):
            ChatTemplate("".join(parts), {"eos_token": "</s>"})(CHAT)


@pytest.mark.parametrize(
    "given", ["Hi", [], [1], [{"role": 1}], [{"content": "x"}], [{"role": "user"}], {"role": "user"}, [{"x": set()}]]
)
def test_what_are_no_messages(given: Any) -> None:
    with pytest.raises(DTypeError, match="messages: got "):
        ChatTemplate("x", {})(given)


def test_a_template_may_refuse() -> None:
    with pytest.raises(DataError, match="it refuses: roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}", {})(CHAT)
    with pytest.raises(BoltError, match="letters, wanted at most"):
        ChatTemplate("x" * (1 << 21), {})
