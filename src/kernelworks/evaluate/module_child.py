"""The candidate's process for PyTorch submissions: executes a text, makes its ``ModelNew``, calls it on command.

Run as a script by ``supervisor.py``: standard library, torch, and ``child.py`` and ``module_work.py`` beside it; never
imported by the harness. Nothing here is a defence: the submission shares this interpreter and can change anything in
it, torch included. What must be trusted is measured or checked outside. Right or wrong, and how fast, is decided there;
what this process says of itself (which operators of torch ran, whose code took the time) is evidence against those who
do not tamper with it, and no more.

Arguments: descriptor of the command socket, then the folders where packages are found. The protocol is that of
``child.py``, with ``load`` and ``bind`` changed and these added. A ``problem`` is null or ``{kind, message}``::

    load     {interface}, fd of the text       -> {problem, setup_ms, ftz, daz}  execute it, check signatures, make the
                                                                        model
    match    {key}, fd of weights              -> {unmatched, strange}  whose weights are whose: the tensors of the key
                                                                        are those of a model made from the same seed
    bind     {key}, fd of arguments            -> {workspaces: []}
    settle   {key}                             -> {problem}             check the last answer, copy it out
    profile  {key, without}                    -> {problem, work}       one call, whose time is it (``module_work``)
    company  {}                                -> {python_threads}

Weights are a JSON list of ``{name, argument, dtype, shape}``, arguments one of ``{"tensor": i, name, role, dtype,
shape, strides}``, ``{"int": v}``, ``{"float": v}`` and ``{"bool": v}`` (dims follow the tensors and are not used).
Beside each key the doorbell knows ``KEY#prepare`` (forget the last answer, make fresh tensors) and ``KEY#settle``. A
call whose ``forward`` raises returns ``RAISED``, and ``settle`` says what was raised.
"""

# ruff: noqa: PTH100, PTH118, PTH120

from __future__ import annotations

import ctypes
import json
import math
import os
import random
import sys
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernelworks.evaluate import child, module_model, module_work
else:

    def _beside(name: str) -> types.ModuleType:
        """A script of this folder; the folder itself stays off the path (it has a ``numbers.py``)."""
        import importlib.util as importers

        path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
        spec = importers.spec_from_file_location(f"kernelworks_{name}", path)
        module = importers.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    child = _beside("child")
    module_model = _beside("module_model")
    module_work = _beside("module_work")

RAISED, UNSETTLED = 1, 2
"""What a call returns whose ``forward`` raised, and an answer that is not what the reference returns."""
PREPARE, SETTLE = "#prepare", "#settle"
"""Errands of a key."""
FRAMES: Callable[[], dict[int, Any]] = getattr(sys, "_current_frames")  # noqa: B009  there is no public one
"""By thread, for all that run Python code."""
_POISON_BLOCKS, _POISON_BYTES = 32, 64 << 20
"""So many freed blocks of an answer's size are filled, or so much memory."""
_COPY_BYTES = 1 << 20
"""Answers are copied in pieces of this size, in random order: nobody can write ahead of the copy."""


