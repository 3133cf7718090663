"""A simulated accelerator: CPU arithmetic behind another device's name.

No GPU is needed to find most of what breaks on one. The simulated device refuses what a GPU refuses (tensors of two
devices in one operation, NumPy without `.cpu()`, a generator of another device) and, on request, float64, as Apple's
MPS does. It counts what makes a GPU's host wait for the device. It sees neither kernels nor speed.

    with Accelerator() as sim:
        x = torch.randn(100, 32).to(sim.device).requires_grad_()
        isoscore(x).backward()
    sim.waits       # Counter({Wait(kind=".item()", place="scores.py:75 count = ..."): 1, ...})

Within the block, `nn.Module.to` and `accelerate` know the device too.
"""
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from linecache import getline
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import istar_nb
from istar_nb.base.points import has_float64

NAME, PACKAGE = "sim", str(Path(istar_nb.__file__).parent)
active = []    # the accelerators whose blocks are open, the innermost last


class DeviceModule:
    "What torch asks of a device's module."
    def is_available(self)->bool: return bool(active)
    def is_initialized(self)->bool: return bool(active)
    def is_bf16_supported(self, including_emulation:bool=True)->bool: return True
    def device_count(self)->int: return int(bool(active))
    def current_device(self)->int: return 0
    def set_device(self, device)->None: pass
    def synchronize(self, device=None)->None: pass
    def empty_cache(self)->None: pass
    def memory_allocated(self, device=None)->int: return 0
    def _is_in_bad_fork(self)->bool: return False
    def manual_seed(self, seed:int)->None: pass        # the CPU's generator draws for the device
    def manual_seed_all(self, seed:int)->None: pass
    def get_rng_state(self, device=None)->Tensor: return torch.get_rng_state()
    def set_rng_state(self, state:Tensor, device=None)->None: torch.set_rng_state(state)
    def get_amp_supported_dtype(self)->list: return [torch.float16, torch.bfloat16]


class Hook(torch._C._acc.PrivateUse1Hooks):
    "Whether torch sees the device: only while a block is open, so that other tests in this process do not."
    def is_available(self)->bool: return bool(active)
    def is_built(self)->bool: return True
    def has_primary_context(self, device:int)->bool: return bool(active)


_setup_privateuseone_for_python_backend(rename=NAME, backend_module=DeviceModule(), hook=Hook())


class Wait(NamedTuple):
    "One reason why the host waited for the device."
    kind:str   # ".item()", ".tolist()", "nonzero", "mask", "copy to the host", …
    place:str  # innermost line of the package that was running; empty outside of it


def place()->str: # "file.py:line source"
    "The innermost line of the package that is running."
    frame = sys._getframe(1)
    while frame and not frame.f_code.co_filename.startswith(PACKAGE): frame = frame.f_back
    if frame is None: return ""
    path, line = frame.f_code.co_filename, frame.f_lineno
    return f"{Path(path).name}:{line} {getline(path, line).strip()}"


# Operations that return a shape or a value that the host must know before it can go on.
WAITING = {"aten::_local_scalar_dense": ".item()", "aten::is_nonzero": ".item()", "aten::equal": "equal",
           "aten::nonzero": "nonzero", "aten::masked_select": "mask", "aten::_unique2": "unique",
           "aten::unique_dim": "unique", "aten::unique_consecutive": "unique", "aten::bincount": "bincount",
           "aten::repeat_interleave.Tensor": "repeat_interleave", "aten::_linalg_eigh": "eigh",
           "aten::_linalg_svd": "svd", "aten::linalg_eig": "eig", "aten::_linalg_check_errors": "linalg check"}
# Operations that take a CPU tensor beside the device's: copies and indices of any size, numbers in a 0-d tensor.
COPYING = {"aten::copy_", "aten::_to_copy"}
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
TAKING_NUMBERS = {"aten::masked_fill", "aten::masked_fill_", "aten::where", "aten::fill", "aten::fill_",
                  "aten::index_fill", "aten::index_fill_"}


def simulated(device)->bool: # True for the simulated device's name
    "Whether a device is the simulated one."
    return device is not None and torch.device(device).type == NAME


def canonical(device)->torch.device: # with an index
    "The device of a name, the first if there is no number."
    return torch.device(NAME, torch.device(device).index or 0)


