"""What the engine's GPU benchmarks do without a GPU: loads, figures, configurations, notices."""

import json
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from deepinfer.arch.config import parse_config
from deepinfer.arch.engram import engram_tables
from deepinfer.config.facts import shipped_folder
from deepinfer.engine.build import EngineGraph
from deepinfer.interfaces import SamplingParams

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RELEASED = shipped_folder("v41_flash")


@pytest.fixture(autouse=True)
def benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture(scope="module")
def graph() -> EngineGraph:
    sys.path.insert(0, str(BENCHMARKS))
    from engine_loads import build

    return build("hardware=cpu", "model=v41_tiny", "model.threads=1", "scheduler.max_num_seqs=4")


def test_a_shortened_release_keeps_its_widths(tmp_path: Path) -> None:
    from few_layers import write_config

    folder = write_config(tmp_path, RELEASED, experts=48)
    short = parse_config(json.loads((folder / "config.json").read_text()))
    whole = parse_config(json.loads((RELEASED / "config.json").read_text()))
    changed = {name for name in short.__struct_fields__ if getattr(short, name) != getattr(whole, name)}
    assert changed == {
        *("num_hidden_layers", "compress_ratios", "kv_source_layer_ids", "index_source_layer_ids"),
        *("candidate_source_layer_id", "n_routed_experts", "dspark_n_routed_experts", "dspark_target_layer_ids"),
        *("engram_layer_ids", "engram_num_embeddings", "engram_vocab_size"),
    }
    assert [short.role(layer) for layer in range(4)] == ["swa", "full", "reuse", "full"]
    assert short.engram_num_embeddings == tuple(table.num_rows for table in engram_tables(short))


def test_the_peer_takes_the_widths_of_the_model() -> None:
    import transformers_v4

    config = parse_config(json.loads((shipped_folder("v41_tiny") / "config.json").read_text()))
    same = transformers_v4.same_widths(config)
    assert same["hidden_size"] == 256 and same["n_routed_experts"] == 8
    assert same["layer_types"] == ["sliding_attention"] + ["compressed_sparse_attention"] * 5
    assert len(same["mlp_layer_types"]) == same["num_hidden_layers"] == 6


def test_without_the_peer_ours_is_measured_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import peer_transformers
    import transformers_v4

    monkeypatch.setattr(transformers_v4, "find_spec", lambda name: None)
    monkeypatch.setattr(peer_transformers, "STEPS_PER_TURN", 1)
    words = ["--hardware", "cpu", "--batches", "2", "--rounds", "1", "--context", "8", "model.threads=1"]
    monkeypatch.setattr(sys, "argv", ["peer_transformers.py", *words])
    peer_transformers.main()
    printed = capsys.readouterr()
    assert "ours alone: no transformers; type: pip install -e '.[bench]'" in printed.err
    line = json.loads(printed.out.splitlines()[-1])
    assert line["batch"] == 2 and line["deepinfer_decode_tokens_per_s"] > 0 and line["differences"] == []
    assert not [key for key in line if key.startswith("transformers") or key.endswith("ratio")]


def test_a_release_of_transformers_without_v4_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers_v4

    monkeypatch.setattr(transformers_v4, "find_spec", lambda name: None if "v4" in name else object())
    monkeypatch.setattr(transformers_v4, "_version", lambda name: "5.0.0")
    assert transformers_v4.absent().startswith("transformers 5.0.0 has no deepseek_v4; type: pip install -U ")


def test_ratios_say_how_many_times_ours_the_peer_takes() -> None:
    from peer_transformers import figures

    decode_s = {"deepinfer": [0.002, 0.001, 0.009], "transformers": [0.008, 0.01, 0.006]}
    found = figures(batch=4, context=100, decode_s=decode_s, prefill_s={"deepinfer": 0.5, "transformers": 0.25})
    assert found["deepinfer_decode_tokens_per_s"] == 2000 and found["transformers_decode_tokens_per_s"] == 500
    assert found["transformers_decode_ratio"] == 4 and found["transformers_prefill_ratio"] == 0.5
    assert found["deepinfer_prefill_tokens_per_s"] == 800 and found["transformers_step_ms"] == 8
    assert "deepinfer_decode_ratio" not in found


