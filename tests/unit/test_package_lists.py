import re
from importlib import import_module
from pkgutil import iter_modules

import pytest


@pytest.mark.parametrize("name", ["skyroute.remoting", "skyroute.wire.calls"])
def test_a_large_package_lists_its_modules(name: str) -> None:
    package = import_module(name)
    listed = re.findall(r"`(\w+)`", package.__doc__ or "")
    assert sorted(listed) == sorted(module.name for module in iter_modules(package.__path__))
