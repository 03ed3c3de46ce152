"""Building blocks of parallel models: differentiable functions that communicate over a named mesh axis."""

from shardwise.base.lazy import set_public_names
from shardwise.parallel.collective_matmul import all_gather_matmul as all_gather_matmul
from shardwise.parallel.collective_matmul import matmul_reduce_scatter as matmul_reduce_scatter
from shardwise.parallel.cross_entropy import cross_entropy as cross_entropy
from shardwise.parallel.embedding import embedding_lookup as embedding_lookup
from shardwise.parallel.mixture_of_experts import MixtureAux as MixtureAux
from shardwise.parallel.mixture_of_experts import mixture_of_experts as mixture_of_experts
from shardwise.parallel.mpmd.check_schedule import check_schedule as check_schedule
from shardwise.parallel.mpmd.make_schedule import task_schedule as task_schedule
from shardwise.parallel.mpmd.mpmd_pipeline import MpmdPipeline as MpmdPipeline
from shardwise.parallel.mpmd.mpmd_pipeline import mpmd_pipeline as mpmd_pipeline
from shardwise.parallel.mpmd.mpmd_step import MpmdStep as MpmdStep
from shardwise.parallel.mpmd.mpmd_step import mpmd_step as mpmd_step
from shardwise.parallel.mpmd.predict import PipelineSimulation as PipelineSimulation
from shardwise.parallel.mpmd.predict_stage import StagePrediction as StagePrediction
from shardwise.parallel.mpmd.simulate import Simulation as Simulation
from shardwise.parallel.mpmd.simulate import TaskTimes as TaskTimes
from shardwise.parallel.mpmd.simulate import simulate_schedule as simulate_schedule
from shardwise.parallel.mpmd.split_stages import StagedModel as StagedModel
from shardwise.parallel.mpmd.split_stages import split_stages as split_stages
from shardwise.parallel.mpmd.split_stages import stage_boundary as stage_boundary
from shardwise.parallel.mpmd.stage_rows import StageRows as StageRows
from shardwise.parallel.mpmd.task import Task as Task
from shardwise.parallel.mpmd.task_schedule import TaskSchedule as TaskSchedule
from shardwise.parallel.pipeline import Pipeline as Pipeline
from shardwise.parallel.pipeline import pipeline as pipeline
from shardwise.parallel.pipeline_schedule import Schedule as Schedule
from shardwise.parallel.pipeline_schedule import pipeline_schedule as pipeline_schedule
from shardwise.parallel.ring_attention import ring_attention as ring_attention
from shardwise.parallel.ulysses_attention import ulysses_attention as ulysses_attention
from shardwise.parallel.zigzag import unzigzag as unzigzag
from shardwise.parallel.zigzag import zigzag as zigzag

__all__: list[str] = [
    "MixtureAux",
    "MpmdPipeline",
    "MpmdStep",
    "Pipeline",
    "PipelineSimulation",
    "Schedule",
    "Simulation",
    "StagePrediction",
    "StageRows",
    "StagedModel",
    "Task",
    "TaskSchedule",
    "TaskTimes",
    "all_gather_matmul",
    "check_schedule",
    "cross_entropy",
    "embedding_lookup",
    "matmul_reduce_scatter",
    "mixture_of_experts",
    "mpmd_pipeline",
    "mpmd_step",
    "pipeline",
    "pipeline_schedule",
    "ring_attention",
    "simulate_schedule",
    "split_stages",
    "stage_boundary",
    "task_schedule",
    "ulysses_attention",
    "unzigzag",
    "zigzag",
]

set_public_names(__name__, __all__)