def test_turns_are_whole_and_change_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    import peer_transformers

    calls: list[str] = []
    sides = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    monkeypatch.setattr(peer_transformers, "STEPS_PER_TURN", 2)
    times = peer_transformers.in_turns(sides, rounds=2)
    assert "".join(calls) == "aabb" + "bbaa"
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}


def test_a_steady_batch_answers_until_it_is_told_to_end(graph: EngineGraph) -> None:
    from engine_loads import SteadyBatch

    batch = SteadyBatch(graph, np.arange(15).reshape(3, 5) + 40)
    before = graph.engine.stats().sampled_tokens
    for _ in range(4):
        batch.step()
    assert graph.engine.stats().sampled_tokens - before == 12 and batch.prefill_s > 0
    batch.end()
    assert not graph.engine.has_work


def test_every_answer_ends_and_has_its_own_seed(graph: EngineGraph) -> None:
    from engine_loads import serve

    prompts = [np.array([0, 10]), np.array([0, 11]), np.array([0, 10])]
    served = serve(graph.engine, prompts, SamplingParams(max_tokens=4, temperature=1.0, seed=3, ignore_eos=True))
    assert [len(answer) for answer in served.answers] == [4, 4, 4]
    assert served.tokens == 12 and served.accepted_length is None and not graph.engine.has_work
    assert served.answers[0] != served.answers[2], "the same prompt again has the next seed"
    alone = serve(graph.engine, prompts[:1], SamplingParams(max_tokens=4, temperature=1.0, seed=3, ignore_eos=True))
    assert alone.answers == served.answers[:1]


def test_a_feature_is_compared_with_its_absence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import gpu_throughput

    short = gpu_throughput.switched(
        "speculation=ngram", "speculation.back_off=false", params=(("temperature", 0.0), ("max_tokens", 8))
    )
    monkeypatch.setitem(gpu_throughput.FEATURES, "speculation=ngram", short)
    words = [
        "model.threads=1",
        "--hardware",
        "cpu",
        "--batches",
        "2",
        "--rounds",
        "1",
        "--features",
        "speculation=ngram",
    ]
    monkeypatch.setattr(sys, "argv", ["gpu_throughput.py", *words])
    gpu_throughput.main()
    line = json.loads(capsys.readouterr().out)
    assert line["feature"] == "speculation=ngram" and line["equal_answers"] == 1 and line["promise"] == "same tokens"
    assert line["ratio"] > 0 and "off_accepted_length" not in line


def test_the_floor_grows_with_rows_and_is_below_what_was_measured(graph: EngineGraph) -> None:
    from engine_loads import SteadyBatch, floors_ms

    one, four = (floors_ms(graph, batch, 64) for batch in (1, 4))
    assert one["decode_floor_ms"] < four["decode_floor_ms"] < 4 * one["decode_floor_ms"]
    assert four["prefill_floor_ms"] > four["decode_floor_ms"]
    batch = SteadyBatch(graph, np.arange(256).reshape(4, 64) + 40)
    assert four["prefill_floor_ms"] < 1e3 * batch.prefill_s
    batch.end()


def test_the_last_value_of_a_key_counts() -> None:
    from gpu_throughput import settled

    assert settled(["a=1", "b=x=y", "a=2"]) == ["a=2", "b=x=y"]


def test_answers_that_differ_are_counted() -> None:
    from engine_loads import Served
    from gpu_throughput import compare

    on = Served(tokens=30, seconds=1.0, answers=[(1,), (2,)], accepted_length=2.5)
    off = Served(tokens=20, seconds=2.0, answers=[(1,), (3,)], accepted_length=None)
    found = compare([(on, off)])
    assert found["ratio"] == 3 and found["equal_answers"] == 0.5 and found["on_accepted_length"] == 2.5


def test_prompts_that_share_a_beginning_differ_behind_it() -> None:
    from gpu_throughput import SHARED_TOKENS, texts

    shared = texts("shared beginning", 70)
    assert len(shared) == 70 and len({tuple(one[:SHARED_TOKENS].tolist()) for one in shared}) == 1
    assert len({tuple(one.tolist()) for one in shared[:20]}) == 20
    assert min(len(one) for one in texts("long prompts", 64)) > 256


def measured(**values: object) -> dict[str, object]:
    return {
        "device": "a GPU",
        "machine": {"cpu": "a CPU"},
        "versions": {"torch": "2.11"},
        "commit": "abc+dirty",
        **values,
    }


