"""What a step of torch's twins of the fused operations holds besides what their kernels would: expanded keys and weights."""

from deepinfer.arch.config import V41Config
from deepinfer.arch.kernel_widths import fp8_weights

FLOAT = 4  # bytes: of a score, and of a number that a twin multiplies with


def twin_bytes(config: V41Config, rows: int, itemsize: int) -> int:
    """Keys of all rows side by side, as stored bytes and as numbers, with a score for each head; and the largest weight as
    float32."""
    keys = config.sliding_window + config.index_topk
    gathered = rows * keys * (2 * itemsize * config.head_dim + FLOAT * config.num_attention_heads)
    largest = max(outputs * inputs for (outputs, inputs), _ in fp8_weights(config))
    return gathered + FLOAT * max(largest, config.vocab_size * config.hidden_size)
