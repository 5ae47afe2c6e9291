import importlib.util
import os
import subprocess
import unittest

from calc.ops import add, negate
from calc.text.show import show


class CalcTest(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)

    def test_negate(self):
        self.assertEqual(negate(2), -2)

    def test_show(self):
        self.assertEqual(show(2, 3), "2 + 3 = 5")

    def test_scale(self):
        from calc.scale import scale

        self.assertEqual(scale([1, 2], 3), [3, 6])

    def test_legacy_is_gone(self):
        self.assertIsNone(importlib.util.find_spec("calc.legacy"))

    def test_show_script_runs(self):
        self.assertTrue(os.access("scripts/show.sh", os.X_OK))
        out = subprocess.run(["scripts/show.sh"], capture_output=True, text=True)
        self.assertEqual(out.stdout, "1 + 2 = 3\n")


if __name__ == "__main__":
    unittest.main()
