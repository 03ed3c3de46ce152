"""EvoJAX: PGPE, CMA-ES and a simple genetic algorithm evolve multilayer perceptrons for the swing-up of a cart pole,
whose episodes are sharded over the devices.
"""

import jax
import jax.numpy as jnp
from evojax.algo import PGPE, SimpleGA
from evojax.algo.cma_jax import CMA_ES_JAX
from evojax.policy import MLPPolicy
from evojax.task.cartpole import CartPoleSwingUp

from tests.ecosystem.report import report, shard

POPULATION, STEPS = 16, 20
task = CartPoleSwingUp(test=False, max_steps=STEPS)
policy = MLPPolicy(input_dim=task.obs_shape[0], hidden_dims=[16], output_dim=task.act_shape[0])


@jax.jit
def scores(parameters, keys):
    """Return the sum of the rewards of one episode for each member of a population."""
    state = task.reset(keys)

    def step(carry, _):
        state, policy_state = carry
        actions, policy_state = policy.get_actions(state, parameters, policy_state)
        state, reward, done = task.step(state, actions)
        return (state, policy_state), reward * (1 - done)

    return jax.lax.scan(step, (state, policy.reset(state)), length=STEPS)[1].sum(0)


solvers = {
    "PGPE": PGPE(pop_size=POPULATION, param_size=policy.num_params, optimizer="adam", center_learning_rate=0.1, seed=0),
    "simple GA": SimpleGA(pop_size=POPULATION, param_size=policy.num_params, sigma=0.1, seed=0),
    "CMA-ES": CMA_ES_JAX(param_size=policy.num_params, pop_size=POPULATION, init_stdev=0.1, seed=0),
}
report("parameters", policy.num_params)
for name, solver in solvers.items():
    fitness = []
    for generation in range(3):
        population = solver.ask()
        keys = jax.random.split(jax.random.PRNGKey(generation), POPULATION)
        fitness.append(scores(shard(population, "data"), shard(keys, "data")))
        solver.tell(fitness[-1])
    report(f"{name}: fitness", jnp.stack(fitness))
    report(f"{name}: best parameters", solver.best_params[:32])
