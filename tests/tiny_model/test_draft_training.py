"""The drafter's training forward computes the engine's drafts and confidences, and its steps learn."""

import json

import pytest
import torch

from deepinfer.model.dspark import DSparkModel
from deepinfer.ops.reference import reference
from examples.tiny_model.draft_documents import Pool
from examples.tiny_model.draft_measure import rollout, visited
from examples.tiny_model.draft_model import DraftModel
from examples.tiny_model.draft_spans import SPAN, labelled, span_table
from examples.tiny_model.draft_target import CHECKPOINT, load_target
from examples.tiny_model.draft_train import DraftTrainer
from examples.tiny_model.parameters import initial_draft_weights
from examples.tiny_model.released_names import DRAFT, released_tensors, training_tensors
from examples.tiny_model.straight_through import quantised_weight


@pytest.fixture(scope="module")
def target():
    return load_target(CHECKPOINT, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def drafter(target):
    """Random weights, so that every tensor matters."""
    generator = torch.Generator().manual_seed(8)
    weights = initial_draft_weights(target.config, target.weights, 3)
    with torch.no_grad():
        for name, weight in weights.items():
            if "hc_" in name or "sink" in name or "head" in name:
                weight += 0.1 * torch.randn(weight.shape, generator=generator)
    model = DraftModel(target)
    model.bias_LE = 0.1 * torch.randn(model.bias_LE.shape, generator=generator)
    return model, {name: quantised_weight(name, weight.detach()) for name, weight in weights.items()}


def random_pool(target, lengths, seed=2):
    """Documents of random tokens and states; prompts are the first 3 tokens."""
    c, generator = target.config, torch.Generator().manual_seed(seed)
    count, lengths_N = sum(lengths), torch.tensor(lengths)
    return Pool(
        ids_P=torch.randint(3, c.vocab_size, (count,), generator=generator),
        hidden_PD=torch.randn(count, c.hidden_size, generator=generator),
        features_PF=torch.randn(count, 3 * c.hidden_size, generator=generator),
        starts_N=lengths_N.cumsum(0) - lengths_N,
        prompts_N=torch.full_like(lengths_N, 3),
        lengths_N=lengths_N,
        ended_N=torch.ones_like(lengths_N, dtype=torch.bool),
        temperatures_N=torch.tensor([0.0, 1.0, 0.7])[torch.arange(len(lengths)) % 3],
        seeds_N=torch.arange(len(lengths)),
        families_N=torch.zeros_like(lengths_N),
    )  # fmt: skip


def test_blocks_drafts_and_confidences_are_the_engines(target, drafter):
    model, weights = drafter
    c, window = target.config, target.config.sliding_window
    pool = random_pool(target, [150, 40, 9])
    table = span_table(pool)
    spans = labelled(pool, table, torch.arange(len(table.first_S)), window, model.slots)
    ours = model.blocks(weights, spans.spans).hidden_MQD

    released = released_tensors(weights, model.bias_LE, DRAFT)
    released |= {name: target.weights[name] for name in ("embed.weight", "head.weight")}
    engine = DSparkModel(c, released, reference(), numerics="full", dtype="float32")
    errors, hits = [], []
    for block in torch.randperm(len(ours), generator=torch.Generator().manual_seed(1))[:20].tolist():
        span, offset = divmod(block, SPAN)
        document, position = int(spans.document_G[span]), int(spans.spans.positions_GA[span, offset])
        if not spans.exists_GAQ[span, offset, 0]:
            continue
        start = int(pool.starts_N[document])
        keys = engine.context_keys(pool.features_PF[start : start + position], torch.arange(position))
        mask = torch.arange(position - window, position) >= 0
        newest = pool.ids_P[start + position].view(1)

        def read(layer, keys=keys, mask=mask):
            padded = torch.zeros(1, window, c.head_dim)
            padded[0, mask] = engine.layers[layer].attention.quantise_window(keys[layer][-window:])
            return lambda at: padded[at]

        hidden = engine.block(newest, torch.tensor([position]), [read(0), read(1)], mask.unsqueeze(0))
        errors.append(float((hidden[0] - ours[block]).norm() / hidden.norm()))
        theirs = engine.draft(hidden, newest, lambda slot, logits: logits.argmax(-1))
        previous = torch.cat((newest, theirs.tokens_SQ[0, :-1]))
        logits, confidence = model.heads(weights, ours[block], previous)
        hits.append((logits.argmax(-1) == theirs.tokens_SQ[0]).float().mean().item())
        assert (confidence - theirs.confidence_SQ[0]).abs().max() < 0.2
    assert len(errors) > 6
    assert sorted(errors)[len(errors) // 2] < 1e-4  # the odd row has a rounding flip
    assert sum(hits) / len(hits) > 0.95


def test_a_span_knows_its_labels_and_its_context(target):
    pool = random_pool(target, [30, 4, 60])
    table = span_table(pool)
    assert table.count_S.sum() == 26 + 0 + 56 and set(table.document_S.tolist()) == {0, 2}
    batch = labelled(pool, table, torch.tensor([1]), 128, 5)  # the last 10 anchors of document 0
    assert (
        batch.spans.positions_GA[0, 0] == 19 and batch.exists_GAQ[0].sum(1).tolist() == [5] * 6 + [4, 3, 2, 1] + [0] * 6
    )
    assert torch.equal(batch.spans.newest_GA[0, :11], pool.ids_P[19:30])
    assert torch.equal(pool.ids_P[batch.at_GAQ[0, 0]], pool.ids_P[20:25])
    seen = batch.spans.context_GC[0] >= 0
    assert torch.equal(batch.spans.features_GCF[0][seen][:19], pool.features_PF[:19])


def test_a_block_sees_nothing_at_or_after_its_anchor(target, drafter):
    model, weights = drafter
    pool = random_pool(target, [40])
    table = span_table(pool)
    batch = labelled(pool, table, torch.tensor([0]), 128, 5)
    before = model.blocks(weights, batch.spans).hidden_MQD
    features = batch.spans.features_GCF.clone()
    features[batch.spans.context_GC >= 7] = 9.0
    after = model.blocks(weights, batch.spans._replace(features_GCF=features)).hidden_MQD
    same = (before == after).flatten(1).all(1)
    assert same[:5].all() and not same[5:].any()  # anchors at 3 … 7, and later


def test_a_perfect_drafter_is_accepted_and_rejection_follows_the_ratio(target, drafter):
    model, weights = drafter
    pool = random_pool(target, [20, 20, 20])
    table = span_table(pool)
    batch = labelled(pool, table, torch.arange(len(table.first_S)), 128, 5)
    real = batch.exists_GAQ.flatten(0, 1).all(1)
    document = batch.document_G.unsqueeze(1).expand(-1, SPAN).flatten()[real]
    hidden, at = model.blocks(weights, batch.spans).hidden_MQD[real], batch.at_GAQ.flatten(0, 1)[real]
    greedy = document == 0
    forced = pool._replace(ids_P=pool.ids_P.clone())
    logits, _ = model.heads(weights, hidden[greedy][:1, 0], forced.ids_P[at[greedy][:1, 0] - 1])
    forced.ids_P[at[greedy][0, 0]] = logits.argmax()
    for verify in ("coupled", "rejection"):
        out = rollout(model, weights, forced, hidden, at, document, verify)
        assert bool(out.accepted_MQ[greedy.nonzero()[0, 0], 0])
        assert out.accepted_MQ[greedy].float().mean() < 0.2
    anchors = {"document": torch.tensor([0] * 6 + [1] * 3).numpy()}
    seen = visited(anchors, torch.tensor([2, 0, 0, 0, 5, 0, 0, 1, 0]).numpy(), 2)
    assert seen.tolist() == [True, False, False, True, True, False, True, True, False]


def test_steps_learn_and_touch_every_weight(target):
    trainer = DraftTrainer(target, random_pool(target, [22, 12]), seed=1, spans=2)
    same = trainer.batch()
    trainer.batch = lambda: same
    losses = [float(trainer.step(2e-3)["l1"]) for _ in range(4)]
    assert losses[-1] < losses[0] - 0.01
    start = initial_draft_weights(target.config, target.weights, 1)
    assert [name for name, weight in trainer.weights.items() if torch.equal(weight, start[name])] == []


def test_names_survive_the_way_to_the_release_and_back(target, drafter):
    model, weights = drafter
    released = released_tensors(weights, model.bias_LE, DRAFT)
    back, bias = training_tensors(released, 2, 4, DRAFT)
    assert back.keys() == weights.keys() and torch.equal(bias, model.bias_LE)
    assert all(torch.equal(back[name], weights[name]) for name in back)
    names = json.loads((CHECKPOINT / "model.safetensors.index.json").read_text())["weight_map"]
    assert released.keys() == {n for n in names if n.startswith(DRAFT) and not n.endswith(".scale")}
