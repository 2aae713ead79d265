"""What the tests of row kernels share: devices, random rows, stores, comparisons and rotating calls."""

import math
import os
from collections.abc import Callable, Sequence

import pytest
import torch
from peers_call import relative_error as relative_error  # tests of rows compare as the peers are compared
from torch import Tensor

EPS = 1e-20  # of the text model: practically none
CACHE_BYTES = 256 << 20  # copies of the inputs together exceed this, so that no timed call finds its own in a cache
INTERPRETED = pytest.param(
    "cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
)
DEVICES = [INTERPRETED, pytest.param("cuda", marks=pytest.mark.gpu)]
BATCHES = (1, 2, 7, 64, 256)


def random_rows(seed: int, *shape: int, device: str = "cpu", wide: bool = True) -> Tensor:
    """bfloat16; with `wide` magnitudes over twelve binades, zeros of both signs and a whole row of zeros among them."""
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(*shape, device=device, generator=generator)
    if wide:
        x *= torch.exp2(torch.randint(-6, 6, shape, device=device, generator=generator).float())
        x = torch.where(torch.rand(*shape, device=device, generator=generator) < 0.02, x * 0, x)
        x[len(x) // 2] = 0
    return x.bfloat16()


def random_rope(seed: int, rows: int, frequencies: int = 32, device: str = "cpu") -> Tensor:
    angles = torch.rand(rows, frequencies, generator=torch.Generator(device).manual_seed(seed), device=device) * 6.3
    return torch.stack((angles.cos(), angles.sin()), 1).contiguous()


def empty_store(blocks: int, block_rows: int, row_bytes: int, device: str = "cpu", offset_bytes: int = 256) -> Tensor:
    """A view [A, B, R] into blocks with something before and behind it; every byte is 0xFF, which decodes to NaN."""
    stride = -(-(offset_bytes + block_rows * row_bytes) // 16) * 16 + 32
    pool = torch.full((blocks * stride,), 0xFF, dtype=torch.uint8, device=device)
    return pool.as_strided((blocks, block_rows, row_bytes), (stride, row_bytes, 1), offset_bytes)


def row_numbers(seed: int, count: int, rows: int, device: str = "cpu", hidden: float = 0.1) -> Tensor:
    """int32 [count]: different rows in no order, some -1."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randperm(rows, generator=generator)[:count].int()
    numbers[torch.rand(count, generator=generator) < hidden] = -1
    return numbers.to(device)


def pool_of(store_ABR: Tensor) -> Tensor:
    """All bytes of the memory that the view lies in."""
    return store_ABR.as_strided((store_ABR.untyped_storage().nbytes(),), (1,), 0)


def bits(x: Tensor) -> Tensor:
    """The numbers' bytes, for comparisons that tell zeros and NaNs apart."""
    return x.contiguous().view(torch.uint8)


def share_of_different(found: Tensor, wanted: Tensor) -> float:
    return (bits(found) != bits(wanted)).float().mean().item() if found.numel() else 0.0


def assert_same_rows(call: Callable[[Tensor], Sequence[Tensor | None]], rows: int, device: str) -> None:
    """`call(chosen)` computes the chosen rows (int64). Every row has the same bits in every batch and at every place in it."""
    whole = call(torch.arange(rows, device=device))
    for batch in (b for b in BATCHES if b <= rows):
        chosen = torch.randperm(rows, generator=torch.Generator().manual_seed(batch))[:batch].to(device)
        for part, full in zip(call(chosen), whole):
            assert part is None or full is None or torch.equal(bits(part), bits(full[chosen])), (
                f"a batch of {batch} differs"
            )


def num_copies(moved_bytes: float) -> int:
    return max(2, math.ceil(CACHE_BYTES / moved_bytes))


def rotating(count: int, call: Callable[[int], object]) -> list[Callable[[], None]]:
    """One call for each copy of the inputs. Outputs stay alive until the next turn, so that no two share memory."""
    kept: dict[int, object] = {}

    def numbered(i: int) -> Callable[[], None]:
        def run() -> None:
            kept[i] = call(i)

        return run

    return [numbered(i) for i in range(count)]


Peers = dict[str, list[Callable[[], None]] | str]


def compiled(
    twin: Callable[..., object],
    count: int,
    call: Callable[[Callable[..., object], int], object],
    request: pytest.FixtureRequest,
    when: bool = True,
) -> Peers:
    """As a peer of a timed case: the twin by torch.compile, which everybody has. None where nothing is timed."""
    if not when or request.config.getoption("--time") is None:
        return {}
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # else it starts a process a core first
    fast = torch.compile(twin, dynamic=False)
    try:
        call(fast, 0)
    except (RuntimeError, AssertionError) as error:  # what torch's compilers raise
        return {"torch.compile": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    return {"torch.compile": rotating(count, lambda i: call(fast, i))}


def plain_copy(moved_bytes: float) -> Peers:
    """As a peer of a timed case: torch's own copy that reads and writes as many bytes together, cold. A second floor: no kernel
    that starts and ends with memory does better at a size where a launch and the memory's first answer count.
    """
    size = int(moved_bytes) // 2
    sources = [torch.empty(size, dtype=torch.uint8, device="cuda").random_() for _ in range(num_copies(moved_bytes))]
    copies = [torch.empty_like(source) for source in sources]
    return {"one copy of as many bytes": rotating(len(copies), lambda i: copies[i].copy_(sources[i]))}


def foreign(name: str, copies: Sequence[tuple], request: pytest.FixtureRequest, when: bool = True) -> Peers:
    """As peers of a timed case: other people's kernels (benchmarks/kernel_peers.py). None where nothing is timed."""
    if not when or request.config.getoption("--time") is None:
        return {}
    import kernel_peers

    return getattr(kernel_peers, name)(copies)
