"""OpenAI's triton_kernels as a peer: bf16 rows against MXFP4 experts. vLLM's wheel carries it as a folder of its own.

Legend: P rows sorted by expert · K inputs · N outputs · E experts.
"""

from types import ModuleType

import torch
from peers_call import Call, peer
from torch import Tensor


@peer("triton_kernels.matmul_ogs", package="triton_kernels", tolerance=0.005)
def triton_kernels_mxfp4(ogs: ModuleType, x_PK: Tensor, counts_E: Tensor, codes: Tensor, scale: Tensor) -> Call:
    """matmul_ogs on rows that are sorted already; weights in its Hopper layout."""
    from triton_kernels.routing import RoutingData, compute_expt_data
    from triton_kernels.tensor import FP4, convert_layout, wrap_torch_tensor
    from triton_kernels.tensor_details import layout

    ogs.update_opt_flags_constraints({"split_k": 1})
    value_layout, value_options = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
    scale_layout, scale_options = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=8)
    pad = -scale.shape[-1] % 4
    weight = convert_layout(wrap_torch_tensor(codes.transpose(1, 2), dtype=FP4), value_layout, **value_options)
    turned = torch.nn.functional.pad(scale, (0, pad)).transpose(1, 2)
    config = ogs.PrecisionConfig(
        weight_scale=convert_layout(wrap_torch_tensor(turned), scale_layout, **scale_options), out_dtype=torch.bfloat16
    )
    experts, rows_E = codes.shape[0], counts_E.to(x_PK.device, torch.int32)
    routing = RoutingData(None, rows_E, experts, 1, compute_expt_data(rows_E, experts, x_PK.shape[0]))
    return lambda: ogs.matmul_ogs(x_PK, weight, None, routing, precision_config=config)
