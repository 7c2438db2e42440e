# SPDX-License-Identifier: Apache-2.0
"""How the shipped models were made: ``python -m kdbench.models.train --out DIR`` on a machine with a GPU."""
