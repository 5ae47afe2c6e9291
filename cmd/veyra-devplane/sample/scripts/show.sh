#!/bin/sh
exec python3 -c 'from calc.text.show import show; print(show(1, 2))'
