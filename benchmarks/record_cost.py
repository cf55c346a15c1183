"""What recording costs per operation: a BERT of twelve layers, captured anew several times.

    python -m benchmarks.record_cost [--rounds N] [--json FILE]

Sizes are small, because capture does not depend on them; the number of operations is that of BERT-base.
"""

from __future__ import annotations

import statistics

from benchmarks import timing

timing.fresh_caches()

import torch  # noqa: E402 - the caches' folders must be known first

import jitpy  # noqa: E402


def bert() -> torch.nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(vocab_size=99, hidden_size=48, num_hidden_layers=12, num_attention_heads=12,
                        intermediate_size=96, max_position_embeddings=64)
    return BertModel(config).eval()


def main() -> None:
    options = timing.parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    timing.build_native()
    model = bert()
    inputs = {"input_ids": torch.randint(0, 99, (2, 16)), "attention_mask": torch.ones(2, 16, dtype=torch.long)}
    seconds = []
    ops = 0
    with torch.no_grad():
        for _ in range(chosen.rounds):
            jitpy.reset()
            report = jitpy.explain(model)(**inputs)
            seconds.append(report.compile_times["trace"])
            ops = report.op_count
    median = statistics.median(seconds)
    figures = {"ops": ops, "capture seconds": median, "us per op": median / ops * 1e6, "first": seconds[0]}
    rows = [["operations recorded", str(ops)], ["capture, ms", f"{median * 1e3:.1f}"],
            ["first capture, ms", f"{seconds[0] * 1e3:.1f}"], ["us per operation", f"{figures['us per op']:.1f}"]]
    print(timing.table(["recording BERT", "figure"], rows))
    timing.save(chosen.json, figures)


if __name__ == "__main__":
    main()
