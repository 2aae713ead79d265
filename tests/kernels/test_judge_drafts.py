"""Drafts under rejection sampling: the kernel against its twin, in any company."""

import pytest
import torch
from deepinfer.kernels import triton_judge_drafts as kernel
from judge_cases import Drafted, judged_rows, random_drafts
from row_cases import DEVICES
from torch import Tensor

from deepinfer.ops.draft_judgement import judge_drafts


def judged(judge: object, case: Drafted) -> Tensor:
    token_T = case.token_T.clone()
    judge(token_T, *case[1:])
    return token_T


def check(case: Drafted) -> None:
    before, want, got = case.token_T, judged(judge_drafts, case), judged(kernel.judge_drafts, case)
    assert torch.equal(got, want)
    rows = judged_rows(case.start_X)
    others = torch.ones(len(before), dtype=torch.bool)
    others[rows] = False
    assert torch.equal(got[others.to(got.device)], before[others.to(got.device)]), (
        "rows without a draft keep their token"
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("sequences", "depth"), [(1, 1), (6, 3)])
def test_equals_the_twin(sequences: int, depth: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "PART", 512)  # so that a row has several
    monkeypatch.setattr(kernel, "BLOCK", 256)
    for seed in range(2):
        case = random_drafts(sequences, depth, 1184, seed, device)
        check(case)
        check(case._replace(proposed_MV=None))


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [4096, 129280])
def test_equals_the_twin_at_full_width(vocabulary: int) -> None:
    case = random_drafts(24, 5, vocabulary, 7, "cuda")
    check(case)
    drafts = torch.cat([case.draft_SK[s, : int(case.start_X[s + 1] - case.start_X[s]) - 1] for s in range(24)])
    accepted = judged(kernel.judge_drafts, case)[judged_rows(case.start_X)] == drafts
    assert 0.02 < accepted.float().mean() < 0.9


@pytest.mark.gpu
def test_company_changes_no_token() -> None:
    case = random_drafts(16, 5, 129280, 3, "cuda")
    together, starts = judged(kernel.judge_drafts, case), case.start_X
    for s in (0, 5, 15):
        first, end = starts[s : s + 2].tolist()
        rows = type(case.rows)(
            **{
                name: value[first:end]
                if name.endswith("_R")
                else value[first : end + 1]
                if name == "edit_starts_X"
                else value
                for name, value in vars(case.rows).items()
            }
        )
        alone = Drafted(
            case.token_T[first:end].contiguous(),
            case.kept_TV[first:end],
            rows,
            case.draft_SK[s : s + 1],
            starts[s : s + 2] - starts[s],
            case.slot_S[s : s + 1],
            case.proposed_MV,
        )
        assert torch.equal(judged(kernel.judge_drafts, alone), together[first:end])


@pytest.mark.parametrize("device", DEVICES)
def test_a_proposal_without_a_number_gives_some_token(device: str) -> None:
    """Drafts that are planted to time a step have none."""
    case = random_drafts(3, 2, 1184, 5, device)
    case.proposed_MV.fill_(torch.nan)
    got = judged(kernel.judge_drafts, case)
    assert ((got >= 0) == (case.token_T >= 0)).all() and (got < 1184).all()


@pytest.mark.gpu
@pytest.mark.parametrize("sequences", [1, 64, 256])
def test_speed(sequences: int, timed) -> None:
    case = random_drafts(sequences, 5, 129280, 9, "cuda")
    moved = 2 * 4 * 129280 * len(judged_rows(case.start_X))
    calls = [lambda: kernel.judge_drafts(*case)]
    timed("judged drafts", f"{sequences} sequences, 5 drafts", calls, moved_bytes=moved)
