"""Stand-ins for packages that SGLang 0.5.23 imports whatever it runs on. Without them nothing starts:

    sglang/srt/utils/common.py:91                    ModuleNotFoundError: No module named 'triton'
    sglang/kernels/ops/kvcache/cache_move.py:10      ModuleNotFoundError: No module named 'sgl_kernel'
    sglang/srt/multimodal/internvl_utils.py:5        ModuleNotFoundError: No module named 'torchvision'

A stand-in has names and nothing behind them. Naming, annotating and subclassing work; a call raises
`NotImplementedError`, so that a kernel which a CPU layout would really launch is an error and never a
silent nothing. A package that is installed is used as it is.
"""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

PACKAGES = frozenset({"sgl_kernel", "torchvision", "triton"})

GPU_PACKAGES = frozenset(
    {
        # Those that the wheel asks for.
        *("cuda", "cutlass", "deep_ep", "deep_gemm", "flash_attn", "flash_mla", "flashinfer", "humming"),
        *("quack", "tilelang"),
        # All-to-all backends that are installed by hand. MoRI is not among them: it goes with AMD's GPUs.
        *("mooncake", "nixl_ep", "pplx_kernels"),
    }
)
"""What a machine with NVIDIA GPUs has besides: it is judged whether a launch is legal, not what is installed."""

# SGLang hooks into Triton's launches through it, unless it can't be imported (srt/utils/triton_load_watch.py).
LEFT_MISSING = frozenset({"triton.knobs"})


class _AbsentName(type):
    """The type of the names in an absent package: classes, so that they serve as bases and as annotations."""

    def __getattr__(cls, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _found(f"{cls.__qualname__}.{name}")

    def __call__(cls, *args: object, **kwargs: object) -> object:
        if cls.__module__.startswith("sglang."):
            # A class of SGLang's own on an absent base.
            return super().__call__(*args, **kwargs)
        raise NotImplementedError(f"{cls.__qualname__} was called, but its package is not installed")


def _absent(path: str) -> _AbsentName:
    return _AbsentName(path.rpartition(".")[2], (), {"__qualname__": path})


def _found(path: str) -> object:
    return CALLABLE.get(path) or _absent(path)


class _Kernel:
    """What `triton.jit` leaves of a function: a name that can't be launched."""

    def __init__(self, function: object) -> None:
        self._name = getattr(function, "__qualname__", "kernel")

    def __getitem__(self, _grid: object) -> object:
        raise NotImplementedError(f"Triton kernel {self._name} was launched, but Triton is not installed")

    def __call__(self, *_args: object, **_kwargs: object) -> object:
        return self[None]


def _jit(function: object = None, **_options: object) -> object:
    return _jit if function is None else _Kernel(function)


def _leaves_the_kernel_as_it_is(*_args: object, **_kwargs: object) -> object:
    return lambda kernel: kernel


# What is called while modules are being imported, and plain arithmetic.
CALLABLE: dict[str, object] = {
    "cutlass.cute.experimental.jit": _jit,
    "cutlass.cute.experimental.kernel": _jit,
    "cutlass.cute.ceil_div": lambda dividend, divisor: -(-dividend // divisor),
    "cutlass.cute.jit": _jit,
    "cutlass.cute.kernel": _jit,
    "deep_gemm.get_num_sms": lambda: 132,
    "flashinfer.comm.MoeAlltoAll": lambda *_args, **_kwargs: None,
    "flashinfer.comm.mapping.Mapping": lambda *_args, **_kwargs: None,
    "flashinfer.comm.mnnvl.MnnvlConfig": lambda *_args, **_kwargs: None,
    "flashinfer.comm.moe_a2a_get_workspace_size_per_rank": lambda *_args, **_kwargs: 1 << 20,
    "flashinfer.mm_mxfp8.is_backend_supported": lambda *_args, **_kwargs: True,
    "triton.Config": dict,
    "triton.autotune": _leaves_the_kernel_as_it_is,
    "triton.cdiv": lambda dividend, divisor: -(-dividend // divisor),
    "triton.heuristics": _leaves_the_kernel_as_it_is,
    "triton.jit": _jit,
    "triton.language.constexpr": lambda value: value,
    "triton.next_power_of_2": lambda number: 1 << (number - 1).bit_length(),
}


class _AbsentModule(ModuleType):
    __version__ = "0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return _found(f"{self.__name__}.{name}")


class AbsentPackages(MetaPathFinder, Loader):
    """Stands last on `sys.meta_path`, and so is asked only for what is not installed."""

    def __init__(self, packages: frozenset[str]) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        package = fullname.partition(".")[0]
        if package not in self._packages or fullname in LEFT_MISSING or not _sglang_is_importing():
            return None
        if fullname == "triton":
            _let_torch_look_for_triton()
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def _sglang_is_importing() -> bool:
    """torch and transformers look for the same packages, and have to go on finding them missing."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module not in {__name__.partition(".")[0], "importlib"}:
            return module == "sglang"
        frame = frame.f_back
    return False


def _let_torch_look_for_triton() -> None:
    """torch remembers what it found, and would take the stand-in for the real one once it is imported:

    torch/_inductor/runtime/hints.py:57    ModuleNotFoundError: No module named 'triton.backends'
    """
    from torch.utils._triton import has_triton_package  # noqa: PLC0415 - torch is slow to import

    has_triton_package()
