"""Jaxley: the README's cell with Hodgkin-Huxley channels under a step current, a branched cell, a network with
synapses, gradients of conductances, batches of sharded stimuli.
"""

import jax
import jax.numpy as jnp
import jaxley as jx
import numpy as np
from jaxley.channels import HH, Leak
from jaxley.connect import fully_connect
from jaxley.synapses import IonotropicSynapse

from tests.ecosystem.report import report, shard

jax.config.update("jax_enable_x64", True)  # rounding shifts the time of a spike
current = jx.step_current(i_delay=1.0, i_dur=1.0, i_amp=0.1, delta_t=0.025, t_max=2.0)
cell = jx.Cell()
cell.insert(HH())
cell.stimulate(current, verbose=False)
cell.record("v", verbose=False)
report("readme", jx.integrate(cell, delta_t=0.025)[:, ::8])

branched = jx.Cell(jx.Branch(jx.Compartment(), ncomp=2), parents=[-1, 0, 0])
branched.insert(HH())
branched.branch(1).insert(Leak())
branched.set("axial_resistivity", 500.0)
branched.branch(2).comp(0).record("v", verbose=False)
branched.make_trainable("HH_gNa", verbose=False)
branched.make_trainable("radius", verbose=False)
parameters = branched.get_parameters()


def simulate(parameters, amplitude):
    stimulus = jx.step_current(i_delay=0.5, i_dur=1.0, i_amp=amplitude, delta_t=0.025, t_max=2.0)
    stimuli = branched.branch(0).comp(0).data_stimulate(stimulus, None)
    return jx.integrate(branched, params=parameters, data_stimuli=stimuli, delta_t=0.025)


def loss(parameters, amplitudes):
    voltages = jax.vmap(simulate, (None, 0))(parameters, amplitudes)
    return jnp.mean((voltages[:, 0, -20:] + 60) ** 2)


amplitudes = shard(np.linspace(0.05, 0.4, 8, dtype=np.float32), "data")
report("batch", jax.jit(jax.vmap(simulate, (None, 0)))(parameters, amplitudes)[:, 0, ::10])
value, gradients = jax.jit(jax.value_and_grad(loss))(parameters, amplitudes)
report("loss", value)
report("gradients", np.concatenate([np.ravel(x) for x in jax.tree.leaves(gradients)]))

network = jx.Network([cell for _ in range(3)])
fully_connect(network.cell([0]), network.cell([1, 2]), IonotropicSynapse())
network.insert(HH())
network.IonotropicSynapse.set("IonotropicSynapse_gS", 1e-3)
network.delete_stimuli()
network.delete_recordings()
network.cell(0).stimulate(current, verbose=False)
network.record("v", verbose=False)
report("network", jx.integrate(network, delta_t=0.025)[:, ::8])
