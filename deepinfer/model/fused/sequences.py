"""What a device knows of the sequences it runs: their tokens, newest lengths and drafts, by state slot, in its own memory.

The device's counterpart of the host's `DecodeState`. Every method only launches work: nothing waits, and a later call on the
same stream reads what the earlier ones wrote. Row N of every tensor is the padding slot's: a dummy sequence of one token, which
padded rows of a step belong to and which stays as it is.

Legend: N slots · L token columns · K drafts · S, R sequences · T tokens · X starts.
"""

import numpy as np
import torch
from torch import Tensor

from deepinfer.model.fused.glue import to_device
from deepinfer.ops import sequence_tokens
from deepinfer.ops.decode_rows import SequenceTensors
from deepinfer.ops.device import DeviceOps

NO_TOKEN = -1


class DeviceSequences:
    """`tokens_NL` int32 [N + 1, pad + max_model_len + K + 1]: position p lies in column `pad` + p, columns before are -1, and
    the last K + 1 are spare, so that a row of writes that begins inside ends inside. `num_tokens_N` and `length_end_N` int32
    [N + 1]; `drafts_NK` int32 [N + 1, K], -1 from the first unused one on; `confidence_NK` float32 [N + 1, K].
    """

    def __init__(
        self, num_slots: int, max_model_len: int, ngram_size: int, depth: int = 0, device: torch.device | str = "cpu"
    ) -> None:
        self.device = torch.device(device)
        self.num_slots, self.max_model_len, self.depth, self.pad = num_slots, max_model_len, depth, ngram_size - 1
        rows, columns = num_slots + 1, self.pad + max_model_len + depth + 1
        self.tokens_NL = torch.zeros(rows, columns, dtype=torch.int32, device=self.device)
        self.tokens_NL[:, : self.pad] = NO_TOKEN
        self.num_tokens_N = torch.zeros(rows, dtype=torch.int32, device=self.device)
        self.length_end_N = torch.zeros_like(self.num_tokens_N)
        self.num_tokens_N[-1], self.length_end_N[-1] = 1, 2  # its newest token is its first, and not yet at an end
        self.drafts_NK = torch.full((rows, depth), NO_TOKEN, dtype=torch.int32, device=self.device)
        self.confidence_NK = torch.zeros(rows, depth, dtype=torch.float32, device=self.device)
        self._append, self._keep = sequence_tokens.append_tokens, sequence_tokens.keep_drafts

    def use(self, ops: DeviceOps) -> None:
        """Bring tokens and drafts by these operations from now on; torch's do the same in more launches."""
        self._append, self._keep = ops.append_tokens, ops.keep_drafts

    @property
    def padding_slot(self) -> int:
        return self.num_slots

    @property
    def tensors(self) -> SequenceTensors:
        return SequenceTensors(self.tokens_NL, self.num_tokens_N, self.length_end_N, self.drafts_NK, self.confidence_NK)

    def admit(self, slot: int, prompt_ids: np.ndarray, length_end: int) -> None:
        """A sequence enters `slot`; nothing of it is computed yet."""
        tokens_T = to_device({"tokens": np.asarray(prompt_ids)}, self.device)["tokens"]
        self.tokens_NL[slot, self.pad : self.pad + len(tokens_T)] = tokens_T
        self.num_tokens_N[slot].fill_(len(tokens_T))
        self.length_end_N[slot].fill_(length_end)
        self.drafts_NK[slot].fill_(NO_TOKEN)

    def put_chunks(self, slots: np.ndarray, starts: np.ndarray, rows: np.ndarray, tokens: np.ndarray) -> None:
        """Chunks of prompts: `rows`[i] of `tokens` from position `starts`[i] on are the newest of `slots`[i]; no drafts."""
        if not len(slots):
            return
        first = np.repeat(starts - (np.cumsum(rows) - rows), rows)
        columns = self.pad + first + np.arange(len(tokens))
        arrays = {"tokens": tokens, "of": np.repeat(slots, rows), "columns": columns, "slots": slots}
        sent = to_device(arrays | {"ends": starts + rows}, self.device)
        self.tokens_NL[sent["of"], sent["columns"]] = sent["tokens"]
        self.num_tokens_N[sent["slots"]] = sent["ends"]
        self.drafts_NK.index_fill_(0, sent["slots"].long(), NO_TOKEN)

    def append(self, slots_R: Tensor, token_T: Tensor, starts_X: Tensor, counts_R: Tensor) -> None:
        """`counts_R` (0 … K + 1) tokens from `token_T`[`starts_X`[r]] on go to the end of each sequence; its drafts are gone.

        Device tensors of integers; X is R or R + 1. Sequences differ, but for the padding slot, which gets none.
        """
        self._append(self.tensors, self.pad, slots_R, token_T, starts_X, counts_R)

    def forget_drafts(self, slots: np.ndarray) -> None:
        """None of `slots` has drafts any more. It needs no memory."""
        for slot in slots.tolist():
            self.drafts_NK[slot].fill_(NO_TOKEN)

    def keep_drafts(self, slots_S: Tensor, tokens_SK: Tensor, confidence_SK: Tensor) -> None:
        """What the next step may check. Sequences differ, but for the padding slot, whose drafts must be -1."""
        self._keep(self.tensors, slots_S, tokens_SK, confidence_SK)
