from __future__ import annotations

import pytest
from support.builds import scale_task

from kernelworks.targets.base import BuildFailure
from kernelworks.targets.signature import check_signature
from kernelworks.task.model import Case, CaseRole, DType, ScalarArgument, Task, TensorArgument

MANY_TYPES = Task(
    name="many",
    source="python",
    digest="00",
    framework="numpy",
    inputs=(
        TensorArgument(name="x", dtype=DType.FLOAT16, shape=("n",), role="input"),
        TensorArgument(name="i", dtype=DType.INT32, shape=("n",), role="input"),
        ScalarArgument(name="flag", type="bool"),
        ScalarArgument(name="scale", type="float"),
    ),
    outputs=(TensorArgument(name="y", dtype=DType.BFLOAT16, shape=("n",), role="output"),),
    dims=("n",),
    cases=(Case(name="one", role=CaseRole.TIMED, sizes={"n": 8}),),
)


def check(launch: str, head: str = "", task: Task | None = None) -> BuildFailure | None:
    return check_signature(f"#include <cstdint>\n{head}\n{launch} {{ return 0; }}\n", task or scale_task(), {})


@pytest.mark.parametrize(
    "launch",
    [
        'extern "C" int launch(const float* x, float* y, int64_t n)',
        'extern "C" int launch(const float* __restrict a, float *__restrict__ b, const std::int64_t c)',
        'extern "C" int launch(float const *, float y[], long long int)',
        'extern "C" int launch(float* x, float* const y, long n) noexcept',
        'extern "C" __attribute__((visibility("default"))) auto launch(const float* x, float* y, int64_t n) -> int',
        'extern "C" int launch(/* in */ const float* x, // the input\n float* y, ::int64_t n)',
        'extern "C" int32_t launch(const float* x, float* y, int64_t n)',
    ],
)
def test_spellings_of_the_same_prototype_agree(launch: str) -> None:
    assert check(launch) is None


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        ('extern "C" int launch(const float* x, float* y)', "must have 3 parameters and has 2"),
        ('extern "C" int launch()', "must have 3 parameters and has 0"),
        ('extern "C" int launch(void)', "must have 3 parameters and has 0"),
        (
            'extern "C" int launch(const double* x, float* y, int64_t n)',
            "parameter 1 of launch must be `const float* x` and is `const double* x`",
        ),
        ('extern "C" int launch(const float* x, float y, int64_t n)', "parameter 2"),
        ('extern "C" int launch(const float* x, float& y, int64_t n)', "parameter 2"),
        ('extern "C" int launch(const float* x, float** y, int64_t n)', "parameter 2"),
        ('extern "C" int launch(const float* x, float* y, int n)', "parameter 3"),
        ('extern "C" int launch(const float* x, float* y, ...)', "must have 3 parameters and has 2"),
        ('extern "C" void launch(const float* x, float* y, int64_t n)', "must return int"),
    ],
)
def test_each_mismatch_is_said_with_both_prototypes(launch: str, said: str) -> None:
    failure = check(launch)
    assert failure is not None
    assert said in failure.reason
    assert 'expected `extern "C" int launch(const float* x, float* y, int64_t n)`' in failure.reason
    assert f"found `{launch}`" in failure.reason
    assert failure.diagnostics[0].line == 3
    assert not failure.environment


def test_a_block_with_c_linkage_and_a_namespace_are_searched() -> None:
    text = 'namespace k {{ extern "C" {{\nint launch({}) {{ return 0; }}\n}} }}'
    assert check_signature(text.format("const float* x, float* y, long n"), scale_task(), {}) is None
    failure = check_signature(text.format("const float* x"), scale_task(), {})
    assert failure is not None
    assert failure.diagnostics[0].line == 2


def test_one_agreeing_definition_among_conditional_ones_is_enough() -> None:
    text = """#if defined(A)
extern "C" int launch(int n) { return 0; }
#else
extern "C" int launch(const float* x, float* y, int64_t n) { return 0; }
#endif
"""
    assert check_signature(text, scale_task(), {}) is None


def test_aliases_and_restrict_macros_are_followed() -> None:
    head = "#define RESTRICT __restrict__\ntypedef float real;\nusing scalar = real;\n#define SIZE int64_t"
    good = 'extern "C" int launch(const scalar* RESTRICT x, real* RESTRICT y, SIZE n)'
    assert check(good, head) is None
    failure = check(good, head.replace("typedef float", "typedef double"))
    assert failure is not None
    assert "parameter 1" in failure.reason


def test_a_type_from_a_param_is_followed() -> None:
    text = 'extern "C" int launch(const T* x, T* y, int64_t n) { return 0; }'
    assert check_signature(text, scale_task(), {"T": "float"}) is None
    assert check_signature(text, scale_task(), {"T": "double"}) is not None


def test_a_type_that_cannot_be_resolved_is_not_judged() -> None:
    assert check('extern "C" int launch(const vec<float>* x, FLOAT_P(float) y, int64_t n)') is None


def test_what_has_no_c_linkage_is_left_to_the_librarys_symbols() -> None:
    assert check("int launch(int n)") is None
    assert check("", head="// nothing here") is None
    helper = 'static int launch(int n) { return n; }\nextern "C" int launch(const float* x, float* y, int64_t n)'
    assert check(helper) is None


def test_all_element_types_and_scalars() -> None:
    good = (
        'extern "C" int launch(const _Float16* x, const int* i, uint8_t flag, double scale, unsigned short* y, long n)'
    )
    assert check(good, task=MANY_TYPES) is None
    for word, wrong in (
        ("_Float16", "float"),
        ("const int*", "const unsigned*"),
        ("uint8_t", "bool"),
        ("double", "float"),
    ):
        failure = check(good.replace(word, wrong), task=MANY_TYPES)
        assert failure is not None, wrong
        assert wrong in failure.reason
