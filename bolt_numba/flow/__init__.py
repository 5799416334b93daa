"""Pipelines of models and Python functions for streams of tasks; docs/flow.md leads through it.

>>> from bolt_numba.flow import Flow
>>> flow = Flow(inputs="image", outputs="label")
"""

from bolt_numba.flow.errors import FlowDeadlineError, FlowEmptyError, FlowError, FlowFullError
from bolt_numba.flow.files import load, save
from bolt_numba.flow.flow import Flow
from bolt_numba.flow.parts import NodeOptions, State, Workers
from bolt_numba.flow.several import Flows
from bolt_numba.flow.statistics import FlowStatistics, NodeStatistics, WorkerStatistics
from bolt_numba.flow.task import FlowTask

__all__ = [
    "Flow", "FlowDeadlineError", "FlowEmptyError", "FlowError", "FlowFullError", "FlowStatistics", "FlowTask",
    "Flows", "NodeOptions", "NodeStatistics", "State", "WorkerStatistics", "Workers", "load",
    "save",
]  # fmt: skip
