"""The demo, run as its readers run it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.spark

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def _demo_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_demo_prints_the_right_revenue() -> None:
    done = subprocess.run([sys.executable, str(DEMO)], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    demo = _demo_module()
    orders = demo.make_orders()
    for product in demo.PRODUCTS:
        line = re.search(rf"^{product} +([\d,]+) +([\d,.]+)$", done.stdout, re.MULTILINE)
        assert line is not None, done.stdout
        mine = [order for order in orders if order["product"] == product]
        assert int(line[1].replace(",", "")) == len(mine)
        assert Decimal(line[2].replace(",", "")) == sum(order["quantity"] * order["price"] for order in mine)
    assert "The sums equal those of the appended orders." in done.stdout
