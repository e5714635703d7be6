"""Stand-ins for packages that SGLang imports everywhere and a CPU server never needs.

The wheel sglang 0.5.23 imports these at module level, so without them nothing starts:

    triton       ModuleNotFoundError: No module named 'triton'  (srt/utils/common.py:91)
    sgl_kernel   
    torchvision  
    datasets     

A stand-in only has names. Naming, subclassing and annotating with them works, calling one raises
`NotImplementedError`: a kernel that a CPU layout would really launch is an error, never a silent nothing.
A package that is installed is used as it is.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGES = frozenset({"sgl_kernel", "torchvision", "triton"})


class _AbsentName(type):
    """The type of every name in an absent package: itself a class, so that it can be a base or a hint."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _absent(f"{cls.__qualname__}.{name}")

    def __call__(cls, *_args: object, **_kwargs: object) -> object:
        raise NotImplementedError(f"{cls.__qualname__} was called, but its package is not installed")


def _absent(path: str) -> _AbsentName:
    return _AbsentName(path.rpartition(".")[2], (), {"__qualname__": path})


class _Kernel:
    """What `triton.jit` leaves of a kernel: a name that can't be launched."""

    def __init__(self, source: object) -> None:
        self._name = getattr(source, "__qualname__", "kernel")

    def __getitem__(self, _grid: object) -> object:
        raise NotImplementedError(f"Triton kernel {self._name} was launched, but Triton is not installed")

    def __call__(self, *_args: object, **_kwargs: object) -> object:
        return self[None]


def _jit(source: object = None, **_options: object) -> object:
    return _jit if source is None else _Kernel(source)


def _unchanged(*_args: object, **_kwargs: object) -> object:
    return lambda kernel: kernel


# What SGLang calls while its modules are being imported, or for plain arithmetic.
_CALLABLE = {
    "triton.jit": _jit,
    "triton.autotune": _unchanged,
    "triton.heuristics": _unchanged,
    "triton.Config": dict,
    "triton.cdiv": lambda a, b: -(-a // b),
    "triton.next_power_of_2": lambda n: 1 << (n - 1).bit_length(),
    "triton.language.constexpr": lambda value: value,
}


class _AbsentModule(ModuleType):
    __version__ = "0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        return _CALLABLE.get(path) or _absent(path)


class AbsentPackages(MetaPathFinder, Loader):
    """Comes last on `sys.meta_path`, so it is asked only for what is not installed."""

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if fullname == "triton.knobs" or fullname.partition(".")[0] not in PACKAGES or _importer().partition(".")[0] != "sglang":
            return None
        if fullname == "triton":
            # torch remembers its answer, and has to be asked before `triton` stands in sys.modules.
            from torch.utils._triton import has_triton_package

            has_triton_package()
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _importer() -> str:
    """The module whose import statement is being carried out.

    torch and transformers probe for the same packages, and must go on finding them missing.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith((__name__, "importlib")):
        frame = frame.f_back
    return frame.f_globals.get("__name__", "") if frame is not None else ""
