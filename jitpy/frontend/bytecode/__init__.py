"""Handlers of bytecode instructions, by family. Importing this package registers them all."""

from . import (
    call_opcodes as calls,
)  # noqa: F401
from . import (
    class_opcodes as classes,
)
from . import (
    container_opcodes as containers,
)
from . import (
    exception_opcodes as exceptions,
)
from . import (
    flow_opcodes as flow,
)
from . import (
    stack_opcodes as stack,
)
