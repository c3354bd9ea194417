"""Other people's programs that ours is measured beside: what to say where one is not installed."""

from __future__ import annotations

from typing import Final

NOT_INSTALLED: Final = {
    "pot": 'POT is not installed: pip install "ontrack[bench]"',
    "pm4py": "PM4Py is not installed: pip install pm4py (AGPL: in an environment of its own, not "
    "where a product is built)",
    "ek": "ek is not installed: pip install ek",
}
