"""The runs of MosaicML's MPT models with FSDP, as scripts/train/benchmarking/README.md of llm-foundry lists them.

A line has the model, the tokens of a sequence, the GPUs, the sequences of a microbatch per GPU, the microbatches, what
the backward pass recomputes, and the tokens per second per GPU. In the lines with "kept", the weights are not gathered
again in the backward pass (SHARD_GRAD_OP). Models below 1 billion weights, and on the A100 with 40 GB below 7 billion,
are left out, and so are float8 runs.
"""

A100 = """
1B 512 8 56 4 nothing 23148
1B 1024 8 18 4 nothing 22112
1B 2048 8 14 4 nothing 20513
1B 4096 8 7 4 nothing 17807
1B 8192 8 3 4 nothing 13814
1B 16384 8 2 4 nothing 9956
1B 32768 8 1 4 nothing 6275
1B 65536 8 1 2 layers 3044
3B 512 8 40 6 nothing 12127
3B 1024 8 20 6 nothing 11580
3B 2048 8 10 2 nothing 10811
3B 4096 8 5 6 nothing 9457
3B 8192 8 3 6 nothing 7695
3B 16384 8 1 6 nothing 5529
3B 32768 8 3 6 layers 3029
3B 65536 8 1 2 layers 1767
7B 1024 8 64 2 layers 4357
7B 2048 8 6 2 nothing 4641
7B 4096 8 16 2 layers 3684
7B 8192 8 8 2 layers 3206
7B 16384 8 4 2 layers 2453
7B 32768 8 2 2 layers 1672
7B 65536 8 1 2 layers 1013
13B 1024 8 40 3 layers 2330
13B 2048 8 2 3 nothing 2262
13B 4096 8 10 3 layers 2060
13B 8192 8 5 3 layers 1795
13B 16384 8 3 3 layers 1431
13B 32768 8 1 3 layers 1016
30B 512 8 12 21 layers 967
30B 1024 8 6 21 layers 946
30B 2048 8 3 21 layers 916
30B 4096 8 1 21 layers 814
30B 8192 8 1 21 layers 574
70B 2048 32 2 16 layers 373
70B 2048 64 8 4 layers 410
"""
A100_40_GB = """
7B 512 8 48 4 layers 3895
7B 1024 8 24 4 layers 3854
7B 2048 8 12 4 layers 3679
7B 2048 16 16 1 layers 3645
7B 2048 32 18 1 layers 3725
7B 2048 64 18 1 layers 3665
7B 2048 128 18 1 layers 3623
7B 4096 8 6 4 layers 3366
7B 8192 8 3 4 layers 2887
7B 16384 8 1 4 layers 2249
13B 512 8 16 16 layers 1763
13B 1024 8 8 16 layers 1727
13B 2048 8 4 16 layers 1668
13B 2048 16 10 1 layers 1993
13B 2048 32 14 1 layers 1998
13B 2048 64 16 1 layers 1976
13B 2048 128 16 1 layers 1972
13B 4096 8 2 16 layers 1603
13B 8192 8 1 16 layers 1407
30B 2048 32 4 1 layers 857
30B 2048 128 6 1 layers 865
70B 2048 64 2 1 layers 276
70B 2048 128 4 1 layers 376
"""
H100 = """
1B 512 8 56 4 nothing 52275
1B 1024 8 18 4 nothing 48910
1B 2048 8 14 1 nothing 45455
1B 2048 16 20 1 nothing 46037
1B 2048 32 20 1 nothing 45130
1B 2048 64 20 1 nothing 44402
1B 2048 128 12 1 kept 44123
1B 2048 256 12 1 kept 42555
1B 2048 512 12 1 kept 39837
1B 4096 8 7 4 nothing 38535
1B 8192 8 3 4 nothing 29157
1B 16384 8 2 4 nothing 19649
1B 32768 8 1 4 nothing 12025
1B 65536 8 1 2 layers 5506
3B 512 8 40 6 nothing 27965
3B 1024 8 20 6 nothing 27046
3B 2048 16 10 3 nothing 24142
3B 2048 32 6 3 nothing 23021
3B 2048 64 6 3 nothing 22525
3B 2048 128 8 1 kept 23422
3B 2048 256 8 1 kept 22772
3B 2048 512 8 1 kept 21664
3B 4096 8 5 6 nothing 20964
3B 8192 8 3 6 nothing 16578
3B 16384 8 1 6 nothing 11152
3B 32768 8 3 6 layers 5873
3B 65536 8 1 2 layers 3262
7B 1024 8 64 2 layers 10203
7B 2048 8 6 1 nothing 10643
7B 2048 128 6 1 nothing 10475
7B 2048 256 6 1 nothing 10119
7B 2048 512 6 1 nothing 9670
7B 4096 8 16 2 layers 8611
7B 8192 8 8 2 layers 6935
7B 32768 8 2 2 layers 3318
7B 65536 8 1 2 layers 1956
13B 1024 8 40 3 layers 5502
13B 2048 8 2 1 nothing 4792
13B 2048 16 2 1 nothing 4767
13B 2048 32 2 1 nothing 4811
13B 2048 64 2 1 nothing 4800
13B 2048 128 16 1 layers 5080
13B 2048 256 16 1 layers 4989
13B 2048 512 16 1 layers 4952
13B 4096 8 10 3 layers 4717
13B 16384 8 3 3 layers 2985
13B 32768 8 1 3 layers 1976
30B 1024 8 6 21 layers 2084
30B 2048 8 3 21 layers 2002
30B 2048 16 10 3 layers 2263
30B 2048 32 14 3 layers 2308
30B 2048 128 8 1 layers 2199
30B 2048 256 8 1 layers 2148
30B 2048 512 8 1 layers 2115
30B 4096 8 1 21 layers 1802
30B 8192 8 1 21 layers 1384
70B 2048 32 2 16 layers 882
70B 2048 64 8 4 layers 1039
70B 2048 128 8 1 layers 1058
70B 2048 256 8 1 layers 1035
70B 2048 512 8 1 layers 1007
"""