class ModuleBound(child.Bound):
    """``ModelNew`` with one set of inputs, weights and places for its answer."""

    def __init__(self, owner: ModuleChild, arguments: list[dict[str, Any]], tensors: list[Any]) -> None:
        super().__init__(None, [])
        self._owner = owner
        self.inputs: list[Any] = []
        self.weights: dict[str, Any] = {}
        self.places: list[tuple[dict[str, Any], int, int]] = []
        """Of outputs: the argument, address and bytes."""
        for argument in arguments:
            if "tensor" not in argument:
                if not self.places:  # dims stand behind the outputs
                    self.inputs.append(next(iter(argument.values())))
                continue
            address, size_bytes = tensors[argument["tensor"]]
            if argument["role"] == "output":
                self.places.append((argument, address, size_bytes))
                continue
            tensor = tensor_at(address, argument["dtype"], argument["shape"], argument["strides"])
            if argument["role"] == "weight":
                self.weights[argument["name"]] = tensor
            else:
                self.inputs.append(tensor)
        self.answer: Any = None
        self.raised: module_model.Problem | None = None
        self.arguments: tuple[Any, ...] = ()

    def memory(self) -> list[tuple[int, int]]:
        """Where inputs and weights lie: first byte and bytes."""
        storages = [v.untyped_storage() for v in (*self.inputs, *self.weights.values()) if module_model.is_tensor(v)]
        return [(storage.data_ptr(), storage.nbytes()) for storage in storages]

    def prepare(self) -> None:
        """Forget the last answer; new tensor objects on the same memory, this key's weights in the model."""
        self.answer = self.raised = None
        fresh = [value.detach() if module_model.is_tensor(value) else value for value in self.inputs]
        self.arguments = tuple(module_model.fill(item, fresh) for item in self._owner.template)
        self._owner.use(self.weights)

    def call(self) -> int:
        """One call; the answer is kept until ``prepare``."""
        self._owner.use(self.weights)  # another key's, where several are called in a row
        try:
            self.answer = self._owner.model(*self.arguments)
        except Exception as error:  # noqa: BLE001  the submission's code: whatever it raises is its end
            self.raised = module_model.Problem("raised", module_model.described(error, "forward"))
            return RAISED
        return 0

    def call_allocating(self) -> int:
        """The same: a module allocates its answer under every policy."""
        return self.call()

    def poison(self) -> None:
        """Prepare, and leave NaN (bytes of 0xFF) in the heap wherever a tensor of the answer's size may come to lie."""
        self.prepare()
        blocks: list[Any] = []
        for _, _, size_bytes in self.places:
            count = max(2, min(_POISON_BLOCKS, _POISON_BYTES // max(1, size_bytes)))
            blocks += [TORCH.empty(size_bytes, dtype=TORCH.uint8) for _ in range(count)]
        for block in blocks:
            block.fill_(0xFF)

    def settle(self) -> None:
        """Check type, dtype, shape, device and layout of the answer, then copy it to its places.

        Raises:
            module_model.Problem: what is wrong with it.
        """
        if self.raised is not None:
            raise self.raised
        threads = len(FRAMES())
        if threads > 1:
            raise module_model.Problem("thread", f"{threads} threads run Python code after a call, expected 1")
        answers = module_model.flattened(self.answer)
        if len(answers) != len(self.places):
            expected = f"{len(self.places)} tensors" if len(self.places) != 1 else "one tensor"
            raise module_model.Problem(
                "output", f"expected {expected} from forward, found {module_model.shown(self.answer)}"
            )
        for (argument, _, _), answer in zip(self.places, answers, strict=True):
            check_tensor(answer, argument)
            self._refuse_input_memory(answer, argument["name"])
        for (_, address, size_bytes), answer in zip(self.places, answers, strict=True):
            dense = answer.detach().contiguous().resolve_conj().resolve_neg()
            copy_out(dense.data_ptr(), address, size_bytes)

    def _refuse_input_memory(self, answer: Any, name: str) -> None:
        start = answer.untyped_storage().data_ptr()
        for value in self.inputs:
            if module_model.is_tensor(value) and value.numel() and answer.numel():
                storage = value.untyped_storage()
                if storage.data_ptr() <= start < storage.data_ptr() + storage.nbytes():
                    expected = "expected a tensor with memory of its own"
                    raise module_model.Problem("output", f"{name}: {expected}, found one in the memory of an input")

    def settled(self) -> int:
        """The same, as the doorbell rings for it."""
        try:
            self.settle()
        except module_model.Problem:
            return UNSETTLED
        return 0

    def prepared(self) -> int:
        """``prepare``, as the doorbell rings for it."""
        self.prepare()
        return 0


class Errand(child.Bound):
    """Something else than a call that the doorbell can ring for."""

    def __init__(self, work: Callable[[], int]) -> None:
        super().__init__(work, [])

    def call_allocating(self) -> int:
        """No difference."""
        return self.call()


class ModuleChild(child.Child):
    """State of the process between commands."""

    def __init__(self) -> None:
        super().__init__()
        self._libraries = module_work.Libraries()
        self._slots: dict[str, Callable[[Any], None]] = {}
        self._matched: dict[str, tuple[str, tuple[int, ...]]] = {}
        """Argument that holds a weight of the reference, to the module's own name and shape."""
        self._standing: dict[str, Any] = {}
        self.model: Any = None
        self.template: list[Any] = []
        self.commands |= {
            "match": self.match,
            "settle": self.settle,
            "profile": self.profile,
            "company": self.company,
        }

    def load(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Execute the text and make the model, from the seed of the interface."""
        interface = message["interface"]
        text = read_all(fds[0])
        start = time.monotonic()
        try:
            self._make(text, interface)
            problem = None
        except module_model.Problem as found:
            problem = found.record()
        setup_ms = (time.monotonic() - start) * 1e3
        return {"problem": problem, "setup_ms": setup_ms, **child.float_mode()}

    def _make(self, text: str, interface: dict[str, Any]) -> None:
        made = module_model.executed(text).get(module_model.NAME)
        if made is None:
            raise module_model.Problem("missing", f"expected a class {module_model.NAME}, found none")
        if not isinstance(made, type) or not callable(getattr(made, "forward", None)):
            raise module_model.Problem(
                "missing",
                f"expected {module_model.NAME} to be a class with a method forward, found {module_model.shown(made)}",
            )
        init = [module_model.unpacked(item) for item in interface["init"]]
        self.template = [module_model.unpacked(item) for item in interface["forward"]]
        module_model.check_signature(made, "__init__", len(init), interface["init_signature"])
        module_model.check_signature(made, "forward", len(self.template), interface["forward_signature"])
        seed = interface["seed"]
        TORCH.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)
        try:
            self.model = made(*init)
        except Exception as error:  # noqa: BLE001  the submission's code
            raise module_model.Problem(
                module_model.stage_of(error), module_model.described(error, "__init__")
            ) from None
        self._slots = {name: setter for name, (_, setter) in module_model.own_tensors(self.model).items()}

    def match(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Find the module's tensor for each weight of the reference: by name and shape, else by equal values."""
        mapped = self._tensors.get(message["key"], [])
        weights: list[dict[str, Any]] = json.loads(read_all(fds[0]))
        theirs: list[tuple[str, str, Any]] = []
        """Qualified name, argument and tensor."""
        for (address, _), weight in zip(mapped, weights, strict=True):
            tensor = tensor_at(address, weight["dtype"], weight["shape"])
            theirs.append((weight["name"], weight["argument"], tensor))
        ours = {name: tensor for name, (tensor, _) in module_model.own_tensors(self.model).items()}
        for name, argument, tensor in theirs:
            own = ours.get(name)
            if own is not None and own.dtype is tensor.dtype and own.shape == tensor.shape:
                self._matched[argument] = (name, tuple(ours.pop(name).shape))
        for _, argument, tensor in theirs:
            if argument in self._matched:
                continue
            for name, own in ours.items():
                if own.dtype is tensor.dtype and own.numel() == tensor.numel() and module_model.same_bits(own, tensor):
                    self._matched[argument] = (name, tuple(ours.pop(name).shape))
                    break
        return {
            "unmatched": [name for name, argument, _ in theirs if argument not in self._matched],
            "strange": list(ours),
        }

    def bind(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Fix inputs, weights and places of a key."""
        key = message["key"]
        bound = ModuleBound(self, json.loads(read_all(fds[0])), self._tensors.get(key, []))
        self._bound[key] = bound
        self._bound[key + PREPARE] = Errand(bound.prepared)
        self._bound[key + SETTLE] = Errand(bound.settled)
        bound.prepare()
        return {"workspaces": []}

    def use(self, weights: dict[str, Any]) -> None:
        """Let the model's tensors lie in the memory of these."""
        if weights is self._standing:
            return
        for name, tensor in weights.items():
            if name in self._matched:
                own, shape = self._matched[name]
                self._slots[own](tensor.view(shape))
        self._standing = weights

    def settle(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Hand the last answer of a key over."""
        try:
            self._module(message).settle()
        except module_model.Problem as problem:
            return {"problem": problem.record()}
        return {"problem": None}

    def profile(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """One call under the accountant, the heap poisoned."""
        bound = self._module(message)
        bound.poison()
        with module_work.Accountant(self._libraries, message["without"], bound.memory()) as accountant:
            returned = bound.call()
        problem = bound.raised.record() if returned != 0 and bound.raised is not None else None
        return {"problem": problem, "work": accountant.report()}

    def company(self, _message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Threads that run Python code, this one included."""
        return {"python_threads": len(FRAMES())}

    def _module(self, message: dict[str, Any]) -> ModuleBound:
        bound = self._bound[message["key"]]
        assert isinstance(bound, ModuleBound)
        return bound


class _Torch:
    """Imported by ``main``, before anything is asked."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.modules["torch"], name)


TORCH: Any = _Torch()


def tensor_at(address: int, dtype: str, shape: list[int], strides: list[int] | None = None) -> Any:
    """A tensor on memory of ours; dense without ``strides`` (in elements)."""
    kind = getattr(TORCH, dtype)
    if 0 in shape:
        return TORCH.empty(shape, dtype=kind)
    if strides is None:
        strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (count * kind.itemsize)).from_address(address)
    return TORCH.frombuffer(memory, dtype=kind, count=count).as_strided(shape, strides)


def check_tensor(answer: Any, argument: dict[str, Any]) -> None:
    """One tensor of an answer against what the reference returns.

    Raises:
        module_model.Problem: before anything numeric, with both.
    """
    name = argument["name"]
    if type(answer) not in (TORCH.Tensor, TORCH.nn.Parameter):
        raise module_model.Problem("output", f"{name}: expected a torch.Tensor, found {type(answer).__name__}")
    expected = f"{argument['dtype']}{argument['shape']} on cpu"
    found = f"{str(answer.dtype).removeprefix('torch.')}{list(answer.shape)} on {answer.device}"
    if answer.layout is not TORCH.strided:
        found += f" with layout {answer.layout}"
    if found != expected:
        raise module_model.Problem("output", f"{name}: expected {expected}, found {found}")
    storage_bytes = answer.untyped_storage().nbytes()
    if answer.numel() and (answer.untyped_storage().data_ptr() == 0 or storage_bytes < answer.element_size()):
        raise module_model.Problem("output", f"{name}: expected {expected}, found a tensor without memory")


def copy_out(source: int, target: int, size_bytes: int) -> None:
    """Copy an answer, in pieces and at random."""
    starts = list(range(0, size_bytes, _COPY_BYTES))
    random.SystemRandom().shuffle(starts)
    for start in starts:
        ctypes.memmove(target + start, source + start, min(_COPY_BYTES, size_bytes - start))


def read_all(fd: int) -> str:
    """The text behind a descriptor, from its start."""
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0).decode("utf-8")


def start_torch(threads: int) -> None:
    """Import torch and start its pool, so that its threads are known before any code of the submission runs."""
    import torch

    torch.set_num_interop_threads(1)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.zeros(1 << 20).add_(1.0)


def main() -> None:
    """Import torch, then serve."""
    sys.path += [path for path in sys.argv[2:] if path not in sys.path]
    start_torch(int(os.environ["OMP_NUM_THREADS"]))
    child.run(ModuleChild())


if __name__ == "__main__":
    main()
