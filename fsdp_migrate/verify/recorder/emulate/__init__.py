"""CUDA, emulated on the CPU: the program sees CUDA, torch sees the CPU.

What the program says of devices is taken to mean the CPU, NCCL to mean gloo, and what asks for the state of a device
gets an answer. torch's own code sees the CPU (`device.from_program`), so that it takes the CPU's paths.

What it cannot hide: tensors that the program keeps on the CPU are on the device, too, there is one stream of random
numbers instead of two, a copy to the device is none, and autocast has the CPU's lists of operations. TorchScript is off,
and what torch.compile compiles runs as it is, as both would make tensors past the emulation.
"""

from importlib import import_module

from .. import imports


def install(devices: int) -> None:
    """Arrange for the emulation of so many devices as soon as the program imports torch."""

    def emulate(_: object) -> None:
        from . import cuda, device, groups, optimizers, tensors

        # The wrappers of torch.compile are there, with the `_orig_mod` that programs ask for.
        import_module("torch.compiler").set_stance("force_eager")
        import_module("torch.utils.flop_counter")  # else it warns that this CUDA has no triton
        device.install()
        tensors.install()
        cuda.install(devices)
        groups.install()
        optimizers.install()

    imports.after("torch", emulate)
