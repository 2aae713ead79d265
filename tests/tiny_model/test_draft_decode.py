"""Lock-step decoding gives what the training forward gives, and its samples follow the target's law."""

import pytest
import torch

from examples.tiny_model.attention import Mode
from examples.tiny_model.draft_decode import decode, sample, states
from examples.tiny_model.draft_target import CHECKPOINT, load_target

TOKENS, STEPS = 256, 152  # beyond 128 entries top-k cuts


@pytest.fixture(scope="module")
def target():
    return load_target(CHECKPOINT, torch.device("cpu"), torch.float32)


def both_forwards(target, sequences: int, steps: int):
    """Relative errors [sequences, steps] of hidden states and of features, and how often the best token is the same."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(3, target.config.vocab_size, (sequences, TOKENS), generator=generator)
    ids[:, 0] = target.config.bos_token_id
    with torch.no_grad():
        whole = target.model(target.weights, ids, Mode(quantised=True, sparse=True), with_features=True)
        stepped = list(states(target, ids, steps))
    hidden, features = (torch.stack(parts, 1) for parts in zip(*stepped))
    expected = whole.hidden_BTD[:, :steps]
    pairs = (hidden, expected), (features, whole.features_BTF[:, :steps])
    same = (target.logits(hidden).argmax(-1) == target.logits(expected).argmax(-1)).float().mean()
    return [(ours - theirs).norm(dim=2) / theirs.norm(dim=2) for ours, theirs in pairs], same


def test_states_equal_the_training_forward(target):
    """Until a number is rounded the other way, whose time depends on the processor's order of summation."""
    for error in both_forwards(target, 16, 6)[0]:
        assert error.median() < 1e-5
        assert (error < 1e-5).float().mean() > 0.75


def test_states_stay_near_the_training_forward_where_choices_cut(target):
    errors, same = both_forwards(target, 2, STEPS)
    for error in errors:
        assert error.median() < 0.05  # rounding flips spread from row to row
    assert same > 0.9


def test_decode_forces_prompts_and_stops_at_the_end(target):
    prompt = torch.randint(3, 3000, (3, 24), generator=torch.Generator().manual_seed(1))
    prompt[:, 0] = target.config.bos_token_id
    prompts = torch.tensor([24, 9, 9])
    seeds = torch.tensor([5, 6, 6])
    given = decode(target, prompt.clone(), prompts, torch.tensor([0.0, 1.0, 1.0]), seeds)
    assert torch.equal(given.ids_BT[0], prompt[0]) and torch.equal(given.ids_BT[1:, :9], prompt[1:, :9])
    assert not torch.equal(given.ids_BT[1, 9:], prompt[1, 9:])
    greedy = decode(target, given.ids_BT[1:2].clone(), torch.tensor([12]), torch.tensor([0.0]), torch.tensor([9]))
    for row, length in ((1, given.lengths_B[1]), (0, greedy.lengths_B[0])):
        ids = (given if row else greedy).ids_BT[row]
        answer = ids[9:length].tolist()
        assert 1 not in answer[:-1]
        assert (answer[-1] == 1) == bool((given if row else greedy).ended_B[row]) or length == 24


def test_samples_follow_the_softmax():
    logits = torch.tensor([2.0, 0.5, 0.0, -1.0]).expand(40_000, -1)
    seeds = torch.arange(40_000)
    for temperature in (0.7, 1.0):
        drawn = sample(logits, torch.full((40_000,), temperature), seeds, 17)
        share = torch.bincount(drawn, minlength=4) / 40_000
        assert (share - (logits[0] / temperature).softmax(-1)).abs().max() < 0.01
    assert (sample(logits, torch.zeros(40_000), seeds, 17) == 0).all()