def test_the_features_table_has_the_latest_line_of_each_cell() -> None:
    from gpu_report import features_report

    cell = {
        "feature": "x",
        "load": "stories",
        "on_tokens_per_s": 1500.0,
        "equal_answers": 1.0,
        "promise": "same tokens",
    }
    lines = [measured(**cell, batch=batch, ratio=ratio) for batch, ratio in ((1, 9.0), (8, 2.0), (1, 1.5))]
    lossy = cell | {"feature": "y", "equal_answers": 0.25, "promise": "none: lossy"}
    text = features_report([*lines, measured(**lossy, batch=8, ratio=3.0)])
    assert "| x | stories | 1,500 · 1.50 × | 1,500 · 2.00 × | all |" in text
    assert "| y | stories | – | 1,500 · 3.00 × | 25.0% (lossy) |" in text
    assert text.endswith("on a GPU; torch 2.11; commit abc with changes not committed then.")


def test_the_peer_table_leaves_out_what_was_not_measured() -> None:
    from gpu_report import peer_report

    ours = {
        "deepinfer_decode_tokens_per_s": 900.0,
        "deepinfer_prefill_tokens_per_s": 8000.0,
        "differences": ["no engram"],
    }
    ratios = {"transformers_decode_ratio": 12.34, "transformers_prefill_ratio": 2.0}
    line = measured(width="tiny", batch=8, context=100, layers=6, experts=8, decode_floor_ms=0.8, **ours, **ratios)
    text = peer_report([line])
    assert "| tiny, 6 layers, 8 experts | 8 | 900 | 9.0 % | 12.3 | – | 8,000 | – | 2.0 |" in text
    assert "The peer differs: no engram memory; four tokens" in text


def test_the_readme_has_one_row_for_the_peer() -> None:
    from gpu_report import readme_row, with_row

    rates = [(8, 5000.0, 25.4), (1, 700.0, 24.6)]
    lines = [
        measured(width="tiny", batch=batch, deepinfer_decode_tokens_per_s=rate, transformers_decode_ratio=ratio)
        for batch, rate, ratio in rates
    ]
    row = readme_row(lines)
    assert row.startswith("| decode on one a GPU, B = 1 / 8 | 700 / 5,000 tokens/s: 25 / 25 × the peer run eagerly |")
    wide = measured(
        width="wide",
        batch=1,
        deepinfer_decode_tokens_per_s=90.0,
        transformers_decode_ratio=3.52,
        transformers_compiled_decode_ratio=1.0,
    )
    beside = "90 tokens/s: 3.5 × the peer run eagerly, 1.0 × it with CUDA graphs of fixed parts"
    assert f"; at the release's widths, 4 layers, {beside} |" in readme_row([*lines, wide])
    page = "a\n| old | 3 | `python benchmarks/peer_transformers.py` |\nb\n"
    assert with_row(page, row) == f"a\n{row}\nb\n"
    with pytest.raises(ValueError, match="has 0 lines that end in"):
        with_row("a\n", row)


@pytest.mark.parametrize("benchmark", ["gpu_throughput", "peer_transformers"])
def test_a_cpu_is_recorded_only_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch, benchmark: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [f"{benchmark}.py", "--record"])
    with pytest.raises(SystemExit, match=r"no CUDA device here: .*; nothing was measured; .* add: --hardware cpu"):
        import_module(benchmark).main()


def test_the_chip_that_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from engine_loads import hardware

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert hardware("cpu", recorded=True) == "cpu" and capsys.readouterr().err == ""
    assert hardware(None, recorded=False) == "cpu" and "the CPU is measured" in capsys.readouterr().err
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert hardware(None, recorded=True) == "h200" and hardware("cpu", recorded=True) == "cpu"


def test_lines_of_other_devices_are_not_in_the_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import gpu_report

    lines = [{"batch": 1, "device": "NVIDIA H200"}, {"batch": 2}, {"batch": 3, "device": "NVIDIA H100"}]
    (tmp_path / "some.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monkeypatch.setattr(gpu_report, "RESULTS", tmp_path)
    assert gpu_report.read("some") == lines[:1] and gpu_report.read("other") == []


def test_the_engine_tables_of_the_page_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    import gpu_report

    monkeypatch.setattr(sys, "argv", ["gpu_report.py", "--check"])
    gpu_report.main()
