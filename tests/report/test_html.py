from __future__ import annotations

import re
from html.parser import HTMLParser

from support.samples import correct_verdict, failed_verdict, sample_report, sample_task

from kernelworks.kernel.verdict import Status
from kernelworks.report.html import render_html
from kernelworks.report.model import EvaluationRow, Winner

HOSTILE = '</pre></script><script>alert("x")</script><img src=x onerror=alert(1)>'


class Page(HTMLParser):
    """Tags with their attributes, and the text of every table cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_is_self_contained() -> None:
    page = Page(render_html(sample_report()))
    names = {tag for tag, _ in page.tags}
    assert not names & {"link", "img", "iframe", "object", "embed", "base"}
    for tag, attributes in page.tags:
        assert not {"src", "href", "onclick", "onload", "onerror"} & set(attributes), (tag, attributes)
    policies = [a.get("content") or "" for t, a in page.tags if t == "meta" and a.get("http-equiv")]
    assert policies[0].startswith("default-src 'none'")
    assert "url(" not in render_html(sample_report())


def test_the_page_says_what_was_asked_for() -> None:
    data = sample_report()
    text = render_html(data)
    assert data.winner is not None
    for part in (
        data.run,
        data.winner.kernel,
        "torch eager",
        "torch.compile",
        "as_called",
        "of the memory bound",
        data.hardware.name,
        "2.13.0",
        "minutes = 1.5",
        "schedule none -&gt; static",
        data.notes[0],
    ):
        assert part in text, part
    rows = re.findall(r'<tr data-status="(\w+)"', text)
    assert rows == [row.verdict.status.value for row in data.evaluations]
    assert re.search(r'<span class="added">\+ +#pragma omp parallel', text)


def test_text_of_others_cannot_become_markup() -> None:
    harmless = Page(render_html(sample_report()))
    data = sample_report()
    assert data.winner is not None
    winner = Winner(
        kernel=data.winner.kernel,
        text=HOSTILE,
        verdict=data.winner.verdict.model_copy(update={"flags": (HOSTILE,), "params": {"A": HOSTILE}}),
        idea=HOSTILE,
        path=HOSTILE,
        move=HOSTILE,
        parent=HOSTILE,
        parent_text=HOSTILE + "\nmore",
    )
    row = EvaluationRow(
        number=1,
        kernel=HOSTILE,
        verdict=failed_verdict(HOSTILE, Status.WRONG, HOSTILE),
        move=HOSTILE,
        operator=HOSTILE,
        parents=(HOSTILE,),
    )
    attacked = data.model_copy(
        update={
            "task": sample_task().model_copy(update={"name": HOSTILE, "source": HOSTILE}),
            "run": HOSTILE,
            "winner": winner,
            "prototype": HOSTILE,
            "config_toml": HOSTILE,
            "versions": {HOSTILE: HOSTILE},
            "evaluations": (row, *data.evaluations[1:]),
            "notes": (HOSTILE,),
        }
    )
    page = Page(render_html(attacked))
    assert sum(tag == "script" for tag, _ in page.tags) == sum(tag == "script" for tag, _ in harmless.tags) == 1
    assert "img" not in {tag for tag, _ in page.tags}


def test_a_run_without_a_correct_kernel_has_a_page() -> None:
    rows = (EvaluationRow(number=1, kernel="ab", verdict=failed_verdict("ab", Status.CRASHED, "signal 11")),)
    data = sample_report().model_copy(update={"evaluations": rows, "winner": None, "elites": ()})
    text = render_html(data)
    assert "No kernel was correct" in text
    assert "signal 11" in text


def test_a_winner_that_differs_in_params_alone_says_so() -> None:
    data = sample_report()
    assert data.winner is not None
    winner = data.winner.model_copy(update={"parent_text": data.winner.text, "parent": "feedfacefeedface"})
    text = render_html(data.model_copy(update={"winner": winner}))
    assert "only params differ" in text
    assert 'class="diff"' not in text


def test_a_winner_whose_baselines_are_missing_has_a_page() -> None:
    data = sample_report()
    assert data.winner is not None
    verdict = correct_verdict(data.winner.kernel, 2.0).model_copy(update={"roofline": None, "params": {}, "flags": ()})
    text = render_html(data.model_copy(update={"winner": data.winner.model_copy(update={"verdict": verdict})}))
    assert "against every baseline" not in text