class Simulated(Tensor):
    "A tensor on the simulated device; `inner` has its values."
    @staticmethod
    def __new__(cls, inner:Tensor, device:torch.device, requires_grad:bool=False):
        tensor = Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype,
                                               storage_offset=inner.storage_offset(), device=device,
                                               requires_grad=requires_grad)
        tensor.inner = inner
        return tensor

    def __repr__(self)->str: return f"Simulated({self.inner})"

    def tolist(self)->list:
        note(".tolist()")
        return self.inner.tolist()

    def numpy(self, *, force:bool=False):
        if force: return self.detach().cpu().numpy()
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. "
                        "Use Tensor.cpu() to copy the tensor to host memory first.")

    def __array__(self, *args, **kwargs): return self.numpy()

    def untyped_storage(self):
        return self.inner.untyped_storage()    # `save_pretrained` asks which tensors share memory

    def __reduce_ex__(self, protocol):    # saved with its values, as any tensor; loaded on the CPU
        note("copy to the host")
        return self.inner.detach().requires_grad_(self.requires_grad).__reduce_ex__(protocol)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None): return run(func, args, kwargs or {})


def note(kind:str)->None:
    "Count a wait."
    for accelerator in active: accelerator.waits[Wait(kind, place())] += 1


def check_devices(func, args:tuple, kwargs:dict, ours:list[Tensor], others:list[Tensor])->None:
    "An error for tensors that a GPU would not take together."
    name, devices = func._schema.name, sorted({str(t.device) for t in ours})
    generator = kwargs.get("generator")
    if generator is not None:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found '{generator.device}'")
    if name in COPYING or not ours: return
    if name in INDEXING and isinstance(args[0], Simulated): others = [t for t in args[2:3] if is_cpu(t)]
    elif name in INDEXING:
        raise RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor, "
                           f"not {devices}")
    if torch.Tag.pointwise in func.tags or name in TAKING_NUMBERS | INDEXING: others = [t for t in others if t.ndim]
    if others: devices.append("cpu")
    if len(devices) > 1:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {devices} ({name}, {place()})")


def mapped(f, value):
    "`f` of everything in nested lists, tuples and dictionaries: what torch's own trees do in five times the time."
    if isinstance(value, (list, tuple)): return type(value)([mapped(f, part) for part in value])
    return {k: mapped(f, part) for k, part in value.items()} if isinstance(value, dict) else f(value)


def is_cpu(value)->bool: # True for an ordinary tensor
    "Whether a value is a tensor in host memory."
    return isinstance(value, Tensor) and not isinstance(value, Simulated)


def fills_by_mask(args:tuple)->bool: # True for x[mask] = number, which needs no count
    "Whether an `index_put` is a masked fill."
    indices, values, accumulate = args[1], args[2], len(args) > 3 and args[3]
    masks = [i for i in indices if i is not None]
    return len(masks) == 1 and values.numel() == 1 and not accumulate


def count_waits(func, args:tuple, ours:list[Tensor], target:torch.device|None)->None:
    "Count an operation that makes the host wait."
    name, full = func._schema.name, f"{func._schema.name}.{func._schema.overload_name}"
    kind = WAITING.get(name) or WAITING.get(full)
    if kind and ours: note(kind)
    masks = (torch.bool, torch.uint8)
    if name in INDEXING and ours and any(i is not None and i.dtype in masks for i in args[1]):
        if name == "aten::index" or not fills_by_mask(args): note("mask")
    if name not in COPYING: return
    source = args[1] if name == "aten::copy_" else args[0]
    if isinstance(source, Simulated) and target is None: note("copy to the host")
    if is_cpu(source) and target is not None:
        for accelerator in active: accelerator.uploads[Wait("copy to the device", place())] += 1


def target_of(func, args:tuple, kwargs:dict, ours:list[Tensor])->torch.device|None: # None for the CPU
    "Where the result of an operation is."
    if func._schema.name == "aten::copy_": return args[0].device if isinstance(args[0], Simulated) else None
    if kwargs.get("device") is not None: return canonical(kwargs["device"]) if simulated(kwargs["device"]) else None
    if func._schema.name in INDEXING: return args[0].device if isinstance(args[0], Simulated) else None
    return ours[0].device if ours else None


# as `args` and `kwargs` are on the CPU
def divided(args:tuple, kwargs:dict)->tuple[list[Tensor],list[Tensor],tuple,dict]:
    "The device's tensors among some arguments, the others, and the CPU's side of all arguments."
    ours, others = [], []
    def plain(value):
        if isinstance(value, Simulated):
            ours.append(value)
            return value.inner
        if isinstance(value, Tensor): others.append(value)
        return torch.device("cpu") if isinstance(value, torch.device) and value.type == NAME else value
    return ours, others, *mapped(plain, (args, kwargs))


