"""The image of a role when nobody names one.

There is no image that suits every project, so none is guessed: ``NO_IMAGE`` stands for "not given".
Schedulers that run processes ignore it; those that run containers refuse it and ask for ``--image``.
It can be set once for a component in the configuration: ``[component."dist.ddp"] image = "..."``.
"""

from __future__ import annotations

NO_IMAGE = "<NONE>"
