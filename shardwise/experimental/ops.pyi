from shardwise.compiler.ir.op import (
    BatchAxis as BatchAxis,
    Hlo as Hlo,
    LocalContext as LocalContext,
    Op as Op,
    UndefinedPrimal as UndefinedPrimal,
)
from shardwise.compiler.ir.types import ArrayType as ArrayType
from shardwise.compiler.ops.collective.collectives import AllGather as AllGather, AllReduce as AllReduce
from shardwise.compiler.ops.collective.take_window import TakeWindow as TakeWindow
from shardwise.compiler.ops.elementwise.base import Elementwise as Elementwise
from shardwise.compiler.shardings.factors import FactorRule as FactorRule
