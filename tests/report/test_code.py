from __future__ import annotations

import html
import re

from hypothesis import given
from hypothesis import strategies as st

from kernelworks.report.code import coloured, difference

TAG = re.compile(r'<span class="\w+">|</span>')


def test_tokens_have_their_class() -> None:
    text = '#include <cmath>\n// why\nfor (int i = 0x1F; i < 2.5e-3f; ++i) s = "a<b";\n'
    found = re.findall(r'<span class="(\w+)">([^<]*)</span>', str(coloured(text)))
    assert ("directive", "#include &lt;cmath&gt;") in found
    assert ("remark", "// why") in found
    assert ("keyword", "for") in found
    assert ("number", "0x1F") in found
    assert ("number", "2.5e-3f") in found
    assert ("text", "&#34;a&lt;b&#34;") in found


@given(st.text(alphabet="ab01.x#/*\"'\\\n <>&e+-_", max_size=60))
def test_nothing_is_lost_and_nothing_escapes(text: str) -> None:
    shown = TAG.sub("", str(coloured(text)))
    assert "<" not in shown
    assert ">" not in shown
    assert html.unescape(shown) == text


def test_difference_marks_lines() -> None:
    lines = list(difference("one\ntwo\n", "one\nthree\n"))
    assert [(line.kind, line.text) for line in lines] == [
        ("hunk", "@@ -1,2 +1,2 @@"),
        ("same", " one"),
        ("removed", "-two"),
        ("added", "+three"),
    ]
    assert list(difference("same", "same")) == []
