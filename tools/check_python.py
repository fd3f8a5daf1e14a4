"""Checks whether this Python can build cyproducer.

Exit code 0: it can; prints its path. 3: something is missing; prints what to install. 2: it is too old;
prints nothing. The code must run on any Python version, because `find_python.sh` also runs it with old ones.
"""

import os
import sys

if sys.version_info < (3, 11):  # noqa: UP036 - see above
    sys.exit(2)

import shutil
import sysconfig

version = "%d.%d" % sys.version_info[:2]  # noqa: UP031 - an f-string is a syntax error to an old Python
missing = []
try:
    import ensurepip  # noqa: F401
    import venv  # noqa: F401
except ImportError:
    missing.append("its module venv (Debian: apt-get install python%s-venv)" % version)  # noqa: UP031
compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
if shutil.which(compiler) is None and shutil.which("cc") is None:
    missing.append("a C compiler (Debian: apt-get install build-essential; macOS: xcode-select --install)")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    missing.append("its header Python.h (Debian: apt-get install python%s-dev)" % version)  # noqa: UP031
if missing:
    sys.stderr.write("%s (%s) lacks %s\n" % (sys.executable, version, ", and ".join(missing)))  # noqa: UP031
    sys.exit(3)
print(sys.executable)
