"""The float32 NumPy reference: target, drafter, tree and decoding loop.

Read in this order: checkpoint (files to arrays), ops (norms, RoPE), target (MLA and mixture of experts), drafter
(DFlash), tree (best-first construction and greedy walk), loop (plain, chain and tree decoding).
"""
