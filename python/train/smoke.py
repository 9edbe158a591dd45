"""The whole recipe at toy size on the CPU: a few steps of both trainings, export, comparison with the NumPy reference.

python3 -m train.smoke FILE...      (any text files; half a minute)
"""

import json
import pathlib
import sys
import tempfile

import numpy as np
import torch

import reference.drafter
import reference.target
from train import data, export, train_drafter, train_target
from train.drafter import Drafter
from train.target import Target

DEMO = pathlib.Path(__file__).resolve().parents[2] / "models/demo"
TARGET_SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 2, "q_lora_rank": 48,
    "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32,
}  # fmt: skip
DRAFTER_SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_target_layers": 3, "dflash_config": {"mask_token_id": 4093, "target_layer_ids": [0, 2]},
}  # fmt: skip


def config(name, sizes):
    return {**json.loads((DEMO / name / "config.json").read_text()), **sizes}


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        data.encode_files(str(DEMO / "target/tokenizer.json"), str(scratch / "corpus"), sys.argv[1:])
        corpus = data.Corpus(str(scratch / "corpus"), "cpu")
        target = Target(config("target", TARGET_SIZES))
        flags = "--device cpu --steps 20 --warm-up 4 --tokens 512 --short 128 --long 256 --log-every 4"
        train_target.train(target, corpus, train_target.parser().parse_args(["", "", "", *flags.split()]))
        drafter = Drafter(config("drafter", DRAFTER_SIZES))
        flags = "--device cpu --steps 6 --tokens 256 --window 128 --anchors 4 --log-every 1"
        flags += " --generated-length 64 --generations 1 --generation-rows 4 --prompt 8 32"
        args = train_drafter.parser().parse_args(["", "", "", "", *flags.split()])
        train_drafter.train(drafter, target, corpus, args)

        export.write(scratch / "target", target.config, export.target_tensors(target.state_dict()))
        export.write(scratch / "drafter", drafter.config, export.drafter_tensors(drafter.state_dict()))
        numpy_target = reference.target.Target(scratch / "target")
        numpy_drafter = reference.drafter.Drafter(scratch / "drafter", numpy_target)
        compare(target, drafter, numpy_target, numpy_drafter, corpus.windows(1, 100))


@torch.no_grad()
def compare(target, drafter, numpy_target, numpy_drafter, tokens):
    for model in (target, drafter):
        for p in model.parameters():
            if p.ndim < 3:  # experts are fake-quantised in the forward pass
                p.copy_(p.bfloat16())
    hidden, taps, _ = target(tokens, taps=drafter.taps)
    logits, rows = numpy_target.forward(tokens[0].numpy(), numpy_target.new_cache(), taps=drafter.taps)
    deltas = [np.abs(target.lm_head(hidden)[0].numpy() - logits).max()]
    anchor = 60
    numpy_drafter.observe(rows[:anchor])
    proposed = numpy_drafter.propose(int(tokens[0, anchor]))
    draft = drafter(target, tokens, taps, torch.tensor([[anchor]]))[0, 0]
    deltas.append(np.abs(draft.numpy() - proposed).max())
    print(f"max |dlogit| of export and NumPy reference: target {deltas[0]:.1e}, drafter {deltas[1]:.1e}")
    raise SystemExit(max(deltas) > 1e-4)


if __name__ == "__main__":
    main()
