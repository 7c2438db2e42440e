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
# # History: what each commit did to the kernels
#
# Every commit has a number per benchmark and parameter set, the median over several processes, with its interval. Here we
# load them, see what is there, draw the history and point at the commits that changed it.
#
# The results are those of `results/`; set `KDBENCH_RESULTS` to read another asv results directory.

# %%
# SPDX-License-Identifier: Apache-2.0
import os
from pathlib import Path

import pandas as pd

from kdbench.analysis import changes, coverage, events, newest, plots, readable
from kdbench.results import COLUMNS, load

RESULTS = Path(os.environ.get("KDBENCH_RESULTS", "../results"))
frame = load(RESULTS) if RESULTS.is_dir() else pd.DataFrame(columns=COLUMNS)
judged = changes(frame)
if judged.empty:
    print(f"There is nothing in {RESULTS.resolve()} yet: run `make bench` first. All that follows will be empty.")

# %% [markdown]
# ## What is there
#
# One line a machine and environment. A series is one benchmark with one set of parameters; `failed` and `skipped` count
# entries that have no number, and a CUDA benchmark on a machine without a GPU is skipped.

# %%
coverage(frame)

# %% [markdown]
# ## The newest commit
#
# Each series against its nearest earlier measured commit. The interval of a change (90 %) and its p-value come from exact
# rank statistics on process medians, because samples of one process are not independent. `ambiguous` means that the noise
# allows no answer, and is not a pass.

# %%
readable(newest(judged)).drop(columns=["before", "state"])

# %% [markdown]
# ## The history
#
# Series with the largest judged change come first. The band is each commit's interval.

# %%
plots.history_figure(judged);

# %% [markdown]
# ## The commits that changed something
#
# `state` says whether a slowdown still stands at the newest commit.

# %%
news = events(judged).sort_values("order", ascending=False)
readable(news)

# %% [markdown]
# ## The largest slowdown, process by process
#
# What the verdict rests on. Two clouds that do not touch are what the rank test asks for; two bands within one cloud would
# be a benchmark with two modes, which more processes would show.

# %%
slower = news[news["verdict"] == "slower"]
if slower.empty:
    print("No commit of this history was judged slower.")
else:
    worst = slower.loc[slower["change"].abs().idxmax()]
    print(f"{worst['name']} {worst['params']}")
    print(f"{worst['change']:+.1%} at {worst['commit'][:10]} {worst['subject']}")
    plots.process_figure(frame, worst)
