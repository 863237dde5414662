"""gpt-oss as transformers stores it: the experts of a layer stacked in one tensor, each (inputs, outputs), those of
gate and up in turns. They become tensors of their own, one an expert, outputs by inputs as everywhere else.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from lightwell.checkpoints.tensor import Tensor

Stack = npt.NDArray[np.unsignedinteger[npt.NBitBase]]

_SINKS = ".self_attn.sinks"
_EXPERTS = ".mlp.experts."


def unstack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, with experts and sinks called as other classes' tensors are. Weights of experts are copies."""
    return {name: tensor for stored in tensors.items() for name, tensor in _unstacked(*stored)}


def _unstacked(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    prefix, is_expert, part = name.partition(_EXPERTS)
    if not is_expert:
        yield name + ".weight" * name.endswith(_SINKS), tensor
        return
    part, kind = (part.removesuffix("_bias"), "bias") if part.endswith("_bias") else (part, "weight")
    for expert, values in enumerate(_elements(tensor)):
        outputs = values if kind == "bias" else values.T
        split = {"gate_proj": outputs[0::2], "up_proj": outputs[1::2]} if part == "gate_up_proj" else {part: outputs}
        for ours, rows in split.items():
            yield f"{prefix}{_EXPERTS}{expert}.{ours}.{kind}", _tensor(f"{tensor.name}[{expert}] {ours}", tensor, rows)


def _elements(tensor: Tensor) -> Stack:
    return tensor.data.view(f"<u{tensor.format.group_bytes}").reshape(tensor.shape)


def _tensor(name: str, source: Tensor, values: Stack) -> Tensor:
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    data.setflags(write=False)
    return Tensor(name, source.format, values.shape, data)