def run(func, args:tuple, kwargs:dict):
    "Compute an operation on the CPU, refuse what the device would refuse, and count waits."
    if torch.is_inference_mode_enabled():    # there, operations come whole that otherwise come in parts
        with torch.inference_mode(False), torch.no_grad(), Dispatch(): parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented: return parts
        with torch.inference_mode(False), torch.no_grad(): return run(func, args, kwargs)
    ours, others, plain_args, plain_kwargs = divided(args, kwargs)
    if not ours and not simulated(kwargs.get("device")):
        return func(*args, **kwargs)    # nothing of the device is in it
    check_devices(func, args, kwargs, ours, others)
    target = target_of(func, args, kwargs, ours)
    count_waits(func, args, ours, target)
    plain_kwargs.pop("pin_memory", None)
    out = func(*plain_args, **plain_kwargs)
    if target is None: return out
    return return_and_correct_aliasing(func, args, kwargs, mapped(partial(wrap, device=target), out))


def wrap(value, device:torch.device):
    "A result on the device."
    if not isinstance(value, Tensor): return value
    if value.dtype in (torch.float64, torch.complex128) and active and not active[-1].float64:
        raise TypeError(f"Cannot convert a {NAME} Tensor to {value.dtype} dtype as the framework doesn't support it "
                        f"({place()})")
    return Simulated(value, device)


class Dispatch(TorchDispatchMode):
    "Shows `run` every operation, those without a tensor of the device too."
    def __torch_dispatch__(self, func, types, args=(), kwargs=None): return run(func, args, kwargs or {})


# Under autocast a GPU computes products of matrices in half precision, and what loses much by that in float32.
IN_HALF = ["linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "scaled_dot_product_attention"]
IN_FULL = ["softmax.int", "log_softmax.int", "layer_norm", "native_layer_norm", "nll_loss", "mse_loss", "sum",
           "sum.dim_IntList", "cumsum", "exp", "expm1", "log",
           "log1p", "logsumexp", "pow.Tensor_Scalar", "rsqrt", "reciprocal", "linalg_vector_norm", "cdist",
           "cosine_similarity"]
AUTOCAST = torch._C.DispatchKey.AutocastPrivateUse1


def autocasting(op, half:bool):
    "A kernel that casts the device's tensors before it computes."
    def kernel(*args, **kwargs):
        dtype = torch.get_autocast_dtype(NAME) if half else torch.float32
        def cast(value):
            return (value.to(dtype)
                    if isinstance(value, Simulated) and value.is_floating_point()
                    and value.dtype != torch.float64 else value)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(AUTOCAST)):
            return op(*mapped(cast, args), **mapped(cast, kwargs))
    return kernel


autocast, others = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
others.fallback(torch.library.fallthrough_kernel, AUTOCAST.name)
for name in [*IN_HALF, *IN_FULL]:
    packet, _, overload = name.partition(".")
    autocast.impl(name, autocasting(getattr(getattr(torch.ops.aten, packet), overload or "default"), name in IN_HALF),
                  AUTOCAST.name)


class Accelerator:
    "Within it, tensors made for `device` are simulated, and its waits are counted."
    def __init__(self,
        float64:bool=True,  # whether the device has float64; Apple's MPS does not
    ):
        self.float64, self.device = float64, torch.device(NAME, 0)
        self.waits = Counter()    # Wait -> how often the host waited for the device
        self.uploads = Counter()  # Wait -> copies to the device, which wait too unless the memory is pinned

    def __enter__(self)->"Accelerator":
        self.undo = undo = ExitStack()
        undo.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        undo.callback(torch.__future__.set_swap_module_params_on_conversion,
                      torch.__future__.get_swap_module_params_on_conversion())
        torch._C._set_only_lift_cpu_tensors(True)    # `torch.tensor(…, device=…)` is seen as a copy to the device
        torch.__future__.set_swap_module_params_on_conversion(True)
        has_float64.cache_clear()    # the device is asked again: another one of this name may have had it
        undo.callback(has_float64.cache_clear)
        undo.enter_context(default_device(self.device))
        active.append(self)
        undo.callback(active.remove, self)
        undo.enter_context(Dispatch())
        return self

    def __exit__(self, *error)->None: self.undo.close()

    def away(self):
        "A block within which `accelerate` finds the CPU, to compare with."
        return default_device(torch.device("cpu"))


@contextmanager
def default_device(device:torch.device)->Iterator[None]:
    "A block within which `accelerate` and the Trainer find a device, whatever they found before."
    forget_accelerate()
    with patch.dict(os.environ, ACCELERATE_TORCH_DEVICE=str(device)): yield
    forget_accelerate()


def forget_accelerate()->None:
    "Let `accelerate` look for its device again."
    for state in (AcceleratorState, GradientState, PartialState): state._reset_state()
