"""evosax: the README's CMA-ES with ask, evaluation and tell; Open-ES, SNES, the README's genetic algorithm and
particle swarms on sharded populations, BBOB problems, a network that is evolved.
"""

import jax
import jax.numpy as jnp
import numpy as np
from evosax import algorithms
from evosax.core.fitness_shaping import centered_rank_fitness_shaping_fn
from evosax.problems import BBOBProblem
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.ecosystem.report import mesh, report, shard

POPULATION, GENERATIONS = 32, 6
rows = NamedSharding(mesh, P("data"))
rng = np.random.default_rng(0)
inputs = shard(rng.normal(size=(16, 3)).astype(np.float32))
targets = jnp.sin(inputs.sum(1))
solution = {"w1": jnp.zeros((3, 8)), "b1": jnp.zeros(8), "w2": jnp.zeros(8)}


def loss(network):
    hidden = jnp.tanh(inputs @ network["w1"] + network["b1"])
    return jnp.mean((hidden @ network["w2"] - targets) ** 2)


def evaluate(population):
    """Return the losses of a population whose individuals are sharded over the devices."""
    return jax.vmap(loss)(jax.lax.with_sharding_constraint(population, rows))


def evolve(strategy, state, key):
    """Return the best losses of several generations, and the final state."""

    def generation(state, key):
        key_ask, key_tell = jax.random.split(key)
        population, state = strategy.ask(key_ask, state, strategy.default_params)
        fitness = evaluate(population)
        state, metrics = strategy.tell(key_tell, population, fitness, state, strategy.default_params)
        return state, (fitness.min(), fitness.mean(), metrics["best_fitness"])

    return jax.lax.scan(generation, state, jax.random.split(key, GENERATIONS))


for name in ("Open_ES", "SNES"):
    strategy = getattr(algorithms, name)(population_size=POPULATION, solution=solution)
    state = strategy.init(jax.random.key(1), solution, strategy.default_params)
    state, losses = jax.jit(lambda state, key, of=strategy: evolve(of, state, key))(state, jax.random.key(2))
    report(f"{name}: losses", losses)
    report(f"{name}: mean", jax.tree.leaves(strategy.get_mean(state))[0])

start = jax.tree.map(lambda x: rng.normal(scale=0.5, size=(POPULATION, *x.shape)).astype(np.float32), solution)
start = jax.tree.map(lambda x: shard(x, "data"), start)
for name in ("SimpleGA", "PSO"):
    strategy = getattr(algorithms, name)(population_size=POPULATION, solution=solution)
    state = strategy.init(jax.random.key(3), start, jax.jit(evaluate)(start), strategy.default_params)
    state, losses = jax.jit(lambda state, key, of=strategy: evolve(of, state, key))(state, jax.random.key(4))
    report(f"{name}: losses", losses)

problem = BBOBProblem(fn_name="rosenbrock", num_dims=4, seed=0)
point = problem.sample(jax.random.key(5))
report("BBOB: sample", point)
strategy = algorithms.CMA_ES(
    population_size=16, solution=jnp.zeros(4), fitness_shaping_fn=centered_rank_fitness_shaping_fn
)
params, problem_state = strategy.default_params, problem.init(jax.random.key(6))
state = strategy.init(jax.random.key(7), jnp.zeros(4), params)
ask, tell = jax.jit(strategy.ask), jax.jit(strategy.tell)
for index, key in enumerate(jax.random.split(jax.random.key(8), 4)):
    key_ask, key_eval, key_tell = jax.random.split(key, 3)
    population, state = ask(key_ask, state, params)
    fitness, problem_state, _ = jax.jit(problem.eval)(key_eval, shard(population, "data"), problem_state)
    state, metrics = tell(key_tell, population, fitness, state, params)
    report(f"CMA-ES: best fitness of generation {index}", metrics["best_fitness"])
report("CMA-ES: mean", state.mean)
