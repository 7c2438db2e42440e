# SPDX-License-Identifier: Apache-2.0
"""``python -m kdbench``: the command line where nothing is installed but the packages it needs."""

from kdbench.cli import main

main()
