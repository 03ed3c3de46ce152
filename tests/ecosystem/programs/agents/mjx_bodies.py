"""MuJoCo MJX (mujoco-mjx): trajectories of a batch of arms and of balls on a plane, with random masses, contacts,
actuators and sensors; derivatives of a trajectory, kinematics, conversion to and from MuJoCo.
"""

import contextlib
import io

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

with contextlib.redirect_stdout(io.StringIO()):  # MJX prints that its optional engine is not installed
    from mujoco import mjx

from tests.ecosystem.report import report, shard, spec_text

BATCH = 8
SCENE = """
<mujoco>
  <option timestep="0.005" iterations="3" ls_iterations="4"/>
  <worldbody>
    <geom type="plane" size="2 2 0.1"/>
    <body pos="0 0 1">
      <joint name="shoulder" type="hinge" axis="0 1 0" damping="0.1"/>
      <geom type="capsule" size="0.04" fromto="0 0 0 0.4 0 0" contype="0" conaffinity="0"/>
      <body pos="0.4 0 0">
        <joint name="elbow" type="hinge" axis="0 1 0" damping="0.1" range="-60 60"/>
        <geom type="capsule" size="0.03" fromto="0 0 0 0.3 0 0" contype="0" conaffinity="0"/>
      </body>
    </body>
    <body pos="1 0 0.1">
      <freejoint/>
      <geom type="sphere" size="0.11" mass="0.5"/>
    </body>
  </worldbody>
  <actuator>
    <motor joint="shoulder" gear="2"/>
    <position joint="elbow" kp="3"/>
  </actuator>
  <sensor>
    <jointpos joint="elbow"/>
    <subtreecom body="world"/>
  </sensor>
</mujoco>
"""


model = mujoco.MjModel.from_xml_string(SCENE)
device_model = shard(mjx.put_model(model))
data = shard(mjx.make_data(model))
rng = np.random.default_rng(0)
controls = shard(rng.normal(size=(BATCH, model.nu)).astype(np.float32), "data")
angles = shard(rng.normal(scale=0.3, size=(BATCH, 2)).astype(np.float32), "data")


masses = rng.uniform(0.5, 1.5, (BATCH, 1)).astype(np.float32) * model.body_mass.astype(np.float32)
models = device_model.replace(body_mass=shard(masses, "data"))
axes = jax.tree.map(lambda _: None, device_model).replace(body_mass=0)


def simulate(device_model, angles, controls):
    """Return the state of one scene after several steps."""
    start = data.replace(qpos=data.qpos.at[:2].set(angles), ctrl=controls)
    return jax.lax.scan(lambda state, _: (mjx.step(device_model, state), None), start, length=6)[0]


states = jax.jit(jax.vmap(simulate, in_axes=(axes, 0, 0)))(models, angles, controls)
report("positions", states.qpos)
report("velocities", states.qvel)
report("sensors", states.sensordata)
report("forces of constraints", states.qfrc_constraint)
report("sharding of the positions", spec_text(states.qpos))


def reach(controls):
    """Return how far the arm's velocities are from their targets."""
    final = jax.vmap(simulate, in_axes=(None, 0, 0))(device_model, angles, controls)
    return jnp.mean((final.qvel[:, :2] - 0.5) ** 2)


report("reach and its derivative", jax.jit(lambda x: jax.jvp(reach, (x,), (jnp.ones_like(x),)))(controls))

host = mujoco.MjData(model)
host.qpos[:2] = 0.3, -0.2
mujoco.mj_forward(model, host)  # `get_data` factors the inertia matrix
moved = jax.jit(mjx.kinematics)(device_model, shard(mjx.put_data(model, host)))
mujoco.mj_kinematics(model, host)
report("bodies as in MuJoCo", np.allclose(mjx.get_data(model, moved).xpos, host.xpos, atol=1e-5))
report("bodies", moved.xpos)
