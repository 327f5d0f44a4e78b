# SPDX-License-Identifier: Apache-2.0
"""The exceptions that smddp_jax raises from Python.

What goes wrong inside a running collective arrives as JAX's own `JaxRuntimeError`, as
every error of an XLA custom call does; its text names the rank and the operation.
"""


class SmddpError(RuntimeError):
    """Base of everything that smddp_jax raises on its own account."""


class SettingError(SmddpError, ValueError):
    """A setting (an environment variable or an argument) has no usable value."""


class ClusterError(SmddpError):
    """The processes of the job could not be found or joined."""


class EngineUnavailableError(SmddpError):
    """The native engine is missing, or this jax is outside the tested range."""
