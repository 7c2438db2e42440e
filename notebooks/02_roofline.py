# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Roofline: how near each kernel is to what its machine can do
#
# A workload must move some bytes and do some FLOPs; what the tree mask hides is not counted. The time that this takes at the
# measured ceilings of the machine (`kdbench calibrate`: a device copy, a bf16 matrix product) is its *floor*. "Of floor" is
# floor over time.
#
# The results are those of `results/`; set `KDBENCH_RESULTS` to read another asv results directory.

# %%
# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pandas as pd

from kdbench.analysis import changes, newest, plots, readable_floors, refuse, roofline
from kdbench.results import COLUMNS, load, machine_ceilings, machine_facts

RESULTS = Path(os.environ.get("KDBENCH_RESULTS", "../results"))
frame = load(RESULTS) if RESULTS.is_dir() else pd.DataFrame(columns=COLUMNS)
gpus = {name: facts.get("gpu", "") for name, facts in machine_facts(RESULTS).items()}
ceilings = machine_ceilings(RESULTS)
if frame.empty:
    print(f"There is nothing in {RESULTS.resolve()} yet: run `make bench` first. All that follows will be empty.")

# %% [markdown]
# ## Ceilings, and numbers that cannot be true
#
# A time that beats the datasheet of its GPU is a measuring error or a wrong count. It is taken out before anything else is
# said, here as in the report.

# %%
checked = refuse(frame, gpus)
print(f"{int((checked['status'] != frame['status']).sum())} of {len(frame)} entries are refused")
pd.DataFrame([{"machine": name, **vars(rates)} for name, rates in ceilings.items()])

# %% [markdown]
# ## The newest commit of each machine
#
# `bound` says what the floor is made of. Where even an empty kernel takes longer than bytes and FLOPs, it is `latency`:
# there is no floor then, and `above empty` is the time beyond an empty kernel of the same launch shape, where one was
# measured.

# %%
rooflines = roofline(checked, ceilings)
latest = newest(changes(checked))
now = rooflines.merge(latest[["machine", "env", "name", "params", "commit"]])
readable_floors(now)

# %% [markdown]
# ## The roofline
#
# The slope is the memory's rate, the flat part that of the tensor cores. Kernels without FLOPs are not in it.

# %%
plots.roofline_figure(now, ceilings, next(iter(ceilings), ""));

# %% [markdown]
# ## Towards the floor, commit by commit
#
# Each series' part of its floor over the history of the line.

# %%
ordered = rooflines.merge(frame[["machine", "env", "name", "params", "commit", "order"]]).sort_values("order")
ordered.pivot_table(index=["name", "params"], columns="order", values="of_floor").round(3)
