"""scipy.stats: probability distributions and statistics of samples, on sharded arrays too.

Each distribution is a module of functions such as `pdf`, `logpdf`, `cdf` and `ppf`. The univariate ones are
elementwise and broadcast their parameters, so sharded operands keep their sharding.

The public names are listed in `__init__.pyi`.
"""

from shardwise.base.lazy import lazy_namespace

__all__, __getattr__, __dir__ = lazy_namespace(__name__, __file__)
