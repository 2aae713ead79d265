"""The choice of tokens on a device: what is asked of each row goes there in one copy, the tokens come back in one.

Equal to `CoupledVerifier`, or `RejectionVerifier`, on the sampler's own rows, but for how finely a device computes. `launch`
waits for nothing. Until `finish` nothing may be sampled of the same slots, and nothing may write to the logits.

Legend: S sequences · T rows · X starts and the end · K drafts · N columns of log probabilities · M masks · W words of a mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from deepinfer.kernels import cpu_edit_lists
from deepinfer.ops.sampling_rows import BROKEN, SamplingRows
from deepinfer.sampling import device_edits, device_questions, device_results
from deepinfer.sampling.candidates import RULED_OUT
from deepinfer.sampling.device_upload import Upload
from deepinfer.sampling.rows import as_array, fault
from deepinfer.sampling.slot_params import NOT_ASKED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepinfer.interfaces import Verified, VerifyRows
    from deepinfer.ops.device import DeviceOps
    from deepinfer.ops.sampling_rows import SampledRows
    from deepinfer.sampling.history import History
    from deepinfer.sampling.lent_rows import LentRows
    from deepinfer.sampling.sampler import Sampler


@dataclass(slots=True)
class Launched:
    """Rows whose tokens are being chosen; tensors are the device's where nothing else is said."""

    rows: VerifyRows
    token_T: Tensor  # int32; -1 where a row has a fault
    counts_S: Tensor  # int32; tokens that each sequence gets
    starts_X: Tensor  # int32 [S + 1]; first row of each sequence
    slots_S: Tensor  # int32
    logits_TV: Tensor | LentRows
    columns: int  # N
    fetched: Tensor  # int32, on the host as soon as the device is through
    num_logprobs_S: np.ndarray  # int32; -1 where not asked
    histories: list[tuple[int, History]]  # (s, to be brought up to date)


class DeviceSampler:
    """Samples for the slots of `sampler`, whose parameters and histories it shares.

    With `rejection` drafts are judged by rejection sampling; `proposed_MV` is what they were drawn from, a row for each draft
    of each slot, None: they were proposed for certain. Else they are accepted where they are the target's own samples.
    """

    def __init__(
        self,
        sampler: Sampler,
        ops: DeviceOps,
        device: torch.device | str,
        *,
        rejection: bool = False,
        proposed_MV: Tensor | None = None,
    ) -> None:
        self._rejection, self._proposed_MV = rejection, proposed_MV
        self.params, self.ops, self.device = sampler.params, ops, torch.device(device)
        self._edits = device_edits.DeviceEdits(self.params)
        self._edited: tuple[VerifyRows, list[device_edits.SequenceEdits]] | None = None
        cpu_edit_lists.compile_all()
        nothing = torch.empty(0, dtype=torch.int32, device=self.device)
        self.no_edits = nothing, nothing.double(), nothing
        self.no_masks_MW = nothing.view(0, 1).expand(0, -(-self.params.vocab_size // 32)).contiguous()

    def launch(self, logits_TV: Tensor, rows: VerifyRows) -> Launched:
        """Start choosing the tokens of `rows`. Logits may have further rows behind those."""
        params, num_rows_S = self.params, np.diff(rows.row_starts)
        num_rows = int(rows.row_starts[-1])
        assert rows.row_starts[0] == 0 and num_rows <= len(logits_TV), f"{num_rows} rows, {len(logits_TV)} of logits"
        columns = self.columns(rows)
        edits = self.take_edits(rows)
        logits_TV = logits_TV[:num_rows]
        asked, sent = self._ask(rows, num_rows_S, edits)
        sampled, counts_S = self.choose(logits_TV, asked, sent, columns)
        return Launched(
            rows=rows,
            token_T=sampled.token_R,
            counts_S=counts_S,
            starts_X=sent["row_starts_X"],
            slots_S=sent["slots_S"],
            logits_TV=logits_TV,
            columns=columns,
            fetched=device_results.fetch(sampled),
            num_logprobs_S=params.logprobs_N[rows.slots],
            histories=device_edits.histories(edits),
        )

    def choose(
        self, logits_TV: Tensor, asked: SamplingRows, sent: Mapping[str, Tensor], columns: int
    ) -> tuple[SampledRows, Tensor]:
        """A token for each row, and how many each sequence gets, int32 [S]. Only launches, which may write to the logits."""
        drafts = sent["drafts_SK"], sent["row_starts_X"]
        if not self._rejection:
            sampled = self.ops.sample_rows(logits_TV, asked, columns=columns)
        else:
            kept_TV = torch.empty_like(logits_TV) if columns else logits_TV
            sampled = self.ops.sample_rows(logits_TV, asked, kept_XV=kept_TV)
            self.ops.judge_drafts(sampled.token_R, kept_TV, asked, *drafts, sent["slots_S"], self._proposed_MV)
            if columns:
                sampled = self.ops.sample_rows(logits_TV, asked, columns=columns, chosen_R=sampled.token_R)
        return sampled, self.ops.accepted_lengths(sampled.token_R, *drafts)

    def finish(self, launched: Launched) -> Verified:
        """The tokens, once the device is through with what was launched; they stand in the histories from then on."""
        rows = launched.rows
        found = device_results.split(launched.fetched, int(rows.row_starts[-1]), launched.columns)
        got = device_results.accepted(found.token_T, rows)
        failures = {}
        for r in np.flatnonzero(got.failed_S).tolist():
            row = int(rows.row_starts[r] + got.count_S[r])
            broken = found.fault_T[row] == BROKEN
            failures[r] = fault(as_array(launched.logits_TV[row])) if broken else RULED_OUT
        for r, history in launched.histories:
            for depth in range(int(got.count_S[r])):
                history.write(int(rows.positions[r]) + depth, int(got.token_SD[r, depth]))
        return device_results.verified(found, got, rows, launched.num_logprobs_S, failures)

    def edits_of(self, rows: VerifyRows) -> list[device_edits.SequenceEdits]:
        """Of the sequences that edit anything; worked out once for each `rows` that is launched."""
        if self._edited is None or self._edited[0] is not rows:
            self._edited = rows, self._edits.of(rows, np.diff(rows.row_starts))
        return self._edited[1]

    def take_edits(self, rows: VerifyRows) -> list[device_edits.SequenceEdits]:
        """The same, for whoever launches the rows."""
        edits, self._edited = self.edits_of(rows), None
        return edits

    def columns(self, rows: VerifyRows) -> int:
        """Of log probabilities: the most that any row wants, its chosen token's with them; 0 where nobody asks."""
        return int(self.params.logprobs_N[rows.slots].max(initial=NOT_ASKED)) + 1

    def _ask(
        self, rows: VerifyRows, num_rows_S: np.ndarray, edits: list[device_edits.SequenceEdits]
    ) -> tuple[SamplingRows, dict[str, Tensor]]:
        """What is asked of each row, on the device, and everything else that went there."""
        num_rows, (num_sequences, depth) = int(rows.row_starts[-1]), rows.drafts.shape
        sections = device_questions.sections(num_rows, num_sequences, depth)
        sections |= device_questions.mask_sections(rows, self.params.vocab_size)
        sections |= device_edits.sections(edits)
        upload = Upload(sections, self.device)
        device_questions.write(self.params, rows, num_rows_S, upload.host)
        if edits:
            device_edits.lay_out(edits, num_rows_S, upload.host)
        sent = upload.send()
        edited = device_edits.sent_edits(sent) if edits else self.no_edits
        return device_questions.asked(sent, edited, self.no_masks_MW), sent
