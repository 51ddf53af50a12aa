"""The target of PyTorch submissions: what it takes, and what it hands on."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builds import scale_task

from kernelworks.errors import KernelError
from kernelworks.kernel.frontmatter import parse_kernel
from kernelworks.kernel.model import Contract, Kernel, Language, Origin
from kernelworks.targets.base import Artefact
from kernelworks.targets.module import ModuleTarget
from kernelworks.targets.registry import get_target

TEXT = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return x\n"
TASK = scale_task().model_copy(update={"framework": "torch"})


def kernel(text: str, language: Language = Language.PYTHON) -> Kernel:
    return parse_kernel(text, language, Origin(proposer="file"))


def build(text: str) -> Artefact:
    built = ModuleTarget().build(TASK, kernel(text))
    assert isinstance(built, Artefact)
    return built


def test_it_is_registered_under_its_language() -> None:
    assert get_target("python").name == "python"


def test_torch_is_importable_here() -> None:
    probe = ModuleTarget().probe()
    assert probe.usable, probe.problem
    assert probe.versions["torch"]


def test_the_text_is_handed_on_as_it_is() -> None:
    text = "# ä\r\n" + TEXT
    built = build(text)
    assert built.path.read_bytes() == text.encode()
    assert built.contract is Contract.MODULE
    assert (built.descriptor, built.flags) == (None, ())


def test_the_same_code_is_known_again_whatever_its_comments() -> None:
    first, again, other = build(TEXT), build(f"# another comment\n{TEXT}"), build(TEXT.replace("return x", "return -x"))
    assert first.code_digest == again.code_digest != other.code_digest
    assert build(TEXT).cached


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", "line 1: expected Python"),
        ("x = '\0'\n", "expected Python"),
        ("#---\n# contract: module\n# params:\n#   A: [1, 2]\n#---\n" + TEXT, "params: expected none"),
        ("#---\n# contract: module\n# let: {A: 1 + 1}\n#---\n" + TEXT, "let: expected none"),
        ("#---\n# contract: function\n#---\n" + TEXT, "found lang python with contract function"),
        ("#---\n# contract: module\n# lang: triton\n#---\n" + TEXT, "found lang triton"),
    ],
)
def test_what_it_cannot_honour_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(KernelError) as caught:
        build(text)
    assert said in caught.value.message


def test_a_numpy_task_has_no_submissions() -> None:
    with pytest.raises(KernelError, match="found a NumPy one"):
        ModuleTarget().build(scale_task(), kernel(TEXT))


def test_a_folder_that_cannot_be_written_is_the_environments_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kernelworks.errors import EnvironmentLackError

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELWORKS_HOME", str(tmp_path / "file"))
    with pytest.raises(EnvironmentLackError, match="cache"):
        build(TEXT)
